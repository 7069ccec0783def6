//! Every limit of the kernel side, with its unit and its reason.

/// User frames of one stack, walked with `bpf_loop` (design: deeper stacks keep a marker).
pub const USER_FRAMES_MAX: usize = 1024;
/// User frames of one stack, walked with tail calls: 32 calls of 8 frames, the kernel allows 33.
pub const USER_FRAMES_TAIL_CALLS_MAX: usize = 256;
/// Kernel frames of one stack: the kernel's own `kernel.perf_event_max_stack` default.
pub const KERNEL_FRAMES_MAX: usize = 127;
/// Root frames kept for a thread, and sent where a walk was cut: the outermost functions up to a program's
/// or a pool's own entry.
pub const ROOT_FRAMES_MAX: usize = 8;
/// Threads whose root frames are kept (168 bytes each). Two threads of one slot only cost the frames.
pub const ROOT_THREADS_MAX: usize = 1024;
/// User frames from which a complete walk leaves its root frames, with `bpf_loop`: a walk that is cut all of
/// a sudden goes on to its root by itself. With tail calls every complete walk leaves them.
pub const ROOT_DEPTH_MIN: u32 = 128;
/// Frames beyond `USER_FRAMES_MAX` that one run walks without sending them, to reach the root; the next run
/// goes on from there. [`WALK_NS_MAX`] ends it earlier, as a rule.
pub const SCOUT_FRAMES_MAX: usize = 8192;
/// Time one walk may take before it stops with `Outcome::TimeLimit`, in nanoseconds.
pub const WALK_NS_MAX: u64 = 500_000;

/// Frames of both halves in a record; a power of two, because the programs mask the index.
pub const RECORD_FRAMES: usize = 2048;
/// Frames in one step of `bpf_loop`: the step costs as much as a fifth of a frame.
pub const FRAMES_PER_LOOP_STEP: usize = 4;
/// Frames in one tail call: the verifier walks each of them anew, and 8 cost about 40 thousand instructions
/// (Linux 6.1 to 7.3, `cargo xtask test kernels`).
pub const FRAMES_PER_TAIL_CALL: usize = 8;
/// How many frames pass between two looks at the clock, which costs as much as a third of a frame.
pub const FRAMES_PER_CLOCK_READ: usize = 32;

/// Pages of user stack that travel with a sample whose table is not there yet: the first one from the
/// stack pointer up, so 24 to 28 KiB. Most stacks of a program that has just begun fit; 16 KiB were too little
/// for a regular expression that a Rust program compiles when it begins. The record is in a value of
/// a per-CPU map, see [`PER_CPU_VALUE_BYTES_MAX`].
pub const STACK_PAGES_MAX: usize = 7;
/// Size of a page, bytes.
pub const PAGE_BYTES: usize = 4096;
/// Bytes of user stack that travel with a sample.
pub const STACK_BYTES_MAX: usize = STACK_PAGES_MAX * PAGE_BYTES;
/// Frames of both halves with which a copy of the stack is still made; a power of two, because the
/// programs mask the index.
pub const STACK_FRAMES_MAX: usize = 256;
/// Largest value of a per-CPU map, bytes (kernel include/linux/percpu.h, `PCPU_MIN_UNIT_SIZE`).
pub const PER_CPU_VALUE_BYTES_MAX: usize = 32 << 10;
/// Copies of the stack that one CPU may make at once (224 KiB of the ring buffer, if they are deep).
pub const STACK_BURST: u64 = 8;
/// Time after which a CPU may make one more copy of the stack, in nanoseconds, at least: 20 a second, as often
/// as the usual clock fires.
pub const STACK_INTERVAL_NS_MAX: u64 = 50_000_000;
/// The same for a faster clock, whose every tick may make one, in nanoseconds: 500 a second at most.
pub const STACK_INTERVAL_NS_MIN: u64 = 2_000_000;

