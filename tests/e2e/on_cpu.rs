//! Programs with a known truth: three chains of functions with 50, 30 and 20 % of the CPU time, in C, C++,
//! Rust and Go, none with frame pointers. Goal: what the agent sends is what the program's own clock says,
//! and no stack is cut short. Method: the program runs, the agent samples it at 997 Hz into a sink, and
//! each sample of the program after its first second is held against the truth it printed.

use crate::perf;
use std::time::Duration;
use tests::agent::AgentOptions;
use tests::observation::{Observation, observations};
use tests::profiles::now_ns;
use tests::statistics::{as_f64, count_is, share_is};
use tests::workload::{Language, Truth, seconds, start_split, truth};
use tests::{Agent, Sink, need, seed};

/// A prime, so that it walks in step with nothing.
const FREQUENCY_HZ: u32 = 997;

/// How long the program runs: 7 s of samples after the first, about 7,000 of them.
const SECONDS: u32 = 8;

/// Share of stacks that must reach the thread's first frame, and of leaves under their true caller.
const COMPLETE_SHARE_MIN: f64 = 0.995;

/// Mean depths of two unwinders may differ by so much.
const DEPTH_SHARE_MAX: f64 = 0.02;

#[test]
fn c() {
    check(Language::C, &NATIVE);
}

#[test]
fn cpp_with_exceptions_and_inlines() {
    check(Language::Cpp, &NATIVE);
}

#[test]
fn rust() {
    check(Language::Rust, &NATIVE);
}

#[test]
fn go() {
    check(Language::Go, &GO);
}

#[test]
fn go_without_symbols() {
    check(Language::GoStripped, &GO);
}

