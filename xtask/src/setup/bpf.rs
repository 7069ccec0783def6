//! What compiles the BPF programs on a stable compiler: bpf-linker, and the sources of `core`, because no
//! compiled `core` is shipped for BPF.

use super::private_apt::PrivateApt;
use crate::command::{command, on_path, output, run, say};
use crate::workspace::{cache, root};
use anyhow::{Context as _, Result, bail};
use std::path::{Path, PathBuf};
use std::process::Command;

/// It must link the LLVM of the compiler in rust-toolchain.toml; 0.10.3 links LLVM 22, which is in 1.95.
const BPF_LINKER: &str = "0.10.3";

/// A folder with the Rust library, for a compiler whose own sysroot has none. The variable is internal to
/// Cargo's tests; it works in 1.95, and the sysroot need not be written.
const SOURCE_ROOT: &str = "__CARGO_TESTS_ONLY_SRC_ROOT";

/// Where the sources are, if not in the sysroot. The agent's build script finds the linker in the cache.
#[derive(Clone, Debug)]
pub(crate) struct BpfTools {
    rust_source: Option<PathBuf>,
}

impl BpfTools {
    /// Makes the tools known to a cargo that compiles package `agent`.
    pub(crate) fn apply(&self, cargo: &mut Command) {
        if let Some(source) = &self.rust_source {
            cargo.env(SOURCE_ROOT, source);
        }
    }
}

/// Finds or fetches both.
pub(crate) fn bpf_tools() -> Result<BpfTools> {
    bpf_linker()?;
    Ok(BpfTools { rust_source: rust_source()? })
}

/// The linker in the cache.
fn bpf_linker() -> Result<()> {
    let folder = cache(&format!("bpf-linker-{BPF_LINKER}"))?;
    if !folder.join("bin/bpf-linker").is_file() {
        say(&format!("building bpf-linker {BPF_LINKER} into {} (once, minutes)", folder.display()));
        let version = format!("={BPF_LINKER}");
        let mut install = crate::build::cargo();
        install.args(["install", "--locked", "--quiet", "bpf-linker", "--version", &version]);
        // Its own target folder: the workspace's flags and lock are not its business.
        install.arg("--root").arg(&folder).current_dir("/").env_remove("CARGO_TARGET_DIR");
        install.env("RUSTUP_TOOLCHAIN", toolchain()?);
        run(&mut install).with_context(|| {
            format!("bpf-linker cannot be had; cure: cargo install --locked bpf-linker --version {BPF_LINKER} --root {}", folder.display())
        })?;
    }
    Ok(())
}

/// The toolchain that builds this project; outside the repository another one could be chosen.
fn toolchain() -> Result<String> {
    if let Ok(name) = std::env::var("RUSTUP_TOOLCHAIN") {
        return Ok(name);
    }
    let file = root().join("rust-toolchain.toml");
    let text =
        std::fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))?;
    let channel = text.lines().find_map(|line| line.strip_prefix("channel = "));
    Ok(channel.context("rust-toolchain.toml names no channel")?.trim_matches('"').to_owned())
}

/// The folder to name in [`SOURCE_ROOT`], or none if the sysroot has the sources.
fn rust_source() -> Result<Option<PathBuf>> {
    let sysroot = output(command("rustc").args(["--print", "sysroot"]).current_dir(root()))?;
    let installed = Path::new(sysroot.trim()).join("lib/rustlib/src/rust/library");
    if is_library(&installed) {
        return Ok(None);
    }
    let release = rustc_release()?;
    let unpacked = cache(&format!("rust-src-{release}"))?;
    let library = unpacked.join("usr/src").join(format!("rustc-{release}")).join("library");
    if is_library(&library) {
        return Ok(Some(library));
    }
    say("adding the component rust-src (once)");
    let component = with_rustup(&installed);
    let Err(no_component) = component else { return Ok(None) };
    say(&format!("no component ({no_component:#}); looking for Debian's package"));
    from_debian(&release, &unpacked).with_context(|| {
        format!("rust-src of {release} cannot be had; cure: rustup component add rust-src")
    })?;
    if !is_library(&library) {
        bail!("Debian's rust-src has no {}", library.display());
    }
    Ok(Some(library))
}

fn is_library(folder: &Path) -> bool {
    folder.join("core/src/lib.rs").is_file() && folder.join("Cargo.lock").is_file()
}

fn rustc_release() -> Result<String> {
    let version = output(command("rustc").args(["-vV"]).current_dir(root()))?;
    let release = version.lines().find_map(|line| line.strip_prefix("release: "));
    Ok(release.context("rustc -vV names no release")?.to_owned())
}

fn with_rustup(library: &Path) -> Result<()> {
    if on_path("rustup").is_none() {
        bail!("rustup is not installed");
    }
    run(command("rustup").args(["component", "add", "rust-src"]).current_dir(root()))?;
    if !is_library(library) {
        bail!("rustup brought no {}", library.display());
    }
    Ok(())
}

/// Fetches the package of exactly this release from the suites where Debian keeps newer compilers.
fn from_debian(release: &str, folder: &Path) -> Result<()> {
    let state = folder.join("apt");
    let apt = PrivateApt::new(&state, &["trixie-backports", "forky", "sid"])?;
    apt.update()?;
    let wanted = apt
        .versions("rust-src")?
        .into_iter()
        .find(|package| package.version.split(['+', '-', '~']).next() == Some(release));
    let wanted = wanted.with_context(|| format!("no suite has rust-src {release}"))?;
    let package = apt.download(&wanted)?;
    run(command("dpkg-deb").arg("--extract").arg(&package).arg(folder))?;
    std::fs::remove_dir_all(state)?;
    keep_library_only(folder, release)
}

/// The package has the compiler too, ten times as large.
fn keep_library_only(folder: &Path, release: &str) -> Result<()> {
    std::fs::remove_dir_all(folder.join("usr/share"))?;
    for entry in std::fs::read_dir(folder.join("usr/src").join(format!("rustc-{release}")))? {
        let path = entry?.path();
        if path.is_dir() && !path.ends_with("library") {
            std::fs::remove_dir_all(path)?;
        }
    }
    Ok(())
}
