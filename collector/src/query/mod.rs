//! Questions and answers: selections, merged trees, top functions, time lines. Pure: no I/O, no engine ids.

mod coverage;
mod functions;
mod leaves;
mod lock_frames;
mod locks;
mod matcher;
mod timeline;
mod tree;

pub use coverage::{HostValues, Intervals, share};
pub use functions::{FunctionNames, rows_by_self};
pub use leaves::Leaves;
pub use lock_frames::{caller_position, is_lock_frame};
pub use locks::{
    LOCK_TYPE, LockCaller, LockDetail, LockFigures, LockKey, LockKind, LockRanking, LockRow,
    LockSample, LockSums, Locks, LocksQuery, Measure, OFF_CPU_TYPE, finish_locks,
};
pub use matcher::LabelKind;
pub use timeline::{Buckets, TimelineBuilder, TimelineError};
pub use tree::{MergedTree, NodeId, ShapeOptions};

use crate::profile::ProjectName;
use proto::FrameKind;
use std::sync::Arc;

/// The type of profiles that hold figures of agents' accounts, not samples.
pub const LEDGER_TYPE: &str = "vesta.ledger";

/// Half open range of time, Unix milliseconds: [from, to).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TimeRange {
    /// First millisecond.
    pub from_ms: i64,
    /// First millisecond behind it.
    pub to_ms: i64,
}

/// How a matcher compares.
#[derive(Clone, Debug)]
pub enum MatchOp {
    /// `=`
    Equal(String),
    /// `!=`
    NotEqual(String),
    /// `=~`; whoever builds it anchors the expression at both ends (`^(?:…)$`).
    Regex(regex::Regex),
    /// `!~`; anchored like `Regex`.
    NotRegex(regex::Regex),
}

/// One matcher of a selector: label or attribute name, and the comparison. A label that is absent
/// equals the empty string.
#[derive(Clone, Debug)]
pub struct Matcher {
    /// `service`, `host`, `container`, `pod`, `executable`, or a dotted attribute name.
    pub name: String,
    /// How to compare.
    pub op: MatchOp,
}

/// Which samples a question is about.
#[derive(Clone, Debug)]
pub struct Selection {
    /// The project.
    pub project: ProjectName,
    /// Profile type id: `cpu`, or the sample type's name; `name:unit` for another unit than its first.
    pub profile_type: String,
    /// The range.
    pub range: TimeRange,
    /// All must match.
    pub matchers: Vec<Matcher>,
}

/// A merge.
#[derive(Clone, Debug)]
pub struct MergeQuery {
    /// Which samples.
    pub selection: Selection,
    /// Nodes in the answer at most.
    pub nodes_max: usize,
    /// Functions with the largest self values that pruning must keep.
    pub keep_self_top: usize,
    /// A label or attribute whose value becomes the innermost frame of each stack.
    pub leaf: Option<String>,
}

/// A sum left the range of 64 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the total of {0} exceeds 64 bits")]
pub struct Overflow(pub &'static str);

impl Overflow {
    /// The sum in 64 bits.
    ///
    /// # Errors
    /// If it does not fit.
    pub fn check(sum: i128, what: &'static str) -> Result<i64, Self> {
        i64::try_from(sum).ok().ok_or(Self(what))
    }
}

/// An answer, and what its reader should know of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Told<T> {
    /// The answer.
    pub answer: T,
    /// What is left out, and why; empty where all is there.
    pub warnings: Vec<String>,
}

impl<T> Told<T> {
    /// An answer that leaves nothing out.
    #[must_use]
    pub const fn whole(answer: T) -> Self {
        Self { answer, warnings: Vec::new() }
    }
}

/// A function in an answer.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FunctionInfo {
    /// Shown name; `file+0xaddress` where there is none.
    pub name: Arc<str>,
    /// Source file.
    pub file: Arc<str>,
    /// First line, 0 if unknown.
    pub line: i64,
    /// Who runs it.
    pub kind: FrameKind,
    /// File name of the binary.
    pub module: Arc<str>,
    /// True if it has a real name.
    pub named: bool,
}

