//! How many files are known, and what they may take: who maps a file decides neither.

use super::{Entry, State, carried};
use crate::address::FileId;
use crate::clock::monotonic_now;
use crate::elf::ExecutableSegment;
use crate::limits::{FILE_PLACES_MAX, FILES_BYTES_MAX, FILES_FULL_NS, FILES_MAX};
use crate::normalize::MappedFile;

impl State {
    pub(super) fn is_full(&self) -> bool {
        self.entries.len() >= FILES_MAX || self.bytes >= FILES_BYTES_MAX
    }

    /// True if another file can be added; makes room if there is none. Where everything is mapped, that is tried
    /// now and then only: it looks at all files.
    pub(super) fn has_room(&mut self) -> bool {
        if !self.is_full() {
            return true;
        }
        let now = monotonic_now();
        if now >= self.full_until {
            self.make_room(FILES_MAX.saturating_sub(1), FILES_BYTES_MAX);
            if !self.is_full() {
                return true;
            }
            self.full_until = now.plus(FILES_FULL_NS);
            tracing::warn!("programs map too many files: others have neither tables nor names");
        }
        self.counts.refused += 1;
        false
    }

    /// Forgets least recently used files that nobody maps, a sixteenth at once, until so many with so many bytes
    /// are left.
    pub(super) fn make_room(&mut self, len_max: usize, bytes_max: usize) {
        if self.entries.len() <= len_max && self.bytes < bytes_max {
            return;
        }
        let mut unused: Vec<(u64, FileId)> = self
            .entries
            .iter()
            .filter(|(_, entry)| entry.unused())
            .map(|(id, entry)| (entry.used, *id))
            .collect();
        unused.sort_unstable();
        let (len, bytes) = (len_max - len_max / 16, bytes_max - bytes_max / 16);
        for (_, id) in unused {
            if self.entries.len() <= len && self.bytes <= bytes {
                break;
            }
            let Some(entry) = self.entries.remove(&id) else { continue };
            self.bytes = self.bytes.saturating_sub(entry.bytes());
            self.by_key.remove(&entry.key);
            if let Some(file) = entry.file
                && let Some(build_id) = carried(&file).cloned()
                && let key = (build_id, file.path.clone())
                && self.by_build_id.get(&key) == Some(&id)
            {
                self.by_build_id.remove(&key);
            }
            self.counts.forgotten += 1;
        }
    }
}

impl Entry {
    /// Bytes that it and its keys take, at most and about: its path stands in each of them and in each place.
    pub(super) fn bytes(&self) -> usize {
        let segments =
            self.file.as_ref().and_then(|file| Some(file.facts.as_ref()?.segments.len()));
        let segments = segments.unwrap_or_default() * size_of::<ExecutableSegment>();
        size_of::<Self>()
            + size_of::<MappedFile>()
            + segments
            + self.path_bytes * (3 + FILE_PLACES_MAX)
    }
}
