//! Copies of the user stack that travel with a sample whose tables are not there yet, so that the agent can
//! walk it when they have come. Few: a token bucket holds them back, and a ring that fills.

use super::maps::{Record, STACK_INTERVAL_NS, Scratch, WAKE_BYTES};
use super::walker::{State, UserMemory};
use agent_ebpf::limits::{PAGE_BYTES, STACK_BURST, STACK_FRAMES_MAX, STACK_PAGES_MAX};
use agent_ebpf::verifier::{below, limit32, low32, place};
use agent_ebpf::{Counters, Outcome, RecordKind, StackTail};
use aya_ebpf::helpers::generated::bpf_probe_read_user;
use core::ffi::c_void;
use core::mem::offset_of;

/// True for a walk that a table would have taken further. Where the mapping is not known, it may be new, or
/// the walk has lost its way in code that nobody describes: then its last address is any number.
#[inline(always)]
pub(super) fn wanted(state: &State) -> bool {
    let outcome = state.outcome;
    outcome == Outcome::ProcessUnknown as u32
        || outcome == Outcome::TablePending as u32
        || outcome == Outcome::MappingUnknown as u32 && state.walk.is_plausible(&UserMemory)
}

/// Puts the stack behind the record's `frames`; how many bytes the record grew by. `waiting`: bytes in the
/// ring buffer.
#[inline(always)]
pub(super) fn append(
    scratch: *mut Scratch,
    counters: *mut Counters,
    frames: u64,
    waiting: u64,
) -> u64 {
    // The ring's first half is for every sample, whatever stacks came before.
    let full = waiting > WAKE_BYTES.load() * 2;
    if full || frames >= STACK_FRAMES_MAX as u64 || !take_token(scratch) {
        // SAFETY: the counters of this CPU, which only this program writes.
        unsafe { (*counters).stacks_held += 1 };
        return 0;
    }
    // SAFETY: only an address is taken.
    let record = unsafe { &raw mut (*scratch).record };
    // SAFETY: the frames are an array of more than that.
    let tail =
        unsafe { place::<STACK_FRAMES_MAX, u64, _>(record, offset_of!(Record, frames), frames) };
    let tail = tail.cast_mut().cast::<StackTail>();
    // SAFETY: the walk is that of the scratch.
    let bytes = copy(unsafe { (*scratch).state.walk.sp }, tail);
    if bytes == 0 {
        // SAFETY: as above.
        unsafe { (*counters).stacks_unreadable += 1 };
        return 0;
    }
    // SAFETY: as above.
    let walk = unsafe { &(*scratch).state.walk };
    let head = StackTail {
        ip: walk.ip,
        sp: walk.sp,
        bp: walk.bp,
        bytes: low32(bytes),
        exact: walk.exact,
        general: walk.registers.general,
    };
    // SAFETY: the record has room for the head and the stack behind `STACK_FRAMES_MAX` frames.
    unsafe { tail.write(head) };
    // SAFETY: as above.
    unsafe { (*record).header.kind = RecordKind::SampleWithStack as u32 };
    // SAFETY: as above.
    unsafe { (*counters).stacks += 1 };
    bytes + size_of::<StackTail>() as u64
}

/// True if this CPU may make one more copy. Its bucket holds [`STACK_BURST`] tokens and is told by one
/// number: the time up to which the tokens are spent.
#[inline(always)]
fn take_token(scratch: *mut Scratch) -> bool {
    // SAFETY: a value of the scratch map, which only this CPU's sampler uses.
    let now_ns = unsafe { (*scratch).state.start_ns };
    // SAFETY: as above.
    let spent_ns = unsafe { &mut (*scratch).stacks_spent_ns };
    let interval_ns = STACK_INTERVAL_NS.load();
    let oldest_ns = now_ns.saturating_sub(STACK_BURST * interval_ns);
    let next_ns = (*spent_ns).max(oldest_ns).wrapping_add(interval_ns);
    if next_ns > now_ns {
        return false;
    }
    *spent_ns = next_ns;
    true
}

/// Copies from `sp` up to behind `tail`, page by page, until one cannot be read: where a stack ends, it
/// ends with a page. Returns the bytes.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "BPF and the host that lints it have 64 bits")]
fn copy(sp: u64, tail: *mut StackTail) -> u64 {
    const PAGE: u64 = PAGE_BYTES as u64;
    let first = PAGE - below::<PAGE_BYTES>(sp);
    // SAFETY: the record has room for the stack behind the head.
    let to = unsafe { tail.add(1) }.cast::<u8>();
    if !read(to, low32(first), sp) {
        return 0;
    }
    let mut bytes = first;
    for _ in 1..STACK_PAGES_MAX {
        // SAFETY: as above: `bytes` is at most all pages but one.
        let place = unsafe { to.add(bytes as usize) };
        if !read(place, const { limit32(PAGE_BYTES) }, sp.wrapping_add(bytes)) {
            break;
        }
        bytes += PAGE;
    }
    bytes
}

#[inline(always)]
fn read(to: *mut u8, bytes: u32, from: u64) -> bool {
    // SAFETY: the helper checks the address; the caller has room for that many bytes.
    let result = unsafe { bpf_probe_read_user(to.cast(), bytes, from as *const c_void) };
    result == 0
}