/// A merged tree in preorder columns. Node 0 is the root (`function` 0, "total").
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FlameTree {
    /// Unit of all values (`nanoseconds` for cpu).
    pub unit: String,
    /// Distinct functions.
    pub functions: Vec<FunctionInfo>,
    /// Index into `functions`.
    pub node_function: Vec<u32>,
    /// Sum of the node and everything below.
    pub node_total: Vec<i64>,
    /// Sum of samples that end here.
    pub node_self: Vec<i64>,
    /// Root is 0.
    pub node_depth: Vec<u32>,
    /// Total of pruned children, 0 if none.
    pub node_hidden: Vec<i64>,
    /// True where the frame was inlined into its caller.
    pub node_inlined: Vec<bool>,
    /// Observations behind the tree.
    pub samples: u64,
    /// Sampling period of the records, nanoseconds; 0 if mixed or not said.
    pub period_ns: u64,
    /// Sums of the stacks that do not reach their root, by their marker, largest first.
    pub cut: Vec<(Arc<str>, i64)>,
    /// Nodes that pruning left out.
    pub hidden_nodes: u64,
    /// Things the reader should know.
    pub warnings: Vec<String>,
}

/// A row of the top table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionRow {
    /// The function.
    pub function: FunctionInfo,
    /// Sum where it is the leaf.
    pub self_value: i64,
    /// Sum of stacks that hold it, each counted once (recursion safe).
    pub total: i64,
}

/// A time line.
#[derive(Clone, Debug)]
pub struct TimelineQuery {
    /// Which samples.
    pub selection: Selection,
    /// Split by this label or attribute; `None` gives one series.
    pub by: Option<String>,
    /// Width of a bucket, milliseconds.
    pub step_ms: i64,
    /// Series at most; the rest is added into `Timeline::other`.
    pub series_max: usize,
}

/// The answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Timeline {
    /// Start of the first bucket, Unix milliseconds: `from` of the range, whoever asks aligns it.
    pub start_ms: i64,
    /// Width of a bucket, milliseconds.
    pub step_ms: i64,
    /// Label value and sums, largest first.
    pub series: Vec<(String, Vec<i64>)>,
    /// The rest, if any.
    pub other: Option<Vec<i64>>,
    /// Cores of each series of `series`, by bucket: sum over hosts of value / time of the bucket that
    /// this host reported. Meaningful where the unit is nanoseconds.
    pub series_cores: Vec<Vec<f64>>,
    /// Cores of `other`.
    pub other_cores: Option<Vec<f64>>,
}

/// A row of the services page.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ServiceRow {
    /// Service name.
    pub service: String,
    /// Sum.
    pub total: i64,
    /// Observations.
    pub samples: u64,
    /// Cores over the whole range: sum over hosts of value / time that this host reported.
    pub cores: f64,
    /// Sums per bucket.
    pub trend: Vec<i64>,
    /// Cores per bucket.
    pub trend_cores: Vec<f64>,
    /// Distinct hosts.
    pub hosts: u64,
    /// Distinct containers.
    pub containers: u64,
    /// Share of the total whose leaf has a name, 0 to 1; 0 where the total is not positive.
    pub named_share: f64,
}

/// A label name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LabelName {
    /// Name.
    pub name: String,
    /// Distinct values.
    pub values: u64,
}

/// A label value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LabelValue {
    /// Value.
    pub value: String,
    /// Observations.
    pub samples: u64,
}

/// A profile type that exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProfileTypeRow {
    /// Id in the API: `cpu`, `off_cpu`, ...; `name:unit` where the project has the name in another unit too,
    /// which comes first.
    pub id: String,
    /// Unit of stored values.
    pub unit: String,
    /// Period of the newest record, nanoseconds; 0 if not said.
    pub period_ns: u64,
}

/// How much of the range was observed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Coverage {
    /// Hosts that reported in the range.
    pub hosts: u64,
    /// Milliseconds in the range that hosts reported, added over hosts (overlaps counted once).
    pub host_ms: i64,
    /// Cores = sum over hosts of value / time that this host reported; the value summed per host,
    /// divided per host, added.
    pub cores: f64,
}
