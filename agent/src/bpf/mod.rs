//! The border to the kernel: loads and attaches the programs, owns every BPF map, drains the ring buffer
//! and the perf lifecycle records, and decodes both with bounds checks. It knows no file formats and
//! decides nothing about processes.

mod btf;
mod decode;
mod error;
mod go_locks;
mod idle;
mod libc_locks;
mod lifecycle;
mod loader;
mod lock_counters;
mod log;
mod object;
mod order;
mod perf;
mod probe_cost;
mod probe_programs;
mod raw;
mod sampler;
mod statistics;
mod tables;
mod user_probe;
mod waits;

pub(crate) use decode::until_nul;
pub use error::BpfError;
pub use go_locks::LockProbes;
pub use libc_locks::LibcProbes;
pub use probe_cost::ProbeCost;
pub use sampler::Sampler;
pub use statistics::{CpuStatistics, Statistics, outcomes_of};
pub use tables::{TableSizes, Tables, chunks_in, chunks_of};
pub use user_probe::Attached;

use crate::address::{AbsAddr, Generation, Pid, Tid};
use crate::clock::MonotonicNs;
use agent_ebpf::lock::Goroutine;
use agent_ebpf::wait::LockWords;
use agent_ebpf::{
    Outcome, ProcessEntry, REGISTERS, UserRegisters, WaitClass, WaitFacts, WaitingThread,
};

/// How the sampler is loaded.
#[derive(Clone, Debug)]
pub struct Options {
    /// Samples per second and CPU, 1 to `limits::FREQUENCY_HZ_MAX`.
    pub frequency_hz: u32,
    /// Form of the programs.
    pub form: FormChoice,
    /// Size of the ring buffer in bytes, a power of two of at least 4096; `None`: by CPUs and frequency.
    pub ring_bytes: Option<u32>,
    /// Kernel memory for unwind rows, bytes; rounded down to chunks, at most what the maps can hold.
    pub table_bytes_max: u64,
    /// Only these processes and their children from now on are sampled (see also [`Sampler::include`]);
    /// `None`: all.
    pub pid_filter: Option<Vec<Pid>>,
    /// Kernel threads are sampled too.
    pub kernel_threads: bool,
    /// How user registers are found when the clock hits the kernel; `None`: as the kernel allows.
    pub user_registers: Option<UserRegisters>,
    /// The time that threads spend off their CPU is measured, where the kernel allows it.
    pub off_cpu: bool,
    /// Of how many waits the stack is taken.
    pub wait_stacks: WaitStacks,
    /// Waits for locks of Go programs are measured, where the kernel allows it (see [`Sampler::lock_probes`]).
    pub go_locks: bool,
    /// Waits for locks of C libraries are told by probes, where waits are measured and the kernel allows it (see
    /// [`Sampler::libc_probes`]).
    pub libc_locks: bool,
    /// The programs write diagnostics to this process's log.
    pub bpf_log: bool,
    /// The whole log of the verifier where it refuses a program: megabytes, and minutes.
    pub verifier_log: bool,
}

/// Of how many waits the stack is taken, where there are many.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WaitStacks {
    /// As many as a host bears for ever.
    #[default]
    Few,
    /// Four times as many, for a while.
    Many,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            frequency_hz: 19,
            form: FormChoice::Auto,
            ring_bytes: None,
            table_bytes_max: crate::limits::UNWIND_TABLE_BYTES_MAX,
            pid_filter: None,
            kernel_threads: true,
            user_registers: None,
            off_cpu: false,
            wait_stacks: WaitStacks::default(),
            go_locks: false,
            libc_locks: false,
            bpf_log: false,
            verifier_log: false,
        }
    }
}

/// Which form of the programs is wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FormChoice {
    /// The first that the kernel takes.
    #[default]
    Auto,
    /// `bpf_loop` or nothing.
    BpfLoop,
    /// Tail calls or nothing.
    TailCalls,
}

/// A form of the programs; both do the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// The walk is a `bpf_loop` (kernel 5.17): up to 1,024 user frames.
    BpfLoop,
    /// The walk is a chain of tail calls: up to 256 user frames.
    TailCalls,
}

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
    /// How many of the user frames, the last ones, are the thread's root frames: others are missing before
    /// them. 0 unless the walk ended by `DepthLimit` or `TimeLimit`.
    pub root_frames: u16,
    /// The stack, where the walk stopped because a table was not there yet.
    pub stack: Option<CopiedStack>,
}

impl RawSample {
    /// The same without what the walk found behind the first `frames` user frames.
    #[must_use]
    pub fn cut_behind(&self, frames: usize) -> Self {
        let mut cut = self.clone();
        cut.user.truncate(frames);
        Self { outcome: Outcome::MappingUnknown, root_frames: 0, stack: None, ..cut }
    }
}

