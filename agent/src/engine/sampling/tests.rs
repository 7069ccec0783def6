//! The loop with a made-up host and a made-up kernel side.

use super::Engine;
use crate::address::{AbsAddr, Generation, Pid, Tid};
use crate::bpf::{
    BpfError, CopiedStack, CpuStatistics, ProcessEvent, RawLockWait, RawSample, RawWait, Record,
    Statistics, TableId, UserFrame, WaitingGoroutine, WalkMapping,
};
use crate::clock::{MonotonicNs, monotonic_now};
use crate::elf::ForeignFiles;
use crate::engine::off_cpu::OffCpuCounts;
use crate::engine::waiting_before::WaitingBefore;
use crate::engine::{Control, EngineOptions, OpenFiles, Sampling, SealedWindow, WindowSink};
use crate::process::fake::{FakeFiles, FakeHost, FakeProcess};
use crate::process::host::{Host, ProcFs};
use crate::process::publish::{WalkTableError, WalkTables};
use crate::unwind::RowTable;
use agent_ebpf::wait::CHANCE_ONE;
use agent_ebpf::walk::Registers;
use agent_ebpf::{
    ClassTotals, Counters, Outcome, ProcessEntry, RuleKind, UnwindRule, WaitClass, WaitingThread,
};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What the made-up kernel side was asked, and what it will hand out: a batch for each poll, the rest on
/// flush.
#[derive(Debug, Default)]
struct Script {
    batches: Vec<Vec<Record>>,
    at_flush: Vec<Record>,
    running: bool,
    counters: Counters,
    published: Vec<Pid>,
    removed: Vec<Pid>,
    tables: u32,
    goroutines_refused: bool,
}

#[derive(Clone, Debug, Default)]
struct FakeKernel(Arc<Mutex<Script>>);

impl FakeKernel {
    fn hand_out(records: Vec<Record>, counters: &mut Counters, each: &mut dyn FnMut(Record)) {
        for record in records {
            if matches!(record, Record::Sample(_)) {
                counters.runs += 1;
                counters.shipped += 1;
            }
            each(record);
        }
    }
}

impl Sampling for FakeKernel {
    fn start(&mut self) -> Result<(), BpfError> {
        self.0.lock().unwrap().running = true;
        Ok(())
    }

    fn stop(&mut self) -> Result<(), BpfError> {
        self.0.lock().unwrap().running = false;
        Ok(())
    }

    fn poll(&mut self, timeout: Duration, each: &mut dyn FnMut(Record)) -> Result<(), BpfError> {
        let mut script = self.0.lock().unwrap();
        if !script.running {
            return Ok(());
        }
        script.counters.runs += 1;
        script.counters.idle += 1;
        if script.batches.is_empty() {
            drop(script);
            std::thread::sleep(timeout.min(Duration::from_millis(5)));
            return Ok(());
        }
        let batch = script.batches.remove(0);
        Self::hand_out(batch, &mut script.counters, each);
        Ok(())
    }

    fn complete_until(&self) -> MonotonicNs {
        monotonic_now()
    }

    fn flush(&mut self, each: &mut dyn FnMut(Record)) {
        let mut script = self.0.lock().unwrap();
        assert!(!script.running, "the clocks stand before the last records are taken");
        let rest = std::mem::take(&mut script.at_flush);
        Self::hand_out(rest, &mut script.counters, each);
    }

    fn follow_cpus(&mut self) {}

    fn statistics(&self) -> Result<Statistics, BpfError> {
        let counters = self.0.lock().unwrap().counters;
        let cpu = CpuStatistics {
            ticks_expected: counters.runs + 1,
            counters,
            ..CpuStatistics::default()
        };
        Ok(Statistics { cpus: vec![cpu], ..Statistics::default() })
    }

    fn goroutines(&self, _each: &mut dyn FnMut(WaitingGoroutine)) -> Result<(), BpfError> {
        let refused = BpfError::Full { what: "a batch", limit: 1 };
        if self.0.lock().unwrap().goroutines_refused { Err(refused) } else { Ok(()) }
    }

    fn map_bytes(&self) -> u64 {
        0
    }
}

impl WalkTables for FakeKernel {
    fn insert(&mut self, _rows: &RowTable) -> Result<TableId, WalkTableError> {
        let mut script = self.0.lock().unwrap();
        script.tables += 1;
        Ok(TableId(script.tables))
    }

