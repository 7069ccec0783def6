//! Builds the BPF programs of `agent-ebpf` and hands their object to `src/bpf/object.rs`.
//!
//! `VESTA_BPF_OBJECT=none` embeds nothing (a fast build for work on everything else; the loader then says
//! so), `VESTA_BPF_OBJECT=/path` embeds that file.
//!
//! Tells `src/elf/unwind_digest.rs` which sources make rows.

use anyhow::{Context as _, Result, bail};
use std::collections::BTreeMap;
use std::env;
use std::ffi::OsString;
use std::fs;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Links the LLVM of rustc 1.95; `cargo xtask ebpf` installs it.
const BPF_LINKER: &str = "bpf-linker-0.10.3";
const CURE: &str = "run `cargo xtask ebpf` once, or build without BPF: VESTA_BPF_OBJECT=none";

/// What unwind rows depend on. Tests among them cost a compilation too many, a file too few would cost
/// right stacks. The lock stands for the parsers of others.
const ROW_SOURCES: [&str; 6] = [
    "src/elf",
    "src/limits.rs",
    "src/process/table_cache/format.rs",
    "src/unwind",
    "../Cargo.lock",
    "../agent-ebpf/src/abi",
];

fn main() {
    // One line, and no dump of everything that the script printed.
    if let Err(error) = run() {
        println!("cargo::error={}", format!("{error:#}").replace('\n', " "));
    }
}

fn run() -> Result<()> {
    println!("cargo:rerun-if-changed=build.rs");
    for name in ["VESTA_BPF_OBJECT", "XDG_CACHE_HOME", "PATH"] {
        println!("cargo:rerun-if-env-changed={name}");
    }
    println!("cargo:rustc-check-cfg=cfg(bpf_object)");
    name_row_compiler()?;
    match env::var_os("VESTA_BPF_OBJECT") {
        Some(choice) if choice == "none" => Ok(()),
        Some(path) => {
            let path = PathBuf::from(path);
            println!("cargo:rerun-if-changed={}", path.display());
            if !path.is_file() {
                bail!("VESTA_BPF_OBJECT: {} is not a file", path.display());
            }
            embed(&path.canonicalize()?);
            Ok(())
        }
        None => build_programs(),
    }
}

/// Tables that an agent with another compiler kept on disk must not be taken for this one's, and nobody
/// remembers to count a version up.
fn name_row_compiler() -> Result<()> {
    let mut files = BTreeMap::new();
    for source in ROW_SOURCES {
        println!("cargo:rerun-if-changed={source}");
        read_sources(Path::new(source), &mut files)?;
    }
    // Its keys are fixed. Another toolchain may hash otherwise, which costs a compilation.
    let mut hasher = DefaultHasher::new();
    files.hash(&mut hasher);
    println!("cargo:rustc-env=VESTA_ROW_COMPILER={:016x}", hasher.finish());
    Ok(())
}

fn read_sources(path: &Path, files: &mut BTreeMap<PathBuf, Vec<u8>>) -> Result<()> {
    let named = || path.display().to_string();
    if path.is_dir() {
        for entry in fs::read_dir(path).with_context(named)? {
            read_sources(&entry.with_context(named)?.path(), files)?;
        }
    } else {
        files.insert(path.to_owned(), fs::read(path).with_context(named)?);
    }
    Ok(())
}

fn embed(object: &Path) {
    println!("cargo:rustc-cfg=bpf_object");
    println!("cargo:rustc-env=VESTA_BPF_OBJECT_PATH={}", object.display());
}

fn build_programs() -> Result<()> {
    check_rust_src()?;
    let path = path_with_linker()?;
    let toolchain = env::var("RUSTUP_TOOLCHAIN").unwrap_or_else(|_| "1.95.0".to_owned());
    let root = Path::new(&env::var("CARGO_MANIFEST_DIR")?).join("../agent-ebpf").canonicalize()?;
    for (name, value) in [
        ("PATH", path.as_os_str()),
        // `-Z build-std` on the stable toolchain, for this one child.
        ("RUSTC_BOOTSTRAP", "1".as_ref()),
        // Whatever the outer profile says: the verifier accepts only fully optimised programs, and a
        // function that can panic has no exit that it knows.
        ("CARGO_PROFILE_RELEASE_PANIC", "abort".as_ref()),
        ("CARGO_PROFILE_RELEASE_LTO", "fat".as_ref()),
        ("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "1".as_ref()),
        ("CARGO_PROFILE_RELEASE_DEBUG", "2".as_ref()),
        // aya-build turns every line of progress into a warning, and Cargo repeats those at each build.
        ("CARGO_TERM_QUIET", "true".as_ref()),
    ] {
        // SAFETY: a build script's main function has one thread.
        unsafe { env::set_var(name, value) };
    }
    let package = aya_build::Package {
        name: "agent-ebpf",
        root_dir: root.to_str().context("the path of the repository is not UTF-8")?,
        no_default_features: true,
        features: &["programs"],
    };
    aya_build::build_ebpf([package], aya_build::Toolchain::Custom(&toolchain))
        .context("the BPF programs could not be built; the lines above say why")?;
    embed(&Path::new(&env::var("OUT_DIR")?).join("agent-ebpf"));
    Ok(())
}

/// The standard library's source is needed to build `core` for BPF.
fn check_rust_src() -> Result<()> {
    let rustc = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(&rustc).args(["--print", "sysroot"]).output().context("rustc")?;
    let sysroot = PathBuf::from(String::from_utf8(output.stdout)?.trim());
    let source = sysroot.join("lib/rustlib/src/rust/library/core/src/lib.rs");
    if !source.is_file() && env::var_os("__CARGO_TESTS_ONLY_SRC_ROOT").is_none() {
        bail!("rust-src is missing ({} does not exist): {CURE}", source.display());
    }
    Ok(())
}

/// `PATH`, with the folder of bpf-linker in front if it is in the cache and not on `PATH`.
fn path_with_linker() -> Result<OsString> {
    let path = env::var_os("PATH").unwrap_or_default();
    if env::split_paths(&path).any(|folder| folder.join("bpf-linker").is_file()) {
        return Ok(path);
    }
    let cache = env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache")));
    let folder = cache.map(|cache| cache.join("vesta").join(BPF_LINKER).join("bin"));
    match folder {
        Some(folder) if folder.join("bpf-linker").is_file() => {
            let folders = std::iter::once(folder).chain(env::split_paths(&path));
            Ok(env::join_paths(folders)?)
        }
        _ => bail!("bpf-linker is missing (neither on PATH nor in the cache): {CURE}"),
    }
}
