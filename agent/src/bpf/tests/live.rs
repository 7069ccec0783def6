//! The programs on the kernel of this machine, as root. Each test loads a sampler of its own; the
//! processes of other tests are filtered out where they would disturb.

use super::programs::{DEEP, EXEC_AGAIN, SIGNAL, SYSTEM_CALLS, VERY_DEEP};
use super::target::{TableLoader, Target};
use crate::address::{AbsAddr, Generation, Pid};
use crate::bpf::{
    Form, FormChoice, MappingUnwind, Options, ProcessEvent, RawSample, Record, Sampler, Statistics,
    Tables, WalkMapping, outcomes_of,
};
use agent_ebpf::{Outcome, RuleKind, UnwindRule, UserRegisters};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

const BOTH_FORMS: [FormChoice; 2] = [FormChoice::BpfLoop, FormChoice::TailCalls];
const GENERATION: Generation = Generation(7);
const PLAIN: [&str; 2] = ["-O2", "-fomit-frame-pointer"];

/// True, after saying why, if live tests cannot run here.
fn cannot_run() -> bool {
    if crate::bpf::object::OBJECT.is_none() {
        eprintln!("skipped: built without BPF programs (VESTA_BPF_OBJECT=none)");
        return true;
    }
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: loading BPF programs needs root");
        return true;
    }
    false
}

fn options(form: FormChoice, pid: Pid) -> Options {
    Options { frequency_hz: 499, form, pid_filter: Some(vec![pid]), ..Options::default() }
}

/// A sampler of one process whose tables are loaded, not started.
fn load(options: &Options, target: &Target) -> (Sampler, Tables) {
    let loaded = Sampler::load(options);
    let (sampler, mut tables) = loaded.unwrap_or_else(|error| panic!("{options:?}: {error}"));
    TableLoader::default().load(&mut tables, target.pid(), GENERATION);
    (sampler, tables)
}

/// Samples that a test wants of its process, and how long it waits for them: two CPUs are shared with
/// whatever else runs.
const WANTED: usize = 200;
const PATIENCE: Duration = Duration::from_secs(20);

/// Runs until `wanted` samples of `pid` have come, and takes everything out.
fn run(sampler: &mut Sampler, pid: Pid, wanted: usize) -> (Vec<Record>, Statistics) {
    let mut records = Vec::new();
    let mut seen = 0;
    let mut keep = |record| {
        seen += usize::from(matches!(&record, Record::Sample(sample) if sample.pid == pid));
        records.push(record);
        seen
    };
    sampler.start().unwrap();
    let end = Instant::now() + PATIENCE;
    let mut so_far = 0;
    while so_far < wanted && Instant::now() < end {
        sampler.poll(Duration::from_millis(20), &mut |record| so_far = keep(record)).unwrap();
    }
    sampler.stop().unwrap();
    sampler.flush(&mut |record| so_far = keep(record));
    assert!(so_far >= wanted, "{so_far} samples in {PATIENCE:?}: {:?}", sampler.statistics());
    (records, sampler.statistics().unwrap())
}

fn samples(records: Vec<Record>, pid: Pid) -> Vec<RawSample> {
    let samples = records.into_iter().filter_map(|record| match record {
        Record::Sample(sample) => Some(sample),
        _ => None,
    });
    samples.filter(|sample| sample.pid == pid).collect()
}

fn outcomes(samples: &[RawSample]) -> BTreeMap<Outcome, usize> {
    let mut outcomes = BTreeMap::new();
    for sample in samples {
        *outcomes.entry(sample.outcome).or_insert(0) += 1;
    }
    outcomes
}

/// Every run of the programs became exactly one thing.
fn assert_ledger_closes(statistics: &Statistics) {
    for cpu in &statistics.cpus {
        let counters = &cpu.counters;
        let explained = counters.idle + counters.shipped + counters.lost + counters.filtered;
        assert_eq!(counters.runs, explained, "{cpu:?}");
        assert_eq!(
            counters.outcomes.iter().sum::<u64>(),
            counters.shipped + counters.lost,
            "{cpu:?}"
        );
    }
    assert_eq!(statistics.malformed, 0);
}

fn samples_of(target: &Target, options: &Options) -> (Vec<RawSample>, Statistics, Sampler) {
    let (mut sampler, _tables) = load(options, target);
    let (records, statistics) = run(&mut sampler, target.pid(), WANTED);
    assert_ledger_closes(&statistics);
    (samples(records, target.pid()), statistics, sampler)
}

