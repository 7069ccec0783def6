//! The programs of Go's locks: loads them, attaches them to files, and reads what they write. Where a file is to
//! be probed, `probes` says.

use super::loader::{self, in_short};
use super::{BpfError, Record, decode};
use crate::clock::MonotonicNs;
use crate::limits::POLL_RECORDS_MAX;
use crate::probes::ProbedFunction;
use agent_ebpf::lock::LockCounters;
use aya::Ebpf;
use aya::maps::{MapData, PerCpuArray, RingBuf};
use aya::programs::{ProgramError, UProbe};
use perf_event_open_sys as sys;
use perf_event_open_sys::bindings::{PERF_FLAG_FD_CLOEXEC, perf_event_attr};
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};

/// The number that the kernel gave to probes of user code.
const UPROBE_TYPE: &str = "/sys/bus/event_source/devices/uprobe/type";

/// The maps of the programs.
pub(super) struct GoLocks {
    records: RingBuf<MapData>,
    counters: PerCpuArray<MapData, LockCounters>,
    probes: LockProbes,
}

/// Attaches the programs. Works on its own: attaching waits for the kernel, 7 ms measured for each place.
#[derive(Debug)]
pub struct LockProbes {
    enter: OwnedFd,
    leave: OwnedFd,
    kind: u32,
}

/// Probes in one file. They are gone when this is.
#[derive(Debug)]
pub struct Attached {
    _events: Vec<OwnedFd>,
}

impl GoLocks {
    /// Loads the programs. A kernel that refuses them costs this feature alone.
    pub(super) fn load(ebpf: &mut Ebpf) -> Result<Self, BpfError> {
        let kind = std::fs::read_to_string(UPROBE_TYPE)
            .map_err(|source| BpfError::System { call: UPROBE_TYPE, source })?;
        let kind = kind.trim().parse().map_err(|error| BpfError::System {
            call: UPROBE_TYPE,
            source: io::Error::new(io::ErrorKind::InvalidData, format!("{error}: {kind}")),
        })?;
        let enter = load_program(ebpf, "go_lock_enter")?;
        let leave = load_program(ebpf, "go_lock_return")?;
        Ok(Self {
            records: loader::take_map(ebpf, "LOCK_WAITS")?,
            counters: loader::take_map(ebpf, "LOCK_COUNTERS")?,
            probes: LockProbes { enter, leave, kind },
        })
    }

    /// What attaches the programs.
    pub(super) fn probes(&self) -> Result<LockProbes, BpfError> {
        let LockProbes { enter, leave, kind } = &self.probes;
        let copy = |fd: &OwnedFd| {
            fd.try_clone().map_err(|source| BpfError::System { call: "dup of a program", source })
        };
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

    /// What the programs counted, over all CPUs.
    pub(super) fn counters(&self) -> Result<LockCounters, BpfError> {
        let all = self.counters.get(&0, 0).map_err(BpfError::map("LOCK_COUNTERS"))?;
        Ok(all.iter().fold(LockCounters::default(), |sum, one| LockCounters {
            hits: sum.hits + one.hits,
            refused: sum.refused + one.refused,
            unmatched: sum.unmatched + one.unmatched,
            busy: sum.busy + one.busy,
            sent: sum.sent + one.sent,
            lost: sum.lost + one.lost,
            run_ns: sum.run_ns + one.run_ns,
        }))
    }
}

fn load_program(ebpf: &mut Ebpf, name: &'static str) -> Result<OwnedFd, BpfError> {
    let program = ebpf.program_mut(name).ok_or(BpfError::Missing { kind: "program", name })?;
    let mut load = || -> Result<OwnedFd, ProgramError> {
        let program: &mut UProbe = program.try_into()?;
        program.load()?;
        let fd = program.fd()?.try_clone()?;
        fd.as_fd().try_clone_to_owned().map_err(ProgramError::IOError)
    };
    load().map_err(|error| BpfError::Attach {
        what: name,
        detail: in_short(&error),
        errno: super::error::source_errno(&error),
    })
}

impl LockProbes {
    /// Probes these functions of `file` in every process that maps it, now and later. The kernel knows the file by
    /// its inode, so the name that it is shown does not matter.
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
                events.push(self.attach_one(file, at.0, &self.leave)?);
            }
            events.push(self.attach_one(file, function.entry.0, &self.enter)?);
        }
        Ok(Attached { _events: events })
    }

    /// The first program at every place of a function.
    pub(super) fn attach_first(
        &self,
        file: BorrowedFd<'_>,
        function: &ProbedFunction,
    ) -> Result<Attached, BpfError> {
        let places = function.returns.iter().chain([&function.entry]);
        let events = places.map(|at| self.attach_one(file, at.0, &self.enter));
        Ok(Attached { _events: events.collect::<Result<_, _>>()? })
    }

    fn attach_one(
        &self,
        file: BorrowedFd<'_>,
        offset: u64,
        program: &OwnedFd,
    ) -> Result<OwnedFd, BpfError> {
        let what = "a probe of user code";
        let failed = |source| BpfError::Perf { what, cpu: 0, source };
        let path = CString::new(format!("/proc/self/fd/{}", file.as_raw_fd())).expect("no NUL");
        let mut attr = perf_event_attr { type_: self.kind, ..Default::default() };
        attr.size = u32::try_from(size_of::<perf_event_attr>()).expect("136 bytes or a few more");
        attr.__bindgen_anon_3.config1 = path.as_ptr() as u64;
        attr.__bindgen_anon_4.config2 = offset;
        // SAFETY: `attr` is initialised, and the path lives until the call returns. One event without a process sees
        // every process, whatever its CPU (kernel kernel/events/uprobes.c).
        let fd = unsafe { sys::perf_event_open(&mut attr, -1, 0, -1, PERF_FLAG_FD_CLOEXEC.into()) };
        if fd < 0 {
            return Err(failed(io::Error::last_os_error()));
        }
        // SAFETY: the call returned a descriptor that nobody else has.
        let event = unsafe { OwnedFd::from_raw_fd(fd) };
        let program = u32::try_from(program.as_raw_fd()).expect("a descriptor is not negative");
        // SAFETY: both descriptors are open.
        let set = unsafe { sys::ioctls::SET_BPF(event.as_raw_fd(), program) };
        if set < 0 {
            return Err(failed(io::Error::last_os_error()));
        }
        Ok(event)
    }
}
