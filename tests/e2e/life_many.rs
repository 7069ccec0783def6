//! Many mappings, many processes. Goal: the last of 8,192 mappings unwinds like the first, and 10,000 processes
//! neither slow the agent's start nor hide the one that works. Method: a program maps pages of two libraries in turn,
//! so that nothing can be merged, and works in the last; 10,000 processes of one page sleep while one works, half of
//! them before the agent's time, half under its eyes.

use std::process::Command;
use std::time::{Duration, Instant};
use tests::agent::AgentOptions;
use tests::metrics::Metrics;
use tests::observation::{Observation, observations};
use tests::statistics::as_f64;
use tests::workload::{self, seconds, start_split, truth};
use tests::{Agent, Running, Sink, need, seed, usage};

const FREQUENCY_HZ: u32 = 397;

/// What the agent keeps of one process.
const MAPPINGS: u32 = 8192;
const MAPPED_MS: &str = "3000";
/// Time until so many mappings are known, all records of them and pages in the kernel included.
const MAPPINGS_KNOWN_NS_MAX: u64 = 1_000_000_000;
/// Bytes of a page.
const PAGE: u64 = 4096;

/// Processes before the agent starts, and as many again while it runs.
const CROWD: u32 = 5000;
/// The start may take so long with them.
const START_MAX: Duration = Duration::from_secs(15);
/// Memory for each of them, bytes, in the agent and in its maps.
const PROCESS_BYTES_MAX: u64 = 16 << 10;
/// A window and its naming: metrics are as of the last one.
const WINDOW: Duration = Duration::from_secs(6);
/// The busy process is known after so long: the agent still reads the processes that came just before it.
const KNOWN_NS: u64 = 1_000_000_000;
/// How long the one works.
const BUSY_SECONDS: u32 = 5;

#[test]
fn eight_thousand_mappings_in_one_process() {
    if !need::bpf() {
        return;
    }
    let (Some(a), Some(b)) = (workload::plugin("a"), workload::plugin("b")) else { return };
    let flags = ["-static", "-no-pie"];
    let Some(program) = workload::c_variant("patchwork.c", "patchwork", &flags) else { return };
    let address = workload::symbol_address(&a, "alone_a");
    let sink = Sink::start();
    let metrics = Metrics::somewhere();
    let arguments = metrics.arguments();
    let agent =
        Agent::start(&sink.url(), &AgentOptions { arguments, ..AgentOptions::at(FREQUENCY_HZ) });
    let mut command = Command::new(program);
    command.args([&MAPPINGS.to_string(), MAPPED_MS]).args([&a, &b]);
    // The linker puts the executable segment of so small a library into one page.
    let offset = address / PAGE * PAGE;
    command.args([offset, PAGE, address - offset].map(|it| it.to_string()));
    let process = Running::start(command);
    let pid = process.pid();
    let printed = process.finish(Duration::from_secs(60));
    std::thread::sleep(WINDOW);
    let left_out = metrics.read().get("mappings_left_out_total");
    agent.stop();
    let numbers: Vec<u64> =
        printed.split_whitespace().map(|it| it.parse().expect("a number")).collect();
    let [mappings, mapped_ms, cpu_ns] = numbers[..] else { panic!("{printed}") };
    assert_eq!(mappings, u64::from(MAPPINGS), "executable mappings of the process");
    let all = observations(&sink.requests());
    let in_last = |sample: &&Observation| {
        sample.pid == pid
            && sample.user().next().is_some_and(|leaf| leaf.address / PAGE == address / PAGE)
    };
    let samples: Vec<&Observation> = all.iter().filter(in_last).collect();
    // MAPPINGS is even, and how many the program had of its own decides whose turn the last one is.
    let whole = |sample: &&&Observation| {
        (sample.has("alone_a") || sample.has("alone_b"))
            && ["middle", "main", "_start"].iter().all(|name| sample.has(name))
    };
    let first = samples.iter().map(|sample| sample.time_ns).min().unwrap_or(0);
    let first_whole = samples.iter().filter(whole).map(|sample| sample.time_ns).min();
    let waited = first_whole.map(|time| time - first);
    let late = samples.iter().filter(|sample| sample.time_ns > first + MAPPINGS_KNOWN_NS_MAX);
    let (late_whole, late) = (late.clone().filter(whole).count(), late.count());
    need::figure(&format!(
        "{mappings} mappings made in {mapped_ms} ms: first whole stack in the last one after {} ms; {late_whole} of {late} whole after that second; {} of {:.0} samples in it",
        waited.map_or(-1, |ns| i64::try_from(ns / 1_000_000).expect("milliseconds")),
        samples.len(),
        seconds(cpu_ns) * f64::from(FREQUENCY_HZ)
    ));
    assert_eq!(left_out, 0.0, "mappings left out");
    assert!(late > 500 && late_whole == late, "{late_whole} of {late}");
}

