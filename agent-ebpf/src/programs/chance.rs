//! The dice and the purse of a CPU's stacks of waits: the library's `chance` says how they stand.

use super::wait_maps::Desk;
use agent_ebpf::verifier::low32;
use agent_ebpf::wait::CHANCE_ONE;
use aya_ebpf::helpers::generated::bpf_get_prandom_u32;

/// The chance of a stack for a thread that waited `gap_ns` ago, in parts of [`CHANCE_ONE`].
#[inline(always)]
pub(super) fn of_stack(desk: *const Desk, now_ns: u64, gap_ns: u64) -> u32 {
    // SAFETY: a value of the map, which only this CPU uses.
    let spent_ns = unsafe { (*desk).spent_ns };
    agent_ebpf::chance::of_stack(spent_ns, now_ns, gap_ns)
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
pub(super) fn pay(desk: *mut Desk, now_ns: u64, taken_ns: u64) {
    // SAFETY: a value of the map, which only this CPU uses.
    let spent_ns = unsafe { &mut (*desk).spent_ns };
    *spent_ns = agent_ebpf::chance::paid(*spent_ns, now_ns, taken_ns);
}
