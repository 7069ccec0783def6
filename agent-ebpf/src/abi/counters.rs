//! What the sampler counts on each CPU, and the switches that the loader sets before the programs load.

use crate::outcome::Outcome;

/// Counters of one CPU, written only there. They close the ledger:
/// `runs = idle + shipped + lost + filtered`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Times that the sampler ran.
    pub runs: u64,
    /// Runs that met the idle task: counted, not sent.
    pub idle: u64,
    /// Samples put into the ring buffer.
    pub shipped: u64,
    /// Samples lost because the ring buffer was full.
    pub lost: u64,
    /// Runs whose process was not asked for.
    pub filtered: u64,
    /// Notes of an unknown process or mapping that were sent.
    pub notes: u64,
    /// Notes held back because one for the same process and page was sent a moment ago.
    pub notes_held: u64,
    /// Notes lost because the ring buffer was full.
    pub notes_lost: u64,
    /// Processes whose mappings were dropped because they executed another program.
    pub execs: u64,
    /// Forked processes that got their parent's entry.
    pub inherited: u64,
    /// Forked processes that did not, though their parent had one: the ring was full, or the map.
    pub inherited_missed: u64,
    /// Children of processes in the filter that found it full: not sampled.
    pub children_missed: u64,
    /// Nanoseconds in the sampler, by its own clock.
    pub run_ns: u64,
    /// Samples that took a copy of the user stack along, because a table was not there yet.
    pub stacks: u64,
    /// Copies of the stack held back: too many of late, the ring more than half full, or too many frames.
    pub stacks_held: u64,
    /// Copies of the stack not made because its first page could not be read.
    pub stacks_unreadable: u64,
    /// Walks that were cut and kept the thread's root frames.
    pub roots: u64,
    /// Walks that were cut and whose thread's root frames were not known, or are gone.
    pub roots_unknown: u64,
    /// How the walks ended, by the number of the outcome.
    pub outcomes: [u64; OUTCOME_SLOTS],
}

/// Slots for outcomes: a power of two, because the programs mask the index.
pub const OUTCOME_SLOTS: usize = 16;

/// How the sampler finds the user registers of a task that was interrupted in the kernel.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UserRegisters {
    /// At a fixed place on the task's kernel stack: kernels before 5.15.
    KernelStack = 0,
    /// By the helper `bpf_task_pt_regs`.
    Helper = 1,
}

const _: () = assert!(Outcome::ALL.len() <= OUTCOME_SLOTS);
