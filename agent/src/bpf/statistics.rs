//! What the kernel side counted, for the ledger and the metrics. Numbers only.

use agent_ebpf::{Counters, LockCounters, Outcome, WaitCounters};

/// The counters of one sampled CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuStatistics {
    /// Logical CPU.
    pub cpu: u32,
    /// Ticks that the clock should have made while it was enabled.
    pub ticks_expected: u64,
    /// Ticks without a run, because they came due while the CPU slept: by the kernel's account of idle time.
    pub asleep: u64,
    /// What the programs counted there.
    pub counters: Counters,
}

impl CpuStatistics {
    /// Ticks at which the sampler did not run though the CPU worked, because another BPF program ran there
    /// or because the virtual machine did not get its turn. The kernel does not count them: a difference.
    #[must_use]
    pub fn missed(&self) -> u64 {
        self.ticks_expected.saturating_sub(self.counters.runs.saturating_add(self.asleep))
    }
}

/// The counters of all sampled CPUs, and of the reader.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// One for each sampled CPU.
    pub cpus: Vec<CpuStatistics>,
    /// Lifecycle records that the kernel dropped because a ring was full.
    pub lifecycle_lost: u64,
    /// Samples that could not be decoded: a defect.
    pub malformed: u64,
    /// Notes and lifecycle records that could not be decoded: a defect, or a kernel that writes them
    /// otherwise.
    pub lifecycle_malformed: u64,
    /// What the programs of waits counted; `None` where waits are not measured.
    pub waits: Option<WaitCounters>,
    /// Records of waits that could not be decoded: a defect.
    pub waits_malformed: u64,
    /// What the programs of Go's locks counted, on all CPUs.
    pub locks: LockCounters,
    /// CPUs that came online and could not be sampled: nothing is known of them.
    pub cpus_not_sampled: usize,
    /// Records that wait in the reader for earlier ones.
    pub waiting: usize,
}

impl Statistics {
    /// The sums over all CPUs.
    #[must_use]
    pub fn total(&self) -> CpuStatistics {
        let mut total = CpuStatistics::default();
        for cpu in &self.cpus {
            total.ticks_expected += cpu.ticks_expected;
            total.asleep += cpu.asleep;
            add(&mut total.counters, &cpu.counters);
        }
        total
    }
}

fn add(total: &mut Counters, more: &Counters) {
    total.runs += more.runs;
    total.idle += more.idle;
    total.shipped += more.shipped;
    total.lost += more.lost;
    total.filtered += more.filtered;
    total.notes += more.notes;
    total.notes_held += more.notes_held;
    total.notes_lost += more.notes_lost;
    total.execs += more.execs;
    total.run_ns += more.run_ns;
    total.inherited += more.inherited;
    total.inherited_missed += more.inherited_missed;
    total.children_missed += more.children_missed;
    total.roots += more.roots;
    total.roots_unknown += more.roots_unknown;
    total.stacks += more.stacks;
    total.stacks_held += more.stacks_held;
    total.stacks_unreadable += more.stacks_unreadable;
    for (total, more) in total.outcomes.iter_mut().zip(more.outcomes) {
        *total += more;
    }
}

/// How many walks ended with `outcome`.
#[must_use]
pub fn outcomes_of(counters: &Counters, outcome: Outcome) -> u64 {
    counters.outcomes.get(usize::from(outcome as u16)).copied().unwrap_or(0)
}
