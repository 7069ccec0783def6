//! The programs of Go's locks: loads them, attaches them to files, and reads what they write. Where a file is to
//! be probed, `probes` says.

use super::loader;
use super::probe_programs::ProbePrograms;
use super::user_probe::{Attached, ProbeProgram};
use super::{BpfError, Record, WaitingGoroutine, decode, raw};
use crate::address::{AbsAddr, FileOffset, Pid, Tid};
use crate::clock::MonotonicNs;
use crate::limits::{POLL_RECORDS_MAX, THREADS_PER_READING};
use crate::probes::ProbedFunction;
use agent_ebpf::lock::{Goroutine, LockFacts};
use aya::Ebpf;
use aya::maps::{HashMap, IterableMap as _, MapData, RingBuf};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::Arc;

/// The maps of the programs.
pub(super) struct GoLocks {
    records: RingBuf<MapData>,
    goroutines: HashMap<MapData, Goroutine, LockFacts>,
    thin: HashMap<MapData, u32, u32>,
    probes: LockProbes,
}

/// Attaches the programs. Works on its own: attaching takes its time. Clones share the programs.
#[derive(Clone, Debug)]
pub struct LockProbes {
    enter: Arc<ProbeProgram>,
    leave: Arc<ProbeProgram>,
}

impl GoLocks {
    /// Loads the programs. A kernel that refuses them costs this feature alone.
    pub(super) fn load(ebpf: &mut Ebpf, programs: &ProbePrograms) -> Result<Self, BpfError> {
        let enter = Arc::new(programs.load(ebpf, "go_lock_enter")?);
        let leave = Arc::new(programs.load(ebpf, "go_lock_return")?);
        Ok(Self {
            records: loader::take_map(ebpf, "LOCK_WAITS")?,
            goroutines: loader::take_map(ebpf, "GOROUTINES")?,
            thin: loader::take_map(ebpf, "THIN")?,
            probes: LockProbes { enter, leave },
        })
    }

    /// What attaches the programs.
    pub(super) fn probes(&self) -> LockProbes {
        self.probes.clone()
    }

    /// Takes what is in the ring; answers how many records were damaged.
    pub(super) fn drain(&mut self, each: &mut impl FnMut(MonotonicNs, Record)) -> u64 {
        let mut malformed = 0;
        for _ in 0..POLL_RECORDS_MAX {
            let Some(item) = self.records.next() else { break };
            match decode::lock_wait(&item) {
                Some(wait) => each(wait.sample.time, Record::LockWait(wait)),
                None => malformed += 1,
            }
        }
        malformed
    }

    /// Goroutines that wait now.
    pub(super) fn waiting(&self, each: &mut dyn FnMut(WaitingGoroutine)) -> Result<(), BpfError> {
        let map = self.goroutines.map().fd().as_fd();
        let mut reading = raw::Batches::<Goroutine, LockFacts>::new(THREADS_PER_READING);
        loop {
            let more = reading.next(map)?;
            reading.entries().filter_map(waiting).for_each(&mut *each);
            if !more {
                return Ok(());
            }
        }
    }

    /// One of them is gone, and no probe told of it.
    pub(super) fn forget(&mut self, waiting: &WaitingGoroutine) {
        let _gone_already = self.goroutines.remove(&waiting.key);
    }

    /// Follows one wait of so many, as a power of two, in these processes, and all in others.
    pub(super) fn thin(&mut self, shifts: &hashbrown::HashMap<Pid, u32>) -> Result<(), BpfError> {
        let before: Vec<u32> = self.thin.keys().flatten().collect();
        for pid in before.iter().filter(|pid| !shifts.contains_key(&Pid(**pid))) {
            self.thin.remove(pid).map_err(BpfError::map("THIN"))?;
        }
        for (pid, shift) in shifts {
            self.thin.insert(pid.0, shift, 0).map_err(BpfError::map("THIN"))?;
        }
        Ok(())
    }
}

/// An entry of the map; `None` if its process id is none.
fn waiting((&key, facts): (&Goroutine, &LockFacts)) -> Option<WaitingGoroutine> {
    let LockFacts { word, since_ns, ip, tid, weight } = *facts;
    Some(WaitingGoroutine {
        key,
        pid: Pid(u32::try_from(key.tgid).ok()?),
        tid: Tid(tid),
        word: AbsAddr(word),
        ip: AbsAddr(ip),
        since: MonotonicNs(since_ns),
        weight,
    })
}

impl LockProbes {
    /// True if all places of a file cost no more than one.
    #[must_use]
    pub fn are_linked(&self) -> bool {
        self.enter.is_linked() && self.leave.is_linked()
    }

    /// Probes these functions of `file` in every process that maps it, now and later.
    ///
    /// # Errors
    /// If the kernel refuses a place: then none is probed.
    pub fn attach(
        &self,
        file: BorrowedFd<'_>,
        functions: &[ProbedFunction],
    ) -> Result<Attached, BpfError> {
        let (entries, returns) = places(functions);
        let mut attached = Attached::default();
        // The returns first: a wait whose beginning is seen is then seen to end.
        self.leave.attach(file, &returns, &mut attached)?;
        self.enter.attach(file, &entries, &mut attached)?;
        Ok(attached)
    }

    /// The first program at every place of a function.
    pub(super) fn attach_first(
        &self,
        file: BorrowedFd<'_>,
        function: &ProbedFunction,
    ) -> Result<Attached, BpfError> {
        let (entries, returns) = places(std::slice::from_ref(function));
        let mut attached = Attached::default();
        self.enter.attach(file, &[returns, entries].concat(), &mut attached)?;
        Ok(attached)
    }
}

/// Entries and returns.
fn places(functions: &[ProbedFunction]) -> (Vec<FileOffset>, Vec<FileOffset>) {
    let entries = functions.iter().map(|function| function.entry);
    let returns = functions.iter().flat_map(|function| &function.returns);
    (entries.collect(), returns.copied().collect())
}
