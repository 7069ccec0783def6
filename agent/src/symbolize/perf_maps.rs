//! Names of code that a program made while it ran, from its perf map. Shared by two threads: the one that
//! names windows asks for names, the engine says which processes run such code and asks where `CPython`'s
//! trampolines are, which have no call frame information. Reads on threads of its own alone: a map lies where its
//! process may have mounted a file system that does not answer. One that is stuck is replaced.
//!
//! A map names what its process ran, not what it says elsewhere: only addresses that no file backs are
//! asked for.

mod readers;
mod reading;
mod regions;
mod shown;
mod trampolines;

use super::UnnamedReason;
use crate::address::{AbsAddr, Pid};
use crate::clock::{MonotonicNs, UnixNs, WallOffset, monotonic_now};
use crate::elf::SourceLine;
use crate::limits::{
    PERF_MAP_EXECS_MAX, PERF_MAP_LOOK_INTERVAL_NS_MIN, PERF_MAPS_BYTES_MAX, PERF_MAPS_MAX,
    PERF_MAPS_READ_BYTES_PER_SECOND_MAX, START_TOLERANCE_NS,
};
use crate::normalize::ProcessKey;
use crate::process::host::ProcFs;
use hashbrown::HashMap;
use readers::Readers;
use reading::{Budget, PerfMap};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

/// What happened so far, for the metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PerfMapCounts {
    /// Maps held now.
    pub maps: u64,
    /// Named ranges in them.
    pub entries: u64,
    /// Memory that they take, bytes.
    pub bytes: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Lines that were no entries.
    pub malformed: u64,
    /// Entries that did not fit, and reads put off, for a limit.
    pub left_out: u64,
    /// Maps not used: another user's, or older than their process.
    pub refused: u64,
    /// Maps forgotten to make room.
    pub evicted: u64,
    /// Times of execs forgotten to make room.
    pub execs_forgotten: u64,
    /// Threads that wait now for a map that does not answer.
    pub stuck: u64,
}

/// The perf maps of this host's processes.
#[derive(Debug)]
pub struct PerfMaps {
    shared: Arc<Shared>,
    readers: Readers,
}

#[derive(Debug)]
struct Shared {
    host: ProcFs,
    state: Mutex<State>,
    /// What the engine needs: its lock is never held while a file is read.
    sightings: Mutex<Sightings>,
}

#[derive(Debug, Default)]
struct State {
    slots: HashMap<ProcessKey, Slot>,
    clock: u64,
    budget: Budget,
    /// Of maps that are gone, and what belongs to none.
    counts: PerfMapCounts,
}

/// A program that a process runs: an exec replaces all code, and the map of the one before stays where it lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Program {
    process: ProcessKey,
    /// When it was executed, if the kernel told: by the wall clock of that time, which files are dated by.
    executed: Option<UnixNs>,
}

#[derive(Debug, Default)]
struct Slot {
    /// [`Program::executed`] of the program whose map it is.
    executed: Option<UnixNs>,
    map: Arc<Mutex<PerfMap>>,
    used: u64,
    weight: usize,
}

/// Ranges of code, ascending.
type Trampolines = Arc<[(AbsAddr, AbsAddr)]>;

#[derive(Debug, Default)]
struct Sightings {
    /// When a process was asked for last.
    asked: HashMap<ProcessKey, MonotonicNs>,
    trampolines: HashMap<Pid, (ProcessKey, Trampolines)>,
    /// When a living process executed its program.
    executed: HashMap<Pid, UnixNs>,
    execs_forgotten: u64,
    /// Whose trampolines changed.
    changed: Vec<Pid>,
}

