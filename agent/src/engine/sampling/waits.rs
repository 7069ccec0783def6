//! The waits of threads on their way through the loop: records as they come, the sums of all threads when a
//! window closes.

use super::{Engine, Intake};
use crate::address::{AbsAddr, ElfAddr, Generation, Pid, Tid};
use crate::aggregate::{WaitLedger, WaitSum, Window, WindowWait};
use crate::bpf::{RawSample, RawWait, Statistics, ThreadReading};
use crate::clock::{MonotonicNs, monotonic_now};
use crate::engine::EngineError;
use crate::engine::held::Held;
use crate::engine::off_cpu::{OffCpuCounts, Piece, TakenWait};
use crate::limits::{HELD_WAIT_NS_MAX, ORDER_SLACK_NS, READING_POLLS_MAX};
use crate::normalize::{Frame, MappedFile, Marker};
use crate::process::table::Attribution;
use crate::waits::{Owners, SystemCall};
use agent_ebpf::{Outcome, WaitClass, WaitCounters, WaitingThread};
use std::sync::Arc;
use std::time::Duration;

impl Engine {
    /// Reads the sums of all threads, and takes in what was written up to then.
    pub(super) fn read_threads(&mut self) -> Result<Vec<ThreadReading>, EngineError> {
        let mut readings = Vec::new();
        if !self.options.off_cpu {
            return Ok(readings);
        }
        self.intake.threads_ended.clear();
        self.sampler.threads(&mut |reading| readings.push(reading))?;
        Ok(readings)
    }

    /// Takes in the records of waits that a reading may know of already.
    pub(super) fn wait_for_records(
        &mut self,
        readings: &[ThreadReading],
    ) -> Result<(), EngineError> {
        let Some(last) = readings.last() else { return Ok(()) };
        for _ in 0..READING_POLLS_MAX {
            if self.sampler.complete_until() >= last.after {
                break;
            }
            self.poll(Duration::from_nanos(ORDER_SLACK_NS))?;
        }
        Ok(())
    }

    /// Walks the stacks of waits on, whose tables came. One whose tables do not come stays as it is.
    pub(super) fn walk_held_waits(&mut self) {
        let now = monotonic_now();
        for mut held in self.intake.held_waits.take() {
            let last = now >= held.until;
            let Some(whole) = self.try_held(&mut held, now, last) else {
                self.intake.held_waits.keep(held);
                continue;
            };
            self.intake.held_waits.let_go(&held.sample, whole);
            let sample = self.intake.normalized(&held.sample);
            self.intake.off_cpu.walked_on(sample);
        }
    }

    /// Processes that may have threads which wait since before.
    pub(super) fn pids_before(&self) -> Vec<Pid> {
        if !self.options.off_cpu {
            return Vec::new();
        }
        let pids = self.intake.processes.existing();
        pids.inspect_err(|error| tracing::warn!(%error, "who waits already is not known"))
            .unwrap_or_default()
    }

    /// What was waited for up to now is of no window: before the first one begins.
    pub(super) fn forget_earlier_waits(&mut self) -> Result<(), EngineError> {
        let readings = self.read_threads()?;
        self.wait_for_records(&readings)?;
        let intake = &mut self.intake;
        intake.off_cpu.begin_reading(&readings);
        for reading in readings.iter().filter(|it| !intake.threads_ended.contains(&it.tid)) {
            intake.off_cpu.read(reading, &mut |_, _| {});
        }
        self.waits_before = self.intake.off_cpu.counts();
        Ok(())
    }
}

impl Intake {
    /// A thread left its CPU, and its stack was taken.
    pub(super) fn wait(&mut self, wait: RawWait) {
        let RawWait { sample, class, chance, facts, words } = wait;
        if !self.processes.is_tracked(sample.pid) {
            self.off_cpu.count_unwanted();
            return;
        }
        let attribution = self.processes.attribute(&sample);
        let is_futex = matches!(class, WaitClass::Futex | WaitClass::Lock);
        let word = is_futex.then_some(AbsAddr(facts.arguments[0]));
        let place = word.and_then(|word| data_place(&attribution, word));
        let normalized = self.normalized_by(attribution, &sample);
        let mut owners = Owners::default();
        if is_futex {
            // Now, because the process may be over when the window closes.
            let process = normalized.process.key();
            let inner = &mut self.inner_threads;
            let lookup = |number| inner.thread(process, number).filter(|tid| *tid != sample.tid);
            owners = Owners::of(SystemCall::from(&facts), &words).threads(lookup);
        }
        let taken = TakenWait { sample: normalized, class, facts, owners, place };
        self.off_cpu.taken(taken, chance);
        if Held::may_become_whole(&sample) {
            let until = monotonic_now().plus(HELD_WAIT_NS_MAX);
            let _no_room_is_counted = self.held_waits.offer_until(sample, until);
        }
    }

    /// A thread is over.
    pub(super) fn thread_ended(&mut self, tid: Tid, time: MonotonicNs, sums: &WaitingThread) {
        self.threads_ended.insert(tid);
        let mut pieces = Vec::new();
        self.off_cpu.thread_ended(tid, time, sums, &mut |piece, sum| {
            pieces.push((piece, sum));
        });
        self.add_pieces(time, pieces);
    }

