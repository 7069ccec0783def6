//! A set of addresses of one region, asked for each instruction: one bit an address.

use std::ops::Range;

#[derive(Debug)]
pub(super) struct Places {
    start: u64,
    size: u64,
    words: Vec<u64>,
}

impl Places {
    pub(super) fn new(region: &Range<u64>) -> Self {
        let size = region.end.saturating_sub(region.start);
        let words = usize::try_from(size.div_ceil(64)).unwrap_or(0);
        Self { start: region.start, size, words: vec![0; words] }
    }

    fn place(&self, at: u64) -> Option<(usize, u64)> {
        let into = at.checked_sub(self.start).filter(|&into| into < self.size)?;
        Some((usize::try_from(into / 64).ok()?, 1 << (into % 64)))
    }

    /// Adds an address; one outside of the region is left out.
    pub(super) fn insert(&mut self, at: u64) {
        if let Some((word, bit)) = self.place(at)
            && let Some(word) = self.words.get_mut(word)
        {
            *word |= bit;
        }
    }

    pub(super) fn contains(&self, at: u64) -> bool {
        let Some((word, bit)) = self.place(at) else { return false };
        self.words.get(word).is_some_and(|word| word & bit != 0)
    }

    /// All of them, ascending.
    pub(super) fn iter(&self) -> impl Iterator<Item = u64> {
        let words = self.words.iter().zip(0_u64..).filter(|&(&word, _)| word != 0);
        words.flat_map(move |(&word, number)| {
            let bits = (0..64).filter(move |bit| (word >> bit) & 1 != 0);
            bits.map(move |bit| self.start + number * 64 + bit)
        })
    }
}
