//! What the engine knows of threads that wait: their sums up to the last window, the waits whose stack was taken,
//! and what of both belongs into the window that closes. A thread's time is exact, from the sums of the kernel
//! side; the stacks taken say where it went ([`shares`]).
//!
//! The sums only grow, so a window gets what they grew by. A wait that lasts counts up to now.

mod shares;
#[cfg(test)]
mod tests;

use crate::address::{ElfAddr, Pid, Tid};
use crate::aggregate::WaitSum;
use crate::bpf::ThreadReading;
use crate::clock::MonotonicNs;
use crate::limits::{READINGS_WITHOUT_THREAD_MAX, WAIT_THREADS_MAX, WAITS_PER_THREAD_MAX};
use crate::normalize::{MappedFile, NormalizedSample};
use crate::waits::Owners;
use agent_ebpf::wait::WAIT_CLASSES;
use agent_ebpf::{ClassTotals, WaitClass, WaitFacts, WaitingThread};
use hashbrown::HashMap;
use shares::{Part, share_out};
use std::collections::VecDeque;
use std::sync::Arc;

/// A wait whose stack was taken.
#[derive(Debug)]
pub(crate) struct TakenWait {
    /// Who waits, where, since when.
    pub(crate) sample: NormalizedSample,
    /// Its class.
    pub(crate) class: WaitClass,
    /// All that the kernel side knows of it.
    pub(crate) facts: WaitFacts,
    /// Threads that may hold what it waits for.
    pub(crate) owners: Owners,
    /// The variable of a file that the word is.
    pub(crate) place: Option<(Arc<MappedFile>, ElfAddr)>,
}

/// What a window gets of a thread.
#[derive(Debug)]
pub(crate) enum Piece {
    /// With a stack.
    Taken {
        /// The wait.
        wait: Arc<TakenWait>,
        /// From when on it is of this window.
        from: MonotonicNs,
        /// Up to when.
        until: MonotonicNs,
    },
    /// Of waits of which no stack was taken.
    NotTaken {
        /// Process.
        pid: Pid,
        /// Thread.
        tid: Tid,
        /// Its name, raw.
        comm: [u8; 16],
        /// Their class.
        class: WaitClass,
    },
}

/// What happened so far, for the metrics and the account of a window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OffCpuCounts {
    /// Threads known.
    pub threads: u64,
    /// Stacks that came.
    pub stacks: u64,
    /// Waits whose end was not told: lost, or of a thread that was gone.
    pub ends_missed: u64,
    /// Stacks not kept, because a limit of threads or of waits of one was reached.
    pub refused: u64,
    /// Times that a thread's waits did not come into a window, but are to come into a later one, because of the limit of
    /// threads.
    pub threads_refused: u64,
    /// Threads, or whole processes, that may wait since before the agent came and could not be looked at.
    pub before_refused: u64,
    /// Waits with a stack, and of goroutines, of processes that were not asked for.
    pub unwanted: u64,
    /// Nanoseconds of waits of such processes without a stack.
    pub unwanted_ns: u64,
    /// Waits of which no holder was looked for, because a window was full.
    pub spans_dropped: u64,
    /// Nanoseconds in windows.
    pub ns: u64,
    /// Of these, without a stack.
    pub ns_not_taken: u64,
}

/// All threads.
#[derive(Debug, Default)]
pub(crate) struct OffCpu {
    threads: HashMap<Tid, Thread>,
    /// Threads that ended since the last reading, and their processes: others of those may end after them.
    gone: HashMap<Tid, u32>,
    /// Number of the reading that goes on.
    reading: u64,
    counts: OffCpuCounts,
}

#[derive(Debug, Default)]
struct Thread {
    /// Its process; 0 if it is not known.
    tgid: u32,
    /// What earlier windows got, by class.
    told: [WaitSum; WAIT_CLASSES],
    /// In the order of their times; only the last may last.
    waits: VecDeque<Wait>,
    /// The last reading that had it.
    reading: u64,
}

#[derive(Debug)]
struct Wait {
    taken: Arc<TakenWait>,
    chance: u32,
    end: Option<MonotonicNs>,
    /// Up to here earlier windows got it.
    told: MonotonicNs,
}

impl Wait {
    fn since(&self) -> MonotonicNs {
        self.taken.sample.time
    }
}

/// One class of a thread while its window closes.
#[derive(Debug, Default)]
struct ClassSums {
    waits: Vec<(Arc<TakenWait>, [MonotonicNs; 2])>,
    parts: Vec<Part>,
}

impl OffCpu {
    pub(crate) fn counts(&self) -> OffCpuCounts {
        OffCpuCounts { threads: self.threads.len() as u64, ..self.counts }
    }

