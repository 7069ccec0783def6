//! The executable mappings of one program, as they were at one time: which file an address belongs to
//! and where in it. A set never changes; a new generation is a new set.

use super::files::Backing;
use super::looks::Seen;
use super::maps::MapsEntry;
use crate::address::{AbsAddr, ElfAddr, FileOffset};
use crate::elf::{FileFacts, Runtime};
use crate::limits::{MAPPINGS_PER_PROCESS_MAX, PAGE_BYTES};
use crate::normalize::MappedFile;
use std::sync::Arc;

/// One executable mapping.
#[derive(Clone, Debug)]
pub struct Mapping {
    /// First address.
    pub start: AbsAddr,
    /// First address behind it.
    pub end: AbsAddr,
    /// Offset in the file, bytes.
    pub file_offset: FileOffset,
    /// The file, `None` for code that no file backs.
    pub file: Option<Arc<MappedFile>>,
    /// `address - bias` (wrapping) = ELF address; `None` where no executable segment of the file is
    /// mapped there.
    pub bias: Option<u64>,
    /// Nobody has looked at the file yet: what is known of it is its path.
    pub awaited: bool,
}

/// Where an address lies.
#[derive(Clone, Debug)]
pub enum Location<'a> {
    /// In code of a file.
    File(&'a Arc<MappedFile>, ElfAddr),
    /// In a file whose segments are unknown.
    Unplaced(&'a Arc<MappedFile>, FileOffset),
    /// In memory that no file backs, or nowhere.
    Anonymous,
}

/// Mappings, ascending by address, without overlaps.
#[derive(Clone, Debug)]
pub struct MappingSet {
    mappings: Vec<Mapping>,
    /// Who interprets code in this process, if a mapped file says so.
    runtime: Runtime,
}

impl Default for MappingSet {
    fn default() -> Self {
        Self { mappings: Vec::new(), runtime: Runtime::Native }
    }
}

impl Mapping {
    /// A mapping of what `backing` says.
    #[must_use]
    pub fn new(start: AbsAddr, end: AbsAddr, file_offset: FileOffset, backing: Backing) -> Self {
        let file = match backing {
            Backing::Anonymous => None,
            Backing::File(file) => Some(file),
        };
        let length = end.0.saturating_sub(start.0);
        let facts = file.as_ref().and_then(|file| file.facts.as_ref());
        let bias = facts.and_then(|facts| bias(facts, start, length, file_offset));
        Self { start, end, file_offset, file, bias, awaited: false }
    }

    /// A mapping as `maps` or a record states it, and what was seen behind it.
    #[must_use]
    pub fn seen(entry: &MapsEntry, seen: Seen) -> Self {
        let mapping = Self::new(entry.start, entry.end, entry.file_offset, seen.backing);
        Self { awaited: seen.awaited, ..mapping }
    }

    /// True if it comes to lie where another file is mapped.
    pub(super) fn replaces(&self, old: &Self) -> bool {
        let place = |mapping: &Self| Some((mapping.file.as_ref()?.id, mapping.bias));
        self.start < old.end && old.start < self.end && place(self) != place(old)
    }

    /// The part of this mapping within `start..end`, if there is one.
    fn part(&self, start: AbsAddr, end: AbsAddr) -> Option<Self> {
        let (start, end) = (self.start.max(start), self.end.min(end));
        let skipped = start.0.checked_sub(self.start.0)?;
        let file_offset = FileOffset(self.file_offset.0.saturating_add(skipped));
        (start < end).then(|| Self { start, end, file_offset, ..self.clone() })
    }
}

impl MappingSet {
    /// A set of mappings in any order; of overlapping ones the later in the list wins.
    #[must_use]
    pub fn new(mappings: impl IntoIterator<Item = Mapping>) -> Self {
        Self::default().with(mappings)
    }

    /// This set with further mappings laid over it, as `mmap` with `MAP_FIXED` does. Stops at the
    /// number of mappings that the kernel side can hold.
    #[must_use]
    pub fn with(&self, added: impl IntoIterator<Item = Mapping>) -> Self {
        let mut mappings = self.mappings.clone();
        for new in added {
            let from = mappings.partition_point(|old| old.end <= new.start);
            let to = mappings.partition_point(|old| old.start < new.end);
            if from >= to && mappings.len() >= MAPPINGS_PER_PROCESS_MAX {
                continue;
            }
            let covered = mappings.get(from..to).unwrap_or_default();
            let before = covered.first().and_then(|old| old.part(AbsAddr(0), new.start));
            let behind = covered.last().and_then(|old| old.part(new.end, AbsAddr(u64::MAX)));
            mappings.splice(from..to, before.into_iter().chain([new]).chain(behind));
        }
        mappings.shrink_to_fit(); // it is kept for as long as the process lives
        let runtime = mappings.iter().filter_map(Mapping::interpreter).next();
        Self { mappings, runtime: runtime.unwrap_or(Runtime::Native) }
    }

    /// True if a mapping comes to lie where another file is.
    #[must_use]
    pub(super) fn is_replaced_by(&self, new: &Mapping) -> bool {
        let first = self.mappings.partition_point(|old| old.end <= new.start);
        let behind = self.mappings.get(first..).unwrap_or_default();
        behind.iter().take_while(|old| old.start < new.end).any(|old| new.replaces(old))
    }

    /// All mappings, ascending.
    #[must_use]
    pub fn mappings(&self) -> &[Mapping] {
        &self.mappings
    }

    /// Bytes that they take.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.mappings.capacity() * size_of::<Mapping>()
    }

    /// Who interprets code in this process.
    #[must_use]
    pub const fn runtime(&self) -> Runtime {
        self.runtime
    }

    /// The mapping that holds an address.
    #[must_use]
    pub fn mapping(&self, address: AbsAddr) -> Option<&Mapping> {
        let at = self.mappings.partition_point(|mapping| mapping.end <= address);
        self.mappings.get(at).filter(|mapping| mapping.start <= address)
    }

    /// The file in whose variables an address lies, and where there. Files are mapped as a whole, their variables behind
    /// their code.
    #[must_use]
    pub fn locate_data(&self, address: AbsAddr) -> Option<(&Arc<MappedFile>, ElfAddr)> {
        let behind = self.mappings.partition_point(|mapping| mapping.start <= address);
        let code = self.mappings.get(behind.checked_sub(1)?)?;
        let file = code.file.as_ref()?;
        let in_file = ElfAddr(address.0.wrapping_sub(code.bias?));
        let data = &file.facts.as_ref()?.data;
        data.iter().any(|range| range.contains(&in_file.0)).then_some((file, in_file))
    }

    /// Where an address lies.
    #[must_use]
    pub fn locate(&self, address: AbsAddr) -> Location<'_> {
        let Some(mapping) = self.mapping(address) else { return Location::Anonymous };
        match (&mapping.file, mapping.bias) {
            (None, _) => Location::Anonymous,
            (Some(file), Some(bias)) => Location::File(file, ElfAddr(address.0.wrapping_sub(bias))),
            (Some(file), None) => {
                let offset = mapping.file_offset.0.saturating_add(address.0 - mapping.start.0);
                Location::Unplaced(file, FileOffset(offset))
            }
        }
    }
}

