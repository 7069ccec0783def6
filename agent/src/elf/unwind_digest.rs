//! A digest of everything in a file that its unwind rows are compiled from: headers, call frame information,
//! the dynamic table; for rows from code, the code. Files with one digest have the same rows, whatever ids they carry.

use super::dynamic::DynamicSymbols;
use super::headers::{Elf, Section};
use super::source::Source;
use super::{ForeignFileError, UnwindDigest};
use crate::limits::{
    ELF_DYNAMIC_BYTES_MAX, PAGED_BYTES, TABLE_CACHE_CODE_BYTES_MAX, TABLE_CACHE_INPUT_BYTES_MIN,
    UNWIND_SECTION_BYTES_MAX, UNWIND_SECTIONS_MAX,
};
use object::elf;
use sha2::{Digest as _, Sha256};

/// Sections that rows are compiled from; see `unwind::compile`.
const EH_FRAMES: [&str; 2] = [".eh_frame", ".bolt.org.eh_frame"];
const DEBUG_FRAME: &str = ".debug_frame";
/// Where they have these, there are more sources than the digest looks at.
const OTHER_SOURCES: [&str; 3] = [".gopclntab", ".data.rel.ro.gopclntab", ".go.buildinfo"];

/// A hash of the sources that rows depend on, from `build.rs`: rows that another agent compiled are not found.
const COMPILER: &str = env!("VESTA_ROW_COMPILER");

/// Bytes at the start of a section of code that may be a stub's.
const STUB_BYTES: u64 = 64;

/// What of a file its rows are compiled from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reads {
    /// Call frame information.
    Frames,
    /// Code, and the symbols that say where its functions begin, besides.
    Code,
}

/// `None` for a file that is compiled as fast as it is read, and for what has rows from elsewhere.
pub(super) fn digest(
    source: Source<'_>,
    reads: Reads,
) -> Result<Option<UnwindDigest>, ForeignFileError> {
    let elf = Elf::parse(source)?;
    let Some(mut parts) = frames_worth_keeping(&elf)? else { return Ok(None) };
    if reads == Reads::Code {
        let is_read = |section: &&Section| {
            let symbols = [elf::SHT_SYMTAB.0, elf::SHT_DYNSYM.0].contains(&section.kind);
            symbols || section.is_code() && section.kind != elf::SHT_NOBITS.0
        };
        let read: Vec<Section> = elf.sections.iter().filter(is_read).copied().collect();
        let bytes = read.iter().fold(0_u64, |sum, section| sum.saturating_add(section.size));
        if bytes > TABLE_CACHE_CODE_BYTES_MAX {
            return Ok(None);
        }
        parts.extend(read);
    }
    digest_of(&elf, &parts, reads).map(Some)
}

/// True for a file whose rows are found by their digest. Its code has no part in that.
pub(crate) fn has_digest(elf: &Elf<'_>) -> bool {
    frames_worth_keeping(elf).is_ok_and(|frames| frames.is_some())
}

/// The call frame information of a file whose table is worth being kept.
fn frames_worth_keeping(elf: &Elf<'_>) -> Result<Option<Vec<Section>>, ForeignFileError> {
    let others = OTHER_SOURCES.iter().any(|name| elf.section(name).is_some());
    if elf.sections.is_empty() || others || may_hold_known_code(elf)? {
        return Ok(None);
    }
    let named = |name| {
        let sections = elf.sections_named(name).copied();
        sections.filter(|section| section.kind != elf::SHT_NOBITS.0)
    };
    let mut frames: Vec<Section> = EH_FRAMES.into_iter().flat_map(named).collect();
    if frames.is_empty() {
        // The compiler looks for it through PT_GNU_EH_FRAME, which may point anywhere in the file.
        return Ok(None);
    }
    frames.extend(named(DEBUG_FRAME));
    let bytes = frames.iter().fold(0_u64, |sum, section| sum.saturating_add(section.size));
    // What is larger is compiled in part only, and sparse: its maker pays nothing for the bytes.
    let worth = TABLE_CACHE_INPUT_BYTES_MIN..=UNWIND_SECTION_BYTES_MAX;
    let kept = worth.contains(&bytes) && frames.len() <= UNWIND_SECTIONS_MAX;
    Ok(kept.then_some(frames))
}

