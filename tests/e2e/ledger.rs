//! The account of the agent closes, also where samples are lost. Method: at 997 Hz with a ring buffer of one
//! page, and the agent stopped for a moment now and then, samples must be lost; then every window's account
//! and their sum are held against themselves and against the observations that arrived, the last window
//! included. Exact: no tolerance but two ticks a CPU between the clock and the runs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tests::account::{Account, accounts};
use tests::agent::AgentOptions;
use tests::observation::observations;
use tests::profiles::send_bytes;
use tests::workload::{Language, start_split};
use tests::{Agent, Collector, Running, Sink, binary, need, seed};

const FREQUENCY_HZ: u32 = 997;
const STOPS: u32 = 5;
const STOP: Duration = Duration::from_millis(400);

#[test]
fn every_sample_is_somewhere_though_many_are_lost() {
    if !need::bpf() {
        return;
    }
    let Some(program) = Language::C.split() else { return };
    let program = without_symbols(&program);
    let sink = Sink::start();
    let arguments = vec!["--ring-bytes".to_owned(), "4096".to_owned()];
    let options = AgentOptions { arguments, ..AgentOptions::at(FREQUENCY_HZ) };
    let mut agent = Agent::start(&sink.url(), &options);
    let split = start_split(&program, 60, seed());
    for _ in 0..STOPS {
        std::thread::sleep(Duration::from_secs(1));
        agent.process().signal(rustix::process::Signal::STOP);
        std::thread::sleep(STOP);
        agent.process().signal(rustix::process::Signal::CONT);
    }
    std::thread::sleep(Duration::from_secs(1));
    agent.stop();
    drop(split);
    let accounts = accounts(&sink.requests());
    let mut carried = 0;
    for account in &accounts {
        closes(account);
        assert_eq!(account.of("carried_in"), carried, "what the window before left");
        carried = account.of("carried_over");
    }
    assert_eq!(carried, 0, "the last window leaves nothing");
    let sum = |figure: &str| accounts.iter().map(|account| account.of(figure)).sum::<u64>();
    need::figure(&format!(
        "{} windows: {} ticks, {} runs, {} idle, {} lost in the ring, {} sent",
        accounts.len(),
        sum("ticks_expected"),
        sum("runs"),
        sum("idle"),
        sum("lost_in_ring"),
        sum("sent")
    ));
    assert_eq!(sum("sent"), observations(&sink.requests()).len() as u64);
    assert_eq!(sum("shipped"), sum("received") + sum("unwanted") + sum("malformed"));
    assert!(sum("lost_in_ring") > 100, "the ring of one page was not full");
    assert!(sum("sent") > 1000);
    let cpus = accounts.iter().map(|account| account.of("cpus")).max().unwrap_or(0);
    let ticks = sum("runs") + sum("asleep");
    assert!(ticks <= sum("ticks_expected") + 2 * cpus, "more runs than ticks");
    of_processes(&accounts);
    at_a_collector(&sink.requests(), &accounts);
}

/// A collector that gets the requests, each of them twice, says what was lost and what was cut.
fn at_a_collector(requests: &[Vec<u8>], accounts: &[Account]) {
    let collector = Collector::start();
    for request in requests.iter().flat_map(|request| [request, request]) {
        assert_eq!(send_bytes(collector.otlp_grpc(), request).expect("it listens"), 0);
    }
    let sum = |figure: &str| accounts.iter().map(|account| account.of(figure)).sum::<u64>();
    // A filter narrows what was cut, and not what was lost: nobody knows whose it was.
    for filter in ["", "{service=\"no such service\"}"] {
        let graph = collector.api("flamegraph", &[("filter", filter), ("to", "now+1m")]);
        let losses = &graph["losses"];
        let lost = losses["lost"].as_array().expect("a list");
        let of_reason = |reason: &str| {
            let found = lost.iter().find(|lost| lost["reason"] == reason);
            found.map_or(0, |lost| lost["samples"].as_u64().expect("a count"))
        };
        assert_eq!(of_reason("ring buffer full"), sum("lost_in_ring"), "{losses}");
        assert_eq!(of_reason("clock ticks missed"), sum("missed"), "{losses}");
        assert_eq!(losses["sent"].as_u64(), Some(sum("sent")), "{losses}");
        let cut = losses["cut"].as_array().expect("a list");
        let cut: u64 = cut.iter().map(|cut| cut["total"].as_u64().expect("nanoseconds")).sum();
        let stops = sum("received") - sum("outcome.complete") - sum("outcome.no_user_stack");
        let period_ns = 1_000_000_000 / u64::from(FREQUENCY_HZ);
        assert_eq!(cut, if filter.is_empty() { stops * period_ns } else { 0 }, "{losses}");
    }
}

