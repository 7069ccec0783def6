//! Copies the sections that name code into a sealed memory file: what blazesym reads cannot change or
//! shrink under it, and holds no link to another file.

use crate::elf::ForeignFileError;
use crate::elf::headers::{Elf, Section};
use crate::elf::source::{Source, malformed, u64_at};
use crate::limits::{DEBUG_INFO_BYTES_MAX, ELF_NAME_TABLE_BYTES_MAX, ELF_SECTIONS_MAX};
use object::elf;
use rustix::fs::{MemfdFlags, SealFlags};
use std::os::fd::{AsFd as _, OwnedFd};

/// DWARF sections that lines, functions and inlined functions are read from.
const DEBUG_SECTIONS: [&str; 11] = [
    ".debug_abbrev",
    ".debug_addr",
    ".debug_aranges",
    ".debug_info",
    ".debug_line",
    ".debug_line_str",
    ".debug_ranges",
    ".debug_rnglists",
    ".debug_str",
    ".debug_str_offsets",
    ".debug_types",
];
/// Bytes copied at once.
const PIECE_BYTES: u64 = 1 << 20;
const SECTION_HEADER_BYTES: usize = 64;

/// A copy and what it costs.
#[derive(Debug)]
pub(super) struct Copy {
    pub(super) file: OwnedFd,
    pub(super) bytes: u64,
}

/// Makes the copy; nothing if the file has no debug information.
pub(super) fn copy(source: Source<'_>) -> Result<Option<Copy>, ForeignFileError> {
    let elf = Elf::parse(source)?;
    let has_lines = [".debug_info", ".debug_line"].iter().all(|name| {
        elf.section(name)
            .is_some_and(|section| section.kind != elf::SHT_NOBITS.0 && section.size > 0)
    });
    if !has_lines {
        return Ok(None);
    }
    let wanted: Vec<bool> = elf.sections.iter().map(|section| is_wanted(&elf, section)).collect();
    let mut bytes = 0u64;
    for (section, _) in elf.sections.iter().zip(&wanted).filter(|&(_, &wanted)| wanted) {
        bytes = bytes.saturating_add(decompressed_size(source, section)?);
    }
    if bytes > DEBUG_INFO_BYTES_MAX {
        return Err(ForeignFileError::Limit {
            what: "debug information",
            max: DEBUG_INFO_BYTES_MAX,
        });
    }
    let file = rustix::fs::memfd_create(
        "vesta-debug-info",
        MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING,
    )
    .map_err(std::io::Error::from)?;
    // Offsets stay what they were; what is not copied is a hole.
    rustix::fs::ftruncate(&file, source.size()).map_err(std::io::Error::from)?;
    write(&file, 0, &source.read("ELF header", 0, 64, 64)?)?;
    write_section_headers(&elf, &wanted, &file)?;
    for (section, _) in elf.sections.iter().zip(&wanted).filter(|&(_, &wanted)| wanted) {
        copy_range(source, &file, section.offset, section.size)?;
    }
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE)
        .map_err(std::io::Error::from)?;
    Ok(Some(Copy { file, bytes }))
}

/// Debug sections, and symbols with their strings, for code that DWARF has lines for but no function.
fn is_wanted(elf: &Elf<'_>, section: &Section) -> bool {
    let name = elf.section_name(section);
    section.kind != elf::SHT_NOBITS.0
        && (section.kind == elf::SHT_SYMTAB.0
            || name == b".strtab"
            || name == b".shstrtab"
            || DEBUG_SECTIONS.iter().any(|wanted| wanted.as_bytes() == name))
}

/// What a section will take when it is read. A compressed one says so in its header, and blazesym will
/// believe it, so it is checked here.
fn decompressed_size(source: Source<'_>, section: &Section) -> Result<u64, ForeignFileError> {
    if section.flags & elf::SHF_COMPRESSED.0 == 0 {
        return Ok(section.size);
    }
    let header = source.read("compression header", section.offset, 24, 24)?;
    let size = u64_at(&header, 8).ok_or_else(|| malformed("compression header", "too short"))?;
    Ok(size.saturating_add(section.size))
}

/// Writes the section headers, those of other sections zeroed (`SHT_NULL`).
fn write_section_headers(
    elf: &Elf<'_>,
    wanted: &[bool],
    file: &OwnedFd,
) -> Result<(), ForeignFileError> {
    let (offset, count) = elf.section_table;
    let max = ELF_SECTIONS_MAX * SECTION_HEADER_BYTES as u64;
    let length = count.saturating_mul(SECTION_HEADER_BYTES as u64);
    let mut table = elf.source().read("section headers", offset, length, max)?;
    let (headers, _) = table.as_chunks_mut::<SECTION_HEADER_BYTES>();
    for (header, _) in
        headers.iter_mut().skip(1).zip(wanted.iter().skip(1)).filter(|(_, wanted)| !**wanted)
    {
        *header = [0; SECTION_HEADER_BYTES];
    }
    write(file, offset, &table)?;
    // The name table may bear any name.
    let names = elf.section_names_range().filter(|&(_, size)| size <= ELF_NAME_TABLE_BYTES_MAX);
    let (offset, size) = names.ok_or_else(|| malformed("section names", "missing"))?;
    copy_range(elf.source(), file, offset, size)
}

fn copy_range(
    source: Source<'_>,
    file: &OwnedFd,
    offset: u64,
    size: u64,
) -> Result<(), ForeignFileError> {
    let mut done = 0;
    while done < size {
        let piece = (size - done).min(PIECE_BYTES);
        let at = offset.saturating_add(done);
        write(file, at, &source.read("debug information", at, piece, PIECE_BYTES)?)?;
        done += piece;
    }
    Ok(())
}

fn write(file: &OwnedFd, offset: u64, mut bytes: &[u8]) -> Result<(), ForeignFileError> {
    let mut at = offset;
    while !bytes.is_empty() {
        let count = rustix::io::pwrite(file.as_fd(), bytes, at).map_err(std::io::Error::from)?;
        if count == 0 {
            return Err(malformed("debug information", "the memory file takes no more"));
        }
        bytes = bytes.get(count..).unwrap_or_default();
        at = at.saturating_add(count as u64);
    }
    Ok(())
}
