//! Finds the functions that `.eh_frame` and `.debug_frame` describe: where each begins and where its entry
//! lies, sorted by address, in 8 bytes a function. Sections are read through once, in pieces, and then
//! entry by entry; no section is ever whole in memory.

use super::builder::Builder;
use super::rule::Bytes;
use crate::elf::ForeignFileError;
use crate::elf::slotted::Slotted;
use crate::elf::source::{Source, u32_at, u64_at};
use crate::limits::{
    UNWIND_CIE_BYTES_MAX, UNWIND_CIES_BYTES_MAX, UNWIND_FDE_BYTES_MAX, UNWIND_FUNCTIONS_MAX,
    UNWIND_PIECE_BYTES,
};
use gimli::{BaseAddresses, LittleEndian, UnwindSection};
use hashbrown::HashMap;
use std::sync::Arc;

/// Which of the two formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    EhFrame,
    DebugFrame,
}

/// Where one section lies.
#[derive(Clone, Copy, Debug)]
pub(super) struct FrameSection<'a> {
    /// What its bytes are read from.
    pub(super) source: Source<'a>,
    /// Offset there.
    pub(super) offset: u64,
    /// Bytes.
    pub(super) size: u64,
    /// Its address in memory, for pointers relative to their place.
    pub(super) address: u64,
    /// Base of text-relative pointers (`.text`), 0 if unknown.
    pub(super) text: u64,
    /// Base of data-relative pointers (`.got`), 0 if unknown.
    pub(super) got: u64,
    /// The size is a bound only: an entry of length zero is the end.
    pub(super) ends_with_zero: bool,
    pub(super) format: Format,
}

/// The sections of one file and what was found in them. An entry's place is counted through all sections.
pub(super) struct Entries<'a> {
    sections: Vec<Section<'a>>,
    /// Start relative to the builder's base, above the entry's place. Ascending when found, and for equal
    /// starts the section that comes first wins.
    functions: Arc<Vec<u64>>,
    cies: HashMap<u32, Option<Cie>>,
    cies_bytes: usize,
    /// Entries that could not be read.
    pub(super) damaged: u64,
    /// Functions beyond a limit.
    pub(super) left_out: u64,
}

struct Section<'a> {
    place: u32,
    input: FrameSection<'a>,
    reader: Slotted<'a>,
}

/// What many functions share.
#[derive(Debug)]
struct Cie {
    bytes: Box<[u8]>,
    /// How addresses are written, `DW_EH_PE_absptr` where nothing says it.
    encoding: u8,
}

/// An entry without its function's name: its length field, and the word that tells the two kinds apart.
#[derive(Clone, Copy, Debug)]
struct Header {
    /// Bytes of the whole entry.
    size: u64,
    /// Bytes of the length.
    length_bytes: usize,
    /// Bytes of the word.
    word_bytes: usize,
    word: u64,
}

/// One function's entry behind the CIE it refers to, as if they were a section of their own.
#[derive(Debug, Default)]
pub(super) struct Pair {
    pub(super) bytes: Vec<u8>,
    /// Where the function's entry begins.
    pub(super) function_at: usize,
    /// Address of `bytes`, such that the function's entry has its own address.
    pub(super) address: u64,
    pub(super) text: u64,
    pub(super) got: u64,
    pub(super) format: Option<Format>,
    cie_place: Option<u32>,
}

impl<'a> Entries<'a> {
    /// Reads through `sections`, in the order in which they are believed.
    pub(super) fn find(
        sections: Vec<FrameSection<'a>>,
        builder: &Builder<'_>,
    ) -> Result<Self, ForeignFileError> {
        let mut place = 0u32;
        let mut placed = Vec::new();
        let mut left_out = 0;
        for input in sections {
            match u32::try_from(input.size).ok().and_then(|size| place.checked_add(size)) {
                Some(next) => {
                    let reader = Slotted::new(input.source);
                    placed.push(Section { place, input, reader });
                    place = next;
                }
                None => left_out += 1,
            }
        }
        let mut entries = Self {
            sections: placed,
            functions: Arc::default(),
            cies: HashMap::new(),
            cies_bytes: 0,
            damaged: 0,
            left_out,
        };
        let mut piece = Vec::new();
        let mut functions = Vec::new();
        for index in 0..entries.sections.len() {
            entries.read_through(index, &mut piece, &mut functions, builder);
        }
        entries.check()?;
        // An input section's functions are in order already, and there are few of those.
        functions.sort_unstable();
        entries.functions = Arc::new(functions);
        Ok(entries)
    }

