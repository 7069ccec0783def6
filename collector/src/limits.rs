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
/// Distinct values of a label that become frames of one flame graph; more are one frame together.
pub const LEAF_VALUES_MAX: usize = 1_024;
/// Pairs of stack and label value in one flame graph, some 40 bytes each.
pub const LEAF_STACKS_MAX: usize = 1 << 22;
/// Locks that one answer tells apart, some 80 bytes each: a host of 10,000 processes with 100 contended locks
/// each. More are in the total alone, and a warning says so.
pub const LOCKS_MAX: usize = 1 << 20;
/// Pairs of lock and stack that one answer about locks tells apart, some 100 bytes each.
pub const LOCK_STACKS_MAX: usize = 1 << 20;
/// Frames of the stack that is shown of a waiter: what a person reads, and a table can hold.
pub const LOCK_STACK_FRAMES_MAX: usize = 32;

// ---- ingest ----

/// Bytes of one request body, before and after decompression. The OTLP exporter's own advice is 64 MiB;
/// a larger profile must be split by its sender.
pub const REQUEST_BYTES_MAX: usize = 64 << 20;

/// Bytes that one decoded request may take in memory, estimated from the wire before decoding. Empty
/// messages take 2 bytes on the wire and up to 100 in memory, so the body's limit does not bound this.
pub const DECODED_BYTES_MAX: usize = 256 << 20;

/// Bytes of all request bodies that are being read or wait to be decoded. What comes in above is
/// answered 503 and tried again by its sender.
pub const BODIES_BYTES_MAX: usize = 256 << 20;

/// Requests that are decompressed and decoded at the same time: each may hold
/// [`REQUEST_BYTES_MAX`] + 2 x [`DECODED_BYTES_MAX`].
pub const DECODING_MAX: usize = 2;

/// Milliseconds that a request waits for its turn to be decoded before it is answered 503.
pub const DECODING_WAIT_MS: u64 = 5_000;

/// Milliseconds until a body must have arrived: 64 MiB in 60 s is 9 Mbit/s; slower is a stuck sender.
pub const BODY_READ_MS_MAX: u64 = 60_000;

/// Largest window of a zstd stream, as a power of two bytes: 8 MiB is what level 19 uses and what
/// RFC 8878 asks of every decoder.
pub const ZSTD_WINDOW_LOG_MAX: u32 = 23;

/// Nesting of protobuf messages on the wire. A request without nested values needs 5.
pub const WIRE_DEPTH_MAX: usize = 48;

/// Profiles in one request. An agent sends one per process and type.
pub const PROFILES_MAX: usize = 65_536;

/// Observations in one request: at 24 bytes each, 48 MiB of samples.
pub const OBSERVATIONS_MAX: usize = 2_000_000;

/// Sum of the frames of all stacks in one request, in the form that is handed to the store (4 bytes each).
pub const REQUEST_FRAMES_MAX: usize = 16_000_000;

/// Bytes of memory of all distinct attribute sets in one request: 200 bytes a set for 600,000 threads. An
/// attribute is named in 1 byte of the wire by each sample that has it.
pub const REQUEST_SETS_BYTES_MAX: usize = 128 << 20;

/// Bytes of JSON text that the attribute values of one request become, before they are cut.
pub const JSON_BYTES_MAX: usize = 64 << 20;

/// Nesting of arrays and maps in one attribute value.
pub const VALUE_DEPTH_MAX: usize = 8;

/// Milliseconds that a time may lie ahead of this host's clock.
pub const FUTURE_MS_MAX: i64 = 10 * 60 * 1_000;

/// Bytes of the name of one figure in an agent's account of a window.
pub const LEDGER_NAME_BYTES_MAX: usize = 64;

/// Figures of agents' accounts (hosts x names) that metrics keep; 32 for each of 500 hosts. More are not
/// kept, and counted.
pub const LEDGER_FIGURES_MAX: usize = 16_384;

/// Distinct reasons named in one partial success; the rest is counted.
pub const REASONS_SHOWN_MAX: usize = 5;

// ---- server ----

/// Connections of one port at a time; more are closed at once.
pub const CONNECTIONS_MAX: usize = 1_024;

/// Milliseconds until a request's header must have arrived; also how long an idle connection is kept.
pub const HEADER_READ_MS_MAX: u64 = 30_000;

/// Bytes of a request's header.
pub const HEADER_BYTES_MAX: usize = 16 << 10;

/// Streams of one HTTP/2 connection at a time.
pub const HTTP2_STREAMS_MAX: u32 = 64;

