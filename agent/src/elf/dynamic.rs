//! Asks a file's own dynamic symbol hash whether it exports a name: a handful of small reads, whatever
//! the size of the table, and no section headers needed.

use super::headers::Elf;
use super::source::{u32_at, u64_at};
use crate::limits::{ELF_DYNAMIC_BYTES_MAX, ELF_HASH_CHAIN_MAX};
use object::elf;

/// The dynamic symbol tables, by address.
#[derive(Debug)]
pub(crate) struct DynamicSymbols<'e, 'a> {
    elf: &'e Elf<'a>,
    symbols: u64,
    strings: u64,
    gnu_hash: u64,
}

impl<'e, 'a> DynamicSymbols<'e, 'a> {
    /// Finds the tables through `PT_DYNAMIC`; nothing if the file has no GNU hash (then no name is
    /// found, which is the honest answer of a cheap look).
    pub(crate) fn of(elf: &'e Elf<'a>) -> Option<Self> {
        let dynamic = elf.segment(elf::PT_DYNAMIC)?;
        let length = dynamic.file_size.min(ELF_DYNAMIC_BYTES_MAX);
        let table =
            elf.source().read("dynamic", dynamic.offset, length, ELF_DYNAMIC_BYTES_MAX).ok()?;
        let (entries, _) = table.as_chunks::<16>();
        let value = |tag: elf::DynamicTag| {
            let entry =
                entries.iter().find(|entry| u64_at(*entry, 0) == Some(tag.0.cast_unsigned()))?;
            u64_at(entry, 8)
        };
        Some(Self {
            elf,
            symbols: value(elf::DT_SYMTAB)?,
            strings: value(elf::DT_STRTAB)?,
            gnu_hash: value(elf::DT_GNU_HASH)?,
        })
    }

    /// True if a symbol of this name is defined (glibc's lookup, `elf/dl-lookup.c`).
    pub(crate) fn defines(&self, name: &str) -> bool {
        self.symbol(name).is_some()
    }

    /// Address and size of a symbol that is defined.
    pub(crate) fn symbol(&self, name: &str) -> Option<(u64, u64)> {
        let header = self.read(self.gnu_hash, 16)?;
        let buckets = u64::from(u32_at(&header, 0)?);
        let first_hashed = u64::from(u32_at(&header, 4)?);
        let bloom_words = u64::from(u32_at(&header, 8)?);
        let hash = gnu_hash(name.as_bytes());
        let buckets_at = self.gnu_hash.checked_add(16)?.checked_add(bloom_words.checked_mul(8)?)?;
        let bucket = u64::from(hash).checked_rem(buckets)?;
        let bucket = self.read(buckets_at.checked_add(bucket * 4)?, 4)?;
        let mut index = u64::from(u32_at(&bucket, 0)?);
        let chains_at = buckets_at.checked_add(buckets * 4)?;
        for _ in 0..ELF_HASH_CHAIN_MAX {
            let link = chains_at.checked_add(index.checked_sub(first_hashed)?.checked_mul(4)?)?;
            let link = u32_at(&self.read(link, 4)?, 0)?;
            if link | 1 == hash | 1
                && let Some(found) = self.named(index, name)?
            {
                return Some(found);
            }
            if link & 1 == 1 {
                return None;
            }
            index = index.checked_add(1)?;
        }
        None
    }

    /// Address and size of the symbol if it is defined and has this name; `None` around it if it cannot be read.
    fn named(&self, index: u64, name: &str) -> Option<Option<(u64, u64)>> {
        let symbol = self.read(self.symbols.checked_add(index.checked_mul(24)?)?, 24)?;
        let defined = u32::from(super::source::u16_at(&symbol, 6)?) != 0;
        let at = self.strings.checked_add(u64::from(u32_at(&symbol, 0)?))?;
        let bytes = self.read(at, name.len() as u64 + 1)?;
        let found = defined && bytes.split_last() == Some((&0, name.as_bytes()));
        Some(if found { Some((u64_at(&symbol, 8)?, u64_at(&symbol, 16)?)) } else { None })
    }

    fn read(&self, address: u64, length: u64) -> Option<Vec<u8>> {
        self.elf.read_address("dynamic symbols", address, length, ELF_DYNAMIC_BYTES_MAX).ok()
    }
}

/// The hash of `DT_GNU_HASH`: Bernstein's, seed 5381.
fn gnu_hash(name: &[u8]) -> u32 {
    name.iter().fold(5381, |hash: u32, &byte| hash.wrapping_mul(33).wrapping_add(u32::from(byte)))
}
