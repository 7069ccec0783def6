//! Who holds the lock that is waited for: what lies at its word and behind it when the thread leaves its CPU. Which of it
//! is the holder, if any, the rules say; locks of Rust, Go and JVMs do not keep it.

use super::rules::glibc_rwlock_word;
use super::system_call::SystemCall;
use crate::address::Tid;
use agent_ebpf::wait::LockWords;

/// Where a lock keeps its holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OwnerPlace {
    /// In the word: locks that inherit priorities, all others of musl's that look for mistakes.
    Word,
    /// `__owner` of glibc's `struct __pthread_mutex_s`, behind `__lock` and `__count` (`bits/struct_mutex.h`, the
    /// same since 2.4).
    GlibcMutex,
    /// `__cur_writer` of glibc's `struct __pthread_rwlock_arch_t` (`bits/struct_rwlock.h`, the same since 2.25). Of readers
    /// there is a number alone.
    GlibcWriter,
}

/// Threads that may hold the lock, one for each place where a lock may keep it; 0 where there is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Owners {
    word: u32,
    glibc_mutex: u32,
    glibc_writer: u32,
}

/// `FUTEX_TID_MASK` (include/uapi/linux/futex.h).
const TID_MASK: u32 = 0x3fff_ffff;
/// Threads have smaller numbers (`PID_MAX_LIMIT`, include/linux/threads.h).
const NUMBERS: u32 = 1 << 22;
/// Place of `__owner`, in words of 4 bytes from `__lock`.
const GLIBC_OWNER: usize = 2;
/// Place of `__cur_writer`, in bytes from the start of the lock.
const GLIBC_WRITER: u64 = 24;

impl Owners {
    /// What the words of a futex wait may say; nothing in any other system call.
    #[must_use]
    pub fn of(call: SystemCall, words: &LockWords) -> Self {
        let Some(futex) = call.futex() else { return Self::default() };
        let LockWords(words) = words;
        let writer = (GLIBC_WRITER - glibc_rwlock_word(futex)) / 4;
        let writer = usize::try_from(writer).ok().and_then(|place| words.get(place));
        Self {
            word: words[0] & TID_MASK,
            glibc_mutex: words[GLIBC_OWNER],
            glibc_writer: writer.copied().unwrap_or(0),
        }
    }

    /// The threads that these numbers mean: what lies behind a word that is no lock may be any number.
    #[must_use]
    pub fn threads(self, mut thread: impl FnMut(u32) -> Option<Tid>) -> Self {
        let mut keep = |number: u32| {
            let thread = if (1..NUMBERS).contains(&number) { thread(number) } else { None };
            thread.map_or(0, |tid| tid.0)
        };
        let Self { word, glibc_mutex, glibc_writer } = self;
        Self { word: keep(word), glibc_mutex: keep(glibc_mutex), glibc_writer: keep(glibc_writer) }
    }

    /// The holder, if it is kept there.
    pub(super) fn at(self, place: OwnerPlace) -> Option<Tid> {
        let tid = match place {
            OwnerPlace::Word => self.word,
            OwnerPlace::GlibcMutex => self.glibc_mutex,
            OwnerPlace::GlibcWriter => self.glibc_writer,
        };
        (tid != 0).then_some(Tid(tid))
    }
}
