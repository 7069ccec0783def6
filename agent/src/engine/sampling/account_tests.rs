//! The account closes for every way that a tick and its sample can go: random fates, small limits, a
//! reader that lags behind, a naming thread that hangs. What was counted is held against what was done.

use super::{Ledger, closed};
use crate::address::{AbsAddr, FileId};
use crate::aggregate::fixtures::{PERIOD_NS, WALL, file, native, sample};
use crate::aggregate::{
    DropReason, NameSources, NamedWindow, NamingPatience, NamingSink, Window, WindowLimits,
    WindowWriter, start_naming,
};
use crate::bpf::{CpuStatistics, Statistics};
use crate::clock::MonotonicNs;
use crate::engine::{OpenFiles, SealedWindow, WindowSink as _};
use crate::normalize::{Frame, KernelRegion, Marker};
use crate::process::fake::FakeFiles;
use crate::symbolize::{KernelNames, KernelSymbol, UnnamedReason};
use agent_ebpf::Outcome;
use proptest::prelude::*;
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};

/// What becomes of one tick of the clock.
#[derive(Clone, Copy, Debug)]
enum Fate {
    Missed,
    Asleep,
    Idle,
    Filtered,
    Lost,
    /// Shipped; the record is damaged.
    Malformed,
    /// Shipped; nobody asked for the process.
    Unwanted,
    /// Shipped: process, thread, address and outcome.
    Wanted(u8, u8, u8, Outcome),
}

#[derive(Clone, Debug)]
struct Step {
    fates: Vec<Fate>,
    /// Records that the reader leaves in the ring.
    left: usize,
    /// The naming thread stands still at the end of this window.
    hangs: bool,
}

fn fates() -> impl Strategy<Value = Fate> {
    let outcome = (0..Outcome::ALL.len()).prop_map(|number| Outcome::ALL[number]);
    prop_oneof![
        1 => Just(Fate::Missed),
        1 => Just(Fate::Asleep),
        1 => Just(Fate::Idle),
        1 => Just(Fate::Filtered),
        1 => Just(Fate::Lost),
        1 => Just(Fate::Malformed),
        1 => Just(Fate::Unwanted),
        8 => (0..6u8, 0..3u8, 0..40u8, outcome).prop_map(|(a, b, c, d)| Fate::Wanted(a, b, c, d)),
    ]
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = (prop::collection::vec(fates(), 0..80), 0..9usize, prop::bool::weighted(0.7))
        .prop_map(|(fates, left, hangs)| Step { fates, left, hangs });
    prop::collection::vec(step, 1..14)
}

const SMALL: WindowLimits =
    WindowLimits { observations: 40, samples: 25, stacks: 18, locations: 12, processes: 4 };

/// Keeps the windows; stands still while somebody holds the gate.
#[derive(Clone, Debug, Default)]
struct Keep {
    gate: Arc<Mutex<()>>,
    windows: Arc<Mutex<Vec<NamedWindow>>>,
}

impl WindowWriter for Keep {
    fn write(&mut self, window: NamedWindow) {
        drop(self.gate.lock());
        self.windows.lock().unwrap().push(window);
    }
}

struct NoKernel;

impl KernelNames for NoKernel {
    fn kernel(
        &mut self,
        _address: AbsAddr,
        _region: KernelRegion,
    ) -> Result<KernelSymbol, UnnamedReason> {
        Err(UnnamedReason::KernelHidden)
    }
}

struct NoFiles;

impl OpenFiles for NoFiles {
    fn open(&self, _id: FileId) -> Option<Arc<OwnedFd>> {
        None
    }
}

/// The kernel side and the loop, as far as they count.
#[derive(Default)]
struct Model {
    now: Statistics,
    ring: VecDeque<Fate>,
    before: Statistics,
    carried: u64,
    time: u64,
}

impl Model {
    fn run(&mut self, fate: Fate) {
        let cpu = &mut self.now.cpus[0];
        cpu.ticks_expected += 1;
        let counters = &mut cpu.counters;
        match fate {
            Fate::Missed => return,
            Fate::Asleep => {
                cpu.asleep += 1;
                return;
            }
            Fate::Idle => counters.idle += 1,
            Fate::Filtered => counters.filtered += 1,
            Fate::Lost => counters.lost += 1,
            Fate::Malformed | Fate::Unwanted | Fate::Wanted(..) => {
                counters.shipped += 1;
                self.ring.push_back(fate);
            }
        }
        counters.runs += 1;
    }

    /// Takes all but `left` records out and seals the window.
    fn window(&mut self, left: usize, sink: &mut NamingSink) {
        let mut window = Window::within(SMALL, MonotonicNs(self.time), PERIOD_NS);
        let mut ledger = Ledger::default();
        let code = file(1);
        while self.ring.len() > left {
            match self.ring.pop_front() {
                Some(Fate::Malformed) => self.now.malformed += 1,
                Some(Fate::Unwanted) => ledger.unwanted += 1,
                Some(Fate::Wanted(process, thread, address, outcome)) => {
                    self.time += 1;
                    let mut frames = vec![native(&code, 0x1001 + u64::from(address))];
                    frames.push(Frame::Marker(Marker::Stopped(outcome)));
                    let (pid, tid) = (u32::from(process) + 1, u32::from(thread));
                    ledger.received += 1;
                    ledger.outcomes[outcome as usize] += 1;
                    window.add(&sample(pid, tid, self.time, frames));
                }
                _ => unreachable!("nothing else is shipped"),
            }
        }
        let ledger = closed(ledger, &self.before, &self.now, self.carried);
        self.carried = ledger.carried_over;
        self.before = self.now.clone();
        let end = MonotonicNs(self.time);
        let sealed = SealedWindow { window, end, wall: WALL, period_ns: PERIOD_NS, ledger };
        let files: Arc<dyn OpenFiles> = Arc::new(NoFiles);
        sink.window(sealed, &files);
    }
}

