//! Libraries that programs map out of a larger file, an archive that is not compressed. Whoever reads them gets a
//! copy in memory, for as long as a descriptor is kept open; their offsets stay those of the larger file.

use super::{Backing, Entry, Files, Key, State};
use crate::address::FileOffset;
use crate::elf::FileFacts;
use crate::limits::{
    ELF_EMBEDDED_BYTES_MAX, ELF_EMBEDDED_COPIES_BYTES_MAX, ELF_EMBEDDED_SEARCHES_MAX,
};
use crate::normalize::MappedFile;
use crate::path;
use crate::process::host::Task;
use crate::process::mappings::Mapping;
use crate::process::maps::MapsEntry;
use rustix::fs::MemfdFlags;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What lies in a larger file where it is mapped.
pub(super) enum Inside {
    /// No ELF file.
    Nothing,
    /// One that cannot be copied: it is too large, there is no room at the moment, a call failed.
    LeftOut,
    Library(LibraryCopy),
}

/// A library in memory.
pub(super) struct LibraryCopy {
    facts: FileFacts,
    pub(super) descriptor: OwnedFd,
    pub(super) bytes: u64,
}

/// Room for a copy that is being made; given back when this is dropped.
struct Room<'a> {
    used: &'a AtomicU64,
    bytes: u64,
}

impl<'a> Room<'a> {
    fn take(used: &'a AtomicU64, bytes: u64) -> Option<Self> {
        let room = Self { used, bytes };
        let before = used.fetch_add(bytes, Ordering::Relaxed);
        (before.saturating_add(bytes) <= ELF_EMBEDDED_COPIES_BYTES_MAX).then_some(room)
    }
}

impl Drop for Room<'_> {
    fn drop(&mut self) {
        self.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl Files {
    /// The library inside the file, where the file has no code of its own at this mapping.
    pub(super) fn inside(
        &self,
        backing: &Backing,
        task: Task,
        mapping: &MapsEntry,
    ) -> Option<Backing> {
        let MapsEntry { start, end, file_offset, .. } = *mapping;
        let own = Mapping::new(start, end, file_offset, backing.clone());
        // A file that could not be read has no facts, and no place.
        let unread = own.file.as_ref().is_some_and(|file| file.facts.is_none());
        // Code that a program makes may lie in shared memory, in hundreds of mappings.
        let memory =
            [b"/memfd:".as_slice(), b"/dev/"].iter().any(|it| mapping.path.starts_with(it));
        if own.bias.is_some() || unread || memory || file_offset.0 == 0 {
            return None;
        }
        let opened = self.host.open(task, mapping).ok()?;
        let whole = Key::Opened(opened.identity, None);
        let key = Key::Opened(opened.identity, Some(file_offset));
        let place = Some((task, mapping));
        {
            let mut state = self.state();
            if let Some(known) = state.known(&key, place) {
                return known.library();
            }
            if state.searches(&whole).is_none_or(|searches| *searches >= ELF_EMBEDDED_SEARCHES_MAX)
            {
                state.counts.embedded_left_out += 1;
                return None;
            }
            if !state.has_room() {
                return None;
            }
        }
        let found = self.copy_inside(&opened.descriptor, file_offset);
        let mut state = self.state();
        // Another thread may have been at the same library.
        if let Some(known) = state.known(&key, place) {
            return known.library();
        }
        let copy = match found {
            Inside::Library(copy) => copy,
            Inside::LeftOut => {
                state.counts.embedded_left_out += 1;
                return None;
            }
            Inside::Nothing => {
                if let Some(searches) = state.searches(&whole) {
                    *searches += 1;
                }
                state.add(Entry::new(key, None, None, place), None);
                return None;
            }
        };
        let id = state.new_id()?;
        let file = Arc::new(MappedFile {
            id,
            path: path::shown(&mapping.path).into_owned(),
            facts: Some(copy.facts),
            kernel_build_id: None,
        });
        state.close_copies(copy.bytes);
        let descriptor = Some(Arc::new(copy.descriptor));
        let mut entry = Entry::new(key, Some(Arc::clone(&file)), descriptor, place);
        entry.copy_bytes = copy.bytes;
        entry.opened_at = crate::clock::monotonic_now();
        state.add(entry, Some((id, None)));
        Some(Backing::File(file))
    }

    /// A copy of what lies there, and its facts.
    pub(super) fn copy_inside(&self, file: &OwnedFd, mapped: FileOffset) -> Inside {
        let Some(range) = self.foreign.embedded(file, mapped) else { return Inside::Nothing };
        let bytes = range.end.saturating_sub(range.start);
        let room =
            Room::take(&self.copying_bytes, bytes).filter(|_| bytes <= ELF_EMBEDDED_BYTES_MAX);
        let copied = room.and_then(|_room| copy(file, range.start, bytes));
        let Some(descriptor) = copied else { return Inside::LeftOut };
        let Ok(mut facts) = self.foreign.inspect(&descriptor) else { return Inside::Nothing };
        for segment in &mut facts.segments {
            segment.file_offset.0 = segment.file_offset.0.saturating_add(range.start);
        }
        Inside::Library(LibraryCopy { facts, descriptor, bytes })
    }
}

impl Backing {
    /// Nothing where nothing was found.
    fn library(self) -> Option<Self> {
        matches!(self, Self::File(_)).then_some(self)
    }
}

impl State {
    /// How often nothing was found in this file, if it is known.
    fn searches(&mut self, whole: &Key) -> Option<&mut u8> {
        let id = self.by_key.get(whole)?;
        self.entries.get_mut(id).map(|entry| &mut entry.searches)
    }

    /// Closes copies that were not used for longest, until so many bytes more find room. Who needs one
    /// again makes it again.
    pub(super) fn close_copies(&mut self, bytes: u64) {
        let is_open = |entry: &&mut Entry| entry.copy_bytes > 0 && entry.descriptor.is_some();
        let held = self.entries.values_mut().filter(is_open).map(|entry| entry.copy_bytes);
        let mut held: u64 = held.sum();
        while held.saturating_add(bytes) > ELF_EMBEDDED_COPIES_BYTES_MAX {
            let open = self.entries.values_mut().filter(is_open);
            let Some(least) = open.min_by_key(|entry| entry.opened_at) else { return };
            held -= least.copy_bytes;
            least.close();
        }
    }
}

fn copy(file: &OwnedFd, start: u64, bytes: u64) -> Option<OwnedFd> {
    let copy = rustix::fs::memfd_create("inside", MemfdFlags::CLOEXEC).ok()?;
    let mut left = usize::try_from(bytes).ok()?;
    let mut from = start;
    while left > 0 {
        match rustix::fs::sendfile(&copy, file, Some(&mut from), left) {
            Ok(0) => return None,
            Ok(sent) => left = left.saturating_sub(sent),
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return None,
        }
    }
    Some(copy)
}
