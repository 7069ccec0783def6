//! Limits of the border to the kernel, on this side of it.

/// Highest sampling frequency, per CPU and second: 999 keeps clear of 1,000, which runs in step with
/// every millisecond timer of the host.
pub const FREQUENCY_HZ_MAX: u32 = 999;
/// Pages of each CPU's lifecycle ring (128 KiB of 4 KiB pages; the kernel wants a power of two). An exec
/// writes about 1.5 KiB, so that a CPU may run 80 of them between two looks of the reader.
pub const LIFECYCLE_PAGES: usize = 32;
/// The reader is woken when a lifecycle ring holds more than this, in bytes: a quarter of it.
pub const LIFECYCLE_WAKE_BYTES: u32 = 32 << 10;
/// How long a record is held back so that an earlier one of another CPU goes first, in nanoseconds: a
/// sample is stamped when its run begins, and a run takes at most 0.5 ms and its record's copy.
pub const ORDER_SLACK_NS: u64 = 1_000_000;
/// Readings of the program's counters until every CPU is met between two runs: each takes a few
/// microseconds, a run about 15.
pub const COUNTER_READINGS_MAX: usize = 32;
/// Threads whose sums of waits are read in one call: a bucket of the kernel's map must fit, and 200 KiB are
/// soon copied.
pub const THREADS_PER_READING: usize = 1024;
/// Polls until the records of all waits have come that the reading of the threads knows of: one after
/// [`ORDER_SLACK_NS`] is enough, unless the rings are full.
pub const READING_POLLS_MAX: usize = 16;
/// A CPU's clock that is behind by more since the last look is dead, in nanoseconds: the kernel's clocks differ by
/// less (500 ppm of a window of five seconds are 2.5 ms), and no CPU goes and comes in less.
pub const CLOCK_LAG_NS: u64 = 20_000_000;
/// Records taken from the kernel in one poll; the rest waits in the rings, whose losses are counted.
pub const POLL_RECORDS_MAX: usize = 65_536;
