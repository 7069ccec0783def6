//! Where the programs under test are.

use std::path::{Path, PathBuf};

/// The repository.
#[must_use]
pub fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests lies in the repository")
}

/// The folder that tests may fill: below the target folder, so that `cargo clean` takes it away.
///
/// # Panics
/// If it cannot be made.
#[must_use]
pub fn scratch(name: &str) -> PathBuf {
    let folder = target().join("e2e").join(name);
    std::fs::create_dir_all(&folder).expect("the target folder can be written");
    folder
}

fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| repository().join("target"), PathBuf::from)
}

/// `vesta` or `vesta-agent`: from `VESTA_PROGRAMS`, which `cargo xtask test`
/// sets, else from target/debug.
///
/// # Panics
/// If it was not built.
#[must_use]
pub fn program(name: &str) -> PathBuf {
    let folder = std::env::var_os("VESTA_PROGRAMS").map(PathBuf::from);
    let program = folder.unwrap_or_else(|| target().join("debug")).join(name);
    assert!(program.is_file(), "{} is missing: run cargo xtask build", program.display());
    program
}
