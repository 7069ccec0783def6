//! Go's `moduledata`: the only place that says where the text begins (the word for it in the pclntab
//! header is unused since 1.26) and what inline trees are relative to.

use crate::elf::headers::Elf;
use crate::elf::source::u64_at;
use crate::limits::{GO_RELOCATION_BYTES_MAX, GO_SCAN_BYTES_MAX};
use hashbrown::HashMap;
use object::elf;
use std::ops::Range;

/// What is needed of it, as addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Module {
    pub(super) text: u64,
    pub(super) function_data: u64,
}

/// Offsets in `moduledata` (runtime/symtab.go): the header's address, the name table's, `text`,
/// `etext`, and `gofunc`, which moved when `covctrs` came with 1.20.
const NAMES: usize = 8;
const TEXT: usize = 176;
const TEXT_END: usize = 184;
const FUNCTION_DATA: usize = 320;
const BYTES: u64 = 336;
/// Bytes read at once while searching.
const PIECE_BYTES: u64 = 1 << 20;

/// Finds the module whose pclntab is at `table`, with its names `names_offset` behind.
pub(super) fn find(elf: &Elf<'_>, table: u64, names_offset: u64) -> Option<Module> {
    let names = table.checked_add(names_offset)?;
    // Since 1.26 in a section of its own; before, somewhere in the data.
    if let Some(section) = elf.section(".go.module") {
        return read(elf, section.address, table, names);
    }
    let at = search_data(elf, table, names).or_else(|| search_relocations(elf, table, names))?;
    read(elf, at, table, names)
}

fn read(elf: &Elf<'_>, at: u64, table: u64, names: u64) -> Option<Module> {
    let bytes = elf.read_address("moduledata", at, BYTES, BYTES).ok()?;
    // In a position-independent file the words may stand in relocations only.
    let relocated = if u64_at(&bytes, 0)? == 0 {
        relative_relocations(elf, at..at.checked_add(BYTES)?)
    } else {
        HashMap::new()
    };
    let word = |offset: usize| match u64_at(&bytes, offset) {
        Some(0) => relocated.get(&at.checked_add(offset as u64)?).copied(),
        word => word,
    };
    if word(0)? != table || word(NAMES)? != names || word(TEXT)? >= word(TEXT_END)? {
        return None;
    }
    Some(Module { text: word(TEXT)?, function_data: word(FUNCTION_DATA).unwrap_or(0) })
}

/// The word at an address, where it stands in the file or in a relocation.
pub(super) fn pointer(elf: &Elf<'_>, at: u64) -> Option<u64> {
    let bytes = elf.read_address("pointer", at, 8, 8).ok()?;
    match u64_at(&bytes, 0)? {
        0 => relative_relocations(elf, at..at.checked_add(8)?).get(&at).copied(),
        word => Some(word),
    }
}

/// Looks for the two pointers that begin a `moduledata` in the writable data.
fn search_data(elf: &Elf<'_>, table: u64, names: u64) -> Option<u64> {
    let mut left = GO_SCAN_BYTES_MAX;
    let writable = elf
        .segments
        .iter()
        .filter(|segment| segment.kind == elf::PT_LOAD.0 && segment.flags & elf::PF_W.0 != 0);
    for segment in writable {
        let mut done = 0;
        // The pieces overlap by a word: the pair may lie across their border.
        while done + 16 <= segment.file_size && left > 0 {
            let length = (segment.file_size - done).min(PIECE_BYTES);
            let offset = segment.offset.checked_add(done)?;
            let piece = elf.source().read("data", offset, length, PIECE_BYTES).ok()?;
            let (words, _) = piece.as_chunks::<8>();
            let pair = words.array_windows::<2>().position(|[first, second]| {
                u64::from_le_bytes(*first) == table && u64::from_le_bytes(*second) == names
            });
            if let Some(index) = pair {
                return segment.address.checked_add(done)?.checked_add(index as u64 * 8);
            }
            left = left.saturating_sub(length);
            done += length - 8;
        }
    }
    None
}

/// As [`search_data`], where the pointers stand in relocations.
fn search_relocations(elf: &Elf<'_>, table: u64, names: u64) -> Option<u64> {
    let mut of_table = Vec::new();
    let mut of_names = Vec::new();
    each_relative_relocation(elf, |at, value| {
        if value == table {
            of_table.push(at);
        } else if value == names {
            of_names.push(at);
        }
    });
    of_table.into_iter().find(|&at| of_names.contains(&at.wrapping_add(8)))
}

fn relative_relocations(elf: &Elf<'_>, range: Range<u64>) -> HashMap<u64, u64> {
    let mut found = HashMap::new();
    each_relative_relocation(elf, |at, value| {
        if range.contains(&at) {
            found.insert(at, value);
        }
    });
    found
}

/// Visits every `R_X86_64_RELATIVE` of `.rela.dyn`: where, and which address.
fn each_relative_relocation(elf: &Elf<'_>, mut visit: impl FnMut(u64, u64)) {
    let Some(section) = elf.section(".rela.dyn") else { return };
    let size = section.size.min(GO_RELOCATION_BYTES_MAX);
    // A whole number of entries of 24 bytes.
    let piece = PIECE_BYTES - PIECE_BYTES % 24;
    let mut done = 0;
    while done < size {
        let length = (size - done).min(piece);
        let offset = section.offset.saturating_add(done);
        let Ok(bytes) = elf.source().read("relocations", offset, length, piece) else { return };
        let (entries, _) = bytes.as_chunks::<24>();
        for entry in entries {
            let fields = (u64_at(entry, 0), u64_at(entry, 8), u64_at(entry, 16));
            if let (Some(at), Some(kind), Some(value)) = fields
                && kind & 0xffff_ffff == u64::from(elf::R_X86_64_RELATIVE.0)
            {
                visit(at, value);
            }
        }
        done += length;
    }
}
