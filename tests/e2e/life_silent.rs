//! A process on a file system that does not answer any more. Goal: the agent starts, samples everybody else as if nothing
//! were, keeps the samples of that process, and ends when it is told to. Method: a program runs from a mount that a
//! thread of the test serves, and that falls silent before the agent starts; another program, which knows its own
//! CPU time, works beside it.

use rustix::process::Signal;
use std::process::Command;
use std::time::{Duration, Instant};
use tests::agent::AgentOptions;
use tests::metrics::Metrics;
use tests::mount::SilentMount;
use tests::observation::{Observation, observations};
use tests::statistics::as_f64;
use tests::workload::{self, Language, start_split, truth};
use tests::{Agent, Running, Sink, need, seed};

const FREQUENCY_HZ: u32 = 199;
/// How long the other program works.
const BUSY_SECONDS: u32 = 5;
/// The start may take so long: files that do not answer are waited for 50 ms each, and nobody waits while all threads do.
const START_MAX: Duration = Duration::from_secs(10);
/// A new process is known after a moment.
const KNOWN_NS: u64 = 1_000_000_000;

#[test]
fn one_process_on_a_file_system_that_does_not_answer() {
    if !need::bpf() {
        return;
    }
    let flags = ["-static", "-no-pie"];
    let Some(brief) = workload::c_variant("brief.c", "brief-static", &flags) else { return };
    let Some(split) = Language::C.split() else { return };
    let Some(mut mount) = SilentMount::with(&brief) else { return };
    let mut command = Command::new(mount.file());
    command.args(["600000", "20"]);
    let victim = Running::start(command);
    // Its code is in memory by then.
    std::thread::sleep(Duration::from_millis(500));
    mount.fall_silent();
    let sink = Sink::start();
    let metrics = Metrics::somewhere();
    let arguments = metrics.arguments();
    let begin = Instant::now();
    let agent =
        Agent::start(&sink.url(), &AgentOptions { arguments, ..AgentOptions::at(FREQUENCY_HZ) });
    let started = begin.elapsed();
    let busy = start_split(&split, BUSY_SECONDS.into(), seed());
    let (pid, stuck_pid) = (busy.pid(), victim.pid());
    let truth = truth(busy);
    std::thread::sleep(Duration::from_secs(6)); // metrics are as of the last window
    let stuck = metrics.read().get("file_looks_stuck");
    let begin = Instant::now();
    agent.stop();
    let stopped = begin.elapsed();
    victim.signal(Signal::KILL);
    drop(mount);
    let all = observations(&sink.requests());
    let of = |pid: u32| all.iter().filter(move |sample| sample.pid == pid);
    let own: Vec<&Observation> = of(pid).collect();
    let known_ns = own.iter().map(|sample| sample.time_ns).min().unwrap_or(0) + KNOWN_NS;
    let late = own.iter().filter(|sample| sample.time_ns > known_ns);
    let whole = |sample: &&&Observation| sample.has("_start") && sample.has("main");
    let (late, whole) = (late.clone().count(), late.filter(whole).count());
    let victims = of(stuck_pid).count();
    need::figure(&format!(
        "start {started:?}, end {stopped:?}; {whole} of {late} samples of the other whole, {victims} of the silent one, {stuck} looks stuck"
    ));
    assert!(started <= START_MAX, "{started:?} until it sampled");
    assert!(stuck >= 1.0, "the mount was looked at");
    truth.count_is(own.len(), FREQUENCY_HZ, BUSY_SECONDS).expect("all samples of the other");
    assert!(late > 100 && as_f64(whole) >= 0.99 * as_f64(late), "{whole} of {late}");
    assert!(victims > 100, "{victims} samples of who runs from the mount");
}
