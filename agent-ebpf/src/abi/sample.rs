//! Records as they lie in the ring buffer.

use crate::REGISTERS;
use crate::tables::ProcessEntry;

/// Set in a user frame whose address is exact: the interrupted leaf, or the frame that a signal
/// interrupted. Frames without it hold return addresses and are looked up at minus one.
/// User addresses are below 2^47 (2^56 with five-level paging), so the bit is free.
pub const FRAME_EXACT: u64 = 1 << 63;

/// What follows in the ring buffer; the first field of every record.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordKind {
    /// A [`SampleHeader`], then `kernel_frames` and `user_frames` addresses of 8 bytes, leaf first.
    Sample = 1,
    /// An [`UnknownMapping`].
    UnknownMapping = 2,
    /// As `Sample`; behind the frames a [`StackTail`] and as many bytes of the user stack as it says.
    SampleWithStack = 3,
    /// An [`Inherited`].
    Inherited = 4,
    /// As `Sample`, of a thread that leaves its CPU; in front of the kernel's addresses, and counted with
    /// them, stand [`crate::WaitFacts`].
    Wait = 5,
    /// A [`crate::WaitEnd`].
    WaitEnd = 6,
    /// A [`crate::ThreadEnd`].
    ThreadEnd = 7,
    /// As `Wait`, with a stack as in `SampleWithStack`.
    WaitWithStack = 8,
    /// As `Sample`, of a goroutine whose wait for a lock is over; in front of the user's addresses, and counted as
    /// the kernel's, stand [`crate::LockFacts`].
    LockWait = 9,
}

/// The head of an on-CPU sample.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampleHeader {
    /// [`RecordKind::Sample`] or [`RecordKind::SampleWithStack`].
    pub kind: u32,
    /// Logical CPU.
    pub cpu: u32,
    /// Process id in the initial PID namespace (the kernel's tgid).
    pub tgid: u32,
    /// Thread id in the initial PID namespace (the kernel's pid).
    pub tid: u32,
    /// `CLOCK_MONOTONIC`, nanoseconds.
    pub time_ns: u64,
    /// cgroup v2 id of the thread (inode number), 1 where only v1 is used.
    pub cgroup_id: u64,
    /// Generation of the mapping table that the walk used; 0 if there was none.
    pub generation: u32,
    /// An [`crate::Outcome`].
    pub outcome: u16,
    /// Number of kernel addresses that follow.
    pub kernel_frames: u16,
    /// Number of user addresses that follow the kernel's.
    pub user_frames: u16,
    /// How many of the user addresses, the last ones, are not what the walk found but the thread's root
    /// frames, checked on its stack: frames are missing before them. Only where the outcome is
    /// `DepthLimit` or `TimeLimit`.
    pub root_frames: u16,
    /// Nanoseconds that the program ran for this sample (BPF time counts as the agent's CPU).
    pub run_ns: u32,
    /// Thread name, NUL padded.
    pub comm: [u8; 16],
}

/// The user stack of a thread whose walk stopped because a table is not there yet, copied from the stack
/// pointer up, so that it can be walked when the table has come.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StackTail {
    /// Where the walk stopped: the address of the last user frame.
    pub ip: u64,
    /// The stack pointer there; address of the first byte that was copied.
    pub sp: u64,
    /// The frame pointer there.
    pub bp: u64,
    /// Bytes that follow, at most `limits::STACK_BYTES_MAX`; not padded.
    pub bytes: u32,
    /// 1 if `ip` is the address of an instruction, 0 if it is a return address.
    pub exact: u32,
    /// The general registers of the thread, or of what the last signal interrupted, as far as the walk knows them:
    /// see `walk::Walk`.
    pub general: [u64; REGISTERS],
}

/// The sampler met a process or an address that no table covers; the agent is woken at once.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownMapping {
    /// [`RecordKind::UnknownMapping`].
    pub kind: u32,
    /// Process id in the initial PID namespace.
    pub tgid: u32,
    /// The address, 0 if the whole process is unknown.
    pub address: u64,
    /// `CLOCK_MONOTONIC`, nanoseconds.
    pub time_ns: u64,
}

/// A process was forked and is walked by its parent's entry until it has one of its own. Written before the
/// child's entry, which is made only if the ring took this record: so the agent knows every entry that
/// points to a layout, and keeps the layout.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inherited {
    /// [`RecordKind::Inherited`].
    pub kind: u32,
    /// The child's process id in the initial PID namespace.
    pub tgid: u32,
    /// `CLOCK_MONOTONIC`, nanoseconds, read before the parent's entry was.
    pub time_ns: u64,
    /// The parent's entry.
    pub entry: ProcessEntry,
}

const _: () = assert!(size_of::<Inherited>() == 24);
const _: () = assert!(size_of::<SampleHeader>() == 64);
const _: () = assert!(size_of::<UnknownMapping>() == 24);
const _: () = assert!(size_of::<StackTail>() == 160);
