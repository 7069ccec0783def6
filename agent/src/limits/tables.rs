//! Limits of unwind tables: what is in kernel memory, who is published when, what it costs to compile them and where
//! they are kept. What rows are compiled from has its limits among those of foreign files.

use std::time::Duration;

// process::publish: kernel memory and processes.

/// Kernel memory for the unwind rows of all files, bytes, unless a person chooses another: nearly
/// 16 Mi rows of 6 bytes, half of the agent's budget. A whole developer machine has 3.65 million rows.
pub const UNWIND_TABLE_BYTES_MAX: u64 = 96 << 20;
/// Smallest such budget that can be chosen, bytes: one file of a million rows and what lies beside it.
pub const UNWIND_TABLE_BYTES_MIN: u64 = 8 << 20;
/// Part of that budget that is kept free, as a divisor: what was evicted is used again only after a
/// delay, and a new table must not wait for it.
pub const UNWIND_TABLE_SPARE_DIVISOR: usize = 16;
/// A table that a sample met, or that was asked for, less than this long ago is not evicted, nanoseconds:
/// what is evicted while it is in use comes back at once, and pushes out the next.
pub const TABLE_KEEP_NS: u64 = 5_000_000_000;
/// Time before a table that found no room is asked for again, nanoseconds: it costs a compilation.
pub const TABLE_NO_ROOM_NS: u64 = 10_000_000_000;
/// Time before a table that waits for evicted memory is loaded again, nanoseconds: the delay after which
/// the kernel side uses memory again, and one poll.
pub const TABLE_PARKED_NS: u64 = agent_ebpf::limits::REUSE_DELAY_NS + 50_000_000;
/// Attempts to load a parked table: after each, more is evicted, because the free chunks must be in one
/// piece.
pub const TABLE_PARKED_ATTEMPTS_MAX: u32 = 4;
/// Chunks of such memory that are made before a table wants them: of two libraries of C++.
pub const TABLE_PREPARED_CHUNKS: usize = 32;
/// Time until the kernel is asked for such memory again that it refused, nanoseconds: to ask takes as long as to get it,
/// and what is short of memory stays so for seconds.
pub const TABLE_PREPARE_PAUSE_NS: u64 = 1_000_000_000;
/// Rows of tables that are parked, together; 6 bytes each.
pub const TABLES_PARKED_ROWS_MAX: usize = 12 << 20;
/// Age of a change of a process's mappings from which on it is published although nobody has sampled it,
/// nanoseconds. 7 of 8 processes of a build are over by then.
pub const PUBLISH_LATER_NS: u64 = 1_000_000_000;
/// Wait before a layout that the kernel side did not take is offered again, nanoseconds: at least the
/// delay after which it uses memory again. Doubled with each refusal.
pub const PUBLISH_RETRY_NS_MIN: u64 = agent_ebpf::limits::REUSE_DELAY_NS + 50_000_000;
/// Longest such wait, nanoseconds.
pub const PUBLISH_RETRY_NS_MAX: u64 = 30_000_000_000;
/// Layouts that are offered again in one poll.
pub const PUBLISH_RETRIES_PER_POLL: usize = 64;
/// CPU time that the publication of one process may take at once, nanoseconds: two of a process with 8,192 mappings,
/// twenty of a program that begins.
pub const PUBLISH_BURST_NS: u64 = 10_000_000;
/// Beyond it a process is published again no sooner than so many times what it took: one with 8,192 mappings, which
/// takes 4 ms, costs 2 % of a CPU at most, however often they change.
pub const PUBLISH_PAUSE_FACTOR: u64 = 50;
/// Longest such pause, nanoseconds: tables that came meanwhile are not used before.
pub const PUBLISH_PAUSE_NS_MAX: u64 = 1_000_000_000;
/// Pages of 64 mappings that a process may have while others find none, at first: 1,024 mappings, an eighth of what it
/// may have otherwise. Halved while that is still too much.
pub const PAGES_SHARE: usize = 16;
/// How long that holds after the last process that found none, nanoseconds.
pub const PAGES_TIGHT_NS: u64 = 60_000_000_000;
const _: () = assert!(PAGES_SHARE < agent_ebpf::limits::MAPPING_PAGES_PER_PROCESS_MAX);
/// Part of the memory for unwind tables that one table in use may have while others find no room, as a divisor.
pub const UNWIND_TABLE_SHARE_DIVISOR: usize = 4;
/// Processes whose wait for tables is measured at once; further waits are not.
pub const WAITS_MAX: usize = 16_384;
/// A wait that is longer than this is counted as overdue and not measured any more, nanoseconds: the
/// file cannot be had, or there is no room for its table.
pub const WAIT_OVERDUE_NS: u64 = 10_000_000_000;
/// A wait, or the making of a table, is told in the log where it is longer, nanoseconds.
pub const WAIT_SLOW_NS: u64 = 50_000_000;
/// Rows of a table from which on a wait for it is counted apart: a million rows take 0.2 s to compile.
pub const WAIT_LARGE_ROWS: usize = 500_000;
// process::compile: the threads.

