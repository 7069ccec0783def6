//! What measuring off-CPU time costs: a workload that switches its CPU between two threads 20,000 times a second, and
//! works in between, with an agent that measures waits and with one that does not, in turns. Beside it the usual
//! measures of switches, where the host has them: `perf bench sched pipe` and `stress-ng --switch`.

use crate::figures::{Figure, print};
use crate::observer::{BpfStatistics, Reading};
use crate::{OffCpu, WaitingArgs};
use std::io::{Read as _, Write as _, pipe};
use std::process::Command;
use std::time::{Duration, Instant};
use tests::agent::AgentOptions;
use tests::metrics::Metrics;
use tests::{Agent, Running, Sink, need};

/// Switches a second that the workload makes when nobody measures it.
const SWITCHES_PER_SECOND: u64 = 20_000;
/// Between the agent's start and a measurement.
const WARM_UP: Duration = Duration::from_secs(2);
/// Length of one measurement.
const SLICE: Duration = Duration::from_secs(3);

pub(crate) fn measure(args: &WaitingArgs) {
    if !need::bpf() {
        return;
    }
    let rounds = calibrated();
    let mut ratios = Vec::new();
    let mut figures = Vec::new();
    for _ in 0..args.rounds {
        let (without, _) = one(OffCpu::Without, || handovers(rounds));
        let (with, paths) = one(OffCpu::With, || handovers(rounds));
        ratios.push(without / with - 1.0);
        figures = paths;
        figures.push(Figure::new("switches_per_s", 2.0 * without, "1/s"));
    }
    ratios.sort_by(f64::total_cmp);
    let middle = ratios[ratios.len() / 2];
    let mut all = vec![
        Figure::new("switch_slowdown_share", middle, ""),
        Figure::new("switch_slowdown_share_least", ratios[0], ""),
        Figure::new("switch_slowdown_share_most", ratios[ratios.len() - 1], ""),
    ];
    all.append(&mut figures);
    all.extend(others(args));
    print(&all, &[], args.json);
}

/// Runs the load beside an agent; what it gives, and what the programs of switches took.
fn one(off_cpu: OffCpu, load: impl Fn() -> f64) -> (f64, Vec<Figure>) {
    let sink = Sink::start();
    let metrics = Metrics::somewhere();
    let mut arguments = metrics.arguments();
    if off_cpu == OffCpu::Without {
        arguments.push("--no-off-cpu".to_owned());
    }
    let options = AgentOptions { arguments, ..AgentOptions::default() };
    let mut agent = Agent::start(&sink.url(), &options);
    std::thread::sleep(WARM_UP);
    let value = load();
    let figures =
        if off_cpu == OffCpu::With { paths(&metrics, agent.process().pid()) } else { Vec::new() };
    agent.stop();
    (value, figures)
}

/// Nanoseconds of a switch by what it does: by the programs' own clock, and by the kernel's, which counts the
/// call too.
fn paths(metrics: &Metrics, pid: u32) -> Vec<Figure> {
    std::thread::sleep(Duration::from_secs(6)); // the counters are read when a window ends
    let now = metrics.read();
    let of = |name: &str| now.get(&format!("{name}_total"));
    let per = |ns: f64, count: f64| if count > 0.0 { ns / count } else { 0.0 };
    let plain = per(of("wait_programs_timed_nanoseconds"), of("wait_programs_timed"));
    let stack = per(of("wait_stacks_nanoseconds"), of("wait_stacks"));
    let rounds = calibrated();
    let _statistics = BpfStatistics::on();
    let before = Reading::of(pid);
    let length = Duration::from_secs(2);
    let switches = 2.0 * handovers_for(rounds, length) * length.as_secs_f64();
    let used = Reading::of(pid).bpf_since(&before);
    vec![
        Figure::new("switch_ns", plain, "ns"),
        Figure::new("switch_with_stack_ns", stack, "ns"),
        Figure::new("switch_ns_by_kernel", per(count(used.ns - used.clock_ns), switches), "ns"),
        Figure::new("stacks_share", per(of("wait_stacks"), of("switches")), ""),
    ]
}

fn count(value: u64) -> f64 {
    f64::from(u32::try_from(value / 1000).unwrap_or(u32::MAX)) * 1000.0
}

