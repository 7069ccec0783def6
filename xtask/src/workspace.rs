//! Where things are: the repository, the cache folder, who runs this. It creates nothing but folders of
//! the cache.

use anyhow::{Context as _, Result};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// The repository.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the repository")
}

/// Where this workspace's builds land.
pub(crate) fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}

/// A folder below `${XDG_CACHE_HOME:-~/.cache}/vesta`; what lies there is named with its version, so
/// that a new version of the project never meets an old tool.
pub(crate) fn cache(name: &str) -> Result<PathBuf> {
    let base = match std::env::var_os("XDG_CACHE_HOME").filter(|folder| !folder.is_empty()) {
        Some(folder) => PathBuf::from(folder),
        None => PathBuf::from(std::env::var_os("HOME").context("HOME is not set")?).join(".cache"),
    };
    let folder = base.join("vesta");
    std::fs::create_dir_all(&folder).with_context(|| format!("create {}", folder.display()))?;
    Ok(folder.join(name))
}

/// True for root.
pub(crate) fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0)
}

/// The files under version control and those that could be added, relative to the root.
pub(crate) fn files() -> Result<Vec<PathBuf>> {
    let list = crate::command::output(
        crate::command::command("git")
            .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
            .current_dir(root()),
    )?;
    let mut files: Vec<PathBuf> =
        list.split('\0').filter(|name| !name.is_empty()).map(PathBuf::from).collect();
    files.retain(|file| root().join(file).is_file());
    files.sort_unstable();
    files.dedup();
    Ok(files)
}
