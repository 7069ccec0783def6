//! Times as senders write them.

/// Times before this are no wall clock: some senders leave the time unset or send time since boot.
pub(in crate::ingest) const YEAR_1971_NS: u64 = 365 * 24 * 3_600 * 1_000_000_000;

/// Nanoseconds in a millisecond.
pub(in crate::ingest) const NS_PER_MS: u64 = 1_000_000;

/// Unix milliseconds for people.
pub(crate) fn rfc3339(ms: i64) -> String {
    jiff::Timestamp::from_millisecond(ms)
        .map_or_else(|_| format!("{ms} ms"), |time| time.to_string())
}
