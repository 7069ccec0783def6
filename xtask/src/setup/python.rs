//! A Python of our own with the official OpenTelemetry protobufs, as a second opinion on the bytes that
//! the agent sends.

use crate::command::{command, on_path, run, say, succeeds};
use crate::workspace::cache;
use anyhow::{Context as _, Result, bail};
use std::path::PathBuf;

/// Speaks OTLP 1.10, whose profiles have one dictionary a request.
const OPENTELEMETRY_PROTO: &str = "1.45.2";

/// The interpreter of a virtual environment in the cache.
pub(crate) fn python() -> Result<PathBuf> {
    let folder = cache(&format!("python-otlp-{OPENTELEMETRY_PROTO}"))?;
    let python = folder.join("bin/python");
    let profiles = "import opentelemetry.proto.profiles.v1development.profiles_pb2";
    if succeeds(command(&python).args(["-c", profiles])) {
        return Ok(python);
    }
    if on_path("python3").is_none() {
        bail!("python3 is not installed; cure: apt-get install python3-venv");
    }
    say(&format!(
        "making a Python environment with opentelemetry-proto {OPENTELEMETRY_PROTO} (once)"
    ));
    let cure = "the Python environment cannot be had; cure: apt-get install python3-venv";
    run(command("python3").args(["-m", "venv", "--clear"]).arg(&folder)).context(cure)?;
    let package = format!("opentelemetry-proto=={OPENTELEMETRY_PROTO}");
    pip_install(&python, &package).context(cure)?;
    Ok(python)
}

/// Installs one package into the environment of `python`.
pub(crate) fn pip_install(python: &std::path::Path, package: &str) -> Result<()> {
    run(command(python).args(["-m", "pip", "install", "--quiet", "--only-binary=:all:", package]))
}