/// Runs the steps; answers the windows that were written.
fn written(steps: &[Step]) -> Vec<NamedWindow> {
    let keep = Keep::default();
    let sources = NameSources {
        files: Arc::new(FakeFiles),
        kernel: Box::new(NoKernel),
        perf_maps: None,
        patience: NamingPatience::default(),
    };
    let (mut sink, thread) = start_naming(sources, Box::new(keep.clone())).unwrap();
    let mut model = Model::default();
    model.now.cpus.push(CpuStatistics::default());
    model.before = model.now.clone();
    let mut hanging = None;
    for step in steps {
        step.fates.iter().for_each(|fate| model.run(*fate));
        if step.hangs {
            hanging = hanging.or_else(|| keep.gate.lock().ok());
        } else {
            hanging = None;
        }
        model.window(step.left, &mut sink);
    }
    hanging = hanging.or_else(|| keep.gate.lock().ok());
    model.window(0, &mut sink);
    drop(hanging);
    drop(sink);
    thread.join().unwrap();
    std::mem::take(&mut *keep.windows.lock().unwrap())
}

fn check(steps: &[Step]) -> Result<(), TestCaseError> {
    let windows = written(steps);
    let (mut total, mut sent) = (Ledger::default(), 0);
    for window in &windows {
        let observations = window.observations();
        window.ledger.check(observations).map_err(|gap| TestCaseError::fail(gap.to_string()))?;
        let of_processes = window.name_counts();
        let strangers = window.ledger.dropped[DropReason::Processes as usize];
        prop_assert_eq!(of_processes.received + strangers, window.ledger.received);
        prop_assert_eq!(of_processes.lost() + strangers, window.ledger.dropped.iter().sum::<u64>());
        for process in &window.processes {
            let kept: usize = process.samples.iter().map(|sample| sample.times.len()).sum();
            let ledger = &process.ledger;
            prop_assert_eq!(ledger.received, kept as u64 + ledger.lost());
            prop_assert_eq!(ledger.received, ledger.outcomes.iter().sum::<u64>());
            prop_assert_eq!(ledger.frames, kept as u64, "one frame a sample, markers are none");
        }
        total.add(&window.ledger);
        sent += observations;
    }
    total.check(sent).map_err(|gap| TestCaseError::fail(gap.to_string()))?;
    prop_assert_eq!((total.carried_in, total.carried_over), (0, 0));
    let all = || steps.iter().flat_map(|step| &step.fates);
    let count = |is: fn(&Fate) -> bool| all().filter(|fate| is(fate)).count() as u64;
    prop_assert_eq!(total.ticks_expected, all().count() as u64);
    for (counted, done) in [
        (total.missed(), count(|fate| matches!(fate, Fate::Missed))),
        (total.asleep, count(|fate| matches!(fate, Fate::Asleep))),
        (total.idle, count(|fate| matches!(fate, Fate::Idle))),
        (total.filtered, count(|fate| matches!(fate, Fate::Filtered))),
        (total.lost_in_ring, count(|fate| matches!(fate, Fate::Lost))),
        (total.malformed, count(|fate| matches!(fate, Fate::Malformed))),
        (total.unwanted, count(|fate| matches!(fate, Fate::Unwanted))),
        (total.received, count(|fate| matches!(fate, Fate::Wanted(..)))),
        (
            total.complete(),
            count(|fate| {
                matches!(fate, Fate::Wanted(.., Outcome::Complete | Outcome::NoUserStack))
            }),
        ),
    ] {
        prop_assert_eq!(counted, done);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn every_tick_is_somewhere(steps in steps()) {
        check(&steps)?;
    }
}

#[test]
fn each_limit_is_a_reason() {
    let small = |number: usize| u8::try_from(number).unwrap();
    let wanted = |process: usize, thread: usize, address: usize| {
        Fate::Wanted(small(process), small(thread), small(address), Outcome::Complete)
    };
    let reasons = |count: usize, fate: &dyn Fn(usize) -> Fate| {
        let step = Step { fates: (0..count).map(fate).collect(), left: 0, hangs: false };
        let windows = written(&[step]);
        let dropped = windows[0].ledger.dropped;
        let reason = |(reason, count): (DropReason, u64)| (count > 0).then_some(reason);
        DropReason::ALL.into_iter().zip(dropped).filter_map(reason).collect::<Vec<_>>()
    };
    assert_eq!(reasons(60, &|_| wanted(0, 0, 0)), [DropReason::Observations]);
    assert_eq!(reasons(40, &|at| wanted(at % 6, 0, 0)), [DropReason::Processes]);
    assert_eq!(reasons(40, &|at| wanted(0, 0, at)), [DropReason::Locations]);
    assert_eq!(reasons(40, &|at| wanted(at % 4, 0, at % 9)), [DropReason::Samples]);
    let stops = |at: usize| Fate::Wanted(0, 0, small(at % 4), Outcome::ALL[at / 4 % 7]);
    assert_eq!(reasons(28, &stops), [DropReason::Stacks]);
}
