//! Waits for locks of Go. Goal: what goroutines wait for locks is what they say themselves, and nothing else counts. Method:
//! programs that wait in one way each and sum their waits by their own clock, all at the same time; what the agent sends of
//! each is held against what it printed.

use std::time::Duration;
use tests::agent::AgentOptions;
use tests::wait_observation::{WaitObservation, waits};
use tests::ways::{Library, WaitTruth};
use tests::{Agent, Sink, need};

/// 150 waits of 50 ms in each of three goroutines.
const MILLISECONDS: u64 = 8000;

/// Share by which the agent's time may differ from the program's: the program is not probed from its first moment on.
const TIME_SHARE_MAX: f64 = 0.02;

/// Ways to wait for a lock, with its kind. Writers of a rwlock queue at a mutex of its own, which lies at its start.
const LOCKS: [(&str, &[&str]); 3] =
    [("mutex", &["mutex"]), ("rlock", &["rwlock"]), ("wlock", &["rwlock", "mutex"])];
/// Ways that are no locks.
const OTHERS: [&str; 4] = ["cond", "channel", "group", "sleep"];

/// Runs all ways under one agent; what each said, and what the agent sent.
fn run(library: Library, cases: &[&str]) -> Option<(Vec<WaitTruth>, Vec<WaitObservation>)> {
    if !need::bpf() {
        return None;
    }
    let program = library.program()?;
    let sink = Sink::start();
    let agent = Agent::start(&sink.url(), &AgentOptions::at(19));
    // The first one runs beside a goroutine that never waits.
    let start = |(index, case): (usize, &&str)| program.start(case, MILLISECONDS, index == 0);
    let running: Vec<_> = cases.iter().enumerate().map(start).collect();
    let truths = running.into_iter().map(|program| {
        let text = program.finish(Duration::from_secs(60));
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    });
    let truths = truths.collect();
    agent.stop();
    Some((truths, waits(&sink.requests())))
}

#[test]
fn of_go() {
    let cases: Vec<&str> = LOCKS.iter().map(|(case, _)| *case).chain(OTHERS).collect();
    let Some((truths, all)) = run(Library::Go, &cases) else { return };
    for (truth, case) in truths.iter().zip(&cases) {
        let locks = all.iter().filter(|wait| wait.pid == truth.pid && wait.is_lock());
        let sum: u64 = locks.clone().map(|wait| wait.value).sum();
        need::figure(&format!("{case}: {sum} ns in locks, waited {}", truth.waited_ns));
        let Some((_, kinds)) = LOCKS.iter().find(|(lock, _)| lock == case) else {
            assert!(sum < truth.waited_ns / 50, "{case}: {sum} ns in locks");
            continue;
        };
        let away = (number(sum) - number(truth.waited_ns)).abs() / number(truth.waited_ns);
        assert!(away <= TIME_SHARE_MAX, "{case}: {sum}, in truth {}", truth.waited_ns);
        let address = format!("{:#x}", truth.lock);
        let right = locks.filter(|wait| {
            kinds.contains(&wait.lock_kind.as_str()) && wait.lock_address == address
        });
        let right: u64 = right.map(|wait| wait.value).sum();
        assert!(number(right) >= number(sum) * 0.98, "{case}: {right} of {sum}");
    }
}

fn number(value: u64) -> f64 {
    f64::from(u32::try_from(value / 1_000_000).expect("a short run")) * 1e6
}
