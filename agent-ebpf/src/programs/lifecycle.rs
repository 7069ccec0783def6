//! What the programs do at turns in the life of a process. Exec replaces every mapping: the entry of the process
//! goes before the new program runs, so that no walk ever uses the tables of the old one. A forked process has
//! its parent's mappings, and so its parent's entry, from its first instruction on. Where only some processes
//! are sampled, their children are too.

use super::maps::{COUNTERS, FILTER, FILTERED, PROCESSES, TASK_PID_OFFSET, TASK_TGID_OFFSET};
use super::notes;
use super::registers::read_kernel;
use agent_ebpf::verifier::low32;
use agent_ebpf::{Counters, Inherited, ProcessEntry, RecordKind};
use aya_ebpf::EbpfContext as _;
use aya_ebpf::bindings::{BPF_NOEXIST, BPF_RB_NO_WAKEUP};
use aya_ebpf::helpers::generated::bpf_ktime_get_ns;
use aya_ebpf::macros::raw_tracepoint;
use aya_ebpf::programs::RawTracePointContext;
use core::mem::offset_of;

/// Attached to `sched_process_exec`, which runs in the task that executes, after the other threads of
/// the process are gone (kernel fs/exec.c, `bprm_execve`).
#[raw_tracepoint]
fn process_exec(ctx: RawTracePointContext) -> i32 {
    let tgid = ctx.tgid();
    if PROCESSES.remove(tgid).is_ok() {
        count(offset_of!(Counters, execs));
    }
    notes::forget(tgid);
    0
}

/// Attached to `sched_process_fork`, which runs in the parent before the child is woken for the first time
/// (kernel kernel/fork.c, `kernel_clone`).
#[raw_tracepoint]
fn process_fork(ctx: RawTracePointContext) -> i32 {
    let parent = ctx.tgid();
    let child = task_field(ctx.arg(1), TASK_TGID_OFFSET.load());
    if child == parent || child == 0 {
        return 0;
    }
    if FILTERED.load() == 1 {
        if FILTER.get_ptr(parent).is_none() {
            return 0;
        }
        if FILTER.insert(child, 1, 0).is_err() {
            count(offset_of!(Counters, children_missed));
        }
    }
    inherit(parent, child);
    0
}

/// Gives the child its parent's entry. No entry may point to a layout that the agent does not know to be in
/// use, however long this program is kept from running between two of its steps: the agent hears of it first;
/// and where the parent's entry is not the same when all is done, the layout may be gone.
#[inline(always)]
fn inherit(parent: u32, child: u32) {
    // SAFETY: a helper without preconditions.
    let time_ns = unsafe { bpf_ktime_get_ns() };
    let Some(entry) = entry_of(parent) else { return };
    let note = Inherited { kind: RecordKind::Inherited as u32, tgid: child, time_ns, entry };
    // Only the agent makes entries of a process that has not run yet, and those are newer.
    let made = notes::output(&note, BPF_RB_NO_WAKEUP)
        && PROCESSES.insert(child, entry, u64::from(BPF_NOEXIST)).is_ok();
    if !made {
        count(offset_of!(Counters, inherited_missed));
    } else if entry_of(parent) == Some(entry) {
        count(offset_of!(Counters, inherited));
    } else {
        let _gone_or_never_there = PROCESSES.remove(child);
        count(offset_of!(Counters, inherited_missed));
    }
}

#[inline(always)]
fn entry_of(tgid: u32) -> Option<ProcessEntry> {
    // SAFETY: the value is eight bytes and aligned, so the copy is one load.
    unsafe { PROCESSES.get(tgid) }.copied()
}

/// Attached to `sched_process_free`, which runs some time after the task was reaped (kernel kernel/exit.c,
/// `delayed_put_task_struct`). The number may be another process's by then only if all numbers went round
/// in that time, since they are given out in a circle.
#[raw_tracepoint]
fn process_free(ctx: RawTracePointContext) -> i32 {
    let task = ctx.arg(0);
    let tgid = task_field(task, TASK_TGID_OFFSET.load());
    // The leader is freed after every other thread.
    if tgid == task_field(task, TASK_PID_OFFSET.load()) {
        let _gone_or_never_there = PROCESSES.remove(tgid);
        if FILTERED.load() == 1 {
            let _gone_or_never_there = FILTER.remove(tgid);
        }
    }
    0
}

/// Adds one to the counter at that offset. The sampler may interrupt between the load and the store, but it
/// does not write the fields that are counted here.
#[inline(always)]
fn count(offset: usize) {
    if let Some(counters) = COUNTERS.get_ptr_mut(0) {
        // SAFETY: the offset of a field.
        let field = unsafe { counters.byte_add(offset) }.cast::<u64>();
        // SAFETY: a field of the counters of this CPU.
        unsafe { *field += 1 };
    }
}

/// A 32-bit field of a `task_struct`.
#[inline(always)]
fn task_field(task: u64, offset: u32) -> u32 {
    low32(read_kernel(task.wrapping_add(u64::from(offset))))
}
