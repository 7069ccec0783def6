//! `cargo xtask fuzz`: hostile bytes for every parser of foreign bytes, by libFuzzer. Builds the targets of
//! tests/fuzz with coverage instrumentation on the stable toolchain, in a target folder of its own, and runs
//! them on what is committed in tests/fuzz/corpus and what earlier runs found.
//!
//! The stage `fuzz` of `cargo xtask test` replays the committed corpora and fuzzes each target for a moment.

use crate::build::cargo;
use crate::command::{command, output, print, run, say, shown};
use crate::test_output::Counts;
use crate::workspace::{root, target};
use anyhow::{Context as _, Result, bail};
use clap::Args;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// What to fuzz.
#[derive(Debug, Args)]
pub(crate) struct FuzzArgs {
    /// Targets; all if none is named.
    targets: Vec<String>,
    /// Seconds for each target.
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: u64,
    /// Targets that run at once.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=64))]
    jobs: u8,
    /// Afterwards keep what reaches new code, smallest first, in tests/fuzz/corpus.
    #[arg(long)]
    keep: bool,
    /// Name the targets, run nothing.
    #[arg(long)]
    list: bool,
}

/// Seconds of each target in `cargo xtask test`.
const TEST_SECONDS: u64 = 20;
/// An input that takes longer than this is a finding, seconds: parsers stand between a process that starts
/// and its first whole stack.
const INPUT_SECONDS_MAX: u64 = 5;
/// Memory above which a run is a finding, MiB: the limits of the parsers stay well below.
const MEMORY_MIB_MAX: u64 = 1024;
/// Longest input, bytes: what small executables have.
const INPUT_BYTES_MAX: u64 = 64 << 10;
/// Largest input that is committed, bytes.
const KEPT_BYTES_MAX: u64 = 4096;
/// Inputs of one target that are committed.
const KEPT_MAX: usize = 200;

/// What libFuzzer wants of the compiler; all of it is stable.
const RUSTFLAGS: &str = "--cfg fuzzing -Cpasses=sancov-module \
    -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
    -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares \
    -Cdebug-assertions -Coverflow-checks -Ccodegen-units=1";

/// One target that was run.
struct Ran {
    target: String,
    log: PathBuf,
    succeeded: bool,
}

/// Runs the targets; fails if one found something.
pub(crate) fn fuzz(args: &FuzzArgs) -> Result<()> {
    let known = targets()?;
    if args.list {
        known.iter().for_each(|target| print(target));
        return Ok(());
    }
    if let Some(unknown) = args.targets.iter().find(|&name| !known.contains(name)) {
        bail!("no target {unknown}; there are: {}", known.join(" "));
    }
    let wanted = |name: &String| args.targets.is_empty() || args.targets.contains(name);
    let wanted: Vec<String> = known.into_iter().filter(wanted).collect();
    build()?;
    let ran = run_all(&wanted, args.seconds, usize::from(args.jobs))?;
    if args.keep {
        ran.iter().filter(|ran| ran.succeeded).try_for_each(|ran| keep(&ran.target))?;
    }
    let failed: Vec<&str> =
        ran.iter().filter(|ran| !ran.succeeded).map(|ran| ran.target.as_str()).collect();
    if !failed.is_empty() {
        bail!("findings in: {}", failed.join(" "));
    }
    Ok(())
}

/// The stage of `cargo xtask test`: one test a target.
pub(crate) fn stage() -> Result<(Counts, Vec<String>)> {
    build()?;
    let ran = run_all(&targets()?, TEST_SECONDS, 2)?;
    let passed = ran.iter().filter(|ran| ran.succeeded).count() as u64;
    let found = ran.into_iter().filter(|ran| !ran.succeeded).map(|ran| ran.target);
    let found: Vec<String> = found.collect();
    Ok((Counts { passed, failed: found.len() as u64, skipped: 0 }, found))
}

/// The targets: one file each.
fn targets() -> Result<Vec<String>> {
    let folder = root().join("tests/fuzz/targets");
    let entries =
        std::fs::read_dir(&folder).with_context(|| format!("read {}", folder.display()))?;
    let mut names: Vec<String> = entries
        .filter_map(|entry| entry.ok()?.path().file_stem()?.to_str().map(str::to_owned))
        .collect();
    names.sort_unstable();
    Ok(names)
}

/// This host's target triple. Named, so that build scripts and procedural macros are not instrumented.
fn triple() -> Result<String> {
    let version = output(command("rustc").arg("-vV"))?;
    let line = version.lines().find_map(|line| line.strip_prefix("host: "));
    line.map(str::to_owned).context("rustc -vV names no host")
}

/// Where the instrumented build lies: other flags, so a folder of its own.
fn folder() -> PathBuf {
    target().join("fuzz")
}

fn build() -> Result<()> {
    say("building the fuzz targets");
    let mut cargo = cargo();
    cargo.args(["build", "--quiet", "--package", "fuzz", "--bins", "--target", &triple()?]);
    cargo.env("RUSTFLAGS", RUSTFLAGS).env("VESTA_BPF_OBJECT", "none");
    run(cargo.env("CARGO_TARGET_DIR", folder()))
}

