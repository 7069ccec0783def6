//! Compiled tables on disk, so that an agent that starts again does not compile the largest files of the
//! host anew. A table is found by a digest of what it is compiled from, not by the ids that a file carries:
//! whoever makes a file chooses those.
//!
//! Only root writes here: the folder is refused unless it is the agent's own and closed to others, and no
//! link is followed. What is damaged is deleted.

mod format;
mod keeper;

pub use keeper::Keeper;

use super::compile::Unwound;
use crate::elf::UnwindDigest;
use crate::limits::{TABLE_CACHE_FILE_BYTES_MAX, TABLE_CACHE_FILES_MAX};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Timestamps, UTIME_NOW, UTIME_OMIT};
use std::fs::File;
use std::hash::{BuildHasher as _, RandomState};
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

/// Why a folder is not used.
#[derive(Debug, thiserror::Error)]
pub enum CacheError {
    /// Somebody else could write there.
    #[error("it must belong to this user and be closed to others (mode 0700)")]
    NotOwn,
    /// The kernel refused.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// What happened so far, for the metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheCounts {
    /// Tables that were read instead of compiled.
    pub hits: u64,
    /// Tables that were not there.
    pub misses: u64,
    /// Tables written.
    pub stored: u64,
    /// Files that were damaged, and deleted.
    pub damaged: u64,
    /// Files deleted to make room.
    pub deleted: u64,
    /// Times that the disk refused.
    pub failed: u64,
    /// Tables that the disk did not give, or take, in time: they were compiled, and are not kept.
    pub late: u64,
}

/// A folder of compiled tables.
#[derive(Debug)]
pub struct TableCache {
    folder: OwnedFd,
    bytes_max: u64,
    counts: [AtomicU64; 7],
}

#[derive(Clone, Copy, Debug)]
enum Count {
    Hit,
    Miss,
    Stored,
    Damaged,
    Deleted,
    Failed,
    Late,
}

/// A file of the folder.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    /// When it was used last, nanoseconds since 1970.
    used_ns: i128,
    bytes: u64,
    name: Vec<u8>,
}

