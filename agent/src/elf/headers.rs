//! The headers of an ELF file: segments and sections, and how to get at their bytes. Not what a section
//! means.

use super::source::{Source, malformed, u16_at, u32_at, u64_at};
use super::{ExecutableSegment, ForeignFileError};
use crate::address::{ElfAddr, FileOffset};
use crate::limits::{
    ELF_NAME_TABLE_BYTES_MAX, ELF_SECTIONS_MAX, ELF_SEGMENTS_MAX, ELF_STRING_BYTES_MAX,
};
use object::elf;
use std::io::Read as _;
use std::ops::Range;

const HEADER_BYTES: u64 = 64;
const SEGMENT_BYTES: u64 = 56;
const SECTION_BYTES: u64 = 64;

/// One program header.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment {
    pub(crate) kind: u32,
    pub(crate) flags: u32,
    pub(crate) offset: u64,
    pub(crate) address: u64,
    pub(crate) file_size: u64,
    pub(crate) memory_size: u64,
}

/// One section header.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Section {
    /// Where its name begins among all names.
    pub(crate) name: u32,
    pub(crate) kind: u32,
    pub(crate) flags: u64,
    pub(crate) address: u64,
    pub(crate) offset: u64,
    pub(crate) size: u64,
    pub(crate) link: u32,
}

impl Section {
    /// True if the section takes part in the running program (`SHF_ALLOC`).
    pub(crate) fn is_loaded(&self) -> bool {
        self.flags & elf::SHF_ALLOC.0 != 0
    }

    /// True if it holds code.
    pub(crate) fn is_code(&self) -> bool {
        self.is_loaded() && self.flags & elf::SHF_EXECINSTR.0 != 0
    }
}

/// An ELF file whose headers were read.
#[derive(Debug)]
pub(crate) struct Elf<'a> {
    source: Source<'a>,
    /// `e_type`.
    pub(crate) kind: u16,
    /// `e_entry`.
    pub(crate) entry: u64,
    /// `e_shoff` and the number of headers there, for those who copy them.
    pub(crate) section_table: (u64, u64),
    pub(crate) segments: Vec<Segment>,
    pub(crate) sections: Vec<Section>,
    names: Vec<u8>,
    names_range: Option<(u64, u64)>,
}

impl<'a> Elf<'a> {
    /// Reads the headers. Only 64-bit little-endian x86-64 files are known.
    ///
    /// A damaged or missing section table is no error: the program runs without it.
    pub(crate) fn parse(source: Source<'a>) -> Result<Self, ForeignFileError> {
        let (mut elf, header) = Self::begin(source)?;
        let short = || malformed("ELF header", "too short");
        let section_offset = u64_at(&header, 40).ok_or_else(short)?;
        let section_size = u16_at(&header, 58).ok_or_else(short)?;
        let section_count = u16_at(&header, 60).ok_or_else(short)?;
        let names_index = u16_at(&header, 62).ok_or_else(short)?;
        if section_offset != 0 && u64::from(section_size) == SECTION_BYTES {
            elf.read_sections(section_offset, section_count, names_index);
        }
        Ok(elf)
    }

    /// Reads the program headers alone: 7 KiB of a file at most.
    pub(crate) fn parse_segments(source: Source<'a>) -> Result<Self, ForeignFileError> {
        Ok(Self::begin(source)?.0)
    }

    /// What the program headers say, and the file header.
    fn begin(source: Source<'a>) -> Result<(Self, Vec<u8>), ForeignFileError> {
        let header = source.read("ELF header", 0, HEADER_BYTES, HEADER_BYTES)?;
        if header.get(..7) != Some(&[0x7f, b'E', b'L', b'F', 2, 1, 1]) {
            return Err(malformed("ELF header", "not a 64-bit little-endian ELF file"));
        }
        let short = || malformed("ELF header", "too short");
        let kind = u16_at(&header, 16).ok_or_else(short)?;
        let machine = u16_at(&header, 18).ok_or_else(short)?;
        if machine != elf::EM_X86_64.0 {
            return Err(malformed("ELF header", &format!("machine {machine} is not x86-64")));
        }
        let entry = u64_at(&header, 24).ok_or_else(short)?;
        let segment_offset = u64_at(&header, 32).ok_or_else(short)?;
        let segment_size = u16_at(&header, 54).ok_or_else(short)?;
        let segment_count = u16_at(&header, 56).ok_or_else(short)?;
        if segment_count > 0 && u64::from(segment_size) != SEGMENT_BYTES {
            return Err(malformed("program headers", "entry size is not 56"));
        }
        let segments = read_segments(source, segment_offset, segment_count)?;
        let elf = Self {
            source,
            kind,
            entry,
            section_table: (0, 0),
            segments,
            sections: Vec::new(),
            names: Vec::new(),
            names_range: None,
        };
        Ok((elf, header))
    }

