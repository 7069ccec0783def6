//! Every limit of the agent's user-space half, with its unit and its reason. Limits of the kernel side
//! are in `agent_ebpf::limits`.

mod bpf;
mod export;
mod naming;
mod tables;
mod waits;

pub use bpf::*;
pub use export::*;
pub use naming::*;
pub use tables::*;
pub use waits::*;

use std::time::Duration;

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
/// Mappings of a program, in all sets that were true until another file took a place in them: samples that are held
/// are of that time. A program of ten mappings may replace one a hundred times in [`HELD_FOR_TABLE_NS_MAX`].
pub const MAPPINGS_REPLACED_MAX: usize = 1024;
/// Reported mappings that are laid over the known ones at once: each is held against the others.
pub const MAPPINGS_TAKEN_IN_MAX: usize = 256;
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
/// Bytes read of one `/proc/PID/stat`: 52 numbers and a name of 64 bytes; `syscall` has nine.
pub const STAT_BYTES_MAX: u64 = 4096;
/// Bytes of a service name; OpenTelemetry's own examples stay below 100.
pub const SERVICE_NAME_BYTES_MAX: usize = 255;
/// Bytes of an executable path kept with a process: `PATH_MAX`.
pub const PATH_BYTES_MAX: usize = 4096;
/// Process instances known at once, ended ones in their grace included: twice what the kernel side
/// holds. Further ones are counted; their samples ship with what they carry themselves.
pub const INSTANCES_MAX: usize = 2 * agent_ebpf::limits::PROCESSES_MAX;
/// Programs that one process instance ran and that samples may still belong to. A process that
/// executes in a loop drops the oldest: samples are held for 300 ms and more until their tables come, which is this many
/// execs of the fastest that was seen.
pub const IMAGES_PER_INSTANCE_MAX: usize = 1024;
/// Mapping generations of one program that samples may still carry.
pub const GENERATIONS_PER_IMAGE_MAX: usize = 32;
/// Bytes of their mappings, where there is more than one: 8,192 mappings take half a megabyte.
pub const GENERATIONS_BYTES_MAX: usize = 1 << 20;
/// Bytes of all mappings that the kernel reported and nobody has looked at, of all processes: four thousand that
/// sleep since they began, with 20 mappings of 200 bytes each. Others are forgotten, and read in `/proc` when their
/// process is sampled.
pub const REPORTED_BYTES_MAX: u64 = 16 << 20;
/// How long after an exec the records of its mappings may take, nanoseconds: the kernel reads the file and
/// its loader in between, from a disk at worst, and may be preempted by others.
pub const EXEC_RECORDS_NS: u64 = 1_000_000_000;
/// How long a process is remembered after its end, nanoseconds: its last samples are at most two polls
/// behind, times ten for a busy host.
pub const EXIT_GRACE_NS: u64 = 2_000_000_000;
/// Two statements of one process's start that are nearer than this are the same start, nanoseconds:
/// `/proc` counts in ticks of 10 ms.
pub const START_TOLERANCE_NS: u64 = 20_000_000;
/// Age of a program from which what `/proc` says of it is final, nanoseconds: an exec puts the executable
/// and the environment in place one after the other, and may wait for a disk in between.
pub const IDENTITY_SETTLED_NS: u64 = 200_000_000;
/// cgroups whose container is remembered for processes that are gone.
pub const CGROUPS_MAX: usize = 4096;
/// Foreign files known at once. Least recently used ones that no process maps go first; while all are mapped, code
/// of further ones is anonymous, and counted.
pub const FILES_MAX: usize = 16_384;
/// Bytes of what is known of all of them, paths above all: 16,384 files with paths of 100 bytes have 22 MB.
pub const FILES_BYTES_MAX: usize = 32 << 20;
/// Age of a file's last change, when it was mapped, from which on it is known not to have changed since, nanoseconds: two
/// clocks, the file system's being a tick of the kernel's late.
pub const FILE_UNCHANGED_NS: u64 = 100_000_000;
/// Time before room is looked for again, if all files are mapped, nanoseconds: 16,384 take 1 ms.
pub const FILES_FULL_NS: u64 = 1_000_000_000;
/// Descriptors of foreign files and of their debug files kept open for naming; the rest is opened again when needed. Half of the
/// usual soft limit of 1,024 descriptors.
pub const FILES_OPEN_MAX: usize = 512;
/// Allocations of at least this many bytes are mapped on their own: the C library's own first threshold.
pub const ALLOCATION_MAPPED_BYTES_MIN: i32 = 128 << 10;
/// Free memory of more bytes at the end of a thread's heap is given back. What a window takes is less, and
/// comes again with the next one: given back at the C library's own first threshold, 128 KiB, it took 200
/// system calls a second and as many page faults.
pub const ALLOCATION_KEPT_BYTES_MAX: i32 = 2 << 20;
/// Descriptors of this process: three for each of 1,024 CPUs, files, sockets.
pub const DESCRIPTORS_MAX: u64 = 16_384;
/// Time a descriptor is kept open without use, nanoseconds: an open file keeps a mount busy.
pub const FILE_OPEN_NS_MAX: u64 = 30_000_000_000;
/// Places remembered for one file where it can be opened again.
pub const FILE_PLACES_MAX: usize = 4;
/// Bytes of a foreign file that is looked at: larger than any executable met (1.5 GB with debug
/// information), small enough that 64-bit arithmetic on it is safe.
pub const FOREIGN_FILE_BYTES_MAX: u64 = 8 << 30;
/// Bytes of a vDSO (8 KiB on Linux 6.18, x86-64) or of code that is read from a process's memory.
pub const VDSO_BYTES_MAX: u64 = 64 << 10;
/// Time given to the scan of existing processes and the load of their tables before sampling starts,
/// nanoseconds. What is not done by then is done on demand.
pub const START_SCAN_NS_MAX: u64 = 15_000_000_000;
/// Processes read at the start between two looks at the lifecycle records: their buffers are small.
pub const SCAN_PROCESSES_PER_POLL: usize = 16;
/// Distinct thread names kept: a host has tens of thousands of threads and hundreds of names.
pub const THREAD_NAMES_MAX: usize = 16_384;
/// Shortest time between two reads of `/proc/PID/maps` of one process, nanoseconds; it doubles while
/// reads bring nothing new.
pub const MAPS_READ_INTERVAL_NS_MIN: u64 = 20_000_000;
/// Longest such time, nanoseconds.
pub const MAPS_READ_INTERVAL_NS_MAX: u64 = 30_000_000_000;
/// Age of what is known of the mappings of a process that is sampled from which on they are listed again, nanoseconds:
/// wrong names are worse than none. It doubles until what is known was wrong once: who moves code does so at its start, or often.
pub const VERIFY_INTERVAL_NS_MIN: u64 = 1_000_000_000;
/// Longest such age.
pub const VERIFY_INTERVAL_NS_MAX: u64 = 8_000_000_000;
/// Such a listing is followed by a pause, for all processes, of this many times the CPU time that it took: a fifth of a
/// percent of a CPU.
pub const VERIFY_PAUSE_FACTOR: u64 = 500;
/// Processes checked for a missed exit, or read again after lost records, per poll: 20,000 processes
/// take 32 s, and one poll stays below a millisecond.
pub const PROCESS_CHECKS_PER_POLL: usize = 64;
/// Time between two looks at one process whose threads end and are not counted, nanoseconds: it may end some with
/// every microsecond.
pub const EXIT_CHECK_INTERVAL_NS: u64 = 1_000_000_000;
/// Time between two checks of all processes for a missed exit, nanoseconds. After lost records it is
/// done at once, after the start when [`EXIT_GRACE_NS`] is over.
pub const PROCESS_CHECK_INTERVAL_NS: u64 = 300_000_000_000;
/// Nice value of the engine's thread and of those that look at files and compile tables: they run for a few
/// milliseconds a second, and what they do cannot wait behind a dozen programs that spin.
pub const ENGINE_NICE: i32 = -10;
/// A read of `/proc/PID/maps` is followed by a pause of this many times what it took: a process with
/// 128,000 mappings that maps new code all the time may not cost more than 2 % of a CPU.
pub const MAPS_READ_PAUSE_FACTOR: u64 = 50;
/// Threads that look behind mappings: two, so that one large file does not hold up the others.
pub const LOOK_THREADS: usize = 2;
/// Such threads with those that wait for a file system that does not answer. Each has a stack of 2 MiB,
/// of which it has touched a few pages.
pub const LOOK_THREADS_MAX: usize = 16;
/// Time that the engine waits for the files of one process: a cold disk answers within it. Nothing is
/// waited for while every thread is stuck.
pub const LOOK_WAIT: Duration = Duration::from_millis(50);
/// Time that the engine waits for looks between two polls, in all: the ring buffer has room for 4 s. Answers that
/// come later are taken then.
pub const LOOK_WAIT_PER_POLL: Duration = Duration::from_millis(100);
/// Looks that wait for a thread; one is the mappings of one process.
pub const LOOK_QUEUE_MAX: usize = 1024;
/// Bytes of what they ask, paths above all: a mapping takes 200.
pub const LOOK_QUEUE_BYTES_MAX: usize = 16 << 20;
/// Answers that came late and are kept for who asks again, each a process's mappings at most; and how long, in
/// nanoseconds: who asked is told with the next poll.
pub const LOOKS_KEPT_MAX: usize = 64;
/// Bytes of them: 64 processes with a thousand mappings have 13 MB.
pub const LOOKS_KEPT_BYTES_MAX: usize = 16 << 20;
/// See [`LOOKS_KEPT_MAX`].
pub const LOOK_KEPT_NS: u64 = 5_000_000_000;
/// Processes noted for one path at which a look is stuck; further ones are looked at with the next change.
pub const LOOKS_HELD_MAX: usize = 4096;
/// Shortest time between two rounds that read all processes again after lost records, nanoseconds: one
/// listing of 20,000 processes takes 20 ms.
pub const LOST_RECOVERY_INTERVAL_NS: u64 = 2_000_000_000;
/// Poll of the kernel side when nothing is going on, milliseconds: a library that takes another's place is
/// known, and stacks through it whole again, within a tenth of a second.
pub const POLL_MS: u64 = 80;
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
/// Shortest time between two reads of `/proc/kallsyms`, nanoseconds (one read takes about 60 ms); it
/// doubles while reads do not bring the name that was missed.
pub const KALLSYMS_READ_INTERVAL_NS_MIN: u64 = 10_000_000_000;
/// Longest such time, and the age at which names of modules and BPF programs are read again before they
/// are used, nanoseconds: their addresses are used again by others.
pub const KALLSYMS_READ_INTERVAL_NS_MAX: u64 = 300_000_000_000;
/// Modules or BPF programs' text: a name without a neighbour above it covers at most this much, bytes.
pub const KERNEL_FUNCTION_BYTES_MAX: u64 = 1 << 20;
/// BPF programs and trampolines that come and go, those that are gone included: a host with a thousand
/// programs of a dozen functions.
pub const KERNEL_REGIONS_MAX: usize = 16_384;
/// Time that one that is gone is remembered at least, nanoseconds: a window of samples and its wait for names.
pub const KERNEL_REGION_KEPT_NS: u64 = 60_000_000_000;
/// Shortest time between two looks whether modules came or went, nanoseconds (`/proc/modules` has some KiB).
pub const MODULES_LOOK_INTERVAL_NS: u64 = 1_000_000_000;
/// Bytes of `/proc/modules` that are compared: 200 modules have 15 KiB.
pub const MODULES_BYTES_MAX: u64 = 1 << 20;
/// Bytes of the kernel's configuration: 250 KB on a distribution kernel.
pub const KERNEL_CONFIG_BYTES_MAX: u64 = 4 << 20;
/// Bytes of `/proc/cpuinfo` that are read for the flags of the first CPU: each has about 2 KB.
pub const CPU_INFO_BYTES_MAX: u64 = 64 << 10;

