//! A real OpenTelemetry Collector, built from Go modules, to stand between agent and collector in a test.

use crate::command::{command, run, say};
use crate::workspace::{cache, root};
use anyhow::{Context as _, Result};
use std::path::PathBuf;

/// The version of the builder; the same as in tests/otel-collector/builder.yaml.
const VERSION: &str = "0.165.0";

/// The executable.
pub(crate) fn opentelemetry_collector() -> Result<PathBuf> {
    let folder = cache(&format!("otelcol-{VERSION}"))?;
    let executable = folder.join("out/otelcol-vesta-test");
    if executable.is_file() {
        return Ok(executable);
    }
    let cure = "the OpenTelemetry Collector cannot be had; cure: install Go 1.25 or newer";
    let go = super::go().context(cure)?;
    say(&format!("building the OpenTelemetry Collector {VERSION} from Go modules (once, minutes)"));
    std::fs::create_dir_all(&folder)?;
    let builder = format!("go.opentelemetry.io/collector/cmd/builder@v{VERSION}");
    run(command(&go).args(["install", &builder]).env("GOBIN", folder.join("bin"))).context(cure)?;
    let search = std::env::join_paths(
        go.parent()
            .map(PathBuf::from)
            .into_iter()
            .chain(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default())),
    )?;
    // The builder writes where its configuration says, relative to the folder it runs in.
    run(command(folder.join("bin/builder"))
        .arg("--config")
        .arg(root().join("tests/otel-collector/builder.yaml"))
        .current_dir(&folder)
        .env("PATH", search))
    .context(cure)?;
    Ok(executable)
}
