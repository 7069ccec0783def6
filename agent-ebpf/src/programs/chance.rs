//! The dice and the purse of a CPU's stacks of waits: the library's `chance` says how they stand.

use super::wait_maps::{AGENT_TGID, Desk, WAIT_STACK_INTERVAL_NS};
use agent_ebpf::WaitClass;
use agent_ebpf::chance::Bucket;
use agent_ebpf::verifier::low32;
use agent_ebpf::wait::CHANCE_ONE;
use aya_ebpf::helpers::generated::bpf_get_prandom_u32;

/// The chance of a stack for a thread that waited `gap_ns` ago, in parts of [`CHANCE_ONE`].
#[inline(always)]
pub(super) fn of_stack(desk: *const Desk, bucket: Bucket, now_ns: u64, gap_ns: u64) -> u32 {
    // SAFETY: a value of the map, which only this CPU uses.
    let [waits_ns, seldom_ns] = unsafe { (*desk).spent_ns };
    let spent_ns = match bucket {
        Bucket::Waits => waits_ns,
        Bucket::Seldom => seldom_ns,
    };
    agent_ebpf::chance::of_stack(WAIT_STACK_INTERVAL_NS.load(), spent_ns, now_ns, gap_ns)
}

/// Which bucket pays for a wait of this class in this process.
#[inline(always)]
pub(super) fn bucket(class: u32, tgid: u32) -> Bucket {
    if class == WaitClass::Preempted as u32 || tgid == AGENT_TGID.load() {
        return Bucket::Seldom;
    }
    Bucket::Waits
}

/// Throws the dice.
#[inline(always)]
pub(super) fn is_met(chance: u32) -> bool {
    if chance >= CHANCE_ONE {
        return true;
    }
    // SAFETY: a helper without preconditions.
    let random = unsafe { bpf_get_prandom_u32() };
    low32(u64::from(random)) & (CHANCE_ONE - 1) < chance
}

/// Pays for a stack that took so long.
#[inline(always)]
pub(super) fn pay(desk: *mut Desk, bucket: Bucket, now_ns: u64, taken_ns: u64) {
    // SAFETY: a value of the map, which only this CPU uses.
    let [waits_ns, seldom_ns] = unsafe { &mut (*desk).spent_ns };
    let spent_ns = match bucket {
        Bucket::Waits => waits_ns,
        Bucket::Seldom => seldom_ns,
    };
    *spent_ns = agent_ebpf::chance::paid(
        WAIT_STACK_INTERVAL_NS.load(),
        bucket,
        *spent_ns,
        now_ns,
        taken_ns,
    );
}