/// How long a sample that brought its stack waits for its tables, nanoseconds: 100 ms is the goal for a
/// table, 300 ms for one of a million rows.
pub const HELD_NS_MAX: u64 = 300_000_000;
/// The same while nothing but the table of a known file is missing: those of a dozen programs that begin at once, of a
/// million rows some, take so long on a busy host.
pub const HELD_FOR_TABLE_NS_MAX: u64 = 1_000_000_000;
const _: () = assert!(HELD_FOR_TABLE_NS_MAX < EXIT_GRACE_NS);
/// Time between two looks for the tables of one such sample, nanoseconds: its process may be published
/// several times while its tables come.
pub const HELD_TRY_INTERVAL_NS: u64 = 10_000_000;
/// How long the stack of a wait is held for its tables, nanoseconds: the wait may last, and a table of a million
/// rows take a second.
pub const HELD_WAIT_NS_MAX: u64 = 5_000_000_000;
/// Samples that wait in this way: the programs send 20 a second and CPU, so 6 for each CPU wait at once.
pub const HELD_SAMPLES_MAX: usize = 1024;
/// Bytes of their stacks.
pub const HELD_BYTES_MAX: usize = 16 << 20;

// --- elf, unwind, symbolize: foreign files. What a hostile or huge file can cost. ---

