//! What threads and goroutines wait for. Goal: each wait has its true reason, and what is a lock has its kind, its address
//! and its time. Method: programs that wait in one way each and sum their waits by their own clock; what the agent sends
//! of each is held against what it printed.

use std::path::Path;
use std::process::Command;
use std::time::Duration;
use tests::agent::AgentOptions;
use tests::metrics::Metrics;
use tests::wait_observation::{WaitObservation, waits};
use tests::ways::{Library, WaitTruth};
use tests::{Agent, Collector, Running, Sink, binary, eventually, need};

/// 20 waits of 50 ms.
const MILLISECONDS: u64 = 1000;
/// 60 waits of 50 ms, on a host where others wait too.
const ANSWER_MILLISECONDS: u64 = 3000;
/// The longest life of a program or a recording.
const LIFE_MAX: Duration = Duration::from_secs(120);
/// 150 waits of 50 ms in each of three goroutines: they are probed a moment after the program begins.
const GO_MILLISECONDS: u64 = 8000;

/// Two thirds of it are waited for at once.
const LONG_MILLISECONDS: u64 = 18_000;
/// The same for programs that run twice: the second time they are probed from the start.
const PROBED_MILLISECONDS: u64 = 3000;

/// Twice as many as stacks are taken of in that time, on two CPUs.
const STORM_WAITS_MIN: u64 = 2400;

/// Share by which the agent's time may differ from the program's: its clock also runs while it enters and leaves the
/// kernel.
const TIME_SHARE_MAX: f64 = 0.02;

/// Share of the time whose stacks must reach the thread's first frame.
const COMPLETE_SHARE_MIN: f64 = 0.995;

/// Share of the time whose stacks may not have been taken, on a host that switches much more.
const NOT_SAMPLED_SHARE_MAX: f64 = 0.1;

/// Share of a lock's time that must bear its address: what a program does before it has begun is the rest.
const ADDRESS_SHARE_MIN: f64 = 0.98;

/// Samples a second and CPU.
const FREQUENCY_HZ: f64 = 19.0;

/// Share by which ticks of a holder may differ from the time of its waiter: about 19 ticks, one more or less at each end.
const TICKS_SHARE_MAX: f64 = 0.2;

/// Locks a second that nobody else wants, where a thread takes as many as it can.
const BESIDE_A_SECOND_MIN: u64 = 1_000_000;

/// The agent's metric of waits for locks of C libraries that met a probe, all over the host.
const HITS: &str = "libc_lock_probe_hits_total";
/// Locks that nobody else wants, for each of which one such hit would be too many.
const LOCKS_PER_HIT: f64 = 1000.0;

/// A way to wait, and what it is.
struct Way {
    case: &'static str,
    reason: &'static str,
    /// Of a lock; else empty.
    kind: &'static str,
    /// glibc's exported function jumps to one that only its separate symbols name.
    jumps: bool,
    /// The lock says who holds it.
    says_holder: bool,
    /// Its variable.
    variable: &'static str,
}

const fn way(case: &'static str, reason: &'static str, kind: &'static str) -> Way {
    Way { case, reason, kind, jumps: false, says_holder: false, variable: "" }
}

/// A lock of C that is a variable, and says who holds it.
const fn held(case: &'static str, kind: &'static str, variable: &'static str) -> Way {
    Way { says_holder: true, variable, ..way(case, "lock", kind) }
}

/// A lock that is a variable, and does not say who holds it: that of musl, of Rust, of readers.
const fn quiet(case: &'static str, kind: &'static str, variable: &'static str) -> Way {
    Way { variable, ..way(case, "lock", kind) }
}

/// As [`way`], where it takes separate symbols to see it.
const fn jumps(case: &'static str, reason: &'static str, kind: &'static str) -> Way {
    Way { jumps: true, ..way(case, reason, kind) }
}

