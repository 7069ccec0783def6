//! The unit rules: what a profile is stored as. CPU is nanoseconds: a type already in nanoseconds is kept,
//! a count with a `cpu`/`nanoseconds` period is multiplied by the profile's own period. Every other type
//! is stored as its sender names it.

use crate::profile::ValueType;
use std::sync::Arc;

/// How the values of one profile are stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::ingest) struct Stored {
    /// The stored type.
    pub(in crate::ingest) sample_type: ValueType,
    /// What each value, or each observation without one, is multiplied by.
    pub(in crate::ingest) factor: i64,
}

pub(in crate::ingest) fn is_cpu_nanoseconds(value_type: &ValueType) -> bool {
    &*value_type.kind == "cpu" && &*value_type.unit == "nanoseconds"
}

/// True for a count of samples whose period is CPU time: the other spelling of CPU nanoseconds.
pub(in crate::ingest) fn counts_cpu(
    sample_type: &ValueType,
    period_type: &ValueType,
    period: i64,
) -> bool {
    matches!(&*sample_type.kind, "samples" | "sample" | "cpu")
        && matches!(&*sample_type.unit, "count" | "samples" | "")
        && is_cpu_nanoseconds(period_type)
        && period > 0
}

/// Applies the rules. `has_cpu_twin`: the same profile was also sent as CPU nanoseconds, so its counts
/// must not become CPU time a second time.
pub(in crate::ingest) fn stored(
    sample_type: ValueType,
    period_type: &ValueType,
    period: i64,
    has_cpu_twin: bool,
) -> Stored {
    if counts_cpu(&sample_type, period_type, period) && !has_cpu_twin {
        let sample_type = ValueType { kind: Arc::from("cpu"), unit: Arc::from("nanoseconds") };
        return Stored { sample_type, factor: period };
    }
    Stored { sample_type, factor: 1 }
}
