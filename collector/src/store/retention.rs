//! How long profiles are kept. It goes by whole days (UTC), so that a day is there or not. Not responsible for removing
//! anything.

use std::collections::BTreeMap;
use std::sync::Arc;

/// Milliseconds of a day.
pub(in crate::store) const DAY_MS: i64 = 24 * 3_600 * 1_000;

/// How long profiles are kept: all, and some types less.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Retention {
    /// Milliseconds; `None` is for ever.
    all_ms: Option<i64>,
    /// Milliseconds by the name of a type, each less than `all_ms`.
    types: BTreeMap<Arc<str>, i64>,
}

impl Retention {
    /// All for so many milliseconds.
    #[must_use]
    pub fn new(all_ms: i64) -> Self {
        Self { all_ms: Some(all_ms), types: BTreeMap::new() }
    }

    /// A type for less.
    ///
    /// # Errors
    /// If it is said twice, or not less.
    pub fn with_type(mut self, one: TypeRetention) -> Result<Self, RetentionError> {
        let TypeRetention { kind, kept_ms } = one;
        if self.all_ms.is_some_and(|all_ms| kept_ms >= all_ms) {
            return Err(RetentionError::Longer(kind));
        }
        match self.types.insert(Arc::clone(&kind), kept_ms) {
            None => Ok(self),
            Some(_) => Err(RetentionError::Twice(kind)),
        }
    }

    /// The earliest time of a profile of this type that is taken, Unix milliseconds: what is taken is kept for a while.
    #[must_use]
    pub fn taken_from_ms(&self, kind: &str, now_ms: i64) -> i64 {
        let kept_ms = self.types.get(kind).copied().or(self.all_ms);
        kept_ms.map_or(i64::MIN, |kept_ms| now_ms.saturating_sub(kept_ms))
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

/// What is wrong with how long a type is kept.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RetentionError {
    /// It is said twice.
    #[error("how long {0} is kept is said twice")]
    Twice(Arc<str>),
    /// It is not less than for all.
    #[error("{0} would not be kept for less time than everything is; lower it, or leave it out")]
    Longer(Arc<str>),
}

/// How long one type is kept, as `off_cpu=3d`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TypeRetention {
    /// The name of the type, in all its units.
    pub kind: Arc<str>,
    /// Milliseconds.
    pub kept_ms: i64,
}
