//! Many small reads of a large file in whatever order: pages of 4 KiB, each kept in the one slot that its
//! number gives, so that memory is bounded and an unlucky order costs a read of one page.

use super::ForeignFileError;
use super::source::Source;
use crate::limits::{SLOTTED_PAGE_BYTES as PAGE, SLOTTED_PAGES_MAX};

/// A file read through slots.
#[derive(Debug)]
pub(crate) struct Slotted<'a> {
    source: Source<'a>,
    bytes: Vec<u8>,
    /// Number of the page in each slot, plus one; 0 for none.
    pages: Vec<u64>,
    /// Why the first read failed that should not have.
    failure: Option<ForeignFileError>,
}

impl<'a> Slotted<'a> {
    pub(crate) fn new(source: Source<'a>) -> Self {
        // A small file needs no more slots than it has pages.
        let pages = usize::try_from(source.size() / PAGE as u64).unwrap_or(usize::MAX);
        let slots = pages.saturating_add(1).min(SLOTTED_PAGES_MAX);
        // Zeroed memory is taken from the system page by page, as it is used.
        Self { source, bytes: vec![0; slots * PAGE], pages: vec![0; slots], failure: None }
    }

    /// Appends `length` bytes from `offset` to `target`, all or none.
    pub(crate) fn append(
        &mut self,
        offset: u64,
        length: usize,
        target: &mut Vec<u8>,
    ) -> Option<()> {
        let before = target.len();
        let end = offset.checked_add(length as u64).filter(|&end| end <= self.source.size())?;
        let mut at = offset;
        while at < end {
            let into = usize::try_from(at % PAGE as u64).ok()?;
            let Some(page) = self.page(at / PAGE as u64) else {
                target.truncate(before);
                return None;
            };
            let count = (PAGE - into).min(usize::try_from(end - at).unwrap_or(PAGE));
            target.extend_from_slice(page.get(into..into + count)?);
            at += count as u64;
        }
        Some(())
    }

    /// The page, filled up with what was in its slot if the file ends before it does.
    fn page(&mut self, number: u64) -> Option<&[u8]> {
        let slot = usize::try_from(number % self.pages.len() as u64).ok()?;
        let page = self.bytes.get_mut(slot * PAGE..(slot + 1) * PAGE)?;
        let held = self.pages.get_mut(slot)?;
        if *held != number + 1 {
            *held = 0;
            let from = number * PAGE as u64;
            let length = self.source.size().checked_sub(from)?.min(PAGE as u64);
            let part = page.get_mut(..usize::try_from(length).ok()?)?;
            if let Err(error) = self.source.fill("page", from, part) {
                self.failure.get_or_insert(error);
                return None;
            }
            *held = number + 1;
        }
        Some(page)
    }

    /// Reads once, past the slots.
    pub(crate) fn fill(&mut self, offset: u64, buffer: &mut [u8]) -> Option<()> {
        self.source
            .fill("section", offset, buffer)
            .map_err(|error| {
                self.failure.get_or_insert(error);
            })
            .ok()
    }

    /// Fails if a read has failed: what came after is not the file's fault.
    pub(crate) fn check(&mut self) -> Result<(), ForeignFileError> {
        self.failure.take().map_or(Ok(()), Err)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_order_gives_the_bytes_of_the_file() {
        let file: Vec<u8> = (0..3 * PAGE + 77).map(|at| at.to_le_bytes()[0] ^ 7).collect();
        let mut slotted = Slotted::new(Source::memory(&file));
        for (offset, length) in [(0, 1), (PAGE - 3, 9), (3 * PAGE, 77), (5, 3 * PAGE), (12, 0)] {
            let mut found = vec![1, 2];
            slotted.append(offset as u64, length, &mut found).unwrap();
            assert_eq!(found[..2], [1, 2]);
            assert_eq!(found[2..], file[offset..offset + length]);
        }
        let mut none = Vec::new();
        assert_eq!(slotted.append(3 * PAGE as u64, 78, &mut none), None);
        assert!(none.is_empty() && slotted.check().is_ok());
    }

    #[test]
    fn pages_that_share_a_slot_take_turns() {
        let mut file = vec![0; (SLOTTED_PAGES_MAX + 2) * PAGE];
        let last = SLOTTED_PAGES_MAX * PAGE;
        file[last] = 9;
        let mut slotted = Slotted::new(Source::memory(&file));
        for (offset, byte) in [(0, 0), (last, 9), (0, 0), (last, 9)] {
            let mut found = Vec::new();
            slotted.append(offset as u64, 1, &mut found).unwrap();
            assert_eq!(found, [byte]);
        }
    }
}
