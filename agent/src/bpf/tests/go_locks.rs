//! Goal: what goroutines waited for locks is what they say themselves, and nothing else counts. Method: a stripped
//! program that waits in one way and prints how long, probed on this machine's kernel, as root.

use super::run::{GENERATION, cannot_run};
use super::target::{TableLoader, Target, build_go};
use crate::bpf::{Options, RawLockWait, Record, Sampler, Statistics};
use crate::clock::{MonotonicNs, monotonic_now};
use crate::probes::go::lock_functions;
use agent_ebpf::Outcome;
use std::os::fd::AsFd as _;
use std::path::Path;
use std::time::{Duration, Instant};

/// Waits that are long enough to be seen and short enough to be many: 3 s are 60 turns of 51 ms.
const MILLISECONDS: &str = "3000";

struct Seen {
    waits: Vec<RawLockWait>,
    statistics: Statistics,
    /// When stacks could be walked.
    loaded: MonotonicNs,
    /// Nanoseconds, waits, address of the lock, uncontended locks beside, as the program says.
    waited_ns: u64,
    count: u64,
    lock: u64,
    beside: u64,
}

fn number(text: &str, key: &str) -> u64 {
    let rest = text.split(&format!("\"{key}\":")).nth(1).unwrap_or_else(|| panic!("{text}"));
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap()
}

/// Runs one way of the workload with its binary probed from the start; `None` if that cannot be.
fn run(way: &str) -> Option<Seen> {
    if cannot_run() {
        return None;
    }
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/workloads/waits/waits.go");
    let program = build_go(&source)?;
    let options = Options { go_locks: true, ..Options::default() };
    let (mut sampler, mut tables) = Sampler::load(&options).unwrap();
    let file = std::fs::File::open(&program.file).unwrap();
    let functions = lock_functions(file.as_fd()).unwrap();
    assert_eq!(functions.len(), 3, "{functions:?}");
    let probes = sampler.lock_probes().expect("this kernel takes the programs");
    let _attached = probes.attach(file.as_fd(), &functions).unwrap();
    let mut target = Target::run(program, &[way, MILLISECONDS, "1"]);
    std::thread::sleep(Duration::from_millis(200)); // past its start, with everything mapped
    TableLoader::default().load(&mut tables, target.pid(), GENERATION);
    let loaded = monotonic_now();
    let mut waits = Vec::new();
    let mut keep = |record| {
        if let Record::LockWait(wait) = record {
            waits.push(wait);
        }
    };
    let end = Instant::now() + Duration::from_millis(3700);
    while Instant::now() < end {
        sampler.poll(Duration::from_millis(100), &mut keep).unwrap();
    }
    let text = target.output();
    sampler.flush(&mut keep);
    let statistics = sampler.statistics().unwrap();
    waits.retain(|wait| wait.sample.pid == target.pid());
    let [waited_ns, count, lock, beside] =
        ["waited_ns", "waits", "lock", "beside"].map(|key| number(&text, key));
    Some(Seen { waits, statistics, loaded, waited_ns, count, lock, beside })
}

/// The time is right within 2 %, beside uncontended locks that do not come here.
fn check(way: &str, words: &[u64]) {
    let Some(seen) = run(way) else { return };
    let total: u64 = seen.waits.iter().map(|wait| wait.sample.time.0 - wait.since.0).sum();
    let counters = seen.statistics.locks;
    let share = total as f64 / seen.waited_ns as f64;
    eprintln!(
        "figure: {way}: {share:.4} of {} ns in {} waits ({} records), {} locks beside, {counters:?}",
        seen.waited_ns,
        seen.count,
        seen.waits.len(),
        seen.beside
    );
    assert!((0.98..=1.02).contains(&share), "{share}");
    assert!(seen.beside > 1_000_000, "{}", seen.beside);
    // A wait begins and ends; the probes came while three goroutines waited at most.
    assert!(counters.hits <= 3 * seen.count + 100, "{counters:?}, {} waits", seen.count);
    assert_eq!((counters.refused, counters.busy, counters.lost), (0, 0, 0));
    assert_eq!(seen.statistics.malformed, 0);
    let other = seen.waits.iter().find(|wait| !words.contains(&(wait.word.0 - seen.lock)));
    assert!(other.is_none(), "{other:?} of a lock at {:#x}", seen.lock);
    let mut late = seen.waits.iter().filter(|wait| wait.sample.time > seen.loaded);
    let cut = late.find(|wait| wait.sample.outcome != Outcome::Complete);
    assert!(cut.is_none(), "{cut:?}");
}

/// A rwlock's own mutex, which writers queue at, and where a writer waits for readers and readers for a writer: whoever holds
/// it waits too, to get it again.
const RWLOCK: [u64; 3] = [4, 8, 12];

#[test]
fn mutexes() {
    check("mutex", &[4]);
}

#[test]
fn readers() {
    check("rlock", &RWLOCK);
}

#[test]
fn writers() {
    check("wlock", &RWLOCK);
}

#[test]
fn what_is_no_lock_is_not_seen() {
    for way in ["cond", "channel", "group"] {
        let Some(seen) = run(way) else { return };
        let total: u64 = seen.waits.iter().map(|wait| wait.sample.time.0 - wait.since.0).sum();
        // The mutex of a condition is taken again by three goroutines at once.
        assert!(total * 50 < seen.waited_ns, "{way}: {total} of {}", seen.waited_ns);
    }
}

#[test]
fn the_cost_of_a_probe_is_measured() {
    if cannot_run() {
        return;
    }
    let (sampler, _tables) =
        Sampler::load(&Options { go_locks: true, ..Options::default() }).unwrap();
    let probes = sampler.lock_probes().expect("this kernel takes the programs");
    let before = sampler.statistics().unwrap().locks.hits;
    let cost = probes.cost_ns().unwrap();
    let hits = sampler.statistics().unwrap().locks.hits - before;
    eprintln!("figure: {} ns a hit", cost.ns);
    assert_eq!((hits, hits), (cost.hits, 2 * u64::from(crate::limits::PROBE_COST_CALLS)));
    // An emulated instruction and a program that does nothing need 1,000 ns; nothing needs a millisecond.
    assert!((300..1_000_000).contains(&cost.ns), "{cost:?}");
}
