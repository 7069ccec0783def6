//! Code that takes another's place, and no record says so of the process that runs there: moved by `mremap`, mapped by
//! a child of `vfork`, mapped by a process that shares its memory. Goal: wrong names for a moment at most. Method: a
//! library takes the place of another of the same layout again and again; the program says when.

use std::process::Command;
use std::time::Duration;
use tests::agent::AgentOptions;
use tests::metrics::Metrics;
use tests::observation::{Observation, observations};
use tests::statistics::as_f64;
use tests::workload;
use tests::{Agent, Running, Sink, need};

const FREQUENCY_HZ: u32 = 997;
const PAGE: u64 = 4096;
const ROUNDS: u64 = 7;
/// Two clocks, the program's and the agent's, read one after the other.
const CLOCKS_APART_NS: u64 = 2_000_000;
/// Share of samples that are named by the library that is there, once the agent had its time.
const SHARE_MIN: f64 = 0.99;

/// How the library comes there, how long it stays, and how long names may be wrong. What is told by nobody is looked for
/// in a program that is sampled, in turn with others: more seldom while nothing was found, and each second from then on.
const WAYS: [(&str, u64, u64); 3] = [
    ("mremap", 5_000, 3_500_000_000),
    ("vfork", 1_500, 500_000_000),
    ("shared", 1_500, 500_000_000),
];
/// Stays that are not judged: the first is told by a record, and in the second the change is a surprise.
const STAYS_UNJUDGED: usize = 2;

/// One stay of a library.
struct Stay {
    own: &'static str,
    other: &'static str,
    from_ns: u64,
    to_ns: u64,
}

#[test]
fn another_library_takes_the_place() {
    if !need::bpf() {
        return;
    }
    let (Some(a), Some(b)) = (workload::plugin("a"), workload::plugin("b")) else { return };
    let Some(moved) = workload::c("moved", &["-static", "-no-pie"]) else { return };
    let address = workload::symbol_address(&a, "alone_a");
    let offset = address / PAGE * PAGE;
    let sink = Sink::start();
    let metrics = Metrics::somewhere();
    let arguments = metrics.arguments();
    let options = AgentOptions { arguments, ..AgentOptions::at(FREQUENCY_HZ) };
    let agent = Agent::start(&sink.url(), &options);
    let start = |way: &str, ms: u64| {
        let mut command = Command::new(&moved);
        command.args([way, &ROUNDS.to_string(), &ms.to_string()]).args([&a, &b]);
        command.args([offset, PAGE, address - offset].map(|it| it.to_string()));
        Running::start(command)
    };
    let runs = WAYS
        .map(|(way, ms, limit_ns)| (way, limit_ns, start(way, ms).finish(Duration::from_secs(60))));
    let reading = metrics.read();
    agent.stop();
    need::figure(&format!(
        "{} listings to see whether mappings are true, {} were not",
        reading.get("maps_verified_total"),
        reading.get("maps_outdated_total")
    ));
    let all = observations(&sink.requests());
    for (way, limit_ns, printed) in runs {
        check(&all, way, limit_ns, &printed).expect("the library that is there");
    }
}

fn check(all: &[Observation], way: &str, limit_ns: u64, printed: &str) -> Result<(), String> {
    let mut lines = printed.lines();
    let pid: u32 = lines.next().and_then(|line| line.parse().ok()).ok_or("no pid")?;
    let stays: Vec<Stay> = lines.map(stay).collect();
    let samples = all.iter().filter(|sample| sample.pid == pid);
    let (mut early, mut early_wrong, mut late, mut late_right) = (0, 0, 0, 0);
    let mut last_wrong_ns = 0;
    for sample in samples {
        let there = |stay: &&Stay| {
            sample.time_ns > stay.from_ns + CLOCKS_APART_NS
                && sample.time_ns + CLOCKS_APART_NS < stay.to_ns
        };
        let Some(stay) = stays.iter().skip(STAYS_UNJUDGED).find(there) else { continue };
        let age_ns = sample.time_ns - stay.from_ns;
        if sample.has(stay.other) {
            last_wrong_ns = last_wrong_ns.max(age_ns);
        }
        if age_ns < limit_ns {
            early += 1;
            early_wrong += usize::from(sample.has(stay.other));
            continue;
        }
        late += 1;
        late_right += usize::from(sample.has(stay.own) && !sample.has(stay.other));
    }
    need::figure(&format!(
        "{way}: {early_wrong} of {early} samples have the wrong name at first, the last after {} ms; {late_right} of {late} the right one from {} ms on",
        last_wrong_ns / 1_000_000,
        limit_ns / 1_000_000
    ));
    if late < 1000 || as_f64(late_right) < SHARE_MIN * as_f64(late) {
        return Err(format!("{way}: {late_right} of {late} samples have the right name"));
    }
    Ok(())
}

fn stay(line: &str) -> Stay {
    let numbers: Vec<u64> = line.split(' ').map(|it| it.parse().expect("a number")).collect();
    let [library, from_ns, to_ns] = numbers[..] else { panic!("{line}") };
    let [own, other] = if library == 0 { ["alone_a", "alone_b"] } else { ["alone_b", "alone_a"] };
    Stay { own, other, from_ns, to_ns }
}
