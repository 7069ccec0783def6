//! The profiles that a window becomes: their types, and which waits belong into each.

use crate::aggregate::FoldedWait;
use crate::waits::WaitReason as Reason;

/// A profile of one sample type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProfileKind {
    /// Samples of the clock.
    Cpu,
    /// Time off the CPU, without what was preempted.
    OffCpu,
    /// How many waits that were.
    OffCpuCount,
    /// Time without a CPU that was taken away.
    Preempted,
    /// Of the time off the CPU, that of locks; and what goroutines waited for locks.
    Lock,
    /// How many waits for locks.
    LockContentions,
    /// What holders of locks did while others waited for them, in ticks of the clock.
    LockHolders,
}

impl ProfileKind {
    /// Those that waits go into.
    pub(super) const OF_WAITS: [Self; 5] =
        [Self::OffCpu, Self::OffCpuCount, Self::Preempted, Self::Lock, Self::LockContentions];

    /// Type and unit.
    pub(super) const fn sample_type(self) -> (&'static str, &'static str) {
        match self {
            Self::Cpu => ("samples", "count"),
            Self::OffCpu => ("off_cpu", "nanoseconds"),
            Self::OffCpuCount => ("off_cpu", "count"),
            Self::Preempted => ("off_cpu_preempted", "nanoseconds"),
            Self::Lock => ("lock", "nanoseconds"),
            Self::LockContentions => ("lock_contentions", "count"),
            Self::LockHolders => ("lock_holders", "count"),
        }
    }

    /// What a wait is in this profile; 0 if it does not belong there.
    pub(super) fn value(self, wait: &FoldedWait) -> u64 {
        let reason = wait.told.reason;
        let (belongs, value) = match self {
            Self::Cpu | Self::LockHolders => (false, 0),
            Self::OffCpu => (wait.is_off_cpu(), wait.sum.ns),
            Self::OffCpuCount => (wait.is_off_cpu(), wait.sum.count),
            Self::Preempted => (reason == Reason::Preempted, wait.sum.ns),
            Self::Lock => (reason == Reason::Lock, wait.sum.ns),
            Self::LockContentions => (reason == Reason::Lock, wait.sum.count),
        };
        if belongs { value } else { 0 }
    }

    /// True if its samples say what was waited for, false if they name the lock.
    pub(super) const fn says_reason(self) -> bool {
        matches!(self, Self::OffCpu | Self::OffCpuCount | Self::Preempted)
    }
}