    /// A stack was taken.
    pub(crate) fn taken(&mut self, taken: TakenWait, chance: u32) {
        self.counts.stacks += 1;
        let full = self.threads.len() >= WAIT_THREADS_MAX;
        let (tid, tgid) = (taken.sample.tid, taken.sample.process.pid.0);
        if full && !self.threads.contains_key(&tid) {
            self.counts.refused += 1;
            return;
        }
        let reading = self.reading;
        let thread = self.threads.entry(tid).or_insert_with(|| Thread {
            tgid,
            reading,
            ..Thread::default()
        });
        if thread.waits.back().is_some_and(|last| last.end.is_none()) {
            thread.waits.pop_back();
            self.counts.ends_missed += 1;
        }
        if thread.waits.len() >= WAITS_PER_THREAD_MAX {
            self.counts.refused += 1;
            return;
        }
        let told = taken.sample.time;
        thread.waits.push_back(Wait { taken: Arc::new(taken), chance, end: None, told });
    }

    /// More of the stack of a wait is known. Windows that closed before have what was known then.
    pub(crate) fn walked_on(&mut self, sample: NormalizedSample) {
        let Some(thread) = self.threads.get_mut(&sample.tid) else { return };
        let same = |wait: &&mut Wait| wait.since() == sample.time;
        if let Some(wait) = thread.waits.iter_mut().find(same) {
            let TakenWait { class, facts, owners, .. } = *wait.taken;
            let place = wait.taken.place.clone();
            wait.taken = Arc::new(TakenWait { sample, class, facts, owners, place });
        }
    }

    /// A wait whose stack was taken is over.
    pub(crate) fn ended(&mut self, tid: Tid, since: MonotonicNs, end: MonotonicNs) {
        let last = self.threads.get_mut(&tid).and_then(|thread| thread.waits.back_mut());
        if let Some(wait) = last.filter(|wait| wait.since() == since) {
            wait.end = Some(end);
        }
    }

    /// Begins to read all threads.
    pub(crate) fn begin_reading(&mut self, readings: &[ThreadReading]) {
        self.reading += 1;
        for ThreadReading { tid, thread, .. } in readings {
            if let Some(known) = self.threads.get_mut(tid) {
                known.tgid = thread.tgid;
            } else if self.threads.len() < WAIT_THREADS_MAX {
                let (tgid, reading) = (thread.tgid, self.reading);
                self.threads.insert(*tid, Thread { tgid, reading, ..Thread::default() });
            }
        }
    }

    /// True for a thread that waited once, of this process.
    pub(crate) fn is_thread_of(&self, tid: Tid, pid: Pid) -> bool {
        let living = self.threads.get(&tid).map(|thread| thread.tgid);
        [living, self.gone.get(&tid).copied()].contains(&Some(pid.0))
    }

    /// So many times of waits found no room in a window.
    pub(crate) fn count_spans_dropped(&mut self, dropped: u64) {
        self.counts.spans_dropped = self.counts.spans_dropped.saturating_add(dropped);
    }

    /// So many that may wait since before could not be looked at.
    pub(crate) fn count_before_refused(&mut self, refused: u64) {
        self.counts.before_refused = self.counts.before_refused.saturating_add(refused);
    }

    /// A wait is of a process that was not asked for.
    pub(crate) fn count_unwanted(&mut self) {
        self.counts.unwanted += 1;
    }

    /// What a window was to get without a stack is of such a process.
    pub(crate) fn take_back_unwanted(&mut self, sum: WaitSum) {
        let OffCpuCounts { ns, ns_not_taken, unwanted_ns, .. } = &mut self.counts;
        *ns = ns.saturating_sub(sum.ns);
        *ns_not_taken = ns_not_taken.saturating_sub(sum.ns);
        *unwanted_ns = unwanted_ns.saturating_add(sum.ns);
    }

    /// What the window gets of one thread.
    pub(crate) fn read(&mut self, reading: &ThreadReading, each: &mut impl FnMut(Piece, WaitSum)) {
        let full = self.threads.len() >= WAIT_THREADS_MAX;
        if full && !self.threads.contains_key(&reading.tid) {
            self.counts.threads_refused += 1;
            return;
        }
        let thread = self.threads.entry(reading.tid).or_default();
        thread.reading = self.reading;
        thread.close(reading, &mut self.counts, each);
    }

    /// A thread is over: the window gets the rest of it.
    pub(crate) fn thread_ended(
        &mut self,
        tid: Tid,
        time: MonotonicNs,
        sums: &WaitingThread,
        each: &mut impl FnMut(Piece, WaitSum),
    ) {
        let mut thread = self.threads.remove(&tid).unwrap_or_default();
        if self.gone.len() < WAIT_THREADS_MAX {
            self.gone.insert(tid, sums.tgid);
        }
        let reading = ThreadReading { tid, thread: *sums, before: time, after: time };
        thread.close(&reading, &mut self.counts, each);
    }