impl Mapping {
    fn interpreter(&self) -> Option<Runtime> {
        let runtime = self.file.as_ref()?.facts.as_ref()?.runtime;
        matches!(runtime, Runtime::Python | Runtime::Node | Runtime::Java).then_some(runtime)
    }
}

/// `absolute address - bias = ELF address` for a mapping of `length` bytes from `file_offset`: of the
/// executable segments that are loaded from those pages, the one that fills most of the mapping counts.
/// Segments begin in the middle of a page, and two may share one (lld), so pages are compared.
fn bias(facts: &FileFacts, start: AbsAddr, length: u64, file_offset: FileOffset) -> Option<u64> {
    let mapped = file_offset.0..file_offset.0.saturating_add(length);
    let overlap = |first: u64, size: u64| {
        let end = first.saturating_add(size).min(mapped.end);
        end.saturating_sub(first.max(mapped.start))
    };
    let segment = facts
        .segments
        .iter()
        .map(|segment| {
            let first_page = segment.file_offset.0 / PAGE_BYTES * PAGE_BYTES;
            let whole = overlap(first_page, segment.size.saturating_add(PAGE_BYTES - 1));
            (overlap(segment.file_offset.0, segment.size), whole, segment)
        })
        .filter(|(own, whole, _)| *own > 0 || *whole > 0)
        .max_by_key(|(own, whole, _)| (*own, *whole))
        .map(|(_, _, segment)| segment)?;
    let elf_start =
        file_offset.0.wrapping_sub(segment.file_offset.0).wrapping_add(segment.address.0);
    Some(start.0.wrapping_sub(elf_start))
}

#[cfg(test)]
mod tests;
