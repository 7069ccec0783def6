//! Limits of waits: where they are probed, what they are for, and how many are kept.

use std::time::Duration;

// probes: where code of others is probed.

/// Bytes of the names of one Go program that are searched: the largest seen, of 144 MB of tables, have 30 MB.
pub const GO_NAMES_BYTES_MAX: u64 = 64 << 20;
/// Bytes of a function that is read for its calls and returns: Go's semaphores have about 100, glibc's locks 2,000.
pub const PROBED_FUNCTION_BYTES_MAX: u64 = 16 << 10;
/// Returns of a function that is probed: those of Go's semaphores have one.
pub const PROBED_RETURNS_MAX: usize = 4;

/// Bytes of code of a C library, or of a program that one is linked into, that are searched, in all its segments: glibc has
/// 1.6 MB.
pub const PROBED_CODE_BYTES_MAX: u64 = 32 << 20;
/// Bytes of its call frame information: glibc has 160 KB.
pub const PROBED_FRAME_BYTES_MAX: u64 = 8 << 20;
/// Functions of one file that are decoded to see whether they wait: 15 of glibc.
pub const PROBED_FUNCTIONS_MAX: usize = 4096;
/// CPU time of the search of one file, nanoseconds: glibc takes 2 ms.
pub const PROBED_FILE_CPU_NS_MAX: u64 = 2_000_000_000;
/// Calls that are probed in one file: glibc 2.36 has 20. A file with more is none of the C libraries,
/// and not probed.
pub const PROBED_CALLS_MAX: usize = 64;

/// Places that a Go program has at most: the entry and the returns of each of four functions.
pub const GO_PLACES_MAX: usize = 4 * (1 + PROBED_RETURNS_MAX);

/// Files that are probed at one time, Go programs and C libraries; as many again wait for their turn. A host that runs
/// more has other cares.
pub const PROBED_FILES_MAX: usize = 1024;
/// Places that are probed at one time in all files: 200 copies of glibc have as many.
pub const PROBED_PLACES_MAX: usize = 4096;
/// Descriptors that probes take at one time, in all files: one for each form of locks of a file where one link has all
/// their places (Linux 6.12), so of 128 copies of glibc; elsewhere one for each place, so of 12. Those of an agent that is
/// killed the kernel takes away one after the other, 20 to 75 ms each: 5 to 19 s, for which its process is still there.
pub const PROBED_DESCRIPTORS_MAX: usize = 256;
/// Threads that take probes away: each waits for grace periods of the kernel, which they share.
pub const PROBE_ENDERS_MAX: usize = 32;
/// For so long the engine's end waits for that: then the agent ends, and the kernel goes on.
pub const PROBES_END_PATIENCE: Duration = Duration::from_secs(5);
/// Steps that the thread of probes does, orders and places of C libraries, before it takes away what is to be left: as long
/// as others come soon, they share the grace periods.
pub const PROBE_LEAVING_STEPS_MAX: u32 = 64;
/// Times that the kernel may refuse a file, because a process that maps it is short of memory for a moment. Then it is left
/// alone.
pub const PROBE_REFUSALS_MAX: u32 = 5;
/// Orders to the thread of probes on their way; what finds no room is asked again when the window ends.
pub const PROBE_ORDERS_MAX: usize = 256;

/// Calls of a probed function by which the cost of a probe is measured: 20 to 50 ms of a thread of its own.
pub const PROBE_COST_CALLS: u32 = 500;
/// Share of all CPUs that probes may cost whoever meets them: one in 100, those of Go programs and those of C libraries. The
/// programs that cost most are left alone for a while.
pub const PROBE_SHARE_MAX: u64 = 100;
/// For so long, in windows: a minute.
pub const PROBE_PAUSE_WINDOWS: u32 = 12;

// waits: what a wait is for.

/// Functions of a stack that are looked at, from its leaf on: a JVM's monitor stands 10 above the kernel.
pub const WAIT_FRAMES_MAX: usize = 32;

// engine::off_cpu, aggregate: waits on their way.

/// Threads whose waits are known at once: what the kernel side holds.
pub const WAIT_THREADS_MAX: usize = agent_ebpf::limits::THREADS_MAX;
/// Waits of one thread whose stack was taken in one window: five seconds of all that its CPU sends, doubled
/// because it may move.
pub const WAITS_PER_THREAD_MAX: usize = 4096;
/// Windows after which a thread is forgotten that the kernel side knows no more: a reading can miss one.
pub const READINGS_WITHOUT_THREAD_MAX: u64 = 3;
/// Waits of one window with a stack whose times are kept, to see what holders of locks did meanwhile: 24 bytes each, five
/// seconds of what 64 CPUs send.
pub const WINDOW_SPANS_MAX: usize = 65_536;
/// Processes whose threads' numbers in their PID namespace are kept.
pub const INNER_PROCESSES_MAX: usize = 4096;
/// Threads that are read about in one window for that, 20 us each.
pub const INNER_THREADS_READ_MAX: usize = 2048;
/// Threads that are looked at with one poll, to see which have waited since before the agent came: 30 us each.
pub const ASLEEP_READ_PER_POLL: usize = 200;
/// Distinct waits (process, thread, stack, reason) in one window; about 150 bytes each.
pub const WINDOW_WAITS_MAX: usize = 262_144;