impl PerfMaps {
    /// Reads processes beneath `proc_root`; starts the thread that reads, which ends when this is dropped.
    ///
    /// # Errors
    /// If the kernel gives no thread.
    pub fn start(proc_root: PathBuf) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            host: ProcFs::new(proc_root),
            state: Mutex::default(),
            sightings: Mutex::default(),
        });
        let reader = Arc::clone(&shared);
        let readers = Readers::start(move |process| reader.look(process))?;
        Ok(Self { shared, readers })
    }

    /// The engine saw a process run code that no file backs. Returns at once.
    pub fn sighted(&self, process: ProcessKey) {
        let now = monotonic_now();
        let mut sightings = self.shared.sightings();
        if sightings.asked.len() >= PERF_MAPS_MAX {
            sightings.asked.clear();
        }
        let asked = sightings.asked.entry(process).or_insert(MonotonicNs(0));
        if now.since(*asked) >= PERF_MAP_LOOK_INTERVAL_NS_MIN {
            *asked = now;
            // A full queue: the process is asked for again with its next sample.
            drop(sightings);
            self.readers.ask(process);
        }
    }

    /// Where the trampolines of a process are, as far as its map was read.
    #[must_use]
    pub fn trampolines(&self, process: ProcessKey) -> Option<Arc<[(AbsAddr, AbsAddr)]>> {
        let sightings = self.shared.sightings();
        let (of, trampolines) = sightings.trampolines.get(&process.pid)?;
        let same = of.start_time_ns.abs_diff(process.start_time_ns) <= START_TOLERANCE_NS;
        same.then(|| Arc::clone(trampolines))
    }

    /// The kernel says that a process executed a program at `time`: what its map said is over.
    pub fn executed(&self, pid: Pid, time: MonotonicNs) {
        // Now, not when it is needed: the wall clock may step, and the host may sleep.
        let time = WallOffset::read().to_unix(time);
        let mut sightings = self.shared.sightings();
        if sightings.executed.len() >= PERF_MAP_EXECS_MAX {
            sightings.execs_forgotten += sightings.executed.len() as u64;
            sightings.executed.clear();
        }
        sightings.executed.insert(pid, time);
        sightings.trampolines.remove(&pid);
    }

    /// The kernel says that a process has ended. If only its main thread has, the rest is found again.
    pub fn ended(&self, pid: Pid) {
        let mut sightings = self.shared.sightings();
        sightings.executed.remove(&pid);
        sightings.trampolines.remove(&pid);
    }

    /// The processes whose trampolines changed since this was asked the last time.
    #[must_use]
    pub fn take_changed(&self) -> Vec<Pid> {
        std::mem::take(&mut self.shared.sightings().changed)
    }

    /// Names addresses of code that no file backs, one answer for each. What the process wrote since the last time
    /// is read before, if it answers.
    #[must_use]
    pub fn names(
        &self,
        process: ProcessKey,
        addresses: &[AbsAddr],
    ) -> Vec<Result<Vec<SourceLine>, UnnamedReason>> {
        // The engine may have it read again at once, and that may take for ever.
        for _ in 0..2 {
            if !self.readers.read(process) {
                break;
            }
            let program = self.shared.program(process);
            let (map, _) = self.shared.map(program, monotonic_now());
            let map = match map.try_lock() {
                Ok(map) => map,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => continue,
            };
            let named = |&address| map.name(address).map(|line| vec![line]);
            return addresses.iter().map(named).collect();
        }
        vec![Err(UnnamedReason::NotReadable); addresses.len()]
    }

    /// What happened so far.
    #[must_use]
    pub fn counts(&self) -> PerfMapCounts {
        let state = self.shared.state();
        let mut counts = state.counts;
        for slot in state.slots.values().filter(|slot| slot.weight > 0) {
            counts.maps += 1;
            counts.bytes = counts.bytes.saturating_add(slot.weight as u64);
        }
        counts.execs_forgotten = self.shared.sightings().execs_forgotten;
        counts.stuck = self.readers.stuck();
        counts
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sightings(&self) -> MutexGuard<'_, Sightings> {
        self.sightings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the map of a process and finds its trampolines. Only on the thread of perf maps: the code is read
    /// at addresses that the process states.
    fn look(&self, process: ProcessKey) {
        let program = self.program(process);
        let map = self.read(program);
        let ranges = map.lock().unwrap_or_else(PoisonError::into_inner).python_ranges();
        let trampolines = trampolines::known(&self.host, process, ranges);
        let mut sightings = self.sightings();
        // It executed another program meanwhile.
        if sightings.executed.get(&process.pid).copied() != program.executed {
            return;
        }
        let known = sightings.trampolines.get(&process.pid).filter(|(of, _)| *of == process);
        if known.map_or(&[][..], |(_, known)| known) != trampolines {
            sightings.trampolines.insert(process.pid, (process, trampolines.into()));
            sightings.changed.push(process.pid);
        }
    }

    /// What a process runs now.
    fn program(&self, process: ProcessKey) -> Program {
        Program { process, executed: self.sightings().executed.get(&process.pid).copied() }
    }

    /// The map of a process, and how many bytes of it may be read now.
    fn map(&self, program: Program, now: MonotonicNs) -> (Arc<Mutex<PerfMap>>, u64) {
        let mut state = self.state();
        state.clock += 1;
        let used = state.clock;
        let slot = state.slots.entry(program.process).or_default();
        // The end of a process is told before it is asked for the last time: that is no exec.
        if program.executed.is_some() && slot.executed != program.executed {
            *slot = Slot { executed: program.executed, ..Slot::default() };
        }
        slot.used = used;
        let map = Arc::clone(&slot.map);
        (map, state.budget.of(now, PERF_MAPS_READ_BYTES_PER_SECOND_MAX))
    }

    /// The map of a process, read as far as is due.
    fn read(&self, program: Program) -> Arc<Mutex<PerfMap>> {
        let process = program.process;
        let now = monotonic_now();
        let (shared_map, mut budget) = self.map(program, now);
        let mut map = shared_map.lock().unwrap_or_else(PoisonError::into_inner);
        let given = budget;
        let Some(counts) = map.read(&self.host, program, now, &mut budget) else {
            drop(map);
            return shared_map;
        };
        let weight = map.weight();
        drop(map);
        let evicted = {
            let mut state = self.state();
            state.budget.spend(given - budget);
            state.counts.add(&counts);
            if let Some(slot) = state.slots.get_mut(&process) {
                slot.weight = weight;
            }
            state.make_room(process)
        };
        let mut sightings = self.sightings();
        for gone in evicted {
            sightings.trampolines.remove(&gone.pid);
        }
        drop(sightings);
        shared_map
    }
}

