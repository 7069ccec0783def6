//! Places in a fixed table, given out in contiguous runs, lowest first. Who gives a run back knows that no walk
//! reads it any more: see [`super::layouts`].

use std::collections::BTreeMap;
use std::ops::Range;

/// The free and the used places of one table.
#[derive(Debug)]
pub(super) struct Space {
    /// Length of each free run, by its start; runs never touch.
    free: BTreeMap<usize, usize>,
    used: usize,
    /// Free and used.
    places: usize,
}

impl Space {
    /// A table of `places` free places.
    pub(super) fn new(places: usize) -> Self {
        Self { free: BTreeMap::from([(0, places)]), used: 0, places }
    }

    /// Places that are given out.
    pub(super) fn used(&self) -> usize {
        self.used
    }

    /// The first place behind all that are given out.
    pub(super) fn behind_all(&self) -> usize {
        let last = self.free.last_key_value();
        let at_end = last.filter(|&(start, length)| start + length == self.places);
        at_end.map_or(self.places, |(start, _)| *start)
    }

    /// Takes a run of `length` places, `None` if there is none.
    pub(super) fn take(&mut self, length: usize) -> Option<Range<usize>> {
        let (&start, &available) = self.free.iter().find(|(_, available)| **available >= length)?;
        self.free.remove(&start);
        if available > length {
            self.free.insert(start + length, available - length);
        }
        self.used += length;
        Some(start..start + length)
    }

    /// Gives a run back.
    pub(super) fn give_back(&mut self, run: Range<usize>) {
        self.used -= run.len();
        self.join(run);
    }

    fn join(&mut self, run: Range<usize>) {
        let Range { mut start, mut end } = run;
        if let Some((&before, &length)) = self.free.range(..start).next_back()
            && before + length == start
        {
            self.free.remove(&before);
            start = before;
        }
        if let Some(length) = self.free.remove(&end) {
            end += length;
        }
        self.free.insert(start, end - start);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_contiguous_lowest_first_and_joined_when_they_come_back() {
        let mut space = Space::new(10);
        assert_eq!(space.take(4), Some(0..4));
        assert_eq!(space.take(4), Some(4..8));
        assert_eq!(space.take(4), None, "two places are left");
        assert_eq!(space.behind_all(), 8);
        assert_eq!(space.take(2), Some(8..10));
        assert_eq!(space.behind_all(), 10);
        space.give_back(0..4);
        space.give_back(4..8);
        assert_eq!(space.behind_all(), 10);
        assert_eq!(space.used(), 2);
        assert_eq!(space.take(8), Some(0..8), "joined");
        space.give_back(0..8);
        assert_eq!(space.take(1), Some(0..1));
    }
}