    fn remove(&mut self, _id: TableId) {}

    fn set_process(
        &mut self,
        pid: Pid,
        _generation: Generation,
        _mappings: &[WalkMapping],
    ) -> Result<usize, WalkTableError> {
        self.0.lock().unwrap().published.push(pid);
        Ok(0)
    }

    fn inherit(&mut self, _pid: Pid, _entry: ProcessEntry) -> bool {
        true
    }

    fn records_known_until(&mut self, _time: MonotonicNs) {}

    fn remove_process(&mut self, pid: Pid) -> Result<(), WalkTableError> {
        self.0.lock().unwrap().removed.push(pid);
        Ok(())
    }

    /// Every function has a frame of 16 bytes, except the one at 0x20 of its file, which nobody called.
    fn rule_at(&self, _id: TableId, address: u64) -> Result<UnwindRule, WalkTableError> {
        let frame = UnwindRule { offset: 16, ..UnwindRule::plain(RuleKind::RspOffset) };
        Ok(if address < 0x20 { frame } else { UnwindRule::plain(RuleKind::End) })
    }

    fn rules_left(&self) -> usize {
        usize::MAX
    }

    fn new_rules(&self, rows: &RowTable) -> usize {
        rows.rules().len()
    }

    fn own_rules(&self, _id: TableId) -> usize {
        0
    }

    fn bytes(&self) -> u64 {
        0
    }
}

#[derive(Debug, Default)]
struct Keep(Vec<SealedWindow>);

impl WindowSink for Keep {
    fn window(&mut self, sealed: SealedWindow, _files: &Arc<dyn OpenFiles>) {
        self.0.push(sealed);
    }
}

fn sample(pid: u32, time: MonotonicNs) -> Record {
    Record::Sample(RawSample {
        cpu: 0,
        pid: Pid(pid),
        tid: Tid(pid),
        time,
        cgroup_id: 1,
        generation: Generation(0),
        outcome: Outcome::ProcessUnknown,
        run_ns: 0,
        comm: b"thread".to_vec(),
        kernel: Vec::new(),
        user: vec![UserFrame { address: AbsAddr(0x1010), exact: true }],
        root_frames: 0,
        stack: None,
    })
}

/// Runs the script over a host with one process, 50; answers the windows.
fn run(options: &EngineOptions, kernel: &FakeKernel, control: &Control) -> Vec<SealedWindow> {
    let host: Arc<FakeHost> = Arc::default();
    let process = FakeProcess::new(0, "/bin/a", &[(0x1000, "/bin/a")]);
    host.processes().insert(Pid(50), process);
    let host: Arc<dyn Host> = host;
    let foreign: Arc<dyn ForeignFiles> = Arc::new(FakeFiles);
    let (sampler, tables) = (Box::new(kernel.clone()), Box::new(kernel.clone()));
    let mut engine = Engine::new(options, host, &foreign, sampler, tables).unwrap();
    let mut keep = Keep::default();
    engine.load_existing(control).unwrap();
    assert!(!control.wait_sampling(Duration::ZERO), "not before everything is loaded");
    assert_eq!(kernel.0.lock().unwrap().published, [Pid(50)]);
    engine.run(&mut keep, control).unwrap();
    assert!(control.wait_sampling(Duration::ZERO));
    keep.0
}

fn for_ms(ms: u64) -> EngineOptions {
    EngineOptions {
        duration: Some(Duration::from_millis(ms)),
        window: Duration::from_millis(50),
        ..EngineOptions::default()
    }
}

#[test]
fn windows_follow_each_other_and_the_account_closes() {
    let kernel = FakeKernel::default();
    let now = monotonic_now();
    {
        let mut script = kernel.0.lock().unwrap();
        script.batches =
            vec![vec![sample(50, now), sample(50, now)], vec![], vec![sample(50, now)]];
        script.at_flush = vec![sample(50, now)];
    }
    let control = Control::default();
    let windows = run(&for_ms(180), &kernel, &control);
    assert!(windows.len() >= 3, "{} windows", windows.len());
    for pair in windows.windows(2) {
        assert_eq!(pair[0].end, pair[1].window.start(), "no gap and no overlap");
    }
    let mut sum = super::Ledger::default();
    for window in &windows {
        let ledger = &window.ledger;
        ledger.check(window.window.observations() as u64).unwrap();
        sum.add(ledger);
    }
    assert_eq!((sum.received, sum.shipped, sum.lost(), sum.carried_over), (4, 4, 0, 0));
    let kept: usize = windows.iter().map(|window| window.window.observations()).sum();
    assert_eq!(kept, 4, "the last window takes what is flushed");
    assert_eq!(control.counts().received, 4);
}

