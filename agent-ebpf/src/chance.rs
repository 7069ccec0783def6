//! Which switches send a stack. A bucket of each CPU says how many may; the chance of one wait grows with the time since
//! the thread's last wait in the same place, so that few long waits are not hidden by many short ones, be they of
//! another thread or of its own.
//!
//! The chance depends on what was before the wait alone, never on how long it will be: so its weight, one by
//! the chance, is right on average whatever the threads do (`ARCHITECTURE.md`, "Weights of waits"). The
//! programs run this, and the agent's simulation (`agent/src/engine/off_cpu/tests.rs`).

use crate::limits::{
    WAIT_CHANCE_MIN, WAIT_GAP_NS, WAIT_GAP_NS_MAX, WAIT_STACK_BURST, WAIT_STACK_INTERVAL_NS,
    WAIT_STACK_TIME_FACTOR,
};
use crate::verifier::low32;
use crate::wait::{CHANCE_ONE, WAIT_SITES};

/// What a full bucket holds, in nanoseconds.
const BUCKET_NS: u64 = WAIT_STACK_BURST * WAIT_STACK_INTERVAL_NS;
/// From here up nobody has to wait for a stack.
const PLENTY_NS: u64 = BUCKET_NS / 2;

/// The chance of a stack for a thread that waited in the same place `gap_ns` ago, in parts of [`CHANCE_ONE`]. The bucket is told by
/// one number, the time up to which its tokens are spent.
#[must_use]
#[inline(always)]
pub fn of_stack(spent_ns: u64, now_ns: u64, gap_ns: u64) -> u32 {
    let level_ns = now_ns.saturating_sub(spent_ns);
    if level_ns >= PLENTY_NS {
        return CHANCE_ONE;
    }
    let gap_ns = gap_ns.min(WAIT_GAP_NS_MAX);
    let divisor = (PLENTY_NS - level_ns) * (WAIT_GAP_NS / u64::from(CHANCE_ONE));
    low32((gap_ns * level_ns / divisor).clamp(WAIT_CHANCE_MIN, u64::from(CHANCE_ONE)))
}

/// Up to when the bucket is spent, once a stack is paid for that took so long. It never owes: who has a debt could
/// give nobody a chance for long.
#[must_use]
#[inline(always)]
pub fn paid(spent_ns: u64, now_ns: u64, taken_ns: u64) -> u64 {
    let oldest_ns = now_ns.saturating_sub(BUCKET_NS);
    let price_ns = taken_ns.min(BUCKET_NS) * WAIT_STACK_TIME_FACTOR;
    let spent_ns = spent_ns.max(oldest_ns) + price_ns.clamp(WAIT_STACK_INTERVAL_NS, BUCKET_NS);
    spent_ns.min(now_ns)
}

/// The place of a wait among the [`WAIT_SITES`] of its thread: where the program entered the kernel, and how deep its
/// stack was there. Two places may be one.
#[must_use]
#[inline(always)]
pub fn site(ip: u64, stack_pointer: u64) -> u64 {
    const BITS: u32 = WAIT_SITES.trailing_zeros();
    (ip ^ stack_pointer.rotate_left(24)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - BITS)
}

const _: () = assert!(CHANCE_ONE == 1 << 16 && WAIT_GAP_NS >= 1 << 16);
// The product in `of_stack` fits 64 bits.
const _: () = assert!(WAIT_GAP_NS_MAX.checked_mul(PLENTY_NS).is_some());
