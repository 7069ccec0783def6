//! Why a pprof profile is refused. The text goes to the sender, the reason's name into the answer's code and
//! a metric.

/// What is wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// Nothing was sent.
    #[error("the body is empty; send a pprof profile (protobuf, gzip or not)")]
    Empty,
    /// A field or a length runs past the end.
    #[error("not a pprof profile: the message is cut off at byte {at}")]
    Truncated {
        /// Position after decompression.
        at: usize,
    },
    /// A number is longer than 10 bytes.
    #[error("not a pprof profile: malformed number at byte {at}")]
    Varint {
        /// Position after decompression.
        at: usize,
    },
    /// Field 0, or a wire type that protobuf does not have.
    #[error(
        "not a pprof profile: malformed field tag at byte {at} (text and the binary formats before protobuf are \
         not supported; `pprof -proto` converts them)"
    )]
    Tag {
        /// Position after decompression.
        at: usize,
    },
    /// A number where a message belongs, or the reverse.
    #[error("not a pprof profile: {field} has the wrong wire type")]
    WireType {
        /// Which field.
        field: &'static str,
    },
    /// The profile does not say what its values are.
    #[error("the profile has no sample_type, so nothing says what it measures")]
    NoSampleType,
    /// Two sample types would be stored as one.
    #[error("two sample types would be stored as {kind}/{unit}, and count twice")]
    RepeatedType {
        /// The type.
        kind: String,
        /// Its unit.
        unit: String,
    },
    /// String 0 must be empty: every unset field refers to it.
    #[error("string_table[0] must be the empty string")]
    FirstString,
    /// A string index outside the table.
    #[error("{field} {index} is outside string_table, which has {len} entries")]
    Text {
        /// Which field.
        field: &'static str,
        /// The index.
        index: i64,
        /// Entries of the table.
        len: usize,
    },
    /// An id that nothing has.
    #[error("{field} {id} names no {table}")]
    Reference {
        /// Which field.
        field: &'static str,
        /// The id.
        id: u64,
        /// What it should name.
        table: &'static str,
    },
    /// An id that two entries have, or 0, which means none.
    #[error("two entries have the {table} id {id}, or it is 0, which means none")]
    Id {
        /// Which table.
        table: &'static str,
        /// The id.
        id: u64,
    },
    /// A sample has more or fewer values than there are types.
    #[error("sample {sample} has {values} values for {types} sample types")]
    Lengths {
        /// Position in the profile.
        sample: usize,
        /// Its values.
        values: usize,
        /// Types of the profile.
        types: usize,
    },
    /// A label that nothing could ask for.
    #[error("sample {sample} has a label without a name")]
    Label {
        /// Position in the profile.
        sample: usize,
    },
    /// A duration below 0.
    #[error("duration_nanos is negative")]
    Duration,
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
    /// Values, or a count times its period, whose sum leaves 64 bits.
    #[error("the values of {kind}/{unit} add up to more than 64 bits hold")]
    Overflow {
        /// The type.
        kind: String,
        /// Its unit.
        unit: String,
    },
}

/// Whose fault it is, for the status of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// The bytes are no valid profile.
    Malformed,
    /// Smaller ones are taken.
    TooLarge,
    /// A valid profile that cannot be stored.
    Unstorable,
}

impl Fault {
    /// The value of the metric label `reason` and the code of the answer.
    #[must_use]
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::Empty => "empty",
            Self::Truncated { .. }
            | Self::Varint { .. }
            | Self::Tag { .. }
            | Self::WireType { .. } => "undecodable",
            Self::NoSampleType | Self::RepeatedType { .. } => "sample_type",
            Self::FirstString | Self::Text { .. } | Self::Reference { .. } | Self::Id { .. } => {
                "index"
            }
            Self::Lengths { .. } => "lengths",
            Self::Label { .. } => "label",
            Self::Limit { .. } => "limit",
            Self::Time { .. } | Self::Duration => "time",
            Self::Overflow { .. } => "overflow",
        }
    }

    /// Whose fault it is.
    #[must_use]
    pub const fn severity(&self) -> Severity {
        match self {
            Self::Limit { .. } => Severity::TooLarge,
            Self::Time { .. } | Self::Overflow { .. } | Self::RepeatedType { .. } => {
                Severity::Unstorable
            }
            _ => Severity::Malformed,
        }
    }
}

/// Refuses what is larger than `max`.
pub(super) fn cap(what: &'static str, size: usize, max: usize) -> Result<(), Fault> {
    if size > max { Err(Fault::Limit { what, size, max }) } else { Ok(()) }
}