/// Runs `at_once` targets side by side until all had their time.
fn run_all(targets: &[String], seconds: u64, at_once: usize) -> Result<Vec<Ran>> {
    let mut ran = Vec::new();
    for group in targets.chunks(at_once.max(1)) {
        let started = group.iter().map(|target| start(target, seconds));
        let started = started.collect::<Result<Vec<_>>>()?;
        for (target, (mut child, log)) in group.iter().zip(started) {
            let status = wait(&mut child, Duration::from_secs(seconds + 60))
                .with_context(|| format!("target {target}"))?;
            ran.push(Ran { target: target.clone(), log, succeeded: status });
        }
    }
    ran.iter().try_for_each(report)?;
    Ok(ran)
}

/// Starts one target; its own growing corpus comes first, then the committed one, which is only read.
fn start(target: &str, seconds: u64) -> Result<(Child, PathBuf)> {
    let found = folder().join("corpus").join(target);
    let artifacts = folder().join("artifacts").join(target);
    for folder in [&found, &artifacts] {
        std::fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))?;
    }
    let log = artifacts.join("log");
    let mut fuzzer = program(target)?;
    fuzzer.arg(&found).arg(committed(target));
    fuzzer.arg(format!("-max_total_time={seconds}"));
    fuzzer.arg(format!("-timeout={INPUT_SECONDS_MAX}"));
    fuzzer.arg(format!("-rss_limit_mb={MEMORY_MIB_MAX}"));
    fuzzer.arg(format!("-max_len={INPUT_BYTES_MAX}"));
    fuzzer.arg(format!("-artifact_prefix={}/", artifacts.display()));
    fuzzer.arg("-print_final_stats=1");
    let file = std::fs::File::create(&log).with_context(|| format!("create {}", log.display()))?;
    fuzzer.stdout(Stdio::null()).stderr(file);
    let child = fuzzer.spawn().with_context(|| format!("start {}", shown(&fuzzer)))?;
    Ok((child, log))
}

fn program(target: &str) -> Result<Command> {
    Ok(command(folder().join(triple()?).join("debug").join(target)))
}

fn committed(target: &str) -> PathBuf {
    root().join("tests/fuzz/corpus").join(target)
}

/// True if the fuzzer ended well. One that does not end in time is ended, and is a finding.
fn wait(child: &mut Child, longest: Duration) -> Result<bool> {
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait().context("wait for a fuzzer")? {
            return Ok(status.success());
        }
        if start.elapsed() > longest {
            child.kill().context("end a fuzzer")?;
            child.wait().context("wait for a fuzzer")?;
            return Ok(false);
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// One line for a target; for a finding, where it is and how to see it again.
fn report(ran: &Ran) -> Result<()> {
    let Ran { target, log, succeeded } = ran;
    let text = std::fs::read(log).with_context(|| format!("read {}", log.display()))?;
    let text = String::from_utf8_lossy(&text);
    let statistic = |key: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(key));
        line.map_or("?", str::trim).to_owned()
    };
    if *succeeded {
        let runs = statistic("stat::number_of_executed_units:");
        let memory = statistic("stat::peak_rss_mb:");
        let reached = text.lines().rev().find_map(|line| line.split_once(" cov: "));
        let edges = reached.and_then(|(_, rest)| rest.split_whitespace().next()).unwrap_or("?");
        print(&format!("fuzz {target}: ok, {runs} inputs, {edges} edges, {memory} MiB at most"));
        return Ok(());
    }
    let input = text.lines().find_map(|line| line.split_once("Test unit written to "));
    print(&format!("fuzz {target}: FAILED, the log is {}", log.display()));
    text.lines().rev().take(30).collect::<Vec<_>>().iter().rev().for_each(|line| print(line));
    if let Some((_, input)) = input {
        print(&format!("see it again: {} {}", shown(&program(target)?), input.trim()));
    }
    Ok(())
}

/// Moves what reaches new code into the committed corpus, without what is large.
fn keep(target: &str) -> Result<()> {
    let merged = folder().join("merged").join(target);
    if merged.exists() {
        std::fs::remove_dir_all(&merged).with_context(|| format!("empty {}", merged.display()))?;
    }
    std::fs::create_dir_all(&merged).with_context(|| format!("create {}", merged.display()))?;
    let found = folder().join("corpus").join(target);
    let kept = committed(target);
    run(program(target)?.arg("-merge=1").arg(&merged).arg(&kept).arg(&found))?;
    let mut inputs = sizes(&merged)?;
    inputs.retain(|(size, _)| *size <= KEPT_BYTES_MAX);
    inputs.truncate(KEPT_MAX);
    for (_, input) in inputs {
        let name = input.file_name().context("an input without a name")?;
        std::fs::copy(&input, kept.join(name)).with_context(|| format!("keep {name:?}"))?;
    }
    Ok(())
}

/// The files of a folder, smallest first.
fn sizes(folder: &Path) -> Result<Vec<(u64, PathBuf)>> {
    let entries =
        std::fs::read_dir(folder).with_context(|| format!("read {}", folder.display()))?;
    let mut files = Vec::new();
    for entry in entries {
        let entry = entry.with_context(|| format!("read {}", folder.display()))?;
        files.push((entry.metadata().context("read the size of an input")?.len(), entry.path()));
    }
    files.sort_unstable();
    Ok(files)
}