/// Threads that compile unwind tables: one more than may be at large files, so that these hold up no others.
pub const TABLE_WORKERS: usize = TABLE_WORKERS_LARGE + 1;
/// Large files that are compiled at once.
pub const TABLE_WORKERS_LARGE: usize = 2;
/// Bytes of code from which on a file is large here: it takes 50 ms.
pub const TABLE_LARGE_CODE_BYTES: u64 = 16 << 20;
/// Time that the table of one byte of code takes, nanoseconds: 80 MB of a compiler take 250 ms.
pub const TABLE_CODE_NS_PER_BYTE: u64 = 3;
/// Such threads with those that wait for a file system that does not answer; as many files, and no more, can
/// be compiled at once.
pub const TABLE_WORKERS_MAX: usize = 8;
/// Of these threads, how many may be at files of others than root: one is left for root's.
pub const TABLE_WORKERS_USERS: usize = TABLE_WORKERS - 1;
/// Time after which a file that found them all busy is looked at again, nanoseconds.
pub const TABLE_USERS_WAIT_NS: u64 = 5_000_000;
/// Nice value of a thread while it compiles such a file: that of programs.
pub const USER_FILES_NICE: i32 = 0;
/// CPU time that tables of files of one user may take at once, nanoseconds: 60 million rows; and how much of it comes back,
/// in percent of one CPU.
pub const COMPILE_USER_NS_MAX: i64 = 20_000_000_000;
/// See [`COMPILE_USER_NS_MAX`].
pub const COMPILE_USER_PERCENT: i64 = 10;
/// The same of all users but root, together.
pub const COMPILE_USERS_NS_MAX: i64 = 2 * COMPILE_USER_NS_MAX;
/// See [`COMPILE_USERS_NS_MAX`].
pub const COMPILE_USERS_PERCENT: i64 = 20;
/// The same of root, to whom most files of containers belong too: a machine that builds programs all day may need a table of
/// 0.3 s each second.
pub const COMPILE_ROOT_NS_MAX: i64 = 60_000_000_000;
/// See [`COMPILE_ROOT_NS_MAX`].
pub const COMPILE_ROOT_PERCENT: i64 = 50;
/// Owners whose spending is known; further ones share what one may spend.
pub const COMPILE_OWNERS_MAX: usize = 1024;
/// Time at one file after which a thread counts as stuck and is replaced, nanoseconds: 1.04 million rows take
/// 640 ms on a busy machine. A mistake costs one thread until the file is done.
pub const TABLE_STUCK_NS: u64 = 10_000_000_000;
const _: () = assert!(TABLE_WORKERS < TABLE_WORKERS_MAX);
/// Tables compiled ahead of their load into BPF memory: what waits here is held twice.
pub const TABLES_READY_MAX: usize = 8;

// process::table_cache: on disk.

/// Bytes of call frame information of a file from which on its table is kept on disk. Digest and read took
/// 46 ms where 1.04 million rows took 640 ms to compile on a busy machine, and 14 ms for 270; a file below
/// it is compiled in 8 ms (`process/table_cache/tests.rs`, `it_pays`).
pub const TABLE_CACHE_INPUT_BYTES_MIN: u64 = 512 << 10;
/// Bytes of one file of the cache: 12 Mi rows of 6 bytes.
pub const TABLE_CACHE_FILE_BYTES_MAX: u64 = 80 << 20;
/// Bytes of all of them; those that were not used for longest are deleted. A developer's machine has 20 MB.
pub const TABLE_CACHE_BYTES_MAX: u64 = 256 << 20;
/// Time that who needs a table waits for the disk, before it is compiled: a million rows are read in 7 ms where the
/// file is in memory, and compiled in 100.
pub const TABLE_CACHE_WAIT: Duration = Duration::from_millis(100);
/// Tables that wait for the disk, to be read or kept: what waits to be kept is in memory (3 MB a million rows).
pub const TABLE_CACHE_REQUESTS_MAX: usize = 4;
/// Bytes of code of a file whose rows from code are kept: as much is read for the digest that they are found by.
pub const TABLE_CACHE_CODE_BYTES_MAX: u64 = 128 << 20;
/// Their number.
pub const TABLE_CACHE_FILES_MAX: usize = 4096;
