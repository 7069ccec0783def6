//! Waits of made-up threads: what windows get of them, and a simulation of which stacks are taken.

use super::shares::{Part, share_out};
use super::{OffCpu, Piece, TakenWait};
use crate::address::Tid;
use crate::aggregate::{WaitSum, fixtures};
use crate::bpf::ThreadReading;
use crate::clock::MonotonicNs;
use agent_ebpf::chance::Bucket;
use agent_ebpf::limits::WAIT_STACK_INTERVAL_NS_FEW;
use agent_ebpf::wait::CHANCE_ONE;
use agent_ebpf::{ClassTotals, WaitClass, WaitingThread, chance};
use std::collections::BTreeMap;

const SLEEP: usize = WaitClass::Sleep as usize;

fn taken(tid: u32, since: u64) -> TakenWait {
    let sample = fixtures::sample(1, tid, since, Vec::new());
    let (facts, owners) = Default::default();
    TakenWait { sample, class: WaitClass::Sleep, facts, owners, place: None }
}

/// A thread as the kernel side has it: time and number of its sleeps, and since when it sleeps on.
fn reading(tid: u32, (ns, count): (u64, u64), since: u64, sampled: u32, now: u64) -> ThreadReading {
    let mut thread = WaitingThread { tgid: 1, sampled, since_ns: since, ..Default::default() };
    thread.class = WaitClass::Sleep as u32;
    thread.sums[SLEEP] = ClassTotals { ns, count };
    let now = MonotonicNs(now);
    ThreadReading { tid: Tid(tid), thread, before: now, after: now }
}

/// What a window gets: with a stack (by the time of its wait), and without (0).
fn window(off_cpu: &mut OffCpu, reading: &ThreadReading) -> BTreeMap<u64, (u64, u64)> {
    let mut all = BTreeMap::new();
    off_cpu.begin_reading(&[*reading]);
    off_cpu.read(reading, &mut |piece, WaitSum { ns, count }| {
        let of = match piece {
            Piece::Taken { wait, .. } => wait.sample.time.0,
            Piece::NotTaken { .. } => 0,
        };
        let sum: &mut (u64, u64) = all.entry(of).or_default();
        *sum = (sum.0 + ns, sum.1 + count);
    });
    off_cpu.end_reading();
    all
}

#[test]
fn a_wait_is_told_in_each_window_that_it_lasts() {
    let mut off_cpu = OffCpu::default();
    off_cpu.taken(taken(7, 100), CHANCE_ONE);
    let first = window(&mut off_cpu, &reading(7, (0, 0), 100, 1, 1_000));
    assert_eq!(first, BTreeMap::from([(100, (900, 0))]));
    let second = window(&mut off_cpu, &reading(7, (0, 0), 100, 1, 2_000));
    assert_eq!(second, BTreeMap::from([(100, (1_000, 0))]));
    off_cpu.ended(Tid(7), MonotonicNs(100), MonotonicNs(2_300));
    let third = window(&mut off_cpu, &reading(7, (2_200, 1), 0, 0, 3_000));
    assert_eq!(third, BTreeMap::from([(100, (300, 1))]));
    assert_eq!(window(&mut off_cpu, &reading(7, (2_200, 1), 0, 0, 4_000)), BTreeMap::new());
}

#[test]
fn what_was_not_taken_is_told_all_the_same() {
    let mut off_cpu = OffCpu::default();
    // One wait of 50 with a stack of the chance one half, three of 150 together without.
    off_cpu.taken(taken(7, 100), CHANCE_ONE / 2);
    off_cpu.ended(Tid(7), MonotonicNs(100), MonotonicNs(150));
    let first = window(&mut off_cpu, &reading(7, (200, 4), 0, 0, 1_000));
    let expected = BTreeMap::from([(100, (100, 2)), (0, (100, 2))]);
    assert_eq!(first, expected, "it stands for itself and one more");
    // None with a stack, and one that lasts.
    let second = window(&mut off_cpu, &reading(7, (300, 6), 1_500, 0, 2_000));
    assert_eq!(second, BTreeMap::from([(0, (600, 2))]));
    // That one is over.
    let third = window(&mut off_cpu, &reading(7, (900, 7), 0, 0, 3_000));
    assert_eq!(third, BTreeMap::from([(0, (100, 1))]));
}

#[test]
fn records_and_sums_may_be_read_at_different_times() {
    let mut off_cpu = OffCpu::default();
    // The wait is over when its thread is read, a moment after the window's time; then another one begins, of
    // which the records say more than the sums.
    off_cpu.taken(taken(7, 100), CHANCE_ONE);
    off_cpu.ended(Tid(7), MonotonicNs(100), MonotonicNs(1_020));
    off_cpu.taken(taken(7, 1_500), CHANCE_ONE);
    let mut first = reading(7, (920, 1), 0, 0, 1_000);
    first.after = MonotonicNs(1_050);
    assert_eq!(window(&mut off_cpu, &first), BTreeMap::from([(100, (920, 1))]));
    off_cpu.ended(Tid(7), MonotonicNs(1_500), MonotonicNs(1_600));
    let second = window(&mut off_cpu, &reading(7, (1_020, 2), 0, 0, 2_000));
    assert_eq!(second, BTreeMap::from([(1_500, (100, 1))]));
}