impl State {
    /// Forgets the least recently used maps until the rest fits; `kept` stays. Answers whose they were.
    fn make_room(&mut self, kept: ProcessKey) -> Vec<ProcessKey> {
        let mut bytes: usize = self.slots.values().map(|slot| slot.weight).sum();
        if self.slots.len() <= PERF_MAPS_MAX && bytes <= PERF_MAPS_BYTES_MAX {
            return Vec::new();
        }
        let mut by_use: Vec<(u64, ProcessKey)> =
            self.slots.iter().map(|(key, slot)| (slot.used, *key)).collect();
        by_use.sort_unstable();
        let mut evicted = Vec::new();
        // A sixteenth at once, so that the list is not sorted for each new process.
        let few = PERF_MAPS_MAX - PERF_MAPS_MAX / 16;
        for (_, key) in by_use.into_iter().filter(|(_, key)| *key != kept) {
            if self.slots.len() <= few && bytes <= PERF_MAPS_BYTES_MAX {
                break;
            }
            if let Some(slot) = self.slots.remove(&key) {
                bytes = bytes.saturating_sub(slot.weight);
                self.counts.evicted += u64::from(slot.weight > 0);
                evicted.push(key);
            }
        }
        evicted
    }
}

impl PerfMapCounts {
    fn add(&mut self, other: &Self) {
        let Self { entries, read_bytes, malformed, left_out, refused, evicted, .. } = other;
        for (sum, value) in [
            (&mut self.entries, entries),
            (&mut self.read_bytes, read_bytes),
            (&mut self.malformed, malformed),
            (&mut self.left_out, left_out),
            (&mut self.refused, refused),
            (&mut self.evicted, evicted),
        ] {
            *sum = sum.saturating_add(*value);
        }
    }
}

/// Takes the text of a perf map in two pieces, as it is read while its program writes it, and names
/// every address at the border of a region.
#[cfg(fuzzing)]
pub(crate) fn take_text(text: &[u8], first: usize) {
    let mut map = regions::Regions::default();
    let taken = map.take(text.get(..first).unwrap_or(text));
    map.take(text.get(taken..).unwrap_or_default());
    let ranges = map.ranges(usize::MAX, |_| true);
    assert!(ranges.is_sorted_by(|a, b| a.1 <= b.0), "regions overlap");
    for (start, end) in ranges {
        assert!(start < end && map.find(start).is_some(), "a region without its name");
        for address in [start, end - 1, end] {
            std::hint::black_box(map.find(address).map(|name| name.line()));
        }
    }
}

#[cfg(test)]
mod tests;
