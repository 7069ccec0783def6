//! Files whose unwind tables are made before a command starts: the executable, the dynamic linkers and
//! the libraries that most programs have. What else it maps is loaded as it maps it.

use crate::address::{Pid, Tid};
use crate::normalize::MappedFile;
use crate::process::files::{Backing, Files};
use crate::process::host::{Host, Task};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Dynamic linkers by their fixed names (the ABI's, musl's).
const LINKERS: [&str; 2] = ["/lib64/ld-linux-x86-64.so.2", "/lib/ld-musl-x86_64.so.1"];
/// What C, C++ and Rust programs are linked with.
const LIBRARIES: [&str; 4] = ["libc.so.6", "libm.so.6", "libgcc_s.so.1", "libstdc++.so.6"];

/// Opens the files to preload for these executables; what does not exist is left out.
pub(super) fn files(
    executables: &[PathBuf],
    host: &dyn Host,
    files: &Files,
) -> Vec<Arc<MappedFile>> {
    if executables.is_empty() {
        return Vec::new();
    }
    let pid = std::process::id();
    let own = Task { pid: Pid(pid), tid: Tid(pid) };
    let mut paths = executables.to_vec();
    for linker in LINKERS {
        // Its name is a link into the folder where the C library lies.
        let Ok(linker) = Path::new(linker).canonicalize() else { continue };
        let folder = linker.parent().unwrap_or(Path::new("/")).to_owned();
        paths.extend(LIBRARIES.iter().map(|library| folder.join(library)));
        paths.push(linker);
    }
    paths
        .iter()
        .filter_map(|path| {
            let bytes = path.as_os_str().as_bytes();
            let opened = host.open_path(own, bytes).ok()?;
            match files.take_opened(opened, bytes) {
                Backing::File(file) => Some(file),
                Backing::Anonymous => None,
            }
        })
        .collect()
}
