//! Which files have code of locks that is worth a look: by what is known of them anyway.

use crate::elf::Runtime;
use crate::normalize::MappedFile;
use crate::path;
use crate::waits::is_glibc;

/// Whose locks a file may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LockOwner {
    /// Go's package sync.
    Go,
    /// A C library: the file is one, or a program that may have one linked into it.
    Libc,
}

impl LockOwner {
    pub(super) fn of(file: &MappedFile) -> Option<Self> {
        const MUSL: [&str; 2] = ["ld-musl-", "libc.musl-"];
        let facts = file.facts.as_ref()?;
        if facts.runtime == Runtime::Go {
            return Some(Self::Go);
        }
        let name = path::file_name(&file.path);
        let is_library = is_glibc(name) || MUSL.iter().any(|known| name.starts_with(known));
        (is_library || facts.is_static).then_some(Self::Libc)
    }
}
