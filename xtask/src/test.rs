//! `cargo xtask test`: every test that this machine and this user can run, in stages, each with its minutes
//! beside the budget of .ci/budget.tsv.
//!
//! The stages: `unit` (every package), `page` (the page's own tests), `fuzz` (every fuzz target for a
//! moment), `kernels` (other kernels), then one for each module of tests/e2e. All are built with the one
//! profile `dev`. Tests find what they need through VESTA_* variables that
//! are set here; a tool that cannot be had is named with its cure, and the tests that need it say so.

use crate::build::{PACKAGES, cargo, cargo_with_bpf, programs};
use crate::command::{command, print, run, say};
use crate::fuzz;
use crate::kernels::{self, Machines, Matrix};
use crate::setup;
use crate::test_output::{Counts, Said, read};
use crate::workspace::{is_root, root};
use anyhow::{Context as _, Result, bail};
use clap::Args;
use std::io::BufReader;
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::time::Instant;

/// What to run.
#[derive(Debug, Args)]
pub(crate) struct TestArgs {
    /// Stages to run: `unit`, `page`, `fuzz`, `kernels`, or modules of tests/e2e; all if none is named.
    stages: Vec<String>,
    /// Only tests whose name contains this.
    #[arg(long)]
    filter: Option<String>,
    /// Name the stages and their budgets, run nothing.
    #[arg(long)]
    list: bool,
}

/// A stage that was run.
struct Ran {
    stage: String,
    minutes: f64,
    counts: Counts,
    succeeded: bool,
    /// What failed, to be said once more at the end: the log of a long run is seldom read from its beginning.
    failures: Vec<String>,
    /// Kernels that could not be had.
    not_had: Vec<String>,
}

/// How tests end that did not fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// Whatever this machine and this user can run was run.
    Whole,
    /// A kernel of the matrix could not be had.
    KernelsMissing,
}

/// Runs the stages and prints the table and the closing line.
pub(crate) fn test(args: &TestArgs) -> Result<Ending> {
    let known = stages()?;
    if args.list {
        known.iter().for_each(|stage| print(&format!("{stage}\t{}", budget(stage))));
        return Ok(Ending::Whole);
    }
    if let Some(unknown) = args.stages.iter().find(|&stage| !known.contains(stage)) {
        bail!("no stage {unknown}; there are: {}", known.join(" "));
    }
    let wanted = |stage: &String| args.stages.is_empty() || args.stages.contains(stage);
    let stages: Vec<String> = known.into_iter().filter(wanted).collect();
    let mut ran = Vec::new();
    let start = Instant::now();
    let tools = Tools::find(&stages);
    let mut machines = stages.iter().any(|stage| stage == "kernels").then(Machines::find);
    ran.push(Ran::since("set-up", start));
    let start = Instant::now();
    // The kernels have a program of their own.
    let alone = stages.iter().all(|stage| stage == "kernels");
    let folder = if alone { PathBuf::new() } else { programs(false)? };
    compile_tests(&stages)?;
    ran.push(Ran::since("build", start));
    for stage in stages {
        say(&format!("stage {stage}"));
        let start = Instant::now();
        let filter = args.filter.as_deref();
        let result = match machines.take_if(|_| stage == "kernels") {
            Some(machines) => {
                kernels::run(machines, filter).map(|matrix| Ran::kernels(matrix, start))
            }
            None => perform(&stage, &tools, &folder, filter),
        };
        // A stage that could not even begin has failed; the others are run all the same.
        let result = result.unwrap_or_else(|error| {
            print(&format!("stage {stage} could not be run: {error:#}"));
            let counts = Counts { failed: 1, ..Counts::default() };
            let failures = vec![format!("could not be run: {error:#}")];
            Ran { counts, succeeded: false, failures, ..Ran::since(&stage, start) }
        });
        ran.push(Ran { minutes: minutes_since(start), ..result });
    }
    report(&ran, &tools)
}

impl Ran {
    fn since(stage: &str, start: Instant) -> Self {
        let minutes = minutes_since(start);
        let (counts, failures, not_had) = Default::default();
        Self { stage: stage.to_owned(), minutes, counts, succeeded: true, failures, not_had }
    }

