//! Probes of user code: a program at places of a file, in every process that maps it, now and later. The kernel knows the
//! file by its inode, so the name that it is shown does not matter. It takes what goes together away behind one grace
//! period, 20 to 75 ms measured: so one link has all places of a file where the kernel can do that, and what goes goes at
//! one time.

use super::{BpfError, raw};
use crate::address::FileOffset;
use crate::limits::PROBE_ENDERS_MAX;
use perf_event_open_sys as sys;
use perf_event_open_sys::bindings::{PERF_FLAG_FD_CLOEXEC, perf_event_attr};
use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};
use std::sync::{Mutex, PoisonError};

/// The number that the kernel gave to probes of user code.
const UPROBE_TYPE: &str = "/sys/bus/event_source/devices/uprobe/type";

/// Probes in one file. They are gone when this is.
#[derive(Debug, Default)]
pub struct Attached {
    /// Links, or an event for each place.
    held: Vec<OwnedFd>,
    places: usize,
}

impl Attached {
    /// How many places are probed.
    #[must_use]
    pub fn places(&self) -> usize {
        self.places
    }

    /// How many links or events there are: each is taken away by itself.
    #[must_use]
    pub fn descriptors(&self) -> usize {
        self.held.len()
    }

    /// One that has so many descriptors, which are of nothing, for tests.
    #[cfg(test)]
    pub(crate) fn of_nothing(places: usize, descriptors: usize) -> Self {
        let nothing = || std::fs::File::open("/dev/null").expect("it is there").into();
        Self { held: std::iter::repeat_with(nothing).take(descriptors).collect(), places }
    }

    /// Their numbers, for tests.
    #[cfg(test)]
    pub(super) fn numbers(&self) -> impl Iterator<Item = i32> {
        self.held.iter().map(|fd| fd.as_raw_fd())
    }

    /// Takes many away at one time, so that they share the kernel's grace periods. In no order: where Go's returns go before
    /// its entries, a wait that has begun meanwhile is not told to end, and is forgotten like those of any file that is not
    /// probed.
    pub fn end(all: impl IntoIterator<Item = Self>) {
        let held: Vec<OwnedFd> = all.into_iter().flat_map(|it| it.held).collect();
        let enders = held.len().min(PROBE_ENDERS_MAX);
        let left = Mutex::new(held);
        let next = || left.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let end_some = || std::iter::from_fn(next).for_each(drop);
        std::thread::scope(|scope| {
            for _ in 1..enders {
                let thread = std::thread::Builder::new().name("probes end".to_owned());
                if thread.spawn_scoped(scope, end_some).is_err() {
                    break; // those that are there do it, one after the other
                }
            }
            end_some();
        });
    }
}

/// A loaded program, and how it comes to its places.
#[derive(Debug)]
pub(super) enum ProbeProgram {
    /// One link for all of a file.
    Linked(OwnedFd),
    /// An event for each.
    Single(OwnedFd, ProbeKind),
}

impl ProbeProgram {
    /// True if all places of a file cost no more than one.
    pub(super) fn is_linked(&self) -> bool {
        matches!(self, Self::Linked(_))
    }

    /// Attaches the program to these places: to all, or to none that `to` knows of.
    pub(super) fn attach(
        &self,
        file: BorrowedFd<'_>,
        places: &[FileOffset],
        to: &mut Attached,
    ) -> Result<(), BpfError> {
        let path = CString::new(format!("/proc/self/fd/{}", file.as_raw_fd())).expect("no NUL");
        let held = match self {
            Self::Linked(program) => vec![link(program, &path, places)?],
            Self::Single(program, kind) => {
                let events = places.iter().map(|place| kind.attach(&path, *place, program));
                events.collect::<Result<_, _>>()?
            }
        };
        to.held.extend(held);
        to.places += places.len();
        Ok(())
    }
}

fn link(program: &OwnedFd, path: &CStr, places: &[FileOffset]) -> Result<OwnedFd, BpfError> {
    let offsets: Vec<u64> = places.iter().map(|place| place.0).collect();
    raw::link_probes(program.as_fd(), path, &offsets)
}

/// Fails if the kernel has no links for the program: where it has, it says that a directory is no file to probe.
pub(super) fn has_links(program: &OwnedFd) -> Result<(), BpfError> {
    match link(program, c"/", &[FileOffset(0)]) {
        Err(BpfError::System { source, .. }) if source.raw_os_error() == Some(libc::EBADF) => {
            Ok(())
        }
        Err(error) => Err(error),
        Ok(_link) => Err(BpfError::System {
            call: "bpf(BPF_LINK_CREATE)",
            source: io::Error::other("a directory was probed"),
        }),
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
    fn attach(
        self,
        path: &CStr,
        place: FileOffset,
        program: &OwnedFd,
    ) -> Result<OwnedFd, BpfError> {
        let what = "a probe of user code";
        let failed = |source| BpfError::Perf { what, cpu: 0, source };
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
