//! The two clocks of the agent: kernel records carry `CLOCK_MONOTONIC`, the wire carries wall time.
//! One offset is read per window, so that a step of the wall clock never tears a window apart.

use std::cell::Cell;

/// `CLOCK_MONOTONIC`, nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MonotonicNs(pub u64);

/// Unix time, nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct UnixNs(pub u64);

/// Wall time minus monotonic time, read once per window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WallOffset(pub i128);

/// Reads `CLOCK_MONOTONIC`.
#[must_use]
pub fn monotonic_now() -> MonotonicNs {
    MonotonicNs(timespec_ns(rustix::time::clock_gettime(rustix::time::ClockId::Monotonic)))
}

thread_local! {
    /// CPU time of threads that worked for this one, nanoseconds.
    static OF_HELPERS_NS: Cell<u64> = const { Cell::new(0) };
}

/// CPU time of the calling thread and of those that it was charged for, nanoseconds: what work cost, however busy the
/// host is.
#[must_use]
pub fn thread_cpu_ns() -> u64 {
    let own_ns = timespec_ns(rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime));
    own_ns.saturating_add(OF_HELPERS_NS.get())
}

/// Another thread spent so much CPU time for the calling one.
pub fn charge_thread(ns: u64) {
    OF_HELPERS_NS.set(OF_HELPERS_NS.get().saturating_add(ns));
}

/// `CLOCK_BOOTTIME - CLOCK_MONOTONIC`, nanoseconds: the time that the host slept. Start times of
/// processes count it, kernel records do not.
#[must_use]
pub fn asleep_ns() -> u64 {
    let monotonic = monotonic_now().0;
    let boot = timespec_ns(rustix::time::clock_gettime(rustix::time::ClockId::Boottime));
    boot.saturating_sub(monotonic)
}

impl MonotonicNs {
    /// The time `ns` nanoseconds later.
    #[must_use]
    pub const fn plus(self, ns: u64) -> Self {
        Self(self.0.saturating_add(ns))
    }

    /// Nanoseconds since an `earlier` time, 0 if it is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl WallOffset {
    /// Reads both clocks, the monotonic one before and after, and takes the middle.
    #[must_use]
    pub fn read() -> Self {
        let before = monotonic_now().0;
        let wall = timespec_ns(rustix::time::clock_gettime(rustix::time::ClockId::Realtime));
        let after = monotonic_now().0;
        Self(i128::from(wall) - i128::from(before.midpoint(after)))
    }

    /// The wall time of a monotonic one; saturates at the ends of `u64`.
    #[must_use]
    pub fn to_unix(self, time: MonotonicNs) -> UnixNs {
        UnixNs(u64::try_from((i128::from(time.0) + self.0).max(0)).unwrap_or(u64::MAX))
    }
}

/// A duration in nanoseconds; saturates at the end of `u64`, after 584 years.
#[must_use]
pub fn nanoseconds(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

fn timespec_ns(time: rustix::time::Timespec) -> u64 {
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanoseconds = u64::try_from(time.tv_nsec).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(nanoseconds)
}
