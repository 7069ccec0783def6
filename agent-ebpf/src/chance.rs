//! Which switches send a stack. Two buckets of each CPU say how many may, a large one, and a small one for what tells
//! little; the chance of one wait grows with the time since the thread's last wait in the same place, so that few
//! long waits are not hidden by many short ones, be they of another thread or of its own.
//!
//! The chance depends on what was before the wait alone, never on how long it will be: so its weight, one by
//! the chance, is right on average whatever the threads do (`ARCHITECTURE.md`, "Weights of waits"). The
//! programs run this, and the agent's simulation (`agent/src/engine/off_cpu/tests.rs`).

use crate::limits::{
    WAIT_CHANCE_MIN, WAIT_GAP_NS, WAIT_GAP_NS_FIRST, WAIT_GAP_NS_MAX, WAIT_STACK_BURST,
    WAIT_STACK_INTERVAL_NS_FEW, WAIT_STACK_SELDOM, WAIT_STACK_TIME_FACTOR,
};
use crate::verifier::low32;
use crate::wait::{CHANCE_ONE, WAIT_SITES};

/// Gaps are reckoned in steps of so many nanoseconds, so that products fit 64 bits.
const GAP_STEP_NS: u64 = 256;
/// What is more gives every gap of a step a stack.
const PER_GAP_MAX: u64 = 1 << 35;

/// The buckets of a CPU. Both hold as much; what a stack costs differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bucket {
    /// Of all others.
    Waits,
    /// Of threads that lost their CPU to another, because the clock's samples say already where these run, and of
    /// the agent's own, which wait more often than most on an idle host.
    Seldom,
}

impl Bucket {
    /// The price of a stack that does not take long, in nanoseconds.
    #[inline(always)]
    const fn price_ns(self, interval_ns: u64) -> u64 {
        match self {
            Self::Waits => interval_ns,
            Self::Seldom => interval_ns * WAIT_STACK_SELDOM,
        }
    }
}

/// What a full bucket holds, in nanoseconds.
#[inline(always)]
const fn bucket_ns(interval_ns: u64) -> u64 {
    WAIT_STACK_BURST * interval_ns
}

/// What is taken for the time since a thread waited in the same place, if it left that at `left_ns`; 0: never yet.
#[must_use]
#[inline(always)]
pub fn gap_ns(left_ns: u64, now_ns: u64) -> u64 {
    if left_ns == 0 { WAIT_GAP_NS_FIRST } else { now_ns.saturating_sub(left_ns) }
}

/// The chance of a stack for a thread that waited in the same place `gap_ns` ago, in parts of [`CHANCE_ONE`]. The bucket is
/// told by one number, the time up to which its tokens are spent; it gets one each `interval_ns`.
#[must_use]
#[inline(always)]
pub fn of_stack(interval_ns: u64, spent_ns: u64, now_ns: u64, gap_ns: u64) -> u32 {
    let plenty_ns = bucket_ns(interval_ns) / 2; // from here up nobody has to wait for a stack
    let level_ns = now_ns.saturating_sub(spent_ns);
    if level_ns >= plenty_ns {
        return CHANCE_ONE;
    }
    let per_gap = level_ns * u64::from(CHANCE_ONE) / (plenty_ns - level_ns);
    let gaps = gap_ns.min(WAIT_GAP_NS_MAX) / GAP_STEP_NS;
    let chance = gaps * per_gap.min(PER_GAP_MAX) / (WAIT_GAP_NS / GAP_STEP_NS);
    low32(chance.clamp(WAIT_CHANCE_MIN, u64::from(CHANCE_ONE)))
}

/// Up to when the bucket is spent, once a stack is paid for that took so long. It never owes: who has a debt could
/// give nobody a chance for long.
#[must_use]
#[inline(always)]
pub fn paid(interval_ns: u64, bucket: Bucket, spent_ns: u64, now_ns: u64, taken_ns: u64) -> u64 {
    let full_ns = bucket_ns(interval_ns);
    let price_ns = taken_ns.min(full_ns) * WAIT_STACK_TIME_FACTOR;
    let price_ns = price_ns.max(bucket.price_ns(interval_ns)).min(full_ns);
    (spent_ns.max(now_ns.saturating_sub(full_ns)) + price_ns).min(now_ns)
}

/// The place of a wait among the [`WAIT_SITES`] of its thread: where the program entered the kernel, and how deep its
/// stack was there. Two places may be one.
#[must_use]
#[inline(always)]
pub fn site(ip: u64, stack_pointer: u64) -> u64 {
    const BITS: u32 = WAIT_SITES.trailing_zeros();
    (ip ^ stack_pointer.rotate_left(24)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - BITS)
}

const _: () = assert!(WAIT_GAP_NS.is_power_of_two() && WAIT_GAP_NS <= GAP_STEP_NS << 20);
const _: () = assert!(WAIT_STACK_SELDOM <= WAIT_STACK_BURST / 2);
// The products in `of_stack` fit 64 bits.
const _: () =
    assert!(bucket_ns(WAIT_STACK_INTERVAL_NS_FEW).checked_mul(CHANCE_ONE as u64).is_some());
const _: () = assert!((WAIT_GAP_NS_MAX / GAP_STEP_NS).checked_mul(PER_GAP_MAX).is_some());
