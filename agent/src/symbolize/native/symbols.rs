//! Function names from `.symtab` and `.dynsym`: which symbol an address belongs to, or none. A symbol
//! never names code beyond its size, beyond the next symbol or beyond its section.

use super::{functions, plt};
use crate::clock::{MonotonicNs, monotonic_now};
use crate::elf::ForeignFileError;
use crate::elf::headers::{Elf, Section};
use crate::elf::source::{u16_at, u32_at, u64_at};
use crate::limits::{
    NAMES_BATCH_NS_MAX, SYMBOL_UNSIZED_BYTES_MAX, SYMBOL_WALK_MAX, SYMBOLS_PER_FILE_MAX,
    SYMBOLS_READ_PER_TABLE_MAX,
};
use crate::symbolize::UnnamedReason;
use object::elf;
use std::cmp::Reverse;

/// `Elf64_Sym`.
pub(super) const SYMBOL_BYTES: usize = 24;
/// Symbols read at once: 768 KiB.
pub(super) const BATCH: u64 = 32_768;

/// One symbol that may name code.
#[derive(Clone, Copy, Debug)]
struct Symbol {
    start: u64,
    /// 0 if the table does not say.
    size: u64,
    /// The highest end of this symbol and all before it, so that a walk back knows when to stop.
    reach: u64,
    /// File offset of the name.
    name_offset: u64,
    rank: Rank,
    /// The name stands in the separate debug file.
    in_debug_file: bool,
}

/// What a symbol is. Of several names for one piece of code (aliases, and functions that the linker found equal)
/// one is shown, always the same: functions before labels and global before local ones, then the name with
/// fewest underscores in front, then global before weak, then the shortest, then the first of the alphabet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    GlobalFunction,
    WeakFunction,
    LocalFunction,
    Untyped,
    /// Of the procedure linkage table: bears the name of what it jumps to.
    Stub,
}

/// The symbols of one file, sorted by address.
#[derive(Debug, Default)]
pub(super) struct SymbolTable {
    symbols: Vec<Symbol>,
    /// Executable sections, ascending.
    code: Vec<(u64, u64)>,
    /// Why an address may be missing: a table was damaged, or too large.
    missing: Option<UnnamedReason>,
    /// The table lists local symbols too, so that a symbol without size ends at the next one.
    complete: bool,
    /// Time was up: another reading may find more.
    late: bool,
}

impl SymbolTable {
    /// Reads the tables of a file, and of its separate debug file, which lists more. One that is damaged or
    /// too large, or not read before `until`, counts as absent.
    pub(super) fn read(elf: &Elf<'_>, debug_file: Option<&Elf<'_>>, until: MonotonicNs) -> Self {
        let mut table = Self::default();
        let code = elf.sections.iter().filter(|section| section.is_code());
        table.code = code
            .map(|section| (section.address, section.address.saturating_add(section.size)))
            .collect();
        table.code.sort_unstable();
        for (elf, in_debug_file) in [(Some(elf), false), (debug_file, true)] {
            let Some(elf) = elf else { continue };
            table.read_file(elf, in_debug_file, until);
        }
        let stubs = plt::stubs(elf, until);
        if stubs.cut {
            table.missing.get_or_insert(UnnamedReason::Limit);
        }
        for plt::Stub { start, size, name_offset } in stubs.found {
            if table.symbols.len() < SYMBOLS_PER_FILE_MAX {
                let rank = Rank::Stub;
                let stub =
                    Symbol { start, size, reach: 0, name_offset, rank, in_debug_file: false };
                table.symbols.push(stub);
            }
        }
        table.symbols.sort_unstable_by_key(|symbol| {
            let place = (symbol.in_debug_file, symbol.name_offset);
            (symbol.start, Reverse(symbol.size), symbol.rank, place)
        });
        let mut reach = 0;
        for symbol in &mut table.symbols {
            reach = reach.max(symbol.start.saturating_add(symbol.size));
            symbol.reach = reach;
        }
        table.symbols.shrink_to_fit();
        table.late = monotonic_now() > until;
        table
    }

