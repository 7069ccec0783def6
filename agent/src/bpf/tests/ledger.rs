//! The clock's account held against a second clock and against what the kernel says of idle time, on the
//! kernel of this machine, as root.

use super::run::{assert_ledger_closes, cannot_run};
use crate::bpf::raw;
use crate::bpf::{Options, Sampler};
use agent_ebpf::Counters;
use std::os::fd::AsFd as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A map's value that takes milliseconds to copy.
const VALUE_BYTES: usize = 16 << 20;
const HZ: u32 = 97;
const SECONDS: u64 = 3;
const USER_HZ: u64 = 100;

/// Makes the kernel skip BPF programs of perf events on CPU 0, most of the time, until told to stop: while a
/// system call copies a map's value, `bpf_disable_instrumentation` (kernel include/linux/bpf.h) holds
/// `bpf_prog_active`, and `bpf_overflow_handler` (kernel/events/core.c) returns without running anything.
/// A program that runs long would not do: the clock's interrupt waits for it.
fn force_misses(cpu: u32, stop: &AtomicBool) {
    stay_on(cpu);
    let btf = raw::load_value_btf(VALUE_BYTES).unwrap();
    let map = raw::create_array(VALUE_BYTES, 1, btf.as_fd()).unwrap();
    let mut value = vec![0; VALUE_BYTES];
    while !stop.load(Ordering::Relaxed) {
        raw::lookup(map.as_fd(), 0, &mut value).unwrap();
    }
}

/// Keeps another CPU busy until told to stop: where a virtual CPU idles, its clock may hardly tick (4 of 291
/// ticks were seen, by both clocks).
fn keep_busy(cpu: u32, stop: &AtomicBool) {
    stay_on(cpu);
    while !stop.load(Ordering::Relaxed) {
        std::hint::spin_loop();
    }
}

fn stay_on(cpu: u32) {
    let mut cpus = rustix::thread::CpuSet::new();
    cpus.set(usize::try_from(cpu).unwrap());
    rustix::thread::sched_setaffinity(None, &cpus).unwrap();
}

/// Idle time of each CPU in `USER_HZ`: the fourth and fifth figure of its line in `/proc/stat` (`proc_stat(5)`).
fn idle_time() -> Vec<u64> {
    let text = std::fs::read_to_string("/proc/stat").unwrap();
    let lines = text.lines().skip(1).take_while(|line| line.starts_with("cpu"));
    let sum = |line: &str| {
        let figures = line.split_ascii_whitespace().skip(4).take(2);
        figures.map(|figure| figure.parse::<u64>().unwrap()).sum()
    };
    lines.map(sum).collect()
}

/// What the clock of one CPU did.
#[derive(Debug)]
struct Account {
    cpu: u32,
    plain_ticks: u64,
    ticks_expected: u64,
    runs: u64,
    idle: u64,
    asleep: u64,
    missed: u64,
    /// Idle time by the kernel's own account, in ticks.
    idle_by_kernel: u64,
}

/// What runs beside the clocks: is told its CPU, and when to stop.
type Load = fn(u32, &AtomicBool);

fn account(loads: &[(u32, Load)]) -> Vec<Account> {
    let (mut sampler, _tables) =
        Sampler::load(&Options { frequency_hz: HZ, ..Options::default() }).unwrap();
    let mut plain: Vec<_> = sampler.clocks().iter().map(|clock| clock.beside().unwrap()).collect();
    let stop = AtomicBool::new(false);
    let mut idle_before = Vec::new();
    std::thread::scope(|scope| {
        for (cpu, load) in loads {
            let stop = &stop;
            scope.spawn(move || load(*cpu, stop));
        }
        idle_before = idle_time();
        sampler.start().unwrap();
        std::thread::sleep(Duration::from_secs(SECONDS));
        sampler.stop().unwrap();
        stop.store(true, Ordering::Relaxed);
    });
    let idle_after = idle_time();
    sampler.flush(&mut drop);
    let statistics = sampler.statistics().unwrap();
    assert_ledger_closes(&statistics);
    let one = |(cpu, ring): (&crate::bpf::CpuStatistics, &mut crate::bpf::perf::LifecycleRing)| {
        let mut plain_ticks = 0;
        assert!(ring.drain(usize::MAX, &mut |_record| plain_ticks += 1));
        let at = usize::try_from(cpu.cpu).unwrap();
        let Counters { runs, idle, .. } = cpu.counters;
        Account {
            cpu: cpu.cpu,
            plain_ticks,
            ticks_expected: cpu.ticks_expected,
            runs,
            idle,
            asleep: cpu.asleep,
            missed: cpu.missed(),
            idle_by_kernel: (idle_after[at] - idle_before[at]) * u64::from(HZ) / USER_HZ,
        }
    };
    statistics.cpus.iter().zip(&mut plain).map(one).collect()
}

#[test]
fn ticks_are_runs_and_missed_under_forced_misses() {
    if cannot_run() {
        return;
    }
    let cpus = crate::bpf::perf::online_cpus().unwrap();
    let load = |cpu| if cpu == 0 { force_misses } else { keep_busy };
    let loads: Vec<(u32, Load)> = cpus.into_iter().map(|cpu| (cpu, load(cpu) as Load)).collect();
    // Again where a virtual CPU did not get its turn: both clocks then lose ticks that time says were due, and
    // not the same ones. An account that does not close fails every time.
    let mut last = Vec::new();
    for _ in 0..10 {
        last = account(&loads);
        eprintln!("{last:?}");
        let close = |one: &Account| one.plain_ticks.abs_diff(one.runs + one.missed) <= 2;
        if last.iter().all(close) {
            let forced = last.iter().find(|one| one.cpu == 0).expect("CPU 0 is online");
            assert!(forced.missed > 10, "nothing was forced: {last:?}");
            assert!(last.iter().all(|one| one.plain_ticks > u64::from(HZ)), "{last:?}");
            return;
        }
    }
    panic!("runs and missed are not the plain clock's ticks: {last:?}");
}

/// One CPU works and one idles as far as others let it. Whatever it is that keeps an idle CPU's clock from
/// ticking, its ticks are idle ones, as many as the kernel's idle time holds.
#[test]
fn ticks_of_a_cpu_that_sleeps_are_not_missed() {
    if cannot_run() {
        return;
    }
    let mut last = Vec::new();
    for _ in 0..3 {
        last = account(&[(0, keep_busy)]);
        eprintln!("{last:?}");
        if last.iter().all(is_told_apart) {
            return;
        }
    }
    panic!("idle and missed ticks are not told apart: {last:?}");
}

fn is_told_apart(one: &Account) -> bool {
    let Account { ticks_expected, runs, asleep, missed, .. } = *one;
    let closes = ticks_expected.abs_diff(runs + asleep + missed) <= 2;
    let plain = one.plain_ticks.abs_diff(runs) <= 2;
    // Ticks sample the idle time: 5.5 sigma of a share of it, and a tick at either end.
    let idle = one.idle_by_kernel.min(ticks_expected);
    let variance = idle * (ticks_expected - idle) / ticks_expected.max(1);
    let noise = 5.5 * f64::from(u32::try_from(variance).unwrap()).sqrt() + 2.0;
    let off = f64::from(u32::try_from(idle.abs_diff(one.idle + asleep)).unwrap());
    closes && plain && off <= noise
}
