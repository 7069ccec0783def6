//! The maps and switches of the programs of waits. The names are the loader's keys.

use super::maps::Scratch;
use agent_ebpf::limits::{RING_BYTES_MIN, THREADS_MIN, WAIT_STACK_INTERVAL_NS_FEW};
use agent_ebpf::wait::{SYSCALL_CLASSES, SYSCALL_NUMBERS};
use agent_ebpf::{ThreadEnd, WaitCounters, WaitingThread};
use aya_ebpf::Global;
use aya_ebpf::btf_maps::{HashMap, PerCpuArray, ProgramArray, RingBuf};
use aya_ebpf::macros::btf_map;

/// What a CPU keeps from one switch to the next.
#[repr(C)]
pub(super) struct Desk {
    /// A thread as it is put into the map: too large for the BPF stack.
    pub(super) thread: WaitingThread,
    /// The record of a thread that is over: likewise.
    pub(super) end: ThreadEnd,
    /// The buckets of stacks, by [`Bucket`]: the time up to which their tokens are spent.
    ///
    /// [`Bucket`]: agent_ebpf::chance::Bucket
    pub(super) spent_ns: [u64; 2],
}

/// Threads that waited once, by their number. Preallocated: whoever asks for memory while the scheduler holds
/// its lock may wait for a thread that wants to be woken. The loader chooses its size.
#[btf_map]
pub(super) static THREADS: HashMap<u32, WaitingThread, THREADS_MIN> = HashMap::new();
/// Stacks and ends of waits, a ring of their own: a storm of switches takes no room from the clock's samples.
/// Nobody is woken by it. The loader chooses its size.
#[btf_map]
pub(super) static WAITS: RingBuf<u64, { RING_BYTES_MIN as usize }> = RingBuf::new();
#[btf_map]
pub(super) static WAIT_COUNTERS: PerCpuArray<WaitCounters, 1> = PerCpuArray::new();
#[btf_map]
pub(super) static WAIT_DESK: PerCpuArray<Desk, 1> = PerCpuArray::new();
/// As the sampler's, which a switch does not interrupt, nor it a switch; but programs of one map are read more
/// easily than that.
#[btf_map]
pub(super) static WAIT_SCRATCH: PerCpuArray<Scratch, 1> = PerCpuArray::new();
/// Slot 0: the program that walks the next frames, in the form with tail calls.
#[btf_map]
pub(super) static WAIT_TAIL: ProgramArray<1> = ProgramArray::new();

/// Offsets of `task_struct.flags` and of its state.
#[unsafe(no_mangle)]
pub(super) static TASK_FLAGS_OFFSET: Global<u32> = Global::new(0);
#[unsafe(no_mangle)]
pub(super) static TASK_STATE_OFFSET: Global<u32> = Global::new(0);
/// The agent itself.
#[unsafe(no_mangle)]
pub(super) static AGENT_TGID: Global<u32> = Global::new(0);
/// Time after which a CPU may take one more stack of a wait.
#[unsafe(no_mangle)]
pub(super) static WAIT_STACK_INTERVAL_NS: Global<u64> = Global::new(WAIT_STACK_INTERVAL_NS_FEW);
/// The class of each system call.
#[unsafe(no_mangle)]
pub(super) static CLASSES: [u8; SYSCALL_NUMBERS] = SYSCALL_CLASSES;
