//! Why a profile is refused. The text goes to the sender, the reason's name into a metric.

use crate::limits;

/// What is wrong with one profile.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// An index that points outside its table.
    #[error("{field} {index} is outside {table}, which has {len} entries")]
    Index {
        /// The field that holds the index.
        field: &'static str,
        /// The table it points into.
        table: &'static str,
        /// The index.
        index: i32,
        /// Entries of the table.
        len: usize,
    },
    /// Something is larger than a limit.
    #[error("{what} is {size}, above the limit of {max}")]
    Limit {
        /// What was measured, with its unit.
        what: &'static str,
        /// The size.
        size: usize,
        /// The limit.
        max: usize,
    },
    /// An attribute's value is nested too deep.
    #[error("an attribute value is nested deeper than {}", limits::VALUE_DEPTH_MAX)]
    Nesting,
    /// A profile does not say what its values are.
    #[error("sample_type is not set")]
    NoSampleType,
    /// A sample that counts nothing.
    #[error("sample {sample} has neither values nor timestamps")]
    EmptySample {
        /// Position in the profile.
        sample: usize,
    },
    /// Values and timestamps do not pair up.
    #[error(
        "sample {sample} has {values} values and {timestamps} timestamps; they must be equally many, or one of them absent"
    )]
    Lengths {
        /// Position in the profile.
        sample: usize,
        /// Number of values.
        values: usize,
        /// Number of timestamps.
        timestamps: usize,
    },
    /// A time outside of what is accepted.
    #[error("{field} {time} is outside the accepted range {from} to {to}")]
    Time {
        /// Which field.
        field: &'static str,
        /// RFC 3339.
        time: String,
        /// First accepted, RFC 3339.
        from: String,
        /// Last accepted, RFC 3339.
        to: String,
    },
    /// A count times its period leaves 64 bits.
    #[error("sample {sample}: value times period {period} exceeds 64 bits")]
    Overflow {
        /// Position in the profile.
        sample: usize,
        /// The period.
        period: i64,
    },
    /// Samples of protocol 1.9 and of 1.10 side by side.
    #[error("the samples mix the layouts of protocol 1.9 and 1.10")]
    MixedLayouts,
}

impl Fault {
    /// The value of the metric label `reason`.
    #[must_use]
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::Index { .. } => "index",
            Self::Limit { .. } | Self::Nesting => "limit",
            Self::NoSampleType => "sample_type",
            Self::EmptySample { .. } => "empty_sample",
            Self::Lengths { .. } => "lengths",
            Self::Time { .. } => "time",
            Self::Overflow { .. } => "overflow",
            Self::MixedLayouts => "layout",
        }
    }
}

/// Refuses what is larger than `max`.
pub(super) fn cap(what: &'static str, size: usize, max: usize) -> Result<(), Fault> {
    if size > max { Err(Fault::Limit { what, size, max }) } else { Ok(()) }
}
