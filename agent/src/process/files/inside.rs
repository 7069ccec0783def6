//! Libraries that programs map out of a larger file, an archive that is not compressed. Whoever reads them gets a
//! copy in memory, for as long as a descriptor is kept open; their offsets stay those of the larger file.

use super::{Backing, Entry, Files, Key};
use crate::address::FileOffset;
use crate::elf::FileFacts;
use crate::limits::ELF_EMBEDDED_BYTES_MAX;
use crate::normalize::MappedFile;
use crate::path;
use crate::process::host::Task;
use crate::process::mappings::Mapping;
use crate::process::maps::MapsEntry;
use rustix::fs::MemfdFlags;
use std::os::fd::OwnedFd;
use std::sync::Arc;

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
        let key = Key::Opened(opened.identity, Some(file_offset));
        let place = Some((task, mapping));
        if let Some(known) = self.state().known(&key, place) {
            return Some(known).filter(|known| matches!(known, Backing::File(_)));
        }
        let found = self.copy_inside(&opened.descriptor, file_offset);
        let mut state = self.state();
        let Some((facts, copy)) = found else {
            state.add(Entry::new(key, None, None, place), None);
            return None;
        };
        let id = state.new_id()?;
        let file = Arc::new(MappedFile {
            id,
            path: path::shown(&mapping.path).into_owned(),
            facts: Some(facts),
            kernel_build_id: None,
        });
        let mut entry = Entry::new(key, Some(Arc::clone(&file)), Some(Arc::new(copy)), place);
        entry.opened_at = crate::clock::monotonic_now();
        state.add(entry, Some((id, None)));
        Some(Backing::File(file))
    }

    /// A copy of what lies there, and its facts.
    pub(super) fn copy_inside(
        &self,
        file: &OwnedFd,
        mapped: FileOffset,
    ) -> Option<(FileFacts, OwnedFd)> {
        let range = self.foreign.embedded(file, mapped)?;
        let mut left = usize::try_from(range.end.checked_sub(range.start)?).ok()?;
        if left as u64 > ELF_EMBEDDED_BYTES_MAX {
            return None;
        }
        let copy = rustix::fs::memfd_create("inside", MemfdFlags::CLOEXEC).ok()?;
        let mut from = range.start;
        while left > 0 {
            match rustix::fs::sendfile(&copy, file, Some(&mut from), left).ok()? {
                0 => return None,
                sent => left = left.saturating_sub(sent),
            }
        }
        let mut facts = self.foreign.inspect(&copy).ok()?;
        for segment in &mut facts.segments {
            segment.file_offset.0 = segment.file_offset.0.saturating_add(range.start);
        }
        Some((facts, copy))
    }
}
