//! Go's own tables (pclntab): which function an address belongs to, its stack depth at each
//! instruction, files, lines and inlined calls. They are in every Go binary, stripped or not. Layouts of
//! Go 1.16 to 1.27 (runtime/symtab.go, runtime/runtime2.go, cmd/link/internal/ld/pcln.go).
//!
//! Everything is read lazily: tables of 144 MB exist.

mod module;

use super::ForeignFileError;
use super::headers::Elf;
use super::paged::{Cursor, Paged};
use super::source::malformed;
use crate::limits::{
    ELF_STRING_BYTES_MAX, GO_FUNCTIONS_MAX, GO_INLINE_DEPTH_MAX, GO_NAME_STEPS_MAX,
    GO_NAMES_BYTES_MAX, GO_SCAN_BYTES_MAX, GO_TABLE_STEPS_MAX,
};
use object::elf;
use std::cell::Cell;

/// `FUNCDATA_InlTree` and `PCDATA_InlTreeIndex` (internal/abi/symtab.go).
const INLINE_TREE: u64 = 3;
const INLINE_INDEX: u64 = 2;

/// `FuncFlagTopFrame`: the runtime's own walk ends here.
pub(crate) const FLAG_TOP_FRAME: u8 = 1;
/// `FuncFlagSPWrite`: sets the stack pointer to something that the tables do not tell.
pub(crate) const FLAG_STACK_SWITCH: u8 = 2;

/// What the kernel "calls" a signal handler from. The handler returns to the first instruction, so that
/// the address of the call, one before it, lies outside of the function.
const SIGNAL_RETURN: &str = "runtime.sigreturn";

/// The layouts, by magic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Layout {
    Go116,
    Go118,
    Go120,
}

impl Layout {
    fn of(magic: u32) -> Option<Self> {
        match magic {
            0xffff_fffa => Some(Self::Go116),
            0xffff_fff0 => Some(Self::Go118),
            0xffff_fff1 => Some(Self::Go120),
            _ => None,
        }
    }
}

/// Go's tables of one file. Offsets are file offsets.
#[derive(Debug)]
pub(crate) struct GoTable<'e, 'a> {
    elf: &'e Elf<'a>,
    pages: Paged<'a>,
    layout: Layout,
    functions: u64,
    names: u64,
    units: u64,
    files: u64,
    values: u64,
    records: u64,
    /// Address that entry offsets are relative to.
    text: u64,
    /// File offset that inline trees are relative to.
    function_data: Option<u64>,
    /// Steps walked for the address that is being named.
    walked: Cell<usize>,
}

/// One function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GoFunction {
    /// First address.
    pub(crate) entry: u64,
    /// First address of the next function: the end is there or before.
    pub(crate) bound: u64,
    /// Flags, see [`FLAG_TOP_FRAME`].
    pub(crate) flags: u8,
    name: u32,
    stack: u32,
    file: u32,
    line: u32,
    unit: u32,
    /// File offset behind the record: the `u32` of pcdata, then those of funcdata.
    data: u64,
    data_values: u32,
    data_objects: u8,
}

/// One function at an address, innermost first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GoLine {
    pub(crate) function: String,
    pub(crate) file: String,
    pub(crate) line: u32,
}

impl<'e, 'a> GoTable<'e, 'a> {
    /// Finds the tables; nothing if this is no Go program.
    pub(crate) fn find(elf: &'e Elf<'a>) -> Result<Option<Self>, ForeignFileError> {
        let pages = Paged::new(elf.source());
        let names = [".gopclntab", ".data.rel.ro.gopclntab"];
        let section = names.iter().find_map(|name| elf.section(name));
        let (address, offset) = match section {
            Some(section) => (section.address, section.offset),
            None if elf.sections.is_empty() => match scan(elf, &pages) {
                Some(found) => found,
                None => return Ok(None),
            },
            None => return Ok(None),
        };
        Self::parse(elf, pages, address, offset).map(Some)
    }

