//! Names of variables: which symbol of a writable segment an address belongs to. Few are asked for (locks that are
//! contended), so the table is searched and nothing of it kept; the answers are.

use super::symbols::{BATCH, SYMBOL_BYTES, SymbolTable, clean};
use crate::address::ElfAddr;
use crate::clock::{MonotonicNs, monotonic_now};
use crate::elf::headers::{Elf, Section};
use crate::elf::source::{u32_at, u64_at};
use crate::elf::{Names, SourceLine};
use crate::limits::SYMBOLS_READ_PER_TABLE_MAX;
use crate::symbolize::UnnamedReason;
use crate::symbolize::demangle::demangle;
use object::elf;

/// The variable of each address, `symbol` or `symbol+0x10`; `None` for what is none, as `code` says, or has no symbol.
/// And whether all was looked through before `until`: if not, what was found counts, and the rest met a limit.
pub(super) fn names(
    (elf, debug_file): (&Elf<'_>, Option<&Elf<'_>>),
    code: &SymbolTable,
    addresses: &[ElfAddr],
    until: MonotonicNs,
) -> (Vec<Option<Names>>, bool) {
    let writable: Vec<_> = elf.writable_segments().collect();
    let mut found: Vec<Option<(u64, String)>> = vec![None; addresses.len()];
    let is_data = |address: u64| {
        writable.iter().any(|range| range.contains(&address)) && !code.is_code(address)
    };
    let wanted: Vec<(usize, u64)> = addresses
        .iter()
        .enumerate()
        .filter(|(_, address)| is_data(address.0))
        .map(|(place, address)| (place, address.0))
        .collect();
    let mut whole = true;
    for elf in [Some(elf), debug_file].into_iter().flatten() {
        for kind in [elf::SHT_SYMTAB.0, elf::SHT_DYNSYM.0] {
            let section = elf.sections.iter().find(|section| section.kind == kind);
            if let Some(section) = section.filter(|_| !wanted.is_empty()) {
                whole &= search(elf, section, &wanted, &mut found, until) != Some(false);
            }
        }
    }
    let mut answers: Vec<Option<Names>> = vec![None; addresses.len()];
    for (place, address) in wanted {
        answers[place] = match found[place].take() {
            Some((start, name)) => Some(Ok(vec![variable(&name, address.saturating_sub(start))])),
            None => (!whole).then_some(Err(UnnamedReason::Limit)),
        };
    }
    (answers, whole)
}

fn variable(linkage_name: &str, offset: u64) -> SourceLine {
    let name = demangle(linkage_name);
    let function = if offset == 0 { name } else { format!("{name}+{offset:#x}") };
    SourceLine { function, system_name: String::new(), file: String::new(), line: 0 }
}

/// Looks through one table: false if time was up before its end; `None` if it is damaged, so that it ends earlier. The
/// symbol that begins last, before the address, is the innermost one.
fn search(
    elf: &Elf<'_>,
    section: &Section,
    wanted: &[(usize, u64)],
    found: &mut [Option<(u64, String)>],
    until: MonotonicNs,
) -> Option<bool> {
    let strings = elf.sections.get(usize::try_from(section.link).ok()?)?;
    let count = (section.size / SYMBOL_BYTES as u64).min(SYMBOLS_READ_PER_TABLE_MAX);
    let mut done = 0;
    while done < count && monotonic_now() < until {
        let batch = (count - done).min(BATCH);
        let length = batch * SYMBOL_BYTES as u64;
        let offset = section.offset.checked_add(done * SYMBOL_BYTES as u64)?;
        let bytes = elf.source().read("symbols", offset, length, length).ok()?;
        for entry in bytes.as_chunks::<SYMBOL_BYTES>().0 {
            if u64::from(entry[4] & 0xf) != u64::from(elf::STT_OBJECT.0) {
                continue;
            }
            let (start, size) = (u64_at(entry, 8)?, u64_at(entry, 16)?);
            let is_in = |(_, address): &&(usize, u64)| *address >= start && *address - start < size;
            for (place, _) in wanted.iter().filter(is_in) {
                let slot = &mut found[*place];
                if slot.as_ref().is_some_and(|(known, _)| *known >= start) {
                    continue;
                }
                let name = strings.offset.checked_add(u64::from(u32_at(entry, 0)?))?;
                if let Some(name) = elf.source().string_at(name).and_then(clean) {
                    *slot = Some((start, name));
                }
            }
        }
        done += batch;
    }
    Some(done >= count)
}
