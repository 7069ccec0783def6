//! How matchers compare, and which of them concern series and which samples.

use super::{MatchOp, Matcher, OFF_CPU_TYPE, Selection, TimeRange};
use crate::profile::{Attribute, SeriesLabels, ValueType};

/// What a label name of a question means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LabelKind {
    /// A label of the series: decides over whole series.
    Series,
    /// An attribute of samples.
    Attribute,
}

impl LabelKind {
    /// The kind of `name`.
    #[must_use]
    pub fn of(name: &str) -> Self {
        if SeriesLabels::NAMES.contains(&name) { Self::Series } else { Self::Attribute }
    }
}

impl MatchOp {
    /// True if `value` passes.
    #[must_use]
    pub fn matches(&self, value: &str) -> bool {
        match self {
            Self::Equal(wanted) => value == wanted,
            Self::NotEqual(unwanted) => value != unwanted,
            Self::Regex(regex) => regex.is_match(value),
            Self::NotRegex(regex) => !regex.is_match(value),
        }
    }
}

impl Matcher {
    /// True if the labels of a series pass; attribute matchers always pass here.
    #[must_use]
    pub fn matches_series(&self, labels: &SeriesLabels) -> bool {
        labels.get(&self.name).is_none_or(|value| self.op.matches(value))
    }

    /// True if a set of sample attributes passes; series matchers always pass here.
    #[must_use]
    pub fn matches_attributes(&self, attributes: &[Attribute]) -> bool {
        if LabelKind::of(&self.name) == LabelKind::Series {
            return true;
        }
        match attributes.iter().find(|attribute| *attribute.key == *self.name) {
            Some(attribute) => self.op.matches(&attribute.value.text()),
            None => self.op.matches(""),
        }
    }
}

impl Selection {
    /// True if the labels of a series pass all matchers that concern series.
    #[must_use]
    pub fn matches_series(&self, labels: &SeriesLabels) -> bool {
        self.matchers.iter().all(|matcher| matcher.matches_series(labels))
    }

    /// True if a host passes the matchers on `host`: it decides whose reported time counts.
    #[must_use]
    pub fn matches_host(&self, host: &str) -> bool {
        self.matchers
            .iter()
            .filter(|matcher| matcher.name == "host")
            .all(|matcher| matcher.op.matches(host))
    }

    /// True if a set of sample attributes passes all matchers that concern samples.
    #[must_use]
    pub fn matches_attributes(&self, attributes: &[Attribute]) -> bool {
        self.matchers.iter().all(|matcher| matcher.matches_attributes(attributes))
    }

    /// True if any matcher looks at sample attributes.
    #[must_use]
    pub fn has_attribute_matchers(&self) -> bool {
        self.matchers.iter().any(|matcher| LabelKind::of(&matcher.name) == LabelKind::Attribute)
    }

    /// Which of the types that exist is asked for: `name:unit` exactly, else the name in its
    /// [`ValueType::first_unit`], so that values of two units are never added.
    #[must_use]
    pub fn resolve_type<'a>(
        &self,
        existing: impl IntoIterator<Item = &'a ValueType>,
    ) -> Option<&'a ValueType> {
        existing
            .into_iter()
            .filter(|known| known.is_asked_for_by(&self.profile_type))
            .min_by(|a, b| a.first_unit().cmp(&b.first_unit()))
    }
}

/// Types whose profiles are empty in many windows, because nothing of them happened.
const RARE_TYPES: [&str; 4] = ["lock", "lock_contentions", "lock_holders", "off_cpu_preempted"];

impl ValueType {
    fn is_asked_for_by(&self, id: &str) -> bool {
        let exact = id
            .strip_prefix(&*self.kind)
            .and_then(|rest| rest.strip_prefix(':'))
            .is_some_and(|unit| unit == &*self.unit);
        exact || *self.kind == *id
    }

    /// The order of units of one name: the first is meant where none is said. Time comes before counts of
    /// how often (`off_cpu` has both), then by name.
    #[must_use]
    pub fn first_unit(&self) -> (bool, &str) {
        (*self.unit != *"nanoseconds", &self.unit)
    }

    /// True if a profile of this type says that its host was watched for `wanted`. A window in which nobody
    /// waited for a lock has no `lock` profile: that it was watched is told by its off-CPU time, which
    /// always is some.
    #[must_use]
    pub fn reports(&self, wanted: &Self) -> bool {
        let watched = RARE_TYPES.contains(&&*wanted.kind) && *self.kind == *OFF_CPU_TYPE;
        self == wanted || (watched && *self.unit == *"nanoseconds")
    }
}

impl TimeRange {
    /// True if `time_ms` lies in [from, to).
    #[must_use]
    pub fn contains(&self, time_ms: i64) -> bool {
        self.from_ms <= time_ms && time_ms < self.to_ms
    }

    /// True if all of the closed span [first, last] lies in the range.
    #[must_use]
    pub fn covers(&self, first_ms: i64, last_ms: i64) -> bool {
        self.contains(first_ms) && self.contains(last_ms)
    }

    /// True if the closed span [first, last] and the range have a millisecond in common.
    #[must_use]
    pub fn touches(&self, first_ms: i64, last_ms: i64) -> bool {
        self.from_ms <= last_ms && first_ms < self.to_ms
    }

    /// Length, milliseconds; 0 if the range is empty.
    #[must_use]
    pub fn length_ms(&self) -> i64 {
        self.to_ms.saturating_sub(self.from_ms).max(0)
    }
}