    /// Puts what was waited since the last window into this one.
    pub(super) fn add_waits(&mut self, readings: &[ThreadReading]) {
        self.off_cpu.begin_reading(readings);
        self.inner_threads.begin();
        for reading in readings {
            if self.threads_ended.contains(&reading.tid) {
                continue; // it told the rest itself
            }
            let mut pieces = Vec::new();
            self.off_cpu.read(reading, &mut |piece, sum| {
                pieces.push((piece, sum));
            });
            self.add_pieces(reading.before, pieces);
        }
        self.off_cpu.end_reading();
    }

    fn add_pieces(&mut self, time: MonotonicNs, pieces: Vec<(Piece, WaitSum)>) {
        for (piece, sum) in pieces {
            match piece {
                Piece::Taken { wait, from, until } => {
                    let pid = wait.sample.process.pid;
                    let known = |number| {
                        Some(Tid(number)).filter(|tid| self.off_cpu.is_thread_of(*tid, pid))
                    };
                    let owners = wait.owners.threads(known);
                    add_taken(&mut self.window, (&wait, owners), (from, until), sum);
                }
                Piece::NotTaken { pid, tid, comm, class } => {
                    self.add_not_taken((pid, tid, comm), class, time, sum);
                }
            }
        }
    }

    fn add_not_taken(
        &mut self,
        (pid, tid, comm): (Pid, Tid, [u8; 16]),
        class: WaitClass,
        time: MonotonicNs,
        sum: WaitSum,
    ) {
        if !self.processes.is_tracked(pid) {
            self.off_cpu.take_back_unwanted(sum);
            return;
        }
        let sample = RawSample {
            cpu: 0,
            pid,
            tid,
            time,
            cgroup_id: 0,
            generation: Generation(0),
            outcome: Outcome::NotSampled,
            run_ns: 0,
            comm: crate::bpf::until_nul(&comm).to_vec(),
            kernel: Vec::new(),
            user: Vec::new(),
            root_frames: 0,
            stack: None,
        };
        let process = self.processes.attribute_held(&sample).process;
        let thread_name = self.thread_name(&sample.comm);
        let frames = [Frame::Marker(Marker::Stopped(Outcome::NotSampled))];
        let (process, thread_name) = (&process, &thread_name);
        let wait = WindowWait {
            process,
            tid,
            thread_name,
            frames: &frames,
            class,
            facts: None,
            owners: Owners::default(),
            place: None,
            span: None,
        };
        self.window.add_wait(&wait, sum);
    }
}

/// The variable of a file that lies at an address of a process.
pub(super) fn data_place(
    attribution: &Attribution,
    address: AbsAddr,
) -> Option<(Arc<MappedFile>, ElfAddr)> {
    let (file, place) = attribution.mappings.as_ref()?.locate_data(address)?;
    Some((Arc::clone(file), place))
}

fn add_taken(
    window: &mut Window,
    (taken, owners): (&TakenWait, Owners),
    span: (MonotonicNs, MonotonicNs),
    sum: WaitSum,
) {
    let TakenWait { sample, class, facts, place, .. } = taken;
    let wait = WindowWait {
        process: &sample.process,
        tid: sample.tid,
        thread_name: &sample.thread_name,
        frames: &sample.frames,
        class: *class,
        facts: Some(facts),
        owners,
        place: place.as_ref(),
        span: Some(span),
    };
    window.add_wait(&wait, sum);
}

/// The account of waits between two readings of the programs' counters and of the engine's.
pub(super) fn closed(
    (before, now): (&Statistics, &Statistics),
    (told_before, told): (&OffCpuCounts, &OffCpuCounts),
) -> WaitLedger {
    let old = before.waits.unwrap_or_default();
    let new = now.waits.unwrap_or_default();
    let since = |of: fn(&WaitCounters) -> u64| of(&new).saturating_sub(of(&old));
    let timed = since(|it| it.timed).max(1);
    let others = since(|it| it.switches).saturating_sub(since(|it| it.stacks));
    let others_ns = since(|it| it.timed_ns).saturating_mul(others) / timed;
    WaitLedger {
        switches: since(|it| it.switches),
        ended: since(|it| it.waits),
        ns: told.ns.saturating_sub(told_before.ns),
        not_sampled_ns: told.ns_not_taken.saturating_sub(told_before.ns_not_taken),
        dropped_ns: 0,
        stacks: since(|it| it.stacks),
        stacks_held: since(|it| it.stacks_held),
        stacks_lost: since(|it| it.stacks_lost),
        ends_lost: since(|it| it.ends_lost).saturating_add(since(|it| it.threads_lost)),
        ends_unseen: since(|it| it.ends_unseen),
        threads_refused: since(|it| it.threads_refused),
        unbelievable: since(|it| it.negative).saturating_add(since(|it| it.absurd)),
        malformed: now.waits_malformed.saturating_sub(before.waits_malformed),
        program_run_ns: since(|it| it.stacks_ns).saturating_add(others_ns),
    }
}