const GLIBC: [Way; 26] = [
    held("mutex", "mutex", "mutex"),
    held("timedlock", "mutex", "mutex"),
    held("clocklock", "mutex", "mutex"),
    held("inheriting", "mutex", "inheriting"),
    held("mtx", "mutex", "plain_mutex"),
    held("mtx_timed", "mutex", "plain_mutex"),
    held("rdlock", "rwlock", "rwlock"),
    quiet("wrlock", "rwlock", "rwlock"),
    held("wrlock_writer", "rwlock", "rwlock"),
    held("timedrdlock", "rwlock", "rwlock"),
    quiet("clockwrlock", "rwlock", "rwlock"),
    jumps("once", "lock", "unknown"),
    way("condvar", "condvar", ""),
    way("timedcondvar", "condvar", ""),
    way("clockcondvar", "condvar", ""),
    way("cnd", "condvar", ""),
    way("cnd_timed", "condvar", ""),
    jumps("semaphore", "semaphore", ""),
    jumps("timedsemaphore", "semaphore", ""),
    jumps("clocksemaphore", "semaphore", ""),
    way("barrier", "park", ""),
    jumps("join", "park", ""),
    jumps("thrd_join", "park", ""),
    way("sleep", "sleep", ""),
    way("read", "io", ""),
    way("poll", "poll", ""),
];

const MUSL: [Way; 12] = [
    quiet("mutex", "mutex", "mutex"),
    quiet("timedlock", "mutex", "mutex"),
    quiet("rdlock", "rwlock", "rwlock"),
    quiet("wrlock", "rwlock", "rwlock"),
    way("once", "lock", "unknown"),
    way("condvar", "condvar", ""),
    way("semaphore", "semaphore", ""),
    way("barrier", "park", ""),
    way("join", "park", ""),
    way("sleep", "sleep", ""),
    way("read", "io", ""),
    way("poll", "poll", ""),
];

const RUST: [Way; 13] = [
    quiet("mutex", "mutex", "waits::MUTEX"),
    quiet("read", "rwlock", "waits::RWLOCK"),
    quiet("write", "rwlock", "waits::RWLOCK"),
    way("once", "lock", "unknown"),
    way("condvar", "condvar", ""),
    way("park", "park", ""),
    way("channel", "park", ""),
    way("parking_lot_mutex", "lock", "mutex"),
    way("parking_lot_read", "lock", "rwlock"),
    way("parking_lot_write", "lock", "rwlock"),
    way("parking_lot_write_readers", "lock", "rwlock"),
    way("parking_lot_condvar", "condvar", ""),
    way("parking_lot_once", "lock", "unknown"),
];

/// Ways to wait for a lock of Go, with its kind. Writers of a rwlock queue at a mutex of its own, which lies at its start.
const GO: [(&str, &[&str]); 3] =
    [("mutex", &["mutex"]), ("rlock", &["rwlock"]), ("wlock", &["rwlock", "mutex"])];
/// Ways that are no locks.
const GO_OTHERS: [&str; 4] = ["cond", "channel", "group", "sleep"];

/// Beside them each waiter sleeps.
const JAVA: [Way; 3] =
    [way("monitor", "lock", "monitor"), way("wait", "condvar", ""), way("park", "park", "")];

#[test]
fn of_glibc() {
    check(Library::Glibc, &GLIBC);
}