/// Program headers of one file. The largest count seen is 15.
pub const ELF_SEGMENTS_MAX: u64 = 128;
/// Bytes of a page: mappings begin and end at multiples of it, segments of a file do not.
pub const PAGE_BYTES: u64 = 4096;
/// Pages below a mapping that are looked at for the header of a file inside the file: 16 MiB.
pub const ELF_EMBEDDED_PAGES_MAX: u64 = 4096;
/// Headers there that are read.
pub const ELF_EMBEDDED_HEADERS_MAX: usize = 16;
/// Mappings of one file for which nothing was found; its others are not looked at.
pub const ELF_EMBEDDED_SEARCHES_MAX: u8 = 32;
/// Bytes of such a file: while it is read, it lies in memory.
pub const ELF_EMBEDDED_BYTES_MAX: u64 = 32 << 20;
/// Bytes of all such copies that are kept, and of all that are being made.
pub const ELF_EMBEDDED_COPIES_BYTES_MAX: u64 = 32 << 20;
/// Section headers of one file: 4 MiB of headers. Linked files have fewer than 100.
pub const ELF_SECTIONS_MAX: u64 = 65_536;
/// Bytes of section names.
pub const ELF_NAME_TABLE_BYTES_MAX: u64 = 4 << 20;
/// Bytes of one NUL-terminated string read by offset.
pub const ELF_STRING_BYTES_MAX: u64 = 32 << 10;
/// Bytes of one note segment or section that are looked at; a build id is 36 bytes.
pub const ELF_NOTE_BYTES_MAX: u64 = 64 << 10;
/// Note segments and sections of one file.
pub const ELF_NOTE_SEGMENTS_MAX: usize = 64;
/// Bytes of the dynamic table, and of one read in the dynamic symbols.
pub const ELF_DYNAMIC_BYTES_MAX: u64 = 64 << 10;
/// Symbols of one hash bucket that are compared; a sound table has a handful.
pub const ELF_HASH_CHAIN_MAX: usize = 4096;
/// Bytes of the data segment that are searched for Go's build information where there are no section
/// headers; Go's own reader searches as much (debug/buildinfo).
pub const ELF_RUNTIME_SCAN_BYTES_MAX: u64 = 1 << 20;