    fn parse(
        elf: &'e Elf<'a>,
        pages: Paged<'a>,
        address: u64,
        offset: u64,
    ) -> Result<Self, ForeignFileError> {
        let damaged = |detail: &str| malformed("pclntab", detail);
        let header: [u8; 72] = pages.array(offset).ok_or_else(|| damaged("no header"))?;
        let layout = super::source::u32_at(&header, 0)
            .and_then(Layout::of)
            .filter(|_| header.get(4..8) == Some(&[0, 0, 1, 8]))
            .ok_or_else(|| damaged("unknown version"))?;
        let word = |index: usize| {
            super::source::u64_at(&header, 8 + index * 8).ok_or_else(|| damaged("no header"))
        };
        let functions = word(0)?;
        if functions > GO_FUNCTIONS_MAX {
            let max = GO_FUNCTIONS_MAX;
            return Err(ForeignFileError::Limit { what: "Go functions of one file", max });
        }
        // Since 1.18 a word for the start of the text stands before the offsets.
        let first = if layout == Layout::Go116 { 2 } else { 3 };
        let at = |index: usize| {
            let relative = word(first + index)?;
            offset
                .checked_add(relative)
                .filter(|&at| at < pages.size())
                .ok_or_else(|| damaged("an offset lies outside of the file"))
        };
        let mut table = Self {
            elf,
            layout,
            functions,
            names: at(0)?,
            units: at(1)?,
            files: at(2)?,
            values: at(3)?,
            records: at(4)?,
            text: 0,
            function_data: None,
            walked: Cell::new(0),
            pages,
        };
        if layout > Layout::Go116 {
            let module = module::find(elf, address, word(first)?);
            let stated = module::pointer(elf, address.saturating_add(24)).filter(|&text| text != 0);
            table.text = module
                .map(|module| module.text)
                .or(stated)
                .ok_or_else(|| damaged("the start of the text is unknown"))?;
            let data = module.map(|module| module.function_data);
            table.function_data = data.and_then(|at| Some(elf.file_range(at)?.0));
        }
        Ok(table)
    }

    /// True if records carry flags that can be trusted (since 1.18 with the flag for assembly).
    pub(crate) fn has_flags(&self) -> bool {
        self.layout > Layout::Go116
    }

    /// How many functions there are.
    pub(crate) fn len(&self) -> u64 {
        self.functions
    }

    /// Entry address and record offset of one entry of the function table. The entry behind the last
    /// function gives the end of the text.
    fn entry(&self, index: u64) -> Option<(u64, u64)> {
        if index > self.functions {
            return None;
        }
        if self.layout == Layout::Go116 {
            let at = self.records.checked_add(index.checked_mul(16)?)?;
            return Some((self.pages.u64_at(at)?, self.pages.u64_at(at.checked_add(8)?)?));
        }
        let at = self.records.checked_add(index.checked_mul(8)?)?;
        let entry = self.text.checked_add(u64::from(self.pages.u32_at(at)?))?;
        if index == self.functions {
            return Some((entry, 0));
        }
        Some((entry, u64::from(self.pages.u32_at(at.checked_add(4)?)?)))
    }

    /// One function by number.
    pub(crate) fn function(&self, index: u64) -> Option<GoFunction> {
        let (entry, record) = self.entry(index)?;
        let (bound, _) = self.entry(index.checked_add(1)?)?;
        // The record begins with the entry: 8 bytes until 1.17, then 4.
        let entry_bytes = if self.layout == Layout::Go116 { 8 } else { 4 };
        let at = self.records.checked_add(record)?.checked_add(entry_bytes)?;
        let fields: [u8; 40] = self.pages.array(at)?;
        let word = |index: usize| super::source::u32_at(&fields, index * 4);
        // name, args, deferreturn, pcsp, pcfile, pcln, npcdata, cuOffset, [startLine,] four bytes
        let tail = if self.layout == Layout::Go120 { 36 } else { 32 };
        let function = GoFunction {
            entry,
            bound,
            flags: *fields.get(tail + 1)?,
            name: word(0)?,
            stack: word(3)?,
            file: word(4)?,
            line: word(5)?,
            unit: word(7)?,
            data: at.checked_add(tail as u64 + 4)?,
            data_values: word(6)?,
            data_objects: *fields.get(tail + 3)?,
        };
        (entry < bound).then_some(function)
    }

    /// The functions that bear one of `names`, in the order of their addresses; each with the place of its name.
    pub(crate) fn named(&self, names: &[&str]) -> Vec<(usize, GoFunction)> {
        let places = self.places_of(names);
        if places.is_empty() {
            return Vec::new();
        }
        let functions = (0..self.functions).filter_map(|index| {
            let function = self.function(index)?;
            let (_, name) = places.iter().find(|(place, _)| *place == function.name)?;
            Some((*name, function))
        });
        functions.take(names.len()).collect()
    }

