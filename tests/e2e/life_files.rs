//! Files that come, go and are replaced beneath a running process. Goal: names are those of the file that was mapped
//! when the sample was taken. Method: two libraries with one layout take turns at one address and say when; programs
//! whose file is replaced or removed, at once or later; a process whose main thread has ended, so that `/proc`
//! shows no mappings under its pid. Each prints its own CPU time.

use serde::Deserialize;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use tests::agent::AgentOptions;
use tests::observation::{Observation, observations};
use tests::statistics::{as_f64, count_is};
use tests::workload::{self, Root, seconds};
use tests::{Agent, Running, Sink, need};

const FREQUENCY_HZ: u32 = 997;

/// Share of samples that must be so where the agent had time to know the file.
const SHARE_MIN: f64 = 0.995;

/// The two programs that take turns: how often, and CPU time in each load.
const LOADS: [(u32, u32); 2] = [(16, 250_000), (400, 5_000)];
/// After its start, or a load, the agent has so long to know a process, or a library.
const KNOWN_NS: u64 = 100_000_000;
/// Two clocks, the program's and the agent's, read one after the other.
const CLOCKS_APART_NS: u64 = 2_000_000;

#[test]
fn two_libraries_at_one_address() {
    if !need::bpf() {
        return;
    }
    let (Some(a), Some(b)) = (workload::plugin("a"), workload::plugin("b")) else { return };
    let Some(reload) = workload::c("reload", &[]) else { return };
    let sink = Sink::start();
    let agent = Agent::start(&sink.url(), &AgentOptions::at(FREQUENCY_HZ));
    let run = |(loads, us): (u32, u32)| {
        let mut command = Command::new(&reload);
        command.args([loads.to_string(), us.to_string()]).args([&a, &b]);
        let process = Running::start(command);
        (process.pid(), Load::read(&process.finish(Duration::from_secs(60))))
    };
    let runs = LOADS.map(run);
    agent.stop();
    let all = observations(&sink.requests());
    for ((pid, loads), (_, us)) in runs.iter().zip(LOADS) {
        let samples: Vec<&Observation> = all.iter().filter(|sample| sample.pid == *pid).collect();
        reloaded(&samples, loads, us).expect("the library that was loaded");
    }
}

/// One load of a library.
struct Load {
    /// `a` or `b`.
    library: char,
    address: u64,
    from_ns: u64,
    to_ns: u64,
    cpu_ns: u64,
}

impl Load {
    fn read(lines: &str) -> Vec<Self> {
        let one = |line: &str| {
            let numbers: Vec<u64> =
                line.split(' ').map(|number| number.parse().expect("a number")).collect();
            let [library, address, from_ns, to_ns, cpu_ns] = numbers[..] else { panic!("{line}") };
            let library = if library == 0 { 'a' } else { 'b' };
            Self { library, address, from_ns, to_ns, cpu_ns }
        };
        lines.lines().map(one).collect()
    }
}

/// No sample shows the library that is not loaded, and what is known is whole.
fn reloaded(samples: &[&Observation], loads: &[Load], us: u32) -> Result<(), String> {
    let same = loads.windows(2).filter(|pair| pair[0].address == pair[1].address).count();
    if same < loads.len() / 2 {
        return Err(format!("only {same} of {} loads came to the same address", loads.len()));
    }
    let (mut named, mut late, mut late_whole) = (0, 0, 0);
    for sample in samples {
        let loaded = |load: &&Load| {
            sample.time_ns > load.from_ns + CLOCKS_APART_NS
                && sample.time_ns + CLOCKS_APART_NS < load.to_ns
        };
        let Some(load) = loads.iter().find(loaded) else { continue };
        let [own, other] = if load.library == 'a' { ["a", "b"] } else { ["b", "a"] };
        if sample.has(&format!("leaf_{other}"))
            || sample.user().any(|frame| frame.file == format!("plugin-{other}.so"))
        {
            return Err(format!("plugin-{own} is loaded: {}", sample.shown()));
        }
        let in_leaf = sample.has(&format!("leaf_{own}"));
        named += usize::from(in_leaf);
        if sample.time_ns > load.from_ns + KNOWN_NS {
            late += 1;
            // The loader and the clock aside, the program does nothing but work in its library.
            let whole = in_leaf && sample.has("_start");
            late_whole += usize::from(whole);
        }
    }
    let expected = seconds(loads.iter().map(|load| load.cpu_ns).sum()) * f64::from(FREQUENCY_HZ);
    need::figure(&format!(
        "{} loads of {us} us, {same} at the address of the last: {named} of {expected:.0} samples named, {late_whole} of {late} whole 100 ms after the load",
        loads.len()
    ));
    if as_f64(late_whole) < SHARE_MIN * as_f64(late) {
        let wrong = samples.iter().find(|sample| {
            let late = |load: &Load| {
                sample.time_ns > load.from_ns + KNOWN_NS
                    && sample.time_ns + CLOCKS_APART_NS < load.to_ns
            };
            loads.iter().any(late) && !(sample.has("_start") && sample.has("work"))
        });
        let shown = wrong.map(|sample| sample.shown()).unwrap_or_default();
        return Err(format!("{late_whole} of {late} whole 100 ms after the load, not so: {shown}"));
    }
    Ok(())
}