fn digest_of(
    elf: &Elf<'_>,
    parts: &[Section],
    reads: Reads,
) -> Result<UnwindDigest, ForeignFileError> {
    let source = elf.source();
    let mut hash = Sha256::new();
    hash.update(COMPILER);
    hash.update([u8::from(reads == Reads::Code)]);
    hash.update(super::inspect::htlhash(source)?.as_bytes());
    hash.update(elf.kind.to_le_bytes());
    hash.update(elf.entry.to_le_bytes());
    for segment in &elf.segments {
        for number in [segment.offset, segment.address, segment.file_size, segment.memory_size] {
            hash.update(number.to_le_bytes());
        }
        hash.update([segment.kind, segment.flags].map(u32::to_le_bytes).as_flattened());
    }
    if let Some(dynamic) = elf.segment(elf::PT_DYNAMIC) {
        // As much of it as the compiler reads, and no other one.
        let length = dynamic.file_size.min(ELF_DYNAMIC_BYTES_MAX);
        add(&mut hash, source, dynamic.offset, length)?;
    }
    // Two files may not differ in where one part ends and have the same bytes in all.
    for count in [elf.segments.len(), elf.sections.len(), elf.section_names().len()] {
        hash.update((count as u64).to_le_bytes());
    }
    hash.update(elf.section_names());
    for section in &elf.sections {
        hash.update(section.name.to_le_bytes());
        for number in [section.flags, section.address, section.offset, section.size] {
            hash.update(number.to_le_bytes());
        }
        hash.update(section.kind.to_le_bytes());
        if section.is_code() {
            // The shape of the linker's stubs.
            add(&mut hash, source, section.offset, section.size.min(STUB_BYTES))?;
        }
    }
    for section in parts {
        add(&mut hash, source, section.offset, section.size)?;
    }
    Ok(UnwindDigest(hash.finalize().into()))
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
    let makes_contexts =
        || DynamicSymbols::of(elf).is_some_and(|symbols| symbols.defines("makecontext"));
    Ok(makes_contexts() || !needs_others && elf.segment(elf::PT_INTERP).is_none())
}

