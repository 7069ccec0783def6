//! The border to the kernel: loads and attaches the programs, owns every BPF map, drains the ring buffer
//! and the perf lifecycle records, and decodes both with bounds checks. It knows no file formats and
//! decides nothing about processes.

use crate::address::{AbsAddr, Generation, Pid, Tid};
use crate::clock::MonotonicNs;
use agent_ebpf::Outcome;

/// One user frame as the walker saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UserFrame {
    /// The address of the instruction, or the return address.
    pub address: AbsAddr,
    /// True for the interrupted leaf and for a frame that a signal interrupted; false for a return
    /// address, which is looked up at minus one.
    pub exact: bool,
}

/// One on-CPU sample, decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawSample {
    /// Logical CPU.
    pub cpu: u32,
    /// Process.
    pub pid: Pid,
    /// Thread.
    pub tid: Tid,
    /// When the clock fired.
    pub time: MonotonicNs,
    /// cgroup v2 id, 1 where only v1 is used.
    pub cgroup_id: u64,
    /// Mapping generation used by the walk.
    pub generation: Generation,
    /// How the walk of the user stack ended.
    pub outcome: Outcome,
    /// Time the program ran, nanoseconds.
    pub run_ns: u32,
    /// Thread name, raw bytes without the padding.
    pub comm: Vec<u8>,
    /// Kernel frames, leaf first.
    pub kernel: Vec<AbsAddr>,
    /// User frames, leaf first.
    pub user: Vec<UserFrame>,
}

/// What the kernel says about the life of processes, from perf records; times are monotonic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProcessEvent {
    /// A mapping with execute permission appeared (`PERF_RECORD_MMAP2`).
    Mmap {
        /// Process.
        pid: Pid,
        /// When.
        time: MonotonicNs,
        /// Where it starts.
        start: AbsAddr,
        /// Its length in bytes.
        length: u64,
        /// Offset in the file, bytes.
        file_offset: u64,
        /// GNU build id that the kernel read, if it could.
        build_id: Option<Vec<u8>>,
        /// Path as the kernel prints it.
        path: Vec<u8>,
    },
    /// A thread changed its name, or the process executed another program (`exec`).
    Comm {
        /// Process.
        pid: Pid,
        /// Thread.
        tid: Tid,
        /// When.
        time: MonotonicNs,
        /// True if the cause was execve.
        exec: bool,
        /// The new name.
        comm: Vec<u8>,
    },
    /// A process or thread was made.
    Fork {
        /// The new process (equal to `parent` for a thread).
        pid: Pid,
        /// The new thread.
        tid: Tid,
        /// The process that called.
        parent: Pid,
        /// When.
        time: MonotonicNs,
    },
    /// A thread ended; the process ends with its last thread.
    Exit {
        /// Process.
        pid: Pid,
        /// Thread.
        tid: Tid,
        /// When.
        time: MonotonicNs,
    },
    /// The kernel dropped records of this stream: state must be read again from /proc.
    Lost {
        /// How many records.
        count: u64,
    },
}

/// One thing that came out of the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// A sample.
    Sample(RawSample),
    /// The sampler met a process (address `None`) or an address that no table covers.
    UnknownMapping {
        /// Process.
        pid: Pid,
        /// Address.
        address: Option<AbsAddr>,
        /// When.
        time: MonotonicNs,
    },
    /// A lifecycle record.
    Process(ProcessEvent),
}

/// A table in BPF memory, made by `Tables::insert`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TableId(pub u32);

/// How one mapping of a process is unwound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MappingUnwind {
    /// By this table; table addresses are `address - bias`.
    Table(TableId),
    /// The table is being made: stop with `Outcome::TablePending`.
    Pending,
    /// One rule for the whole mapping (`NoInfo` = frame pointers, `End`, `RspOffset` for trampolines).
    Rule(agent_ebpf::UnwindRule),
}

/// One executable mapping of a process, as the walker sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WalkMapping {
    /// First address.
    pub start: AbsAddr,
    /// First address behind it.
    pub end: AbsAddr,
    /// `absolute address - bias` (wrapping) = ELF address.
    pub bias: u64,
    /// What to do there.
    pub unwind: MappingUnwind,
}
