//! What probes tell of locks: waits that no switch of a thread shows, because goroutines wait without one, and which
//! switches are waits for a lock of a C library. Layouts; `programs/go_locks.rs` and `programs/libc_locks.rs` fill them.

/// What a probe knows of a wait that is over: stands in front of the frames.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LockFacts {
    /// Address of the word that was waited on.
    pub word: u64,
    /// When the wait began, `CLOCK_MONOTONIC`, nanoseconds. It ended at the time of the record.
    pub since_ns: u64,
    /// The first instruction of the function that waits.
    pub ip: u64,
    /// The thread that was in it, in the initial PID namespace.
    pub tid: u32,
    /// How many waits of its process it stands for: one in so many is followed.
    pub weight: u32,
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

/// Which lock of which C library: where its word lies in it, and where it keeps its holder.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LockForm {
    /// A mutex of glibc's.
    GlibcMutex = 1,
    /// A rwlock of glibc's.
    GlibcRwLock = 2,
    /// A mutex of musl's.
    MuslMutex = 3,
    /// A rwlock of musl's.
    MuslRwLock = 4,
}

impl LockForm {
    /// Every form, in the order of its number, which begins with 1.
    pub const ALL: [Self; 4] =
        [Self::GlibcMutex, Self::GlibcRwLock, Self::MuslMutex, Self::MuslRwLock];

    /// The form with this number, if there is one.
    #[must_use]
    pub fn from_number(number: u64) -> Option<Self> {
        Self::ALL.get(usize::try_from(number.checked_sub(1)?).ok()?).copied()
    }
}

/// A thread is about to wait for a lock of its C library. It may not come to it, and nobody says when that is over: a
/// futex wait on the same word, a little further down the same stack, is this one.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mark {
    /// Address of the futex word.
    pub word: u64,
    /// The stack pointer at the probe.
    pub stack_pointer: u64,
    /// A [`LockForm`].
    pub form: u64,
}

impl Mark {
    /// True if a thread that waits on `word` with this stack pointer is the one that was marked.
    #[must_use]
    #[inline(always)]
    pub fn is_of(&self, word: u64, stack_pointer: u64) -> bool {
        self.word == word
            && self.stack_pointer.wrapping_sub(stack_pointer) < crate::limits::MARK_STACK_BYTES_MAX
    }
}

/// What the programs count on each CPU.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LockCounters {
    /// Runs of the programs: two for each wait.
    pub hits: u64,
    /// Waits that began and are not followed, because too many last.
    pub refused: u64,
    /// Waits that began and are not followed, because others stand for them.
    pub thinned: u64,
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
    /// Threads marked by probes of C libraries: runs of those programs, one for each wait.
    pub marked: u64,
    /// Marks that found no room.
    pub marks_refused: u64,
}

const _: () = assert!(size_of::<LockFacts>() == 32);
const _: () = assert!(size_of::<Goroutine>() == 16);
