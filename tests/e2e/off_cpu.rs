//! Time off the CPU. Goal: what the agent sends of a program's waits is what the program's own clock says, in the
//! places where it waited, whatever its threads do meanwhile. Method: the program waits in functions with names, sums
//! its waits by `CLOCK_MONOTONIC`, and prints the sums; the agent's sums of the same process are held against them.

use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;
use std::time::Duration;
use tests::agent::AgentOptions;
use tests::wait_observation::{WaitObservation, waits};
use tests::{Agent, Running, Sink, binary, need, seed, workload};

/// What the program printed.
#[derive(Clone, Copy, Debug, Deserialize)]
struct Truth {
    sleep_ns: u64,
    read_ns: u64,
    spin_ns: u64,
    waits: u64,
    wall_ns: u64,
}

/// Share by which the agent's time may differ from the program's: its clock also runs while it enters and leaves
/// the kernel, and while it wants a CPU that another has.
const TIME_SHARE_MAX: f64 = 0.02;

/// Share of the time whose stacks must reach the thread's first frame.
const COMPLETE_SHARE_MIN: f64 = 0.995;

/// Share of the time that must have a stack where a thread waits seldom, whatever others do.
const SELDOM_SHARE_MIN: f64 = 0.9;

#[test]
fn sleep_read_and_spin() {
    check("split");
}

#[test]
fn threads_that_change_their_cpu() {
    check("hop");
}

/// A thousand threads, 20,000 waits a second: far more than send a stack.
#[test]
fn a_thousand_threads() {
    let Some((truth, all)) = run("crowd", Some(1_000)) else { return };
    let slept = Sleep::of(&all);
    slept.is_near(&truth);
    is_near("number of waits", count(&all, "sleep"), truth.waits);
    assert!(slept.threads > 990, "{} threads", slept.threads);
}

/// Sleeps that last longer than the windows: each window has its part of them.
#[test]
fn a_wait_longer_than_windows() {
    let Some((truth, all)) = run("long", Some(4)) else { return };
    let slept = Sleep::of(&all);
    slept.is_near(&truth);
    let mut by_window: BTreeMap<(u64, i64), u64> = BTreeMap::new();
    for wait in all.iter().filter(|wait| wait.is_off_cpu() && wait.reason == "sleep") {
        *by_window.entry((wait.window_ns, wait.tid)).or_default() += wait.value;
    }
    let windows: BTreeSet<u64> = by_window.keys().map(|(window, _)| *window).collect();
    assert!(windows.len() >= 2, "{windows:?}");
    let longest = by_window.values().max().copied().unwrap_or(0);
    assert!(longest < 5_100_000_000, "{longest} ns of one thread in a window of 5 s");
    assert_eq!(count(&all, "sleep"), truth.waits, "each is counted once, where it ends");
}

/// A process that slept before the agent came, and never wakes: from then on its time is told, without a stack.
#[test]
fn a_wait_since_before_the_agent() {
    if !need::bpf() {
        return;
    }
    let mut command = Command::new("sleep");
    command.arg("100");
    let program = Running::start(command);
    std::thread::sleep(Duration::from_millis(300));
    let sink = Sink::start();
    let agent = Agent::start(&sink.url(), &AgentOptions::at(19));
    let begin = std::time::Instant::now();
    std::thread::sleep(Duration::from_secs(6));
    let told = begin.elapsed();
    agent.stop();
    let all = waits(&sink.requests());
    let sleeps = all.iter().filter(|it| it.pid == program.pid() && it.is_off_cpu());
    let slept: u64 = sleeps.filter(|it| it.reason == "sleep").map(|it| it.value).sum();
    let told = told.as_secs_f64();
    let share = number(slept) / 1e9 / told;
    need::figure(&format!("{share:.3} of {told:.2} s of a sleep since before the agent"));
    // The agent looks at all threads one after the other when it comes, and closes its last window when it goes.
    assert!((0.8..1.1).contains(&share), "{slept} ns of {told} s");
}

