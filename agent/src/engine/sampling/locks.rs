//! The locks of Go programs and of C libraries on their way through the loop: who is probed, what it may cost, and the
//! waits of goroutines as they come.

use super::Intake;
use super::lasting::goroutine_facts;
use super::thinning::{WaitCost, shifts};
use super::waits::data_place;
use crate::address::{FileId, Pid};
use crate::aggregate::{WaitSum, WindowWait};
use crate::bpf::{BpfError, RawLockWait, Statistics};
use crate::engine::Sampling;
use crate::limits::{PROBE_PAUSE_WINDOWS, PROBE_SHARE_MAX, PROBED_FILES_MAX};
use crate::normalize::Frame;
use crate::probes::keeper::{LockKeeper, ProbeCounts, Probes};
use crate::process::files::Files;
use crate::waits::Owners;
use agent_ebpf::{LockCounters, WaitClass};
use hashbrown::HashMap;
use std::sync::Arc;

/// What happened so far, for the metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LockCounts {
    /// Probes.
    pub probes: ProbeCounts,
    /// What their programs counted, when the last window ended.
    pub programs: LockCounters,
    /// Processes of whose goroutines' waits only some are followed.
    pub thinned: u64,
    /// Windows for which the kernel did not say which goroutines wait.
    pub readings_failed: u64,
}

/// The probes, where the kernel takes them.
#[derive(Debug, Default)]
pub(super) struct Locks {
    keeper: Option<LockKeeper>,
    /// Processes that are thinned.
    thinned: u64,
    readings_failed: u64,
}

impl Locks {
    /// Begins.
    pub(super) fn start(sampler: &dyn Sampling, files: &Arc<Files>) -> Self {
        let probes = Probes { go: sampler.lock_probes(), libc: sampler.libc_probes() };
        if probes.go.is_none() && probes.libc.is_none() {
            return Self::default();
        }
        let keeper = LockKeeper::start(probes, Arc::clone(files) as _);
        let keeper = keeper.inspect_err(|error| tracing::warn!(%error, "no thread for probes"));
        Self { keeper: keeper.ok(), ..Self::default() }
    }

    /// Has programs probed that came since the last look.
    pub(super) fn look(&mut self, files: &Files) {
        self.keeper.iter_mut().for_each(|keeper| keeper.look(files));
    }

    /// What happened so far; `now`: when the last window ended.
    pub(super) fn counts(&self, now: &Statistics) -> LockCounts {
        let probes = self.keeper.as_ref().map(LockKeeper::counts).unwrap_or_default();
        let hits = now.locks.hits.saturating_sub(probes.go.hits);
        let marked = now.locks.marked.saturating_sub(probes.libc.hits);
        LockCounts {
            probes,
            programs: LockCounters { hits, marked, ..now.locks },
            thinned: self.thinned,
            readings_failed: self.readings_failed,
        }
    }

    /// The kernel did not say which goroutines wait.
    pub(super) fn reading_failed(&mut self, error: &BpfError) {
        if self.readings_failed == 0 {
            tracing::warn!(%error, "waits of goroutines are not told while they last");
        }
        self.readings_failed += 1;
    }

    /// A window ends: leaves alone what nobody maps, and programs whose probes cost too much. Says of which processes only
    /// some waits are to be followed, see [`shifts`].
    pub(super) fn seal(
        &mut self,
        files: &Files,
        (before, now): (&Statistics, &Statistics),
        (waits, ns): (GoWaits, u64),
    ) -> HashMap<Pid, u32> {
        let Some(keeper) = &mut self.keeper else { return HashMap::new() };
        let ProbeCounts { go, libc, .. } = keeper.counts();
        let since = |of: fn(&LockCounters) -> u64| of(&now.locks).saturating_sub(of(&before.locks));
        // What takes the stacks is not in the cost of a hit.
        let stack_ns = since(|it| it.run_ns) / since(|it| it.sent).max(1);
        let cost = WaitCost { hits_ns: go.ns.saturating_mul(2), stack_ns };
        let cpus = u64::try_from(now.cpus.len()).unwrap_or(1);
        let budget_ns = ns.saturating_mul(cpus) / PROBE_SHARE_MAX;
        let pause_s = u64::from(PROBE_PAUSE_WINDOWS) * ns / 1_000_000_000;
        let shifts = shifts(&waits.by_process, cost, budget_ns);
        self.thinned = shifts.len() as u64;
        if !shifts.is_empty() {
            let (processes, most) = (shifts.len(), shifts.values().max().map(|shift| 1 << shift));
            tracing::info!(processes, most, "of waits for locks of Go one in so many is followed");
        }
        // Where the hits alone cost too much, thinning does not help.
        for (id, cost_ns) in too_much(waits.by_program, cost.hits_ns, budget_ns) {
            let file = id.0;
            tracing::warn!(
                file,
                cost_ns,
                pause_s,
                "the locks of a Go program are not probed for a while: they cost too much"
            );
            keeper.pause(id, PROBE_PAUSE_WINDOWS);
        }
        let cost_ns = since(|it| it.marked).saturating_mul(libc.ns);
        if cost_ns > budget_ns {
            tracing::warn!(
                cost_ns,
                pause_s,
                "the locks of C libraries are not probed for a while: they cost too much"
            );
            keeper.pause_libraries(PROBE_PAUSE_WINDOWS);
        }
        keeper.tidy(files);
        shifts
    }

