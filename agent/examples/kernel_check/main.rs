//! Tries the agent on the kernel that runs: `cargo xtask test kernels` boots one Debian kernel after the
//! other in a virtual machine whose only programs are this one and its targets, as process 1.
//!
//! Each form of the programs is loaded, its lifecycle records and its ledger are looked at, the engine
//! samples programs with known stacks, and nothing may be left loaded. What came of it are lines on
//! standard output ([`report`]); who judges a whole run is xtask.
#![expect(clippy::print_stdout, reason = "its lines are its answer")]

mod hotplug;
mod left;
mod lifecycle;
mod load;
mod machine;
mod module;
mod report;
mod stacks;
mod targets;
mod unseen;

use agent::bpf::{Form, FormChoice};
use agent::kernel::KernelFacts;
use anyhow::Result;
use report::{Report, Verdict};
use std::path::{Path, PathBuf};
use targets::Targets;

/// Samples per second and CPU: an emulated CPU has time for these.
const FREQUENCY_HZ: u32 = 197;

fn main() -> Result<()> {
    let guest = machine::Guest::enter()?;
    let argument = std::env::args_os().nth(1);
    let folder = argument.map_or_else(|| PathBuf::from("/targets"), PathBuf::from);
    tracing_subscriber::fmt().with_max_level(tracing::Level::WARN).with_ansi(false).init();
    let outcome = check(&folder);
    if let Err(error) = &outcome {
        Report::OF_KERNEL.line("run", Verdict::Failed, &[("error", &format!("{error:#}"))]);
    }
    guest.leave()?;
    outcome
}

fn check(folder: &Path) -> Result<()> {
    let facts = KernelFacts::read(Path::new("/proc"));
    let version = facts.check(false)?;
    Report::OF_KERNEL.line(
        "kernel",
        Verdict::Passed,
        &[("version", &version), ("release", &facts.release)],
    );
    load::doctor();
    for (form, choice) in
        [(Form::BpfLoop, FormChoice::BpfLoop), (Form::TailCalls, FormChoice::TailCalls)]
    {
        let report = Report::of(form);
        let before = left::Loaded::now();
        if let Some(sampler) = load::check(report, choice, version, &before) {
            lifecycle::check(report, sampler, folder)?;
            let targets = Targets::start(folder)?;
            stacks::check(report, choice, &targets)?;
        }
        left::check(report, &before);
    }
    Report::OF_KERNEL.line("run", Verdict::Passed, &[]);
    Ok(())
}
