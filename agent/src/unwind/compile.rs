//! Compiles the rows of one file: finds the sections, even where the section table was stripped, asks
//! each source, closes the root.

use super::RowTable;
use super::builder::{Builder, Origin};
use super::cfi::{self, FrameSection};
use super::go;
use crate::elf::ForeignFileError;
use crate::elf::go::GoTable;
use crate::elf::headers::{Elf, Section};
use crate::elf::source::{Source, malformed};
use crate::limits::{
    ELF_DYNAMIC_BYTES_MAX, UNWIND_ENTRY_BYTES_MAX, UNWIND_SECTION_BYTES_MAX, UNWIND_SECTIONS_MAX,
};
use agent_ebpf::{RuleKind, UnwindRule};
use object::elf;

/// Compiles the rows of a file in memory, the vDSO.
///
/// # Errors
/// See [`ForeignFileError`].
pub fn unwind_rows_from_bytes(bytes: &[u8]) -> Result<RowTable, ForeignFileError> {
    unwind_rows(Source::memory(bytes))
}

/// See [`crate::elf::ForeignFiles::unwind_rows`].
pub(crate) fn unwind_rows(source: Source<'_>) -> Result<RowTable, ForeignFileError> {
    let elf = Elf::parse(source)?;
    let mut builder = Builder::new(elf.executable_segments());
    let mut damaged = 0;
    for section in eh_frames(&elf)? {
        damaged += cfi::add_eh_frame(&mut builder, &section)?;
    }
    if let Some(section) = elf.section(".debug_frame") {
        let bytes = elf.section_bytes(".debug_frame", section, UNWIND_SECTION_BYTES_MAX)?;
        let section = FrameSection { bytes, address: 0, text: 0, got: 0, ends_with_zero: false };
        damaged += cfi::add_debug_frame(&mut builder, &section)?;
    }
    // Damaged Go tables cost the Go code, not the C code beside it.
    match GoTable::find(&elf) {
        Ok(Some(table)) => damaged += go::add_go(&mut builder, &table)?,
        Ok(None) => {}
        Err(error) => tracing::debug!(%error, "Go tables not readable"),
    }
    close_root(&elf, &mut builder)?;
    if damaged > 0 {
        tracing::debug!(damaged, "entries of call frame information could not be read");
    }
    builder.finish()
}

/// Every `.eh_frame`. BOLT keeps the original one under another name, for functions it left alone.
fn eh_frames(elf: &Elf<'_>) -> Result<Vec<FrameSection>, ForeignFileError> {
    let address_of = |name: &str| elf.section(name).map_or(0, |section| section.address);
    let text = address_of(".text");
    let got = address_of(".got");
    let sections: Vec<&Section> = elf
        .sections_named(".eh_frame")
        .chain(elf.sections_named(".bolt.org.eh_frame"))
        .filter(|section| section.kind != elf::SHT_NOBITS.0)
        .collect();
    if sections.is_empty() {
        return Ok(eh_frame_by_header(elf)?.into_iter().collect());
    }
    // One budget for all: headers may repeat, and each may stand for bytes that decompress to much more.
    let mut left = UNWIND_SECTION_BYTES_MAX;
    let frames = sections.into_iter().take(UNWIND_SECTIONS_MAX).map(|section| {
        let bytes = elf.section_bytes(".eh_frame", section, left)?;
        left = left.saturating_sub(u64::try_from(bytes.len()).unwrap_or(u64::MAX));
        Ok(FrameSection { bytes, address: section.address, text, got, ends_with_zero: false })
    });
    frames.collect()
}

/// `.eh_frame` through `PT_GNU_EH_FRAME`, as the C++ runtime finds it.
fn eh_frame_by_header(elf: &Elf<'_>) -> Result<Option<FrameSection>, ForeignFileError> {
    let Some(header) = elf.segment(elf::PT_GNU_EH_FRAME) else {
        return Ok(None);
    };
    // Version, three encodings, then the pointer: at most 12 bytes (LSB 5.0, section 10.6.2).
    let length = header.file_size.min(12);
    let bytes = elf.source().read(".eh_frame_hdr", header.offset, length, 12)?;
    let bases = gimli::BaseAddresses::default().set_eh_frame_hdr(header.address);
    let pointer = bytes.get(1).zip(bytes.get(4..)).and_then(|(&encoding, _)| {
        // gimli parses a whole header; the table behind is not needed, so it is declared absent.
        let mut head = bytes.clone();
        *head.get_mut(1)? = encoding;
        *head.get_mut(2)? = gimli::constants::DW_EH_PE_omit.0;
        *head.get_mut(3)? = gimli::constants::DW_EH_PE_omit.0;
        let header = gimli::EhFrameHdr::new(&head, gimli::LittleEndian);
        header.parse(&bases, 8).ok()?.eh_frame_ptr().direct().ok()
    });
    let address = pointer.ok_or_else(|| malformed(".eh_frame_hdr", "no pointer to .eh_frame"))?;
    let (offset, left) = elf
        .file_range(address)
        .ok_or_else(|| malformed(".eh_frame_hdr", "points outside of the file"))?;
    let bytes = elf.source().read(".eh_frame", offset, left, UNWIND_SECTION_BYTES_MAX)?;
    Ok(Some(FrameSection { bytes, address, text: 0, got: header.address, ends_with_zero: true }))
}

/// True if the kernel starts the file at its entry. Linkers write the start of `.text` there in libraries,
/// where an ordinary function lies.
fn is_program(elf: &Elf<'_>) -> bool {
    /// `DT_FLAGS_1` and its bit `DF_1_PIE` (glibc elf/elf.h), the mark of a static position-independent one.
    const FLAGS_1: u64 = 0x6fff_fffb;
    const FLAG_PIE: u64 = 0x0800_0000;
    if elf.kind == elf::ET_EXEC.0 || elf.segment(elf::PT_INTERP).is_some() {
        return true;
    }
    let dynamic = elf.segment(elf::PT_DYNAMIC).and_then(|segment| {
        let length = segment.file_size.min(ELF_DYNAMIC_BYTES_MAX);
        elf.source().read("dynamic", segment.offset, length, ELF_DYNAMIC_BYTES_MAX).ok()
    });
    let word = |entry: &[u8], at: usize| {
        let bytes = entry.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
        bytes.map_or(0, u64::from_le_bytes)
    };
    dynamic.is_some_and(|bytes| {
        let mut entries = bytes.chunks_exact(16);
        entries.any(|entry| word(entry, 0) == FLAGS_1 && word(entry, 8) & FLAG_PIE != 0)
    })
}

/// The entry function was called by nobody. Where its own information does not say so (static musl),
/// this does.
fn close_root(elf: &Elf<'_>, builder: &mut Builder) -> Result<(), ForeignFileError> {
    if !is_program(elf) {
        return Ok(());
    }
    let range = match builder.containing(elf.entry) {
        Some((_, true)) => return Ok(()),
        Some((range, false)) if range.start == elf.entry => range,
        Some(_) => return Ok(()),
        None => {
            let Some(bound) = builder.bound_after(elf.entry) else { return Ok(()) };
            elf.entry..bound.min(elf.entry.saturating_add(UNWIND_ENTRY_BYTES_MAX))
        }
    };
    let start = range.start;
    if let Some(mut function) = builder.function(range, Origin::Entry)? {
        function.push(start, UnwindRule::plain(RuleKind::End))?;
        function.finish();
    }
    Ok(())
}