/// From the kernel to the answer: who waits for a lock, and who holds it meanwhile.
#[test]
fn waiters_and_holders_in_the_answer() {
    if !need::bpf() {
        return;
    }
    let Some(program) = Library::Glibc.program() else { return };
    let collector = Collector::start();
    let metrics = Metrics::somewhere();
    let mut arguments = metrics.arguments();
    arguments.extend(["--lock-probes", "waiting"].map(str::to_owned));
    let options = AgentOptions { arguments, ..AgentOptions::at(19) };
    let agent = Agent::start(&collector.grpc_url(), &options);
    let truth = truth(&program.start("mutex", ANSWER_MILLISECONDS, true).finish(LIFE_MAX));
    assert!(truth.beside > BESIDE_A_SECOND_MIN * ANSWER_MILLISECONDS / 1000, "{truth:?}");
    let filter = format!("{{\"process.pid\"=\"{}\"}}", truth.pid);
    let query = [("from", "now-1h"), ("to", "now+1m"), ("filter", filter.as_str())];
    let answered = || {
        eventually("the lock is in the answer", Duration::from_secs(10), || {
            let answer = collector.api("locks", &query);
            if row_of(&answer, "mutex").is_some() { Ok(answer) } else { Err(answer.to_string()) }
        })
    };
    // The agent counts up to the end of a window, and one was sent.
    answered();
    let hits = metrics.read().get(HITS);
    agent.stop();
    let beside = truth.beside;
    need::figure(&format!("{hits} hits of probes, beside {beside} locks that nobody else wanted"));
    assert!(hits * LOCKS_PER_HIT < number(beside), "{hits} hits beside {beside} locks");
    assert_eq!(hits > 0.0, libc_is_probed(), "{hits} hits");
    let answer = answered();
    // Beside it may be a lock that nobody knows more of: waits whose stack was not taken.
    let row = row_of(&answer, "mutex").expect("it was there");
    need::figure(&format!("{row}"));
    assert_eq!(row["lock"], "mutex", "{row}");
    assert_eq!(row["kind"], "mutex", "{row}");
    // On a host that switches much, some of it may have no stack.
    let waited = row["wait_ns"].as_u64().expect("a number");
    at_most("waited", waited, number(truth.waited_ns) * (1.0 + TIME_SHARE_MAX))
        .unwrap_or_else(|wrong| panic!("{wrong}"));
    let ways = |what: &str| row[what][0]["stack"].to_string();
    assert!(ways("waiters").contains("\"lock\",\"wait_for_it\""), "{row}");
    // Where others take the stacks, a holder is met too seldom for these few seconds.
    if number(waited) > number(truth.waited_ns) / 2.0 {
        assert!(ways("holders").contains("\"hold\""), "{row}");
    }
}

/// False where programs may use shadow stacks: the agent leaves C libraries alone there.
fn libc_is_probed() -> bool {
    let cpus = std::fs::read_to_string("/proc/cpuinfo").expect("procfs is mounted");
    let flags = cpus.lines().find(|line| line.starts_with("flags")).expect("a CPU has flags");
    !flags.split_whitespace().any(|flag| flag == "user_shstk")
}

/// What the answer says of the lock of that name.
fn row_of<'a>(answer: &'a serde_json::Value, lock: &str) -> Option<&'a serde_json::Value> {
    answer["rows"].as_array()?.iter().find(|row| row["lock"] == lock)
}

/// A program in a container knows other numbers of its threads than the host.
#[test]
fn in_a_pid_namespace() {
    if !need::bpf() {
        return;
    }
    let Some(program) = Library::Glibc.program() else { return };
    let line = program.command_line("mutex", ANSWER_MILLISECONDS);
    let (truths, waits) = run(&format!("unshare --pid --fork --mount-proc {line}"), &BY_RULES);
    let [truth] = &truths[..] else { panic!("{truths:?}") };
    let holder = waits.iter().find(|wait| wait.kind == "lock_holders" && wait.thread == "holder");
    let holder = holder.expect("somebody was seen holding the lock").tid;
    assert_ne!(holder, truth.holder, "it runs in a namespace of its own");
    let of_waiter = waits.iter().filter(|wait| wait.is_lock() && wait.thread == "waiter");
    let of_waiter: Vec<&WaitObservation> = of_waiter.collect();
    let sums = Sums { waits: &of_waiter };
    let held = sums.of(|wait| wait.lock_owner == holder);
    let sampled = sums.of(|wait| !wait.is_not_sampled());
    at_least("held by it", held, number(sampled) * ADDRESS_SHARE_MIN)
        .unwrap_or_else(|wrong| panic!("{wrong}"));
}

