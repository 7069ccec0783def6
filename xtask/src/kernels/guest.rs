//! What runs inside a virtual machine: the checks as its first process, the targets, and the shared
//! libraries of both. No distribution, no shell, no disk.

use super::archive::Archive;
use super::branch::Branch;
use super::cache::Kernel;
use crate::build::{PACKAGES, cargo_with_bpf};
use crate::command::{command, output, run, say};
use crate::setup;
use crate::workspace::{root, target};
use anyhow::{Context as _, Result, bail};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Where the targets lie in the guest.
const TARGETS: &str = "/targets";
/// Where the kernel's module lies in the guest.
const MODULE: &str = "/module.ko";

/// A program and how it is compiled. All are without frame pointers: the stacks come from tables.
struct Target {
    name: &'static str,
    source: &'static str,
    is_static: bool,
}

const PROGRAMS: [Target; 6] = [
    Target { name: "deep_static", source: "deep.c", is_static: true },
    Target { name: "deep_dynamic", source: "deep.c", is_static: false },
    Target { name: "system_calls", source: "system_calls.c", is_static: true },
    Target { name: "locks", source: "locks.c", is_static: true },
    Target { name: "signals", source: "signals.c", is_static: false },
    Target { name: "brief", source: "brief.c", is_static: true },
];

/// Builds everything and packs it; gives the archive's path.
pub(crate) fn initramfs(folder: &Path) -> Result<PathBuf> {
    let checks = checks()?;
    let compiler = setup::program("gcc", "gcc", "the programs that the kernels run")?;
    let mut archive = Archive::default();
    archive.device("/dev/console", 5, 1)?;
    archive.program("/init", &checks)?;
    let mut libraries = libraries(&checks)?;
    for program in PROGRAMS {
        let file = compile(&compiler, &program, folder)?;
        if !program.is_static {
            libraries.extend(self::libraries(&file)?);
        }
        archive.program(&format!("{TARGETS}/{}", program.name), &file)?;
    }
    for library in &libraries {
        let path = library.to_str().context("a library's path is not UTF-8")?;
        archive.program(path, library)?;
    }
    let file = folder.join("initramfs");
    std::fs::write(&file, archive.finish()?)
        .with_context(|| format!("write {}", file.display()))?;
    Ok(file)
}

/// The archive with the kernel's module, if it has one: archives may follow each other.
pub(crate) fn with_module(initramfs: &Path, branch: Branch, kernel: &Kernel) -> Result<PathBuf> {
    let Some(module) = &kernel.module else { return Ok(initramfs.to_owned()) };
    let mut archive = Archive::default();
    archive.program(MODULE, module)?;
    let read = std::fs::read(initramfs);
    let mut bytes = read.with_context(|| format!("read {}", initramfs.display()))?;
    bytes.extend(archive.finish()?);
    let file = initramfs.with_extension(branch.to_string());
    std::fs::write(&file, bytes).with_context(|| format!("write {}", file.display()))?;
    Ok(file)
}

/// The program that tries the agent.
fn checks() -> Result<PathBuf> {
    say("building kernel_check");
    let mut cargo = cargo_with_bpf()?;
    run(cargo.args(["build", "--quiet"]).args(PACKAGES).args(["--example", "kernel_check"]))?;
    Ok(target().join("debug/examples/kernel_check"))
}

fn compile(compiler: &Path, program: &Target, folder: &Path) -> Result<PathBuf> {
    let file = folder.join(program.name);
    let mut gcc = command(compiler);
    gcc.args(["-O2", "-fomit-frame-pointer", "-pthread", "-Wl,--build-id"]);
    if program.is_static {
        gcc.arg("-static");
    }
    gcc.arg("-o").arg(&file);
    run(gcc.arg(root().join("tests/workloads/kernels").join(program.source)))?;
    Ok(file)
}

/// The dynamic linker of a program and its libraries, as that linker finds them.
fn libraries(program: &Path) -> Result<BTreeSet<PathBuf>> {
    let list = output(command("ldd").arg(program))?;
    let mut found = BTreeSet::new();
    for line in list.lines() {
        // `libc.so.6 => /lib/libc.so.6 (0x...)`, or `/lib64/ld-linux-x86-64.so.2 (0x...)`.
        let place = line.rsplit("=> ").next().unwrap_or(line).trim();
        if place.starts_with("not found") {
            bail!("{}: {}", program.display(), line.trim());
        }
        let path = place.split(" (").next().unwrap_or(place);
        if path.starts_with('/') {
            found.insert(PathBuf::from(path));
        }
    }
    Ok(found)
}
