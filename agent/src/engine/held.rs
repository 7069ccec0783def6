//! Samples that brought a piece of their stack along, because the kernel's tables did not know their process
//! or one of its files yet: held back until the tables are there, then to be walked on in user space. Which
//! samples, and for how long; the walk itself is `unwind`'s.

use crate::bpf::RawSample;
use crate::clock::MonotonicNs;
use crate::limits::{HELD_BYTES_MAX, HELD_FOR_TABLE_NS_MAX, HELD_NS_MAX, HELD_SAMPLES_MAX};
use agent_ebpf::Outcome;
use std::collections::VecDeque;

/// What became of stacks that came along, for the metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeldCounts {
    /// Samples held now.
    pub held: u64,
    /// Samples whose stack was walked on, to its root or to where even the tables could not go on.
    pub walked: u64,
    /// Samples whose tables did not come in time: their stack stays cut, with the reason. Nothing was known of the
    /// process.
    pub overdue_process: u64,
    /// The same: the next frame was in no known mapping.
    pub overdue_mapping: u64,
    /// The same: the table was still being made.
    pub overdue_table: u64,
    /// Samples that found no room.
    pub no_room: u64,
}

impl HeldCounts {
    /// All whose tables did not come in time.
    #[must_use]
    pub const fn overdue(&self) -> u64 {
        self.overdue_process.saturating_add(self.overdue_mapping).saturating_add(self.overdue_table)
    }

    /// These and those of others.
    pub(super) fn and(self, other: Self) -> Self {
        Self {
            held: self.held.saturating_add(other.held),
            walked: self.walked.saturating_add(other.walked),
            overdue_process: self.overdue_process.saturating_add(other.overdue_process),
            overdue_mapping: self.overdue_mapping.saturating_add(other.overdue_mapping),
            overdue_table: self.overdue_table.saturating_add(other.overdue_table),
            no_room: self.no_room.saturating_add(other.no_room),
        }
    }
}

/// One sample that waits.
#[derive(Debug)]
pub(super) struct HeldSample {
    pub(super) sample: RawSample,
    /// When its tables were last looked for, if they were; nothing has changed unless its process was published
    /// later.
    pub(super) tried: Option<MonotonicNs>,
    /// When it goes as it is.
    pub(super) until: MonotonicNs,
    /// It may wait longer if all that is missing is a table.
    extends: bool,
}

impl HeldSample {
    /// Lets it wait longer, once: a table comes, if late, and a mapping that is not known by now never does.
    pub(super) fn extend(&mut self) -> bool {
        let extends = std::mem::take(&mut self.extends);
        if extends {
            self.until = self.until.plus(HELD_FOR_TABLE_NS_MAX - HELD_NS_MAX);
        }
        extends
    }
}

/// The samples that wait, in the order in which they came.
#[derive(Debug, Default)]
pub(super) struct Held {
    samples: VecDeque<HeldSample>,
    bytes: usize,
    counts: HeldCounts,
}

impl Held {
    /// True if the walk stopped for want of a table, and the rest of the stack came along.
    pub(super) fn may_become_whole(sample: &RawSample) -> bool {
        let waits = matches!(
            sample.outcome,
            Outcome::ProcessUnknown | Outcome::MappingUnknown | Outcome::TablePending
        );
        waits && sample.stack.is_some()
    }

    /// Keeps a sample that may become whole; gives it back if it finds no room.
    pub(super) fn offer(&mut self, sample: RawSample, now: MonotonicNs) -> Option<RawSample> {
        self.take_in(HeldSample {
            sample,
            tried: None,
            until: now.plus(HELD_NS_MAX),
            extends: true,
        })
    }

    /// The same, up to another time.
    pub(super) fn offer_until(
        &mut self,
        sample: RawSample,
        until: MonotonicNs,
    ) -> Option<RawSample> {
        self.take_in(HeldSample { sample, tried: None, until, extends: false })
    }

