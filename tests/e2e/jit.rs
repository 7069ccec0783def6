//! Code that a program makes while it runs. Goal: it is named by the program's own perf map, nothing else is,
//! and stacks lead through it. Method: a C program that compiles two functions and writes a map with mistakes,
//! `CPython`'s trampolines and Node.js run under the agent at 997 Hz; from the fourth second on (the map of a new
//! process is read within one) what arrives is held against the CPU time that each program printed.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tests::agent::AgentOptions;
use tests::binary::repository;
use tests::observation::{Frame, Observation, observations};
use tests::profiles::now_ns;
use tests::statistics::{as_f64, share_is};
use tests::{Agent, Running, Sink, need, seed, workload};

/// A prime, so that it walks in step with nothing.
const FREQUENCY_HZ: u32 = 997;
const SECONDS: u32 = 8;
/// Time for the map to be read, and the walker to be told.
const SETTLED_NS: u64 = 3_000_000_000;
/// Share of stacks that must be whole and named.
const WHOLE_SHARE_MIN: f64 = 0.99;

/// The samples of one run after it settled, and what the program printed.
struct Run {
    samples: Vec<Observation>,
    printed: String,
}

fn run(mut command: Command) -> Run {
    let sink = Sink::start();
    let agent = Agent::start(&sink.url(), &AgentOptions::at(FREQUENCY_HZ));
    // V8 leaves a log of its own where it runs.
    let folder = tempfile::tempdir().expect("a temporary folder");
    command.current_dir(folder.path());
    let start_ns = now_ns();
    let process = Running::start(command);
    let pid = process.pid();
    let printed = process.finish(Duration::from_secs(u64::from(SECONDS) + 20));
    agent.stop();
    // Runtimes leave theirs behind.
    let _gone = std::fs::remove_file(format!("/tmp/perf-{pid}.map"));
    let late = |sample: &Observation| sample.pid == pid && sample.time_ns >= start_ns + SETTLED_NS;
    let samples = observations(&sink.requests()).into_iter().filter(late).collect();
    Run { samples, printed }
}

/// The two numbers that a program printed.
fn times(printed: &str) -> [f64; 2] {
    let times: Vec<f64> = printed.split_whitespace().map(|n| n.parse().expect("ns")).collect();
    times.try_into().expect("two numbers")
}

/// One repeat is allowed: the shares are a matter of chance, and the machine is not ours alone.
fn check(command: impl Fn() -> Command, judge: impl Fn(&Run) -> Result<(), String>) {
    let Err(reason) = judge(&run(command())) else { return };
    need::figure(&format!("first try: {reason}"));
    judge(&run(command())).expect("both tries failed");
}

/// Most of the samples are as they should be; the error shows one that is not.
fn most(
    samples: &[Observation],
    what: &str,
    is: impl Fn(&Observation) -> bool,
) -> Result<(), String> {
    let good = samples.iter().filter(|sample| is(sample)).count();
    let share = as_f64(good) / as_f64(samples.len().max(1));
    need::figure(&format!("{good} of {} samples: {what} ({share:.4})", samples.len()));
    let bad = samples.iter().find(|sample| !is(sample));
    match bad {
        Some(bad) if share < WHOLE_SHARE_MIN => Err(format!("{share:.4} {what}: {}", bad.shown())),
        None if samples.is_empty() => Err(format!("no samples: {what}")),
        _ => Ok(()),
    }
}

/// The number of samples with each of two functions, against the CPU time of both.
fn shares(samples: &[Observation], names: [&str; 2], printed: &str) -> Result<(), String> {
    let [first, second] = names.map(|name| samples.iter().filter(|s| s.has(name)).count());
    let [of_first, of_second] = times(printed);
    share_is(first, first + second, of_first / (of_first + of_second))
}

fn is_whole(sample: &Observation) -> bool {
    sample.markers().next().is_none()
}