/// What happens to the file of a running program.
#[derive(Clone, Copy, Debug)]
enum Fate {
    Replaced,
    Removed,
}

/// When.
#[derive(Clone, Copy, Debug)]
enum Moment {
    BeforeTheAgent,
    AtOnce,
    Later,
}

/// CPU time of each program, and of those that wait for the agent's start.
const VICTIM_MS: u32 = 700;
const BEFORE_MS: u32 = 2500;
/// Frames of `dive` in each stack: the innermost jumps.
const DEPTH: u32 = 20;

#[test]
fn a_file_replaced_or_removed_while_it_runs() {
    if !need::bpf() {
        return;
    }
    let (Some(program), Some(relays)) = (workload::c("brief", &[]), workload::relays()) else {
        return;
    };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let start = |fate: Fate, moment: Moment| {
        let file = folder.path().join(format!("victim-{fate:?}-{moment:?}").to_lowercase());
        fs::copy(&program, &file).expect("a copy");
        let mut command = Command::new(&file);
        let cpu_ms = match moment {
            Moment::BeforeTheAgent => BEFORE_MS,
            Moment::AtOnce | Moment::Later => VICTIM_MS,
        };
        command.args([cpu_ms.to_string(), DEPTH.to_string()]);
        let process = Running::start(command);
        if !matches!(moment, Moment::AtOnce) {
            std::thread::sleep(Duration::from_millis(150));
        }
        strike(&file, fate, &relays[0]);
        (fate, moment, file, process)
    };
    let fates = [Fate::Replaced, Fate::Removed];
    let mut victims: Vec<_> =
        fates.iter().map(|&fate| start(fate, Moment::BeforeTheAgent)).collect();
    let sink = Sink::start();
    let agent = Agent::start(&sink.url(), &AgentOptions::at(FREQUENCY_HZ));
    for moment in [Moment::AtOnce, Moment::Later] {
        victims.extend(fates.iter().map(|&fate| start(fate, moment)));
    }
    let ended: Vec<_> = victims
        .into_iter()
        .map(|(fate, moment, file, process)| {
            let pid = process.pid();
            let cpu_ns: u64 = process.finish(Duration::from_secs(30)).trim().parse().expect("ns");
            (fate, moment, file, pid, cpu_ns)
        })
        .collect();
    agent.stop();
    let all = observations(&sink.requests());
    for (fate, moment, file, pid, cpu_ns) in ended {
        let samples: Vec<&Observation> = all.iter().filter(|sample| sample.pid == pid).collect();
        let what = format!("{fate:?} {moment:?}");
        by_the_old_file(&samples, &what, &file, cpu_ns, moment).expect("names by the old file");
    }
}

fn strike(file: &Path, fate: Fate, other: &Path) {
    match fate {
        Fate::Replaced => {
            let beside = file.with_extension("new");
            fs::copy(other, &beside).expect("a copy");
            fs::rename(&beside, file).expect("renamed over the running program");
        }
        Fate::Removed => fs::remove_file(file).expect("removed"),
    }
}

