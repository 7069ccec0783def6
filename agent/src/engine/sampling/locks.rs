//! The locks of Go programs on their way through the loop: who is probed, what it may cost, and the waits as they come.

use super::Intake;
use crate::aggregate::{WaitSum, WindowWait};
use crate::bpf::{RawLockWait, Statistics};
use crate::engine::Sampling;
use crate::limits::{PROBE_PAUSE_WINDOWS, PROBE_SHARE_MAX};
use crate::probes::keeper::{LockKeeper, ProbeCounts};
use crate::process::files::Files;
use agent_ebpf::wait::CHANCE_ONE;
use agent_ebpf::{LockCounters, WaitClass, WaitFacts};
use std::sync::Arc;

/// What happened so far, for the metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GoLockCounts {
    /// Probes.
    pub probes: ProbeCounts,
    /// What their programs counted, when the last window ended.
    pub programs: LockCounters,
}

/// The probes, where the kernel takes them.
#[derive(Debug, Default)]
pub(super) struct GoLocks {
    keeper: Option<LockKeeper>,
    /// What a hit costs whoever meets it, nanoseconds.
    cost_ns: u64,
}

impl GoLocks {
    /// Measures what a probe costs, and begins.
    pub(super) fn start(sampler: &dyn Sampling, files: &Arc<Files>) -> Self {
        let Some(probes) = sampler.lock_probes() else { return Self::default() };
        let cost_ns = match probes.cost_ns() {
            Ok(cost_ns) => cost_ns,
            Err(error) => {
                tracing::warn!(%error, "locks of Go are not probed: what a probe costs is not known");
                return Self::default();
            }
        };
        tracing::info!(cost_ns, "locks of Go are probed");
        let keeper = LockKeeper::start(probes, Arc::clone(files) as _);
        let keeper = keeper.inspect_err(|error| tracing::warn!(%error, "no thread for probes"));
        Self { keeper: keeper.ok(), cost_ns }
    }

    /// Has programs probed that came since the last look.
    pub(super) fn look(&mut self, files: &Files) {
        self.keeper.iter_mut().for_each(|keeper| keeper.look(files));
    }

    /// What happened so far; `now`: when the last window ended.
    pub(super) fn counts(&self, now: &Statistics) -> GoLockCounts {
        let probes = self.keeper.as_ref().map(LockKeeper::counts).unwrap_or_default();
        GoLockCounts { probes, programs: now.locks }
    }

    /// A window ends: leaves alone what nobody maps, and everything if the probes cost too much.
    pub(super) fn seal(
        &mut self,
        files: &Files,
        (before, now): (&Statistics, &Statistics),
        ns: u64,
    ) {
        let Some(keeper) = &mut self.keeper else { return };
        let hits = now.locks.hits.saturating_sub(before.locks.hits);
        // What takes the stacks is not in the cost of a hit.
        let stacks_ns = now.locks.run_ns.saturating_sub(before.locks.run_ns);
        let cost_ns = hits.saturating_mul(self.cost_ns).saturating_add(stacks_ns);
        let cpus = u64::try_from(now.cpus.len()).unwrap_or(1);
        if cost_ns > ns.saturating_mul(cpus) / PROBE_SHARE_MAX {
            tracing::warn!(
                hits,
                cost_ns,
                "locks of Go are not probed for a minute: they cost too much"
            );
            keeper.pause(PROBE_PAUSE_WINDOWS);
            return;
        }
        keeper.tidy(files);
    }
}

impl Intake {
    /// A goroutine has the lock that it waited for. The window of its end gets all of the wait.
    pub(super) fn lock_wait(&mut self, wait: &RawLockWait) {
        let RawLockWait { sample, word, since } = wait;
        if !self.processes.is_tracked(sample.pid) {
            return;
        }
        let sample = self.normalized(sample);
        let facts = WaitFacts {
            class: WaitClass::Goroutine as u32,
            chance: CHANCE_ONE,
            arguments: [word.0, 0, 0, 0],
            ..WaitFacts::default()
        };
        let wait = WindowWait {
            process: &sample.process,
            tid: sample.tid,
            thread_name: &sample.thread_name,
            frames: &sample.frames,
            class: WaitClass::Goroutine,
            facts: Some(&facts),
        };
        self.window.add_wait(&wait, WaitSum { ns: sample.time.since(*since), count: 1 });
    }
}
