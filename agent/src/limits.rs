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

// export: requests and their queue.

/// Uncompressed bytes of one request: receivers refuse messages of more than 4 MiB by default (gRPC's
/// own default in every language).
pub const EXPORT_REQUEST_BYTES_MAX: usize = 3_500 * 1024;
/// Bytes of one string on the wire (names, paths): longer ones are cut. C++ names above 4 KiB exist and
/// nobody reads their ends.
pub const EXPORT_STRING_BYTES_MAX: usize = 4096;
/// Timestamps in one sample: 1 MiB, so that a sample fits into a request.
pub const EXPORT_TIMESTAMPS_PER_SAMPLE_MAX: usize = 131_072;
// --- elf, unwind, symbolize: foreign files. What a hostile or huge file can cost. ---

/// Program headers of one file. The largest count seen is 15.
pub const ELF_SEGMENTS_MAX: u64 = 1024;
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

/// Bytes of one call frame section (`.eh_frame`, `.debug_frame`), decompressed. The largest seen is
/// 60 MB (`ClickHouse`).
pub const UNWIND_SECTION_BYTES_MAX: u64 = 256 << 20;
/// Rows of one file: an eighth of all rows that the kernel side holds (33.5 million).
pub const UNWIND_ROWS_PER_FILE_MAX: usize = 4 << 20;
/// A gap of more bytes between two functions' call frame information is code without any; a shorter
/// one is alignment.
pub const UNWIND_PADDING_BYTES_MAX: u64 = 15;
/// Bytes that the entry function of an executable is taken to have where nothing bounds it (musl's has 22).
pub const UNWIND_ENTRY_BYTES_MAX: u64 = 32;

/// Symbols of one file that are kept in memory, 40 bytes each: 80 MiB. An unstripped browser has 0.8
/// million.
pub const SYMBOLS_PER_FILE_MAX: usize = 2 << 20;
/// Symbols that one look-up walks back over. Nested and aliased symbols come in tens.
pub const SYMBOL_WALK_MAX: usize = 4096;
/// A symbol without size names at most this many bytes, in assembly that states none.
pub const SYMBOL_UNSIZED_BYTES_MAX: u64 = 4096;
/// Bytes of symbol tables kept, for each of two generations.
pub const SYMBOL_TABLES_BYTES_MAX: usize = 96 << 20;
/// Named addresses kept, for each of two generations (about 200 bytes each).
pub const NAMES_CACHED_MAX: usize = 65_536;

/// Longest linkage name that is demangled, in bytes. Longer ones are template expansions nobody reads.
pub const DEMANGLE_INPUT_BYTES_MAX: usize = 4096;
/// Longest name that demangling may give, in bytes.
pub const DEMANGLE_OUTPUT_BYTES_MAX: usize = 16 << 10;
/// Nesting of a mangled name; each level costs stack.
pub const DEMANGLE_RECURSION_MAX: u32 = 96;

/// Bytes of debug information of one file that are used for lines and inlined functions, decompressed.
/// Beyond, functions are named without them.
pub const DEBUG_INFO_BYTES_MAX: u64 = 96 << 20;
/// Files whose debug information is held at once. Each costs one descriptor and its copied sections.
pub const DEBUG_FILES_MAX: usize = 8;
/// Bytes of debug information held over all files.
pub const DEBUG_INFO_TOTAL_BYTES_MAX: u64 = 192 << 20;
/// Time that a caller waits for lines and inlined functions of one batch, in milliseconds. They are a
/// bonus: without them functions are named all the same.
pub const DEBUG_INFO_WAIT_MS_MAX: u64 = 3000;
/// Inlined functions at one address; deeper chains are cut at the outer end.
pub const INLINED_FUNCTIONS_MAX: usize = 128;
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
/// Bytes of the kernel's configuration: 250 KB on a distribution kernel.
pub const KERNEL_CONFIG_BYTES_MAX: u64 = 4 << 20;