/// A program that names nothing says by probes alone that it waits for a lock, for which, and who holds it.
#[test]
fn of_a_stripped_program() {
    let of = |probes: &str| {
        let options = ["--lock-probes", probes];
        let (truths, waits) =
            record_with(Library::GlibcStripped, &["mutex"; 2], PROBED_MILLISECONDS, &options)?;
        let truth = truths.into_iter().last().expect("the program said what it did");
        let of_waiter = |wait: &WaitObservation| wait.pid == truth.pid && wait.tid == truth.tid;
        Some((waits.into_iter().filter(of_waiter).collect::<Vec<_>>(), truth))
    };
    let Some((without, truth)) = of("off") else { return };
    let without: Vec<&WaitObservation> = without.iter().collect();
    let locks = Sums { waits: &without }.of(WaitObservation::is_lock);
    assert_eq!(locks, 0, "of {} ns, without probes", truth.waited_ns);
    let Some((with, truth)) = of("waiting") else { return };
    let with: Vec<&WaitObservation> = with.iter().collect();
    let sums = Sums { waits: &with };
    let locks = sums.of(WaitObservation::is_lock);
    need::figure(&format!("{locks} of {} ns in locks, none without probes", truth.waited_ns));
    near([locks, locks], truth.waited_ns).unwrap_or_else(|wrong| panic!("{wrong}"));
    let address = format!("{:#x}", truth.lock);
    let sampled = sums.of(|wait| wait.is_lock() && !wait.is_not_sampled());
    let right = sums.of(|wait| {
        let held = wait.lock_owner == truth.holder;
        let mutex = wait.is_lock() && wait.lock_kind == "mutex";
        mutex && wait.lock_address == address && held
    });
    at_least("at its address, with its holder", right, number(sampled) * ADDRESS_SHARE_MIN)
        .unwrap_or_else(|wrong| panic!("{wrong}"));
}

/// Of more waits than stacks are taken of, all are known to be waits for locks.
#[test]
fn of_more_waits_than_stacks() {
    let options = ["--lock-probes", "waiting"];
    let ran = record_with(Library::Glibc, &["storm"; 2], PROBED_MILLISECONDS, &options);
    let Some((truths, waits)) = ran else { return };
    let truth = truths.last().expect("the program said what it did");
    let mine: Vec<&WaitObservation> = waits.iter().filter(|wait| wait.pid == truth.pid).collect();
    let sums = Sums { waits: &mine };
    let locks = sums.of(WaitObservation::is_lock);
    let sampled = sums.of(|wait| wait.is_lock() && !wait.is_not_sampled());
    let preempted = sums.of(|wait| wait.kind == "off_cpu_preempted");
    need::figure(&format!(
        "{locks} ns in locks, {sampled} with a stack, of {} ns in {} waits",
        truth.waited_ns, truth.waits
    ));
    assert!(truth.waits > STORM_WAITS_MIN, "{truth:?}");
    near([locks, locks + preempted], truth.waited_ns).unwrap_or_else(|wrong| panic!("{wrong}"));
}

#[test]
fn of_static_musl() {
    check(Library::Musl, &MUSL);
}

#[test]
fn of_rust() {
    check(Library::Rust, &RUST);
}

#[test]
fn of_a_jvm() {
    check(Library::Java, &JAVA);
}

#[test]
fn of_go() {
    check_go(Library::Go);
}

/// A wait that outlasts windows is told while it lasts, in each of them.
#[test]
fn of_go_while_it_lasts() {
    let Some((truths, waits)) = run_go_for(Library::Go, &["long"], LONG_MILLISECONDS) else {
        return;
    };
    let truth = &truths[0];
    let locks: Vec<&WaitObservation> =
        waits.iter().filter(|wait| wait.pid == truth.pid && wait.is_lock()).collect();
    let sums = Sums { waits: &locks };
    let sum = sums.of(|_| true);
    let mut windows: Vec<u64> = locks.iter().map(|wait| wait.window_ns).collect();
    windows.sort_unstable();
    windows.dedup();
    let by_window: Vec<u64> =
        windows.iter().map(|window| sums.of(|wait| wait.window_ns == *window)).collect();
    need::figure(&format!("{by_window:?} ns in windows, of {} ns", truth.waited_ns));
    near([sum, sum], truth.waited_ns).unwrap_or_else(|wrong| panic!("{wrong}"));
    assert!(windows.len() >= 3, "{by_window:?}");
    let address = format!("{:#x}", truth.lock);
    let right = sums.of(|wait| wait.lock_kind == "mutex" && wait.lock_address == address);
    at_least(&address, right, number(sum) * ADDRESS_SHARE_MIN)
        .unwrap_or_else(|wrong| panic!("{wrong}"));
    let count = waits.iter().filter(|it| it.pid == truth.pid && it.kind == "lock_contentions");
    assert_eq!(count.map(|wait| wait.value).sum::<u64>(), truth.waits);
}

