//! The BPF programs: entry points only. `programs/sampler.rs` says what a sample is, `programs/walker.rs`
//! runs the library's walk over user memory and the maps, `programs/maps.rs` names everything that is shared
//! with the agent.
//!
//! The verifier shapes this code, and what it accepts was measured (kernels 5.10 to 7.3):
//! - a binary search is branch-free and its index is masked in assembly (`verifier.rs` of the library);
//! - state lives in a per-CPU map, whose contents the verifier does not track, so that every frame looks
//!   the same to it;
//! - there is no panic: no slice index, no checked arithmetic, raw pointers with masked offsets.
#![no_std]
#![no_main]

mod programs;

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // Unreachable: the verifier refuses a program that could get here.
    loop {}
}

/// The kernel reads the licence from this section; the helpers used are for GPL-compatible programs.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