#[test]
fn c_without_frame_pointers_unwinds_to_its_start_in_both_forms() {
    if cannot_run() {
        return;
    }
    let target = Target::compile_and_run(DEEP, &PLAIN);
    for form in BOTH_FORMS {
        let options = options(form, target.pid());
        let (samples, statistics, sampler) = samples_of(&target, &options);
        let expected = if form == FormChoice::BpfLoop { Form::BpfLoop } else { Form::TailCalls };
        assert_eq!(sampler.form(), expected);
        assert_eq!(outcomes(&samples).into_keys().collect::<Vec<_>>(), [Outcome::Complete]);
        assert!(samples.iter().all(|sample| sample.generation == GENERATION));
        assert!(samples.iter().all(|sample| sample.user[0].exact && !sample.user[1].exact));
        // main, its two callers in the C library and _start, below 0 to 20 times `deep`.
        let deepest = samples.iter().map(|sample| sample.user.len()).max();
        assert!(deepest >= Some(28), "{deepest:?}");
        let total = statistics.total().counters;
        let frames: usize = samples.iter().map(|sample| sample.user.len()).sum();
        eprintln!(
            "{form:?}: {} samples, {} frames each, {} ns BPF time a sample",
            samples.len(),
            frames / samples.len(),
            total.run_ns / total.shipped
        );
    }
}

#[test]
fn user_stacks_below_system_calls_are_whole_by_helper_and_by_kernel_stack() {
    if cannot_run() {
        return;
    }
    let target = Target::compile_and_run(SYSTEM_CALLS, &PLAIN);
    for registers in [UserRegisters::Helper, UserRegisters::KernelStack] {
        for form in BOTH_FORMS {
            let options =
                Options { user_registers: Some(registers), ..options(form, target.pid()) };
            let (samples, _, _) = samples_of(&target, &options);
            let in_kernel = samples.iter().filter(|sample| !sample.kernel.is_empty()).count();
            assert!(in_kernel * 2 > samples.len(), "{in_kernel} of {}", samples.len());
            assert_eq!(outcomes(&samples).into_keys().collect::<Vec<_>>(), [Outcome::Complete]);
            let kernel = samples.iter().flat_map(|sample| &sample.kernel);
            assert!(kernel.into_iter().all(|frame| frame.0 >> 63 == 1), "kernel addresses");
        }
    }
}

#[test]
fn a_signal_handler_on_its_own_stack_unwinds_to_what_it_interrupted() {
    if cannot_run() {
        return;
    }
    let target = Target::compile_and_run(SIGNAL, &PLAIN);
    for form in BOTH_FORMS {
        let (samples, _, _) = samples_of(&target, &options(form, target.pid()));
        let whole = outcomes(&samples).remove(&Outcome::Complete).unwrap_or(0);
        // A sample between the kernel's setup of the handler and its first instruction may be cut.
        assert!(whole * 1000 >= samples.len() * 995, "{:?}", outcomes(&samples));
        // The handler's leaf, and the instruction in `victim` that the signal interrupted.
        let exact =
            |sample: &&RawSample| sample.user.iter().filter(|frame| frame.exact).count() == 2;
        let in_handler = samples.iter().filter(exact).count();
        assert!(in_handler > 5, "{in_handler} of {}", samples.len());
    }
}

#[test]
fn code_without_unwind_information_is_walked_by_frame_pointers() {
    if cannot_run() {
        return;
    }
    let flags =
        ["-O1", "-fno-omit-frame-pointer", "-fno-asynchronous-unwind-tables", "-fno-unwind-tables"];
    let target = Target::compile_and_run(DEEP, &flags);
    for form in BOTH_FORMS {
        let (samples, _, _) = samples_of(&target, &options(form, target.pid()));
        let whole = outcomes(&samples).remove(&Outcome::Complete).unwrap_or(0);
        assert!(whole * 1000 >= samples.len() * 995, "{:?}", outcomes(&samples));
        assert!(samples.iter().map(|sample| sample.user.len()).max() >= Some(24));
    }
}

#[test]
fn a_stack_deeper_than_the_limit_keeps_its_leaf_side() {
    if cannot_run() {
        return;
    }
    let target = Target::compile_and_run(VERY_DEEP, &PLAIN);
    for (form, frames) in [
        (FormChoice::BpfLoop, agent_ebpf::limits::USER_FRAMES_MAX),
        (FormChoice::TailCalls, agent_ebpf::limits::USER_FRAMES_TAIL_CALLS_MAX),
    ] {
        let (samples, _, _) = samples_of(&target, &options(form, target.pid()));
        let limited: Vec<_> =
            samples.iter().filter(|sample| sample.outcome == Outcome::DepthLimit).collect();
        assert!(!limited.is_empty(), "{:?}", outcomes(&samples));
        assert!(limited.iter().all(|sample| sample.user.len() == frames));
        assert!(samples.iter().all(|sample| sample.user.len() <= frames));
    }
}

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
        std::thread::sleep(Duration::from_millis(500)); // nobody reads
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
    // A sample every 2 ms, a note at most every 10 ms.
    assert!(total.notes > 0 && total.notes < total.notes_held, "{total:?}");
}

/// A mapping of all user space.
fn everywhere(unwind: MappingUnwind) -> WalkMapping {
    WalkMapping { start: AbsAddr(4096), end: AbsAddr(1 << 47), bias: 0, unwind }
}

