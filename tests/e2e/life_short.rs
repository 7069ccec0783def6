//! Processes that are over before anybody can look at them. Goal: their samples have the path and the build id of
//! the file that ran, new files are known within a moment, and hundreds of execs a second cost little and lose
//! nothing. Method: copies of one program with build ids of their own, started by vfork and exec; the kernel's own
//! account (wait4) says how much CPU time each took.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;
use tests::agent::AgentOptions;
use tests::copies::{Copy, copies};
use tests::metrics::Metrics;
use tests::observation::{Observation, observations};
use tests::statistics::as_f64;
use tests::swarm::{self, Ended, Swarm};
use tests::{Agent, Sink, need, usage, workload};

const FREQUENCY_HZ: u32 = 997;

/// Processes of a millisecond, and the files they are of.
const MOMENTS: u32 = 2000;
const MOMENT_US: &str = "1000";
const MOMENT_FILES: u32 = 50;
/// Samples of them that must arrive with the right executable, of what the kernel accounts for. Their way to exec
/// is accounted to them, and runs the program of their parent.
const MOMENT_SHARE_MIN: f64 = 0.75;

/// Files never seen before, each run once for 300 ms of CPU time.
const NEW_FILES: u32 = 50;
const NEW_MS: &str = "300";
const NEW_NAMED_SHARE_MIN: f64 = 0.8;
/// From its first sample to its first whole one, for 99 of 100 processes.
const NEW_WAIT_NS_MAX: u64 = 100_000_000;

/// Execs a second, and how many.
const CHURN_PERIOD_US: u32 = 2000;
const CHURN_EXECS: u32 = 5000;
/// CPU time of an unoptimized agent for one of them.
const EXEC_COST_US_MAX: f64 = 1000.0;

#[test]
fn two_thousand_processes_of_a_millisecond() {
    if !need::bpf() {
        return;
    }
    let Some([program, _]) = workload::relays() else { return };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let files = copies(&program, folder.path(), "moment", MOMENT_FILES);
    let programs: Vec<&Path> = files.iter().map(|file| file.path.as_path()).collect();
    let arguments = ["0", MOMENT_US, "0", "0", "{}"];
    let swarm = Swarm {
        processes: MOMENTS,
        period_us: 0,
        parallel: 2,
        arguments: &arguments,
        programs: &programs,
    };
    let Some(Recorded { ended, samples, .. }) = record(&swarm, FREQUENCY_HZ) else { return };
    let pids = swarm::by_pid(&ended);
    let (mut of_their_program, mut before_exec, mut frames) = (0, 0, 0_usize);
    for (sample, of) in samples.iter().filter_map(|it| Some((it, pids.get(&it.pid)?))) {
        let file = &files[of.program];
        let path = file.path.to_string_lossy();
        for frame in sample.user().filter(|frame| frame.file.starts_with("moment-")) {
            frames += 1;
            assert_eq!((frame.path.as_str(), frame.build_id.as_str()), (&*path, &*file.build_id));
        }
        // Until exec it runs its parent's program.
        let own = sample.executable_path == path;
        let known = own || sample.executable.starts_with("swarm");
        // The kernel is done with the old program and has not told of the new file yet.
        let between = sample.executable_path.is_empty();
        assert!(known || between, "{} {}: {}", sample.executable_path, path, sample.shown());
        of_their_program += usize::from(own);
        before_exec += usize::from(!own);
    }
    let expected = expected(&ended);
    let share = as_f64(of_their_program) / expected;
    need::figure(&format!(
        "{of_their_program} of {expected:.0} samples with path and build id ({share:.4}), {frames} frames, {before_exec} before exec was over"
    ));
    assert!(frames > 500, "only {frames} frames of their own files");
    assert!(share >= MOMENT_SHARE_MIN, "only {share:.4} of the kernel's account");
}

#[test]
fn files_never_seen_before() {
    if !need::bpf() {
        return;
    }
    let Some(program) = workload::c("brief", &[]) else { return };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let files = copies(&program, folder.path(), "new", NEW_FILES);
    let programs: Vec<&Path> = files.iter().map(|file| file.path.as_path()).collect();
    let arguments = [NEW_MS, "20"];
    let swarm = Swarm {
        processes: NEW_FILES,
        period_us: 0,
        parallel: 2,
        arguments: &arguments,
        programs: &programs,
    };
    let Some(Recorded { ended, samples, .. }) = record(&swarm, FREQUENCY_HZ) else { return };
    let pids = swarm::by_pid(&ended);
    let (mut named, mut whole) = (0, 0);
    let mut waits: BTreeMap<u32, (u64, Option<u64>)> = BTreeMap::new();
    for (sample, of) in samples.iter().filter_map(|it| Some((it, pids.get(&it.pid)?))) {
        let file = &files[of.program];
        named += usize::from(is_named(sample, file));
        let is_whole = sample.has("_start") && sample.has("main");
        whole += usize::from(is_whole);
        if sample.user().next().is_none() {
            continue; // In the kernel, before the program began.
        }
        let (first, first_whole) = waits.entry(sample.pid).or_insert((u64::MAX, None));
        *first = (*first).min(sample.time_ns);
        if is_whole {
            *first_whole = Some(first_whole.unwrap_or(u64::MAX).min(sample.time_ns));
        }
    }
    let expected = expected(&ended);
    let mut waits: Vec<u64> = waits
        .values()
        .map(|(first, whole)| whole.map_or(u64::MAX, |whole| whole.saturating_sub(*first)))
        .collect();
    waits.sort_unstable();
    let worst = waits[(waits.len() - 1) * 99 / 100];
    need::figure(&format!(
        "{named} of {expected:.0} samples named, {whole} whole; wait for the first whole one: median {} ms, p99 {} ms",
        waits[waits.len() / 2] / 1_000_000,
        worst / 1_000_000
    ));
    assert!(as_f64(named) >= NEW_NAMED_SHARE_MIN * expected, "{named} of {expected:.0} named");
    assert!(worst <= NEW_WAIT_NS_MAX, "p99 of waits is {worst} ns");
}

