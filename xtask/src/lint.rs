//! What CI asks of the sources, in the order of what fails fastest. Every check runs, then the failed ones
//! are named together.

use crate::build::{PACKAGES, cargo, cargo_with_bpf, ui};
use crate::command::{print, run, say, succeeds};
use crate::{codegen, licences, tidy};
use anyhow::{Result, bail};
use std::process::Command;
use std::time::Instant;

type Check = (&'static str, fn() -> Result<()>);

const CHECKS: [Check; 8] = [
    ("format", format),
    ("tidy", tidy::tidy),
    ("invariants", invariants),
    ("licences", licences::check),
    ("codegen", || codegen::codegen(true)),
    ("page", || ui(true)),
    ("clippy of the BPF programs", clippy_bpf),
    ("clippy", clippy),
];

/// Runs every check.
pub(crate) fn lint() -> Result<()> {
    let mut failed = Vec::new();
    for (name, check) in CHECKS {
        say(&format!("lint: {name}"));
        let start = Instant::now();
        let result = check();
        let seconds = start.elapsed().as_secs_f64();
        match result {
            Ok(()) => print(&format!("lint {name}: ok ({seconds:.1} s)")),
            Err(error) => {
                print(&format!("lint {name}: FAILED ({seconds:.1} s)\n{error:#}"));
                failed.push(name);
            }
        }
    }
    if !failed.is_empty() {
        bail!("{} of {} checks: {}", failed.len(), CHECKS.len(), failed.join(", "));
    }
    Ok(())
}

fn format() -> Result<()> {
    run(cargo().args(["fmt", "--all", "--check"]))
}

fn clippy() -> Result<()> {
    run(cargo_with_bpf()?.arg("clippy").args(PACKAGES).args([
        "--all-targets",
        "--quiet",
        "--",
        "-D",
        "warnings",
    ]))?;
    run(cargo().args([
        "clippy",
        "-p",
        "xtask",
        "--all-targets",
        "--all-features",
        "--quiet",
        "--",
        "-D",
        "warnings",
    ]))
}

/// The programs lint on the host's target without any BPF tool; the flag stands in for the missing
/// unwinder of `no_std`.
fn clippy_bpf() -> Result<()> {
    let mut clippy = cargo();
    clippy.args(["clippy", "-p", "agent-ebpf", "--features", "programs", "--bins", "--quiet"]);
    run(clippy.args(["--", "-C", "panic=abort", "-D", "warnings"]))
}

/// The absences of ARCHITECTURE.md that Cargo can show.
fn invariants() -> Result<()> {
    let absent = |package: &str, dependency: &str| -> Result<()> {
        let mut tree = cargo();
        tree.args(["tree", "--locked", "-p", package, "-e", "normal,build", "-i", dependency]);
        if succeeds(&mut tree) {
            bail!("{package} depends on {dependency}");
        }
        Ok(())
    };
    // A typing error would make every absence true: the agent must have what the others must not.
    if !succeeds(cargo().args(["tree", "--locked", "-p", "agent", "-i", "aya"])) {
        bail!("cargo tree does not find aya below agent, so it proves nothing below collector");
    }
    for (package, dependency) in
        [("collector", "aya"), ("collector", "agent"), ("proto", "aya"), ("agent", "collector")]
    {
        absent(package, dependency)?;
    }
    let mut abi: Command = cargo();
    abi.args(["tree", "--locked", "-p", "agent-ebpf", "--no-default-features", "--prefix", "none"]);
    let abi = crate::command::output(&mut abi)?;
    if abi.trim().lines().count() != 1 {
        bail!("agent-ebpf without features has dependencies:\n{abi}");
    }
    Ok(())
}
