//! Every limit of the agent's user-space half, with its unit and its reason. Limits of the kernel side
//! are in `agent_ebpf::limits`.

// aggregate: one window.

/// Observations in one window: 5 s at 999 Hz on 200 busy CPUs. A time takes 8 bytes.
pub const WINDOW_OBSERVATIONS_MAX: usize = 1_000_000;
/// Folded samples (distinct process, thread, stack) in one window; about 64 bytes each.
pub const WINDOW_SAMPLES_MAX: usize = 262_144;
/// Distinct stacks in one window; at 60 frames 240 bytes each, so about 64 MiB at the very worst mix.
pub const WINDOW_STACKS_MAX: usize = 131_072;
/// Distinct locations in one window; with names about 200 bytes each.
pub const WINDOW_LOCATIONS_MAX: usize = 262_144;
/// Process instances in one window.
pub const WINDOW_PROCESSES_MAX: usize = 65_536;

// process, normalize, engine, symbolize::kernel

/// Executable mappings kept for one process; what the kernel side can hold. Further ones are counted.
pub const MAPPINGS_PER_PROCESS_MAX: usize =
    agent_ebpf::limits::MAPPINGS_PER_PAGE * agent_ebpf::limits::MAPPING_PAGES_PER_PROCESS_MAX;
/// Bytes read of one `/proc/PID/maps`: a V8 process with 128,000 lines has about 12 MB.
pub const MAPS_BYTES_MAX: u64 = 64 << 20;
/// Bytes of one line of `/proc/PID/maps`: a path of `PATH_MAX` (4,096) and the fields before it, twice
/// that because newlines in paths are escaped. Longer lines are counted and passed over.
pub const MAPS_LINE_BYTES_MAX: usize = 8192;
/// Bytes read of one `/proc/PID/environ`. Only two variables are wanted; the kernel allows 6 MiB.
pub const ENVIRON_BYTES_MAX: u64 = 1 << 20;
/// Bytes of one environment variable that is kept: the two wanted ones are short, hostile ones are not.
pub const ENVIRON_VALUE_BYTES_MAX: usize = 16 << 10;
/// Bytes read of one `/proc/PID/cgroup`: 14 hierarchies with paths of `PATH_MAX`.
pub const CGROUP_BYTES_MAX: u64 = 64 << 10;
/// Bytes read of one `/proc/PID/stat`: 52 numbers and a name of 64 bytes.
pub const STAT_BYTES_MAX: u64 = 4096;
/// Bytes of a service name; OpenTelemetry's own examples stay below 100.
pub const SERVICE_NAME_BYTES_MAX: usize = 255;
/// Bytes of an executable path kept with a process: `PATH_MAX`.
pub const PATH_BYTES_MAX: usize = 4096;
/// Process instances known at once, ended ones in their grace included: twice what the kernel side
/// holds. Further ones are counted; their samples ship with what they carry themselves.
pub const INSTANCES_MAX: usize = 2 * agent_ebpf::limits::PROCESSES_MAX;
/// Programs that one process instance ran and that samples may still belong to. A process that
/// executes in a loop drops the oldest.
pub const IMAGES_PER_INSTANCE_MAX: usize = 8;
/// Mapping generations of one program that samples may still carry.
pub const GENERATIONS_PER_IMAGE_MAX: usize = 32;
/// How long a process is remembered after its end, nanoseconds: its last samples are at most two polls
/// (200 ms) behind, times ten for a busy host.
pub const EXIT_GRACE_NS: u64 = 2_000_000_000;
/// How long a replaced mapping generation is remembered, nanoseconds: as [`EXIT_GRACE_NS`].
pub const GENERATION_GRACE_NS: u64 = EXIT_GRACE_NS;
/// How long a sample of an unknown process waits for lifecycle records, nanoseconds: two polls.
pub const SAMPLE_WAIT_NS_MAX: u64 = 200_000_000;
/// Samples that wait at once: 256 CPUs at 997 Hz for half a second. Beyond, the oldest go on at once
/// with what is known of them.
pub const SAMPLES_WAITING_MAX: usize = 131_072;
/// How far a record may be written after the time that it carries, nanoseconds: the walk of a stack is
/// bounded at 0.5 ms, the rest is the copy.
pub const RECORD_DELAY_NS_MAX: u64 = 2_000_000;
/// Foreign files known at once. Least recently used ones that no process maps go first.
pub const FILES_MAX: usize = 16_384;
/// Descriptors of foreign files kept open for naming; the rest is opened again when needed. Half of the
/// usual soft limit of 1,024 descriptors.
pub const FILES_OPEN_MAX: usize = 512;
/// Time a descriptor is kept open without use, nanoseconds: an open file keeps a mount busy.
pub const FILE_OPEN_NS_MAX: u64 = 30_000_000_000;
/// Places remembered for one file where it can be opened again.
pub const FILE_PLACES_MAX: usize = 4;
/// Bytes of a foreign file that is looked at: larger than any executable met (1.5 GB with debug
/// information), small enough that 64-bit arithmetic on it is safe.
pub const FOREIGN_FILE_BYTES_MAX: u64 = 8 << 30;
/// Bytes of a vDSO: 8 KiB on Linux 6.18, x86-64.
pub const VDSO_BYTES_MAX: u64 = 64 << 10;
/// Distinct vDSO images (64 and 32 bit, and what a hostile process pretends).
pub const VDSOS_MAX: usize = 4;
/// Unwind rows loaded at once over all files: 16 Mi rows of 6 bytes are 96 MiB of BPF memory, half of
/// the agent's budget. A whole developer machine has 3.65 million.
pub const UNWIND_ROWS_MAX: usize = 16 << 20;
/// Threads that compile unwind tables: two, so that one file of a million rows does not hold up others.
pub const TABLE_WORKERS: usize = 2;
/// Tables compiled ahead of their load into BPF memory: what waits here is held twice.
pub const TABLES_READY_MAX: usize = 8;
/// Time given to the scan of existing processes and the load of their tables before sampling starts,
/// nanoseconds. What is not done by then is done on demand.
pub const START_SCAN_NS_MAX: u64 = 15_000_000_000;
/// Shortest time between two reads of `/proc/PID/maps` of one process, nanoseconds; it doubles while
/// reads bring nothing new.
pub const MAPS_READ_INTERVAL_NS_MIN: u64 = 20_000_000;
/// Longest such time, nanoseconds.
pub const MAPS_READ_INTERVAL_NS_MAX: u64 = 30_000_000_000;
/// Processes checked for a missed exit per poll: 20,000 processes are seen once in 32 s.
pub const EXIT_CHECKS_PER_POLL: usize = 64;
/// Poll of the kernel side when nothing is going on, milliseconds.
pub const POLL_MS: u64 = 100;
/// Poll while unwind tables are being made, milliseconds: a table must not wait for the next tick.
pub const POLL_BUSY_MS: u64 = 5;

/// Kernel symbols kept: 61,000 functions of a distribution kernel and 100,000 of modules, doubled.
pub const KERNEL_SYMBOLS_MAX: usize = 400_000;
/// Bytes of kernel symbol names kept (25 bytes a name).
pub const KERNEL_NAMES_BYTES_MAX: usize = 16 << 20;
/// Bytes read of `/proc/kallsyms`: 122,000 lines are 5 MB, with all data symbols of a large kernel 30.
pub const KALLSYMS_BYTES_MAX: u64 = 128 << 20;
/// Bytes of one line of `/proc/kallsyms`: `KSYM_NAME_LEN` is 512 since Linux 6.1, and a module's name.
pub const KALLSYMS_LINE_BYTES_MAX: usize = 1024;
/// Shortest time between two reads of `/proc/kallsyms`, nanoseconds (one read takes about 60 ms).
pub const KALLSYMS_READ_INTERVAL_NS_MIN: u64 = 30_000_000_000;
/// Modules or BPF programs' text: a name without a neighbour above it covers at most this much, bytes.
pub const KERNEL_FUNCTION_BYTES_MAX: u64 = 1 << 20;
