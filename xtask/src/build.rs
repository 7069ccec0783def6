//! Compiling: the programs, the BPF object alone, the page.

use crate::command::{command, print, run, say};
use crate::setup;
use crate::workspace::{root, target};
use anyhow::{Context as _, Result, bail};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The cargo that runs this program, else the one in PATH.
pub(crate) fn cargo() -> Command {
    let mut cargo = command(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(root());
    // Set by the outer cargo for this package; a nested one must not inherit them.
    for (name, _) in std::env::vars_os() {
        if name
            .to_str()
            .is_some_and(|name| name.starts_with("CARGO_PKG_") || name == "CARGO_MANIFEST_DIR")
        {
            cargo.env_remove(name);
        }
    }
    cargo
}

/// A cargo that can compile the agent with its BPF programs.
pub(crate) fn cargo_with_bpf() -> Result<Command> {
    let mut cargo = cargo();
    setup::bpf_tools()?.apply(&mut cargo);
    cargo.env_remove("VESTA_BPF_OBJECT");
    Ok(cargo)
}

/// Every package but this one: always the same selection, because another selection gives other features
/// to shared dependencies and compiles them again. This program cannot replace itself while it runs, and
/// fuzz targets want a build of their own.
pub(crate) const PACKAGES: [&str; 5] = ["--workspace", "--exclude", "xtask", "--exclude", "fuzz"];

/// Builds `vesta` and `vesta-agent`, and gives the folder that holds them.
pub(crate) fn programs(release: bool) -> Result<PathBuf> {
    let mut cargo = cargo_with_bpf()?;
    cargo.arg("build").args(PACKAGES).arg("--bins");
    if release {
        cargo.arg("--release");
    }
    say("building vesta and vesta-agent");
    run(&mut cargo)?;
    let folder = target().join(if release { "release" } else { "debug" });
    for program in ["vesta", "vesta-agent"] {
        if !folder.join(program).is_file() {
            bail!("the build left no {}", folder.join(program).display());
        }
    }
    say(&format!("ready: {0}/vesta and {0}/vesta-agent", folder.display()));
    Ok(folder)
}

/// Compiles the BPF programs through the agent's build script and prints where the object lies.
pub(crate) fn ebpf() -> Result<()> {
    run(cargo_with_bpf()?.args(["build"]).args(PACKAGES).args(["--bin", "vesta-agent"]))?;
    let object = newest_object(&target().join("debug/build"))?;
    let bytes = std::fs::metadata(&object)?.len();
    print(&format!("{} ({bytes} bytes)", object.display()));
    Ok(())
}

fn newest_object(build: &Path) -> Result<PathBuf> {
    let objects = std::fs::read_dir(build)
        .with_context(|| format!("read {}", build.display()))?
        .filter_map(|entry| entry.ok().map(|entry| entry.path().join("out/agent-ebpf")))
        .filter(|object| object.is_file());
    let newest =
        objects.max_by_key(|object| object.metadata().and_then(|meta| meta.modified()).ok());
    newest.context("the agent's build script left no BPF object")
}

/// Builds the page, or checks its types and that `dist` is what its sources give.
pub(crate) fn ui(check: bool) -> Result<()> {
    let page = root().join("collector/ui");
    setup::npm_packages(&page)?;
    if check {
        run(command("npm").args(["run", "--silent", "check"]).current_dir(&page))?;
    }
    let before = if check { dist(&page)? } else { Vec::new() };
    run(command("npm").args(["run", "--silent", "build"]).current_dir(&page))?;
    if check && dist(&page)? != before {
        bail!("collector/ui/dist was stale and is new now: look at it and commit it");
    }
    Ok(())
}

/// Name and contents of every file of `dist`.
fn dist(page: &Path) -> Result<Vec<(PathBuf, Vec<u8>)>> {
    let mut folders = vec![page.join("dist")];
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        let entries =
            std::fs::read_dir(&folder).with_context(|| format!("read {}", folder.display()))?;
        for entry in entries {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let contents = std::fs::read(&path)?;
                files.push((path, contents));
            }
        }
    }
    files.sort_unstable();
    Ok(files)
}

/// Builds everything optimised and runs a measurement; the figures are its own.
pub(crate) fn bench(what: &str, arguments: &[String]) -> Result<()> {
    let folder = programs(true)?;
    let mut bench = if what == "store" {
        let mut cargo = cargo_with_bpf()?;
        cargo.args(["build", "--release"]).args(PACKAGES).args(["--example", "bench_store"]);
        run(&mut cargo)?;
        let mut bench = Command::new(folder.join("examples/bench_store"));
        // Half a gigabyte that only the comparison needs.
        let has_no_set = ["--help", "-h", "sending"];
        if !arguments.iter().any(|argument| has_no_set.contains(&argument.as_str())) {
            match setup::chdb() {
                Ok(python) => drop(bench.env("VESTA_CHDB_PYTHON", python)),
                Err(error) => say(&format!("without chdb, and so without ratios: {error:#}")),
            }
        }
        bench
    } else {
        let mut bench = Command::new(folder.join("bench"));
        bench.arg(what).env("VESTA_PROGRAMS", &folder);
        if what == "waiting" {
            bench.envs(measures_of_switches());
        }
        bench
    };
    let status = bench.args(arguments).current_dir(root()).status().context("start bench")?;
    if !status.success() {
        bail!("bench {what} ended with {status}");
    }
    Ok(())
}

/// What others measure switches with, under the names by which the measurement finds them; it says what it lacks.
fn measures_of_switches() -> Vec<(&'static str, PathBuf)> {
    let tools =
        [("VESTA_PERF", "perf", "linux-perf"), ("VESTA_STRESS_NG", "stress-ng", "stress-ng")];
    let find = |(variable, program, package)| match setup::program(
        program,
        package,
        "a usual measure of switches",
    ) {
        Ok(path) => Some((variable, path)),
        Err(error) => {
            say(&format!("without {program}: {error:#}"));
            None
        }
    };
    tools.into_iter().filter_map(find).collect()
}