    /// Where among the names each of these begins, if it is there.
    fn places_of(&self, names: &[&str]) -> Vec<(u32, usize)> {
        const PIECE: u64 = 64 << 10;
        let wanted: Vec<Vec<u8>> = names.iter().map(|name| format!("\0{name}\0").into()).collect();
        let longest = wanted.iter().map(Vec::len).max().unwrap_or_default() as u64;
        let end = self.units.max(self.names).min(self.names.saturating_add(GO_NAMES_BYTES_MAX));
        let mut found = Vec::new();
        let mut at = self.names;
        while at < end && found.len() < names.len() {
            // Pieces overlap by a name, so that none is cut in two.
            let length = (end - at).min(PIECE + longest);
            let Ok(piece) = self.elf.source().read("Go names", at, length, PIECE * 2) else {
                break;
            };
            for (index, wanted) in wanted.iter().enumerate() {
                let Some(into) = memchr::memmem::find(&piece, wanted) else { continue };
                let place = (at - self.names).saturating_add(into as u64 + 1);
                let known = found.iter().any(|(_, name)| *name == index);
                if let (Ok(place), false) = (u32::try_from(place), known) {
                    found.push((place, index));
                }
            }
            at += PIECE;
        }
        found
    }

    /// The function whose code contains `address`. What lies between a function's end and the next
    /// one's start (alignment, C code) belongs to none.
    pub(crate) fn containing(&self, address: u64) -> Option<GoFunction> {
        let (mut low, mut high) = (0, self.functions);
        while low < high {
            let middle = low + (high - low) / 2;
            if self.entry(middle)?.0 <= address {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        if let Some(next) = self.function(low)
            && next.entry.checked_sub(1) == Some(address)
            && self.name(&next).is_some_and(|name| name.starts_with(SIGNAL_RETURN))
        {
            return Some(next);
        }
        let function = self.function(low.checked_sub(1)?)?;
        let inside = address < function.bound
            && [function.line, function.stack]
                .iter()
                .any(|&table| self.value(&function, table, address).is_some());
        inside.then_some(function)
    }

    /// The function's name.
    pub(crate) fn name(&self, function: &GoFunction) -> Option<String> {
        self.name_at(function.name)
    }

    /// The function's name if it has at most `bytes_max` bytes.
    pub(crate) fn short_name(&self, function: &GoFunction, bytes_max: usize) -> Option<String> {
        self.pages.cursor(self.names.checked_add(u64::from(function.name))?).string(bytes_max)
    }

    fn name_at(&self, offset: u32) -> Option<String> {
        self.string(self.names.checked_add(u64::from(offset))?)
    }

    fn string(&self, at: u64) -> Option<String> {
        let max = usize::try_from(ELF_STRING_BYTES_MAX).ok()?;
        self.pages.cursor(at).string(max).filter(|text| !text.is_empty())
    }

    /// How far the stack pointer is below its value at the function's entry, from each address on.
    pub(crate) fn stack_depths(&self, function: &GoFunction) -> Steps<'_, 'a> {
        self.steps(function, function.stack)
    }

    fn steps(&self, function: &GoFunction, table: u32) -> Steps<'_, 'a> {
        Steps {
            cursor: self.pages.cursor(self.values.saturating_add(u64::from(table))),
            address: function.entry,
            bound: function.bound,
            value: -1,
            left: if table == 0 { 0 } else { GO_TABLE_STEPS_MAX },
            first: true,
        }
    }

    fn value(&self, function: &GoFunction, table: u32, address: u64) -> Option<i32> {
        let mut steps = self.steps(function, table);
        let before = steps.left;
        let found = steps.find(|step| (step.start..step.end).contains(&address));
        self.walked.set(self.walked.get().saturating_add(before - steps.left));
        found.map(|step| step.value)
    }

    /// The functions at `address`, innermost (inlined) first.
    pub(crate) fn lines(&self, address: u64) -> Vec<GoLine> {
        self.walked.set(0);
        let Some(function) = self.containing(address) else { return Vec::new() };
        let mut lines = Vec::new();
        let mut at = address;
        while lines.len() < GO_INLINE_DEPTH_MAX && self.walked.get() < GO_NAME_STEPS_MAX {
            let Some((name, parent)) = self.inlined_at(&function, at) else { break };
            lines.push(self.line(&function, at, name));
            at = parent;
        }
        lines.extend(self.name(&function).map(|name| self.line(&function, at, name)));
        lines
    }

    /// Steps of tables walked for the address that was named last.
    pub(crate) fn walked(&self) -> usize {
        self.walked.get()
    }

    fn line(&self, function: &GoFunction, address: u64, name: String) -> GoLine {
        let line = self.value(function, function.line, address).unwrap_or(0);
        GoLine {
            function: name,
            file: self.file(function, address).unwrap_or_default(),
            line: u32::try_from(line).unwrap_or(0),
        }
    }

    fn file(&self, function: &GoFunction, address: u64) -> Option<String> {
        let number = u32::try_from(self.value(function, function.file, address)?).ok()?;
        let unit = u64::from(function.unit.checked_add(number)?);
        let offset = self.pages.u32_at(self.units.checked_add(unit * 4)?)?;
        self.string(self.files.checked_add(u64::from(offset))?)
    }

    /// The inlined function at `address` and the address of the call that was inlined. Records of 16
    /// bytes since 1.20: id, name, address of the call, first line.
    fn inlined_at(&self, function: &GoFunction, address: u64) -> Option<(String, u64)> {
        let in_range = u64::from(function.data_values) > INLINE_INDEX
            && u64::from(function.data_objects) > INLINE_TREE;
        if self.layout < Layout::Go120 || !in_range {
            return None;
        }
        let index_table = self.pages.u32_at(function.data.checked_add(INLINE_INDEX * 4)?)?;
        let index = u64::try_from(self.value(function, index_table, address)?).ok()?;
        let objects = function.data.checked_add(u64::from(function.data_values) * 4)?;
        let tree = self.pages.u32_at(objects.checked_add(INLINE_TREE * 4)?)?;
        if tree == u32::MAX {
            return None;
        }
        let tree = self.function_data?.checked_add(u64::from(tree))?;
        let call = tree.checked_add(index.checked_mul(16)?)?;
        let name = self.name_at(self.pages.u32_at(call.checked_add(4)?)?)?;
        let parent = self.pages.u32_at(call.checked_add(8)?)?;
        Some((name, function.entry.checked_add(u64::from(parent))?))
    }

    /// Code bytes at `address`.
    pub(crate) fn code<const N: usize>(&self, address: u64) -> Option<[u8; N]> {
        let (offset, left) = self.elf.file_range(address)?;
        (left >= N as u64).then(|| self.pages.array(offset))?
    }
}

/// A value that holds for a range of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ValueStep {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) value: i32,
}

/// Walks one table of (value, length) differences (runtime/symtab.go, `step`).
#[derive(Debug)]
pub(crate) struct Steps<'t, 'a> {
    cursor: Cursor<'t, 'a>,
    address: u64,
    bound: u64,
    value: i32,
    left: usize,
    first: bool,
}

impl Iterator for Steps<'_, '_> {
    type Item = ValueStep;

