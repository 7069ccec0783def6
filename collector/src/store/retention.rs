//! How long profiles are kept. It goes by whole days (UTC), so that a day is there or not. Not responsible for removing
//! anything.

use std::collections::BTreeMap;
use std::sync::Arc;

/// Milliseconds of a day.
const DAY_MS: i64 = 24 * 3_600 * 1_000;

/// How long profiles are kept: all, and some types less.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Retention {
    /// Milliseconds; `None` is for ever.
    all_ms: Option<i64>,
    /// Milliseconds by the name of a type; what is longer than `all_ms` says no more than that.
    types: BTreeMap<Arc<str>, i64>,
}

impl Retention {
    /// All for so many milliseconds, these types for less.
    #[must_use]
    pub fn new(all_ms: i64, types: impl IntoIterator<Item = TypeRetention>) -> Self {
        let types = types.into_iter().map(|TypeRetention { kind, kept_ms }| (kind, kept_ms));
        Self { all_ms: Some(all_ms), types: types.collect() }
    }

    /// Milliseconds after which everything goes; `None` is never.
    #[must_use]
    pub fn all_ms(&self) -> Option<i64> {
        self.all_ms
    }

    /// The first time of which something is kept, Unix milliseconds.
    pub(super) fn kept_from_ms(&self, now_ms: i64) -> i64 {
        first_day(self.all_ms, now_ms)
    }

    /// The first time that is kept of a type, Unix milliseconds.
    pub(super) fn type_kept_from_ms(&self, kind: &str, now_ms: i64) -> i64 {
        self.kept_from_ms(now_ms).max(first_day(self.types.get(kind).copied(), now_ms))
    }

    /// True if some types go before the others.
    pub(super) fn has_types(&self) -> bool {
        !self.types.is_empty()
    }
}

fn first_day(kept_ms: Option<i64>, now_ms: i64) -> i64 {
    let Some(kept_ms) = kept_ms else { return i64::MIN };
    now_ms.saturating_sub(kept_ms).div_euclid(DAY_MS).saturating_mul(DAY_MS)
}

/// How long one type is kept, as `off_cpu=3d`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TypeRetention {
    /// The name of the type, in all its units.
    pub kind: Arc<str>,
    /// Milliseconds.
    pub kept_ms: i64,
}