#[test]
fn ten_thousand_processes() {
    if !need::bpf() {
        return;
    }
    let flags = ["-static", "-nostdlib", "-no-pie", "-Wl,--build-id"];
    let Some(sleeper) = workload::c_variant("sleeper.c", "sleeper", &flags) else { return };
    let (Some(crowd), Some(split)) = (workload::c("crowd", &[]), workload::Language::C.split())
    else {
        return;
    };
    let gather = || {
        let mut command = Command::new(&crowd);
        command.arg(CROWD.to_string()).arg(&sleeper);
        let mut process = Running::start(command);
        process.wait_for("ready", Duration::from_secs(60));
        process
    };
    let sink = Sink::start();
    let empty = Started::now(&sink);
    let (resident_empty, maps_empty) = empty.bytes();
    empty.agent.stop();
    let before = gather();
    let full = Started::now(&sink);
    let after = gather();
    let busy = start_split(&split, BUSY_SECONDS.into(), seed());
    let pid = busy.pid();
    let truth = truth(busy);
    let (resident, maps) = full.bytes();
    let known = full.metrics.read().get("processes");
    full.agent.stop();
    drop((before, after));
    let grown = (resident + maps).saturating_sub(resident_empty + maps_empty);
    let all = observations(&sink.requests());
    let all: Vec<&Observation> = all.iter().filter(|sample| sample.pid == pid).collect();
    // Its first moments are what other tests look at.
    let known_ns = all.iter().map(|sample| sample.time_ns).min().unwrap_or(0) + KNOWN_NS;
    let samples: Vec<&&Observation> = all.iter().filter(|it| it.time_ns > known_ns).collect();
    let whole = samples.iter().filter(|sample| sample.has("_start") && sample.has("main")).count();
    need::figure(&format!(
        "start with {CROWD} more processes {:.2} s, without {:.2} s; {known} processes known, {} MiB resident and {} MiB of maps, {} bytes for each process; {whole} of {} samples of the busy one whole",
        full.took.as_secs_f64(),
        empty.took.as_secs_f64(),
        resident >> 20,
        maps >> 20,
        grown / u64::from(2 * CROWD),
        samples.len()
    ));
    assert!(full.took <= START_MAX, "{:?} until it sampled", full.took);
    assert!(known >= f64::from(2 * CROWD), "only {known} processes known");
    assert!(grown <= u64::from(2 * CROWD) * PROCESS_BYTES_MAX, "{grown} bytes more");
    truth.count_is(all.len(), FREQUENCY_HZ, BUSY_SECONDS).expect("all samples of the busy one");
    let broken = samples.iter().rev().find(|sample| !(sample.has("_start") && sample.has("main")));
    let broken = broken.map(|sample| sample.shown()).unwrap_or_default();
    assert!(as_f64(whole) >= 0.99 * as_f64(samples.len()), "not so: {broken}");
}

/// An agent that samples.
struct Started {
    agent: Agent,
    metrics: Metrics,
    pid: u32,
    took: Duration,
}

impl Started {
    fn now(sink: &Sink) -> Self {
        let metrics = Metrics::somewhere();
        let arguments = metrics.arguments();
        let options = AgentOptions { arguments, ..AgentOptions::at(FREQUENCY_HZ) };
        let start = Instant::now();
        let mut agent = Agent::start(&sink.url(), &options);
        let took = start.elapsed();
        let pid = agent.process().pid();
        Self { agent, metrics, pid, took }
    }

    /// Resident bytes and those of all BPF maps, after another window.
    fn bytes(&self) -> (u64, u64) {
        std::thread::sleep(WINDOW);
        let reading = self.metrics.read();
        let maps = reading.get("table_bytes") + reading.get("map_bytes");
        (usage::resident_bytes(self.pid), format!("{maps:.0}").parse().expect("bytes"))
    }
}
