//! Limits of what goes out: requests, their queue, the metrics, recordings.

use std::time::Duration;

// export: requests and their queue.

/// Uncompressed bytes of one request: receivers refuse messages of more than 4 MiB by default (gRPC's
/// own default in every language).
pub const EXPORT_REQUEST_BYTES_MAX: usize = 3_500 * 1024;
/// Bytes of one string on the wire (names, paths): longer ones are cut. C++ names above 4 KiB exist and
/// nobody reads their ends.
pub const EXPORT_STRING_BYTES_MAX: usize = 4096;
/// Timestamps in one sample: 1 MiB, so that a sample fits into a request.
pub const EXPORT_TIMESTAMPS_PER_SAMPLE_MAX: usize = 131_072;
/// Uncompressed bytes that wait for the collector, at most: about an hour of a busy host.
pub const EXPORT_QUEUE_BYTES_MAX: usize = 64 << 20;
/// Age of a waiting request, at most: what is older than the receiver's usual window for late data is
/// refused anyway.
pub const EXPORT_QUEUE_AGE_MAX: Duration = Duration::from_secs(3600);
/// Wait before the second attempt.
pub const EXPORT_BACKOFF_FIRST: Duration = Duration::from_millis(500);
/// Longest wait between attempts that we choose ourselves.
pub const EXPORT_BACKOFF_MAX: Duration = Duration::from_secs(30);
/// Longest wait that a receiver may ask for.
pub const EXPORT_RETRY_AFTER_MAX: Duration = Duration::from_secs(300);
/// Wait for one answer. Collectors sync to disk before they answer; 2.6 s is a peer's median.
pub const EXPORT_REQUEST_WAIT_MAX: Duration = Duration::from_secs(15);
/// Bytes of one answer: a count and a message for people.
pub const EXPORT_ANSWER_BYTES_MAX: usize = 64 << 10;
/// zstd level of requests. Measured on windows of 5 s of C, Python, Node.js and Java alone (11 KiB): 28.8 bytes a
/// sample and 0.1 ms at level 7, 27.3 and 1 ms at 15; beside a Rust compiler (52 KiB) 92 and 1.2 ms at 7, 89 and
/// 8 ms at 15. A millisecond a window is a twelfth of what the agent may use.
pub const EXPORT_ZSTD_LEVEL: i32 = 7;
/// Times of samples are written in steps of so many nanoseconds. Steps of a millisecond would take another 0.1
/// bytes off a sample.
pub const EXPORT_TIME_STEP_NS: u64 = 1 << 16;
/// Wait for a connection.
pub const EXPORT_CONNECT_WAIT_MAX: Duration = Duration::from_secs(5);
/// Time between keep-alive pings while a request waits for its answer.
pub const EXPORT_KEEP_ALIVE: Duration = Duration::from_secs(30);
/// Time given to the queue when the agent ends.
pub const EXPORT_FINISH_WAIT_MAX: Duration = Duration::from_secs(5);
/// Distinct refusals that are logged.
pub const EXPORT_REASONS_MAX: usize = 16;

/// Threads of the runtime that sends: one request is on its way at a time, the other serves metrics.
pub const RUNTIME_THREADS: usize = 2;

// metrics

/// Connections to the metrics endpoint at once: a scraper or two, and a person.
pub const METRICS_CONNECTIONS_MAX: usize = 8;
/// Wait for the header of a request.
pub const METRICS_HEADER_WAIT_MAX: Duration = Duration::from_secs(5);

// record

/// Observations in one recording, 8 bytes each: an hour at 99 Hz on 94 busy CPUs. Further ones are
/// counted as dropped.
pub const RECORD_OBSERVATIONS_MAX: u64 = 32 << 20;
/// Distinct stacks in one recording.
pub const RECORD_STACKS_MAX: usize = 1 << 20;
/// Distinct waits in one recording, and what holders of locks did: about 150 bytes each.
pub const RECORD_WAITS_MAX: usize = 1 << 20;
/// Distinct locations in one recording.
pub const RECORD_LOCATIONS_MAX: usize = 1 << 20;
/// Length of a recording that has neither a duration nor a command.
pub const RECORD_DURATION_DEFAULT: Duration = Duration::from_secs(10);
/// Length of one recording.
pub const RECORD_DURATION_MAX: Duration = Duration::from_secs(24 * 3600);