    /// The same, for another thread.
    pub(super) fn twin(&self) -> Self {
        let again = |section: &Section<'a>| {
            let Section { place, input, .. } = *section;
            Section { place, input, reader: Slotted::new(input.source) }
        };
        Self {
            sections: self.sections.iter().map(again).collect(),
            functions: Arc::clone(&self.functions),
            cies: HashMap::new(),
            cies_bytes: 0,
            damaged: 0,
            left_out: 0,
        }
    }

    /// How many functions there are.
    pub(super) fn len(&self) -> usize {
        self.functions.len()
    }

    /// Start, relative to the builder's base, of a function by number.
    pub(super) fn start(&self, number: usize) -> Option<u32> {
        self.functions.get(number).and_then(|function| u32::try_from(function >> 32).ok())
    }

    /// The number of the function that begins at `start`, relative to the builder's base.
    pub(super) fn number_at(&self, start: u32) -> Option<usize> {
        let number = self.functions.partition_point(|&function| function >> 32 < start.into());
        (self.start(number) == Some(start)).then_some(number)
    }

    /// Fails if the file could not be read.
    pub(super) fn check(&mut self) -> Result<(), ForeignFileError> {
        self.sections.iter_mut().try_for_each(|section| section.reader.check())
    }

    /// Walks the entries by their lengths, so that one that is damaged does not hide the rest.
    fn read_through(
        &mut self,
        index: usize,
        piece: &mut Vec<u8>,
        functions: &mut Vec<u64>,
        builder: &Builder<'_>,
    ) {
        let Some(&Section { input, .. }) = self.sections.get(index) else { return };
        let mut at = 0;
        while at < input.size {
            let length = (input.size - at).min(UNWIND_PIECE_BYTES);
            let Ok(room) = usize::try_from(length) else { return };
            piece.resize(room, 0);
            let Some(section) = self.sections.get_mut(index) else { return };
            if section.reader.fill(input.offset.saturating_add(at), piece).is_none() {
                return;
            }
            let mut done = 0;
            while let Some(header) = header_at(piece, done, input.format) {
                let ends = header.size == 4 && input.ends_with_zero;
                let whole = !ends && {
                    let from = (at, &**piece, done, header);
                    self.read_entry(index, from, functions, builder)
                };
                if !whole {
                    if ends {
                        return;
                    }
                    break;
                }
                done += usize::try_from(header.size).unwrap_or(room);
            }
            if done == 0 {
                // An entry that does not fit into a piece, or whose length is a lie.
                self.damaged += u64::from(!input.ends_with_zero);
                let header = header_at(piece, 0, input.format);
                let size = header.map_or(input.size, |header| header.size);
                at = at.saturating_add(size);
            } else {
                at += done as u64;
            }
        }
    }

    /// Notes the entry at `done` of a piece that begins at `at`; false if it is not whole there.
    fn read_entry(
        &mut self,
        index: usize,
        (at, piece, done, header): (u64, &[u8], usize, Header),
        functions: &mut Vec<u64>,
        builder: &Builder<'_>,
    ) -> bool {
        let end = usize::try_from(header.size).ok().and_then(|size| done.checked_add(size));
        let Some(bytes) = end.and_then(|end| piece.get(done..end)) else { return false };
        let Some(&Section { input, place, .. }) = self.sections.get(index) else { return false };
        if bytes.len() <= 4 || is_cie(header, input.format) {
            return true;
        }
        let offset = at + done as u64;
        let found = self.initial_location(index, offset, header, bytes);
        let Some(start) = found else {
            self.damaged += 1;
            return true;
        };
        // Only where it starts is known here; the rest is checked when its rows are made.
        let inside = builder.place(&(start..start.saturating_add(1)));
        let entry = u32::try_from(offset).ok().and_then(|offset| place.checked_add(offset));
        if let (Some((start, _)), Some(entry)) = (inside, entry) {
            if functions.len() < UNWIND_FUNCTIONS_MAX {
                functions.push(u64::from(start) << 32 | u64::from(entry));
            } else {
                self.left_out += 1;
            }
        }
        true
    }

    /// First address of a function: read here where it is written in one of the usual ways, else by gimli.
    fn initial_location(
        &mut self,
        index: usize,
        offset: u64,
        header: Header,
        bytes: &[u8],
    ) -> Option<u64> {
        let cie_at = self.cie_offset(index, offset, header)?;
        let encoding = self.cie(index, cie_at)?.encoding;
        let at = header.length_bytes + header.word_bytes;
        let input = self.sections.get(index)?.input;
        let value = match encoding & 0x0f {
            0x00 | 0x04 | 0x0c => u64_at(bytes, at)?,
            0x03 => u64::from(u32_at(bytes, at)?),
            0x0b => i64::from(u32_at(bytes, at)?.cast_signed()).cast_unsigned(),
            _ => return self.initial_location_by_gimli(index, offset),
        };
        match encoding & 0xf0 {
            0x00 => Some(value),
            0x10 => {
                let field = input.address.wrapping_add(offset).wrapping_add(at as u64);
                Some(field.wrapping_add(value))
            }
            _ => self.initial_location_by_gimli(index, offset),
        }
    }

    fn initial_location_by_gimli(&mut self, index: usize, offset: u64) -> Option<u64> {
        let mut pair = Pair::default();
        self.pair_at(index, offset, &mut pair)?;
        let bases = pair.bases();
        let at = pair.function_at;
        match pair.format? {
            Format::EhFrame => first_address(&pair.eh_frame(), &bases, at.into()),
            Format::DebugFrame => first_address(&pair.debug_frame(), &bases, at.into()),
        }
    }

    /// Where in its section the CIE of an entry lies.
    fn cie_offset(&self, index: usize, offset: u64, header: Header) -> Option<u64> {
        match self.sections.get(index)?.input.format {
            // In `.eh_frame` the word is the distance back from itself.
            Format::EhFrame => {
                offset.checked_add(header.length_bytes as u64)?.checked_sub(header.word)
            }
            Format::DebugFrame => Some(header.word),
        }
    }

    fn cie(&mut self, index: usize, offset: u64) -> Option<&Cie> {
        let section = self.sections.get_mut(index)?;
        let place = section.place.checked_add(u32::try_from(offset).ok()?)?;
        if !self.cies.contains_key(&place) {
            let cie = read_cie(section, offset, UNWIND_CIES_BYTES_MAX - self.cies_bytes);
            // What is kept of a refused one counts too: there may be one for each function.
            self.cies_bytes += size_of::<(u32, Option<Cie>)>();
            self.cies_bytes += cie.as_ref().map_or(0, |cie| cie.bytes.len());
            if self.cies_bytes >= UNWIND_CIES_BYTES_MAX {
                self.cies_bytes = UNWIND_CIES_BYTES_MAX;
                return None;
            }
            self.cies.insert(place, cie);
        }
        self.cies.get(&place)?.as_ref()
    }

    /// Puts the entry of a function, and its CIE before it, into `pair`.
    pub(super) fn pair(&mut self, number: usize, pair: &mut Pair) -> Option<()> {
        let place = u32::try_from(self.functions.get(number)? & u64::from(u32::MAX)).ok()?;
        let index =
            self.sections.partition_point(|section| section.place <= place).checked_sub(1)?;
        let offset = u64::from(place - self.sections.get(index)?.place);
        self.pair_at(index, offset, pair)
    }

    fn pair_at(&mut self, index: usize, offset: u64, pair: &mut Pair) -> Option<()> {
        let Section { input, reader, place } = self.sections.get_mut(index)?;
        let (input, place) = (*input, *place);
        // Behind what is kept of the CIE; it is moved if another one belongs here.
        let kept = pair.function_at;
        pair.bytes.truncate(kept);
        let header = read_header(reader, &input, offset)?;
        let size =
            usize::try_from(header.size).ok().filter(|&size| size <= UNWIND_FDE_BYTES_MAX)?;
        let cie_at = self.cie_offset(index, offset, header)?;
        let cie_place = place.checked_add(u32::try_from(cie_at).ok()?)?;
        if pair.cie_place != Some(cie_place) {
            *pair = Pair { bytes: std::mem::take(&mut pair.bytes), ..Pair::default() };
            pair.bytes.clear();
            pair.bytes.extend_from_slice(&self.cie(index, cie_at)?.bytes);
            pair.function_at = pair.bytes.len();
            pair.cie_place = Some(cie_place);
        }
        let function_at = pair.function_at;
        let at = input.offset.checked_add(offset)?;
        self.sections.get_mut(index)?.reader.append(at, size, &mut pair.bytes)?;
        // The CIE is at the start now.
        let word_at = function_at + header.length_bytes;
        let word = match input.format {
            Format::EhFrame => word_at as u64,
            Format::DebugFrame => 0,
        };
        let word = word.to_le_bytes();
        pair.bytes
            .get_mut(word_at..word_at + header.word_bytes)?
            .copy_from_slice(word.get(..header.word_bytes)?);
        pair.address = input.address.wrapping_add(offset).wrapping_sub(function_at as u64);
        (pair.text, pair.got, pair.format) = (input.text, input.got, Some(input.format));
        Some(())
    }
}

