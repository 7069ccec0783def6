//! Programs from Debian's packages, installed only as root.

use crate::command::{command, on_path, output, run, say};
use crate::workspace::is_root;
use anyhow::{Context as _, Result, bail};
use std::path::PathBuf;
use std::process::Command;

/// Finds `program`, or installs the package that has it.
pub(crate) fn program(program: &str, package: &str, purpose: &str) -> Result<PathBuf> {
    if let Some(found) = on_path(program) {
        return Ok(found);
    }
    install(package, purpose)?;
    on_path(program).with_context(|| format!("package {package} brought no {program}"))
}

/// Finds `program`, also as `program-VERSION`, or installs the newest `package-VERSION` that the distribution has.
pub(crate) fn newest_program(program: &str, package: &str, purpose: &str) -> Result<PathBuf> {
    /// Versions of LLVM that distributions carry.
    const VERSIONS: std::ops::Range<u32> = 14..30;
    let versioned = |version: u32| on_path(&format!("{program}-{version}"));
    let found = || on_path(program).or_else(|| VERSIONS.rev().find_map(versioned));
    if let Some(found) = found() {
        return Ok(found);
    }
    let newest = newest_package(package).unwrap_or_else(|| format!("{package}-15"));
    install(&newest, purpose)?;
    found().with_context(|| format!("package {newest} brought no {program}"))
}

/// The highest `package-VERSION` of the distribution's lists.
fn newest_package(package: &str) -> Option<String> {
    let mut search = command("apt-cache");
    search.args(["search", "--names-only", &format!("^{package}-[0-9]+$")]);
    let list = output(&mut search).ok()?;
    let names = list.lines().filter_map(|line| line.split(' ').next());
    let version = |name: &str| name.rsplit_once('-')?.1.parse::<u32>().ok();
    names.max_by_key(|name| version(name)).map(str::to_owned)
}

/// Installs one package, after an update of the lists if the first try fails.
fn install(package: &str, purpose: &str) -> Result<()> {
    let cure = format!("cure: apt-get install {package}, or the same from your distribution");
    if on_path("apt-get").is_none() {
        bail!("{purpose} needs {package}, and this machine has no apt-get; {cure}");
    }
    if !is_root() {
        bail!("{purpose} needs {package}, and only root installs packages; {cure}");
    }
    say(&format!("installing {package} ({purpose})"));
    if run(&mut apt_get(&["install", "--yes", "--no-install-recommends", package])).is_ok() {
        return Ok(());
    }
    run(&mut apt_get(&["update"])).with_context(|| format!("{purpose}; {cure}"))?;
    run(&mut apt_get(&["install", "--yes", "--no-install-recommends", package]))
        .with_context(|| format!("{purpose}; {cure}"))
}

fn apt_get(arguments: &[&str]) -> Command {
    let mut apt_get = command("apt-get");
    apt_get.args(["--quiet=2", "-o", "Dpkg::Use-Pty=0", "-o", "DPkg::Lock::Timeout=120"]);
    apt_get.args(arguments).env("DEBIAN_FRONTEND", "noninteractive");
    apt_get
}
