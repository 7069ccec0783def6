//! Probes of user code: a program at a place of a file, in every process that maps it, now and later. The kernel knows the
//! file by its inode, so the name that it is shown does not matter. Attaching waits for the kernel, 7 ms measured for each
//! place.

use super::BpfError;
use super::loader::in_short;
use crate::address::FileOffset;
use aya::Ebpf;
use aya::programs::{ProgramError, UProbe};
use perf_event_open_sys as sys;
use perf_event_open_sys::bindings::{PERF_FLAG_FD_CLOEXEC, perf_event_attr};
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};

/// The number that the kernel gave to probes of user code.
const UPROBE_TYPE: &str = "/sys/bus/event_source/devices/uprobe/type";

/// Probes in one file. They are gone when this is.
#[derive(Debug, Default)]
pub struct Attached {
    pub(super) events: Vec<OwnedFd>,
}

impl Attached {
    /// How many places are probed: each has a descriptor.
    #[must_use]
    pub fn places(&self) -> usize {
        self.events.len()
    }
}

/// What kind of perf event a probe is, by this kernel's number.
#[derive(Clone, Copy, Debug)]
pub(super) struct ProbeKind(u32);

impl ProbeKind {
    pub(super) fn read() -> Result<Self, BpfError> {
        let kind = std::fs::read_to_string(UPROBE_TYPE)
            .map_err(|source| BpfError::System { call: UPROBE_TYPE, source })?;
        let kind = kind.trim().parse().map_err(|error| BpfError::System {
            call: UPROBE_TYPE,
            source: io::Error::new(io::ErrorKind::InvalidData, format!("{error}: {kind}")),
        })?;
        Ok(Self(kind))
    }

    /// Attaches a program to one place.
    pub(super) fn attach(
        self,
        file: BorrowedFd<'_>,
        place: FileOffset,
        program: &OwnedFd,
    ) -> Result<OwnedFd, BpfError> {
        let what = "a probe of user code";
        let failed = |source| BpfError::Perf { what, cpu: 0, source };
        let path = CString::new(format!("/proc/self/fd/{}", file.as_raw_fd())).expect("no NUL");
        let mut attr = perf_event_attr { type_: self.0, ..Default::default() };
        attr.size = u32::try_from(size_of::<perf_event_attr>()).expect("136 bytes or a few more");
        attr.__bindgen_anon_3.config1 = path.as_ptr() as u64;
        attr.__bindgen_anon_4.config2 = place.0;
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

/// Loads a program, and hands out a descriptor of it.
pub(super) fn load_program(ebpf: &mut Ebpf, name: &'static str) -> Result<OwnedFd, BpfError> {
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
