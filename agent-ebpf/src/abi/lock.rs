//! Waits for locks that no switch of a thread shows: goroutines wait without one. Layouts; `programs/go_locks.rs`
//! fills them.

/// What a probe knows of a wait that is over: stands in front of the frames.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LockFacts {
    /// Address of the word that was waited on.
    pub word: u64,
    /// When the wait began, `CLOCK_MONOTONIC`, nanoseconds. It ended at the time of the record.
    pub since_ns: u64,
}

/// [`LockFacts`] in the record, in words.
pub const LOCK_FACTS_WORDS: usize = size_of::<LockFacts>() / 8;

/// Who waits: one goroutine of one process.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Goroutine {
    /// Process id in the initial PID namespace.
    pub tgid: u64,
    /// Address of its `g`, which stays the same as long as it lives.
    pub g: u64,
}

/// What the programs count on each CPU.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LockCounters {
    /// Runs of the programs: two for each wait.
    pub hits: u64,
    /// Waits that began and are not followed, because too many last.
    pub refused: u64,
    /// Waits that ended and whose beginning is not known: it was before the probe, or refused.
    pub unmatched: u64,
    /// Waits not sent because the program was interrupted by itself.
    pub busy: u64,
    /// Waits sent.
    pub sent: u64,
    /// Waits lost because the ring buffer was full.
    pub lost: u64,
    /// Nanoseconds in the runs that took a stack, by their own clock: without what the kernel needs to get there and
    /// back, and what each hit costs anyway.
    pub run_ns: u64,
}

const _: () = assert!(size_of::<LockFacts>() == 16);
const _: () = assert!(size_of::<Goroutine>() == 16);