#[test]
fn of_go_without_symbols() {
    check_go(Library::GoStripped);
}

fn check_go(library: Library) {
    let cases: Vec<&str> = GO.iter().map(|(case, _)| *case).chain(GO_OTHERS).collect();
    let Some((truths, waits)) = run_go(library, &cases) else { return };
    for (truth, case) in truths.iter().zip(&cases) {
        let locks = waits.iter().filter(|wait| wait.pid == truth.pid && wait.is_lock());
        let sum: u64 = locks.clone().map(|wait| wait.value).sum();
        need::figure(&format!("{case}: {sum} ns in locks, waited {}", truth.waited_ns));
        let Some((_, kinds)) = GO.iter().find(|(lock, _)| lock == case) else {
            assert!(sum < truth.waited_ns / 50, "{case}: {sum} ns in locks");
            continue;
        };
        near([sum, sum], truth.waited_ns).unwrap_or_else(|wrong| panic!("{case}: {wrong}"));
        let address = format!("{:#x}", truth.lock);
        let right = locks.filter(|wait| {
            kinds.contains(&wait.lock_kind.as_str()) && wait.lock_address == address
        });
        let right: u64 = right.map(|wait| wait.value).sum();
        assert!(number(right) >= number(sum) * ADDRESS_SHARE_MIN, "{case}: {right} of {sum}");
    }
}

/// What programs said, and what the agent sent.
type Ran = (Vec<WaitTruth>, Vec<WaitObservation>);

/// Runs programs of Go at the same time, under one agent: it probes what runs for longer than a moment.
fn run_go(library: Library, cases: &[&str]) -> Option<Ran> {
    run_go_for(library, cases, GO_MILLISECONDS)
}

fn run_go_for(library: Library, cases: &[&str], milliseconds: u64) -> Option<Ran> {
    if !need::bpf() {
        return None;
    }
    let program = library.program()?;
    let sink = Sink::start();
    let agent = Agent::start(&sink.url(), &AgentOptions::at(19));
    // The first one runs beside a goroutine that never waits.
    let start = |(at, case): (usize, &&str)| program.start(case, milliseconds, at == 0);
    let running: Vec<_> = cases.iter().enumerate().map(start).collect();
    let truths = running.into_iter().map(|program| truth(&program.finish(LIFE_MAX)));
    let truths = truths.collect();
    agent.stop();
    Some((truths, waits(&sink.requests())))
}

/// Without probes of C libraries, what is known of their locks is told by rules alone: one that is lost fails on every
/// kernel.
const BY_RULES: [&str; 2] = ["--lock-probes", "go"];

/// Records programs one after the other, and nothing else of this host: what others do takes no stacks from them.
fn record(library: Library, cases: &[&str]) -> Option<Ran> {
    record_with(library, cases, MILLISECONDS, &BY_RULES)
}

/// The same for so long each, with more options.
fn record_with(
    library: Library,
    cases: &[&str],
    milliseconds: u64,
    options: &[&str],
) -> Option<Ran> {
    if !need::bpf() {
        return None;
    }
    let program = library.program()?;
    let script: Vec<String> =
        cases.iter().map(|case| program.command_line(case, milliseconds)).collect();
    Some(run(&script.join("; "), options))
}

