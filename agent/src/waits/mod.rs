//! What a thread that was switched out waits for: told by the functions on its stack ([`rules`]), where none
//! says it by a probe of the C library that it met, by the word that a futex wait expects ([`word`]), and otherwise by
//! the system call ([`system_call`]).
//! Pure: names and numbers in, an answer out.

mod owner;
mod rules;
mod system_call;
#[cfg(test)]
mod tests;
mod word;

pub use owner::Owners;
pub(crate) use rules::is_glibc;
pub use system_call::{Machine, SystemCall, class_of_system_call};

use crate::address::{AbsAddr, Tid};
use agent_ebpf::LockForm;
use owner::OwnerPlace;

/// What a wait is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum WaitReason {
    /// A lock that another thread holds.
    Lock,
    /// A condition variable.
    Condvar,
    /// A semaphore.
    Semaphore,
    /// Something to do, or another thread as a whole: idle pools, `LockSupport.park`, join, barriers.
    Park,
    /// A futex, by nobody knows whom.
    Futex,
    /// A time.
    Sleep,
    /// A device, a file or a peer.
    Io,
    /// The first of several descriptors.
    Poll,
    /// Memory that is not there yet.
    PageFault,
    /// A CPU.
    Preempted,
    /// Anything else: children, signals, locks of the kernel's own.
    Other,
}

impl WaitReason {
    /// Every reason.
    pub const ALL: [Self; 11] = [
        Self::Lock,
        Self::Condvar,
        Self::Semaphore,
        Self::Park,
        Self::Futex,
        Self::Sleep,
        Self::Io,
        Self::Poll,
        Self::PageFault,
        Self::Preempted,
        Self::Other,
    ];

    /// The value of the attribute `off_cpu.reason`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Lock => "lock",
            Self::Condvar => "condvar",
            Self::Semaphore => "semaphore",
            Self::Park => "park",
            Self::Futex => "futex",
            Self::Sleep => "sleep",
            Self::Io => "io",
            Self::Poll => "poll",
            Self::PageFault => "page_fault",
            Self::Preempted => "preempted",
            Self::Other => "other",
        }
    }
}

/// What kind of lock it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LockKind {
    /// One holder.
    Mutex,
    /// One writer or several readers.
    RwLock,
    /// An object of a JVM.
    Monitor,
    /// What is held once and never again: `pthread_once`, static variables of C++.
    Unknown,
}

impl LockKind {
    /// Every kind.
    pub const ALL: [Self; 4] = [Self::Mutex, Self::RwLock, Self::Monitor, Self::Unknown];

    /// The value of the attribute `lock.kind`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Mutex => "mutex",
            Self::RwLock => "rwlock",
            Self::Monitor => "monitor",
            Self::Unknown => "unknown",
        }
    }
}

/// How a lock was recognized.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ToldBy {
    /// By a function on the stack.
    Rule,
    /// By what the futex wait expects.
    Word,
    /// By a probe of the C library.
    Probe,
}

/// A lock that is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LockWait {
    /// Its kind.
    pub kind: LockKind,
    /// Where it begins in its process; `None` where the futex word is not part of it.
    pub address: Option<AbsAddr>,
    /// Who held it when the wait began, where the lock says so.
    pub owner: Option<Tid>,
    /// How it was recognized.
    pub told_by: ToldBy,
}

/// The answer. There is a lock exactly if the reason is [`WaitReason::Lock`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Wait {
    /// What for.
    pub reason: WaitReason,
    /// Which lock.
    pub lock: Option<LockWait>,
}

impl Wait {
    const fn of(reason: WaitReason) -> Self {
        Self { reason, lock: None }
    }

    /// A lock of which no more is known.
    #[must_use]
    pub const fn of_some_lock() -> Self {
        let kind = LockKind::Unknown;
        let lock = LockWait { kind, address: None, owner: None, told_by: ToldBy::Probe };
        Self { reason: WaitReason::Lock, lock: Some(lock) }
    }

