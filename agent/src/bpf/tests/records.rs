//! What the programs and perf write, on the kernel of this machine, as root: nothing is lost uncounted,
//! nothing comes from those who were not asked for, nothing stays.

use super::programs::{DEEP, EXEC_AGAIN};
use super::run::{
    BOTH_FORMS, PATIENCE, PLAIN, WANTED, assert_ledger_closes, cannot_run, load, options, outcomes,
    run, samples,
};
use super::target::Target;
use crate::address::{AbsAddr, Pid};
use crate::bpf::{
    FormChoice, KernelSymbolEvent, Options, ProcessEvent, Record, Sampler, outcomes_of,
};
use crate::clock::monotonic_now;
use crate::normalize::{Frame, KernelRegion};
use crate::symbolize::kernel::KernelRegions;
use agent_ebpf::Outcome;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

#[test]
fn a_full_ring_loses_samples_and_counts_them() {
    if cannot_run() {
        return;
    }
    let target = Target::compile_and_run(DEEP, &PLAIN);
    for form in BOTH_FORMS {
        let options = Options { ring_bytes: Some(4096), ..options(form, target.pid()) };
        let (mut sampler, _tables) = load(&options, &target);
        sampler.start().unwrap();
        let end = Instant::now() + PATIENCE;
        let lost = || sampler.statistics().unwrap().total().counters.lost;
        while lost() <= 20 && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(20)); // nobody reads
        }
        sampler.stop().unwrap();
        let statistics = sampler.statistics().unwrap();
        assert_ledger_closes(&statistics);
        let total = statistics.total().counters;
        assert!(total.lost > 20 && total.shipped > 0, "{total:?}");
        let mut shipped = 0;
        sampler.flush(&mut |record| shipped += u64::from(matches!(record, Record::Sample(_))));
        assert_eq!(shipped, total.shipped, "what was shipped arrives");
    }
}

#[test]
fn only_the_processes_asked_for_are_sampled_and_kernel_threads_are_a_choice() {
    if cannot_run() {
        return;
    }
    let wanted = Target::compile_and_run(DEEP, &PLAIN);
    let other = Target::compile_and_run(DEEP, &PLAIN);
    let (mut sampler, _tables) = load(&options(FormChoice::Auto, wanted.pid()), &wanted);
    let (records, statistics) = run(&mut sampler, wanted.pid(), WANTED);
    assert_ledger_closes(&statistics);
    assert!(statistics.total().counters.filtered > 5);
    let of_other = |record: &Record| matches!(record, Record::Sample(s) if s.pid == other.pid());
    assert!(!records.iter().any(of_other));
    drop(sampler);

    let all = Options { kernel_threads: false, frequency_hz: 499, ..Options::default() };
    let (mut sampler, _tables) = load(&all, &wanted);
    let (_, statistics) = run(&mut sampler, wanted.pid(), WANTED);
    assert_ledger_closes(&statistics);
    assert_eq!(outcomes_of(&statistics.total().counters, Outcome::NoUserStack), 0);
}

#[test]
fn an_unknown_process_keeps_its_leaf_and_wakes_the_reader_at_once() {
    if cannot_run() {
        return;
    }
    let target = Target::compile_and_run(DEEP, &PLAIN);
    let (mut sampler, mut tables) = load(&options(FormChoice::Auto, target.pid()), &target);
    tables.remove_process(target.pid()).unwrap();
    sampler.start().unwrap();
    let begin = Instant::now();
    let mut note = None;
    while note.is_none() && begin.elapsed() < Duration::from_secs(5) {
        // The wait is as long as the test may take: only a note ends it.
        let poll = sampler.poll(Duration::from_secs(5), &mut |record| {
            if let Record::UnknownMapping { pid, address, .. } = record {
                note = Some((pid, address, begin.elapsed()));
            }
        });
        poll.unwrap();
    }
    let (pid, address, waited) = note.expect("a note");
    assert_eq!((pid, address), (target.pid(), None));
    assert!(waited < Duration::from_secs(2), "{waited:?}");
    let (records, statistics) = run(&mut sampler, target.pid(), WANTED);
    let samples = samples(records, target.pid());
    assert_eq!(outcomes(&samples).into_keys().collect::<Vec<_>>(), [Outcome::ProcessUnknown]);
    assert!(samples.iter().all(|sample| sample.user.len() == 1 && sample.user[0].exact));
    let total = statistics.total().counters;
    // A sample every 2 ms of CPU time, a note at most every 10 ms: on a busy host few are held back.
    assert!(total.notes > 0 && total.notes_held > 0, "{total:?}");
}