#[test]
fn a_program_that_writes_a_map_of_its_own() {
    if !need::bpf() {
        return;
    }
    let Some(program) = workload::c("jit", &[]) else { return };
    let command = || {
        let mut command = Command::new(&program);
        command.arg(SECONDS.to_string()).arg(seed().to_string());
        command
    };
    check(command, |run| {
        let compiled = |frame: &Frame| frame.kind == "jit";
        let in_it: Vec<_> =
            run.samples.iter().filter(|s| s.user().next().is_some_and(compiled)).cloned().collect();
        for sample in &run.samples {
            let wrong = |name: &String| name.contains("planted") || name.contains("freed");
            if sample.frames.iter().any(|frame| frame.functions.iter().any(wrong)) {
                return Err(format!("a name that is not its own: {}", sample.shown()));
            }
        }
        // The clock is read between calls of the compiled code.
        let share = as_f64(in_it.len()) / as_f64(run.samples.len().max(1));
        if share < 0.9 {
            return Err(format!("{share:.4} of the samples are in compiled code"));
        }
        most(&in_it, "compiled code, called by the program, to the root", |sample| {
            let mut user = sample.user();
            let own = user
                .next()
                .is_some_and(|leaf| leaf.is("compiled first") || leaf.is("compiled_second"));
            own && user.next().is_some_and(|caller| caller.is("call")) && sample.has("_start")
        })?;
        shares(&in_it, ["compiled first", "compiled_second"], &run.printed)
    });
}

/// A Python whose trampolines are supported: 3.12 or newer.
fn python() -> Option<PathBuf> {
    let asked = "import sys; sys.exit(sys.version_info < (3, 12))";
    let fits = |python: &Path| {
        let mut command = Command::new(python);
        command.args(["-X", "perf", "-c", asked]);
        command.output().is_ok_and(|output| output.status.success())
    };
    let installed = std::fs::read_dir("/root/.pyenv/versions").into_iter().flatten();
    let installed = installed.flatten().map(|version| version.path().join("bin/python3"));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let in_path: Vec<PathBuf> =
        std::env::split_paths(&path).map(|folder| folder.join("python3")).collect();
    let mut all: Vec<PathBuf> = in_path.into_iter().chain(installed).collect();
    all.sort();
    let found = all.into_iter().find(|python| fits(python));
    if found.is_none() {
        need::skip(
            "no Python of 3.12 or newer with -X perf; cure: apt-get install python3.12, or pyenv",
        );
    }
    found
}

#[test]
fn python_with_trampolines() {
    if !need::bpf() {
        return;
    }
    let Some(python) = python() else { return };
    let command = || {
        let mut command = Command::new(&python);
        command.args(["-X", "perf"]).arg(repository().join("tests/workloads/chain.py"));
        command.arg(SECONDS.to_string()).arg(seed().to_string());
        command
    };
    check(command, |run| {
        most(&run.samples, "whole, with every Python function of the chain", |sample| {
            let python: Vec<&Frame> =
                sample.user().filter(|frame| frame.kind == "cpython").collect();
            let chain = |names: &[&str]| {
                let mut frames = python.iter();
                names.iter().all(|name| frames.any(|frame| frame.is(name)))
            };
            is_whole(sample) && chain(&["outer", "<module>"])
        })?;
        let in_leaf: Vec<_> = run
            .samples
            .iter()
            .filter(|s| s.has("leaf_first") || s.has("leaf_second"))
            .cloned()
            .collect();
        most(&in_leaf, "leaf under middle under outer", |sample| {
            let mut frames = sample.user().filter(|frame| frame.kind == "cpython");
            frames.next().is_some_and(|f| f.is("leaf_first") || f.is("leaf_second"))
                && frames.next().is_some_and(|f| f.is("middle"))
                && frames.next().is_some_and(|f| f.is("outer"))
        })?;
        shares(&in_leaf, ["leaf_first", "leaf_second"], &run.printed)
    });
}

#[test]
fn node_with_a_map() {
    if !need::bpf() {
        return;
    }
    let Some(node) = need::tool("VESTA_NODE", "node") else { return };
    let command = || {
        let mut command = Command::new(&node);
        command.args(["--perf-basic-prof", "--interpreted-frames-native-stack"]);
        command.arg(repository().join("tests/workloads/chain.js")).arg(SECONDS.to_string());
        command
    };
    check(command, |run| {
        let main: Vec<_> = run.samples.iter().filter(|s| s.has("_start")).cloned().collect();
        most(&main, "the script's function in the main thread", |sample| {
            let mut script = sample.user().filter(|frame| frame.kind == "v8js");
            script.any(|frame| frame.is("outerOfNode"))
        })
    });
}
