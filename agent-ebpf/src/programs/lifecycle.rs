//! Exec replaces every mapping of a process: its entry goes before the new program runs, so that no walk
//! ever uses the tables of the old one.

use super::maps::{COUNTERS, PROCESSES};
use super::notes;
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