/// Bytes of one page of a file that is read in scattered pieces.
pub const PAGED_BYTES: u64 = 16 << 10;
/// Such pages in memory, for one file: 8 MiB.
pub const PAGED_PAGES_MAX: usize = 512;

/// Operations of one call frame expression that are looked at; the longest that is understood has nine.
pub const UNWIND_OPERATIONS_MAX: usize = 12;
/// Bytes of a Go function that are searched for the switch to another stack. The functions that have
/// one take up to 330.
pub const GO_SWITCH_BYTES_MAX: u64 = 1024;
/// Work that the rows of one Go file may take: steps of tables, bytes of names and of code looked at. The
/// largest programs have 0.4 million functions of ten steps each.
pub const GO_WORK_MAX: usize = 64 << 20;
/// Bytes of a Go function's name that tell what it does to the stack; the longest such name has 27.
pub const GO_SHAPE_NAME_BYTES_MAX: usize = 64;
/// Go functions of one file. The largest programs known have 0.4 million.
pub const GO_FUNCTIONS_MAX: u64 = 4 << 20;
/// Steps of one table of one Go function (stack depth, lines): generated code has tens of thousands.
pub const GO_TABLE_STEPS_MAX: usize = 1 << 20;
/// Go calls inlined into one another at one address.
pub const GO_INLINE_DEPTH_MAX: usize = 128;
/// Steps of tables walked to name one address.
pub const GO_NAME_STEPS_MAX: usize = 4 << 20;
/// Steps of tables walked to name the addresses of one batch (of one file in one window), checked after each
/// address: half a second.
pub const GO_BATCH_STEPS_MAX: usize = 32 << 20;
/// Bytes of data that are searched for Go's tables where no section names them.
pub const GO_SCAN_BYTES_MAX: u64 = 256 << 20;
/// Bytes of relocations that are searched for the words of Go's module data.
pub const GO_RELOCATION_BYTES_MAX: u64 = 128 << 20;

