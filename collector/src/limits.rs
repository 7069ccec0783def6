//! Every limit of the collector, with its unit and its reason. Reaching one is counted and visible.

// ---- profile: what one batch may hold. A request of 64 MiB (the ingest's cap) stays below each of them;
// they exist so that a store never trusts the ingest with its memory.

/// Bytes of a project's name; it becomes the name of a folder.
pub const PROJECT_NAME_BYTES_MAX: usize = 64;
/// Mappings in a batch. A host of 20,000 processes shares some 100,000 files at the very most.
pub const BATCH_MAPPINGS_MAX: usize = 1 << 18;
/// Functions in a batch.
pub const BATCH_FUNCTIONS_MAX: usize = 1 << 22;
/// Locations in a batch.
pub const BATCH_LOCATIONS_MAX: usize = 1 << 22;
/// Stacks in a batch.
pub const BATCH_STACKS_MAX: usize = 1 << 22;
/// Attribute sets in a batch.
pub const BATCH_ATTRIBUTE_SETS_MAX: usize = 1 << 20;
/// Profiles in a batch.
pub const BATCH_PROFILES_MAX: usize = 1 << 18;
/// Frames in a stack. The agent walks 1,024 native frames; interpreters recurse deeper in recorded files.
pub const STACK_FRAMES_MAX: usize = 4_096;
/// Functions inlined at one address; compilers nest some tens.
pub const LOCATION_LINES_MAX: usize = 256;
/// Attributes of one sample; `OpenTelemetry` recommends at most 128.
pub const SAMPLE_ATTRIBUTES_MAX: usize = 128;
/// Bytes of one name or path; Rust and C++ names reach some 10 KiB, paths `PATH_MAX` = 4,096.
pub const STRING_BYTES_MAX: usize = 64 << 10;
/// Bytes of a label's or attribute's name or value.
pub const LABEL_BYTES_MAX: usize = 4_096;
/// Length of one profile, milliseconds: a week, for a recording that somebody forgot.
pub const PROFILE_DURATION_MS_MAX: i64 = 7 * 24 * 3_600 * 1_000;
/// First storable time, Unix milliseconds: 1970. Earlier times are a sender's mistake.
pub const TIME_MS_MIN: i64 = 0;
/// Last storable time, Unix milliseconds: the end of the year 2199.
pub const TIME_MS_MAX: i64 = 7_258_118_399_999;

// ---- query: what one answer may hold.

/// Buckets of a time line; wider than any screen.
pub const TIMELINE_BUCKETS_MAX: usize = 2_000;
/// Cells (keys x hosts x buckets, 16 bytes each) of a time line while it is built: 64 MiB.
pub const TIMELINE_CELLS_MAX: usize = 4 << 20;
/// Distinct label values counted in one answer: bounds the memory of a question about thread ids.
pub const LABEL_VALUES_MAX: usize = 1 << 20;