    fn take_in(&mut self, held: HeldSample) -> Option<RawSample> {
        let bytes = bytes_of(&held.sample);
        if self.samples.len() >= HELD_SAMPLES_MAX || self.bytes + bytes > HELD_BYTES_MAX {
            self.counts.no_room += 1;
            return Some(held.sample);
        }
        self.keep(held);
        None
    }

    /// Keeps a sample that waits on.
    pub(super) fn keep(&mut self, held: HeldSample) {
        self.bytes += bytes_of(&held.sample);
        self.samples.push_back(held);
    }

    /// Counts one that waits no longer, as whole or as it is.
    pub(super) fn let_go(&mut self, sample: &RawSample, whole: bool) {
        let count = match sample.outcome {
            _ if whole => &mut self.counts.walked,
            Outcome::ProcessUnknown => &mut self.counts.overdue_process,
            Outcome::MappingUnknown => &mut self.counts.overdue_mapping,
            _ => &mut self.counts.overdue_table,
        };
        *count += 1;
    }

    /// Takes out everything that was there when this was called.
    pub(super) fn take(&mut self) -> VecDeque<HeldSample> {
        self.bytes = 0;
        std::mem::take(&mut self.samples)
    }

    /// True if nothing waits.
    pub(super) fn is_empty(&self) -> bool {
        self.samples.is_empty()
    }

    /// What happened so far.
    pub(super) fn counts(&self) -> HeldCounts {
        HeldCounts { held: u64::try_from(self.samples.len()).unwrap_or(u64::MAX), ..self.counts }
    }
}

fn bytes_of(sample: &RawSample) -> usize {
    sample.stack.as_ref().map_or(0, |stack| stack.bytes.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::{AbsAddr, Generation, Pid, Tid};
    use crate::bpf::CopiedStack;

    fn sample(outcome: Outcome, stack_bytes: Option<usize>) -> RawSample {
        RawSample {
            cpu: 0,
            pid: Pid(7),
            tid: Tid(7),
            time: MonotonicNs(1),
            cgroup_id: 1,
            generation: Generation(0),
            outcome,
            root_frames: 0,
            run_ns: 0,
            comm: b"held".to_vec(),
            kernel: Vec::new(),
            user: Vec::new(),
            stack: stack_bytes.map(|bytes| CopiedStack {
                ip: AbsAddr(0x1000),
                sp: AbsAddr(0x2000),
                bp: 0,
                exact: true,
                innermost: true,
                general: Box::default(),
                bytes: vec![0; bytes],
            }),
        }
    }

    #[test]
    fn only_what_may_become_whole_is_held() {
        let rows = [
            (Outcome::ProcessUnknown, Some(64), true),
            (Outcome::TablePending, Some(64), true),
            (Outcome::TablePending, None, false),
            (Outcome::Complete, Some(64), false),
            (Outcome::MappingUnknown, Some(64), true),
            (Outcome::NoUnwindInfo, Some(64), false),
        ];
        for (outcome, stack, expected) in rows {
            let may = Held::may_become_whole(&sample(outcome, stack));
            assert_eq!(may, expected, "{outcome:?} {stack:?}");
        }
    }

    #[test]
    fn there_is_room_for_so_many_bytes_and_samples() {
        for bytes in [0, 16 << 10] {
            let mut held = Held::default();
            let whole = |held: &mut Held| {
                held.offer(sample(Outcome::TablePending, Some(bytes)), MonotonicNs(0)).is_some()
            };
            let refused = (0..=HELD_SAMPLES_MAX).filter(|_| whole(&mut held)).count();
            let room =
                HELD_BYTES_MAX.checked_div(bytes).unwrap_or(usize::MAX).min(HELD_SAMPLES_MAX);
            assert_eq!(refused, HELD_SAMPLES_MAX + 1 - room, "{bytes} bytes each");
            assert_eq!(held.counts().no_room, u64::try_from(refused).unwrap());
            held.take();
            assert!(!whole(&mut held), "what was taken out makes room");
        }
    }
}