/// A process ends while its threads wait.
#[test]
fn threads_that_never_wake() {
    let Some((truth, all)) = run("left", Some(16)) else { return };
    Sleep::of(&all).is_near(&truth);
}

/// Two threads switch their CPU as fast as they can, a third sleeps 100 ms at a time: it has its stacks all the same.
#[test]
fn few_waits_beside_many() {
    let Some((truth, all)) = run("storm", None) else { return };
    let slept = Sleep::of(&all);
    slept.is_near(&truth);
    let share = number(slept.in_function) / number(slept.ns);
    need::figure(&format!("{share:.3} of the time of a seldom waiter has a stack"));
    assert!(share >= SELDOM_SHARE_MIN, "{share}");
    // Both threads of the storm wait for each other, or lose their CPU to the one that they woke.
    let of = |wait: &&WaitObservation| wait.is_off_cpu() && wait.reason == "io";
    let read: u64 = all.iter().filter(of).map(|wait| wait.value).sum();
    assert!(read > 0 && read <= truth.wall_ns * 2, "{read} of {truth:?}");
}

/// `record --off-cpu` writes microseconds of waits as folded stacks.
#[test]
fn a_recording() {
    if !need::bpf() {
        return;
    }
    let Some(program) = workload::c("off_cpu", &["-pthread"]) else { return };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("waits.folded");
    let mut command = Command::new(binary::program("vesta-agent"));
    command.args(["record", "--off-cpu", "-o"]).arg(&file).arg("--").arg(program);
    command.args(["split", "4", &seed().to_string()]);
    let truth = Running::start(command).finish(Duration::from_secs(60));
    let truth: Truth = serde_json::from_str(&truth).expect("the program prints its truth");
    let text = std::fs::read_to_string(&file).expect("record wrote the file");
    let sum = |function: &str| -> u64 {
        let lines = text.lines().filter(|line| line.contains(&format!(";{function};")));
        lines.filter_map(|line| line.rsplit_once(' ')?.1.parse::<u64>().ok()).sum()
    };
    is_near("sleep", sum("sleep_here") * 1_000, truth.sleep_ns);
    is_near("read", sum("read_here") * 1_000, truth.read_ns);
}

#[test]
fn nobody_asked() {
    if !need::bpf() {
        return;
    }
    let sink = Sink::start();
    let arguments = vec!["--no-off-cpu".to_owned()];
    let agent = Agent::start(&sink.url(), &AgentOptions { arguments, ..AgentOptions::at(19) });
    std::thread::sleep(Duration::from_secs(1));
    agent.stop();
    assert!(!sink.requests().is_empty());
    assert_eq!(waits(&sink.requests()), []);
}

/// Runs the program under the agent; what the agent sent of it.
fn run(what: &str, threads: Option<u32>) -> Option<(Truth, Vec<WaitObservation>)> {
    if !need::bpf() {
        return None;
    }
    let program = workload::c("off_cpu", &["-pthread"])?;
    let sink = Sink::start();
    let agent = Agent::start(&sink.url(), &AgentOptions::at(19));
    let mut command = Command::new(program);
    command.args([what, "8", &seed().to_string()]).args(threads.map(|it| it.to_string()));
    let program = Running::start(command);
    let pid = program.pid();
    let truth = program.finish(Duration::from_secs(60));
    let truth: Truth = serde_json::from_str(&truth).expect("the program prints its truth");
    agent.stop();
    let mut all = waits(&sink.requests());
    all.retain(|wait| wait.pid == pid);
    Some((truth, all))
}