#[test]
fn waits_of_goroutines_that_cannot_be_read_end_no_recording() {
    for refused in [false, true] {
        let kernel = FakeKernel::default();
        kernel.0.lock().unwrap().goroutines_refused = refused;
        let control = Control::default();
        let windows = run(&for_ms(120), &kernel, &control);
        assert!(windows.len() >= 2, "{} windows", windows.len());
        let failed = if refused { windows.len() as u64 } else { 0 };
        assert_eq!(control.counts().locks.readings_failed, failed);
    }
}

#[test]
fn what_is_not_asked_for_is_filtered_in_the_account() {
    let kernel = FakeKernel::default();
    let now = monotonic_now();
    let (pid, tid, parent) = (Pid(60), Tid(60), Pid(50));
    let fork = Record::Process(ProcessEvent::Fork { pid, tid, parent, time: now });
    kernel.0.lock().unwrap().batches =
        vec![vec![fork, sample(50, now), sample(60, now), sample(77, now)]];
    let options = EngineOptions { pids: vec![Pid(50)], ..for_ms(30) };
    let windows = run(&options, &kernel, &Control::default());
    let mut sum = super::Ledger::default();
    windows.iter().for_each(|window| sum.add(&window.ledger));
    assert_eq!((sum.received, sum.unwanted, sum.filtered), (2, 1, 0));
    assert_eq!(sum.shipped, sum.received + sum.unwanted);
    assert_eq!(sum.runs, sum.idle + sum.shipped);
    assert!(kernel.0.lock().unwrap().published.contains(&Pid(60)), "its children too");
}

#[test]
fn it_stops_when_told_and_seals_what_it_has() {
    let kernel = FakeKernel::default();
    let control = Control::default();
    kernel.0.lock().unwrap().at_flush = vec![sample(50, monotonic_now())];
    let options = EngineOptions { duration: None, ..for_ms(0) };
    let windows = std::thread::scope(|scope| {
        let told = control.clone();
        scope.spawn(move || {
            assert!(told.wait_sampling(Duration::from_secs(10)));
            told.stop();
        });
        run(&options, &kernel, &control)
    });
    let last = windows.last().unwrap();
    assert_eq!(last.window.observations(), 1);
    assert!(!kernel.0.lock().unwrap().running);
}

#[test]
fn the_account_of_the_last_window_closes() {
    // Two samples were shipped and counted in the window before; in the last one they come out of the
    // ring, and are not wanted.
    let at_end = |shipped, runs| Statistics {
        cpus: vec![CpuStatistics {
            cpu: 0,
            ticks_expected: runs,
            asleep: 0,
            counters: Counters { runs, idle: runs - shipped, shipped, ..Counters::default() },
        }],
        ..Statistics::default()
    };
    let mut ledger = super::Ledger { unwanted: 2, received: 1, ..super::Ledger::default() };
    ledger.outcomes[0] = 1;
    let closed = super::closed(ledger, &at_end(5, 20), &at_end(6, 22), 2);
    closed.check(1).unwrap();
    assert_eq!((closed.runs, closed.idle, closed.shipped), (2, 1, 1));
    assert_eq!((closed.filtered, closed.unwanted, closed.received), (0, 2, 1));
}

/// A sample whose leaf is at `ip`, with its stack.
fn with_stack(ip: u64, words: [u64; 2]) -> RawSample {
    let Record::Sample(mut sample) = sample(50, monotonic_now()) else { unreachable!() };
    let bytes = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    let (ip, sp) = (AbsAddr(ip), AbsAddr(0x7000));
    let mut general = Box::new([0; agent_ebpf::REGISTERS]);
    general[Registers::SP] = sp.0;
    let stack = CopiedStack { ip, sp, bp: 0, exact: true, innermost: true, general, bytes };
    sample.stack = Some(stack);
    sample.user = vec![UserFrame { address: ip, exact: true }];
    sample
}