/// Bytes of one page of a file that is read entry by entry, in any order.
pub const SLOTTED_PAGE_BYTES: usize = 4 << 10;
/// Such pages in memory, for one section: 8 MiB.
pub const SLOTTED_PAGES_MAX: usize = 2048;

/// Sections of call frame information of one file: BOLT makes two, a linker with `--rosegment` one.
pub const UNWIND_SECTIONS_MAX: usize = 4;
/// Bytes of all sections of call frame information of one file. The largest seen are 60 MB (`ClickHouse`),
/// nine million rows are about 90. Nothing of it is kept in memory.
pub const UNWIND_SECTION_BYTES_MAX: u64 = 512 << 20;
/// Bytes of a `.debug_frame` that is stored compressed: it has to be kept in memory.
pub const UNWIND_DECOMPRESSED_BYTES_MAX: u64 = 32 << 20;
/// Bytes of a section, or of code, that are read at once.
pub const UNWIND_PIECE_BYTES: u64 = 1 << 20;
/// Functions of one file that have call frame information, 8 bytes each. The largest seen has 0.16 million.
pub const UNWIND_FUNCTIONS_MAX: usize = 4 << 20;
/// Bytes of one function's call frame information. The longest seen have some kilobytes.
pub const UNWIND_FDE_BYTES_MAX: usize = 1 << 20;
/// Bytes of what many functions share (a CIE); usually 24.
pub const UNWIND_CIE_BYTES_MAX: usize = 64 << 10;
/// Bytes of all of them in one file: `.debug_frame` has one for each object file.
pub const UNWIND_CIES_BYTES_MAX: usize = 8 << 20;
/// Bytes of call frame instructions run for one file, those of a shared CIE counted for each function.
/// `librustc_driver`'s 107,000 functions take 10 MB, nine million rows 90.
pub const UNWIND_WORK_BYTES_MAX: u64 = 256 << 20;
/// Functions of one file from which on a second thread reads half of them: 15 ms of work.
pub const UNWIND_HELPED_FUNCTIONS_MIN: usize = 16 << 10;
/// Functions that it reads in one go: 2 ms.
pub const UNWIND_BLOCK_FUNCTIONS: usize = 2048;
/// Rows of these, 24 bytes each: functions have ten on average. What has more is read by the thread that needs it.
pub const UNWIND_BLOCK_ROWS_MAX: usize = 64 << 10;
/// Blocks that wait to be put in their places.
pub const UNWIND_BLOCKS_AHEAD: usize = 2;
/// Rows of one file, 75 MB in the kernel and 38 on the way there: a third more than nine million. The
/// largest file seen has 1.24 million.
pub const UNWIND_ROWS_PER_FILE_MAX: usize = 12 << 20;
/// CPU time that the rows of one file may take, nanoseconds: 12 Mi rows take 4 s. The rest of the file has none then.
pub const UNWIND_CPU_NS_MAX: u64 = 8_000_000_000;
/// Functions, and instructions looked at where there is nothing else, between two looks at that clock: a system call,
/// against some microseconds for a function and 50 ns for an instruction.
pub const UNWIND_DEADLINE_FUNCTIONS: u64 = 64;
/// See [`UNWIND_DEADLINE_FUNCTIONS`].
pub const UNWIND_DEADLINE_INSTRUCTIONS: u64 = 4096;
const _: () = assert!(UNWIND_CPU_NS_MAX < TABLE_STUCK_NS);
/// Distinct rules of one file: five times the 785 of the largest, and a quarter of what all files share,
/// so that one hostile file does not take them all.
pub const UNWIND_RULES_PER_FILE_MAX: usize = 4096;
/// Bytes of code that are searched for a C library's code at the roots of stacks: 64 MiB take 10 ms.
pub const UNWIND_KNOWN_CODE_BYTES_MAX: u64 = 64 << 20;
/// Places that such code is found at; a program has two.
pub const UNWIND_KNOWN_CODE_MAX: usize = 4096;
/// Bytes of code of a function whose callee keeps the register that its frame hangs on, or of that callee: glibc's
/// have 200 and 700.
pub const UNWIND_CALLEE_BYTES_MAX: u64 = 16 << 10;
/// Calls of such functions in one file; glibc's loader has three.
pub const UNWIND_CALLEES_MAX: usize = 64;
/// Bytes of code of one file that rows are made of where nothing describes it, three more in memory for each. musl
/// has 0.4 million, a static busybox 1. A stretch that is longer is left to frame pointers.
pub const UNWIND_CODE_BYTES_MAX: u64 = 8 << 20;
/// Of these, what is looked into before a table is used for the first time: 30 ms. The rest comes later.
pub const UNWIND_CODE_SOON_BYTES: u64 = 128 << 10;
/// A table is used without the rest if it has a row for each so many bytes of that: `node` has one for 6, a static
/// program of musl none.
pub const UNWIND_CODE_LATER_BYTES_PER_ROW: u64 = 16;
/// Instructions looked at for that, those of shared code counted each time.
pub const UNWIND_CODE_INSTRUCTIONS_MAX: u64 = 4 << 20;
/// Of these, what a stretch of more than [`UNWIND_CODE_SOON_BYTES`] leaves to others: V8's in `node` takes all it may.
pub const UNWIND_CODE_INSTRUCTIONS_KEPT: u64 = UNWIND_CODE_INSTRUCTIONS_MAX / 8;
/// Instructions of one function; the largest of musl (`printf_core`) has 1,500.
pub const UNWIND_CODE_FUNCTION_INSTRUCTIONS_MAX: usize = 64 << 10;
/// Calls in one function that never return; the function is followed anew for each.
pub const UNWIND_CODE_CUTS_MAX: usize = 64;
/// Sections of code of one file that are looked into; a linked file has six.
pub const UNWIND_CODE_SECTIONS_MAX: usize = 64;
/// Bytes of symbol tables that are read to find where functions begin: 1.4 million symbols.
pub const UNWIND_CODE_SYMBOL_BYTES_MAX: u64 = 32 << 20;
/// Bytes of a stretch of code from which on the symbols are read for it, and the file's table is not kept on disk. What
/// linkers and C libraries put into every file is 300 bytes.
pub const UNWIND_CODE_LARGE_BYTES: u64 = 1024;
/// Places in one stretch of code that are known to begin a function; musl has 3,000.
pub const UNWIND_CODE_ENTRIES_MAX: usize = 128 << 10;
/// Jumps through tables, in one stretch of code.
pub const UNWIND_CODE_SWITCHES_MAX: usize = 16 << 10;
/// A gap of more bytes between two functions' call frame information is code without any; a shorter
/// one is alignment.
pub const UNWIND_PADDING_BYTES_MAX: u64 = 15;
/// The same between two Go functions, which are aligned to 32 bytes, to 64 with a profile.
pub const GO_PADDING_BYTES_MAX: u64 = 63;
/// Bytes that the entry function of an executable is taken to have where nothing bounds it (musl's has 22).
pub const UNWIND_ENTRY_BYTES_MAX: u64 = 32;
/// The same of a dynamic loader, whose entry does more (glibc's has 61).
pub const UNWIND_LOADER_ENTRY_BYTES_MAX: u64 = 64;

