//! Stubs of the procedure linkage table: each jumps to a function of another file through one word, and the
//! relocation of that word names the function. The stub's code is read, so that it does not matter which
//! linker laid out the table.

use crate::clock::{MonotonicNs, monotonic_now};
use crate::elf::headers::{Elf, Section};
use crate::elf::source::{u32_at, u64_at};
use crate::limits::{
    PLT_RELOCATION_BYTES_MAX, PLT_RELOCATIONS_PER_FILE_MAX, PLT_SECTION_BYTES_MAX,
    PLT_STUBS_PER_FILE_MAX,
};
use hashbrown::HashMap;
use object::elf;

/// `Elf64_Rela`.
const RELOCATION_BYTES: usize = 24;
/// `Elf64_Sym`.
const SYMBOL_BYTES: u64 = 24;
/// Bytes of a stub where the section does not say: all known linkers, except in `.plt.got`.
const STUB_BYTES: u64 = 16;
/// Relocations between two looks at the clock.
const CLOCK_INTERVAL: usize = 256;

/// One stub.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stub {
    pub(super) start: u64,
    pub(super) size: u64,
    /// File offset of the name of the function that it jumps to.
    pub(super) name_offset: u64,
}

/// The stubs of a file.
#[derive(Debug, Default)]
pub(super) struct Stubs {
    pub(super) found: Vec<Stub>,
    /// More than a limit allows: some are missing.
    pub(super) cut: bool,
}

/// The stubs of a file; what cannot be read has none. Of each name the first section counts: headers are
/// cheap to write, and many of one name over the same bytes would be read without end.
pub(super) fn stubs(elf: &Elf<'_>, until: MonotonicNs) -> Stubs {
    let mut stubs = Stubs::default();
    let mut slots: Option<Slots> = None;
    for name in [".plt", ".plt.sec", ".plt.got", ".iplt"] {
        let Some(section) = elf.sections_named(name).find(|section| section.is_code()) else {
            continue;
        };
        let Ok(code) = elf.section_bytes("linkage table", section, PLT_SECTION_BYTES_MAX) else {
            continue;
        };
        let slots = slots.get_or_insert_with(|| Slots::read(elf, until));
        stubs.cut |= slots.cut;
        let size = stub_bytes(name, &code);
        let Ok(step) = usize::try_from(size) else { continue };
        for (index, bytes) in code.chunks(step).enumerate() {
            let start = section.address.saturating_add(index as u64 * size);
            let Some(name_offset) = target(slots, start, bytes) else { continue };
            if stubs.found.len() >= PLT_STUBS_PER_FILE_MAX {
                stubs.cut = true;
                return stubs;
            }
            stubs.found.push(Stub { start, size: bytes.len() as u64, name_offset });
        }
    }
    stubs
}

/// Stubs of `.plt.got` have 8 bytes, `jmp *slot(%rip); xchg %ax,%ax`, or 16 with control-flow protection.
fn stub_bytes(name: &str, code: &[u8]) -> u64 {
    if name == ".plt.got"
        && code.starts_with(&[0xff, 0x25])
        && code.get(6..8) == Some(&[0x66, 0x90])
    {
        8
    } else {
        STUB_BYTES
    }
}

/// Where the name of a stub's target stands.
fn target(slots: &Slots, start: u64, bytes: &[u8]) -> Option<u64> {
    // `push slot(%rip)` begins the first entry, which serves all others and jumps to the dynamic linker.
    if bytes.starts_with(&[0xff, 0x35]) {
        return None;
    }
    if let Some(at) = bytes.windows(2).position(|pair| pair == [0xff, 0x25])
        && let Some(distance) = u32_at(bytes, at + 2)
    {
        let next = start.checked_add(at as u64 + 6)?;
        let slot = next.wrapping_add(i64::from(distance.cast_signed()).cast_unsigned());
        return slots.by_address.get(&slot).copied();
    }
    // With `.plt.sec`, the lazy half pushes the number of its relocation.
    let at = bytes.iter().position(|&byte| byte == 0x68).filter(|at| *at <= 4)?;
    let number = usize::try_from(u32_at(bytes, at + 1)?).ok()?;
    *slots.by_number.get(number)?
}

/// The words that stubs jump through.
#[derive(Default)]
struct Slots {
    by_address: HashMap<u64, u64>,
    /// Of `.rela.plt`, in its order.
    by_number: Vec<Option<u64>>,
    /// More relocations than are looked at, or too little time.
    cut: bool,
}

impl Slots {
    fn read(elf: &Elf<'_>, until: MonotonicNs) -> Self {
        let mut slots = Self::default();
        let mut left = PLT_RELOCATIONS_PER_FILE_MAX;
        for name in [".rela.plt", ".rela.iplt", ".rela.dyn"] {
            let Some(section) = elf.section(name) else { continue };
            let Ok(table) = elf.section_bytes("relocations", section, PLT_RELOCATION_BYTES_MAX)
            else {
                continue;
            };
            let (entries, _) = table.as_chunks::<RELOCATION_BYTES>();
            for (number, entry) in entries.iter().enumerate() {
                // Each entry may cost a read, which may wait for a disk.
                let late = number % CLOCK_INTERVAL == 0 && monotonic_now() > until;
                if left == 0 || late {
                    slots.cut = true;
                    return slots;
                }
                left -= 1;
                let found = slot(elf, section, entry);
                if let Some((address, name_offset)) = found {
                    slots.by_address.entry(address).or_insert(name_offset);
                }
                if name == ".rela.plt" {
                    slots.by_number.push(found.map(|(_, name_offset)| name_offset));
                }
            }
        }
        slots
    }
}

/// The word that a relocation fills with the address of a function, and where that function's name stands.
fn slot(elf: &Elf<'_>, section: &Section, entry: &[u8]) -> Option<(u64, u64)> {
    let address = u64_at(entry, 0)?;
    let info = u64_at(entry, 8)?;
    let kind = info & 0xffff_ffff;
    if kind != u64::from(elf::R_X86_64_JUMP_SLOT.0) && kind != u64::from(elf::R_X86_64_GLOB_DAT.0) {
        return None;
    }
    let symbols = elf.sections.get(usize::try_from(section.link).ok()?)?;
    let strings = elf.sections.get(usize::try_from(symbols.link).ok()?)?;
    let at = (info >> 32).checked_mul(SYMBOL_BYTES)?;
    if at.checked_add(SYMBOL_BYTES)? > symbols.size {
        return None;
    }
    let symbol =
        elf.source().read("symbol", symbols.offset.checked_add(at)?, SYMBOL_BYTES, SYMBOL_BYTES);
    let name = u64::from(u32_at(&symbol.ok()?, 0)?);
    (name != 0 && name < strings.size)
        .then(|| strings.offset.saturating_add(name))
        .map(|name_offset| (address, name_offset))
}
