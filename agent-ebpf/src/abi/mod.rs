//! Everything that crosses the border between kernel and user space. Not the programs, not the loader.

pub mod counters;
pub mod limits;
pub mod lock;
pub mod outcome;
pub mod sample;
pub mod tables;
pub mod unwind;
pub mod wait;

pub use counters::{Counters, UserRegisters};
pub use lock::{Goroutine, LockCounters, LockFacts, LockForm, Mark};
pub use outcome::Outcome;
pub use sample::{FRAME_EXACT, Inherited, RecordKind, SampleHeader, StackTail, UnknownMapping};
pub use tables::{Chunk, MappingPage, MappingTarget, ProcessEntry};
pub use unwind::{REGISTERS, RULE_BYTES, RuleKind, UnwindRule};
pub use wait::{
    ClassTotals, ThreadEnd, WaitClass, WaitCounters, WaitEnd, WaitFacts, WaitingThread,
};

#[cfg(feature = "user")]
mod pod {
    use super::{
        Chunk, Counters, Goroutine, LockCounters, LockFacts, MappingPage, ProcessEntry, UnwindRule,
        WaitCounters, WaitingThread,
    };

    // SAFETY: `repr(C)`, integers only, no padding (the sizes are asserted next to the types).
    unsafe impl aya::Pod for Chunk {}
    // SAFETY: as above; every field is a `u64`.
    unsafe impl aya::Pod for Counters {}
    // SAFETY: as above.
    unsafe impl aya::Pod for LockCounters {}
    // SAFETY: as above.
    unsafe impl aya::Pod for Goroutine {}
    // SAFETY: as above; two words of four bytes at its end.
    unsafe impl aya::Pod for LockFacts {}
    // SAFETY: as above.
    unsafe impl aya::Pod for MappingPage {}
    // SAFETY: as above.
    unsafe impl aya::Pod for ProcessEntry {}
    // SAFETY: as above.
    unsafe impl aya::Pod for UnwindRule {}
    // SAFETY: as above.
    unsafe impl aya::Pod for WaitCounters {}
    // SAFETY: as above.
    unsafe impl aya::Pod for WaitingThread {}
}
