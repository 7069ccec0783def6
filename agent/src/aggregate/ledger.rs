//! The account of one window: every tick of the clock is somewhere. Only sums; who counts is `bpf` and
//! the engine.

use agent_ebpf::Outcome;

/// Number of outcomes.
pub const OUTCOMES: usize = Outcome::ALL.len();

/// What became of the clock ticks of one window, summed over the CPUs. The ledger closes:
/// `ticks_expected = runs + missed` and `runs = idle + shipped + lost_in_ring + filtered` in every window;
/// over all windows `shipped = received + unwanted +` what could not be decoded, while a single window may
/// receive what the one before shipped.
/// Every figure is a difference over the window.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    /// CPUs that were sampled.
    pub cpus: u64,
    /// Clock ticks that had to fire: time enabled divided by the period, over all CPUs.
    pub ticks_expected: u64,
    /// Program runs.
    pub runs: u64,
    /// Runs that met the idle task (not sent, by design).
    pub idle: u64,
    /// Runs of processes that were not asked for.
    pub filtered: u64,
    /// Samples that the program put into the ring buffer.
    pub shipped: u64,
    /// Samples that did not fit into the ring buffer.
    pub lost_in_ring: u64,
    /// Samples that came out of the ring buffer and were wanted.
    pub received: u64,
    /// Samples that came out of it and whose process was not asked for: the programs filter what they
    /// know, the agent the rest, so that the first sample of a new child is never missed.
    pub unwanted: u64,
    /// Samples that the agent dropped itself, for a limit that was reached; what did not fit into the
    /// window is added when it is named.
    pub dropped: u64,
    /// Time the BPF programs ran, nanoseconds: it counts as the agent's CPU.
    pub program_run_ns: u64,
    /// Received samples by outcome, in the order of [`Outcome::ALL`].
    pub outcomes: [u64; OUTCOMES],
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
        self.lost_in_ring.saturating_add(self.dropped)
    }

    /// Received samples whose stack reached its root, kernel threads included.
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
            filtered,
            shipped,
            lost_in_ring,
            received,
            unwanted,
            dropped,
            program_run_ns,
            outcomes,
        } = other;
        self.cpus = self.cpus.max(*cpus);
        for (sum, value) in [
            (&mut self.ticks_expected, ticks_expected),
            (&mut self.runs, runs),
            (&mut self.idle, idle),
            (&mut self.filtered, filtered),
            (&mut self.shipped, shipped),
            (&mut self.lost_in_ring, lost_in_ring),
            (&mut self.received, received),
            (&mut self.unwanted, unwanted),
            (&mut self.dropped, dropped),
            (&mut self.program_run_ns, program_run_ns),
        ] {
            *sum = sum.saturating_add(*value);
        }
        for (sum, value) in self.outcomes.iter_mut().zip(outcomes) {
            *sum = sum.saturating_add(*value);
        }
    }
}