/// Milliseconds between HTTP/2 pings, which find dead peers.
pub const HTTP2_PING_MS: u64 = 30_000;

/// Milliseconds until a ping must be answered.
pub const HTTP2_PING_WAIT_MS: u64 = 10_000;

/// Milliseconds that open requests get at shutdown.
pub const SHUTDOWN_MS_MAX: u64 = 10_000;

// ---- api ----

/// Queries that run at the same time.
pub const QUERIES_MAX: usize = 8;

/// Milliseconds that a query waits for its turn.
pub const QUERY_WAIT_MS: u64 = 10_000;

/// Milliseconds that a query may run.
pub const QUERY_MS_MAX: u64 = 60_000;
/// Threads for work that blocks: all queries at once, and beside them two requests that are decoded and two that are prepared
/// for the log. Each keeps memory that the next query on another one cannot use: some 60 MB after a large flame graph.
pub const BLOCKING_THREADS_MAX: usize = QUERIES_MAX + DECODING_MAX + 2;

/// Bytes of a selector.
pub const SELECTOR_BYTES_MAX: usize = 4_096;

/// Matchers of a selector.
pub const MATCHERS_MAX: usize = 32;

/// Bytes of a compiled regular expression (the `regex` crate's size limit).
pub const REGEX_BYTES_MAX: usize = 1 << 20;

/// Nodes of a flame graph that a client may ask for.
pub const NODES_MAX: usize = 1_000_000;

/// Rows of a table that a client may ask for.
pub const ROWS_MAX: usize = 10_000;

/// Rows of a table of locks that a client may ask for; each has up to 2 x [`LOCK_CALLERS_MAX`] callers.
pub const LOCK_ROWS_MAX: usize = 1_000;

/// Waiters and holders of one lock that a client may ask for, each.
pub const LOCK_CALLERS_MAX: usize = 100;

/// Series of a time line that a client may ask for.
pub const SERIES_MAX: usize = 50;

/// Answers below this many bytes are not compressed.
pub const COMPRESS_BYTES_MIN: usize = 1_024;

// ---- client ----

/// Bytes of an answer that a command accepts: a flame graph of [`NODES_MAX`] nodes is about 60 MB.
pub const ANSWER_BYTES_MAX: usize = 256 << 20;

/// Milliseconds that a command waits for an answer.
pub const ANSWER_MS_MAX: u64 = 90_000;

/// Times that `vesta upload` sends a file that the collector has no room for now.
pub const UPLOAD_TRIES_MAX: u32 = 6;

/// Milliseconds between two of them: what `Retry-After` says.
pub const UPLOAD_PAUSE_MS: u64 = 5_000;

// ---- local ----

/// Ports tried above a taken one.
pub const PORTS_TRIED_MAX: u16 = 20;

/// Milliseconds that `vesta local` waits for the agent to send its last window and stop.
pub const AGENT_STOP_MS_MAX: u64 = 20_000;
// ---- store: the embedded engine.