    fn kernels(matrix: Matrix, start: Instant) -> Self {
        let Matrix { counts, faults, not_had } = matrix;
        let succeeded = faults.is_empty();
        Self { counts, succeeded, failures: faults, not_had, ..Self::since("kernels", start) }
    }
}

fn minutes_since(start: Instant) -> f64 {
    start.elapsed().as_secs_f64() / 60.0
}

/// Prints minutes against the budget, then the closing line; fails if anything failed.
fn report(ran: &[Ran], tools: &Tools) -> Result<Ending> {
    print("stage\tminutes\tbudget\tpassed\tfailed\tskipped");
    let mut total = Counts::default();
    for Ran { stage, minutes, counts, succeeded, .. } in ran {
        let Counts { passed, failed, skipped } = counts;
        let allowed = budget(stage);
        let over = allowed.parse().is_ok_and(|allowed: f64| *minutes > allowed);
        let note = match (succeeded, over) {
            (false, _) => "\tFAILED",
            (true, true) => "\tover its budget",
            (true, false) => "",
        };
        print(&format!("{stage}\t{minutes:.1}\t{allowed}\t{passed}\t{failed}\t{skipped}{note}"));
        total += *counts;
    }
    for Ran { stage, failures, .. } in ran {
        failures.iter().for_each(|failure| print(&format!("failed: {stage}: {failure}")));
    }
    for missing in &tools.missing {
        print(&format!("not had: {missing}"));
    }
    let not_had: Vec<&String> = ran.iter().flat_map(|ran| &ran.not_had).collect();
    not_had.iter().for_each(|kernel| print(&format!("skipped: kernel {kernel}")));
    let broken: Vec<&str> =
        ran.iter().filter(|ran| !ran.succeeded).map(|ran| ran.stage.as_str()).collect();
    // A runner that died without counting its failure must not close with `0 failed`.
    if !broken.is_empty() && total.failed == 0 {
        total.failed = broken.len() as u64;
    }
    let Counts { passed, failed, skipped } = total;
    print(&format!("{passed} passed, {failed} failed, {skipped} skipped"));
    if !broken.is_empty() {
        bail!("failed stages: {}", broken.join(" "));
    }
    Ok(if not_had.is_empty() { Ending::Whole } else { Ending::KernelsMissing })
}

/// The budget of a stage in minutes, as text.
fn budget(stage: &str) -> String {
    let table = std::fs::read_to_string(root().join(".ci/budget.tsv")).unwrap_or_default();
    let row = table.lines().find_map(|line| line.strip_prefix(stage)?.strip_prefix('\t'));
    row.unwrap_or("-").trim().to_owned()
}

/// Stages that are no module of tests/e2e.
const OWN_STAGES: [&str; 4] = ["unit", "page", "fuzz", "kernels"];

/// Unit tests that load BPF programs and sample this host: one by one, for they measure, and would meet
/// each other's programs.
const LIVE: [&str; 4] = ["bpf::tests", "engine::tests", "engine::load_tests", "unwind::live_tests"];

/// The own stages, then the modules of tests/e2e/main.rs in its order.
fn stages() -> Result<Vec<String>> {
    let main = root().join("tests/e2e/main.rs");
    let text =
        std::fs::read_to_string(&main).with_context(|| format!("read {}", main.display()))?;
    let modules = text.lines().filter_map(|line| line.strip_prefix("mod ")?.strip_suffix(';'));
    // A module that only helps others is no stage: it would pass by doing nothing.
    let folder = root().join("tests/e2e");
    let has_tests = |module: &&str| {
        let text = std::fs::read_to_string(folder.join(format!("{module}.rs")));
        text.is_ok_and(|text| text.contains("#[test]"))
    };
    let modules = modules.filter(has_tests);
    Ok(OWN_STAGES.into_iter().chain(modules).map(str::to_owned).collect())
}