/// Rounds of work between two switches, so that there are [`SWITCHES_PER_SECOND`].
fn calibrated() -> u64 {
    let mut rounds = 1_000;
    for _ in 0..8 {
        let rate = 2.0 * handovers_for(rounds, Duration::from_millis(300));
        let wanted = f64::from(u32::try_from(SWITCHES_PER_SECOND).expect("20,000"));
        // Of the time of one switch and its work, the part that is work shrinks or grows.
        let factor = (rate / wanted).clamp(0.5, 2.0);
        let scaled = f64::from(u32::try_from(rounds).unwrap_or(u32::MAX)) * factor;
        rounds = Duration::from_secs_f64(scaled.max(1.0) / 1e9).as_nanos().try_into().unwrap_or(1);
    }
    rounds
}

fn handovers(rounds: u64) -> f64 {
    handovers_for(rounds, SLICE)
}

/// Two threads on one CPU hand a byte to each other and work in between: handovers there and back a second.
fn handovers_for(rounds: u64, length: Duration) -> f64 {
    let (mut there_out, mut there_in) = pipe().expect("a pipe");
    let (mut back_out, mut back_in) = pipe().expect("a pipe");
    let other = std::thread::spawn(move || {
        stay_on_one_cpu();
        let mut byte = [0];
        while there_out.read(&mut byte).is_ok_and(|bytes| bytes == 1) {
            work(rounds);
            if back_in.write_all(&byte).is_err() {
                break;
            }
        }
    });
    let count = std::thread::spawn(move || {
        stay_on_one_cpu();
        let (start, mut count, mut byte) = (Instant::now(), 0u32, [1]);
        while start.elapsed() < length {
            there_in.write_all(&byte).expect("the other reads");
            work(rounds);
            back_out.read_exact(&mut byte).expect("the other writes");
            count += 1;
        }
        f64::from(count) / start.elapsed().as_secs_f64()
    });
    let rate = count.join().expect("it counts");
    other.join().expect("it ends with its pipe");
    rate
}

fn work(rounds: u64) {
    let mut value = rounds;
    for round in 0..rounds {
        value = std::hint::black_box(value.wrapping_mul(31).wrapping_add(round));
    }
}

fn stay_on_one_cpu() {
    let mut cpus = rustix::thread::CpuSet::new();
    cpus.set(0);
    rustix::thread::sched_setaffinity(None, &cpus).expect("CPU 0 is there");
}

/// What others measure, with and without.
fn others(args: &WaitingArgs) -> Vec<Figure> {
    let mut figures = Vec::new();
    if let Some(perf) = need::tool("VESTA_PERF", "perf") {
        let load = || {
            let mut command = Command::new(&perf);
            command.args(["bench", "-f", "simple", "sched", "pipe", "-l", "200000"]);
            seconds(&Running::start(command).finish(Duration::from_secs(60)))
        };
        figures.extend(pairs("perf_sched_pipe", args.rounds.min(3), load));
    }
    if let Some(stress) = need::tool("VESTA_STRESS_NG", "stress-ng") {
        let load = || {
            let mut command = Command::new(&stress);
            command.args(["--switch", "2", "--switch-ops", "400000", "--quiet"]);
            let start = Instant::now();
            Running::start(command).finish(Duration::from_secs(120));
            start.elapsed().as_secs_f64()
        };
        figures.extend(pairs("stress_ng_switch", args.rounds.min(3), load));
    }
    figures
}

/// Medians of a load that gives seconds.
fn pairs(name: &str, rounds: usize, load: impl Fn() -> f64) -> Vec<Figure> {
    let mut sides = [Vec::new(), Vec::new()];
    for _ in 0..rounds.max(1) {
        sides[0].push(one(OffCpu::Without, &load).0);
        sides[1].push(one(OffCpu::With, &load).0);
    }
    let [without, with] = sides.map(|mut values| {
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    });
    vec![
        Figure::new(format!("{name}_without_s"), without, "s"),
        Figure::new(format!("{name}_with_s"), with, "s"),
        Figure::new(format!("{name}_slowdown_share"), with / without - 1.0, ""),
    ]
}

/// The number that `perf bench -f simple` prints.
fn seconds(text: &str) -> f64 {
    let number = text.split_whitespace().find_map(|word| word.parse().ok());
    number.unwrap_or_else(|| panic!("no time in {text:?}"))
}
