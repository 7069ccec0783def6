//! Puts records of all CPUs into the order of their times. A record is held back for a moment, until
//! every earlier one must have arrived; at equal times the life of processes goes before samples.

use super::{ProcessEvent, Record};
use crate::clock::MonotonicNs;
use crate::limits::ORDER_SLACK_NS;

/// Records that wait for earlier ones.
#[derive(Debug, Default)]
pub(super) struct Order {
    waiting: Vec<(MonotonicNs, Record)>,
}

impl Order {
    pub(super) fn push(&mut self, time: MonotonicNs, record: Record) {
        self.waiting.push((time, record));
    }

    /// How many wait.
    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// True while a note waits.
    pub(super) fn holds_note(&self) -> bool {
        self.waiting.iter().any(|(_, record)| matches!(record, Record::UnknownMapping { .. }))
    }

    /// Delivers what cannot be overtaken any more, given that everything that was written before
    /// `drained` has been pushed. Returns how many records those were.
    pub(super) fn deliver(&mut self, drained: MonotonicNs, each: &mut impl FnMut(Record)) -> usize {
        self.deliver_until(MonotonicNs(drained.0.saturating_sub(ORDER_SLACK_NS)), each)
    }

    /// Delivers everything.
    pub(super) fn flush(&mut self, each: &mut impl FnMut(Record)) -> usize {
        self.deliver_until(MonotonicNs(u64::MAX), each)
    }

    fn deliver_until(&mut self, horizon: MonotonicNs, each: &mut impl FnMut(Record)) -> usize {
        // Stable: records of one CPU with one time stay as they were written.
        self.waiting.sort_by_key(|(time, record)| (*time, rank(record)));
        let count = self.waiting.partition_point(|(time, _)| *time <= horizon);
        for (_, record) in self.waiting.drain(..count) {
            each(record);
        }
        count
    }
}

fn rank(record: &Record) -> u8 {
    match record {
        Record::Process(ProcessEvent::Lost { .. }) => 0,
        Record::Process(_) => 1,
        Record::UnknownMapping { .. } | Record::Inherited { .. } => 2,
        Record::Sample(_)
        | Record::LockWait(_)
        | Record::Wait(_)
        | Record::WaitEnd { .. }
        | Record::ThreadEnd { .. } => 3,
    }
}
