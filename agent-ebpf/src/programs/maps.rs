//! Every map and every switch that the programs share with the agent. The names are the loader's keys.

use super::roots::Thread;
use super::walker::{RecentRule, State};
use agent_ebpf::limits::{
    CHUNKS_MAX, FILTER_PROCESSES_MAX, MAPPING_PAGES_MAX, NOTE_SLOTS, PAGE_SLAB_PAGES,
    PAGE_SLABS_MAX, PER_CPU_VALUE_BYTES_MAX, PROCESSES_MAX, RECENT_RULES, RECORD_FRAMES,
    RING_BYTES_MIN, ROOT_THREADS_MAX, RULES_MAX, SLAB_CHUNKS, SLABS_MAX, STACK_BYTES_MAX,
    STACK_FRAMES_MAX, STACK_INTERVAL_NS_MAX,
};
use agent_ebpf::{Chunk, Counters, MappingPage, ProcessEntry, SampleHeader, StackTail, UnwindRule};
use aya_ebpf::Global;
use aya_ebpf::btf_maps::{Array, ArrayOfMaps, HashMap, PerCpuArray, ProgramArray, RingBuf};
use aya_ebpf::macros::btf_map;

/// A record as it is built, before its used part goes to the ring buffer.
#[repr(C)]
pub(super) struct Record {
    pub(super) header: SampleHeader,
    pub(super) frames: [u64; RECORD_FRAMES],
    /// Room for a copied stack: it follows the frames that are used, at most `STACK_FRAMES_MAX`.
    more: [u64; STACK_WORDS],
}

/// What a record needs beyond its frames, so that a stack fits behind `STACK_FRAMES_MAX` of them.
const STACK_WORDS: usize =
    (size_of::<StackTail>() + STACK_BYTES_MAX) / 8 + STACK_FRAMES_MAX - RECORD_FRAMES;

/// What one run of the sampler works on: 512 bytes of BPF stack are not enough. Of the sampler alone,
/// since a clock can interrupt a program of another kind.
#[repr(C)]
pub(super) struct Scratch {
    pub(super) state: State,
    /// The token bucket of copied stacks: the time up to which its tokens are spent.
    pub(super) stacks_spent_ns: u64,
    pub(super) record: Record,
}

const _: () = assert!(size_of::<Scratch>() <= PER_CPU_VALUE_BYTES_MAX);

/// The last note of a (process, page).
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct NoteSlot {
    pub(super) key: u64,
    pub(super) time_ns: u64,
}

/// Records for the agent. Its size is chosen by the loader.
#[btf_map]
pub(super) static RECORDS: RingBuf<u64, { RING_BYTES_MIN as usize }> = RingBuf::new();
#[btf_map]
pub(super) static COUNTERS: PerCpuArray<Counters, 1> = PerCpuArray::new();
#[btf_map]
pub(super) static SCRATCH: PerCpuArray<Scratch, 1> = PerCpuArray::new();
#[btf_map]
pub(super) static NOTES: Array<NoteSlot, NOTE_SLOTS> = Array::new();
/// Root frames of threads, each at a place that its number gives.
#[btf_map]
pub(super) static ROOTS: Array<Thread, ROOT_THREADS_MAX> = Array::new();
/// The processes to sample, where `FILTERED` is set; the loader makes it small where it is not.
#[btf_map]
pub(super) static FILTER: HashMap<u32, u8, FILTER_PROCESSES_MAX> = HashMap::new();

/// Preallocated, because kernels before 6.1 demand that of a perf event's hash maps.
#[btf_map]
pub(super) static PROCESSES: HashMap<u32, ProcessEntry, PROCESSES_MAX> = HashMap::new();
/// First address of every page.
#[btf_map]
pub(super) static PAGE_STARTS: Array<[u64; MAPPING_PAGES_MAX], 1> = Array::new();
#[btf_map]
pub(super) static PAGE_SLABS: ArrayOfMaps<Array<MappingPage, PAGE_SLAB_PAGES>, PAGE_SLABS_MAX> =
    ArrayOfMaps::new();

/// First row key of every chunk.
#[btf_map]
pub(super) static CHUNK_STARTS: Array<[u32; CHUNKS_MAX], 1> = Array::new();
#[btf_map]
pub(super) static SLABS: ArrayOfMaps<Array<Chunk, SLAB_CHUNKS>, SLABS_MAX> = ArrayOfMaps::new();
#[btf_map]
pub(super) static RULES: Array<UnwindRule, RULES_MAX> = Array::new();
/// Rules found lately, so that the tables, which are cold at 19 Hz, are rarely searched.
#[btf_map]
pub(super) static RECENT: PerCpuArray<[RecentRule; RECENT_RULES], 1> = PerCpuArray::new();

/// Slot 0: the program that walks the next frames, in the form with tail calls.
#[btf_map]
pub(super) static TAIL: ProgramArray<1> = ProgramArray::new();

/// An [`agent_ebpf::UserRegisters`].
#[unsafe(no_mangle)]
pub(super) static USER_REGISTERS: Global<u32> = Global::new(1);
/// Offset of `task_struct.stack`, for `UserRegisters::KernelStack`.
#[unsafe(no_mangle)]
pub(super) static TASK_STACK_OFFSET: Global<u32> = Global::new(0);
/// Offsets of `task_struct.pid` and `task_struct.tgid`, where the kernel says them.
#[unsafe(no_mangle)]
pub(super) static TASK_PID_OFFSET: Global<u32> = Global::new(0);
#[unsafe(no_mangle)]
pub(super) static TASK_TGID_OFFSET: Global<u32> = Global::new(0);
/// 1: only the processes of `FILTER` are sampled.
#[unsafe(no_mangle)]
pub(super) static FILTERED: Global<u32> = Global::new(0);
/// 1: kernel threads are sampled.
#[unsafe(no_mangle)]
pub(super) static KERNEL_THREADS: Global<u32> = Global::new(1);
/// Time after which a CPU may make one more copy of a stack.
#[unsafe(no_mangle)]
pub(super) static STACK_INTERVAL_NS: Global<u64> = Global::new(STACK_INTERVAL_NS_MAX);
/// The reader is woken when more bytes than this wait: a quarter of the ring.
#[unsafe(no_mangle)]
pub(super) static WAKE_BYTES: Global<u64> = Global::new(RING_BYTES_MIN as u64 / 4);