/// Records what a shell runs.
fn run(script: &str, options: &[&str]) -> Ran {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("waits.otlp");
    let mut command = Command::new(binary::program("vesta-agent"));
    command.args(["record", "--off-cpu", "--frequency", "19"]).args(options).arg("-o").arg(&file);
    command.args(["--", "sh", "-c", script]);
    let said = Running::start(command).finish(LIFE_MAX);
    let truths = said.lines().filter(|line| line.starts_with('{')).map(truth).collect();
    let recorded = std::fs::read(&file).expect("record wrote the file");
    (truths, waits(&[recorded]))
}

fn truth(said: &str) -> WaitTruth {
    serde_json::from_str(said).unwrap_or_else(|error| panic!("{error}: {said}"))
}

fn check(library: Library, ways: &[Way]) {
    let cases: Vec<&str> = ways.iter().map(|way| way.case).collect();
    let Some((truths, waits)) = record(library, &cases) else { return };
    assert_eq!(truths.len(), cases.len(), "{truths:?}");
    let wrong: Vec<String> = ways
        .iter()
        .zip(&truths)
        .filter_map(|(way, truth)| {
            let of_waiter = |wait: &&WaitObservation| {
                let mine = truth.tid == wait.tid || truth.tid == 0 && wait.thread == "waiter";
                wait.pid == truth.pid && mine
            };
            let mine: Vec<&WaitObservation> = waits.iter().filter(of_waiter).collect();
            let judged = judge(way, truth, &mine).and(judge_holder(way, truth, &waits));
            judged.err().map(|wrong| format!("{}: {wrong}", way.case))
        })
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Sums of one program's waiter.
struct Sums<'a> {
    waits: &'a [&'a WaitObservation],
}

impl Sums<'_> {
    fn of(&self, part: impl Fn(&WaitObservation) -> bool) -> u64 {
        self.waits.iter().filter(|wait| part(wait)).map(|wait| wait.value).sum()
    }
}

/// True if the stack reaches the thread's first frame, whatever names are to come.
fn is_whole(wait: &WaitObservation) -> bool {
    let cut = |name: &String| name.starts_with("[unwind: ") || name == "[truncated]";
    !wait.frames.iter().any(|frame| frame.functions.iter().any(cut))
}

/// What the agent sent of one program's waiter.
fn judge(way: &Way, truth: &WaitTruth, waits: &[&WaitObservation]) -> Result<(), String> {
    let sums = Sums { waits };
    let named = !way.jumps || Path::new("/usr/lib/debug/.build-id").is_dir();
    let (reason, kind) = if named { (way.reason, way.kind) } else { ("futex", "") };
    let waited = sums.of(|wait| wait.is_off_cpu() && wait.reason == reason);
    // Where no stack was taken nobody knows what a futex is for.
    let unsure = |wait: &WaitObservation| wait.reason == "futex" && wait.is_not_sampled();
    let unsure_ns = sums.of(|wait| wait.is_off_cpu() && unsure(wait));
    // The program's clock also runs while it would go on and another thread has its CPU.
    let preempted_ns = sums.of(|wait| wait.kind == "off_cpu_preempted");
    let with_unsure = waited + preempted_ns + if reason == "futex" { 0 } else { unsure_ns };
    need::figure(&format!("{}: {waited} of {} ns, {reason}", way.case, truth.waited_ns));
    near([waited, with_unsure], truth.waited_ns).map_err(|wrong| {
        let reasons = waits.iter().filter(|wait| wait.is_off_cpu());
        let mut seen: Vec<_> =
            reasons.map(|wait| (wait.value, wait.reason.as_str(), wait.shown())).collect();
        seen.sort_unstable();
        format!("{wrong}; most: {:?}", seen.iter().rev().take(2).collect::<Vec<_>>())
    })?;
    at_most("without a stack", unsure_ns, number(truth.waited_ns) * NOT_SAMPLED_SHARE_MAX)?;
    let sampled = |wait: &WaitObservation| {
        wait.is_off_cpu() && wait.reason == reason && !wait.is_not_sampled()
    };
    let whole = sums.of(|wait| sampled(wait) && is_whole(wait));
    at_least("of whole stacks", whole, number(sums.of(sampled)) * COMPLETE_SHARE_MIN)?;
    let locks = sums.of(WaitObservation::is_lock);
    if kind.is_empty() {
        return at_most("in locks", locks, number(truth.waited_ns) * TIME_SHARE_MAX);
    }
    let of_kind = sums.of(|wait| wait.is_lock() && wait.lock_kind == kind);
    near([of_kind, of_kind + unsure_ns + preempted_ns], truth.waited_ns)
        .map_err(|wrong| format!("kind {kind}: {wrong}"))?;
    at_most("in locks", locks, number(truth.waited_ns) * (1.0 + TIME_SHARE_MAX))?;
    let is_count = |wait: &WaitObservation| wait.kind == "off_cpu" && wait.unit == "count";
    let unsure_count = sums.of(|wait| is_count(wait) && unsure(wait));
    let count = sums.of(|wait| wait.kind == "lock_contentions");
    at_least("contentions", count + unsure_count + 3, number(truth.waits))?;
    if truth.lock != 0 {
        let address = format!("{:#x}", truth.lock);
        let there = sums.of(|wait| wait.is_lock() && wait.lock_address == address);
        at_least(&address, there, number(locks) * ADDRESS_SHARE_MIN)?;
        let named = sums.of(|wait| wait.is_lock() && wait.lock_name == way.variable);
        at_least(&format!("named {}", way.variable), named, number(locks) * ADDRESS_SHARE_MIN)?;
    }
    let holder = if way.says_holder { truth.holder } else { 0 };
    let held = sums.of(|wait| wait.is_lock() && wait.lock_owner == holder);
    at_least(&format!("held by {holder}"), held, number(locks) * ADDRESS_SHARE_MIN)
}

