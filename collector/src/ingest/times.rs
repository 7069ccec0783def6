//! Times as senders write them.

use crate::query::TimeRange;

/// Times before this are no wall clock: some senders leave the time unset or send time since boot.
pub(in crate::ingest) const YEAR_1971_NS: u64 = 365 * 24 * 3_600 * 1_000_000_000;

/// Nanoseconds in a millisecond.
pub(in crate::ingest) const NS_PER_MS: u64 = 1_000_000;

/// A time that is not accepted, then the first that is and the first behind, for people.
pub(in crate::ingest) fn outside(time_ms: i64, accepted: TimeRange) -> Option<[String; 3]> {
    let TimeRange { from_ms, to_ms } = accepted;
    let is_accepted = (from_ms..to_ms).contains(&time_ms);
    (!is_accepted).then(|| [time_ms, from_ms, to_ms].map(rfc3339))
}

/// Unix milliseconds for people.
pub(crate) fn rfc3339(ms: i64) -> String {
    jiff::Timestamp::from_millisecond(ms)
        .map_or_else(|_| format!("{ms} ms"), |time| time.to_string())
}
