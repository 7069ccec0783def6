//! Foreign files: everything the agent reads from an executable or library of a process it watches.
//! All of it stands behind [`ForeignFiles`], so that parsing can move into a process without rights.
//! Reads are `pread` on an open descriptor, never a file mapping: a file that is truncated under a
//! mapping kills the reader with SIGBUS.

pub(crate) mod dynamic;
mod embedded;
pub(crate) mod go;
pub(crate) mod headers;
mod inspect;
mod local;
pub(crate) mod notes;
mod paged;
pub(crate) mod slotted;
pub(crate) mod source;
pub(crate) mod unwind_digest;

pub use local::LocalFiles;

#[cfg(fuzzing)]
pub(crate) use inspect::inspect as inspect_bytes;

use crate::address::{ElfAddr, FileId, FileOffset};
use crate::clock::MonotonicNs;
use crate::symbolize::UnnamedReason;
use crate::unwind::RowTable;
use proto::BuildId;
use std::ops::Range;
use std::os::fd::OwnedFd;

/// One executable `PT_LOAD` segment (`PF_X`). Non-executable ones never take part in normalization:
/// two segments may share a file page with different `p_vaddr - p_offset`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExecutableSegment {
    /// `p_vaddr`.
    pub address: ElfAddr,
    /// `p_offset`.
    pub file_offset: FileOffset,
    /// `p_memsz`.
    pub size: u64,
}

/// What a file's code is run by, as far as its own bytes show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Runtime {
    /// Native code only.
    Native,
    /// A Go program.
    Go,
    /// An interpreter or virtual machine whose frames are not named yet.
    Python,
    /// As above.
    Node,
    /// As above.
    Java,
}

/// What `inspect` learns from one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileFacts {
    /// Executable segments, ascending by address.
    pub segments: Vec<ExecutableSegment>,
    /// Addresses of writable segments: variables.
    pub data: Vec<Range<u64>>,
    /// GNU build id, if the file carries one.
    pub gnu_build_id: Option<BuildId>,
    /// Go build id, if the file carries one.
    pub go_build_id: Option<String>,
    /// SHA-256(first 4096 bytes, last 4096 bytes, length as big-endian u64), first 16 bytes: the
    /// OpenTelemetry `htlhash`.
    pub htlhash: BuildId,
    /// Who runs the code.
    pub runtime: Runtime,
    /// A program that needs no other file.
    pub is_static: bool,
}

/// One name for an address, innermost (inlined) first.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SourceLine {
    /// Function as shown (demangled).
    pub function: String,
    /// Linkage name if it differs from `function`, else empty.
    pub system_name: String,
    /// Source file, empty if unknown.
    pub file: String,
    /// Line, 0 if unknown.
    pub line: u32,
}

/// The lines of one address, innermost (inlined) first, at least one; or why there are none.
pub type Names = Result<Vec<SourceLine>, UnnamedReason>;

/// See [`ForeignFiles::unwind_digest`] (SHA-256).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct UnwindDigest(pub [u8; 32]);

/// Why a file gave nothing.
#[derive(Debug, thiserror::Error)]
pub enum ForeignFileError {
    /// Reading failed.
    #[error("reading failed: {0}")]
    Io(#[from] std::io::Error),
    /// The bytes are not what the format says.
    #[error("malformed {what}: {detail}")]
    Malformed {
        /// Which structure.
        what: &'static str,
        /// What is wrong with it.
        detail: String,
    },
    /// A named limit was reached.
    #[error("{what} exceeds the limit of {max}")]
    Limit {
        /// Which limit.
        what: &'static str,
        /// Its value.
        max: u64,
    },
}

/// The one door to foreign files. `file` is an open descriptor of a regular file; implementations keep
/// bounded caches by `id`.
pub trait ForeignFiles: Send + Sync {
    /// Reads the facts that normalization and identity need. Cheap: headers and notes only.
    ///
    /// # Errors
    /// See [`ForeignFileError`].
    fn inspect(&self, file: &OwnedFd) -> Result<FileFacts, ForeignFileError>;

    /// Where in `file` the ELF file lies whose code is mapped from `offset` on, if that is not `file` itself.
    fn embedded(&self, _file: &OwnedFd, _offset: FileOffset) -> Option<Range<u64>> {
        None
    }

    /// A digest of all that the rows of a file are compiled from; `None` where knowing it would save
    /// nothing.
    ///
    /// # Errors
    /// See [`ForeignFileError`].
    fn unwind_digest(&self, _file: &OwnedFd) -> Result<Option<UnwindDigest>, ForeignFileError> {
        Ok(None)
    }

    /// The same with the code and the symbols, for a file with rows made from code; `None` if there is too much.
    ///
    /// # Errors
    /// See [`ForeignFileError`].
    fn unwind_digest_with_code(
        &self,
        _file: &OwnedFd,
    ) -> Result<Option<UnwindDigest>, ForeignFileError> {
        Ok(None)
    }

    /// Compiles the unwind rows of a file.
    ///
    /// # Errors
    /// See [`ForeignFileError`].
    fn unwind_rows(&self, file: &OwnedFd) -> Result<RowTable, ForeignFileError>;

    /// The same without code that takes long to look into: [`RowTable::code_put_off`] says how much there is.
    ///
    /// # Errors
    /// See [`ForeignFileError`].
    fn unwind_rows_soon(&self, file: &OwnedFd) -> Result<RowTable, ForeignFileError> {
        self.unwind_rows(file)
    }

    /// Names addresses of one file, one answer for each: at least one line, or the reason why there is
    /// none. Never a neighbour's name.
    fn names(&self, id: FileId, file: &OwnedFd, addresses: &[ElfAddr]) -> Vec<Names> {
        self.names_with(id, file, None, addresses, MonotonicNs(u64::MAX))
    }

    /// As [`Self::names`], with the separate debug file of this host, which may list more symbols. A caller
    /// that has one for a file passes it every time. What is not named `until` then is answered with
    /// [`UnnamedReason::Limit`](crate::symbolize::UnnamedReason::Limit).
    fn names_with(
        &self,
        id: FileId,
        file: &OwnedFd,
        debug_file: Option<&OwnedFd>,
        addresses: &[ElfAddr],
        until: MonotonicNs,
    ) -> Vec<Names>;

    /// The GNU build id that a file carries, debug files included.
    fn build_id(&self, _file: &OwnedFd) -> Option<BuildId> {
        None
    }

    /// The name that a file states for its separate debug file (`.gnu_debuglink`), as it stands there.
    fn debug_link(&self, _file: &OwnedFd) -> Option<String> {
        None
    }
}

#[cfg(test)]
mod tests;
