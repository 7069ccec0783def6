//! One pid, many programs. Goal: whatever runs under a pid, a sample shows the program that ran when it was taken,
//! never the one before or behind, and nothing piles up. Method: two programs with equal addresses and other
//! names take turns, each sums up the CPU time it spun; at 997 Hz the samples must be as many, and none may show a
//! name of one in a sample of the other.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;
use tests::agent::AgentOptions;
use tests::metrics::Metrics;
use tests::observation::{Observation, observations};
use tests::statistics::{as_f64, count_is};
use tests::workload::{self, RelayTruth, seconds};
use tests::{Agent, Running, Sink, need, usage};

const FREQUENCY_HZ: u32 = 997;

/// Times that a process executes the other program over itself.
const EXECS: u32 = 10_000;
/// CPU time between two of them.
const EXEC_US: u32 = 400;
/// What the agent may grow by over all of them, bytes: 21 MiB were seen beside three builds, the samples of a window
/// and the symbols of compilers that the host starts meanwhile.
const GROWTH_BYTES_MAX: u64 = 48 << 20;

/// A window and its naming: metrics are as of the last one.
const WINDOW: Duration = Duration::from_secs(6);

/// Processes with the same pid, one after the other.
const TURNS: u32 = 200;
/// CPU time of each.
const TURN_US: u32 = 10_000;

/// Samples that the agent may attribute to the right pid without knowing which of its programs ran: between the
/// exec and the first record of its mappings.
const UNNAMED_SHARE_MAX: f64 = 0.05;

#[test]
fn exec_over_itself() {
    if !need::bpf() {
        return;
    }
    let Some(relays) = workload::relays() else { return };
    let sink = Sink::start();
    let metrics = Metrics::somewhere();
    let arguments = metrics.arguments();
    let mut agent =
        Agent::start(&sink.url(), &AgentOptions { arguments, ..AgentOptions::at(FREQUENCY_HZ) });
    let agent_pid = agent.process().pid();
    run_relay(&relays, EXECS / 10);
    std::thread::sleep(WINDOW * 2);
    let (before, bytes_before) = (metrics.read(), usage::resident_bytes(agent_pid));
    let (pid, truth, length) = run_relay(&relays, EXECS);
    std::thread::sleep(WINDOW);
    let (after, bytes) = (metrics.read(), usage::resident_bytes(agent_pid));
    agent.stop();
    let grown = bytes.saturating_sub(bytes_before);
    need::figure(&format!(
        "{EXECS} execs in {:.1} s: resident {} KiB more, {} processes and {} tables, before {} and {}; {} records lost",
        length.as_secs_f64(),
        grown / 1024,
        after.get("processes"),
        after.get("tables"),
        before.get("processes"),
        before.get("tables"),
        after.get("lifecycle_records_lost_total"),
    ));
    let all = observations(&sink.requests());
    let of_it: Vec<&Observation> = all.iter().filter(|sample| sample.pid == pid).collect();
    unmixed(&of_it, truth, length).expect("two programs under one pid");
    assert!(grown <= GROWTH_BYTES_MAX, "the agent grew by {grown} bytes in {EXECS} execs");
    for what in ["processes", "tables"] {
        // Others come and go on this host.
        let (before, after) = (before.get(what), after.get(what));
        assert!(after <= before + 100.0, "{what}: {after}, before {before}");
    }
}

/// Pid, truth, and how long it ran.
fn run_relay(relays: &[PathBuf; 2], execs: u32) -> (u32, RelayTruth, Duration) {
    let start = std::time::Instant::now();
    let mut command = Command::new(&relays[0]);
    command.args([&execs.to_string(), &EXEC_US.to_string(), "0", "0"]).arg(&relays[1]);
    let process = Running::start(command);
    let pid = process.pid();
    let truth = RelayTruth::sum(&process.finish(Duration::from_secs(120)));
    (pid, truth, start.elapsed())
}

#[test]
fn a_pid_used_again() {
    if !need::bpf() {
        return;
    }
    let Some(relays) = workload::relays() else { return };
    let Some(reuse) = workload::c("reuse", &[]) else { return };
    let sink = Sink::start();
    let agent = Agent::start(&sink.url(), &AgentOptions::at(FREQUENCY_HZ));
    let start = std::time::Instant::now();
    let mut command = Command::new(reuse);
    command.args([TURNS.to_string(), TURN_US.to_string()]).args(&relays);
    let printed = Running::start(command).finish(Duration::from_secs(60));
    let length = start.elapsed();
    agent.stop();
    let (pid, lines) = printed.split_once('\n').expect("a line with the pid");
    let pid: u32 = pid.parse().expect("a pid");
    assert_eq!(lines.lines().count(), usize::try_from(TURNS).expect("a count"));
    let all = observations(&sink.requests());
    let of_it: Vec<&Observation> = all.iter().filter(|sample| sample.pid == pid).collect();
    unmixed(&of_it, RelayTruth::sum(lines), length).expect("two programs under one pid");
}

/// Each sample is of one program, and each program has as many as its own clock says.
fn unmixed(samples: &[&Observation], truth: RelayTruth, length: Duration) -> Result<(), String> {
    let names = [["leaf_a", "middle_a"], ["leaf_b", "middle_b"]];
    let shows = |sample: &Observation, program: usize| {
        names[program].iter().any(|name| sample.has(name))
            || sample.user().any(|frame| frame.file == format!("relay-{}", ["a", "b"][program]))
    };
    let mixed = samples.iter().find(|sample| {
        let other = |program: usize| sample.executable == format!("relay-{}", ["a", "b"][program]);
        shows(sample, 0) && (shows(sample, 1) || other(1)) || shows(sample, 1) && other(0)
    });
    if let Some(mixed) = mixed {
        return Err(format!("a sample of {} shows {}", mixed.executable, mixed.shown()));
    }
    let [in_a, in_b] = [0, 1].map(|program| {
        samples
            .iter()
            .filter(|sample| shows(sample, program) && sample.has(names[program][0]))
            .count()
    });
    let complete = samples.iter().filter(|sample| sample.has("_start")).count();
    let other = samples.iter().filter(|sample| !shows(sample, 0) && !shows(sample, 1)).count();
    let expected = [truth.a, truth.b].map(|ns| seconds(ns) * f64::from(FREQUENCY_HZ));
    need::figure(&format!(
        "{in_a} samples of a, {in_b} of b; their clocks say {:.0} and {:.0}; {complete} complete, {other} of neither (kernel or not named)",
        expected[0], expected[1]
    ));
    for (count, expected) in [in_a, in_b].into_iter().zip(expected) {
        let share = expected / f64::from(FREQUENCY_HZ) / length.as_secs_f64();
        let missing = (expected - as_f64(count)).max(0.0);
        if missing > UNNAMED_SHARE_MAX * expected {
            count_is(count, expected, share)?;
        }
    }
    Ok(())
}
