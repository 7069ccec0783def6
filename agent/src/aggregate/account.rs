//! The account of one process within a window: what was received of it, how its walks ended, what was
//! dropped, and which of its frames have no name.

use super::ledger::{DROP_REASONS, OUTCOMES, add_each, sum};
use super::{Code, DropReason, Location, LocationIndex, StackIndex};
use crate::symbolize::UnnamedReason;
use agent_ebpf::Outcome;
use std::sync::Arc;

/// Number of reasons why a frame has no name.
pub const UNNAMED_REASONS: usize = UnnamedReason::ALL.len();

/// The account of one process within one window.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessLedger {
    /// Samples that came out of the ring buffer.
    pub received: u64,
    /// Of these, by how their walk ended, in the order of [`Outcome::ALL`].
    pub outcomes: [u64; OUTCOMES],
    /// Of these, what is not in the window, in the order of [`DropReason::ALL`].
    pub dropped: [u64; DROP_REASONS],
    /// Frames of code in the samples that are in the window: markers are none.
    pub frames: u64,
    /// Of these, those without a name, in the order of [`UnnamedReason::ALL`].
    pub unnamed: [u64; UNNAMED_REASONS],
}

impl ProcessLedger {
    /// A sample came, and was kept or not.
    pub(super) fn count(&mut self, outcome: Outcome, kept: Result<(), DropReason>) {
        self.received = self.received.saturating_add(1);
        let outcome = &mut self.outcomes[outcome as usize];
        *outcome = outcome.saturating_add(1);
        if let Err(reason) = kept {
            self.drop_also(reason, 1);
        }
    }

    /// Samples that were received are dropped after all.
    pub(crate) fn drop_also(&mut self, reason: DropReason, samples: u64) {
        let dropped = &mut self.dropped[reason as usize];
        *dropped = dropped.saturating_add(samples);
    }

    /// Adds the account of another window.
    pub fn add(&mut self, other: &Self) {
        let Self { received, outcomes, dropped, frames, unnamed } = other;
        self.received = self.received.saturating_add(*received);
        self.frames = self.frames.saturating_add(*frames);
        add_each(&mut self.outcomes, outcomes);
        add_each(&mut self.dropped, dropped);
        add_each(&mut self.unnamed, unnamed);
    }

    /// Samples whose walk ended before the root of the stack.
    #[must_use]
    pub fn incomplete(&self) -> u64 {
        let complete = [Outcome::Complete, Outcome::NoUserStack];
        let complete = complete.map(|outcome| self.outcomes[outcome as usize]);
        sum(&self.outcomes).saturating_sub(sum(&complete))
    }

    /// Samples that are not in the window.
    #[must_use]
    pub fn lost(&self) -> u64 {
        sum(&self.dropped)
    }

    /// Frames without a name.
    #[must_use]
    pub fn unnamed(&self) -> u64 {
        sum(&self.unnamed)
    }

    /// Counts the frames of samples with this stack.
    pub(super) fn count_frames(&mut self, stack: &StackNames, observations: u64) {
        let times = |frames: u32| u64::from(frames).saturating_mul(observations);
        self.frames = self.frames.saturating_add(times(stack.frames));
        for (sum, frames) in self.unnamed.iter_mut().zip(stack.unnamed) {
            *sum = sum.saturating_add(times(frames));
        }
    }
}

/// What is named of one stack.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct StackNames {
    frames: u32,
    unnamed: [u32; UNNAMED_REASONS],
}

impl StackNames {
    /// Counts the frames of each stack once.
    pub(super) fn of_all(stacks: &[Arc<[LocationIndex]>], locations: &[Location]) -> Vec<Self> {
        let of_one = |stack: &Arc<[LocationIndex]>| {
            let mut names = Self::default();
            for location in stack.iter().map(|index| &locations[index.0 as usize]) {
                names.frames += u32::from(!matches!(location.code, Code::Marker(_)));
                if let Some(reason) = location.unnamed {
                    names.unnamed[reason as usize] += 1;
                }
            }
            names
        };
        stacks.iter().map(of_one).collect()
    }

    pub(super) fn of(all: &[Self], stack: StackIndex) -> &Self {
        &all[stack.0 as usize]
    }
}