#[test]
fn an_end_that_was_lost_costs_the_stack_and_no_time() {
    let mut off_cpu = OffCpu::default();
    off_cpu.taken(taken(7, 100), CHANCE_ONE);
    let first = window(&mut off_cpu, &reading(7, (400, 1), 0, 0, 1_000));
    assert_eq!(first, BTreeMap::from([(0, (400, 1))]));
    assert_eq!(off_cpu.counts().ends_missed, 1);
}

#[test]
fn a_thread_that_ends_leaves_its_rest_and_its_number() {
    let mut off_cpu = OffCpu::default();
    off_cpu.taken(taken(7, 100), CHANCE_ONE);
    window(&mut off_cpu, &reading(7, (0, 0), 100, 1, 1_000));
    off_cpu.ended(Tid(7), MonotonicNs(100), MonotonicNs(1_100));
    let mut rest = Vec::new();
    let sums = reading(7, (1_000, 1), 0, 0, 0).thread;
    off_cpu.thread_ended(Tid(7), MonotonicNs(1_200), &sums, &mut |_, sum| rest.push(sum));
    assert_eq!(rest, [WaitSum { ns: 100, count: 1 }]);
    // Another thread of that number, and one more whose predecessor's end was lost.
    let next = window(&mut off_cpu, &reading(7, (50, 2), 0, 0, 2_000));
    assert_eq!(next, BTreeMap::from([(0, (50, 2))]));
    let other = window(&mut off_cpu, &reading(7, (10, 1), 0, 0, 3_000));
    assert_eq!(other, BTreeMap::from([(0, (10, 1))]));
}

#[test]
fn threads_that_vanish_are_forgotten() {
    let mut off_cpu = OffCpu::default();
    off_cpu.taken(taken(7, 100), CHANCE_ONE);
    for time in 1..10 {
        window(&mut off_cpu, &reading(8, (10 * time, time), 0, 0, 1_000 * time));
    }
    assert_eq!((off_cpu.counts().threads, off_cpu.counts().ends_missed), (1, 1));
}

proptest::proptest! {
    #[test]
    fn everything_is_shared_out(
        parts in proptest::collection::vec((0..u64::MAX >> 20, 0..3_u64, 1..=CHANCE_ONE), 0..20),
        ns in 0..u64::MAX >> 8,
        count in 0..1_u64 << 40,
    ) {
        let mut parts: Vec<Part> = parts
            .into_iter()
            .map(|(ns, count, chance)| Part { sum: WaitSum { ns, count }, chance })
            .collect();
        let before: u64 = parts.iter().map(|part| part.sum.ns).sum();
        let counts_before: u64 = parts.iter().map(|part| part.sum.count).sum();
        let left = share_out(&mut parts, WaitSum { ns, count });
        let after: u64 = parts.iter().map(|part| part.sum.ns).sum();
        let counts_after: u64 = parts.iter().map(|part| part.sum.count).sum();
        proptest::prop_assert_eq!(before + ns, after + left.ns);
        proptest::prop_assert_eq!(counts_before + count, counts_after + left.count);
    }
}

// A simulation: threads of one CPU wait and run, the programs' own arithmetic says which waits send a stack, and the
// windows' own arithmetic shares the time out. The truth is known for each thread and each place.

/// Random numbers (Knuth's MMIX constants).
struct Dice(u64);

impl Dice {
    fn throw(&mut self) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }

    /// About `mean`, from half to one and a half of it.
    fn about(&mut self, mean: u64) -> u64 {
        mean / 2 + self.throw() % mean
    }
}

/// A place where a thread waits: how long, and how long it runs before.
type Place = (u64, u64);

/// A thread goes through its places, so many times each, for ever.
struct Simulated {
    places: &'static [(Place, u32)],
    at: usize,
    times: u32,
    /// When it leaves the CPU next.
    leaves: u64,
    /// When it waited last in each place.
    left: [u64; 2],
}

/// Four threads: one of many short waits, one of few long ones in two places, one of a hundred short ones before
/// each long one (so that a long one is never preceded by a long gap), one in between.
const THREADS: [&[(Place, u32)]; 4] = [
    &[((40_000, 20_000), 1)],
    &[((30_000_000, 500_000), 1), ((10_000_000, 500_000), 1)],
    &[((100_000, 50_000), 100), ((60_000_000, 50_000), 1)],
    &[((1_000_000, 300_000), 2), ((4_000_000, 300_000), 1)],
];

