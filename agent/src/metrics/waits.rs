//! What was counted of threads that wait, as metrics.

use super::engine::Figure;

/// Figures that only grow.
pub(super) const SINCE_START: [Figure; 23] = [
    ("switches", "Switches of CPUs between threads", |counts| counts.waits.switches),
    ("waits", "Waits of threads that ended", |counts| counts.waits.waits),
    ("waits_negative", "Waits that would have ended before they began", |counts| {
        counts.waits.negative
    }),
    ("waits_absurd", "Waits of more than a year", |counts| counts.waits.absurd),
    ("wait_threads_refused", "Waits of threads that did not fit into the kernel's map", |counts| {
        counts.waits.threads_refused
    }),
    ("wait_stacks", "Stacks of waits sent", |counts| counts.waits.stacks),
    ("wait_stacks_held", "Stacks of waits not sent, by chance", |counts| counts.waits.stacks_held),
    ("wait_stacks_lost", "Stacks of waits that found the ring buffer full", |counts| {
        counts.waits.stacks_lost
    }),
    ("wait_stacks_refused", "Stacks of waits that found no room in the agent", |counts| {
        counts.off_cpu.refused
    }),
    (
        "wait_threads_put_off",
        "Times that a thread's waits were left to a later window for want of room",
        |counts| counts.off_cpu.threads_refused,
    ),
    (
        "waits_before_refused",
        "Threads, or processes, not to be looked at for waits from before the agent came",
        |counts| counts.off_cpu.before_refused,
    ),
    (
        "waits_unwanted",
        "Waits with a stack, and of goroutines, of processes that were not asked for",
        |counts| counts.off_cpu.unwanted,
    ),
    (
        "wait_nanoseconds_unwanted",
        "Time of waits without a stack of processes that were not asked for",
        |counts| counts.off_cpu.unwanted_ns,
    ),
    (
        "lock_holders_not_sought",
        "Waits that found no room among those whose holder is sought",
        |counts| counts.off_cpu.spans_dropped,
    ),
    ("wait_ends_lost", "Ends of waits that found the ring buffer full", |counts| {
        counts.waits.ends_lost
    }),
    ("wait_ends_unseen", "Waits whose end no switch told: estimated", |counts| {
        counts.waits.ends_unseen
    }),
    ("wait_ends_missed", "Waits with a stack whose end was not told", |counts| {
        counts.off_cpu.ends_missed
    }),
    ("wait_thread_ends_lost", "Ends of threads that found the ring buffer full", |counts| {
        counts.waits.threads_lost
    }),
    ("wait_nanoseconds", "Time of waits in windows", |counts| counts.off_cpu.ns),
    ("wait_nanoseconds_not_sampled", "Time of waits in windows without a stack", |counts| {
        counts.off_cpu.ns_not_taken
    }),
    ("wait_stacks_nanoseconds", "Time of switches that sent a stack", |counts| {
        counts.waits.stacks_ns
    }),
    ("wait_programs_timed", "Other switches whose time was taken", |counts| counts.waits.timed),
    ("wait_programs_timed_nanoseconds", "The time of those", |counts| counts.waits.timed_ns),
];