/// The caller bounds `length`.
fn add(
    hash: &mut Sha256,
    source: Source<'_>,
    offset: u64,
    length: u64,
) -> Result<(), ForeignFileError> {
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

#[cfg(test)]
mod tests {
    use super::*;

    const FRAMES_AT: u64 = 0x1000;

    /// A library with these program headers (kind, offset, bytes) and sections (name, bytes), all of the
    /// latter at one place; the rest of `length` is zeros.
    fn file(segments: &[(u32, u64, u64)], sections: &[(&str, u64)], length: u64) -> Vec<u8> {
        let section_at = 64 + 56 * segments.len();
        let names_at = section_at + 64 * (sections.len() + 1);
        let mut names = vec![0];
        let mut table = Vec::new();
        for (name, size) in sections {
            let at = u32::try_from(names.len()).unwrap();
            names.extend(name.bytes().chain([0]));
            table.extend([at, elf::SHT_PROGBITS.0].map(u32::to_le_bytes).concat());
            table.extend([2, 0x9000, FRAMES_AT, *size].map(u64::to_le_bytes).concat());
            table.extend([0; 24]);
        }
        table.extend([0, elf::SHT_STRTAB.0].map(u32::to_le_bytes).concat());
        let names_size = names.len() as u64;
        table.extend([0, 0, names_at as u64, names_size].map(u64::to_le_bytes).concat());
        table.extend([0; 24]);
        let mut bytes = vec![0x7f, b'E', b'L', b'F', 2, 1, 1];
        bytes.resize(16, 0);
        bytes.extend([3_u16, elf::EM_X86_64.0].map(u16::to_le_bytes).concat());
        bytes.extend(1_u32.to_le_bytes());
        bytes.extend([0, 64, section_at as u64].map(u64::to_le_bytes).concat());
        bytes.extend(0_u32.to_le_bytes());
        let count = u16::try_from(sections.len()).unwrap();
        let segment_count = u16::try_from(segments.len()).unwrap();
        let halves = [64, 56, segment_count, 64, count + 1, count];
        bytes.extend(halves.map(u16::to_le_bytes).concat());
        for &(kind, offset, size) in segments {
            bytes.extend([kind, 4].map(u32::to_le_bytes).concat());
            bytes.extend([offset, 0, 0, size, size, 8].map(u64::to_le_bytes).concat());
        }
        bytes.extend(table);
        bytes.extend(names);
        assert!(bytes.len() as u64 <= FRAMES_AT, "headers reach into the frames");
        bytes.resize(usize::try_from(length).unwrap(), 0);
        bytes
    }

    const DYNAMIC: u32 = elf::PT_DYNAMIC.0;
    const INTERP: (u32, u64, u64) = (elf::PT_INTERP.0, 0, 1);
    const FRAME_BYTES: u64 = TABLE_CACHE_INPUT_BYTES_MIN;
    const END: u64 = FRAMES_AT + FRAME_BYTES;

    fn check(segments: &[(u32, u64, u64)], sections: &[(&str, u64)], has: bool) {
        let bytes = file(segments, sections, END);
        let digest = digest(Source::memory(&bytes), Reads::Frames);
        assert_eq!(digest.unwrap().is_some(), has, "{segments:?} {sections:?}");
    }

    #[test]
    fn what_is_read_is_bounded() {
        let frames = (".eh_frame", FRAME_BYTES);
        let first = (DYNAMIC, FRAMES_AT, 16);
        check(&[INTERP, first], &[frames], true);
        // None of these is in the file: who read them would fail.
        check(&[INTERP, first, (DYNAMIC, 1 << 40, 1 << 40)], &[frames], true);
        let most = UNWIND_SECTION_BYTES_MAX;
        check(&[INTERP, first], &[(".eh_frame", most), (".eh_frame", most)], false);
        check(&[INTERP, first], &[(".eh_frame", FRAME_BYTES - 1)], false);
    }

    #[test]
    fn frames_that_no_section_names_have_no_digest() {
        let (debug, dynamic) = ((".debug_frame", FRAME_BYTES), (DYNAMIC, FRAMES_AT, 16));
        check(&[INTERP, dynamic], &[debug], false);
        check(&[INTERP, dynamic, (elf::PT_GNU_EH_FRAME.0, FRAMES_AT, 12)], &[debug], false);
        check(&[INTERP, dynamic], &[debug, (".bolt.org.eh_frame", 16)], true);
    }

    #[test]
    fn only_the_first_dynamic_table_counts() {
        let of = |second: u64, at: Option<u64>| {
            let segments = [INTERP, (DYNAMIC, FRAMES_AT, 16), (DYNAMIC, second, 16)];
            let mut bytes = file(&segments, &[(".eh_frame", FRAME_BYTES)], END + 9000);
            if let Some(at) = at {
                bytes[usize::try_from(at).unwrap()] = 7;
            }
            digest(Source::memory(&bytes), Reads::Frames).unwrap().unwrap().0
        };
        // Behind the frames and before the last page, which has a part in it anyway.
        assert_eq!(of(END + 64, None), of(END + 64, Some(END + 70)));
        assert_ne!(of(END + 64, None), of(END + 64, Some(FRAMES_AT + 8)));
    }
}
