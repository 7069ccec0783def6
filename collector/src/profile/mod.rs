//! The domain model: what was received, validated, in words of this project. It is not serializable and
//! knows neither protobuf nor JSON. A batch is self-contained: all indices point into its own tables.

mod check;
pub mod identity;
mod lines;
mod names;
mod text;

pub use check::BatchError;
pub use lines::Lines;
pub use names::NewNames;
pub use text::Text;
pub(crate) use text::gather;

use proto::{BuildId, FrameKind};
use std::borrow::Cow;
use std::sync::Arc;

/// The name of a project: every write and read belongs to one.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProjectName(pub Arc<str>);

/// A type and its unit, as the sender names them.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ValueType {
    /// For example `samples`, `cpu`, `off_cpu`.
    pub kind: Arc<str>,
    /// For example `count`, `nanoseconds`, `bytes`.
    pub unit: Arc<str>,
}

/// Labels that name a series. Empty strings mean "not said".
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SeriesLabels {
    /// `service.name`.
    pub service: Arc<str>,
    /// `host.name`.
    pub host: Arc<str>,
    /// `container.id`.
    pub container: Arc<str>,
    /// `k8s.pod.name`.
    pub pod: Arc<str>,
    /// `process.executable.name`.
    pub executable: Arc<str>,
}

impl SeriesLabels {
    /// Label names in the order of [`Self::each`].
    pub const NAMES: [&'static str; 5] = ["service", "host", "container", "pod", "executable"];

    /// Name and value of every label.
    #[must_use]
    pub fn each(&self) -> [(&'static str, &Arc<str>); 5] {
        let [service, host, container, pod, executable] = Self::NAMES;
        [
            (service, &self.service),
            (host, &self.host),
            (container, &self.container),
            (pod, &self.pod),
            (executable, &self.executable),
        ]
    }

    /// The value of the label `name`; `None` if no series label has this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Arc<str>> {
        self.each().into_iter().find_map(|(label, value)| (label == name).then_some(value))
    }
}

/// A file (or the kernel, or an anonymous region) that locations lie in.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct MappingDef {
    /// File name or path as sent.
    pub filename: Arc<str>,
    /// The best identity that was sent: GNU build id, else htlhash.
    pub build_id: Option<BuildId>,
}

/// A function as sent.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FunctionDef {
    /// Shown name.
    pub name: Text,
    /// Linkage name, empty if the same.
    pub system_name: Text,
    /// Source file.
    pub file: Text,
    /// First line of the function, 0 if unknown.
    pub start_line: i64,
}

/// One line of a location; innermost (inlined) first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LineDef {
    /// Index into [`WriteBatch::functions`].
    pub function: u32,
    /// Source line, 0 if unknown.
    pub line: i64,
}

/// One location.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LocationDef {
    /// Index into [`WriteBatch::mappings`].
    pub mapping: Option<u32>,
    /// ELF address to look up, normalized by the mapping's `memory_start`; 0 where no file backs it.
    pub address: u64,
    /// Who runs it.
    pub kind: FrameKind,
    /// Names, innermost first; empty if the sender had none.
    pub lines: Lines,
}

/// A value of a sample attribute.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum AttributeValue {
    /// Text.
    Text(Arc<str>),
    /// A whole number.
    Int(i64),
    /// A truth value.
    Bool(bool),
}

impl AttributeValue {
    /// As text, the way selectors and answers write it.
    #[must_use]
    pub fn text(&self) -> Cow<'_, str> {
        match self {
            Self::Text(text) => Cow::Borrowed(text),
            Self::Int(number) => Cow::Owned(number.to_string()),
            Self::Bool(truth) => Cow::Borrowed(if *truth { "true" } else { "false" }),
        }
    }
}

/// One attribute of a sample (`process.pid`, `thread.id`, `thread.name`, ...).
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Attribute {
    /// Dotted name.
    pub key: Arc<str>,
    /// Value.
    pub value: AttributeValue,
}

impl Attribute {
    /// Bytes of memory with its texts, which a segment holds once for each set.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let text = match &self.value {
            AttributeValue::Text(text) => text.len(),
            AttributeValue::Int(_) | AttributeValue::Bool(_) => 0,
        };
        size_of::<Self>() + self.key.len() + text
    }
}

/// One observation or one sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SampleDef {
    /// Index into [`WriteBatch::stacks`].
    pub stack: u32,
    /// Index into [`WriteBatch::attribute_sets`].
    pub attributes: u32,
    /// Unix milliseconds.
    pub time_ms: i64,
    /// In the profile's unit after the unit rules (CPU: nanoseconds). May be zero or negative.
    pub value: i64,
}

/// Who gave a profile its id, so that retries are stored once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProfileId {
    /// Vesta's agent (scope `vesta-agent`): boot id of the agent and a sequence.
    Agent {
        /// First 8 bytes.
        boot: u64,
        /// Last 8 bytes, big-endian.
        sequence: u64,
    },
    /// Any other sender's 16 bytes.
    Foreign([u8; 16]),
    /// None was sent: never deduplicated.
    None,
}

/// One profile: one series, one type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProfileDef {
    /// Identity for deduplication.
    pub id: ProfileId,
    /// Series labels.
    pub labels: SeriesLabels,
    /// The stored type: `cpu` in nanoseconds after the unit rules, or the sender's own.
    pub sample_type: ValueType,
    /// What one period measures.
    pub period_type: ValueType,
    /// The period in units of `period_type`; 0 if not said.
    pub period: i64,
    /// Start, Unix milliseconds.
    pub time_ms: i64,
    /// Length, milliseconds.
    pub duration_ms: i64,
    /// The samples.
    pub samples: Vec<SampleDef>,
}

impl ProfileDef {
    /// The sampling period in nanoseconds; 0 if it is not said or not a time.
    #[must_use]
    pub fn period_ns(&self) -> u64 {
        if *self.period_type.unit == *"nanoseconds" {
            u64::try_from(self.period).unwrap_or(0)
        } else {
            0
        }
    }
}

/// What one request adds. It is stored whole or not at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WriteBatch {
    /// Where it belongs.
    pub project: ProjectName,
    /// Mappings.
    pub mappings: Vec<MappingDef>,
    /// Functions.
    pub functions: Vec<FunctionDef>,
    /// Locations.
    pub locations: Vec<LocationDef>,
    /// Stacks: indices into `locations`, leaf first.
    pub stacks: Vec<Vec<u32>>,
    /// Sets of sample attributes, each sorted by key, keys distinct.
    pub attribute_sets: Vec<Vec<Attribute>>,
    /// Profiles.
    pub profiles: Vec<ProfileDef>,
}

impl WriteBatch {
    /// Adds a stack of one frame that is no code but a word on the samples that have it; answers its index.
    pub(crate) fn add_marker(&mut self, name: &Arc<str>) -> u32 {
        // Limits are far below 32 bits.
        let index = |len: usize| u32::try_from(len).unwrap_or(u32::MAX);
        let function = index(self.functions.len());
        self.functions.push(FunctionDef {
            name: Arc::clone(name).into(),
            system_name: Text::default(),
            file: Text::default(),
            start_line: 0,
        });
        let location = index(self.locations.len());
        let lines = LineDef { function, line: 0 }.into();
        let kind = FrameKind::Marker;
        self.locations.push(LocationDef { mapping: None, address: 0, kind, lines });
        let stack = index(self.stacks.len());
        self.stacks.push(vec![location]);
        stack
    }
}
