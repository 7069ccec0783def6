//! The account of one window: every tick of the clock is somewhere. Only sums; who counts is `bpf` and
//! the engine.

use agent_ebpf::Outcome;

/// Number of outcomes.
pub const OUTCOMES: usize = Outcome::ALL.len();

/// What became of the clock ticks of one window, summed over the CPUs. The ledger closes:
/// `ticks_expected = runs + missed` and `runs = idle + shipped + lost_ring + filtered`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    /// CPUs that were sampled.
    pub cpus: u64,
    /// Ticks that the clock owed: time the perf events were enabled, divided by the period.
    pub ticks_expected: u64,
    /// Runs of the BPF program.
    pub runs: u64,
    /// Runs that met the idle task (not sent, by design).
    pub idle: u64,
    /// Samples put into the ring buffer.
    pub shipped: u64,
    /// Samples that the full ring buffer refused.
    pub lost_ring: u64,
    /// Runs whose process was not asked for (`record --pid`).
    pub filtered: u64,
    /// Nanoseconds the programs ran: BPF time counts as the agent's CPU.
    pub bpf_ns: u64,
    /// Shipped samples by outcome, in the order of [`Outcome::ALL`].
    pub outcomes: [u64; OUTCOMES],
    /// Shipped samples that user space could not decode or attribute.
    pub lost_decode: u64,
    /// Shipped samples that did not fit into the window's memory. Set when the window is sealed.
    pub lost_window: u64,
}

impl Ledger {
    /// Ticks for which the kernel did not run the program: a difference, never below zero.
    #[must_use]
    pub const fn missed(&self) -> u64 {
        self.ticks_expected.saturating_sub(self.runs)
    }

    /// Samples that existed and did not reach the window.
    #[must_use]
    pub const fn lost(&self) -> u64 {
        self.lost_ring.saturating_add(self.lost_decode).saturating_add(self.lost_window)
    }

    /// Shipped samples whose stack reached its root, kernel threads included.
    #[must_use]
    pub const fn complete(&self) -> u64 {
        self.outcomes[Outcome::Complete as usize]
            .saturating_add(self.outcomes[Outcome::NoUserStack as usize])
    }

    /// Adds the account of another window.
    pub fn add(&mut self, other: &Self) {
        let Self {
            cpus,
            ticks_expected,
            runs,
            idle,
            shipped,
            lost_ring,
            filtered,
            bpf_ns,
            outcomes,
            lost_decode,
            lost_window,
        } = other;
        self.cpus = self.cpus.max(*cpus);
        for (sum, value) in [
            (&mut self.ticks_expected, ticks_expected),
            (&mut self.runs, runs),
            (&mut self.idle, idle),
            (&mut self.shipped, shipped),
            (&mut self.lost_ring, lost_ring),
            (&mut self.filtered, filtered),
            (&mut self.bpf_ns, bpf_ns),
            (&mut self.lost_decode, lost_decode),
            (&mut self.lost_window, lost_window),
        ] {
            *sum = sum.saturating_add(*value);
        }
        for (sum, value) in self.outcomes.iter_mut().zip(outcomes) {
            *sum = sum.saturating_add(*value);
        }
    }
}