    /// Drops threads that are in the map no more and left no last word.
    pub(crate) fn end_reading(&mut self) {
        self.gone.clear();
        let reading = self.reading;
        let counts = &mut self.counts;
        self.threads.retain(|_, thread| {
            let keep = reading.saturating_sub(thread.reading) < READINGS_WITHOUT_THREAD_MAX;
            if !keep {
                counts.ends_missed += thread.waits.len() as u64;
            }
            keep
        });
    }
}

impl Thread {
    /// Hands out what came since the last window.
    fn close(
        &mut self,
        reading: &ThreadReading,
        counts: &mut OffCpuCounts,
        each: &mut impl FnMut(Piece, WaitSum),
    ) {
        // Another thread has the number, whose end was not told.
        let fell = |(told, now): (&WaitSum, &ClassTotals)| told.count > now.count;
        if self.told.iter().zip(&reading.thread.sums).any(fell) {
            self.told = Default::default();
        }
        let mut classes: [ClassSums; WAIT_CLASSES] = Default::default();
        self.cut(reading, &mut classes, counts);
        for class in WaitClass::ALL {
            let number = class as usize;
            let ClassSums { waits, mut parts } = std::mem::take(&mut classes[number]);
            let rest = self.rest(reading, class, &parts);
            let left = share_out(&mut parts, rest);
            for ((wait, [from, until]), part) in waits.into_iter().zip(parts) {
                if part.sum != WaitSum::default() {
                    counts.ns = counts.ns.saturating_add(part.sum.ns);
                    each(Piece::Taken { wait, from, until }, part.sum);
                }
            }
            if left != WaitSum::default() {
                counts.ns = counts.ns.saturating_add(left.ns);
                counts.ns_not_taken = counts.ns_not_taken.saturating_add(left.ns);
                let WaitingThread { tgid, comm, .. } = reading.thread;
                let (pid, tid) = (Pid(tgid), reading.tid);
                each(Piece::NotTaken { pid, tid, comm, class }, left);
            }
        }
    }

    /// The time of the class that no taken wait explains.
    fn rest(&mut self, reading: &ThreadReading, class: WaitClass, parts: &[Part]) -> WaitSum {
        let thread = &reading.thread;
        let number = class as usize;
        let lasts = thread.since_ns != 0 && thread.class == class as u32;
        let lasting_ns = if lasts { reading.before.since(MonotonicNs(thread.since_ns)) } else { 0 };
        let (told, sums) = (&mut self.told[number], thread.sums[number]);
        let grown = WaitSum {
            ns: sums.ns.saturating_add(lasting_ns).saturating_sub(told.ns),
            count: sums.count.saturating_sub(told.count),
        };
        let mut taken = WaitSum::default();
        parts.iter().for_each(|part| taken.add(part.sum));
        let count = grown.count.saturating_sub(taken.count);
        // Where every wait was taken, the parts are the truth to the nanosecond, and a difference only says
        // that the thread went on while it was read: the next window has it.
        let others = count > 0 || lasts && thread.sampled == 0;
        let ns = if others { grown.ns.saturating_sub(taken.ns) } else { 0 };
        told.ns = told.ns.saturating_add(taken.ns).saturating_add(ns);
        told.count = told.count.saturating_add(taken.count).saturating_add(count);
        WaitSum { ns, count }
    }

    /// Cuts the taken waits at the time of the reading, by class.
    fn cut(
        &mut self,
        reading: &ThreadReading,
        classes: &mut [ClassSums; WAIT_CLASSES],
        counts: &mut OffCpuCounts,
    ) {
        let now = reading.before;
        let lasting = MonotonicNs(reading.thread.since_ns);
        self.waits.retain_mut(|wait| {
            let since = wait.since();
            let lasts = since == lasting;
            if since > now && !lasts {
                return true; // of the next window
            }
            let ended = wait.end.filter(|end| !lasts && *end <= reading.after);
            let until = match (ended, wait.end) {
                (Some(end), _) => end,
                (None, None) if !lasts => {
                    counts.ends_missed += 1;
                    return false;
                }
                (None, _) => now,
            };
            let sum = WaitSum { ns: until.since(wait.told), count: u64::from(ended.is_some()) };
            let class = &mut classes[wait.taken.class as usize];
            class.waits.push((Arc::clone(&wait.taken), [wait.told, until]));
            class.parts.push(Part { sum, chance: wait.chance });
            wait.told = wait.told.max(until);
            ended.is_none()
        });
    }
}