#[test]
fn exec_drops_the_mappings_before_the_new_program_runs() {
    if cannot_run() {
        return;
    }
    let target = Target::compile_and_run(EXEC_AGAIN, &PLAIN);
    let (mut sampler, _tables) = load(&options(FormChoice::Auto, target.pid()), &target);
    let (mut records, _) = run(&mut sampler, target.pid(), WANTED);
    target.signal(rustix::process::Signal::USR1);
    let (more, statistics) = run(&mut sampler, target.pid(), WANTED);
    records.extend(more);
    let exec = records.iter().position(|record| {
        matches!(record,
            Record::Process(ProcessEvent::Comm { pid, exec: true, .. }) if *pid == target.pid())
    });
    let after = records.split_off(exec.expect("it executed itself"));
    assert!(statistics.total().counters.execs >= 1);
    let (before, after) = (samples(records, target.pid()), samples(after, target.pid()));
    // A sample in execve itself may be without mappings, or between the two programs.
    assert!(outcomes(&before).get(&Outcome::Complete) >= Some(&(before.len() - 2)));
    // In execve the memory may be the new program's already, and the registers still the old one's.
    assert!(outcomes(&after).get(&Outcome::ProcessUnknown) >= Some(&(after.len() - 1)));
    assert!(!outcomes(&after).contains_key(&Outcome::Complete));
}

#[test]
fn the_life_of_a_short_process_is_told_whole_and_in_order() {
    if cannot_run() {
        return;
    }
    let (mut sampler, _tables) = Sampler::load(&Options::default()).unwrap();
    let mut child = std::process::Command::new("/bin/true").spawn().unwrap();
    let pid = Pid(child.id());
    child.wait().unwrap();
    let mut records = Vec::new();
    sampler.flush(&mut |record| records.push(record));
    let mut told = Vec::new();
    for record in records {
        match record {
            Record::Process(ProcessEvent::Fork { pid: of, .. }) if of == pid => told.push("fork"),
            Record::Process(ProcessEvent::Comm { pid: of, exec: true, comm, .. }) if of == pid => {
                assert_eq!(comm, b"true");
                told.push("exec");
            }
            Record::Process(ProcessEvent::Mmap { pid: of, path, build_id, .. }) if of == pid => {
                if path.ends_with(b"/true") {
                    assert_eq!(build_id.is_some(), sampler.kernel_build_ids());
                    told.push("program");
                }
                if path.ends_with(b"/libc.so.6") {
                    told.push("libc");
                }
            }
            Record::Process(ProcessEvent::Exit { pid: of, .. }) if of == pid => told.push("exit"),
            _ => {}
        }
    }
    assert_eq!(told, ["fork", "exec", "program", "libc", "exit"]);
}

#[test]
fn nothing_stays_loaded() {
    if cannot_run() {
        return;
    }
    let target = Target::compile_and_run(DEEP, &PLAIN);
    let (mut sampler, tables) = load(&options(FormChoice::TailCalls, target.pid()), &target);
    run(&mut sampler, target.pid(), 20);
    let programs = loaded_programs();
    assert!(
        ["sample_tail", "walk_tail", "process_exec"]
            .iter()
            .all(|name| programs.contains_key(*name)),
        "{programs:?}"
    );
    drop((sampler, tables));
    // The kernel frees a program when the last perf event that could run it is gone: at once or a moment
    // later. Other tests of this process load programs of their own, with other numbers.
    let gone = || programs.values().all(|id| !loaded_programs().values().any(|other| other == id));
    let end = Instant::now() + Duration::from_secs(5);
    while !gone() && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(gone(), "{programs:?} are still loaded");
}

/// Ids of the programs of this kind whose descriptors this process holds, by name: the newest of each.
fn loaded_programs() -> BTreeMap<String, u32> {
    let all = aya::programs::loaded_programs().filter_map(Result::ok);
    all.filter_map(|program| Some((program.name_as_str()?.to_owned(), program.id()))).collect()
}