    /// The file behind.
    pub(crate) fn source(&self) -> Source<'a> {
        self.source
    }

    /// Fills `sections` and `names` as far as they are sound.
    fn read_sections(&mut self, offset: u64, count: u16, names_index: u16) {
        let Ok(first) = self.source.read("section header", offset, SECTION_BYTES, SECTION_BYTES)
        else {
            return;
        };
        // Counts that do not fit stand in the first header (ELF specification, "extended numbering").
        let count = match (count, parse_section(&first)) {
            (0, Some(section)) => section.size,
            (count, _) => u64::from(count),
        };
        let names_index = match (names_index, parse_section(&first)) {
            (u16::MAX, Some(section)) => u64::from(section.link),
            (index, _) => u64::from(index),
        };
        let Some(length) = count.checked_mul(SECTION_BYTES).filter(|_| count <= ELF_SECTIONS_MAX)
        else {
            return;
        };
        let max = ELF_SECTIONS_MAX * SECTION_BYTES;
        let Ok(table) = self.source.read("section headers", offset, length, max) else {
            return;
        };
        let (entries, _) = table.as_chunks::<64>();
        self.sections = entries.iter().filter_map(|entry| parse_section(entry)).collect();
        self.section_table = (offset, count);
        let names = usize::try_from(names_index).ok().and_then(|index| self.sections.get(index));
        if let Some(&names) = names {
            let read = self.source.read(
                "section names",
                names.offset,
                names.size,
                ELF_NAME_TABLE_BYTES_MAX,
            );
            self.names = read.unwrap_or_default();
            self.names_range = Some((names.offset, names.size));
        }
    }

    /// File range of the section names.
    pub(crate) fn section_names_range(&self) -> Option<(u64, u64)> {
        self.names_range
    }

    /// The section's name, empty if it is damaged, cut if it is longer than any.
    pub(crate) fn section_name(&self, section: &Section) -> &[u8] {
        let rest = self.names_from(section);
        let max = usize::try_from(ELF_STRING_BYTES_MAX).unwrap_or(usize::MAX);
        rest.get(..max).unwrap_or(rest).split(|&byte| byte == 0).next().unwrap_or_default()
    }

    /// All names. Who reads that of each section to its end may read all of it as often as there are
    /// sections.
    pub(crate) fn section_names(&self) -> &[u8] {
        &self.names
    }

    fn names_from(&self, section: &Section) -> &[u8] {
        let rest = usize::try_from(section.name).ok().and_then(|start| self.names.get(start..));
        rest.unwrap_or_default()
    }

    fn is_named(&self, section: &Section, name: &str) -> bool {
        let rest = self.names_from(section).strip_prefix(name.as_bytes());
        rest.is_some_and(|rest| rest.first().is_none_or(|&byte| byte == 0))
    }

    /// The first section of this name.
    pub(crate) fn section(&self, name: &str) -> Option<&Section> {
        self.sections.iter().find(|section| self.is_named(section, name))
    }

    /// Every section of this name (BOLT leaves two of some).
    pub(crate) fn sections_named(&self, name: &str) -> impl Iterator<Item = &Section> {
        self.sections.iter().filter(move |section| self.is_named(section, name))
    }

    /// The bytes of a section, decompressed. `max` bounds both forms.
    pub(crate) fn section_bytes(
        &self,
        what: &'static str,
        section: &Section,
        max: u64,
    ) -> Result<Vec<u8>, ForeignFileError> {
        if section.kind == elf::SHT_NOBITS.0 {
            return Err(malformed(what, "the section has no bytes in this file"));
        }
        let bytes = self.source.read(what, section.offset, section.size, max)?;
        if section.flags & elf::SHF_COMPRESSED.0 == 0 {
            return Ok(bytes);
        }
        decompress(what, &bytes, max)
    }

    /// Executable `PT_LOAD` segments, ascending by address.
    pub(crate) fn executable_segments(&self) -> Vec<ExecutableSegment> {
        let mut found: Vec<ExecutableSegment> = self
            .segments
            .iter()
            .filter(|segment| {
                segment.kind == elf::PT_LOAD.0
                    && segment.flags & elf::PF_X.0 != 0
                    && segment.memory_size > 0
                    && segment.address.checked_add(segment.memory_size).is_some()
            })
            .map(|segment| ExecutableSegment {
                address: ElfAddr(segment.address),
                file_offset: FileOffset(segment.offset),
                size: segment.memory_size,
            })
            .collect();
        found.sort_by_key(|segment| segment.address);
        found
    }

    /// Addresses of the `PT_LOAD` segments that are written to: where variables lie.
    pub(crate) fn writable_segments(&self) -> impl Iterator<Item = Range<u64>> {
        let writable = self
            .segments
            .iter()
            .filter(|it| it.kind == elf::PT_LOAD.0 && it.flags & elf::PF_W.0 != 0);
        writable.filter_map(|it| Some(it.address..it.address.checked_add(it.memory_size)?))
    }

    /// The first segment of a kind.
    pub(crate) fn segment(&self, kind: elf::ProgramType) -> Option<&Segment> {
        self.segments.iter().find(|segment| segment.kind == kind.0)
    }

    /// The file range that backs `address` and how many bytes follow there in the same segment.
    pub(crate) fn file_range(&self, address: u64) -> Option<(u64, u64)> {
        self.segments.iter().filter(|segment| segment.kind == elf::PT_LOAD.0).find_map(|segment| {
            let into = address.checked_sub(segment.address)?;
            let left = segment.file_size.checked_sub(into).filter(|&left| left > 0)?;
            Some((segment.offset.checked_add(into)?, left))
        })
    }

    /// Reads memory as the loader would lay it out (without relocations and `.bss`).
    pub(crate) fn read_address(
        &self,
        what: &'static str,
        address: u64,
        length: u64,
        max: u64,
    ) -> Result<Vec<u8>, ForeignFileError> {
        match self.file_range(address) {
            Some((offset, left)) if length <= left => self.source.read(what, offset, length, max),
            _ => Err(malformed(what, "address lies in no segment")),
        }
    }
}

