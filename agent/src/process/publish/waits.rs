//! How long stacks of a process could not be walked, because a mapping or a table was not published:
//! from the first sample or note that says so to the publication that ends it.

use crate::address::Pid;
use crate::clock::MonotonicNs;
use crate::limits::{WAIT_LARGE_ROWS, WAIT_OVERDUE_NS, WAIT_SLOW_NS, WAITS_MAX};
use hashbrown::HashMap;

/// Upper bounds of the buckets of [`WaitCounts`], nanoseconds; one more bucket holds what is longer.
pub const WAIT_BUCKETS_NS: [u64; 19] = [
    1_000_000,
    2_000_000,
    5_000_000,
    10_000_000,
    20_000_000,
    30_000_000,
    50_000_000,
    75_000_000,
    100_000_000,
    125_000_000,
    150_000_000,
    200_000_000,
    250_000_000,
    300_000_000,
    350_000_000,
    400_000_000,
    500_000_000,
    1_000_000_000,
    5_000_000_000,
];

/// Waits that are over. One that nobody could end is in it with the time that it lasted: [`WaitCounts::overdue`], and
/// those of [`WaitCounts::abandoned`] that were slow already. How long the others of these would have lasted nobody
/// knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WaitCounts {
    /// Waits by length, not summed up; see [`WAIT_BUCKETS_NS`].
    pub buckets: [u64; WAIT_BUCKETS_NS.len() + 1],
    /// Waits that are over.
    pub count: u64,
    /// Their sum, nanoseconds.
    pub sum_ns: u64,
    /// The longest, nanoseconds.
    pub max_ns: u64,
    /// Waits that did not end in time.
    pub overdue: u64,
    /// Processes that ended while they waited.
    pub abandoned: u64,
}

impl WaitCounts {
    fn add(&mut self, wait_ns: u64) {
        let bucket = WAIT_BUCKETS_NS.partition_point(|&bound| bound < wait_ns);
        if let Some(count) = self.buckets.get_mut(bucket) {
            *count += 1;
        }
        self.count += 1;
        self.sum_ns = self.sum_ns.saturating_add(wait_ns);
        self.max_ns = self.max_ns.max(wait_ns);
    }

    /// A time that at least 99 of 100 waits stayed within, nanoseconds: the bound of a bucket, or the
    /// longest wait. 0 where nothing waited.
    #[must_use]
    pub fn p99_ns(&self) -> u64 {
        let within = self.count - self.count / 100;
        let mut sum = 0;
        for (count, bound) in self.buckets.iter().zip(WAIT_BUCKETS_NS) {
            sum += count;
            if sum >= within {
                return bound.min(self.max_ns);
            }
        }
        self.max_ns
    }
}

/// Who waits now.
#[derive(Debug, Default)]
pub(super) struct Waits {
    begun: HashMap<Pid, Wait>,
    all: WaitCounts,
    large: WaitCounts,
}

#[derive(Clone, Copy, Debug)]
struct Wait {
    since: MonotonicNs,
    large: bool,
}

impl Waits {
    /// All waits, and those for large tables.
    pub(super) fn counts(&self) -> (WaitCounts, WaitCounts) {
        (self.all, self.large)
    }

    /// Something of this process was missing at `time`. True if that is new.
    pub(super) fn begin(&mut self, pid: Pid, time: MonotonicNs) -> bool {
        let new = !self.is_waiting(pid);
        if self.begun.len() < WAITS_MAX || !new {
            let wait = self.begun.entry(pid).or_insert(Wait { since: time, large: false });
            wait.since = wait.since.min(time);
        }
        new
    }

    /// True if nobody waits.
    pub(super) fn is_empty(&self) -> bool {
        self.begun.is_empty()
    }

    /// True if a stack of this process waits.
    pub(super) fn is_waiting(&self, pid: Pid) -> bool {
        self.begun.contains_key(&pid)
    }