/// Builds the tests of the stages; those of the packages alone take minutes.
fn compile_tests(stages: &[String]) -> Result<()> {
    if stages.iter().all(|stage| ["page", "fuzz", "kernels"].contains(&stage.as_str())) {
        return Ok(());
    }
    say("building the tests");
    let mut cargo = cargo_with_bpf()?;
    cargo.args(["test", "--no-run", "--quiet"]).args(PACKAGES);
    if stages.iter().any(|stage| stage == "unit") {
        cargo.args(["--lib", "--bins"]);
    }
    if stages.iter().any(|stage| !OWN_STAGES.contains(&stage.as_str())) {
        cargo.args(["--test", "e2e"]);
    }
    run(&mut cargo)
}

fn perform(
    stage: &str,
    tools: &Tools,
    programs: &std::path::Path,
    filter: Option<&str>,
) -> Result<Ran> {
    let mut ran = Ran::since(stage, Instant::now());
    if stage == "fuzz" {
        let (counts, failures) = fuzz::stage()?;
        return Ok(Ran { counts, succeeded: failures.is_empty(), failures, ..ran });
    }
    for mut runner in runners(stage, filter)? {
        tools.apply(&mut runner);
        runner.env("VESTA_PROGRAMS", programs);
        let (said, status) = listen(&mut runner)?;
        ran.counts += said.counts;
        ran.failures.extend(said.failures(status.success(), &status.to_string()));
        ran.succeeded &= status.success();
    }
    Ok(ran)
}

/// The commands of a stage.
fn runners(stage: &str, filter: Option<&str>) -> Result<Vec<Command>> {
    let libtest = |mut cargo: Command, filter: Option<&str>, one_by_one: bool| {
        cargo.args(["--no-fail-fast", "--", "--show-output"]);
        if one_by_one {
            cargo.arg("--test-threads=1");
        }
        cargo.args(filter);
        cargo
    };
    match stage {
        "unit" => {
            let mut unit = cargo_with_bpf()?;
            unit.args(["test", "--quiet"]).args(PACKAGES).args(["--lib", "--bins"]);
            let mut own = cargo();
            own.args(["test", "--quiet", "-p", "xtask"]);
            let own = libtest(own, filter, false);
            if filter.is_some() {
                return Ok(vec![libtest(unit, filter, false), own]);
            }
            let mut alone = cargo_with_bpf()?;
            alone.args(["test", "--quiet"]).args(PACKAGES).args(["--lib", "--bins"]);
            let mut unit = libtest(unit, None, false);
            unit.args(LIVE.iter().flat_map(|tests| ["--skip", tests]));
            let mut alone = libtest(alone, None, true);
            alone.args(LIVE);
            Ok(vec![unit, alone, own])
        }
        "page" => {
            let page = root().join("collector/ui");
            setup::npm_packages(&page)?;
            let mut npm = command("npm");
            npm.args(["test", "--silent"]).current_dir(page);
            Ok(vec![npm])
        }
        module => {
            if module == "browser" {
                setup::npm_packages(&root().join("collector/ui"))?;
            }
            // One by one: each of them measures, on two cores.
            let mut e2e = cargo_with_bpf()?;
            e2e.args(["test", "--quiet"]).args(PACKAGES).args(["--test", "e2e"]);
            let filter = filter.unwrap_or_default();
            let name = if filter.starts_with(module) {
                filter.to_owned()
            } else {
                format!("{module}::{filter}")
            };
            Ok(vec![libtest(e2e, Some(&name), true)])
        }
    }
}

/// Runs a test runner and shows its output.
fn listen(runner: &mut Command) -> Result<(Said, ExitStatus)> {
    let mut child = runner
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("start {}", crate::command::shown(runner)))?;
    let output = child.stdout.take().context("standard output was asked for")?;
    let said = read(BufReader::new(output), std::io::stdout())?;
    Ok((said, child.wait()?))
}

/// What some programs are for.
const HOST: &str = "the load of a whole host";

/// `java`, with the compiler that lets it run a source file.
fn java() -> Result<PathBuf> {
    setup::program("javac", "default-jdk-headless", HOST)?;
    setup::program("java", "default-jdk-headless", HOST)
}