impl Pair {
    pub(super) fn bases(&self) -> BaseAddresses {
        BaseAddresses::default().set_eh_frame(self.address).set_text(self.text).set_got(self.got)
    }

    pub(super) fn eh_frame(&self) -> gimli::EhFrame<Bytes<'_>> {
        let mut section = gimli::EhFrame::new(&self.bytes, LittleEndian);
        section.set_address_size(8);
        section
    }

    pub(super) fn debug_frame(&self) -> gimli::DebugFrame<Bytes<'_>> {
        let mut section = gimli::DebugFrame::new(&self.bytes, LittleEndian);
        section.set_address_size(8);
        section
    }
}

fn first_address<'p, S: UnwindSection<Bytes<'p>>>(
    section: &S,
    bases: &BaseAddresses,
    at: S::Offset,
) -> Option<u64> {
    let fde = section.partial_fde_from_offset(bases, at).ok()?;
    Some(fde.parse(S::cie_from_offset).ok()?.initial_address())
}

fn read_header(reader: &mut Slotted<'_>, input: &FrameSection<'_>, offset: u64) -> Option<Header> {
    let left = input.size.checked_sub(offset)?;
    let length = usize::try_from(left.min(20)).ok()?;
    let mut bytes = Vec::with_capacity(20);
    reader.append(input.offset.checked_add(offset)?, length, &mut bytes)?;
    header_at(&bytes, 0, input.format).filter(|header| header.size <= left)
}

