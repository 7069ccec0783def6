//! The programs of Go's locks: loads them, attaches them to files, and reads what they write. Where a file is to
//! be probed, `probes` says.

use super::loader;
use super::user_probe::{self, Attached, ProbeKind};
use super::{BpfError, Record, decode};
use crate::clock::MonotonicNs;
use crate::limits::POLL_RECORDS_MAX;
use crate::probes::ProbedFunction;
use aya::Ebpf;
use aya::maps::{MapData, RingBuf};
use std::os::fd::{BorrowedFd, OwnedFd};

/// The maps of the programs.
pub(super) struct GoLocks {
    records: RingBuf<MapData>,
    probes: LockProbes,
}

/// Attaches the programs. Works on its own: attaching takes its time.
#[derive(Debug)]
pub struct LockProbes {
    enter: OwnedFd,
    leave: OwnedFd,
    kind: ProbeKind,
}

impl GoLocks {
    /// Loads the programs. A kernel that refuses them costs this feature alone.
    pub(super) fn load(ebpf: &mut Ebpf) -> Result<Self, BpfError> {
        let kind = ProbeKind::read()?;
        let enter = user_probe::load_program(ebpf, "go_lock_enter")?;
        let leave = user_probe::load_program(ebpf, "go_lock_return")?;
        Ok(Self {
            records: loader::take_map(ebpf, "LOCK_WAITS")?,
            probes: LockProbes { enter, leave, kind },
        })
    }

    /// What attaches the programs.
    pub(super) fn probes(&self) -> Result<LockProbes, BpfError> {
        let LockProbes { enter, leave, kind } = &self.probes;
        let copy = user_probe::copy;
        Ok(LockProbes { enter: copy(enter)?, leave: copy(leave)?, kind: *kind })
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
}

impl LockProbes {
    /// Probes these functions of `file` in every process that maps it, now and later.
    ///
    /// # Errors
    /// If the kernel refuses a place: then none is probed.
    pub fn attach(
        &self,
        file: BorrowedFd<'_>,
        functions: &[ProbedFunction],
    ) -> Result<Attached, BpfError> {
        let mut events = Vec::new();
        for function in functions {
            // The returns first: a wait whose beginning is seen is then seen to end.
            for at in &function.returns {
                events.push(self.kind.attach(file, *at, &self.leave)?);
            }
            events.push(self.kind.attach(file, function.entry, &self.enter)?);
        }
        Ok(Attached { events })
    }

    /// The first program at every place of a function.
    pub(super) fn attach_first(
        &self,
        file: BorrowedFd<'_>,
        function: &ProbedFunction,
    ) -> Result<Attached, BpfError> {
        let places = function.returns.iter().chain([&function.entry]);
        let events = places.map(|at| self.kind.attach(file, *at, &self.enter));
        Ok(Attached { events: events.collect::<Result<_, _>>()? })
    }
}
