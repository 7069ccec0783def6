//! What a futex wait says where no function on the stack does. Only what is certain enough is a lock; the rest
//! stays "a futex".
//!
//! 2 is what glibc's locks expect to find, "locked, with waiters" (nptl/lowlevellock.c), and Rust's (std's
//! `sys/sync/mutex/futex.rs`), but musl's private condition variables and its `pthread_join` wait for 2 as well, by
//! `FUTEX_WAIT`. So by that operation it means a lock within glibc's own file alone. By `FUTEX_WAIT_BITSET`, which musl
//! never uses, it is a mutex of Rust's, or one of glibc's with a time limit, or a rwlock of glibc's that a writer wants: a
//! lock of unknown kind. musl's mutexes set the highest bit of `EBUSY` (`pthread_mutex_timedlock.c`). 1 would be
//! `parking_lot`'s, for locks and condition variables alike, and all bits set are musl's rwlocks and semaphores.

use super::owner::{OwnerPlace, Owners};
use super::system_call::Futex;
use super::{LockKind, LockWait, ToldBy, Wait, WaitReason};
use crate::address::AbsAddr;

pub(super) const WAIT: u32 = 0;
const LOCK_PI: u32 = 6;
const WAIT_BITSET: u32 = 9;
const WAIT_REQUEUE_PI: u32 = 11;
const LOCK_PI2: u32 = 13;

/// glibc and Rust: locked, with waiters.
pub(super) const CONTENDED: u32 = 2;
/// musl: a mutex of the usual kind that is locked (`EBUSY`), with waiters.
const MUSL_MUTEX: u32 = 16 | 1 << 31;

/// Says what the wait is for; `glibc`: it is glibc's own code that waits.
pub(super) fn tell(futex: Futex, glibc: bool, owners: Owners) -> Wait {
    let lock = |futex: Futex, kind, offset| lock(futex, kind, offset, owners);
    match (futex.operation, futex.expected) {
        // Priority inheritance exists for locks alone.
        (LOCK_PI | LOCK_PI2, _) => lock(futex, LockKind::Mutex, 0),
        (WAIT_REQUEUE_PI, _) => Wait::of(WaitReason::Condvar),
        (WAIT, CONTENDED) if glibc => lock(futex, LockKind::Mutex, 0),
        (WAIT_BITSET, CONTENDED) => lock(futex, LockKind::Unknown, 0),
        (WAIT, MUSL_MUTEX) => lock(futex, LockKind::Mutex, 4),
        _ => Wait::of(WaitReason::Futex),
    }
}

/// True for the operations of locks that inherit priorities: their word holds the number of their holder.
pub(super) const fn inherits_priority(operation: u32) -> bool {
    matches!(operation, LOCK_PI | LOCK_PI2)
}

/// A lock whose word lies so far from its start.
fn lock(futex: Futex, kind: LockKind, offset: u64, owners: Owners) -> Wait {
    let address = futex.word.0.checked_sub(offset).map(AbsAddr);
    let inherits = inherits_priority(futex.operation);
    let owner = inherits.then(|| owners.at(OwnerPlace::Word)).flatten();
    let lock = LockWait { kind, address, owner, told_by: ToldBy::Word };
    Wait { reason: WaitReason::Lock, lock: Some(lock) }
}