const WINDOW_NS: u64 = 5_000_000_000;

/// Time of each (thread, place): in truth, and as the window has it; the rest has place `usize::MAX`.
type Outcome = BTreeMap<(usize, usize), (f64, f64)>;

/// One window, after one that fills and drains the bucket.
fn simulate(seed: u64) -> Outcome {
    let mut dice = Dice(seed);
    let begin = 1_000 * WINDOW_NS;
    let mut threads = THREADS.map(|places| {
        let leaves = begin - WINDOW_NS + dice.throw() % 1_000_000;
        Simulated { places, at: 0, times: 0, leaves, left: [0; 2] }
    });
    let mut spent_ns = 0;
    let mut outcome = Outcome::new();
    let mut parts: [Vec<(usize, Part)>; 4] = Default::default();
    let mut rests = [WaitSum::default(); 4];
    loop {
        let number = (0..4).min_by_key(|&number| threads[number].leaves).unwrap();
        let thread = &mut threads[number];
        let now = thread.leaves;
        if now >= begin + WINDOW_NS {
            break;
        }
        let ((wait_ns, run_ns), times) = thread.places[thread.at];
        let place = thread.at;
        let gap_ns = chance::gap_ns(thread.left[place], now);
        let chance = chance::of_stack(WAIT_STACK_INTERVAL_NS_FEW, spent_ns, now, gap_ns);
        let wait_ns = dice.about(wait_ns);
        let met = u32::try_from(dice.throw()).unwrap() & (CHANCE_ONE - 1) < chance;
        if met {
            spent_ns =
                chance::paid(WAIT_STACK_INTERVAL_NS_FEW, Bucket::Waits, spent_ns, now, 4_000);
        }
        if now >= begin {
            let sum = WaitSum { ns: wait_ns, count: 1 };
            outcome.entry((number, place)).or_default().0 += as_f64(wait_ns);
            if met {
                parts[number].push((place, Part { sum, chance }));
            } else {
                rests[number].ns += wait_ns;
                rests[number].count += 1;
            }
        }
        thread.left[place] = now;
        thread.leaves = now + wait_ns + dice.about(run_ns);
        thread.times += 1;
        if thread.times == times {
            (thread.at, thread.times) = ((thread.at + 1) % thread.places.len(), 0);
        }
    }
    for (number, (parts, rest)) in parts.into_iter().zip(rests).enumerate() {
        let (places, mut parts): (Vec<_>, Vec<_>) = parts.into_iter().unzip();
        let left = share_out(&mut parts, rest);
        for (place, part) in places.into_iter().zip(parts) {
            outcome.entry((number, place)).or_default().1 += as_f64(part.sum.ns);
        }
        outcome.entry((number, usize::MAX)).or_default().1 += as_f64(left.ns);
    }
    outcome
}

fn as_f64(ns: u64) -> f64 {
    let half = |bits: u64| f64::from(u32::try_from(bits).expect("32 bits"));
    half(ns >> 32) * 4_294_967_296.0 + half(ns & 0xffff_ffff)
}

/// 400 windows: each thread's time is exact in each of them; no place has more on average than it should, and none
/// less but by what is told to be without a stack.
#[test]
fn shares_are_right_on_average() {
    const RUNS: u32 = 400;
    let mut errors: BTreeMap<(usize, usize), Vec<f64>> = BTreeMap::new();
    for seed in 0..RUNS {
        let outcome = simulate(u64::from(seed) * 7_919 + 11);
        for number in 0..4 {
            let of_thread = outcome.iter().filter(|((thread, _), _)| *thread == number);
            let (truth, told) =
                of_thread.fold((0.0, 0.0), |sum, (_, it)| (sum.0 + it.0, sum.1 + it.1));
            assert!((truth - told).abs() < 1.0, "thread {number}: {told} of {truth}");
        }
        for (&(thread, place), &(truth, told)) in &outcome {
            errors.entry((thread, place)).or_default().push((told - truth) / as_f64(WINDOW_NS));
        }
    }
    let runs = f64::from(RUNS);
    for ((thread, place), errors) in &errors {
        let mean = errors.iter().sum::<f64>() / runs;
        let variance = errors.iter().map(|it| (it - mean).powi(2)).sum::<f64>() / (runs - 1.0);
        let sigma = (variance / runs).sqrt();
        eprintln!(
            "thread {thread} place {place}: {mean:.5}, of a window +- {:.5}",
            variance.sqrt()
        );
        if *place == usize::MAX {
            assert!(mean < 0.15, "thread {thread}: {mean} of the window without a stack");
            continue;
        }
        assert!(mean <= 5.5 * sigma + 1e-6, "thread {thread} place {place}: {mean} +- {sigma}");
    }
}