#[test]
fn what_a_mapping_says_decides_how_the_walk_ends() {
    if cannot_run() {
        return;
    }
    let target = Target::compile_and_run(DEEP, &PLAIN);
    let (mut sampler, mut tables) = load(&options(FormChoice::Auto, target.pid()), &target);
    let rule = |kind| everywhere(MappingUnwind::Rule(UnwindRule::plain(kind)));
    let rows = [
        (vec![], Outcome::MappingUnknown),
        (vec![everywhere(MappingUnwind::Pending)], Outcome::TablePending),
        (vec![rule(RuleKind::End)], Outcome::Complete),
        (vec![rule(RuleKind::Unsupported)], Outcome::RuleUnsupported),
    ];
    for (mappings, expected) in rows {
        let before = sampler.statistics().unwrap().total().counters.notes;
        assert_eq!(tables.set_process(target.pid(), GENERATION, &mappings).unwrap(), 0);
        let (records, statistics) = run(&mut sampler, target.pid(), 20);
        let notes = statistics.total().counters.notes - before;
        assert_eq!(notes > 0, expected == Outcome::MappingUnknown, "{expected:?}");
        let samples = samples(records, target.pid());
        assert_eq!(outcomes(&samples).into_keys().collect::<Vec<_>>(), [expected]);
        assert!(samples.iter().all(|sample| sample.user.len() == 1));
    }
}

#[test]
fn more_mappings_than_a_page_holds_are_found() {
    if cannot_run() {
        return;
    }
    let target = Target::compile_and_run(DEEP, &PLAIN);
    let loaded = Sampler::load(&options(FormChoice::Auto, target.pid()));
    let (mut sampler, mut tables) = loaded.unwrap();
    let real = TableLoader::default().mappings(&mut tables, target.pid());
    let small = |n: u64, base: u64| WalkMapping {
        start: AbsAddr(base + n * 8192),
        end: AbsAddr(base + n * 8192 + 4096),
        bias: 0,
        unwind: MappingUnwind::Pending,
    };
    // Small mappings below the program, the real ones, and small ones above.
    for before in [0_u64, 1, 62, 63, 64, 65, 1000, 8000] {
        let mut mappings: Vec<_> = (0..before).map(|n| small(n, 65536)).collect();
        mappings.extend(&real);
        mappings.extend((0..70).map(|n| small(n, 0x7fff_ffff_f000)));
        let left_out = tables.set_process(target.pid(), GENERATION, &mappings).unwrap();
        assert_eq!(left_out, 0);
        let (records, _) = run(&mut sampler, target.pid(), 20);
        let samples = samples(records, target.pid());
        assert_eq!(
            outcomes(&samples).into_keys().collect::<Vec<_>>(),
            [Outcome::Complete],
            "{before}"
        );
    }
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
    assert_eq!(outcomes(&after).into_keys().collect::<Vec<_>>(), [Outcome::ProcessUnknown]);
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
fn processes_with_equal_layouts_share_it_and_a_removed_table_stays_while_it_is_used() {
    if cannot_run() {
        return;
    }
    let (_sampler, mut tables) = Sampler::load(&Options::default()).unwrap();
    let rows = crate::unwind::RowTable {
        base: 0x1000,
        pcs: vec![0, 16],
        rule_indices: vec![0, 1],
        rules: vec![
            UnwindRule { offset: 8, ..UnwindRule::plain(RuleKind::RspOffset) },
            UnwindRule::plain(RuleKind::NoInfo),
        ],
    };
    let table = tables.insert(&rows).unwrap();
    let mapping = WalkMapping {
        start: AbsAddr(0x40_0000),
        end: AbsAddr(0x50_0000),
        bias: 0x40_0000,
        unwind: MappingUnwind::Table(table),
    };
    let (first, second) = (Pid(u32::MAX - 1), Pid(u32::MAX - 2));
    for (pid, generation) in [(first, 1), (second, 2), (first, 3)] {
        tables.set_process(pid, Generation(generation), &[mapping]).unwrap();
    }
    let sizes = tables.sizes();
    assert_eq!(
        (sizes.layouts, sizes.pages, sizes.processes, sizes.tables, sizes.rules),
        (1, 1, 2, 1, 2)
    );
    tables.remove(table);
    tables.remove_process(first).unwrap();
    assert_eq!(tables.sizes().tables, 1, "the second process still uses it");
    let refused = tables.set_process(
        first,
        Generation(4),
        &[WalkMapping { end: AbsAddr(0x60_0000), ..mapping }],
    );
    assert!(refused.is_err(), "a removed table is not given out again");
    tables.remove_process(second).unwrap();
    tables.remove_process(second).unwrap(); // twice is no error: exec may have been first
    let sizes = tables.sizes();
    assert_eq!(
        (sizes.layouts, sizes.pages, sizes.processes, sizes.tables, sizes.rules),
        (0, 0, 0, 0, 1)
    );
    assert_eq!((sizes.chunks, sizes.slabs), (0, 2), "slabs stay for the next");
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
