//! The account of one window: every tick of the clock is somewhere, every sample that was taken is
//! somewhere. Only sums; who counts is `bpf`, the engine and the window.

use super::ProcessLedger;
use agent_ebpf::Outcome;

/// Number of outcomes.
pub const OUTCOMES: usize = Outcome::ALL.len();
/// Number of reasons to drop.
pub const DROP_REASONS: usize = DropReason::ALL.len();

/// Why a sample that was received is in no window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum DropReason {
    /// The window holds as many observations as it may.
    Observations = 0,
    /// The window holds as many distinct samples or thread names as it may.
    Samples = 1,
    /// The window holds as many distinct stacks as it may.
    Stacks = 2,
    /// The window holds as many distinct locations as it may.
    Locations = 3,
    /// The window holds as many processes as it may.
    Processes = 4,
    /// The whole window was given up, because naming was too slow.
    Naming = 5,
}

impl DropReason {
    /// Every reason, in the order of their numbers.
    pub const ALL: [Self; 6] = [
        Self::Observations,
        Self::Samples,
        Self::Stacks,
        Self::Locations,
        Self::Processes,
        Self::Naming,
    ];

    /// The reason as a label of metrics.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Observations => "too many observations in the window",
            Self::Samples => "too many samples in the window",
            Self::Stacks => "too many stacks in the window",
            Self::Locations => "too many locations in the window",
            Self::Processes => "too many processes in the window",
            Self::Naming => "naming too slow",
        }
    }

    /// The reason in one word.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Observations => "observations",
            Self::Samples => "samples",
            Self::Stacks => "stacks",
            Self::Locations => "locations",
            Self::Processes => "processes",
            Self::Naming => "naming",
        }
    }
}

/// What became of the clock ticks of one window, summed over the CPUs, and of the samples that they made.
/// Every figure is a difference over the window. The ledger closes ([`Ledger::check`]):
///
/// - `ticks_expected = runs + asleep + missed`,
/// - `runs = idle + filtered + shipped + lost_in_ring`,
/// - `carried_in + shipped = received + unwanted + malformed + carried_over`,
/// - `received = sent +` what limits dropped (all of [`Ledger::dropped`] but `malformed`), and each received sample has one outcome.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    /// CPUs that were sampled.
    pub cpus: u64,
    /// Clock ticks that had to fire: time enabled divided by the period, over all CPUs.
    pub ticks_expected: u64,
    /// Program runs.
    pub runs: u64,
    /// Ticks that came due while their CPU slept, and did not wake it: idle time too.
    pub asleep: u64,
    /// Runs that met the idle task (not sent, by design).
    pub idle: u64,
    /// Runs of processes that were not asked for.
    pub filtered: u64,
    /// Samples that the program put into the ring buffer.
    pub shipped: u64,
    /// Samples that did not fit into the ring buffer.
    pub lost_in_ring: u64,
    /// Samples that the window before had shipped and not received.
    pub carried_in: u64,
    /// Samples that this window shipped and leaves to the next.
    pub carried_over: u64,
    /// Samples that came out of the ring buffer and were wanted.
    pub received: u64,
    /// Samples that came out of it and whose process was not asked for: the programs filter what they
    /// know, the agent the rest, so that the first sample of a new child is never missed.
    pub unwanted: u64,
    /// Records that came out of it and could not be decoded.
    pub malformed: u64,
    /// Received samples that are in no window, in the order of [`DropReason::ALL`].
    pub dropped: [u64; DROP_REASONS],
    /// Time the BPF programs ran, nanoseconds: it counts as the agent's CPU.
    pub program_run_ns: u64,
    /// Received samples by outcome, in the order of [`Outcome::ALL`].
    pub outcomes: [u64; OUTCOMES],
    /// What became of the waits of threads.
    pub waits: WaitLedger,
}

/// The account of the waits of one window. What the programs counted is between two readings of theirs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WaitLedger {
    /// Switches of CPUs between threads.
    pub switches: u64,
    /// Waits that ended and are in the sums of their threads.
    pub ended: u64,
    /// Nanoseconds of waits in the window, all of them.
    pub ns: u64,
    /// Of these, nanoseconds that no stack stands for.
    pub not_sampled_ns: u64,
    /// Nanoseconds that a limit of the window left out.
    pub dropped_ns: u64,
    /// Stacks that were taken.
    pub stacks: u64,
    /// Stacks that chance passed over: their waits are shared out.
    pub stacks_held: u64,
    /// Stacks that did not fit into the ring buffer: likewise.
    pub stacks_lost: u64,
    /// Ends of waits and of threads that did not fit into the ring buffer.
    pub ends_lost: u64,
    /// Waits whose end no switch told: estimated.
    pub ends_unseen: u64,
    /// Waits of threads that did not fit into the map of threads.
    pub threads_refused: u64,
    /// Waits that would have ended before they began, or lasted a year.
    pub unbelievable: u64,
    /// Records that could not be decoded.
    pub malformed: u64,
    /// Time the programs of switches ran, nanoseconds, estimated from the runs that were timed.
    pub program_run_ns: u64,
}

