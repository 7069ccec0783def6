//! `cargo xtask run`: from a checkout to a flame graph of this host.

use crate::build;
use anyhow::{Result, bail};
use std::os::unix::process::CommandExt as _;
use std::process::Command;

/// Builds, then becomes `vesta local`; that asks for root itself, because it knows what needs it.
pub(crate) fn run(release: bool, arguments: &[String]) -> Result<()> {
    let vesta = build::programs(release)?.join("vesta");
    let error = Command::new(&vesta).arg("local").args(arguments).exec();
    bail!("start {}: {error}", vesta.display())
}
