//! Tells ticks that an idle CPU slept through from those that were missed while it worked. A tick that comes
//! late runs the program once, whatever came due before it: the kernel moves the timer on to the future
//! and tells nobody how far (`perf_swevent_hrtimer`, kernel/events/core.c: the result of
//! `hrtimer_forward_now` is dropped). A sleeping virtual CPU is woken by its host for work, and late or never
//! for a timer alone; whatever wakes it, the timer interrupts the idle task before anything else runs.

use agent_ebpf::Counters;
use agent_ebpf::verifier::limit32;
use aya_ebpf::bindings::{bpf_perf_event_data, bpf_perf_event_value};
use aya_ebpf::helpers::generated::bpf_perf_prog_read_value;

/// Counts the ticks that came due since the last run, if this run met the idle task. What the kernel skipped
/// just before the CPU went idle is counted with them: the next tick tells the two apart no more.
#[inline(always)]
pub(super) fn count(ctx: *mut bpf_perf_event_data, counters: *mut Counters, idle: bool) {
    let mut value = bpf_perf_event_value { counter: 0, enabled: 0, running: 0 };
    // SAFETY: the helper writes a value of that size, and the context is the program's own.
    let result = unsafe {
        bpf_perf_prog_read_value(
            ctx,
            &raw mut value,
            const { limit32(size_of::<bpf_perf_event_value>()) },
        )
    };
    // SAFETY: the address of a field of the context.
    let period_ns = unsafe { &raw const (*ctx).sample_period };
    // SAFETY: a field of the context.
    let period_ns = unsafe { period_ns.read_volatile() };
    if result != 0 || period_ns == 0 {
        return;
    }
    // As the reader computes it (`ticks_expected`), so that nothing adds up over time.
    let due = value.enabled / period_ns;
    // SAFETY: the counters of this CPU, which only this program writes.
    let counters = unsafe { &mut *counters };
    let since = due.wrapping_sub(counters.due);
    if idle && since > 1 && due > counters.due {
        counters.asleep += since - 1;
    }
    counters.due = due;
}