/// Symbols of one file that are kept in memory, 40 bytes each: 80 MiB. An unstripped browser has 0.8
/// million.
pub const SYMBOLS_PER_FILE_MAX: usize = 2 << 20;
/// Entries of one symbol table that are read at all: 192 MiB. Data, sections and what other files define
/// are listed too, and name no code; the largest table seen, of an unstripped browser, has a million.
pub const SYMBOLS_READ_PER_TABLE_MAX: u64 = 8 << 20;
/// Symbols that one look-up walks back over. Nested and aliased symbols come in tens.
pub const SYMBOL_WALK_MAX: usize = 4096;
/// A symbol without size names at most this many bytes, in assembly that states none.
pub const SYMBOL_UNSIZED_BYTES_MAX: u64 = 4096;
/// Bytes of one entry of call frame information that is looked at to find a function's bounds.
pub const FRAME_ENTRY_BYTES_MAX: u64 = 64 << 10;
/// Bytes of one procedure linkage table: 65,536 stubs.
pub const PLT_SECTION_BYTES_MAX: u64 = 1 << 20;
/// Bytes of one section of relocations that is searched for the stubs' targets. A browser's are 10 MB, and
/// its stubs' own section is small.
pub const PLT_RELOCATION_BYTES_MAX: u64 = 4 << 20;
/// Relocations of one file that are searched, over all its sections: one of the largest size and half as
/// many again. Each may cost a read, and 40 bytes of memory while the table is made.
pub const PLT_RELOCATIONS_PER_FILE_MAX: usize = 256 << 10;
/// Stubs of one file, 24 bytes each: twice what one full section of 16-byte stubs has.
pub const PLT_STUBS_PER_FILE_MAX: usize = 128 << 10;
/// Bytes of symbol tables kept, for each of two generations.
pub const SYMBOL_TABLES_BYTES_MAX: usize = 64 << 20;
/// Named addresses kept, for each of two generations (about 200 bytes each).
pub const NAMES_CACHED_MAX: usize = 65_536;