    /// True if the file is probed, or will be.
    pub(super) fn is_probed(&self, id: FileId) -> bool {
        self.keeper.as_ref().is_some_and(|keeper| keeper.is_probed(id))
    }
}

/// Waits of goroutines, those included that were not followed.
#[derive(Debug, Default)]
pub(super) struct GoWaits {
    by_program: HashMap<FileId, u64>,
    by_process: HashMap<Pid, u64>,
}

impl GoWaits {
    fn add(&mut self, id: FileId, pid: Pid, weight: u32) {
        if self.by_program.len() < PROBED_FILES_MAX || self.by_program.contains_key(&id) {
            *self.by_program.entry(id).or_default() += u64::from(weight);
        }
        *self.by_process.entry(pid).or_default() += u64::from(weight);
    }
}

/// The programs whose probes cost most, until the rest is within the budget.
fn too_much(
    waits: HashMap<FileId, u64>,
    wait_ns: u64,
    budget_ns: u64,
) -> impl Iterator<Item = (FileId, u64)> {
    let mut costs: Vec<(FileId, u64)> =
        waits.into_iter().map(|(id, waits)| (id, waits.saturating_mul(wait_ns))).collect();
    costs.sort_unstable_by_key(|(id, cost_ns)| (*cost_ns, *id));
    let mut within_ns = 0_u64;
    costs.into_iter().skip_while(move |(_, cost_ns)| {
        within_ns = within_ns.saturating_add(*cost_ns);
        within_ns <= budget_ns
    })
}

impl Intake {
    /// A goroutine has the lock that it waited for. The window of its end gets what earlier ones did not.
    pub(super) fn lock_wait(&mut self, wait: &RawLockWait) {
        let RawLockWait { sample, word, since, weight } = wait;
        if !self.processes.is_tracked(sample.pid) {
            self.off_cpu.count_unwanted();
            return;
        }
        let attribution = self.processes.attribute(sample);
        let place = data_place(&attribution, *word);
        let sample = self.normalized_by(attribution, sample);
        let pid = sample.process.pid;
        if let Some(Frame::Native { file, .. }) = sample.frames.first() {
            self.go_waits.add(file.id, pid, *weight);
        }
        let facts = goroutine_facts(*word);
        let wait = WindowWait {
            process: &sample.process,
            tid: sample.tid,
            thread_name: &sample.thread_name,
            frames: &sample.frames,
            class: WaitClass::Goroutine,
            facts: Some(&facts),
            owners: Owners::default(),
            place: place.as_ref(),
            span: None,
        };
        let weight = u64::from(*weight);
        let ns = sample.time.since(self.lasting.end((pid, *word, *since))).saturating_mul(weight);
        self.window.add_wait(&wait, WaitSum { ns, count: weight });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_dearest_programs_are_left_alone() {
        let check = |waits: &[(u32, u64)], budget_ns: u64, expected: &[u32]| {
            let waits = waits.iter().map(|&(id, waits)| (FileId(id), waits)).collect();
            let left: Vec<u32> = too_much(waits, 10, budget_ns).map(|(id, _)| id.0).collect();
            assert_eq!(left, expected);
        };
        check(&[(1, 5), (2, 3)], 80, &[]);
        check(&[(1, 5), (2, 3)], 79, &[1]);
        check(&[(1, 5), (2, 3), (3, 4)], 30, &[3, 1]);
        check(&[(1, 1)], 0, &[1]);
        check(&[], 0, &[]);
    }
}