/// What the agent sent of the one that holds the lock: at each tick of its waiter's time it was seen asleep with it.
fn judge_holder(way: &Way, truth: &WaitTruth, waits: &[WaitObservation]) -> Result<(), String> {
    // A runtime has locks of its own, whose holders are told too.
    let of_lock = waits.iter().filter(|wait| {
        let held = wait.tid == truth.holder || wait.has("hold");
        wait.kind == "lock_holders" && wait.pid == truth.pid && held
    });
    let all: u64 = of_lock.clone().map(|wait| wait.value).sum();
    let right = of_lock.filter(|wait| {
        wait.tid == truth.holder && wait.lock_name == way.variable && wait.has("hold")
    });
    let right: u64 = right.map(|wait| wait.value).sum();
    need::figure(&format!("{}: seen holding {right} times, in all {all}", way.case));
    if !way.says_holder {
        return at_most("holders", all, 0.0);
    }
    let ticks = number(truth.waited_ns) * FREQUENCY_HZ / 1e9;
    at_least("ticks of the holder", right, ticks * (1.0 - TICKS_SHARE_MAX))?;
    at_most("ticks of holders", all, ticks * (1.0 + TICKS_SHARE_MAX))
}

/// The truth lies between the two, or no further away than it may.
fn near([low, high]: [u64; 2], truth: u64) -> Result<(), String> {
    let (low, high) = (number(low) * (1.0 - TIME_SHARE_MAX), number(high) * (1.0 + TIME_SHARE_MAX));
    if (low..=high).contains(&number(truth)) {
        Ok(())
    } else {
        Err(format!("{low} to {high} ns, in truth {truth}"))
    }
}

fn at_least(what: &str, value: u64, min: f64) -> Result<(), String> {
    if number(value) >= min { Ok(()) } else { Err(format!("{what}: {value}, less than {min}")) }
}

fn at_most(what: &str, value: u64, max: f64) -> Result<(), String> {
    if number(value) <= max { Ok(()) } else { Err(format!("{what}: {value}, more than {max}")) }
}

fn number(value: u64) -> f64 {
    let high = u32::try_from(value >> 32).expect("32 bits are left");
    f64::from(high) * 4_294_967_296.0
        + f64::from(u32::try_from(value & 0xffff_ffff).expect("32 bits"))
}
