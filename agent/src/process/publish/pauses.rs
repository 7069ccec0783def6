//! Processes that took long to publish: each rests so many times as long before it is published again, however often
//! its mappings change.

use crate::address::Pid;
use crate::clock::MonotonicNs;
use crate::limits::{PUBLISH_PAUSE_FACTOR, PUBLISH_PAUSE_NS_MAX, PUBLISH_PAUSE_NS_MIN};
use hashbrown::HashMap;
use std::collections::BTreeSet;

/// Who rests. Bounded by the number of processes known, which has a limit.
#[derive(Debug, Default)]
pub(super) struct Pauses {
    pauses: HashMap<Pid, Pause>,
    order: BTreeSet<(MonotonicNs, Pid)>,
}

#[derive(Clone, Copy, Debug)]
struct Pause {
    until: MonotonicNs,
    /// It has changed meanwhile.
    changed: bool,
}

impl Pauses {
    /// A process was published at `now`, which took so much CPU time.
    pub(super) fn published(&mut self, pid: Pid, taken_ns: u64, now: MonotonicNs) {
        self.forget(pid);
        let length_ns = taken_ns.saturating_mul(PUBLISH_PAUSE_FACTOR);
        if length_ns >= PUBLISH_PAUSE_NS_MIN {
            let until = now.plus(length_ns.min(PUBLISH_PAUSE_NS_MAX));
            self.pauses.insert(pid, Pause { until, changed: false });
            self.order.insert((until, pid));
        }
    }

    /// True if a process that changed rests: it is due later.
    pub(super) fn puts_off(&mut self, pid: Pid, now: MonotonicNs) -> bool {
        let Some(pause) = self.pauses.get_mut(&pid) else { return false };
        pause.changed = true;
        now < pause.until
    }

    /// It has ended, or runs another program, or must be published at once.
    pub(super) fn forget(&mut self, pid: Pid) {
        if let Some(pause) = self.pauses.remove(&pid) {
            self.order.remove(&(pause.until, pid));
        }
    }

    /// Who changed while it rested, and does no longer rest.
    pub(super) fn due(&mut self, now: MonotonicNs) -> Vec<Pid> {
        let mut due = Vec::new();
        while let Some(&(until, pid)) = self.order.first()
            && until <= now
        {
            self.order.pop_first();
            due.extend(self.pauses.remove(&pid).filter(|pause| pause.changed).map(|_| pid));
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
        pauses.published(slow, 4_000_000, at(104));
        pauses.published(quick, 100_000, at(100));
        assert!(!pauses.puts_off(quick, at(101)), "less than a poll");
        assert!(pauses.puts_off(slow, at(105)) && pauses.puts_off(slow, at(303)));
        assert_eq!(pauses.due(at(303)), []);
        assert_eq!(pauses.due(at(304)), [slow], "50 times 4 ms");
        assert!(!pauses.puts_off(slow, at(304)));
        // Nothing has changed; another program; no pause is endless.
        pauses.published(slow, 4_000_000, at(404));
        assert_eq!(pauses.due(at(1000)), []);
        pauses.published(slow, 4_000_000, at(1004));
        pauses.forget(slow);
        assert!(!pauses.puts_off(slow, at(1005)));
        pauses.published(slow, 7_000_000_000, at(9000));
        assert!(pauses.puts_off(slow, at(9001)));
        assert_eq!(pauses.due(at(9000).plus(PUBLISH_PAUSE_NS_MAX)), [slow]);
        assert!(pauses.pauses.is_empty() && pauses.order.is_empty());
    }
}