/// Goroutines whose wait for a lock is followed at one time (70 bytes each, only where Go's locks are probed).
pub const GOROUTINES_MAX: usize = 16_384;
/// Threads whose last wait for a lock of their C library is known at one time (about 60 bytes each, only where C
/// libraries are probed).
pub const MARKS_MAX: usize = 32_768;
/// Bytes of stack between a probe of a C library and its system call: 8 to 200 were seen.
pub const MARK_STACK_BYTES_MAX: u64 = 1024;
/// Processes of whose goroutines' waits only some are followed.
pub const THINNED_PROCESSES_MAX: usize = 1024;
/// One of so many waits is followed at least, as a power of two: 256.
pub const THIN_SHIFT_MAX: u32 = 8;
/// Frames of the stack of a goroutine that waited for a lock: it is walked where the program runs, which goes on
/// when that is done.
pub const GO_LOCK_FRAMES_MAX: usize = 256;
/// Time the walk of a thread that leaves its CPU may take, in nanoseconds: the CPU's queue of threads is locked
/// meanwhile, and interrupts are off. The scheduler itself keeps both for so long when it balances; warm,
/// 300 frames are walked in this time.
pub const WAIT_WALK_NS_MAX: u64 = 50_000;
/// Kernel frames of a wait: a system call that waits for a disk below a file system has about 30.
pub const WAIT_KERNEL_FRAMES_MAX: usize = 64;
/// Time after which a CPU may take one more stack of a wait, in nanoseconds: 50 a second, which take 15 to 30 us each
/// here, and more again in the agent.
pub const WAIT_STACK_INTERVAL_NS_FEW: u64 = 20_000_000;
/// The same while somebody records, who looks closer and for a while: 200 a second.
pub const WAIT_STACK_INTERVAL_NS_MANY: u64 = 5_000_000;
/// How many times as long that is for threads that lost their CPU to another, of which there are hundreds a second
/// where threads take turns, and for the agent's own: 5 a second.
pub const WAIT_STACK_SELDOM: u64 = 10;
/// Stacks of waits that a CPU may take at once.
pub const WAIT_STACK_BURST: u64 = 128;
/// A stack that takes long is paid for by so many times its own time, if that is more.
pub const WAIT_STACK_TIME_FACTOR: u64 = 200;
/// What is taken for the time between two waits of a thread in one place, at most, in nanoseconds: 69 s. Who waits for so
/// long has a stack before all others.
pub const WAIT_GAP_NS_MAX: u64 = 1 << 36;
/// What is taken where a thread never waited before, in nanoseconds: a thread that waits for all its life should
/// have a stack, and a thousand programs a second that live for a moment should not have all.
pub const WAIT_GAP_NS_FIRST: u64 = 1 << 30;
/// What is taken for a thread that lost its CPU, in nanoseconds, about as often as that comes: all have the same chance.
pub const WAIT_GAP_NS_PREEMPTED: u64 = 1 << 23;
/// The time between two waits of a thread at which a bucket at a quarter gives it a stack for certain, in
/// nanoseconds (from a half on every thread has one). Longer, and who waits for a second has no stack on a busy host,
/// be it the last wait of its life; shorter, and the bucket holds less than one stack there, and sells it below its price.
pub const WAIT_GAP_NS: u64 = 1 << 25;
/// The smallest chance of a stack, in parts of [`crate::wait::CHANCE_ONE`]: one of 16,384. What has no chance at
/// all would make the weights wrong; and a million switches a second must not take all that the bucket gives.
pub const WAIT_CHANCE_MIN: u64 = 4;
/// Longest wait that is believed, in nanoseconds: a year.
pub const WAIT_NS_MAX: u64 = 365 * 24 * 3600 * 1_000_000_000;
/// One of so many runs that send no stack takes its time; a power of two.
pub const SWITCHES_PER_CLOCK_READ: u64 = 128;
/// Threads whose waits are known, at least and at most (300 bytes each, of memory that is taken at once: the
/// scheduler cannot wait for more). The loader chooses four times as many as the host has.
pub const THREADS_MIN: usize = 4096;
/// See [`THREADS_MIN`].
pub const THREADS_MAX: usize = 262_144;
/// Ring buffer of waits, bytes for each CPU: 50 stacks of 1 KiB a second for four seconds, the ends of threads, and
/// as many copies of stacks as may be made at once.
pub const WAIT_RING_BYTES_PER_CPU: u32 = 512 << 10;

