//! Scattered small reads of a large file: pages kept in a bounded cache, so that a table of 144 MB
//! costs what is looked at.

use super::source::Source;
use crate::limits::{PAGED_BYTES, PAGED_PAGES_MAX};
use hashbrown::HashMap;
use std::cell::RefCell;
use std::rc::Rc;

/// A file read by pages.
#[derive(Debug)]
pub(crate) struct Paged<'a> {
    source: Source<'a>,
    pages: RefCell<HashMap<u64, Rc<[u8]>>>,
}

impl<'a> Paged<'a> {
    pub(crate) fn new(source: Source<'a>) -> Self {
        Self { source, pages: RefCell::default() }
    }

    /// Bytes of the file.
    pub(crate) fn size(&self) -> u64 {
        self.source.size()
    }

    /// Fills `buffer`, whole or not at all.
    pub(crate) fn fill(&self, offset: u64, buffer: &mut [u8]) -> Option<()> {
        let mut done = 0;
        while done < buffer.len() {
            let at = offset.checked_add(done as u64)?;
            let (page, start) = self.page(at)?;
            let found = page.get(start..).filter(|found| !found.is_empty())?;
            let target = buffer.get_mut(done..)?;
            let count = found.len().min(target.len());
            target.get_mut(..count)?.copy_from_slice(found.get(..count)?);
            done += count;
        }
        Some(())
    }

    /// `N` bytes at `offset`.
    pub(crate) fn array<const N: usize>(&self, offset: u64) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        self.fill(offset, &mut bytes)?;
        Some(bytes)
    }

    /// The little-endian `u32` at `offset`.
    pub(crate) fn u32_at(&self, offset: u64) -> Option<u32> {
        self.array(offset).map(u32::from_le_bytes)
    }

    /// The little-endian `u64` at `offset`.
    pub(crate) fn u64_at(&self, offset: u64) -> Option<u64> {
        self.array(offset).map(u64::from_le_bytes)
    }

    /// Reads byte by byte from `offset` on.
    pub(crate) fn cursor(&self, offset: u64) -> Cursor<'_, 'a> {
        Cursor { paged: self, page: Rc::from([]), index: 0, next: offset }
    }

    /// The page that holds `offset`, and where in it.
    fn page(&self, offset: u64) -> Option<(Rc<[u8]>, usize)> {
        let number = offset / PAGED_BYTES;
        let start = usize::try_from(offset % PAGED_BYTES).ok()?;
        let mut pages = self.pages.borrow_mut();
        if let Some(page) = pages.get(&number) {
            return Some((Rc::clone(page), start));
        }
        let from = number * PAGED_BYTES;
        let length = self.source.size().checked_sub(from)?.min(PAGED_BYTES);
        let page: Rc<[u8]> = self.source.read("page", from, length, PAGED_BYTES).ok()?.into();
        if pages.len() >= PAGED_PAGES_MAX {
            pages.clear();
        }
        pages.insert(number, Rc::clone(&page));
        Some((page, start))
    }
}

/// See [`Paged::cursor`].
#[derive(Debug)]
pub(crate) struct Cursor<'p, 'a> {
    paged: &'p Paged<'a>,
    page: Rc<[u8]>,
    index: usize,
    /// Offset of the byte behind `page`.
    next: u64,
}

impl Cursor<'_, '_> {
    /// The next byte; nothing at the end of the file.
    pub(crate) fn byte(&mut self) -> Option<u8> {
        if self.index >= self.page.len() {
            let (page, index) = self.paged.page(self.next)?;
            self.next = self.next.checked_add(page.len().checked_sub(index)? as u64)?;
            self.page = page;
            self.index = index;
        }
        let byte = *self.page.get(self.index)?;
        self.index += 1;
        Some(byte)
    }

    /// An unsigned LEB128 number of at most 32 bits.
    pub(crate) fn varint(&mut self) -> Option<u32> {
        let mut value = 0u32;
        for shift in (0..35).step_by(7) {
            let byte = self.byte()?;
            value |= u32::from(byte & 0x7f).checked_shl(shift)?;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    /// The bytes up to a NUL, at most `max` of them.
    pub(crate) fn string(&mut self, max: usize) -> Option<String> {
        let mut bytes = Vec::new();
        loop {
            match self.byte()? {
                0 => return Some(String::from_utf8_lossy(&bytes).into_owned()),
                _ if bytes.len() >= max => return None,
                byte => bytes.push(byte),
            }
        }
    }
}