/// Bytes of one WAL file; then the next one begins.
pub const WAL_FILE_BYTES_MAX: u64 = 64 << 20;
/// Bytes of one WAL record: a request of 64 MiB in our denser form, with room.
pub const WAL_RECORD_BYTES_MAX: usize = 128 << 20;
/// Bytes of a batch before compression: what replay reserves for one record at most.
pub const WAL_BATCH_BYTES_MAX: usize = 512 << 20;
/// Bytes of memory of batches that wait for the WAL; beyond, appends are refused as busy.
pub const APPEND_QUEUE_BYTES_MAX: u64 = 128 << 20;
/// Bytes that are checksummed in search of the next intact record behind a damaged one: about a second.
pub const WAL_RESUME_BYTES_MAX: u64 = 8 << 30;
/// Bytes that one group commit writes at most: 1/10 s on a disk of 40 MB/s.
pub const WAL_GROUP_BYTES_MAX: usize = 4 << 20;
/// Bytes of rows in the memtable that make it a segment before its hour is over.
pub const MEMTABLE_FREEZE_BYTES: u64 = 96 << 20;
/// Bytes of rows in the memtable beyond which appends are refused while segments are written.
pub const MEMTABLE_BYTES_MAX: u64 = 256 << 20;
/// How long agents' marks are kept, milliseconds: 30 days, longer than any spool.
pub const SEEN_BOOT_MS: i64 = 30 * 24 * 3_600 * 1_000;
/// How long other senders' ids are kept, milliseconds: 24 hours, longer than any retry.
pub const SEEN_FOREIGN_MS: i64 = 24 * 3_600 * 1_000;
/// Boots of agents remembered in one project; the oldest are forgotten.
pub const SEEN_BOOTS_MAX: usize = 1 << 20;
/// Other senders' ids remembered in one project, 48 bytes each: 46 per second for 24 hours.
pub const SEEN_FOREIGN_MAX: usize = 4 << 20;
/// Gaps remembered for one boot of an agent; honest ones have a handful.
pub const SEEN_GAPS_MAX: usize = 1_024;
/// Mappings known in one project.
pub const MAPPINGS_MAX: usize = 1 << 22;
/// Functions known in one project, some 150 bytes each.
pub const FUNCTIONS_MAX: usize = 1 << 24;
/// Locations known in one project, some 160 bytes each.
pub const LOCATIONS_MAX: usize = 1 << 24;
/// Addresses without names of a debug file that are told at one time.
pub const UNNAMED_MAX: usize = 1 << 16;
/// Series known in one project.
pub const PROJECT_SERIES_MAX: usize = 1 << 20;
/// Services known in one project.
pub const SERVICES_MAX: usize = 1 << 16;
/// Types of profiles in one project.
pub const PROFILE_TYPES_MAX: usize = 1 << 10;
/// Nodes in the trie of one service, 17 bytes each.
pub const TRIE_NODES_MAX: usize = 1 << 26;
/// Nodes in the tree of names of one service, some 30 bytes each: as many as its trie may have. Inlined functions can
/// need more; then frames count for their callers, and answers say so.
pub const NAME_NODES_MAX: usize = 1 << 26;
/// Projects in one data folder.
pub const PROJECTS_MAX: usize = 1 << 10;
/// Bytes of a data folder unless configured: 10 GiB.
pub const DATA_BYTES_DEFAULT_MAX: u64 = 10 << 30;
/// Rows of one series in one segment.
pub const SEGMENT_ROWS_MAX: usize = 1 << 28;
/// Bytes of a segment's footer: some 40 for each series.
pub const SEGMENT_FOOTER_BYTES_MAX: usize = 64 << 20;
/// Bytes that a query reads from a segment at once.
pub const SEGMENT_READ_BYTES_MAX: usize = 8 << 20;
/// Bytes of the series of one service that are held before they are written to a segment.
pub const SEGMENT_GROUP_BYTES: usize = 32 << 20;
/// Bytes that a merge of segments reads ahead of each, three times: a day has dozens of segments.
pub const MERGE_READ_BYTES_MAX: usize = 256 << 10;
/// Rows of one series that a merge of segments holds at once, 60 bytes each; larger ones stand there several times.
pub const MERGE_ROWS_MAX: usize = 1 << 21;
/// Bytes of one frame of a symbol log before compression.
pub const SYMBOL_FRAME_BYTES_MAX: usize = 64 << 20;
/// Bytes of the manifest: some 30 for each segment.
pub const MANIFEST_BYTES_MAX: usize = 256 << 20;
/// Bytes of one series' attribute sets in a segment before compression; the memtable has no more.
pub const SEGMENT_DICTIONARY_BYTES_MAX: usize = 512 << 20;
/// Nodes that a flame graph may be asked for; some 200 MB of JSON.
pub const QUERY_NODES_MAX: usize = 4 << 20;
/// Services that one question scans at once: as many CPUs as a small collector has, so that others get theirs.
pub const QUERY_THREADS_MAX: usize = 2;
/// Bytes of log that a start decodes at once, ahead of those that it applies: twice that is waiting, or a large record.
pub const REPLAY_STEP_BYTES: usize = 256 << 10;
/// Bytes of WAL after which the memtable becomes segments, or an eighth of the data folder's limit: what a start has to
/// replay. Most of it are new stacks, at 8 us each with their names (some 700 bytes), so it takes less than a second.
pub const WAL_FREEZE_BYTES: u64 = 64 << 20;
/// How long after the end of an hour its rows are waited for before it becomes a segment, milliseconds.
pub const SEGMENT_GRACE_MS: i64 = 10 * 60 * 1_000;

/// Deletions whose samples are not gone from the disk yet; further ones are refused as busy.
pub const DELETIONS_PENDING_MAX: usize = 64;
/// Deletions that the store remembers, some 80 bytes each: more than can be asked for again after a crash.
pub const DELETIONS_KNOWN_MAX: usize = 1_024;

/// Open files of the process: its connections, and a file for each segment that a query reads.
pub const DESCRIPTORS_MAX: u64 = 100_000;
