//! [`LocalFiles`]: foreign files read in this process.

use super::headers::Elf;
use super::source::{Source, malformed};
use super::{
    FileFacts, ForeignFileError, ForeignFiles, Names, UnwindDigest, embedded, inspect, notes,
    unwind_digest,
};
use crate::address::{ElfAddr, FileId, FileOffset};
use crate::clock::MonotonicNs;
use crate::limits::ELF_STRING_BYTES_MAX;
use crate::symbolize::native::NativeNames;
use crate::unwind::{self, RowTable};
use proto::BuildId;
use std::ops::Range;
use std::os::fd::{AsFd as _, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use unwind_digest::Reads;

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

    /// Times that debug information of a file was put off, because others took too much time of late; counted on.
    #[must_use]
    pub fn debug_info_put_off(&self) -> Arc<AtomicU64> {
        Arc::clone(self.names.debug_info_put_off())
    }
}

impl ForeignFiles for LocalFiles {
    fn inspect(&self, file: &OwnedFd) -> Result<FileFacts, ForeignFileError> {
        // A defect of a parser costs the file, never the thread that asks.
        let parse = AssertUnwindSafe(|| inspect::inspect(Source::file(file.as_fd())?));
        catch_unwind(parse).unwrap_or_else(|_| Err(malformed("file", "the parser panicked")))
    }

    fn embedded(&self, file: &OwnedFd, offset: FileOffset) -> Option<Range<u64>> {
        let find = AssertUnwindSafe(|| embedded::find(Source::file(file.as_fd()).ok()?, offset.0));
        catch_unwind(find).unwrap_or_default()
    }

    fn unwind_digest(&self, file: &OwnedFd) -> Result<Option<UnwindDigest>, ForeignFileError> {
        digest(file, Reads::Frames)
    }

    fn unwind_digest_with_code(
        &self,
        file: &OwnedFd,
    ) -> Result<Option<UnwindDigest>, ForeignFileError> {
        digest(file, Reads::Code)
    }

    fn unwind_rows(&self, file: &OwnedFd) -> Result<RowTable, ForeignFileError> {
        unwind::unwind_rows(Source::file(file.as_fd())?)
    }

    fn unwind_rows_soon(&self, file: &OwnedFd) -> Result<RowTable, ForeignFileError> {
        unwind::unwind_rows_soon(Source::file(file.as_fd())?)
    }

    fn names_with(
        &self,
        id: FileId,
        file: &OwnedFd,
        debug_file: Option<&OwnedFd>,
        addresses: &[ElfAddr],
        until: MonotonicNs,
    ) -> Vec<Names> {
        self.names.names(id, file, debug_file, addresses, until)
    }

    fn build_id(&self, file: &OwnedFd) -> Option<BuildId> {
        let elf = Elf::parse(Source::file(file.as_fd()).ok()?).ok()?;
        notes::build_ids(&elf).gnu
    }

    fn debug_link(&self, file: &OwnedFd) -> Option<String> {
        let elf = Elf::parse(Source::file(file.as_fd()).ok()?).ok()?;
        let section = elf.section(".gnu_debuglink")?;
        let bytes = elf.section_bytes("debug link", section, ELF_STRING_BYTES_MAX).ok()?;
        let name = bytes.split(|&byte| byte == 0).next()?;
        String::from_utf8(name.to_vec()).ok()
    }
}

fn digest(file: &OwnedFd, reads: Reads) -> Result<Option<UnwindDigest>, ForeignFileError> {
    let digest = unwind_digest::digest(Source::file(file.as_fd())?, reads);
    // The compiler leaves out what is damaged, and says so; a digest of that file has no use.
    Ok(digest.unwrap_or_else(|error| {
        tracing::debug!(%error, "no digest of what rows are compiled from");
        None
    }))
}
