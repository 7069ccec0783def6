//! Decodes perf's lifecycle records (`PERF_RECORD_*`, kernel `include/uapi/linux/perf_event.h`). Pure, with
//! bounds checks: paths and thread names in them are chosen by every process of the host.

use super::decode::{u16_at, u32_at, u64_at, until_nul};
use super::{Inode, KernelSymbolEvent, ProcessEvent};
use crate::address::{AbsAddr, Pid, Tid};
use crate::clock::MonotonicNs;
use perf_event_open_sys::bindings::{
    PERF_RECORD_COMM, PERF_RECORD_EXIT, PERF_RECORD_FORK, PERF_RECORD_KSYMBOL,
    PERF_RECORD_KSYMBOL_FLAGS_UNREGISTER, PERF_RECORD_KSYMBOL_TYPE_BPF, PERF_RECORD_LOST,
    PERF_RECORD_MISC_COMM_EXEC, PERF_RECORD_MISC_MMAP_BUILD_ID, PERF_RECORD_MMAP2,
};

/// `struct perf_event_header`: type (u32), misc (u16), size (u16).
pub(super) const HEADER_BYTES: usize = 8;
/// What `sample_id_all` appends with `PERF_SAMPLE_TID | PERF_SAMPLE_TIME`: pid, tid, time.
const TRAILER_BYTES: usize = 16;
/// Length of the build id field.
const BUILD_ID_BYTES_MAX: usize = 20;

/// An event and when it happened.
pub(super) type Timed = (MonotonicNs, ProcessEvent);

/// Decodes one whole record, header included. `Ok(None)` for a record that says nothing of a process's
/// life, `Err` for one that is malformed.
pub(super) fn event(record: &[u8]) -> Result<Option<Timed>, Malformed> {
    let kind = u32_at(record, 0).ok_or(Malformed)?;
    let misc = u32_at(record, 4).ok_or(Malformed)? & 0xffff;
    let end = record.len().checked_sub(TRAILER_BYTES).ok_or(Malformed)?;
    let body = record.get(HEADER_BYTES..end).ok_or(Malformed)?;
    let time = MonotonicNs(u64_at(record, end + 8).ok_or(Malformed)?);
    let event = match kind {
        PERF_RECORD_MMAP2 => mmap(body, misc, time),
        PERF_RECORD_COMM => comm(body, misc, time),
        PERF_RECORD_FORK => fork(body, time),
        PERF_RECORD_EXIT => exit(body, time),
        PERF_RECORD_KSYMBOL => kernel_symbol(body, time),
        PERF_RECORD_LOST => u64_at(body, 8).map(|count| ProcessEvent::Lost { count }),
        _ => return Ok(None),
    };
    event.map(|event| Some((time, event))).ok_or(Malformed)
}

/// A record that is shorter than what it says it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Malformed;

/// `{ u32 pid, tid; u64 addr, len, pgoff; union { maj, min, ino, ino_generation; u8 build_id_size, u8,
/// u16, u8 build_id[20]; }; u32 prot, flags; char filename[]; }`
fn mmap(body: &[u8], misc: u32, time: MonotonicNs) -> Option<ProcessEvent> {
    const IDENTITY: usize = 32;
    const FILENAME: usize = 64;
    let mut inode = None;
    let build_id = if misc & PERF_RECORD_MISC_MMAP_BUILD_ID == 0 {
        let (major, minor) = (u32_at(body, IDENTITY)?, u32_at(body, IDENTITY + 4)?);
        let (device, number) = (rustix::fs::makedev(major, minor), u64_at(body, IDENTITY + 8)?);
        inode = (number > 0).then_some(Inode { device, number });
        None
    } else {
        let length = usize::from(*body.get(IDENTITY)?);
        if length > BUILD_ID_BYTES_MAX {
            return None;
        }
        (length > 0).then_some(body.get(IDENTITY + 4..IDENTITY + 4 + length)?.to_vec())
    };
    Some(ProcessEvent::Mmap {
        pid: Pid(u32_at(body, 0)?),
        time,
        start: AbsAddr(u64_at(body, 8)?),
        length: u64_at(body, 16)?,
        file_offset: u64_at(body, 24)?,
        build_id,
        inode,
        path: until_nul(body.get(FILENAME..)?).to_vec(),
    })
}

/// `{ u32 pid, tid; char comm[]; }`
fn comm(body: &[u8], misc: u32, time: MonotonicNs) -> Option<ProcessEvent> {
    Some(ProcessEvent::Comm {
        pid: Pid(u32_at(body, 0)?),
        tid: Tid(u32_at(body, 4)?),
        time,
        exec: misc & PERF_RECORD_MISC_COMM_EXEC != 0,
        comm: until_nul(body.get(8..)?).to_vec(),
    })
}

/// `{ u32 pid, ppid; u32 tid, ptid; u64 time; }`
fn fork(body: &[u8], time: MonotonicNs) -> Option<ProcessEvent> {
    Some(ProcessEvent::Fork {
        pid: Pid(u32_at(body, 0)?),
        parent: Pid(u32_at(body, 4)?),
        tid: Tid(u32_at(body, 8)?),
        time,
    })
}

/// `{ u64 addr; u32 len; u16 ksym_type, flags; char name[]; }`
fn kernel_symbol(body: &[u8], time: MonotonicNs) -> Option<ProcessEvent> {
    let kind = u32::from(u16_at(body, 12)?);
    let flags = u32::from(u16_at(body, 14)?);
    let event = KernelSymbolEvent {
        address: AbsAddr(u64_at(body, 0)?),
        length: u32_at(body, 8)?,
        gone: flags & PERF_RECORD_KSYMBOL_FLAGS_UNREGISTER != 0,
        bpf: kind == PERF_RECORD_KSYMBOL_TYPE_BPF,
        name: until_nul(body.get(16..)?).to_vec(),
    };
    Some(ProcessEvent::KernelSymbol { time, event })
}

/// As `fork`.
fn exit(body: &[u8], time: MonotonicNs) -> Option<ProcessEvent> {
    Some(ProcessEvent::Exit { pid: Pid(u32_at(body, 0)?), tid: Tid(u32_at(body, 8)?), time })
}
