//! Names of variables: which symbol of a writable segment an address belongs to. Few are asked for (locks that are
//! contended), so the table is searched and nothing of it kept; the answers are.

use super::symbols::{SYMBOL_BYTES, clean};
use crate::address::ElfAddr;
use crate::clock::{MonotonicNs, monotonic_now};
use crate::elf::headers::{Elf, Section};
use crate::elf::source::{u32_at, u64_at};
use crate::limits::SYMBOLS_READ_PER_TABLE_MAX;
use crate::symbolize::demangle::demangle;
use object::elf;

/// Symbols read at once: 768 KiB.
const BATCH: u64 = 32_768;

/// The variable of each address, `symbol` or `symbol+0x10`; `None` also of what is not found before `until`.
pub(super) fn names(
    elf: &Elf<'_>,
    debug_file: Option<&Elf<'_>>,
    addresses: &[ElfAddr],
    until: MonotonicNs,
) -> Vec<Option<String>> {
    let mut found: Vec<Option<(u64, String)>> = vec![None; addresses.len()];
    let wanted: Vec<(usize, u64)> = addresses
        .iter()
        .enumerate()
        .filter(|(_, address)| elf.is_writable(address.0))
        .map(|(place, address)| (place, address.0))
        .collect();
    for elf in [Some(elf), debug_file].into_iter().flatten() {
        for kind in [elf::SHT_SYMTAB.0, elf::SHT_DYNSYM.0] {
            let section = elf.sections.iter().find(|section| section.kind == kind);
            if let Some(section) = section.filter(|_| !wanted.is_empty()) {
                let _what_was_found_counts = search(elf, section, &wanted, &mut found, until);
            }
        }
    }
    let shown = found.into_iter().zip(addresses).map(|(found, address)| {
        let (start, name) = found?;
        let name = demangle(&name);
        match address.0.checked_sub(start)? {
            0 => Some(name),
            offset => Some(format!("{name}+{offset:#x}")),
        }
    });
    shown.collect()
}

/// Looks through one table. The symbol that begins last, before the address, is the innermost one.
fn search(
    elf: &Elf<'_>,
    section: &Section,
    wanted: &[(usize, u64)],
    found: &mut [Option<(u64, String)>],
    until: MonotonicNs,
) -> Option<()> {
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
    Some(())
}
