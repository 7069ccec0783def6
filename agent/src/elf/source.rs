//! The bytes of one foreign file: checked reads by offset, from an open descriptor (`pread`) or from
//! memory (the vDSO). Not the meaning of the bytes.

use super::ForeignFileError;
use crate::limits::ELF_STRING_BYTES_MAX;
use rustix::fd::BorrowedFd;

/// Where bytes come from.
#[derive(Clone, Copy, Debug)]
enum Origin<'a> {
    File(BorrowedFd<'a>),
    Memory(&'a [u8]),
}

/// A readable file of known size. The size is what `fstat` said once: a file that shrinks later gives
/// an error on reading, never a signal.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Source<'a> {
    origin: Origin<'a>,
    /// Where it begins there.
    start: u64,
    size: u64,
}

impl<'a> Source<'a> {
    /// Takes an open regular file.
    pub(crate) fn file(file: BorrowedFd<'a>) -> Result<Self, ForeignFileError> {
        let stat = rustix::fs::fstat(file).map_err(std::io::Error::from)?;
        if !rustix::fs::FileType::from_raw_mode(stat.st_mode).is_file() {
            return Err(malformed("file", "not a regular file"));
        }
        let size = u64::try_from(stat.st_size)
            .map_err(|error| malformed("file size", &error.to_string()))?;
        Ok(Self { origin: Origin::File(file), start: 0, size })
    }

    /// Takes bytes in memory.
    pub(crate) fn memory(bytes: &'a [u8]) -> Self {
        Self { origin: Origin::Memory(bytes), start: 0, size: bytes.len() as u64 }
    }

    /// What follows from `offset` on, as a source of its own.
    pub(crate) fn from(self, offset: u64) -> Option<Self> {
        let size = self.size.checked_sub(offset)?;
        Some(Self { start: self.start.checked_add(offset)?, size, ..self })
    }

    /// Bytes in all.
    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// Reads exactly `length` bytes; asking for more than `max` is a [`ForeignFileError::Limit`],
    /// decided before any memory is taken.
    pub(crate) fn read(
        &self,
        what: &'static str,
        offset: u64,
        length: u64,
        max: u64,
    ) -> Result<Vec<u8>, ForeignFileError> {
        if length > max {
            return Err(ForeignFileError::Limit { what, max });
        }
        if offset.checked_add(length).is_none_or(|end| end > self.size) {
            return Err(malformed(what, "reaches beyond the end of the file"));
        }
        let length =
            usize::try_from(length).map_err(|error| malformed(what, &error.to_string()))?;
        let mut bytes = vec![0; length];
        self.fill(what, offset, &mut bytes)?;
        Ok(bytes)
    }

    /// Fills `buffer` from `offset`, whole or not at all.
    pub(crate) fn fill(
        &self,
        what: &'static str,
        offset: u64,
        buffer: &mut [u8],
    ) -> Result<(), ForeignFileError> {
        let offset = self.start.saturating_add(offset);
        match self.origin {
            Origin::File(file) => fill_from_file(file, what, offset, buffer),
            Origin::Memory(bytes) => {
                let start = usize::try_from(offset).unwrap_or(usize::MAX);
                let end = start.saturating_add(buffer.len());
                let found =
                    bytes.get(start..end).ok_or_else(|| malformed(what, "beyond the end"))?;
                buffer.copy_from_slice(found);
                Ok(())
            }
        }
    }

    /// A NUL-terminated string, at most [`ELF_STRING_BYTES_MAX`] long.
    pub(crate) fn string_at(&self, offset: u64) -> Option<Vec<u8>> {
        let mut length = 64;
        loop {
            let available = self.size.checked_sub(offset)?.min(length);
            let mut bytes = self.read("string", offset, available, ELF_STRING_BYTES_MAX).ok()?;
            if let Some(end) = bytes.iter().position(|&byte| byte == 0) {
                bytes.truncate(end);
                return Some(bytes);
            }
            if available < length || length == ELF_STRING_BYTES_MAX {
                return None;
            }
            length = (length * 8).min(ELF_STRING_BYTES_MAX);
        }
    }
}

fn fill_from_file(
    file: BorrowedFd<'_>,
    what: &'static str,
    offset: u64,
    buffer: &mut [u8],
) -> Result<(), ForeignFileError> {
    let mut done = 0;
    while done < buffer.len() {
        let rest = buffer.get_mut(done..).unwrap_or_default();
        match rustix::io::pread(file, rest, offset.saturating_add(done as u64)) {
            Ok(0) => return Err(malformed(what, "the file became shorter while it was read")),
            Ok(count) => done += count,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(std::io::Error::from(error).into()),
        }
    }
    Ok(())
}

/// A [`ForeignFileError::Malformed`].
pub(crate) fn malformed(what: &'static str, detail: &str) -> ForeignFileError {
    ForeignFileError::Malformed { what, detail: detail.to_owned() }
}

/// The little-endian `u16` at `offset`.
pub(crate) fn u16_at(bytes: &[u8], offset: usize) -> Option<u16> {
    array_at(bytes, offset).map(u16::from_le_bytes)
}

/// The little-endian `u32` at `offset`.
pub(crate) fn u32_at(bytes: &[u8], offset: usize) -> Option<u32> {
    array_at(bytes, offset).map(u32::from_le_bytes)
}

/// The little-endian `u64` at `offset`.
pub(crate) fn u64_at(bytes: &[u8], offset: usize) -> Option<u64> {
    array_at(bytes, offset).map(u64::from_le_bytes)
}

fn array_at<const N: usize>(bytes: &[u8], offset: usize) -> Option<[u8; N]> {
    bytes.get(offset..offset.checked_add(N)?)?.try_into().ok()
}