/// What tests find through the environment.
struct Tools {
    variables: Vec<(&'static str, PathBuf)>,
    missing: Vec<String>,
}

type Find = fn() -> Result<PathBuf>;

impl Tools {
    /// Finds or fetches the tools that the stages need.
    fn find(stages: &[String]) -> Self {
        let needs: [(&str, Find, &[&str]); 19] = [
            ("VESTA_CC", || setup::program("gcc", "gcc", "the C workload"), &[]),
            ("VESTA_CXX", || setup::program("g++", "g++", "the C++ workload"), &[]),
            ("VESTA_GO", setup::go, &[]),
            (
                "VESTA_PERF",
                || setup::program("perf", "linux-perf", "the comparison of depths"),
                &["on_cpu", "stacks"],
            ),
            ("VESTA_OPENSSL", || setup::program("openssl", "openssl", "its assembly"), &["stacks"]),
            ("VESTA_GDB", || setup::program("gdb", "gdb", "the depth of deep stacks"), &["stacks"]),
            (
                "VESTA_MUSL_CC",
                || setup::program("musl-gcc", "musl-tools", "musl"),
                &["stacks", "locks"],
            ),
            ("VESTA_LLD", || setup::program("ld.lld", "lld", "linking by lld"), &["stacks"]),
            (
                "VESTA_GOLD",
                || setup::program("ld.gold", "binutils", "linking by gold"),
                &["stacks"],
            ),
            ("VESTA_BOLT", || setup::newest_program("llvm-bolt", "bolt", "BOLT"), &["stacks"]),
            (
                "VESTA_MKSQUASHFS",
                || setup::program("mksquashfs", "squashfs-tools", "programs in an image"),
                &["stacks"],
            ),
            (
                "VESTA_UNSHARE",
                || setup::program("unshare", "util-linux", "programs in namespaces"),
                &["stacks"],
            ),
            ("VESTA_PYTHON", setup::python, &["otlp_bytes"]),
            (
                "VESTA_CHROMIUM",
                || setup::program("chromium", "chromium", "the browser test"),
                &["browser", "host"],
            ),
            (
                "VESTA_NODE",
                || setup::program("node", "nodejs", "the browser test"),
                &["browser", "host"],
            ),
            ("VESTA_JAVA", java, &["host", "locks"]),
            ("VESTA_PERL", || setup::program("perl", "perl", HOST), &["host"]),
            ("VESTA_PYTHON3", || setup::program("python3", "python3", HOST), &["host"]),
            ("VESTA_OTELCOL", setup::opentelemetry_collector, &["otel_collector"]),
        ];
        let mut tools = Self { variables: Vec::new(), missing: Vec::new() };
        let end_to_end = stages.iter().any(|stage| !OWN_STAGES.contains(&stage.as_str()));
        for (variable, find, users) in needs {
            let used = users.iter().any(|user| stages.iter().any(|stage| stage == user));
            if !end_to_end || !(used || users.is_empty()) {
                continue;
            }
            match find() {
                Ok(path) => tools.variables.push((variable, path)),
                Err(error) => tools.missing.push(format!("{error:#}")),
            }
        }
        tools.corpus();
        if !is_root() {
            tools
                .missing
                .push("root: tests with real BPF are skipped; cure: run as root".to_owned());
        }
        tools.missing.iter().for_each(|missing| say(missing));
        tools
    }

    /// The corpus of foreign profiles: `VESTA_CORPUS`, else beside the repository.
    fn corpus(&mut self) {
        if std::env::var_os("VESTA_CORPUS").is_some() {
            return; // inherited
        }
        let beside = root().join("../shared/corpus");
        match beside.canonicalize() {
            Ok(corpus) => self.variables.push(("VESTA_CORPUS", corpus)),
            Err(_) => self.missing.push("the corpus: VESTA_CORPUS is not set".to_owned()),
        }
    }

    fn apply(&self, runner: &mut Command) {
        runner.envs(self.variables.iter().map(|(name, path)| (name, path)));
    }
}