/// Smallest ring buffer that is chosen, in bytes: it also holds the notes of a start.
pub const RING_BYTES_MIN: u32 = 256 << 10;
/// Largest ring buffer that is chosen, in bytes; a person may choose another.
pub const RING_BYTES_MAX: u32 = 16 << 20;
/// What one sample is reckoned at when the ring buffer's size is chosen, in bytes: 120 frames.
pub const RING_BYTES_PER_SAMPLE: u32 = 1 << 10;
/// For how long the ring buffer holds samples when nobody reads, in seconds: an agent that loads the
/// tables of a large binary on a busy host is away for a second or two.
pub const RING_SECONDS: u32 = 4;
/// What is added to the ring buffer's size for copies of the stack, bytes for each CPU.
pub const RING_BYTES_FOR_STACKS: u32 = 224 << 10;
/// Time in which one process and page is noted as unknown at most once, in nanoseconds: longer than
/// reading `/proc/PID/maps` takes, shorter than anyone waits.
pub const NOTE_INTERVAL_NS: u64 = 10_000_000;
/// Slots of the table that holds notes back (16 bytes each). Two keys of one slot only cost a note.
pub const NOTE_SLOTS: usize = 1024;
/// Time before a page or a chunk that was replaced is used again, in nanoseconds. A walk that still
/// reads it ends after [`WALK_NS_MAX`]; the rest is for a virtual CPU that is not scheduled.
pub const REUSE_DELAY_NS: u64 = 200_000_000;
/// Processes in the filter of `record --pid` at one time, children included (70 bytes each, only where there is
/// a filter). A child beyond is counted and not sampled.
pub const FILTER_PROCESSES_MAX: usize = 32_768;

/// Unwind rows in one chunk, the value size of a table map (4096 x 6 bytes, and 1 KiB for the search).
pub const CHUNK_ROWS: usize = 4096;
/// Groups of 16 rows in one chunk, the middle level of the search.
pub const CHUNK_GROUPS: usize = CHUNK_ROWS / 16;
/// Blocks of 16 groups in one chunk, the upper level of the search.
pub const CHUNK_BLOCKS: usize = CHUNK_GROUPS / 16;
/// Chunks in one slab: an update of a map-in-map waits an RCU grace period (11.8 ms measured), so
/// slabs are few and large.
pub const SLAB_CHUNKS: usize = 128;
/// Slabs in all: 64 x 128 x 4096 = 33.5 million rows.
pub const SLABS_MAX: usize = 64;
/// Chunks in all.
pub const CHUNKS_MAX: usize = SLAB_CHUNKS * SLABS_MAX;
/// Distinct unwind rules of all tables (256 KiB; a row could name 65,536). 1,412 were counted on a whole
/// developer machine.
pub const RULES_MAX: usize = 16_384;

/// Rules found lately that a CPU remembers, 32 bytes each; a power of two, because the programs mask the
/// index. Four programs that keep two CPUs busy had 110 addresses on their stacks in five seconds.
pub const RECENT_RULES: usize = 512;

/// Mappings in one page of the mapping table.
pub const MAPPINGS_PER_PAGE: usize = 64;
/// Mapping pages in all (2 KiB each).
pub const MAPPING_PAGES_MAX: usize = 8192;
/// Mapping pages in one slab (512 KiB), made when needed: a host with few processes pays for few.
pub const PAGE_SLAB_PAGES: usize = 256;
/// Slabs of mapping pages in all.
pub const PAGE_SLABS_MAX: usize = MAPPING_PAGES_MAX / PAGE_SLAB_PAGES;
/// Mapping pages of one process: 8,192 mappings.
pub const MAPPING_PAGES_PER_PROCESS_MAX: usize = 128;
/// Processes with a mapping table.
pub const PROCESSES_MAX: usize = 32_768;

const _: () = assert!(CHUNK_BLOCKS == 16, "the search has three levels of 16");
const _: () = assert!(RING_BYTES_FOR_STACKS as u64 == STACK_BURST * STACK_BYTES_MAX as u64);
const _: () = assert!(SLAB_CHUNKS.is_power_of_two() && CHUNK_ROWS.is_power_of_two());
/// Chunks of one table: the walker's search has 12 steps. 16.7 million rows; the largest file seen has
/// 1.24 million.
pub const CHUNKS_PER_TABLE_MAX: usize = 4095;

const _: () = assert!(KERNEL_FRAMES_MAX + USER_FRAMES_MAX <= RECORD_FRAMES);
const _: () = assert!(CHUNKS_MAX <= u16::MAX as usize, "a mapping holds its chunk count in a u16");