/// Bytes of `/proc/PID/status` that are looked at: a process in 65,536 groups has 700 KiB of them in front of
/// its pids, and no perf map then.
pub const PROCESS_STATUS_BYTES_MAX: u64 = 128 << 10;
/// Bytes of one line of a perf map. Longer ones are counted and name nothing.
pub const PERF_MAP_LINE_BYTES_MAX: usize = 4096;
/// Bytes of code that one entry of a perf map may name: the largest seen is 1.5 MB, of V8's builtins.
pub const PERF_MAP_ENTRY_BYTES_MAX: u64 = 256 << 20;
/// Named ranges of one perf map. A large Java server has 60,000 compiled methods.
pub const PERF_MAP_ENTRIES_MAX: usize = 1 << 18;
/// Bytes of names of one perf map (80 bytes a name are common).
pub const PERF_MAP_NAMES_BYTES_MAX: usize = 16 << 20;
/// Bytes of one perf map that are read at all: V8's grow as long as the program runs.
pub const PERF_MAP_BYTES_MAX: u64 = 1 << 30;
/// Bytes of one perf map that are read in one go; the rest is read the next time.
pub const PERF_MAP_READ_BYTES_MAX: u64 = 16 << 20;
/// Bytes of all perf maps that are read in a second.
pub const PERF_MAPS_READ_BYTES_PER_SECOND_MAX: u64 = 32 << 20;
/// Shortest time between two looks at one perf map, nanoseconds; without a map it doubles.
pub const PERF_MAP_LOOK_INTERVAL_NS_MIN: u64 = 1_000_000_000;
/// Longest such time.
pub const PERF_MAP_LOOK_INTERVAL_NS_MAX: u64 = 60_000_000_000;
/// Processes whose perf maps, or the lack of one, are remembered; least recently used ones go first.
pub const PERF_MAPS_MAX: usize = 4096;
/// Bytes of memory of all perf maps.
pub const PERF_MAPS_BYTES_MAX: usize = 48 << 20;
/// Processes whose maps wait to be read in the background.
pub const PERF_MAP_REQUESTS_MAX: usize = 64;
/// Time after which a thread that reads a perf map counts as stuck and is replaced, nanoseconds: 16 MiB take
/// 0.1 s.
pub const PERF_MAP_STUCK_NS: u64 = 400_000_000;
/// Time that who names waits for one map at most, those in front of it included.
pub const PERF_MAP_WAIT: Duration = Duration::from_millis(1200);
/// Threads that read perf maps, with those that are stuck.
pub const PERF_MAP_READERS_MAX: usize = 4;
/// Living processes whose last exec is known by its time, 12 bytes each; beyond it all are forgotten, and a map
/// counts that is not older than its process.
pub const PERF_MAP_EXECS_MAX: usize = 65_536;
/// Ranges of trampolines of one process that the walker is told of: `CPython` makes them in pieces of 64 KiB.
pub const PERF_MAP_TRAMPOLINE_RANGES_MAX: usize = 256;