/// A thread that left its CPU, with its stack; how long it waits is not known yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawWait {
    /// The stack where it left, and when.
    pub sample: RawSample,
    /// What it waits for, as far as the kernel tells.
    pub class: WaitClass,
    /// The chance that this stack had, in parts of `agent_ebpf::wait::CHANCE_ONE`, never 0.
    pub chance: u32,
    /// All that the programs know of the wait.
    pub facts: WaitFacts,
    /// What lay at the word of a futex wait.
    pub words: LockWords,
}

/// The sums of one thread, as they were between two times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadReading {
    /// Thread.
    pub tid: Tid,
    /// Its sums, and the wait that lasts.
    pub thread: WaitingThread,
    /// Not read before.
    pub before: MonotonicNs,
    /// Not read after.
    pub after: MonotonicNs,
}

/// A part of a user stack, and the registers of the last user frame that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopiedStack {
    /// Address of that frame.
    pub ip: AbsAddr,
    /// Its stack pointer: where the bytes begin.
    pub sp: AbsAddr,
    /// Its frame pointer, which need not be an address.
    pub bp: u64,
    /// True if `ip` is the address of an instruction, false if it is a return address.
    pub exact: bool,
    /// True if it is the innermost frame.
    pub innermost: bool,
    /// General registers, as far as the walk knew them.
    pub general: Box<[u64; REGISTERS]>,
    /// The stack from `sp` up, at most `agent_ebpf::limits::STACK_BYTES_MAX` bytes.
    pub bytes: Vec<u8>,
}

/// A goroutine that waited for a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawLockWait {
    /// Its stack where the wait ended, and when. The thread is the one that it goes on in.
    pub sample: RawSample,
    /// The word that was waited on.
    pub word: AbsAddr,
    /// When the wait began, not after its end.
    pub since: MonotonicNs,
    /// How many waits it stands for, one at least.
    pub weight: u32,
}

/// A goroutine that waits for a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitingGoroutine {
    /// Who, as the programs know it.
    pub(super) key: Goroutine,
    /// Its process.
    pub pid: Pid,
    /// The thread that began to wait for it; it does other work by now.
    pub tid: Tid,
    /// The word that is waited on.
    pub word: AbsAddr,
    /// The function that waits.
    pub ip: AbsAddr,
    /// When the wait began.
    pub since: MonotonicNs,
    /// How many waits it stands for.
    pub weight: u32,
}

/// A BPF program, or a trampoline of the kernel, that was made or removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelSymbolEvent {
    /// Its first address.
    pub address: AbsAddr,
    /// Its length, bytes.
    pub length: u32,
    /// True if it was removed.
    pub gone: bool,
    /// True for BPF; else it is a trampoline of the kernel's own (ftrace, kprobes).
    pub bpf: bool,
    /// Its name, as kallsyms has it.
    pub name: Vec<u8>,
}

/// Which file of which file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Inode {
    /// Device, as `fstat` has it.
    pub device: u64,
    /// Its number there. Another file may get it once this one is deleted.
    pub number: u64,
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
        /// Which file, if it could not.
        inode: Option<Inode>,
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
    /// Code of the kernel came or went (`PERF_RECORD_KSYMBOL`).
    KernelSymbol {
        /// When.
        time: MonotonicNs,
        /// What.
        event: KernelSymbolEvent,
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
    /// The programs gave a forked process its parent's entry.
    Inherited {
        /// The child.
        pid: Pid,
        /// The entry.
        entry: ProcessEntry,
        /// When, before the entry was read.
        time: MonotonicNs,
    },
    /// A thread left its CPU, and its stack was taken.
    Wait(RawWait),
    /// Such a wait is over.
    WaitEnd {
        /// Thread.
        tid: Tid,
        /// When it began, which with the thread names it.
        since: MonotonicNs,
        /// When it ended.
        end: MonotonicNs,
    },
    /// A thread that waited once is over.
    ThreadEnd {
        /// Thread.
        tid: Tid,
        /// When.
        time: MonotonicNs,
        /// Its sums.
        thread: Box<WaitingThread>,
    },
    /// A goroutine has a lock that it waited for.
    LockWait(RawLockWait),
    /// A lifecycle record.
    Process(ProcessEvent),
}

/// A table in BPF memory, made by `Tables::insert`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TableId(pub u32);

/// How one mapping of a process is unwound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MappingUnwind {
    /// By this table; table addresses are `address - bias`.
    Table(TableId),
    /// The table is being made: stop with `Outcome::TablePending`.
    Pending,
    /// One rule for the whole mapping (`NoInfo` = frame pointers, `End`, `RspOffset` for trampolines).
    Rule(agent_ebpf::UnwindRule),
}

/// One executable mapping of a process, as the walker sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
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

/// Decodes one record of the ring buffer or, if `lifecycle`, of perf.
#[cfg(fuzzing)]
pub(crate) fn decode_any(bytes: &[u8], lifecycle: bool) {
    if lifecycle {
        std::hint::black_box(lifecycle::event(bytes).is_ok());
    } else {
        std::hint::black_box(decode::record(bytes));
        std::hint::black_box(decode::wait(bytes));
    }
}

#[cfg(test)]
mod tests;
