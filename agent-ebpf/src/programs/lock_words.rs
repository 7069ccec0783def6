//! What lies at the word of a futex wait whose stack is taken: one read of user memory, which the kernel has just looked
//! at itself.

use super::maps::Scratch;
use agent_ebpf::verifier::limit32;
use agent_ebpf::wait::{LockWords, WAIT_FACTS_WORDS};
use agent_ebpf::{WaitClass, WaitFacts};
use aya_ebpf::helpers::generated::bpf_probe_read_user;

/// Writes it behind the facts.
#[inline(always)]
pub(super) fn write(scratch: *mut Scratch, facts: &WaitFacts) {
    const BYTES: u32 = limit32(size_of::<LockWords>());
    // SAFETY: only an address is taken.
    let frames = unsafe { &raw mut (*scratch).record.frames };
    let words = frames.cast::<u64>().wrapping_add(WAIT_FACTS_WORDS).cast::<LockWords>();
    // SAFETY: the frames are longer than facts and words.
    unsafe { words.write(LockWords::default()) };
    if facts.class != WaitClass::Futex as u32 && facts.class != WaitClass::Lock as u32 {
        return;
    }
    // SAFETY: the helper checks the address, and writes that many bytes; all are zero if it fails.
    let _ = unsafe { bpf_probe_read_user(words.cast(), BYTES, facts.arguments[0] as *const _) };
}