fn check(what: &str) {
    let Some((truth, all)) = run(what, None) else { return };
    let off_cpu = all.iter().filter(|wait| wait.is_off_cpu());
    let sum = |of: &dyn Fn(&&WaitObservation) -> bool| -> u64 {
        off_cpu.clone().filter(of).map(|wait| wait.value).sum()
    };
    let (slept, read) = (sum(&|wait| wait.reason == "sleep"), sum(&|wait| wait.reason == "io"));
    let not_sampled = sum(&|wait| wait.is_not_sampled());
    need::figure(&format!(
        "{truth:?}; the agent: {slept} ns in sleep, {read} ns in read, {not_sampled} ns without a stack"
    ));
    // The program's clock also runs while it wants to go on and another thread has its CPU.
    let preempted = all.iter().filter(|wait| wait.kind == "off_cpu_preempted");
    let preempted: u64 = preempted.map(|wait| wait.value).sum();
    is_between("sleep", [slept, slept + preempted], truth.sleep_ns);
    is_between("read", [read, read + preempted], truth.read_ns);
    // Who changes its CPU also waits for that.
    let total = sum(&|wait| wait.reason == "sleep" || wait.reason == "io");
    // Every stack is whole and in the function where the thread waited; on a host that switches much more, not
    // every wait has one.
    let ours = |wait: &&WaitObservation| wait.reason == "sleep" || wait.reason == "io";
    let sampled = sum(&|wait| ours(wait) && !wait.is_not_sampled());
    let whole = sum(&|wait| ours(wait) && wait.is_complete());
    let placed = sum(&|wait| {
        wait.reason == "sleep" && wait.has("sleep_here")
            || wait.reason == "io" && wait.has("read_here")
    });
    for (what, part) in [("complete", whole), ("in its function", placed)] {
        let share = number(part) / number(sampled);
        assert!(share >= COMPLETE_SHARE_MIN, "{share} of the time with a stack is {what}");
    }
    assert!(sampled > total / 4, "{not_sampled} of {total} without a stack");
    let waits = count(&all, "sleep") + count(&all, "io");
    is_near("number of waits", waits, truth.waits);
    assert!(truth.spin_ns + total < truth.wall_ns + truth.wall_ns / 50, "no time is there twice");
}

/// What the agent says of a program's sleeps.
struct Sleep {
    ns: u64,
    in_function: u64,
    threads: usize,
}

impl Sleep {
    fn of(all: &[WaitObservation]) -> Self {
        let sleeps = all.iter().filter(|wait| wait.is_off_cpu() && wait.reason == "sleep");
        let threads: BTreeSet<i64> = sleeps.clone().map(|wait| wait.tid).collect();
        let at = |name: &str| -> u64 {
            sleeps.clone().filter(|wait| wait.has(name)).map(|wait| wait.value).sum()
        };
        Self {
            ns: sleeps.clone().map(|wait| wait.value).sum(),
            in_function: at("sleep_here"),
            threads: threads.len(),
        }
    }

    fn is_near(&self, truth: &Truth) {
        let Self { ns, in_function, threads } = self;
        need::figure(&format!(
            "{truth:?}; the agent: {ns} ns, {in_function} of it in the function, {threads} threads"
        ));
        is_near("sleep", *ns, truth.sleep_ns);
    }
}

/// Waits of one reason that ended.
fn count(all: &[WaitObservation], reason: &str) -> u64 {
    let of = |wait: &&WaitObservation| {
        wait.kind == "off_cpu" && wait.unit == "count" && wait.reason == reason
    };
    all.iter().filter(of).map(|wait| wait.value).sum()
}

fn is_between(what: &str, [low, high]: [u64; 2], truth: u64) {
    let (low, high) = (number(low) * (1.0 - TIME_SHARE_MAX), number(high) * (1.0 + TIME_SHARE_MAX));
    assert!((low..=high).contains(&number(truth)), "{what}: {low} to {high}, in truth {truth}");
}

fn is_near(what: &str, agent: u64, truth: u64) {
    let away = (number(agent) - number(truth)).abs() / number(truth);
    assert!(away <= TIME_SHARE_MAX, "{what}: {agent}, in truth {truth}");
}

fn number(value: u64) -> f64 {
    let high = u32::try_from(value >> 32).expect("32 bits are left");
    f64::from(high) * 4_294_967_296.0
        + f64::from(u32::try_from(value & 0xffff_ffff).expect("32 bits"))
}
