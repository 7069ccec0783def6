//! Where the functions of a file begin and end, by its call frame information: all of them, as programs that are linked
//! statically have no table to search.

use super::effort::Effort;
use crate::elf::headers::Elf;
use crate::limits::PROBED_FRAME_BYTES_MAX;
use gimli::UnwindSection as _;
use object::elf;
use std::ops::Range;

/// The ranges of code that are described, in ascending order.
#[derive(Debug, Default)]
pub(crate) struct Functions {
    ranges: Vec<Range<u64>>,
}

impl Functions {
    /// Reads them; none where the file has no `.eh_frame` section, or one that is damaged or takes too much effort.
    pub(crate) fn of(elf: &Elf<'_>, effort: &Effort) -> Self {
        Self { ranges: ranges(elf, effort).unwrap_or_default() }
    }

    /// The function at that address.
    pub(crate) fn at(&self, address: u64) -> Option<Range<u64>> {
        let behind = self.ranges.partition_point(|range| range.start <= address);
        let range = self.ranges.get(behind.checked_sub(1)?)?;
        range.contains(&address).then(|| range.clone())
    }
}

fn ranges(elf: &Elf<'_>, effort: &Effort) -> Option<Vec<Range<u64>>> {
    /// Entries between two looks at the clock: each may refer to one that takes milliseconds.
    const ENTRIES: usize = 16;
    let section = elf.section(".eh_frame").filter(|section| section.kind != elf::SHT_NOBITS.0)?;
    let bytes = elf.section_bytes(".eh_frame", section, PROBED_FRAME_BYTES_MAX).ok()?;
    let text = elf.section(".text").map_or(0, |section| section.address);
    let bases = gimli::BaseAddresses::default().set_eh_frame(section.address).set_text(text);
    let mut frames = gimli::EhFrame::new(&bytes, gimli::LittleEndian);
    frames.set_address_size(8);
    let mut entries = frames.entries(&bases);
    let mut found: Vec<Range<u64>> = Vec::new();
    while let Some(entry) = entries.next().ok()? {
        let gimli::CieOrFde::Fde(partial) = entry else { continue };
        if found.len().is_multiple_of(ENTRIES) && !effort.goes_on() {
            return None;
        }
        let fde = partial.parse(gimli::EhFrame::cie_from_offset).ok()?;
        let start = fde.initial_address();
        found.push(start..start.checked_add(fde.len())?);
    }
    found.sort_unstable_by_key(|range| range.start);
    Some(found)
}