fn read_cie(section: &mut Section<'_>, offset: u64, room: usize) -> Option<Cie> {
    let Section { input, reader, .. } = section;
    let header = read_header(reader, input, offset)?;
    let size = usize::try_from(header.size).ok()?;
    if !is_cie(header, input.format) || size > UNWIND_CIE_BYTES_MAX.min(room) {
        return None;
    }
    let mut bytes = Vec::with_capacity(size);
    reader.append(input.offset.checked_add(offset)?, size, &mut bytes)?;
    let bases = BaseAddresses::default().set_eh_frame(0).set_text(0).set_got(0);
    let encoding = match input.format {
        Format::EhFrame => {
            let cie =
                gimli::EhFrame::new(&bytes, LittleEndian).cie_from_offset(&bases, 0.into()).ok()?;
            cie.fde_address_encoding()
        }
        Format::DebugFrame => {
            let mut frame = gimli::DebugFrame::new(&bytes, LittleEndian);
            frame.set_address_size(8);
            let cie = frame.cie_from_offset(&bases, 0.into()).ok()?;
            // Four bytes an address are no program of ours.
            (cie.address_size() == 8).then_some(())?;
            cie.fde_address_encoding()
        }
    };
    let encoding = encoding.map_or(0, |encoding| encoding.0);
    Some(Cie { bytes: bytes.into(), encoding })
}

/// The header of the entry at `offset`, if the bytes reach that far. An entry of four bytes is a
/// terminator.
fn header_at(bytes: &[u8], offset: usize, format: Format) -> Option<Header> {
    let length = u32_at(bytes, offset)?;
    let (length_bytes, length) = match length {
        0 => return Some(Header { size: 4, length_bytes: 4, word_bytes: 0, word: 0 }),
        u32::MAX => (12, u64_at(bytes, offset.checked_add(4)?)?),
        length => (4, u64::from(length)),
    };
    let size = length.checked_add(length_bytes as u64)?;
    let word_at = offset.checked_add(length_bytes)?;
    // In `.eh_frame` the word has 4 bytes also where the length has 12 (LSB 5.0, section 10.6.1).
    let wide = length_bytes == 12 && format == Format::DebugFrame;
    let (word_bytes, word) = match wide {
        true => (8, u64_at(bytes, word_at)?),
        false => (4, u64::from(u32_at(bytes, word_at)?)),
    };
    (length >= word_bytes as u64).then_some(Header { size, length_bytes, word_bytes, word })
}

fn is_cie(header: Header, format: Format) -> bool {
    match (format, header.word_bytes) {
        (Format::EhFrame, _) => header.word == 0,
        (Format::DebugFrame, 8) => header.word == u64::MAX,
        (Format::DebugFrame, _) => header.word == u64::from(u32::MAX),
    }
}