fn by_the_old_file(
    samples: &[&Observation],
    what: &str,
    file: &Path,
    cpu_ns: u64,
    moment: Moment,
) -> Result<(), String> {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let wrong = samples.iter().find(|sample| {
        ["leaf_a", "middle_a"].iter().any(|name| sample.has(name))
            // Until its exec it is the test's own program.
            || sample.executable != name && sample.user().any(|frame| frame.file == name)
    });
    if let Some(wrong) = wrong {
        return Err(format!("{what}: a sample of {} shows {}", wrong.executable, wrong.shown()));
    }
    let whole = |sample: &&&Observation| {
        let dives = sample.frames.iter().filter(|frame| frame.is("dive")).count();
        sample.has("_start") && dives == usize::try_from(DEPTH).expect("small")
    };
    let complete = samples.iter().filter(whole).count();
    let expected = seconds(cpu_ns) * f64::from(FREQUENCY_HZ);
    need::figure(&format!(
        "{what}: {complete} of {} samples whole by the old file, {expected:.0} in its whole life",
        samples.len()
    ));
    // The first 150 ms may lie before the agent, its start another second; start-up is no dive.
    let must = match moment {
        Moment::BeforeTheAgent => 0.9 * as_f64(samples.len()),
        Moment::AtOnce | Moment::Later => 0.9 * expected,
    };
    if samples.is_empty() || as_f64(complete) < must {
        let wrong = samples.iter().rev().find(|sample| !whole(sample));
        let shown = wrong.map(|sample| sample.shown()).unwrap_or_default();
        return Err(format!("{what}: {complete} whole, {must:.0} expected; not so: {shown}"));
    }
    Ok(())
}

/// How long its threads work.
const LEADERLESS_MS: u32 = 3000;

#[test]
fn the_main_thread_ends_first() {
    if !need::bpf() {
        return;
    }
    let Some(program) = workload::c("leaderless", &["-pthread"]) else { return };
    let start = |milliseconds: u32| {
        let mut command = Command::new(&program);
        command.arg(milliseconds.to_string());
        Running::start(command)
    };
    // One whose main thread ended before anybody looked, and one that starts under the agent's eyes.
    let before = start(60_000);
    std::thread::sleep(Duration::from_millis(100));
    let sink = Sink::start();
    let agent = Agent::start(&sink.url(), &AgentOptions::at(FREQUENCY_HZ));
    let after = start(LEADERLESS_MS);
    let ended = [("after", after), ("before", before)].map(|(when, process)| {
        if when == "before" {
            process.signal(rustix::process::Signal::TERM);
        }
        let pid = process.pid();
        let printed = process.finish(Duration::from_secs(30));
        let truth: LeaderlessTruth =
            serde_json::from_str(&printed).unwrap_or_else(|error| panic!("{error}: {printed}"));
        (when, pid, truth)
    });
    agent.stop();
    let all = observations(&sink.requests());
    for (when, pid, truth) in ended {
        let samples: Vec<&Observation> = all.iter().filter(|sample| sample.pid == pid).collect();
        leaderless(&samples, when, &truth).expect("whole without its main thread");
    }
}

#[derive(Debug, Deserialize)]
struct LeaderlessTruth {
    ns: u64,
    root: Root,
}

fn leaderless(samples: &[&Observation], when: &str, truth: &LeaderlessTruth) -> Result<(), String> {
    let whole = |sample: &&Observation| {
        let root = sample.frames.last().is_some_and(|last| {
            last.file == truth.root.file && last.address.abs_diff(truth.root.address) <= 1
        });
        root && sample.has("middle") && sample.executable == "leaderless-c"
    };
    let expected = seconds(truth.ns) * f64::from(FREQUENCY_HZ);
    // A new process is known after a moment.
    let known_ns = samples.iter().map(|sample| sample.time_ns).min().unwrap_or(0) + KNOWN_NS;
    let late: Vec<_> = samples.iter().copied().filter(|it| it.time_ns > known_ns).collect();
    let complete = late.iter().copied().filter(whole).count();
    need::figure(&format!(
        "{when} the agent: {complete} of {} samples whole after 100 ms, {expected:.0} in its whole life",
        late.len()
    ));
    let share = as_f64(complete) / as_f64(late.len().max(1));
    // Before the agent its first seconds are nobody's.
    if when == "after" {
        count_is(
            samples.len(),
            expected,
            seconds(truth.ns) / seconds(u64::from(LEADERLESS_MS) * 1_000_000) / 2.0,
        )?;
    }
    if late.len() < 300 || share < SHARE_MIN {
        let wrong = late.iter().rev().find(|sample| !whole(sample));
        let shown = wrong.map(|sample| sample.shown()).unwrap_or_default();
        return Err(format!("{when}: {share:.4} of {} whole; not so: {shown}", late.len()));
    }
    Ok(())
}