    fn read_file(&mut self, elf: &Elf<'_>, in_debug_file: bool, until: MonotonicNs) {
        for kind in [elf::SHT_SYMTAB.0, elf::SHT_DYNSYM.0] {
            // "Currently, an object file may have only one section of each type" (System V ABI,
            // "Sections"): thousands would be read without end.
            let Some(section) = elf.sections.iter().find(|section| section.kind == kind) else {
                continue;
            };
            let before = self.symbols.len();
            if let Err(error) = self.read_section(elf, section, (in_debug_file, until)) {
                tracing::debug!(%error, "symbol table not used");
                self.missing = Some(match error {
                    ForeignFileError::Limit { .. } => UnnamedReason::Limit,
                    _ => UnnamedReason::NotReadable,
                });
                self.symbols.truncate(before);
            }
            self.complete |= kind == elf::SHT_SYMTAB.0 && self.symbols.len() > before;
        }
    }

    /// True if reading again may find more.
    pub(super) fn is_late(&self) -> bool {
        self.late
    }

    /// Why an address that is not found is not found.
    pub(super) fn missing(&self) -> UnnamedReason {
        self.missing.unwrap_or(UnnamedReason::NoSymbol)
    }

    /// Bytes of memory.
    pub(super) fn weight(&self) -> usize {
        self.symbols.len() * size_of::<Symbol>() + self.code.len() * 16
    }

    fn read_section(
        &mut self,
        elf: &Elf<'_>,
        section: &Section,
        (in_debug_file, until): (bool, MonotonicNs),
    ) -> Result<(), ForeignFileError> {
        // A debug file keeps the headers of what it leaves out.
        if section.kind == elf::SHT_NOBITS.0 {
            return Ok(());
        }
        let index = usize::try_from(section.link).unwrap_or(usize::MAX);
        let Some(&strings) = elf.sections.get(index) else { return Ok(()) };
        let count = section.size / SYMBOL_BYTES as u64;
        // What is read costs time even if none of it names code: a sparse file has gigabytes of nothing.
        if count > SYMBOLS_READ_PER_TABLE_MAX {
            let max = SYMBOLS_READ_PER_TABLE_MAX;
            return Err(ForeignFileError::Limit { what: "entries of a symbol table", max });
        }
        let mut done = 0;
        while done < count {
            if monotonic_now() > until {
                let max = NAMES_BATCH_NS_MAX;
                return Err(ForeignFileError::Limit { what: "nanoseconds for symbols", max });
            }
            let batch = (count - done).min(BATCH);
            let offset = section.offset.saturating_add(done * SYMBOL_BYTES as u64);
            let length = batch * SYMBOL_BYTES as u64;
            let bytes = elf.source().read("symbols", offset, length, length)?;
            let (entries, _) = bytes.as_chunks::<SYMBOL_BYTES>();
            for entry in entries {
                let Some(symbol) = parse(entry, elf, &strings, in_debug_file) else { continue };
                if self.symbols.len() >= SYMBOLS_PER_FILE_MAX {
                    let max = SYMBOLS_PER_FILE_MAX as u64;
                    return Err(ForeignFileError::Limit { what: "symbols of one file", max });
                }
                self.symbols.push(symbol);
            }
            done += batch;
        }
        Ok(())
    }

    /// True if the address is in a code section.
    pub(super) fn is_code(&self, address: u64) -> bool {
        self.section_of(address).is_some()
    }

    /// The linkage name of the function at `address`.
    pub(super) fn find(
        &self,
        elf: &Elf<'_>,
        debug_file: Option<&Elf<'_>>,
        address: u64,
    ) -> Option<String> {
        let section = self.section_of(address)?;
        let after = self.symbols.partition_point(|symbol| symbol.start <= address);
        let candidates = self
            .sized(after, address)
            .or_else(|| self.unsized_before(elf, after, address, section))?;
        let names = candidates.iter().filter_map(|symbol| {
            let file = if symbol.in_debug_file { debug_file? } else { elf };
            let mut name = clean(file.source().string_at(symbol.name_offset)?)?;
            if symbol.rank == Rank::Stub {
                name.push_str("@plt");
            }
            let underscores = name.bytes().take_while(|&byte| byte == b'_').count();
            Some((
                symbol.rank == Rank::LocalFunction,
                symbol.rank >= Rank::Untyped,
                underscores,
                symbol.rank,
                name.len(),
                name,
            ))
        });
        names.min().map(|(.., name)| name)
    }

