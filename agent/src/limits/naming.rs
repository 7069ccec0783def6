//! Limits of naming windows.

use super::{DEBUG_INFO_WAIT_MS_MAX, NAMES_BATCH_NS_MAX};

/// Windows that wait to be named: 20 s of them, after a file that takes long.
pub const NAMING_WINDOWS_MAX: usize = 4;
/// Time for the names of one window of a continuous run while others wait, nanoseconds: with the wait for a last
/// perf map it is less than the five seconds until the next one comes. What has no name by then is counted and
/// asked for again.
pub const NAMING_WINDOW_NS_MAX: u64 = 3_500_000_000;
/// Windows that may wait while one takes longer: a host's first window meets all its files at once, and those behind
/// it are named in a moment then.
pub const NAMING_WAITING_AT_EASE: usize = 2;
const _: () = assert!(NAMING_WAITING_AT_EASE < NAMING_WINDOWS_MAX);
/// The same while no more than these wait.
pub const NAMING_AT_EASE_NS_MAX: u64 = 15_000_000_000;
/// Time for all names that are left once the agent ends: half of the ten seconds after which `docker stop` kills.
pub const NAMING_LAST_NS_MAX: u64 = 5_000_000_000;
/// The same of a recording, which is a file that nobody names later, nanoseconds.
pub const NAMING_RECORDING_NS_MAX: u64 = 30_000_000_000;
/// Time that is waited for the names of one file, nanoseconds: a batch of addresses, the debug information, and the read
/// that either was at. A file that takes longer does not answer.
pub const NAMES_FILE_NS_MAX: u64 = 6_000_000_000;
const _: () = assert!(NAMES_BATCH_NS_MAX + DEBUG_INFO_WAIT_MS_MAX * 1_000_000 < NAMES_FILE_NS_MAX);
/// The same once the time of its window is over: the read that it was at.
pub const NAMES_LATE_NS_MAX: u64 = 500_000_000;
/// Threads that ask files for names, with those that wait for a file system that does not answer.
pub const NAMING_THREADS_MAX: usize = 4;
/// Time at one file from which on it is named behind the others of the next window, nanoseconds.
pub const NAMING_SLOW_NS: u64 = 250_000_000;
/// Files that are remembered as such.
pub const NAMING_SLOW_FILES_MAX: usize = 4096;
