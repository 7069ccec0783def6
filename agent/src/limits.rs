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