/// Time given to the names of one batch of addresses (of one file in one window), nanoseconds. What is not
/// named by then is counted and asked for again with the next window. Lines and inlined functions have a
/// limit of their own.
pub const NAMES_BATCH_NS_MAX: u64 = 2_000_000_000;

/// Longest linkage name that is demangled, in bytes. Longer ones are template expansions nobody reads.
pub const DEMANGLE_INPUT_BYTES_MAX: usize = 4096;
/// Longest name that demangling may give, in bytes.
pub const DEMANGLE_OUTPUT_BYTES_MAX: usize = 16 << 10;
/// Nesting of a mangled name; each level costs stack.
pub const DEMANGLE_RECURSION_MAX: u32 = 96;

/// Bytes of debug information of one file that are used for lines and inlined functions, decompressed.
/// Beyond, functions are named without them. They are resident, and what is made of them comes on top.
pub const DEBUG_INFO_BYTES_MAX: u64 = 24 << 20;
/// Files whose debug information is held at once. Each costs one descriptor and its copied sections.
pub const DEBUG_FILES_MAX: usize = 8;
/// Bytes of debug information held over all files.
pub const DEBUG_INFO_TOTAL_BYTES_MAX: u64 = 32 << 20;
/// Files remembered to have no usable debug information, so that they are not copied again.
pub const DEBUG_INFO_REFUSED_MAX: usize = 4096;
/// Debug information that made room for another's is copied again no sooner than so many times what the last
/// copy took: half a percent of a CPU.
pub const DEBUG_INFO_AGAIN_FACTOR: u32 = 200;
/// Time that debug information of files may take that nobody has asked about before: as much at once, at the start, or
/// when a program of many libraries begins.
pub const DEBUG_INFO_WORK_MAX: Duration = Duration::from_secs(3);
/// Each second brings back this part of a second of it: a host that compiles makes files with debug information all
/// the time, which are to take 1 % of a CPU.
pub const DEBUG_INFO_WORK_DIVISOR: u32 = 100;
/// Time without a question after which all of it is let go, in seconds: names that were given stay cached.
pub const DEBUG_INFO_IDLE_SECONDS: u64 = 60;
/// Time that a caller waits for lines and inlined functions of one batch, in milliseconds. They are a
/// bonus: without them functions are named all the same.
pub const DEBUG_INFO_WAIT_MS_MAX: u64 = 3000;
/// Time that callers wait for them in all, at once; and the part of all time that they may wait from then on, as a
/// divisor. A window in which a host begins to work meets dozens of files with debug information, and their symbols
/// must not wait for it.
pub const DEBUG_INFO_WAITS_MAX: Duration = Duration::from_secs(1);
/// See [`DEBUG_INFO_WAITS_MAX`].
pub const DEBUG_INFO_WAITS_DIVISOR: u32 = 10;
/// Inlined functions at one address; deeper chains are cut at the outer end.
pub const INLINED_FUNCTIONS_MAX: usize = 128;