    fn next(&mut self) -> Option<ValueStep> {
        self.left = self.left.checked_sub(1)?;
        let difference = self.cursor.varint()?;
        if difference == 0 && !self.first {
            return None;
        }
        self.first = false;
        // Zigzag: the lowest bit is the sign.
        let signed = (difference >> 1).cast_signed() ^ -(difference & 1).cast_signed();
        self.value = self.value.wrapping_add(signed);
        let start = self.address;
        let length = u64::from(self.cursor.varint()?);
        self.address = start.checked_add(length)?.min(self.bound);
        (start < self.address).then_some(ValueStep { start, end: self.address, value: self.value })
    }
}

/// Looks for the header where there are no sections: in the loaded data, at multiples of 8. Answers
/// address and offset.
fn scan(elf: &Elf<'_>, pages: &Paged<'_>) -> Option<(u64, u64)> {
    const PIECE: usize = 64 << 10;
    let mut left = GO_SCAN_BYTES_MAX;
    let data = elf
        .segments
        .iter()
        .filter(|segment| segment.kind == elf::PT_LOAD.0 && segment.flags & elf::PF_X.0 == 0);
    for segment in data {
        let mut done = 0;
        while done < segment.file_size && left > 0 {
            let length = (segment.file_size - done).min(PIECE as u64).min(left);
            let offset = segment.offset.checked_add(done)?;
            let piece = elf.source().read("data", offset, length, PIECE as u64).ok()?;
            let (words, _) = piece.as_chunks::<8>();
            let found = words.iter().position(|word| {
                word.get(4..) == Some(&[0, 0, 1, 8])
                    && super::source::u32_at(word, 0).and_then(Layout::of).is_some()
            });
            if let Some(index) = found {
                let into = done.checked_add(index as u64 * 8)?;
                let at = segment.offset.checked_add(into)?;
                if is_header(pages, at) {
                    return Some((segment.address.checked_add(into)?, at));
                }
            }
            done += length;
            left -= length;
        }
    }
    None
}

/// True if the offsets behind the magic ascend, as the linker lays the parts out.
fn is_header(pages: &Paged<'_>, offset: u64) -> bool {
    let words: Option<Vec<u64>> =
        (4..=8).map(|index| pages.u64_at(offset.checked_add(index * 8)?)).collect();
    words.is_some_and(|words| words.is_sorted() && words.first() != Some(&0))
}
