//! perf events of one CPU: the clock that runs the sampler, and the ring of lifecycle records. Opens,
//! maps and reads them; what a record says is `lifecycle`'s.

use super::BpfError;
use super::lifecycle::HEADER_BYTES;
use crate::clock::{MonotonicNs, monotonic_now};
use crate::limits::{CLOCK_LAG_NS, LIFECYCLE_PAGES, LIFECYCLE_WAKE_BYTES};
use perf_event_open_sys as sys;
use perf_event_open_sys::bindings::{
    PERF_COUNT_SW_CPU_CLOCK, PERF_COUNT_SW_DUMMY, PERF_FLAG_FD_CLOEXEC,
    PERF_FORMAT_TOTAL_TIME_ENABLED, PERF_SAMPLE_TID, PERF_SAMPLE_TIME, PERF_TYPE_SOFTWARE,
    perf_event_attr, perf_event_mmap_page,
};
use rustix::mm::{MapFlags, ProtFlags};
use std::ffi::c_void;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

/// The numbers of the CPUs that are online now.
pub(super) fn online_cpus() -> Result<Vec<u32>, BpfError> {
    let call = "/sys/devices/system/cpu/online";
    let text = std::fs::read_to_string(call).map_err(|source| BpfError::System { call, source })?;
    parse_cpu_list(text.trim()).ok_or_else(|| BpfError::System {
        call,
        source: io::Error::new(io::ErrorKind::InvalidData, text),
    })
}

/// `0-3,6` and the like.
fn parse_cpu_list(text: &str) -> Option<Vec<u32>> {
    let mut cpus = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        cpus.extend(first.parse::<u32>().ok()?..=last.parse::<u32>().ok()?);
    }
    Some(cpus)
}