/// The function that it spends its time in is there by name, in its own file.
fn is_named(sample: &Observation, file: &Copy) -> bool {
    let path = file.path.to_string_lossy();
    sample.user().any(|frame| {
        frame.is("spin_until") && frame.path == path && frame.build_id == file.build_id
    })
}

#[test]
fn five_hundred_execs_a_second_of_a_static_program() {
    let Some([program, _]) = workload::relays() else { return };
    churn("static", &program, &["0", "0", "0", "0", "{}"]);
}

#[test]
fn five_hundred_execs_a_second_of_bin_true() {
    churn("/bin/true", Path::new("/bin/true"), &[]);
}

fn churn(what: &str, program: &Path, arguments: &[&str]) {
    if !need::bpf() {
        return;
    }
    let programs = [program];
    let swarm = Swarm {
        processes: CHURN_EXECS,
        period_us: CHURN_PERIOD_US,
        parallel: 8,
        arguments,
        programs: &programs,
    };
    let Some(alone) = swarm.start() else { return };
    let start = std::time::Instant::now();
    let _ended = swarm::ended(alone, Duration::from_secs(120));
    let alone = f64::from(CHURN_EXECS) / start.elapsed().as_secs_f64();
    let Some(recorded) = record(&swarm, 19) else { return };
    let Recorded { ended, agent_cpu_ns, length, lost, waiting, processes, .. } = recorded;
    assert_eq!(ended.len(), usize::try_from(CHURN_EXECS).expect("a count"));
    let cost_us = tests::workload::seconds(agent_cpu_ns) * 1e6 / f64::from(CHURN_EXECS);
    need::figure(&format!(
        "{what}: {:.0} execs a second, {alone:.0} without an agent, {cost_us:.0} us of the agent's CPU time each (built without optimization), {lost} records lost, {waiting} waiting, {processes} processes known after it",
        f64::from(CHURN_EXECS) / length.as_secs_f64()
    ));
    assert!(lost == 0.0, "{lost} lifecycle records or samples lost");
    assert!(waiting < 1000.0, "{waiting} records wait");
    // What has ended is remembered for two seconds; the rest is this host's.
    assert!(processes < 2000.0, "{processes} processes known after it");
    assert!(cost_us <= EXEC_COST_US_MAX, "an exec costs the agent {cost_us:.0} us");
}

/// What a swarm left.
struct Recorded {
    ended: Vec<Ended>,
    samples: Vec<Observation>,
    agent_cpu_ns: u64,
    length: Duration,
    lost: f64,
    waiting: f64,
    processes: f64,
}

/// Runs the swarm under an agent.
fn record(swarm: &Swarm<'_>, frequency_hz: u32) -> Option<Recorded> {
    let sink = Sink::start();
    let metrics = Metrics::somewhere();
    let arguments = metrics.arguments();
    let options = AgentOptions { arguments, ..AgentOptions::at(frequency_hz) };
    let mut agent = Agent::start(&sink.url(), &options);
    let pid = agent.process().pid();
    // Its first look at the host is no cost of what comes.
    std::thread::sleep(Duration::from_secs(1));
    let (cpu_before, start) = (usage::cpu_ns(pid), std::time::Instant::now());
    let ended = swarm::ended(swarm.start()?, Duration::from_secs(120));
    let (length, agent_cpu_ns) = (start.elapsed(), usage::cpu_ns(pid) - cpu_before);
    // Metrics are as of the last window.
    std::thread::sleep(Duration::from_secs(6));
    let reading = metrics.read();
    agent.stop();
    Some(Recorded {
        ended,
        samples: observations(&sink.requests()),
        agent_cpu_ns,
        length,
        lost: reading.get("lifecycle_records_lost_total") + reading.get("samples_lost_total"),
        waiting: reading.get("lifecycle_records_waiting"),
        processes: reading.get("processes"),
    })
}

/// Samples that the clock took in them, by the kernel's account.
fn expected(ended: &[Ended]) -> f64 {
    let cpu_us: u64 = ended.iter().map(|it| it.cpu_us).sum();
    workload::seconds(cpu_us * 1000) * f64::from(FREQUENCY_HZ)
}