#[test]
fn a_stack_that_came_along_is_walked_on_or_goes_as_it_is() {
    let kernel = FakeKernel::default();
    // The caller's frame is the root; the second lies in no mapping, and no table will come for it.
    kernel.0.lock().unwrap().batches =
        vec![[0x1010, 0x9010].map(|ip| Record::Sample(with_stack(ip, [0, 0x1030]))).into()];
    let control = Control::default();
    let windows = run(&for_ms(120), &kernel, &control);
    let mut sum = super::Ledger::default();
    windows.iter().for_each(|window| sum.add(&window.ledger));
    assert_eq!((sum.shipped, sum.received, sum.carried_over), (2, 2, 0));
    for window in &windows {
        window.ledger.check(window.window.observations() as u64).unwrap();
    }
    assert!(
        windows[0].ledger.carried_over >= 1,
        "what waits when a window closes is in a later one"
    );
    let outcome = |outcome: Outcome| sum.outcomes[outcome as usize];
    assert_eq!((outcome(Outcome::Complete), outcome(Outcome::ProcessUnknown)), (1, 1));
    let stacks = control.counts().stacks;
    assert_eq!((stacks.walked, stacks.overdue(), stacks.held, stacks.no_room), (1, 1, 0, 0));
}

/// Of a process that was not asked for: a wait with a stack, one of a goroutine, and a thread's last word.
#[test]
fn waits_that_nobody_asked_for_are_counted() {
    let Record::Sample(sample) = sample(77, monotonic_now()) else { unreachable!() };
    let (facts, words) = Default::default();
    let (since, word) = (sample.time, AbsAddr(0x2000));
    let lock_wait = RawLockWait { sample: sample.clone(), word, since, weight: 1 };
    let time = sample.time;
    let wait = RawWait { sample, class: WaitClass::Sleep, chance: CHANCE_ONE, facts, words };
    let mut thread = Box::new(WaitingThread { tgid: 77, ..WaitingThread::default() });
    thread.sums[WaitClass::Io as usize] = ClassTotals { ns: 500, count: 1 };
    let thread_end = Record::ThreadEnd { tid: Tid(77), time, thread };
    let kernel = FakeKernel::default();
    kernel.0.lock().unwrap().batches =
        vec![vec![Record::Wait(wait), Record::LockWait(lock_wait), thread_end]];
    let control = Control::default();
    let options = EngineOptions { pids: vec![Pid(50)], ..for_ms(120) };
    run(&options, &kernel, &control);
    let OffCpuCounts { unwanted, unwanted_ns, ns, ns_not_taken, stacks, .. } =
        control.counts().off_cpu;
    assert_eq!((unwanted, unwanted_ns), (2, 500));
    assert_eq!((ns, ns_not_taken, stacks), (0, 0, 0));
}

/// Of the threads of process 50, one is over, one runs, one waits, and one cannot be read.
#[test]
fn who_cannot_be_looked_at_is_counted() {
    let root = tempfile::tempdir().unwrap();
    let thread = |tid: u32| root.path().join(format!("50/task/{tid}"));
    (50..54).for_each(|tid| std::fs::create_dir_all(thread(tid)).unwrap());
    std::fs::write(thread(51).join("stat"), "51 (a) R 1 7 7 0 -1 4194304 9").unwrap();
    std::fs::write(thread(52).join("stat"), "52 (a) S 1 7 7 0 -1 4194304 9").unwrap();
    std::fs::write(thread(52).join("syscall"), "-1 0x7f 0x7f").unwrap();
    std::fs::create_dir(thread(53).join("stat")).unwrap();
    let host = Arc::new(ProcFs::new(root.path().to_owned()));
    let mut waiting_before = WaitingBefore::new(host, vec![Pid(50), Pid(60)]);
    assert_eq!(waiting_before.go_on(&mut FakeKernel::default()), 1);
    assert_eq!(waiting_before.go_on(&mut FakeKernel::default()), 0);
}

#[test]
fn the_stack_of_a_wait_is_counted_with_the_others() {
    let sample = with_stack(0x1010, [0, 0x1030]);
    let (facts, words) = Default::default();
    let wait = RawWait { sample, class: WaitClass::Sleep, chance: CHANCE_ONE, facts, words };
    let kernel = FakeKernel::default();
    kernel.0.lock().unwrap().batches = vec![vec![Record::Wait(wait)]];
    let control = Control::default();
    run(&for_ms(120), &kernel, &control);
    let stacks = control.counts().stacks;
    assert_eq!((stacks.walked, stacks.overdue(), stacks.held, stacks.no_room), (1, 0, 0, 0));
}