impl TableCache {
    /// Opens the folder, and makes it if its parent exists.
    ///
    /// # Errors
    /// When it cannot be made or written, or others could write in it.
    pub fn open(folder: &Path, bytes_max: u64) -> Result<Self, CacheError> {
        match rustix::fs::mkdir(folder, Mode::RWXU) {
            Ok(()) | Err(rustix::io::Errno::EXIST) => {}
            Err(errno) => return Err(io::Error::from(errno).into()),
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let folder = rustix::fs::open(folder, flags, Mode::empty()).map_err(io::Error::from)?;
        let stat = rustix::fs::fstat(&folder).map_err(io::Error::from)?;
        let open_to_others = stat.st_mode & 0o077 != 0;
        if stat.st_uid != rustix::process::geteuid().as_raw() || open_to_others {
            return Err(CacheError::NotOwn);
        }
        let cache = Self { folder, bytes_max, counts: Default::default() };
        // Of an agent that ended while it wrote.
        for left in cache.entries()?.iter().filter(|entry| is_beside(&entry.name)) {
            cache.delete(&left.name);
        }
        cache.make_room(0)?;
        Ok(cache)
    }

    /// What happened so far.
    #[must_use]
    pub fn counts(&self) -> CacheCounts {
        let [hits, misses, stored, damaged, deleted, failed, late] =
            self.counts.each_ref().map(|count| count.load(Ordering::Relaxed));
        CacheCounts { hits, misses, stored, damaged, deleted, failed, late }
    }

    /// The table that was compiled from what has this digest.
    pub fn find(&self, digest: &UnwindDigest) -> Option<Unwound> {
        let name = file_name(digest);
        let bytes = match self.read(&name) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.count(Count::Miss);
                return None;
            }
            Err(error) => {
                tracing::debug!(%error, name, "cached table not read");
                self.count(Count::Failed);
                return None;
            }
        };
        let Some(unwound) = format::decode(&bytes, digest) else {
            tracing::warn!(name, "a cached table is damaged; it is deleted");
            self.count(Count::Damaged);
            self.delete(name.as_bytes());
            return None;
        };
        self.count(Count::Hit);
        // It was used: it goes last.
        let now = rustix::fs::Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
        let keep = rustix::fs::Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
        let times = Timestamps { last_access: keep, last_modification: now };
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        if let Err(error) = rustix::fs::utimensat(&self.folder, name, &times, flags) {
            tracing::debug!(%error, "use of a cached table not noted");
        }
        Some(unwound)
    }

    /// Keeps a table. A failure costs a compilation later, no more.
    pub fn store(&self, digest: &UnwindDigest, unwound: &Unwound) {
        let bytes = format::encode(digest, unwound);
        let stored = self.make_room(bytes.len() as u64).and_then(|room| {
            if room { self.write(&file_name(digest), &bytes).map(|()| true) } else { Ok(false) }
        });
        match stored {
            Ok(true) => self.count(Count::Stored),
            Ok(false) => {}
            Err(error) => {
                tracing::debug!(%error, "compiled table not kept");
                self.count(Count::Failed);
            }
        }
    }

    fn count(&self, which: Count) {
        if let Some(count) = self.counts.get(which as usize) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&self.folder, name, flags, Mode::empty())?;
        let stat = rustix::fs::fstat(&file)?;
        let regular = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        let size = u64::try_from(stat.st_size).unwrap_or(u64::MAX);
        if !regular || size > TABLE_CACHE_FILE_BYTES_MAX {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut bytes = Vec::with_capacity(usize::try_from(size).unwrap_or(0));
        File::from(file).take(TABLE_CACHE_FILE_BYTES_MAX).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// Writes beside, then renames: a file under its name is whole. Power that fails may leave a damaged
    /// one, which its digest tells. Of two that write one table, the later replaces the earlier by the
    /// same bytes.
    fn write(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        // Neither pid nor thread is unique: in a container the agent has the same pid after each start.
        let beside = format!("{name}.{:016x}", RandomState::new().hash_one(std::process::id()));
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        let file = rustix::fs::openat(&self.folder, &beside, flags | OFlags::NOFOLLOW, mode)?;
        let written = File::from(file)
            .write_all(bytes)
            .and_then(|()| Ok(rustix::fs::renameat(&self.folder, &beside, &self.folder, name)?));
        if written.is_err() {
            self.delete(beside.as_bytes());
        }
        written
    }

    fn delete(&self, name: &[u8]) {
        if let Err(error) = rustix::fs::unlinkat(&self.folder, name, AtFlags::empty()) {
            tracing::debug!(%error, "cached table not deleted");
        }
    }

    /// Deletes what was not used for longest until `bytes` fit. False if they never do.
    fn make_room(&self, bytes: u64) -> io::Result<bool> {
        if bytes > TABLE_CACHE_FILE_BYTES_MAX.min(self.bytes_max) {
            return Ok(false);
        }
        let mut entries = self.entries()?;
        entries.sort_unstable();
        let mut sum: u64 = entries.iter().map(|entry| entry.bytes).sum();
        let mut count = entries.len();
        for entry in entries {
            if sum.saturating_add(bytes) <= self.bytes_max && count < TABLE_CACHE_FILES_MAX {
                break;
            }
            self.delete(&entry.name);
            self.count(Count::Deleted);
            sum -= entry.bytes;
            count -= 1;
        }
        Ok(true)
    }

    fn entries(&self) -> io::Result<Vec<Entry>> {
        let mut entries = Vec::new();
        for entry in Dir::read_from(&self.folder)? {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if name == b"." || name == b".." {
                continue;
            }
            let stat = match rustix::fs::statat(&self.folder, name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => stat,
                // Another worker has renamed or deleted it since.
                Err(rustix::io::Errno::NOENT) => continue,
                Err(errno) => return Err(errno.into()),
            };
            if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
                continue;
            }
            let seconds = i128::from(stat.st_mtime) * 1_000_000_000;
            entries.push(Entry {
                used_ns: seconds + i128::from(stat.st_mtime_nsec),
                bytes: u64::try_from(stat.st_size).unwrap_or(0),
                name: name.to_vec(),
            });
        }
        Ok(entries)
    }
}

fn file_name(digest: &UnwindDigest) -> String {
    digest.0.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// True for the name of a file that is being written: a digest's, a dot and a suffix.
fn is_beside(name: &[u8]) -> bool {
    let (digest, rest) = name.split_at_checked(2 * size_of::<UnwindDigest>()).unwrap_or_default();
    digest.iter().all(u8::is_ascii_hexdigit) && rest.starts_with(b".")
}

#[cfg(test)]
mod tests;
