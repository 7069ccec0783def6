//! What the publication of each process may cost: a purse of CPU time that fills slowly. Whose purse is empty rests
//! before it is published again, however often its mappings change; a program that begins, whose tables come one after
//! the other, never is.

use crate::address::Pid;
use crate::clock::MonotonicNs;
use crate::limits::{PUBLISH_BURST_NS, PUBLISH_PAUSE_FACTOR, PUBLISH_PAUSE_NS_MAX};
use hashbrown::HashMap;
use std::collections::BTreeSet;

/// Who spent what, and who rests. Bounded by the number of processes known, which has a limit.
#[derive(Debug, Default)]
pub(super) struct Pauses {
    purses: HashMap<Pid, Purse>,
    order: BTreeSet<(MonotonicNs, Pid)>,
}

#[derive(Clone, Copy, Debug)]
struct Purse {
    /// CPU time that is not back yet, nanoseconds.
    spent_ns: u64,
    /// As of this time.
    at: MonotonicNs,
    /// It rests until then.
    until: MonotonicNs,
    /// It has changed meanwhile.
    changed: bool,
}

impl Pauses {
    /// A process was published at `now`, which took so much CPU time.
    pub(super) fn published(&mut self, pid: Pid, taken_ns: u64, now: MonotonicNs) {
        let before = self.purses.get(&pid).copied();
        self.forget(pid);
        let left_ns = before.map_or(0, |purse| {
            purse.spent_ns.saturating_sub(now.since(purse.at) / PUBLISH_PAUSE_FACTOR)
        });
        let spent_ns = left_ns.saturating_add(taken_ns);
        let over_ns = spent_ns.saturating_sub(PUBLISH_BURST_NS);
        let over_ns = over_ns.min(PUBLISH_PAUSE_NS_MAX / PUBLISH_PAUSE_FACTOR);
        let until = now.plus(over_ns * PUBLISH_PAUSE_FACTOR);
        if over_ns > 0 {
            self.order.insert((until, pid));
        }
        let spent_ns = spent_ns.min(PUBLISH_BURST_NS + over_ns);
        self.purses.insert(pid, Purse { spent_ns, at: now, until, changed: false });
    }

    /// True if a process that changed rests: it is due later.
    pub(super) fn puts_off(&mut self, pid: Pid, now: MonotonicNs) -> bool {
        let Some(purse) = self.purses.get_mut(&pid) else { return false };
        purse.changed = now < purse.until;
        purse.changed
    }

    /// It has ended, or runs another program, or must be published at once.
    pub(super) fn forget(&mut self, pid: Pid) {
        if let Some(purse) = self.purses.remove(&pid) {
            self.order.remove(&(purse.until, pid));
        }
    }

    /// Who changed while it rested, and does no longer rest.
    pub(super) fn due(&mut self, now: MonotonicNs) -> Vec<Pid> {
        let mut due = Vec::new();
        while let Some(&(until, pid)) = self.order.first()
            && until <= now
        {
            self.order.pop_first();
            let purse = self.purses.get_mut(&pid);
            if purse.is_some_and(|purse| std::mem::take(&mut purse.changed)) {
                due.push(pid);
            }
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_took_long_rests_and_comes_once() {
        let mut pauses = Pauses::default();
        let (slow, quick) = (Pid(1), Pid(2));
        let at = |milliseconds: u64| MonotonicNs(milliseconds * 1_000_000);
        for _ in 0..3 {
            pauses.published(slow, 4_000_000, at(104));
        }
        pauses.published(quick, 400_000, at(100));
        assert!(!pauses.puts_off(quick, at(100)), "the purse has room");
        assert!(pauses.puts_off(slow, at(105)) && pauses.puts_off(slow, at(203)));
        assert_eq!(pauses.due(at(203)), []);
        assert_eq!(pauses.due(at(204)), [slow], "50 times the 2 ms that are too much");
        assert!(!pauses.puts_off(slow, at(204)));
        // From then on each time has its own pause.
        pauses.published(slow, 4_000_000, at(204));
        assert!(pauses.puts_off(slow, at(403)));
        assert_eq!(pauses.due(at(404)), [slow], "50 times 4 ms");
        // Nothing has changed; another program; no pause is endless.
        pauses.published(slow, 4_000_000, at(404));
        assert_eq!(pauses.due(at(1000)), []);
        pauses.published(slow, 40_000_000, at(1004));
        pauses.forget(slow);
        assert!(!pauses.puts_off(slow, at(1005)));
        pauses.published(slow, 7_000_000_000, at(9000));
        assert!(pauses.puts_off(slow, at(9001)));
        assert_eq!(pauses.due(at(9000).plus(PUBLISH_PAUSE_NS_MAX)), [slow]);
        assert!(pauses.order.is_empty());
    }
}
