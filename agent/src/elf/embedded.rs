//! Finds the ELF file that lies inside a larger one and whose code is mapped from there: a library in an archive that
//! is not compressed, at a page of its own. Reads headers alone.

use super::headers::Elf;
use super::source::Source;
use crate::limits::{ELF_EMBEDDED_HEADERS_MAX, ELF_EMBEDDED_PAGES_MAX, PAGE_BYTES};
use object::elf;
use std::ops::Range;

/// Where the file lies whose code is mapped from `mapped` on. The nearest one below that has an executable segment
/// just there; the whole file is none.
pub(super) fn find(source: Source<'_>, mapped: u64) -> Option<Range<u64>> {
    let last = mapped / PAGE_BYTES;
    let pages = last.saturating_sub(ELF_EMBEDDED_PAGES_MAX).max(1)..=last;
    let starts = pages.rev().map(|page| page * PAGE_BYTES).filter(|&start| {
        let mut magic = [0; 4];
        source.fill("magic", start, &mut magic).is_ok() && magic == *b"\x7fELF"
    });
    starts.take(ELF_EMBEDDED_HEADERS_MAX).find_map(|start| {
        let file = Elf::parse_segments(source.from(start)?).ok()?;
        let into = mapped - start;
        let holds = file.executable_segments().iter().any(|segment| {
            let first = segment.file_offset.0 / PAGE_BYTES * PAGE_BYTES;
            (first..segment.file_offset.0.saturating_add(segment.size)).contains(&into)
        });
        holds.then_some(())?;
        let file = Elf::parse(source.from(start)?).ok()?;
        Some(start..start.saturating_add(size(&file)))
    })
}

/// Bytes up to the end of what the headers name.
fn size(file: &Elf<'_>) -> u64 {
    let segments = file.segments.iter().map(|it| it.offset.saturating_add(it.file_size));
    let stored = file.sections.iter().filter(|it| it.kind != elf::SHT_NOBITS.0);
    let sections = stored.map(|it| it.offset.saturating_add(it.size));
    let (table, count) = file.section_table;
    let ends = segments.chain(sections).chain([table.saturating_add(count.saturating_mul(64))]);
    ends.max().unwrap_or(0).min(file.source().size())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::unwind::made_file;

    #[test]
    fn a_file_inside_another_is_found_by_its_code() {
        let inner = made_file();
        let mut outer = b"an archive".to_vec();
        outer.resize(0x3000, 7);
        outer.extend(&inner);
        outer.resize(0x9000, 7);
        let found =
            |bytes: &[u8], mapped| find(Source::memory(bytes), mapped).map(|range| range.start);
        assert_eq!(found(&outer, 0x3000), Some(0x3000), "where its code begins");
        assert_eq!(found(&outer, 0x8000), None, "behind its code");
        assert_eq!(found(&outer, 0x2000), None, "before it");
        assert_eq!(found(&inner, 0), None, "the file itself");
    }
}
