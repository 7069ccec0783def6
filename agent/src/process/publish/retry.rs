//! Processes that the kernel side did not take, for want of room: offered again later, each after twice
//! the time of the last wait.

use crate::address::Pid;
use crate::clock::MonotonicNs;
use crate::limits::{PUBLISH_RETRIES_PER_POLL, PUBLISH_RETRY_NS_MAX, PUBLISH_RETRY_NS_MIN};
use hashbrown::HashMap;
use std::collections::BTreeSet;

/// Who waits. Bounded by the number of processes known, which has a limit.
#[derive(Debug, Default)]
pub(super) struct Retries {
    waits: HashMap<Pid, Wait>,
    order: BTreeSet<(MonotonicNs, Pid)>,
}

#[derive(Clone, Copy, Debug)]
struct Wait {
    until: MonotonicNs,
    /// Of this time, nanoseconds.
    length_ns: u64,
}

impl Retries {
    /// Processes that wait.
    pub(super) fn len(&self) -> usize {
        self.waits.len()
    }

    /// A process was refused at `now`.
    pub(super) fn refused(&mut self, pid: Pid, now: MonotonicNs) {
        let before = self.waits.get(&pid).copied();
        let length_ns = before.map_or(PUBLISH_RETRY_NS_MIN, |wait| {
            wait.length_ns.saturating_mul(2).min(PUBLISH_RETRY_NS_MAX)
        });
        if let Some(wait) = before {
            self.order.remove(&(wait.until, pid));
        }
        let until = now.plus(length_ns);
        self.waits.insert(pid, Wait { until, length_ns });
        self.order.insert((until, pid));
    }

    /// It was taken, or has ended.
    pub(super) fn forget(&mut self, pid: Pid) {
        if let Some(wait) = self.waits.remove(&pid) {
            self.order.remove(&(wait.until, pid));
        }
    }

    /// Whose wait is over, a few at once. Each keeps the length of its wait until it is taken.
    pub(super) fn due(&mut self, now: MonotonicNs) -> Vec<Pid> {
        let mut due = Vec::new();
        while due.len() < PUBLISH_RETRIES_PER_POLL
            && let Some(&(until, pid)) = self.order.first()
            && until <= now
        {
            self.order.pop_first();
            due.push(pid);
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_refusal_doubles_the_wait() {
        let mut retries = Retries::default();
        let (one, other) = (Pid(1), Pid(2));
        let begin = MonotonicNs(1000);
        retries.refused(one, begin);
        assert_eq!(retries.due(begin.plus(PUBLISH_RETRY_NS_MIN - 1)), []);
        let second = begin.plus(PUBLISH_RETRY_NS_MIN);
        assert_eq!(retries.due(second), [one]);
        assert_eq!(retries.due(second), [], "once");
        retries.refused(one, second);
        retries.refused(other, second);
        assert_eq!(retries.due(second.plus(PUBLISH_RETRY_NS_MIN)), [other]);
        retries.forget(other);
        assert_eq!(retries.due(second.plus(2 * PUBLISH_RETRY_NS_MIN)), [one]);
        for _ in 0..20 {
            retries.refused(one, second);
        }
        assert_eq!(retries.due(second.plus(PUBLISH_RETRY_NS_MAX)), [one]);
        retries.forget(one);
        assert_eq!((retries.len(), retries.order.len()), (0, 0));
    }
}