    /// The symbols of the innermost range that contains `address`.
    fn sized(&self, after: usize, address: u64) -> Option<&[Symbol]> {
        let before = self.symbols.get(..after)?;
        let contains = |symbol: &Symbol| symbol.start.saturating_add(symbol.size) > address;
        let walk = before.iter().rev().take(SYMBOL_WALK_MAX);
        let walk = walk.take_while(|symbol| symbol.reach > address);
        let found = walk.clone().find(|symbol| symbol.rank != Rank::Untyped && contains(symbol));
        let start = found.or_else(|| walk.clone().find(|symbol| contains(symbol)))?.start;
        let first = before.partition_point(|symbol| symbol.start < start);
        let aliases = before.get(first..)?;
        let count = aliases.iter().take_while(|symbol| symbol.start == start && contains(symbol));
        let count = count.count().min(SYMBOL_WALK_MAX);
        aliases.get(..count)
    }

    /// The symbols without size that start last before `address`, if nothing else lies between. Where call
    /// frame information says where the function begins and ends, they must lie in it; a table of exported
    /// symbols alone names only what begins where a function does.
    fn unsized_before(
        &self,
        elf: &Elf<'_>,
        after: usize,
        address: u64,
        section: (u64, u64),
    ) -> Option<&[Symbol]> {
        let before = self.symbols.get(..after)?;
        let last = before.last()?;
        if last.start < section.0 || last.size != 0 {
            return None;
        }
        let allowed = match functions::containing(elf, address) {
            Some(function) if self.complete => function.contains(&last.start),
            Some(function) => function.start == last.start,
            None => self.complete && address.checked_sub(last.start)? < SYMBOL_UNSIZED_BYTES_MAX,
        };
        if !allowed {
            return None;
        }
        let first = before.partition_point(|symbol| symbol.start < last.start);
        // A sized symbol at the same place has said where the function ends.
        let aliases = before.get(first..)?;
        let sized = aliases.iter().any(|symbol| symbol.size != 0);
        (!sized).then(|| &aliases[..aliases.len().min(SYMBOL_WALK_MAX)])
    }

    fn section_of(&self, address: u64) -> Option<(u64, u64)> {
        let after = self.code.partition_point(|&(start, _)| start <= address);
        let range = *self.code.get(after.checked_sub(1)?)?;
        (address < range.1).then_some(range)
    }
}

/// Takes a symbol that may name code.
fn parse(entry: &[u8], elf: &Elf<'_>, strings: &Section, in_debug_file: bool) -> Option<Symbol> {
    let name = u64::from(u32_at(entry, 0)?);
    let info = *entry.get(4)?;
    let section_index = u16_at(entry, 6)?;
    let start = u64_at(entry, 8)?;
    let size = u64_at(entry, 16)?;
    if name == 0 || name >= strings.size || section_index == elf::SHN_UNDEF.0 {
        return None;
    }
    let section =
        elf.sections.get(usize::from(section_index)).filter(|section| section.is_code())?;
    let end = section.address.saturating_add(section.size);
    if !(section.address..end).contains(&start) {
        return None;
    }
    let rank = match (info & 0xf, info >> 4) {
        (kind, elf_bind) if kind == elf::STT_FUNC.0 || kind == elf::STT_GNU_IFUNC.0 => {
            match elf_bind {
                bind if bind == elf::STB_LOCAL.0 => Rank::LocalFunction,
                bind if bind == elf::STB_WEAK.0 => Rank::WeakFunction,
                _ => Rank::GlobalFunction,
            }
        }
        (kind, _) if kind == elf::STT_NOTYPE.0 => Rank::Untyped,
        _ => return None,
    };
    let size = size.min(end - start);
    let name_offset = strings.offset.checked_add(name)?;
    Some(Symbol { start, size, reach: 0, name_offset, rank, in_debug_file })
}

/// A name without its version (`sem_destroy@@GLIBC_2.17`); nothing if it is empty.
pub(super) fn clean(name: Vec<u8>) -> Option<String> {
    let name = String::from_utf8_lossy(&name);
    let name = name.split('@').next().unwrap_or_default();
    (!name.is_empty()).then(|| name.to_owned())
}
