//! Pythons of our own, each with one package: the official OpenTelemetry protobufs, as a second opinion on the bytes
//! that the agent sends, and chdb, as a second opinion on how fast a store can be.

use crate::command::{command, on_path, run, say, succeeds};
use crate::workspace::cache;
use anyhow::{Context as _, Result, bail};
use std::path::PathBuf;

/// A Python with one package.
struct Environment {
    /// Of its folder.
    name: &'static str,
    package: &'static str,
    version: &'static str,
    /// Works where the package is.
    statement: &'static str,
}

/// Speaks OTLP 1.10, whose profiles have one dictionary a request.
const OTLP: Environment = Environment {
    name: "otlp",
    package: "opentelemetry-proto",
    version: "1.45.2",
    statement: "import opentelemetry.proto.profiles.v1development.profiles_pb2",
};

/// `ClickHouse`'s engine in the process, half a gigabyte.
const CHDB: Environment = Environment {
    name: "chdb",
    package: "chdb-core",
    version: "26.9.0",
    statement: "import chdb.session",
};

/// The interpreter of a virtual environment in the cache.
pub(crate) fn python() -> Result<PathBuf> {
    OTLP.interpreter()
}

/// The same with chdb.
pub(crate) fn chdb() -> Result<PathBuf> {
    CHDB.interpreter()
}

impl Environment {
    fn interpreter(&self) -> Result<PathBuf> {
        let Self { name, package, version, statement } = self;
        let folder = cache(&format!("python-{name}-{version}"))?;
        let python = folder.join("bin/python");
        if succeeds(command(&python).args(["-c", statement])) {
            return Ok(python);
        }
        if on_path("python3").is_none() {
            bail!("python3 is not installed; cure: apt-get install python3-venv");
        }
        say(&format!("making a Python environment with {package} {version} (once)"));
        let cure = "the Python environment cannot be had; cure: apt-get install python3-venv";
        run(command("python3").args(["-m", "venv", "--clear"]).arg(&folder)).context(cure)?;
        pip_install(&python, &format!("{package}=={version}"))
            .with_context(|| format!("{package} cannot be had; cure: let pip reach its index"))?;
        Ok(python)
    }
}

/// Installs one package into the environment of `python`.
pub(crate) fn pip_install(python: &std::path::Path, package: &str) -> Result<()> {
    run(command(python).args(["-m", "pip", "install", "--quiet", "--only-binary=:all:", package]))
}
