//! Notes of a process or an address that no table covers. A process that stays unknown does not flood the
//! agent.

use super::maps::{NOTES, RECORDS};
use agent_ebpf::limits::{NOTE_INTERVAL_NS, NOTE_SLOTS};
use agent_ebpf::{Counters, RecordKind, UnknownMapping};
use aya_ebpf::helpers::generated::bpf_ringbuf_output;

const PAGE_SHIFT: u32 = 12;

/// Tells the agent, unless it was told a moment ago. `address` is 0 for an unknown process; `flags` say
/// whether the agent is woken.
#[inline(always)]
pub(super) fn send(counters: *mut Counters, tgid: u32, address: u64, time_ns: u64, flags: u32) {
    let key = key(tgid, address);
    let Some(slot) = NOTES.get_ptr_mut(slot_of(key)) else { return };
    // SAFETY: the pointer is a value of the map; a race with another CPU costs one note, no more.
    let last = unsafe { slot.read() };
    if last.key == key && time_ns.wrapping_sub(last.time_ns) < NOTE_INTERVAL_NS {
        // SAFETY: the counters of this CPU, which only this program writes.
        unsafe { (*counters).notes_held += 1 };
        return;
    }
    // SAFETY: as for the read.
    unsafe { slot.write(super::maps::NoteSlot { key, time_ns }) };
    let note = UnknownMapping { kind: RecordKind::UnknownMapping as u32, tgid, address, time_ns };
    if output(&note, flags) {
        // SAFETY: as above.
        unsafe { (*counters).notes += 1 };
    } else {
        // SAFETY: as above.
        unsafe { (*counters).notes_lost += 1 };
    }
}

/// Puts a record into the ring; false if it is full.
#[inline(always)]
pub(super) fn output<T>(record: &T, flags: u32) -> bool {
    // SAFETY: the helper copies `size_of` bytes of the record, which has no padding.
    let result = unsafe {
        bpf_ringbuf_output(
            (&raw const RECORDS).cast_mut().cast(),
            (&raw const *record).cast_mut().cast(),
            size_of::<T>() as u64,
            u64::from(flags),
        )
    };
    result == 0
}

/// Forgets the note of a whole process: what was said of the program before exec does not hold back
/// what is to be said of the one after.
#[inline(always)]
pub(super) fn forget(tgid: u32) {
    if let Some(slot) = NOTES.get_ptr_mut(slot_of(key(tgid, 0))) {
        // SAFETY: the pointer is a value of the map.
        unsafe { (*slot).time_ns = 0 };
    }
}

#[inline(always)]
fn key(tgid: u32, address: u64) -> u64 {
    u64::from(tgid) << 32 | (address >> PAGE_SHIFT) & 0xffff_ffff
}

/// Fibonacci hashing: the high bits of a product with 2^64 / golden ratio.
#[inline(always)]
fn slot_of(key: u64) -> u32 {
    const BITS: u32 = NOTE_SLOTS.trailing_zeros();
    (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - BITS)) as u32
}
