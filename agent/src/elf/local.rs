//! [`LocalFiles`]: foreign files read in this process.

use super::source::Source;
use super::{FileFacts, ForeignFileError, ForeignFiles, Names, inspect};
use crate::address::{ElfAddr, FileId};
use crate::symbolize::native::NativeNames;
use crate::unwind::{self, RowTable};
use std::os::fd::{AsFd as _, OwnedFd};

/// Reads foreign files in this process.
#[derive(Debug, Default)]
pub struct LocalFiles {
    names: NativeNames,
}

impl LocalFiles {
    /// An instance with empty caches.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
}

impl ForeignFiles for LocalFiles {
    fn inspect(&self, file: &OwnedFd) -> Result<FileFacts, ForeignFileError> {
        inspect::inspect(Source::file(file.as_fd())?)
    }

    fn unwind_rows(&self, file: &OwnedFd) -> Result<RowTable, ForeignFileError> {
        unwind::unwind_rows(Source::file(file.as_fd())?)
    }

    fn names(&self, id: FileId, file: &OwnedFd, addresses: &[ElfAddr]) -> Vec<Names> {
        self.names.names(id, file, addresses)
    }
}