fn open(
    attr: &mut perf_event_attr,
    what: &'static str,
    cpu: u32,
    group: Option<BorrowedFd<'_>>,
) -> Result<OwnedFd, BpfError> {
    attr.type_ = PERF_TYPE_SOFTWARE;
    attr.size = u32::try_from(size_of::<perf_event_attr>()).expect("136 bytes or a few more");
    attr.set_use_clockid(1);
    attr.clockid = libc::CLOCK_MONOTONIC;
    let number = i32::try_from(cpu).map_err(|_too_large| BpfError::Perf {
        what,
        cpu,
        source: io::Error::from_raw_os_error(libc::EINVAL),
    })?;
    let group = group.map_or(-1, |leader| leader.as_raw_fd());
    // SAFETY: `attr` is initialised and its size is set; a software event changes no hardware.
    let fd = unsafe { sys::perf_event_open(attr, -1, number, group, PERF_FLAG_FD_CLOEXEC.into()) };
    if fd < 0 {
        return Err(BpfError::Perf { what, cpu, source: io::Error::last_os_error() });
    }
    // SAFETY: the call returned a descriptor that nobody else has.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The clock of one CPU: it runs the sampler while it is enabled, and the kernel detaches the program
/// when the descriptor is closed.
#[derive(Debug)]
pub(super) struct CpuClock {
    pub(super) cpu: u32,
    pub(super) period_ns: u64,
    /// Time that clocks of this CPU ran that died with it.
    past_ns: u64,
    /// Time that it had run at the last look, and when that was.
    looked: Option<(u64, MonotonicNs)>,
    fd: OwnedFd,
}

impl CpuClock {
    /// Opens the clock of `cpu`, stopped.
    pub(super) fn open(cpu: u32, frequency_hz: u32) -> Result<Self, BpfError> {
        let period_ns = 1_000_000_000 / u64::from(frequency_hz.max(1));
        let mut attr =
            perf_event_attr { config: PERF_COUNT_SW_CPU_CLOCK.into(), ..Default::default() };
        // A period and not a frequency: the kernel divides in the same way, but compares a frequency
        // with a limit that it lowers by itself when the machine is slow.
        attr.__bindgen_anon_1.sample_period = period_ns;
        attr.read_format = PERF_FORMAT_TOTAL_TIME_ENABLED.into();
        attr.set_disabled(1);
        let fd = open(&mut attr, "the sampling clock", cpu, None)?;
        Ok(Self { cpu, period_ns, past_ns: 0, looked: None, fd })
    }

    /// Goes on counting where a clock of the same CPU ended.
    pub(super) fn follow(&mut self, gone: &Self) {
        self.past_ns = gone.ran_ns().unwrap_or(gone.past_ns);
    }

    /// True if it stood still since the last look, while it should run: its CPU went offline.
    pub(super) fn is_dead(&mut self) -> bool {
        let now = monotonic_now();
        let Ok(ran_ns) = self.ran_ns() else { return false };
        let last = self.looked.replace((ran_ns, monotonic_now()));
        // Time between the readings of both looks, so at most what a clock that runs has run.
        last.is_some_and(|(ran_then_ns, then)| {
            let ran_since_ns = ran_ns.saturating_sub(ran_then_ns);
            now.0.saturating_sub(then.0) > ran_since_ns.saturating_add(CLOCK_LAG_NS)
        })
    }

    /// The same clock without a program, which runs whenever this one does and writes a record at each tick.
    #[cfg(test)]
    pub(super) fn beside(&self) -> Result<LifecycleRing, BpfError> {
        let mut attr =
            perf_event_attr { config: PERF_COUNT_SW_CPU_CLOCK.into(), ..Default::default() };
        attr.__bindgen_anon_1.sample_period = self.period_ns;
        let fd = open(&mut attr, "a plain clock", self.cpu, Some(self.fd.as_fd()))?;
        LifecycleRing::map(self.cpu, fd)
    }

    /// Makes the kernel run `program` at every tick.
    pub(super) fn attach(&self, program: BorrowedFd<'_>) -> Result<(), BpfError> {
        let program = u32::try_from(program.as_raw_fd()).expect("a descriptor is not negative");
        // SAFETY: both descriptors are open.
        let result = unsafe { sys::ioctls::SET_BPF(self.fd.as_raw_fd(), program) };
        self.check(result, "ioctl PERF_EVENT_IOC_SET_BPF")
    }

    /// Starts or stops the clock.
    pub(super) fn enable(&self, on: bool) -> Result<(), BpfError> {
        let fd = self.fd.as_raw_fd();
        let result = if on {
            // SAFETY: the descriptor is open.
            unsafe { sys::ioctls::ENABLE(fd, 0) }
        } else {
            // SAFETY: as above.
            unsafe { sys::ioctls::DISABLE(fd, 0) }
        };
        self.check(result, "ioctl PERF_EVENT_IOC_ENABLE")
    }

    fn check(&self, result: i32, what: &'static str) -> Result<(), BpfError> {
        if result < 0 {
            let source = io::Error::last_os_error();
            return Err(BpfError::Perf { what, cpu: self.cpu, source });
        }
        Ok(())
    }

    /// Ticks that this clock should have made since it was first enabled.
    pub(super) fn ticks_expected(&self) -> Result<u64, BpfError> {
        Ok(self.ran_ns()? / self.period_ns)
    }

    /// For so long the clocks of this CPU have run.
    fn ran_ns(&self) -> Result<u64, BpfError> {
        let mut values = [0u8; 16]; // count, time enabled
        let read = rustix::io::read(&self.fd, &mut values).map_err(|errno| BpfError::System {
            call: "read of a perf event",
            source: errno.into(),
        })?;
        let time_enabled = super::decode::u64_at(&values, 8).filter(|_| read == values.len());
        Ok(self.past_ns.saturating_add(time_enabled.unwrap_or(0)))
    }
}

/// The ring of lifecycle records of one CPU.
#[derive(Debug)]
pub(super) struct LifecycleRing {
    pub(super) cpu: u32,
    fd: OwnedFd,
    pages: NonNull<c_void>,
    bytes: usize,
    page_bytes: usize,
}

// SAFETY: the mapping belongs to this value alone and no thread is special to it.
unsafe impl Send for LifecycleRing {}

impl LifecycleRing {
    /// Opens and maps the ring of `cpu`. The records begin at once.
    pub(super) fn open(cpu: u32, build_id: bool) -> Result<Self, BpfError> {
        let mut attr = perf_event_attr { config: PERF_COUNT_SW_DUMMY.into(), ..Default::default() };
        attr.sample_type = u64::from(PERF_SAMPLE_TID) | u64::from(PERF_SAMPLE_TIME);
        attr.set_sample_id_all(1);
        attr.set_mmap(1); // executable mappings; `mmap_data` would ask for the others
        attr.set_mmap2(1);
        attr.set_comm(1);
        attr.set_comm_exec(1);
        attr.set_task(1);
        // BPF programs that come and go (Linux 5.1); a kernel without BPF tells of none.
        attr.set_ksymbol(1);
        attr.set_build_id(build_id.into());
        attr.set_watermark(1);
        attr.__bindgen_anon_2.wakeup_watermark = LIFECYCLE_WAKE_BYTES;
        Self::map(cpu, open(&mut attr, "process lifecycle", cpu, None)?)
    }

    fn map(cpu: u32, fd: OwnedFd) -> Result<Self, BpfError> {
        let page_bytes = rustix::param::page_size();
        let bytes = (LIFECYCLE_PAGES + 1) * page_bytes;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let pages = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), bytes, protection, MapFlags::SHARED, &fd, 0)
        };
        let pages = pages.map_err(|errno| BpfError::System {
            call: "mmap of a perf ring (kernel.perf_event_mlock_kb limits it without CAP_IPC_LOCK)",
            source: errno.into(),
        })?;
        let pages = NonNull::new(pages).expect("mmap without MAP_FIXED never returns address 0");
        Ok(Self { cpu, fd, pages, bytes, page_bytes })
    }

    fn position(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: both positions lie in the first page of the mapping.
        let position = unsafe { self.pages.byte_add(offset) };
        // SAFETY: they are aligned, live as long as `self`, and both sides access them atomically.
        unsafe { position.cast::<AtomicU64>().as_ref() }
    }

    /// Hands every record to `each`, header included, at most `max` of them. False if the stream was out of
    /// step, and records were skipped.
    #[must_use]
    pub(super) fn drain(&mut self, max: usize, each: &mut dyn FnMut(&[u8])) -> bool {
        let mut in_step = true;
        // The protocol is that of the header file: acquire the head, read, release the tail.
        let head = self.position(std::mem::offset_of!(perf_event_mmap_page, data_head));
        let head = head.load(Ordering::Acquire);
        let tail_position = self.position(std::mem::offset_of!(perf_event_mmap_page, data_tail));
        let mut tail = tail_position.load(Ordering::Relaxed);
        let mut record = Vec::new();
        for _ in 0..max {
            if tail >= head || !self.copy(tail, HEADER_BYTES, &mut record) {
                break;
            }
            let size = usize::from(super::decode::u16_at(&record, 6).unwrap_or(0));
            if size < HEADER_BYTES || !self.copy(tail, size, &mut record) {
                tail = head; // begin again behind it
                in_step = false;
                break;
            }
            each(&record);
            tail += u64::try_from(size).expect("below 65,536");
        }
        tail_position.store(tail, Ordering::Release);
        in_step
    }

    /// Copies `length` bytes at position `from` of the stream; false if no record is that long.
    fn copy(&self, from: u64, length: usize, to: &mut Vec<u8>) -> bool {
        let ring_bytes = self.bytes - self.page_bytes;
        if length > ring_bytes {
            return false;
        }
        let Ok(start) = usize::try_from(from % ring_bytes as u64) else { return false };
        let first = length.min(ring_bytes - start);
        to.clear();
        for (offset, part) in [(start, first), (0, length - first)] {
            // SAFETY: offset + part is at most the length of the data area, which follows the first page.
            let data = unsafe { self.pages.byte_add(self.page_bytes + offset) };
            // SAFETY: the kernel does not write between tail and head, and the tail is not moved yet.
            to.extend_from_slice(unsafe { std::slice::from_raw_parts(data.cast().as_ptr(), part) });
        }
        true
    }
}

impl AsFd for LifecycleRing {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for LifecycleRing {
    fn drop(&mut self) {
        // SAFETY: the mapping was made in `open`, and nothing borrows from it.
        let result = unsafe { rustix::mm::munmap(self.pages.as_ptr(), self.bytes) };
        debug_assert!(result.is_ok(), "munmap of a mapping of ours");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cpus_are_read() {
        let rows: [(&str, Option<&[u32]>); 6] = [
            ("0", Some(&[0])),
            ("0-3", Some(&[0, 1, 2, 3])),
            ("0-1,6,8-9", Some(&[0, 1, 6, 8, 9])),
            ("", None),
            ("0-", None),
            ("a", None),
        ];
        for (text, expected) in rows {
            assert_eq!(parse_cpu_list(text).as_deref(), expected, "{text:?}");
        }
    }
}