/// A copy whose frames have no names, so that there is something to account for.
fn without_symbols(program: &Path) -> PathBuf {
    let copy = binary::scratch("workloads").join("split-c-stripped");
    std::fs::copy(program, &copy).expect("copy into the scratch folder");
    let status = Command::new("strip").arg("--strip-all").arg(&copy).status();
    assert!(status.is_ok_and(|status| status.success()), "strip comes with the compiler");
    copy
}

fn closes(account: &Account) {
    let of = |figure: &str| account.of(figure);
    let ends = of("idle") + of("filtered") + of("shipped") + of("lost_in_ring");
    assert_eq!(of("runs"), ends, "{account:?}");
    let out = of("received") + of("unwanted") + of("malformed") + of("carried_over");
    assert_eq!(of("carried_in") + of("shipped"), out, "{account:?}");
    assert_eq!(of("received") + of("malformed"), of("sent") + of("dropped"), "{account:?}");
    assert_eq!(of("received"), account.sum_of("outcome."), "{account:?}");
    assert_eq!(of("frames_unnamed"), account.sum_of("unnamed."), "{account:?}");
}

/// The sums of the processes are those of the windows.
fn of_processes(accounts: &[Account]) {
    let (mut whole, mut parts) = (BTreeMap::new(), BTreeMap::new());
    for account in accounts {
        let figures = account.figures.iter().filter(|(name, _)| {
            (name.starts_with("outcome.")
                && *name != "outcome.complete"
                && *name != "outcome.no_user_stack")
                || name.starts_with("unnamed.")
        });
        figures.for_each(|(name, value)| *whole.entry(name.clone()).or_insert(0) += value);
        let of_processes = account.processes.iter().flatten();
        of_processes.for_each(|(name, value)| *parts.entry(name.clone()).or_insert(0) += value);
    }
    assert_eq!(whole, parts);
    assert!(whole.keys().any(|name| name.starts_with("unnamed.")), "{whole:?}");
}

#[test]
fn a_recording_ends_with_its_account() {
    if !need::bpf() {
        return;
    }
    let Some(program) = Language::C.split() else { return };
    let mut command = Command::new(binary::program("vesta-agent"));
    command.args(["record", "--frequency", &FREQUENCY_HZ.to_string(), "--ring-bytes", "4096"]);
    command.args(["-o", "/dev/null", "--format", "folded", "--"]).arg(&program);
    command.arg("2").arg(seed().to_string());
    let mut record = Running::start(command);
    record.wait(Duration::from_secs(60));
    let said = record.stderr();
    let line = said.lines().rev().find(|line| line.contains("wrote")).expect("a last line");
    let before = |word: &str| -> u64 {
        let words: Vec<&str> =
            line.split([' ', ',', ';', ':']).filter(|it| !it.is_empty()).collect();
        let at = words.iter().position(|it| *it == word).expect(word);
        words[at - 1].parse().expect("a number")
    };
    let figure = |word| before(word);
    need::figure(line);
    let ends = figure("samples") + figure("idle") + figure("filtered") + figure("lost");
    assert_eq!(figure("runs"), ends, "{line}");
    let ticks = figure("runs") + figure("asleep") + figure("missed");
    assert!(ticks.abs_diff(figure("ticks")) <= 2 * cpus(), "{line}");
    assert!(line.contains(" % incomplete, ") && line.contains(" % of frames unnamed; "), "{line}");
}

fn cpus() -> u64 {
    std::thread::available_parallelism().map_or(1, |cpus| cpus.get() as u64)
}