    /// What a probe says of a lock, at the word that is waited on.
    fn of_form(form: LockForm, futex: Option<system_call::Futex>, owners: Owners) -> Self {
        let told = Self::of_lock(rules::RuleLock::of(form), futex, owners);
        let lock = told.lock.map(|lock| LockWait { told_by: ToldBy::Probe, ..lock });
        Self { lock, ..told }
    }

    /// What a rule says of a lock, at the word that is waited on.
    fn of_lock(lock: rules::RuleLock, futex: Option<system_call::Futex>, owners: Owners) -> Self {
        let address = futex.and_then(|futex| lock.word.start(futex));
        // The kernel hands the word of such a lock to its next holder itself.
        let inherits = futex.is_some_and(|futex| word::inherits_priority(futex.operation));
        let place = if inherits { Some(OwnerPlace::Word) } else { lock.owner };
        let owner = place.and_then(|place| owners.at(place));
        let lock = LockWait { kind: lock.kind, address, owner, told_by: ToldBy::Rule };
        Self { reason: WaitReason::Lock, lock: Some(lock) }
    }
}

/// A function on a user stack. Inlined functions are functions of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitFrame<'a> {
    /// Its name as it is shown; empty where it has none.
    pub function: &'a str,
    /// Base name of its file; empty where no file backs it.
    pub file: &'a str,
}

/// What is known of a wait.
#[derive(Clone, Copy, Debug, Default)]
pub struct WaitFacts<'a> {
    /// The system call that waits; `None` if the thread was switched out elsewhere.
    pub system_call: Option<SystemCall>,
    /// The thread would have gone on if it had kept its CPU.
    pub preempted: bool,
    /// Names of kernel functions, leaf first; empty if they are not known.
    pub kernel: &'a [&'a str],
    /// User functions, leaf first.
    pub user: &'a [WaitFrame<'a>],
    /// Who may hold the lock.
    pub owners: Owners,
    /// The form of the lock, if a probe told that the thread waits for one.
    pub form: Option<LockForm>,
}

/// Says what the wait is for.
#[must_use]
pub fn tell(facts: &WaitFacts<'_>) -> Wait {
    if facts.preempted {
        return Wait::of(WaitReason::Preempted);
    }
    let reason = system_call::reason(facts.system_call, facts.kernel);
    if reason != WaitReason::Futex {
        return Wait::of(reason);
    }
    let futex = facts.system_call.and_then(SystemCall::futex);
    let glibc = facts.user.first().is_some_and(|leaf| is_glibc(leaf.file));
    let found = rules::find(facts.user);
    // A rule knows what the lock is part of, but a stack may name none, or less than the probe.
    if let Some(form) = facts.form.filter(|_| found.is_none_or(|it| it.told.lock.is_none())) {
        return Wait::of_form(form, futex, facts.owners);
    }
    match (found, futex) {
        (Some(found), Some(futex)) if found.told.reason == WaitReason::Condvar => {
            // After a signal the mutex is taken again, by a function that a stripped glibc does not name.
            let again = word::CONTENDED == futex.expected && word::WAIT == futex.operation;
            if again && !found.musl {
                word::tell(futex, true, facts.owners)
            } else {
                Wait::of(WaitReason::Condvar)
            }
        }
        (Some(found), futex) => match found.told.lock {
            Some(lock) => Wait::of_lock(lock, futex, facts.owners),
            None => Wait::of(found.told.reason),
        },
        (None, Some(futex)) => word::tell(futex, glibc, facts.owners),
        (None, None) => Wait::of(reason),
    }
}

/// The kind of a lock that a probe met, and where it begins if `word` is the word that is waited on. `None` if no
/// rule says that these functions wait for a lock.
#[must_use]
pub fn lock_of(user: &[WaitFrame<'_>], word: AbsAddr) -> Option<LockWait> {
    let lock = rules::find(user)?.told.lock?;
    let futex = system_call::Futex { operation: word::WAIT, word, expected: 0 };
    Wait::of_lock(lock, Some(futex), Owners::default()).lock
}
