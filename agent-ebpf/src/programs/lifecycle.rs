//! What the programs do at turns in the life of a process. Exec replaces every mapping: the entry of the process
//! goes before the new program runs, so that no walk ever uses the tables of the old one. Where only some
//! processes are sampled, their children are too, from their first instruction on.

use super::maps::{COUNTERS, FILTER, PROCESSES, TASK_PID_OFFSET, TASK_TGID_OFFSET};
use super::notes;
use super::registers::read_kernel;
use agent_ebpf::verifier::low32;
use aya_ebpf::EbpfContext as _;
use aya_ebpf::macros::raw_tracepoint;
use aya_ebpf::programs::RawTracePointContext;

/// Attached to `sched_process_exec`, which runs in the task that executes, after the other threads of
/// the process are gone (kernel fs/exec.c, `bprm_execve`).
#[raw_tracepoint]
fn process_exec(ctx: RawTracePointContext) -> i32 {
    let tgid = ctx.tgid();
    if PROCESSES.remove(tgid).is_ok()
        && let Some(counters) = COUNTERS.get_ptr_mut(0)
    {
        // SAFETY: the counters of this CPU. The sampler may interrupt between the load and the store,
        // but it does not write this field.
        unsafe { (*counters).execs += 1 };
    }
    notes::forget(tgid);
    0
}

/// Attached to `sched_process_fork`, which runs in the parent before the child is woken for the first time
/// (kernel kernel/fork.c, `kernel_clone`).
#[raw_tracepoint]
fn process_fork(ctx: RawTracePointContext) -> i32 {
    let parent = ctx.tgid();
    if FILTER.get_ptr(parent).is_none() {
        return 0;
    }
    let child = task_field(ctx.arg(1), TASK_TGID_OFFSET.load());
    if child != parent
        && child != 0
        && FILTER.insert(child, 1, 0).is_err()
        && let Some(counters) = COUNTERS.get_ptr_mut(0)
    {
        // SAFETY: the counters of this CPU, as in `process_exec`.
        unsafe { (*counters).children_missed += 1 };
    }
    0
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
        let _gone_or_never_there = FILTER.remove(tgid);
    }
    0
}

/// A 32-bit field of a `task_struct`.
#[inline(always)]
fn task_field(task: u64, offset: u32) -> u32 {
    low32(read_kernel(task.wrapping_add(u64::from(offset))))
}