    /// A table of so many rows came for these processes.
    pub(super) fn loaded(&mut self, rows: usize, pids: &[Pid]) {
        if rows >= WAIT_LARGE_ROWS {
            for pid in pids {
                if let Some(wait) = self.begun.get_mut(pid) {
                    wait.large = true;
                }
            }
        }
    }

    /// Nothing of this process is missing any more.
    pub(super) fn end(&mut self, pid: Pid, now: MonotonicNs) {
        if let Some(wait) = self.begun.remove(&pid) {
            let wait_ns = now.since(wait.since);
            if wait_ns >= WAIT_SLOW_NS {
                tracing::debug!(
                    pid = pid.0,
                    wait_ms = wait_ns / 1_000_000,
                    "a wait for tables is over"
                );
            }
            self.of(wait).add(wait_ns);
        }
    }

    /// The process has ended.
    pub(super) fn forget(&mut self, pid: Pid, now: MonotonicNs) {
        if let Some(wait) = self.begun.remove(&pid) {
            let wait_ns = now.since(wait.since);
            let counts = self.of(wait);
            counts.abandoned += 1;
            if wait_ns >= WAIT_SLOW_NS {
                counts.add(wait_ns);
            }
        }
    }

    /// Gives up waits that last too long.
    pub(super) fn forget_overdue(&mut self, now: MonotonicNs) {
        let overdue = |_: &Pid, wait: &mut Wait| now.since(wait.since) > WAIT_OVERDUE_NS;
        let over: Vec<(Pid, Wait)> = self.begun.extract_if(overdue).collect();
        for (pid, wait) in over {
            tracing::debug!(pid = pid.0, "the wait for its tables does not end");
            let counts = self.of(wait);
            counts.overdue += 1;
            counts.add(now.since(wait.since));
        }
    }

    fn of(&mut self, wait: Wait) -> &mut WaitCounts {
        if wait.large { &mut self.large } else { &mut self.all }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_measured_from_the_first_note_to_the_publication() {
        const MS: u64 = 1_000_000;
        let mut waits = Waits::default();
        let at = |ms: u64| MonotonicNs(ms * MS);
        for pid in 0..99 {
            waits.begin(Pid(pid), at(10));
            waits.begin(Pid(pid), at(20));
            waits.end(Pid(pid), at(18));
            waits.end(Pid(pid), at(100));
        }
        let (all, _) = waits.counts();
        assert_eq!((all.count, all.sum_ns, all.max_ns), (99, 99 * 8 * MS, 8 * MS));
        assert_eq!(all.p99_ns(), 8 * MS, "never more than the longest");
        waits.begin(Pid(1), at(0));
        waits.end(Pid(1), at(150));
        waits.begin(Pid(2), at(0));
        waits.loaded(2_000_000, &[Pid(2)]);
        waits.end(Pid(2), at(250));
        let (all, large) = waits.counts();
        assert_eq!((all.count, all.p99_ns()), (100, 10 * MS));
        assert_eq!((large.count, large.p99_ns()), (1, 250 * MS));
        waits.begin(Pid(3), at(0));
        waits.begin(Pid(4), at(0));
        waits.forget(Pid(3), MonotonicNs(WAIT_SLOW_NS - 1));
        let (all, _) = waits.counts();
        assert_eq!((all.abandoned, all.count), (1, 100), "nobody knows what it would have been");
        waits.begin(Pid(3), at(0));
        waits.forget(Pid(3), at(400));
        let (all, _) = waits.counts();
        assert_eq!(
            (all.abandoned, all.count, all.max_ns),
            (2, 101, 400 * MS),
            "slow, whatever came"
        );
        waits.forget_overdue(MonotonicNs(WAIT_OVERDUE_NS + 1));
        let (all, _) = waits.counts();
        assert_eq!((all.abandoned, all.overdue, waits.begun.len()), (2, 1, 0));
        assert_eq!((all.count, all.max_ns), (102, WAIT_OVERDUE_NS + 1));
    }
}
