//! The page's packages, exactly those of its lock file, and none of their install scripts.

use crate::command::{command, on_path, run, say};
use anyhow::{Context as _, Result, bail};
use std::path::Path;

/// Fills `page/node_modules` unless it holds what the lock file asks for.
pub(crate) fn npm_packages(page: &Path) -> Result<()> {
    if on_path("npm").is_none() {
        bail!("npm is not installed; cure: install Node.js 20 or newer");
    }
    let lock = std::fs::read(page.join("package-lock.json"))
        .with_context(|| format!("read {}/package-lock.json", page.display()))?;
    let installed = page.join("node_modules/.vesta-lock.json");
    if std::fs::read(&installed).is_ok_and(|copy| copy == lock) {
        return Ok(());
    }
    say("installing the page's packages (npm ci --ignore-scripts)");
    run(command("npm")
        .args(["ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"])
        .current_dir(page))
    .context("the page's packages cannot be had; cure: see npm's own message above")?;
    std::fs::write(&installed, lock).with_context(|| format!("write {}", installed.display()))
}
