//! A digest of everything in a file that its unwind rows are compiled from: headers, call frame information,
//! the dynamic table. Files with one digest have the same rows, whatever ids they carry.

use super::headers::Elf;
use super::source::Source;
use super::{ForeignFileError, UnwindDigest};
use crate::limits::{
    ELF_DYNAMIC_BYTES_MAX, PAGED_BYTES, TABLE_CACHE_INPUT_BYTES_MIN, UNWIND_SECTION_BYTES_MAX,
    UNWIND_SECTIONS_MAX,
};
use object::elf;
use sha2::{Digest as _, Sha256};

/// Sections that rows are compiled from; see `unwind::compile`.
const SECTIONS: [&str; 3] = [".eh_frame", ".bolt.org.eh_frame", ".debug_frame"];
/// Where they have these, there are more sources than the digest looks at.
const OTHER_SOURCES: [&str; 3] = [".gopclntab", ".data.rel.ro.gopclntab", ".go.buildinfo"];

/// Bytes at the start of a section of code that may be a stub's.
const STUB_BYTES: u64 = 64;

/// `None` for a file that is compiled as fast as it is read, and for what has rows from elsewhere.
pub(super) fn digest(source: Source<'_>) -> Result<Option<UnwindDigest>, ForeignFileError> {
    let elf = Elf::parse(source)?;
    let others = OTHER_SOURCES.iter().any(|name| elf.section(name).is_some());
    if elf.sections.is_empty() || others || may_hold_known_code(&elf)? {
        return Ok(None);
    }
    let frames: Vec<_> = SECTIONS
        .iter()
        .flat_map(|name| elf.sections_named(name))
        .filter(|section| section.kind != elf::SHT_NOBITS.0)
        .collect();
    let bytes = frames.iter().fold(0_u64, |sum, section| sum.saturating_add(section.size));
    if bytes < TABLE_CACHE_INPUT_BYTES_MIN || frames.len() > UNWIND_SECTIONS_MAX {
        return Ok(None);
    }
    let mut hash = Sha256::new();
    hash.update(super::inspect::htlhash(source)?.as_bytes());
    hash.update(elf.kind.to_le_bytes());
    hash.update(elf.entry.to_le_bytes());
    for segment in &elf.segments {
        for number in [segment.offset, segment.address, segment.file_size, segment.memory_size] {
            hash.update(number.to_le_bytes());
        }
        hash.update([segment.kind, segment.flags].map(u32::to_le_bytes).as_flattened());
        if segment.kind == elf::PT_DYNAMIC.0 {
            add(&mut hash, source, segment.offset, segment.file_size)?;
        }
    }
    for section in &elf.sections {
        hash.update(elf.section_name(section));
        for number in [section.flags, section.address, section.offset, section.size] {
            hash.update(number.to_le_bytes());
        }
        hash.update(section.kind.to_le_bytes());
        if section.is_code() {
            // The shape of the linker's stubs.
            add(&mut hash, source, section.offset, section.size.min(STUB_BYTES))?;
        }
    }
    for section in frames {
        add(&mut hash, source, section.offset, section.size)?;
    }
    Ok(Some(UnwindDigest(hash.finalize().into())))
}

/// True for a file whose code is searched for what `unwind::known` knows: a static program, or a library
/// that needs no other.
fn may_hold_known_code(elf: &Elf<'_>) -> Result<bool, ForeignFileError> {
    /// `DT_NEEDED` (System V ABI, "Dynamic Section").
    const NEEDED: [u8; 8] = 1_u64.to_le_bytes();
    let Some(dynamic) = elf.segment(elf::PT_DYNAMIC) else { return Ok(true) };
    let length = dynamic.file_size.min(ELF_DYNAMIC_BYTES_MAX);
    let bytes = elf.source().read("dynamic", dynamic.offset, length, ELF_DYNAMIC_BYTES_MAX)?;
    let needs_others = bytes.chunks_exact(16).any(|entry| entry.starts_with(&NEEDED));
    Ok(!needs_others && elf.segment(elf::PT_INTERP).is_none())
}

fn add(
    hash: &mut Sha256,
    source: Source<'_>,
    offset: u64,
    length: u64,
) -> Result<(), ForeignFileError> {
    if length > UNWIND_SECTION_BYTES_MAX {
        let max = UNWIND_SECTION_BYTES_MAX;
        return Err(ForeignFileError::Limit { what: "unwind information", max });
    }
    let mut done = 0;
    while done < length {
        let piece = (length - done).min(16 * PAGED_BYTES);
        let bytes = source.read(
            "unwind information",
            offset.saturating_add(done),
            piece,
            16 * PAGED_BYTES,
        )?;
        hash.update(&bytes);
        done += piece;
    }
    Ok(())
}