fn read_segments(
    source: Source<'_>,
    offset: u64,
    count: u16,
) -> Result<Vec<Segment>, ForeignFileError> {
    if u64::from(count) > ELF_SEGMENTS_MAX {
        return Err(ForeignFileError::Limit { what: "program headers", max: ELF_SEGMENTS_MAX });
    }
    let length = u64::from(count) * SEGMENT_BYTES;
    let table = source.read("program headers", offset, length, ELF_SEGMENTS_MAX * SEGMENT_BYTES)?;
    let (entries, _) = table.as_chunks::<56>();
    Ok(entries.iter().filter_map(|entry| parse_segment(entry)).collect())
}

fn parse_segment(bytes: &[u8]) -> Option<Segment> {
    Some(Segment {
        kind: u32_at(bytes, 0)?,
        flags: u32_at(bytes, 4)?,
        offset: u64_at(bytes, 8)?,
        address: u64_at(bytes, 16)?,
        file_size: u64_at(bytes, 32)?,
        memory_size: u64_at(bytes, 40)?,
    })
}

fn parse_section(bytes: &[u8]) -> Option<Section> {
    Some(Section {
        name: u32_at(bytes, 0)?,
        kind: u32_at(bytes, 4)?,
        flags: u64_at(bytes, 8)?,
        address: u64_at(bytes, 16)?,
        offset: u64_at(bytes, 24)?,
        size: u64_at(bytes, 32)?,
        link: u32_at(bytes, 40)?,
    })
}

/// Undoes `SHF_COMPRESSED`: a header of 24 bytes (type, reserved, size, alignment), then the stream.
fn decompress(what: &'static str, bytes: &[u8], max: u64) -> Result<Vec<u8>, ForeignFileError> {
    let kind = u32_at(bytes, 0).ok_or_else(|| malformed(what, "no compression header"))?;
    let size = u64_at(bytes, 8).ok_or_else(|| malformed(what, "no compression header"))?;
    let stream = bytes.get(24..).ok_or_else(|| malformed(what, "no compression header"))?;
    if size > max {
        return Err(ForeignFileError::Limit { what, max });
    }
    // The stated size is a claim: memory grows with what the stream really gives, up to the claim.
    let mut out = Vec::new();
    match kind {
        kind if kind == elf::ELFCOMPRESS_ZLIB.0 => {
            flate2::read::ZlibDecoder::new(stream).take(size).read_to_end(&mut out)?;
        }
        kind if kind == elf::ELFCOMPRESS_ZSTD.0 => {
            zstd::stream::read::Decoder::new(stream)?.take(size).read_to_end(&mut out)?;
        }
        other => return Err(malformed(what, &format!("unknown compression {other}"))),
    }
    if out.len() as u64 != size {
        return Err(malformed(what, "shorter than its compression header says"));
    }
    Ok(out)
}