impl WaitLedger {
    /// Adds the account of the window behind this one.
    fn add(&mut self, other: &Self) {
        let Self {
            switches,
            ended,
            ns,
            not_sampled_ns,
            dropped_ns,
            stacks,
            stacks_held,
            stacks_lost,
            ends_lost,
            ends_unseen,
            threads_refused,
            unbelievable,
            malformed,
            program_run_ns,
        } = other;
        for (sum, value) in [
            (&mut self.switches, switches),
            (&mut self.ended, ended),
            (&mut self.ns, ns),
            (&mut self.not_sampled_ns, not_sampled_ns),
            (&mut self.dropped_ns, dropped_ns),
            (&mut self.stacks, stacks),
            (&mut self.stacks_held, stacks_held),
            (&mut self.stacks_lost, stacks_lost),
            (&mut self.ends_lost, ends_lost),
            (&mut self.ends_unseen, ends_unseen),
            (&mut self.threads_refused, threads_refused),
            (&mut self.unbelievable, unbelievable),
            (&mut self.malformed, malformed),
            (&mut self.program_run_ns, program_run_ns),
        ] {
            *sum = sum.saturating_add(*value);
        }
    }
}

/// Two sums of an account that must be equal and are not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the account does not close: {left} {of} and {right} {and}")]
pub struct Gap {
    /// What is counted on one side.
    pub of: &'static str,
    /// How many.
    pub left: u64,
    /// What is counted on the other.
    pub and: &'static str,
    /// How many.
    pub right: u64,
}

impl Ledger {
    /// Ticks for which the kernel did not run the program though the CPU worked: a difference, never below
    /// zero.
    #[must_use]
    pub const fn missed(&self) -> u64 {
        self.ticks_expected.saturating_sub(self.runs.saturating_add(self.asleep))
    }

    /// Samples that the agent dropped itself.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        sum(&self.dropped).saturating_add(self.malformed)
    }

    /// Samples that existed and did not reach the window.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lost_in_ring.saturating_add(self.dropped())
    }

    /// Received samples whose stack reached its root, kernel threads included.
    #[must_use]
    pub const fn complete(&self) -> u64 {
        self.outcomes[Outcome::Complete as usize]
            .saturating_add(self.outcomes[Outcome::NoUserStack as usize])
    }

    /// Whether it closes, given the observations that are in the window.
    ///
    /// # Errors
    /// The first two sums that differ. A clock's last tick may be on either side of a reading: of ticks two
    /// a CPU may be missing.
    pub fn check(&self, sent: u64) -> Result<(), Gap> {
        let ends = [self.idle, self.filtered, self.shipped, self.lost_in_ring];
        equal("runs", self.runs, "ends of runs", sum(&ends))?;
        let taken = [self.received, self.unwanted, self.malformed, self.carried_over];
        let in_ring = self.carried_in.saturating_add(self.shipped);
        equal("samples in the ring", in_ring, "taken out or left", sum(&taken))?;
        let kept = sent.saturating_add(sum(&self.dropped));
        equal("received", self.received, "sent or dropped", kept)?;
        equal("received", self.received, "outcomes", sum(&self.outcomes))?;
        let most = self.ticks_expected.saturating_add(self.cpus.saturating_mul(2));
        let ticks = self.runs.saturating_add(self.asleep);
        equal("ticks beyond the clock's", ticks.saturating_sub(most), "allowed", 0)
    }

    /// Adds the account of the window behind this one.
    pub fn add(&mut self, other: &Self) {
        let Self {
            cpus,
            ticks_expected,
            runs,
            asleep,
            idle,
            filtered,
            shipped,
            lost_in_ring,
            carried_in: _, // of the first window
            carried_over,
            received,
            unwanted,
            malformed,
            dropped,
            program_run_ns,
            outcomes,
            waits,
        } = other;
        self.waits.add(waits);
        if self.cpus == 0 {
            self.carried_in = other.carried_in;
        }
        self.cpus = self.cpus.max(*cpus);
        self.carried_over = *carried_over;
        for (sum, value) in [
            (&mut self.ticks_expected, ticks_expected),
            (&mut self.runs, runs),
            (&mut self.asleep, asleep),
            (&mut self.idle, idle),
            (&mut self.filtered, filtered),
            (&mut self.shipped, shipped),
            (&mut self.lost_in_ring, lost_in_ring),
            (&mut self.received, received),
            (&mut self.unwanted, unwanted),
            (&mut self.malformed, malformed),
            (&mut self.program_run_ns, program_run_ns),
        ] {
            *sum = sum.saturating_add(*value);
        }
        add_each(&mut self.dropped, dropped);
        add_each(&mut self.outcomes, outcomes);
    }

    /// Adds what the window dropped of one process.
    pub(super) fn add_process(&mut self, process: &ProcessLedger) {
        add_each(&mut self.dropped, &process.dropped);
    }

    /// Samples that were received are dropped after all.
    pub(crate) fn drop_also(&mut self, reason: DropReason, samples: u64) {
        let dropped = &mut self.dropped[reason as usize];
        *dropped = dropped.saturating_add(samples);
    }
}

fn equal(of: &'static str, left: u64, and: &'static str, right: u64) -> Result<(), Gap> {
    if left == right { Ok(()) } else { Err(Gap { of, left, and, right }) }
}

pub(super) fn sum(counts: &[u64]) -> u64 {
    counts.iter().fold(0, |sum, count| sum.saturating_add(*count))
}

pub(super) fn add_each(sums: &mut [u64], values: &[u64]) {
    for (sum, value) in sums.iter_mut().zip(values) {
        *sum = sum.saturating_add(*value);
    }
}
