//! Threads that are about to wait for a lock of their C library: one run at each call of the library's waiting function,
//! where an uncontended lock does not come. It leaves a mark; the switch that follows finds it (`switches.rs`) and knows
//! then what no name on the stack may tell: that the futex is a lock, and of what form. Nothing runs when the wait is
//! over: a mark is good for its word and its part of the stack alone.
//!
//! Whoever attaches knows the form of the lock, so there is a program for each.

use super::maps::{FILTER, FILTERED};
use super::registers;
use agent_ebpf::limits::MARKS_MAX;
use agent_ebpf::lock::{LockCounters, LockForm, Mark};
use agent_ebpf::verifier::low32;
use aya_ebpf::Global;
use aya_ebpf::bindings::pt_regs;
use aya_ebpf::btf_maps::HashMap;
use aya_ebpf::helpers::bpf_get_current_pid_tgid;
use aya_ebpf::macros::{btf_map, uprobe};
use aya_ebpf::programs::ProbeContext;
use core::mem::offset_of;

/// The last mark of each thread, by its number. Preallocated: it is written where threads wait. An entry goes with its
/// thread.
#[btf_map]
pub(super) static MARKS: HashMap<u32, Mark, MARKS_MAX> = HashMap::new();

/// 1 if C libraries may be probed.
#[unsafe(no_mangle)]
pub(super) static LIBC_PROBED: Global<u32> = Global::new(0);

#[uprobe]
fn glibc_mutex_wait(ctx: ProbeContext) -> u32 {
    mark(&ctx, LockForm::GlibcMutex)
}

#[uprobe]
fn glibc_rwlock_wait(ctx: ProbeContext) -> u32 {
    mark(&ctx, LockForm::GlibcRwLock)
}

#[uprobe]
fn musl_mutex_wait(ctx: ProbeContext) -> u32 {
    mark(&ctx, LockForm::MuslMutex)
}

#[uprobe]
fn musl_rwlock_wait(ctx: ProbeContext) -> u32 {
    mark(&ctx, LockForm::MuslRwLock)
}

/// Notes the word, which is the first argument of the waiting function.
#[inline(always)]
fn mark(ctx: &ProbeContext, form: LockForm) -> u32 {
    super::go_locks::add(offset_of!(LockCounters, marked), 1);
    let ids = bpf_get_current_pid_tgid();
    if FILTERED.load() == 1 && FILTER.get_ptr(low32(ids >> 32)).is_none() {
        return 0;
    }
    let regs: *const u64 = ctx.regs.cast();
    // SAFETY: the registers of the context.
    let word = unsafe { registers::field(regs, offset_of!(pt_regs, rdi)) };
    // SAFETY: as above.
    let stack_pointer = unsafe { registers::field(regs, offset_of!(pt_regs, rsp)) };
    let mark = Mark { word, stack_pointer, form: form as u64 };
    if MARKS.insert(low32(ids), mark, 0).is_err() {
        super::go_locks::add(offset_of!(LockCounters, marks_refused), 1);
    }
    0
}

/// The form of the lock that the thread waits for on this word; 0 if no probe told of it.
#[inline(always)]
pub(super) fn form(tid: u32, word: u64, stack_pointer: u64) -> u64 {
    if LIBC_PROBED.load() == 0 {
        return 0;
    }
    let Some(mark) = MARKS.get_ptr(tid) else { return 0 };
    // SAFETY: a value of the map, which its thread alone writes, and that is here.
    let mark = unsafe { &*mark };
    if mark.is_of(word, stack_pointer) { mark.form } else { 0 }
}

/// A thread is over.
#[inline(always)]
pub(super) fn forget(tid: u32) {
    if LIBC_PROBED.load() == 1 {
        let _none_is_fine = MARKS.remove(tid);
    }
}
