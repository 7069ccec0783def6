//! Places in a fixed table, given out in contiguous runs, lowest first. A run that was given back is used
//! again only after a delay, because walks that began before may still read it.

use crate::clock::MonotonicNs;
use agent_ebpf::limits::REUSE_DELAY_NS;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

/// The free and the used places of one table.
#[derive(Debug)]
pub(super) struct Space {
    /// Length of each free run, by its start; runs never touch.
    free: BTreeMap<usize, usize>,
    retired: VecDeque<(MonotonicNs, Range<usize>)>,
    used: usize,
}

impl Space {
    /// A table of `places` free places.
    pub(super) fn new(places: usize) -> Self {
        Self { free: BTreeMap::from([(0, places)]), retired: VecDeque::new(), used: 0 }
    }

    /// Places that are given out.
    pub(super) fn used(&self) -> usize {
        self.used
    }

    /// Takes a run of `length` places, `None` if there is none.
    pub(super) fn take(&mut self, length: usize, now: MonotonicNs) -> Option<Range<usize>> {
        self.recycle(now);
        let (&start, &available) = self.free.iter().find(|(_, available)| **available >= length)?;
        self.free.remove(&start);
        if available > length {
            self.free.insert(start + length, available - length);
        }
        self.used += length;
        Some(start..start + length)
    }

    /// Gives a run back that walks may still read.
    pub(super) fn retire(&mut self, run: Range<usize>, now: MonotonicNs) {
        self.used -= run.len();
        self.retired.push_back((now, run));
    }

    /// Gives a run back that was never published.
    pub(super) fn give_back(&mut self, run: Range<usize>) {
        self.used -= run.len();
        self.join(run);
    }

    fn recycle(&mut self, now: MonotonicNs) {
        while let Some((since, _)) = self.retired.front()
            && now.0.saturating_sub(since.0) >= REUSE_DELAY_NS
            && let Some((_, run)) = self.retired.pop_front()
        {
            self.join(run);
        }
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

    const LATER: MonotonicNs = MonotonicNs(REUSE_DELAY_NS);

    #[test]
    fn runs_are_contiguous_lowest_first_and_reused_after_the_delay() {
        let now = MonotonicNs(0);
        let mut space = Space::new(10);
        assert_eq!(space.take(4, now), Some(0..4));
        assert_eq!(space.take(4, now), Some(4..8));
        assert_eq!(space.take(4, now), None, "two places are left");
        assert_eq!(space.take(2, now), Some(8..10));
        space.retire(0..4, now);
        space.retire(4..8, now);
        assert_eq!(space.used(), 2);
        assert_eq!(
            space.take(1, MonotonicNs(REUSE_DELAY_NS - 1)),
            None,
            "walks may still read them"
        );
        assert_eq!(space.take(8, LATER), Some(0..8), "joined");
        space.give_back(0..8);
        assert_eq!(space.take(1, LATER), Some(0..1), "nothing was published there");
    }
}