#[test]
fn the_programs_diagnostics_reach_the_log_in_both_forms() {
    if cannot_run() {
        return;
    }
    let target = Target::compile_and_run(DEEP, &PLAIN);
    for form in BOTH_FORMS {
        let options = Options { bpf_log: true, ..options(form, target.pid()) };
        let (mut sampler, _tables) = load(&options, &target);
        let log = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
        let subscriber = tracing_subscriber::fmt().with_writer(Log(log.clone())).finish();
        tracing::subscriber::with_default(subscriber, || run(&mut sampler, target.pid(), 20));
        let text = String::from_utf8(log.lock().unwrap().clone()).unwrap();
        let line = format!("pid {} walked 0 kernel and ", target.pid().0);
        assert!(text.contains(&line), "{text}");
    }
}

/// Where the test's log goes.
#[derive(Clone)]
struct Log(std::sync::Arc<std::sync::Mutex<Vec<u8>>>);

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl tracing_subscriber::fmt::MakeWriter<'_> for Log {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        self.clone()
    }
}

#[test]
fn programs_that_come_and_go_are_told_with_their_bounds() {
    if cannot_run() {
        return;
    }
    let target = Target::compile_and_run(DEEP, &PLAIN);
    let (mut watcher, _tables) = load(&options(FormChoice::Auto, target.pid()), &target);
    let regions = KernelRegions::default();
    let mut told = Vec::new();
    let mut take = |watcher: &mut Sampler| {
        watcher.flush(&mut |record| {
            if let Record::Process(ProcessEvent::KernelSymbol { time, event }) = record {
                regions.apply(event.clone(), time);
                told.push((time, event));
            }
        });
        told.clone()
    };
    take(&mut watcher);
    // The kernel looks through the programs for a second, and the rings must not run full meanwhile.
    let other = std::thread::scope(|scope| {
        let loading = scope.spawn(|| load(&options(FormChoice::BpfLoop, target.pid()), &target));
        while !loading.is_finished() {
            take(&mut watcher);
            std::thread::sleep(Duration::from_millis(5));
        }
        loading.join().unwrap()
    });
    let come = take(&mut watcher);
    // Kallsyms agrees on where they lie, read while the second sampler lives.
    let text = std::fs::read_to_string("/proc/kallsyms").unwrap();
    let hidden = text.starts_with("0000000000000000");
    let listed = |event: &KernelSymbolEvent| {
        let name = String::from_utf8_lossy(&event.name);
        hidden || text.contains(&format!("{:016x} t {name}", event.address.0))
    };
    let living = monotonic_now();
    drop(other);
    // Others on this machine may load samplers too. One that came, was there, and went after that is as good.
    let is_sampler = |event: &KernelSymbolEvent| event.name.ends_with(b"_sample_loop");
    let same = |one: &KernelSymbolEvent, two: &KernelSymbolEvent| {
        (one.address, one.length, &one.name) == (two.address, two.length, &two.name)
    };
    let end = Instant::now() + Duration::from_secs(10);
    let (event, gone_at) = loop {
        let all = take(&mut watcher);
        let gone = all.iter().find_map(|(time, gone)| {
            let ours = gone.gone && *time > living && is_sampler(gone);
            let came = come.iter().rfind(|(_, event)| !event.gone && same(event, gone));
            came.filter(|_| ours).map(|(_, event)| (event.clone(), *time))
        });
        if let Some(found) = gone {
            break found;
        }
        assert!(Instant::now() < end, "no record of its end: {come:?}");
        std::thread::sleep(Duration::from_millis(20));
    };
    assert!(event.bpf && listed(&event), "{event:?}");
    let inside = AbsAddr(event.address.0 + u64::from(event.length) - 1);
    let named = |at| {
        let region = KernelRegion::default();
        let mut frames = [Frame::Kernel { address: inside, region }];
        regions.place(&mut frames, at);
        !matches!(frames, [Frame::Kernel { region: KernelRegion(0), .. }])
    };
    assert!(named(living), "what was sampled while it lived keeps its name");
    assert!(!named(gone_at.plus(1)), "its address may be another's from then on");
}
