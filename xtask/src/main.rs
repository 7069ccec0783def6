//! Every automation of the project, one command each. Nothing here is needed at run time, and CI only
//! calls what a person calls.
//!
//! A command first makes sure that it has what it needs ([`setup`]), says what it fetches, and does no
//! set-up the second time. What cannot be had is named with its cure.

mod command;
mod workspace;

mod setup;

mod build;
mod run;

mod codegen;
mod fuzz;
mod licences;
mod lint;
mod tidy;

mod kernels;
mod test;
mod test_output;

use anyhow::Result;
use clap::{Args, Parser, Subcommand};
use std::process::ExitCode;

/// Builds, runs, tests and checks Vesta.
#[derive(Debug, Parser)]
#[command(bin_name = "cargo xtask", after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

const EXAMPLES: &str = "\
Examples:
  cargo xtask run                  build everything, profile this host, print a URL
  cargo xtask build --release      target/release/vesta and target/release/vesta-agent
  cargo xtask test                 every test that this machine and this user can run
  cargo xtask test unit on_cpu     two stages of them
  cargo xtask lint                 what CI asks of the sources";

#[derive(Debug, Subcommand)]
enum Task {
    /// Build, then profile this host and print a URL with its flame graph.
    #[command(after_help = "Examples:
  cargo xtask run
  cargo xtask run --release -- --duration 60s
What follows `--` is handed to `vesta local`.")]
    Run(RunArgs),
    /// Build `vesta` and `vesta-agent`, the BPF programs and the page inside.
    #[command(after_help = "Examples:
  cargo xtask build
  cargo xtask build --release")]
    Build(BuildArgs),
    /// Run the tests, print the minutes of each stage beside its budget.
    #[command(after_help = "Examples:
  cargo xtask test                 everything
  cargo xtask test unit            unit tests of every package
  cargo xtask test on_cpu          one module of tests/e2e
  cargo xtask test kernels         the agent on Debian's kernels, 5.10 to the newest, under QEMU
  cargo xtask test kernels --filter 6.1
  cargo xtask test --list          the stages, with their budgets
Tests that need root, BPF or a tool that cannot be had are skipped with a printed reason and counted.
Exit code 3: nothing failed, but a kernel of the matrix could not be had.
VESTA_CORPUS names a folder with foreign profiles, if there is one.")]
    Test(test::TestArgs),
    /// Compile the BPF programs for the kernel and say how large they are.
    #[command(after_help = "Example:
  cargo xtask ebpf")]
    Ebpf,
    /// Build the page into collector/ui/dist, which is committed and embedded.
    #[command(after_help = "Examples:
  cargo xtask ui
  cargo xtask ui --check           type check, and fail if dist is not what the sources give")]
    Ui(CheckArgs),
    /// Everything that CI asks of the sources: format, clippy, tidy, invariants, licences, page, codegen.
    #[command(after_help = "Example:
  cargo xtask lint")]
    Lint,
    /// The house rules that no compiler checks: module docs, file sizes, words.
    #[command(after_help = "Example:
  cargo xtask tidy")]
    Tidy,
    /// Write the sources that are made from others.
    #[command(after_help = "Examples:
  cargo xtask codegen
  cargo xtask codegen --check      fail if a generated file is stale")]
    Codegen(CheckArgs),
    /// Feed hostile bytes to the parsers of foreign bytes, with libFuzzer.
    #[command(after_help = "Examples:
  cargo xtask fuzz                       every target for a minute
  cargo xtask fuzz elf cfi --seconds 600
  cargo xtask fuzz --seconds 600 --keep  add what reaches new code to tests/fuzz/corpus
What was found lies in target/fuzz/artifacts/TARGET; the command that shows it again is printed.")]
    Fuzz(fuzz::FuzzArgs),
    /// Measure what Vesta costs on this host, built with `--release`.
    #[command(after_help = "What:
  agent      CPU with BPF time, memory with maps, bytes on the wire, start-up, under five loads (root)
  collector  durable samples per second over OTLP/gRPC, latency of answers, of the whole program
  waiting    what measuring off-CPU time costs at 20,000 switches a second (root)
  store      the engine over a large seeded set: size, speed of writing and of answers, beside chdb; OTLP to durable
  backends   a set of pprof files pushed over HTTP, and questions about it
Examples:
  cargo xtask bench agent
  cargo xtask bench agent --beside PROFILER --json
  cargo xtask bench collector --seconds 60
  cargo xtask bench store --samples 100000000 --dir /var/tmp/store --json
  cargo xtask bench agent -- --help     the options of one")]
    Bench(BenchArgs),
}

#[derive(Debug, Args)]
struct BenchArgs {
    /// What to measure.
    #[arg(value_parser = ["agent", "backends", "collector", "store", "waiting"])]
    what: String,
    /// Options of the measurement.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

#[derive(Debug, Args)]
struct RunArgs {
    /// Optimise: slower to build, what a user would install.
    #[arg(long)]
    release: bool,
    /// Handed to `vesta local`.
    #[arg(last = true)]
    local: Vec<String>,
}

#[derive(Debug, Args)]
struct BuildArgs {
    /// Optimise: slower to build, what a user would install.
    #[arg(long)]
    release: bool,
}

#[derive(Debug, Args)]
struct CheckArgs {
    /// Change nothing; fail if something would change.
    #[arg(long)]
    check: bool,
}

/// Nothing failed, but a kernel of the matrix could not be had.
const KERNELS_MISSING: u8 = 3;

fn main() -> ExitCode {
    perform(Cli::parse().task).unwrap_or_else(|error| {
        command::say(&format!("failed: {error:#}"));
        ExitCode::FAILURE
    })
}

fn perform(task: Task) -> Result<ExitCode> {
    match task {
        Task::Test(args) => {
            return Ok(match test::test(&args)? {
                test::Ending::Whole => ExitCode::SUCCESS,
                test::Ending::KernelsMissing => ExitCode::from(KERNELS_MISSING),
            });
        }
        Task::Run(args) => run::run(args.release, &args.local),
        Task::Build(args) => build::programs(args.release).map(|_| ()),
        Task::Ebpf => build::ebpf(),
        Task::Ui(args) => build::ui(args.check),
        Task::Lint => lint::lint(),
        Task::Tidy => tidy::tidy(),
        Task::Codegen(args) => codegen::codegen(args.check),
        Task::Fuzz(args) => fuzz::fuzz(&args),
        Task::Bench(args) => build::bench(&args.what, &args.arguments),
    }?;
    Ok(ExitCode::SUCCESS)
}