/// How the chains are called in a language.
struct Names {
    chains: [&'static str; 3],
    middles: [&'static str; 3],
    leaves: [&'static str; 3],
    /// What stands between the third leaf and its middle: the file of the library's sort, or functions of Go.
    between: Between,
    /// Functions that no caller stands above.
    roots: &'static [&'static str],
}

enum Between {
    File(&'static str),
    Functions(&'static [&'static str]),
}

const NATIVE: Names = Names {
    chains: ["chain_a", "chain_b", "chain_c"],
    middles: ["middle_a", "middle_b", "middle_c"],
    leaves: ["leaf_a", "leaf_b", "leaf_c"],
    between: Between::File("libc.so.6"),
    roots: &["_start", "clone", "clone3", "__clone", "__clone3"],
};

const GO: Names = Names {
    chains: ["chainA", "chainB", "chainC"],
    middles: ["middleA", "middleB", "middleC"],
    leaves: ["leafA", "leafB", "leafC"],
    between: Between::Functions(&["Less", "insertionSort", "pdqsort", "Sort"]),
    roots: &["goexit", "mstart", "rt0_go", "_rt0_amd64_linux", "mcall", "morestack", "systemstack"],
};

/// Samples of the program that are in no chain: its phases' own clock, and the threads of Go's runtime, which
/// weigh more where the chains get less of the CPU.
const OUTSIDE_SHARE_MAX: f64 = 0.03;

/// One repeat is allowed: the shares are a matter of chance, and the machine is not ours alone.
fn check(language: Language, names: &Names) {
    if !need::bpf() {
        return;
    }
    let Some(program) = language.split() else { return };
    let perf = match language {
        Language::Go | Language::GoStripped => None,
        _ => need::tool("VESTA_PERF", "perf"),
    };
    let first = run(&program, names, perf.as_deref());
    let Err(reason) = first else { return };
    need::figure(&format!("first try: {reason}"));
    run(&program, names, perf.as_deref()).expect("both tries failed");
}

/// Runs the program once under the agent; the error names everything that is wrong.
fn run(
    program: &std::path::Path,
    names: &Names,
    perf: Option<&std::path::Path>,
) -> Result<(), String> {
    let sink = Sink::start();
    let agent = Agent::start(&sink.url(), &AgentOptions::at(FREQUENCY_HZ));
    let start_ns = now_ns();
    let split = start_split(program, SECONDS.into(), seed());
    let pid = split.pid();
    let other = perf
        .map(|perf| perf::Recording::start(perf, pid, Duration::from_secs((SECONDS - 3).into())));
    let truth = truth(split);
    let other = other.map(perf::Recording::finish);
    agent.stop();
    let samples: Vec<Observation> =
        observations(&sink.requests()).into_iter().filter(|sample| sample.pid == pid).collect();
    let late: Vec<Observation> = samples
        .iter()
        .filter(|sample| sample.time_ns >= start_ns + 1_000_000_000)
        .cloned()
        .collect();
    let early = samples.len() - late.len();
    need::figure(&format!(
        "{}: seed {}, {early} samples in the first second, {} after it",
        truth.language,
        truth.seed,
        late.len()
    ));
    let checks = [
        count(&late, names, &truth),
        shares(&late, names, &truth),
        roots(&late, names, &truth),
        callers(&late, names),
        other.map_or(Ok(()), |other| depth(&late, &other)),
    ];
    let wrong: Vec<String> = checks.into_iter().filter_map(Result::err).collect();
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n")) }
}

/// All that the clock took after the first second arrived.
fn count(samples: &[Observation], names: &Names, truth: &Truth) -> Result<(), String> {
    let count = samples.iter().filter(|sample| in_chain_of(sample, names)).count();
    let late = seconds(truth.late_ns);
    let expected = late * f64::from(FREQUENCY_HZ);
    need::figure(&format!("{:.4} of the clock's samples arrived", as_f64(count) / expected));
    count_is(count, expected, late / f64::from(SECONDS - 1))
}

/// Each chain has its share.
fn shares(samples: &[Observation], names: &Names, truth: &Truth) -> Result<(), String> {
    let in_chain: Vec<usize> = names
        .chains
        .iter()
        .map(|chain| samples.iter().filter(|sample| sample.has(chain)).count())
        .collect();
    let count = in_chain.iter().sum();
    for ((hits, chain), share) in in_chain.iter().zip(names.chains).zip(truth.chains.shares()) {
        share_is(*hits, count, share).map_err(|wrong| format!("{chain}: {wrong}"))?;
    }
    let outside = samples.len() - count;
    let strange = samples.iter().find(|sample| !in_chain_of(sample, names));
    match strange {
        Some(strange) if as_f64(outside) > OUTSIDE_SHARE_MAX * as_f64(samples.len()) => {
            let count = samples.len();
            Err(format!("{outside} of {count} samples are in no chain: {}", strange.shown()))
        }
        _ => Ok(()),
    }
}

/// Stacks end where the thread began.
fn roots(samples: &[Observation], names: &Names, truth: &Truth) -> Result<(), String> {
    let whole = |sample: &Observation| {
        let Some(last) = sample.frames.last() else { return false };
        let by_name = names.roots.iter().any(|root| last.is(root));
        let by_address = truth
            .root
            .as_ref()
            .is_some_and(|root| last.file == root.file && last.address.abs_diff(root.address) <= 1);
        by_name || by_address
    };
    most(samples.iter(), whole, "stacks reach the first frame of their thread")
}

fn in_chain_of(sample: &Observation, names: &Names) -> bool {
    names.chains.iter().any(|chain| sample.has(chain))
}

/// Each leaf has its true caller above it.
fn callers(samples: &[Observation], names: &Names) -> Result<(), String> {
    for (index, (leaf, middle)) in names.leaves.iter().zip(names.middles).enumerate() {
        let under_leaf =
            samples.iter().filter(|sample| sample.user().next().is_some_and(|it| it.is(leaf)));
        let has_caller = |sample: &Observation| {
            let mut above = sample.user().skip(1);
            if index < 2 {
                return above.next().is_some_and(|caller| caller.is(middle));
            }
            // At least one frame of the sort, then the function that called it.
            let sorts = |frame: &tests::observation::Frame| match &names.between {
                Between::File(file) => frame.file == *file,
                Between::Functions(functions) => functions
                    .iter()
                    .any(|name| frame.functions.iter().any(|function| function.contains(name))),
            };
            let mut sorted = 0;
            let caller = above.find(|frame| {
                let sort = sorts(frame);
                sorted += usize::from(sort);
                !sort
            });
            sorted > 0 && caller.is_some_and(|caller| caller.is(middle))
        };
        let count = under_leaf.clone().count();
        if count < samples.len() / 10 {
            return Err(format!("{leaf} is the leaf of only {count} of {} samples", samples.len()));
        }
        most(under_leaf, has_caller, &format!("samples of {leaf} have their true caller"))?;
    }
    Ok(())
}

/// Two unwinders agree on how deep the stacks are.
fn depth(samples: &[Observation], other: &perf::Depths) -> Result<(), String> {
    let frames: usize = samples.iter().map(|sample| sample.user().count()).sum();
    let mean = as_f64(frames) / as_f64(samples.len());
    need::figure(&format!(
        "mean depth {mean:.3}, perf {:.3} of {} samples",
        other.mean, other.samples
    ));
    let share = (mean - other.mean).abs() / other.mean;
    if share <= DEPTH_SHARE_MAX {
        return Ok(());
    }
    Err(format!("mean depth {mean:.3}, by perf {:.3}", other.mean))
}

/// At least [`COMPLETE_SHARE_MIN`] of the samples are so; the error shows one that is not.
fn most<'a>(
    samples: impl Iterator<Item = &'a Observation>,
    is_so: impl Fn(&Observation) -> bool,
    what: &str,
) -> Result<(), String> {
    let samples: Vec<&Observation> = samples.collect();
    let wrong: Vec<&&Observation> = samples.iter().filter(|sample| !is_so(sample)).collect();
    let share = 1.0 - as_f64(wrong.len()) / as_f64(samples.len().max(1));
    need::figure(&format!("{share:.4} of {} {what}", samples.len()));
    match wrong.first() {
        Some(wrong) if share < COMPLETE_SHARE_MIN || samples.is_empty() => {
            Err(format!("{share:.4} of {} {what}; not so: {}", samples.len(), wrong.shown()))
        }
        _ => Ok(()),
    }
}
