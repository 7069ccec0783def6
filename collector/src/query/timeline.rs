//! Time lines: sums per bucket, split by one label, with the rest added up and cores beside the sums.

use super::coverage::HostValues;
use super::{Overflow, TimeRange, Timeline, TimelineQuery};
use crate::limits;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Buckets of a range: equal steps from its start, the last one cut at its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buckets {
    range: TimeRange,
    step_ms: i64,
    count: usize,
}

/// A time line asks for more than a named limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TimelineError {
    /// More buckets than [`limits::TIMELINE_BUCKETS_MAX`], or a step that is not positive.
    #[error("the time line has too many buckets")]
    Buckets,
    /// More cells than [`limits::TIMELINE_CELLS_MAX`].
    #[error("the time line has too many cells")]
    Cells,
    /// A sum left 64 bits.
    #[error(transparent)]
    Overflow(#[from] Overflow),
}

impl Buckets {
    /// Steps of `step_ms` milliseconds.
    ///
    /// # Errors
    /// [`TimelineError::Buckets`].
    pub fn by_step(range: TimeRange, step_ms: i64) -> Result<Self, TimelineError> {
        let length = range.length_ms();
        if step_ms <= 0 {
            return Err(TimelineError::Buckets);
        }
        let count = length.div_euclid(step_ms) + i64::from(length % step_ms != 0);
        match usize::try_from(count) {
            Ok(count) if count <= limits::TIMELINE_BUCKETS_MAX => {
                Ok(Self { range, step_ms, count })
            }
            _ => Err(TimelineError::Buckets),
        }
    }

    /// `count` equal steps, at least one (steps are whole milliseconds, rounded up, so the last ones may lie
    /// behind the range and stay empty).
    ///
    /// # Errors
    /// [`TimelineError::Buckets`].
    pub fn by_count(range: TimeRange, count: usize) -> Result<Self, TimelineError> {
        let count = count.max(1);
        let wanted = i64::try_from(count).unwrap_or(i64::MAX);
        let length = range.length_ms();
        let step_ms = length / wanted + i64::from(length % wanted != 0);
        let mut buckets = Self::by_step(range, step_ms.max(1))?;
        buckets.count = count;
        if count > limits::TIMELINE_BUCKETS_MAX {
            return Err(TimelineError::Buckets);
        }
        Ok(buckets)
    }

    /// How many.
    #[must_use]
    pub fn count(&self) -> usize {
        self.count
    }

    /// The bucket of a time inside the range.
    #[must_use]
    pub fn index(&self, time_ms: i64) -> usize {
        usize::try_from((time_ms - self.range.from_ms) / self.step_ms).unwrap_or(0)
    }

    /// The times of a bucket; empty behind the end of the range.
    #[must_use]
    pub fn range(&self, index: usize) -> TimeRange {
        let offset = i64::try_from(index).unwrap_or(i64::MAX).saturating_mul(self.step_ms);
        let from_ms = self.range.from_ms.saturating_add(offset).min(self.range.to_ms);
        TimeRange { from_ms, to_ms: from_ms.saturating_add(self.step_ms).min(self.range.to_ms) }
    }
}

type HostBuckets = BTreeMap<Arc<str>, Vec<i128>>;

/// Sums by (key, host, bucket).
#[derive(Debug)]
pub struct TimelineBuilder {
    buckets: Buckets,
    cells: usize,
    keys: BTreeMap<String, HostBuckets>,
}

impl TimelineBuilder {
    /// An empty one.
    #[must_use]
    pub fn new(buckets: Buckets) -> Self {
        Self { buckets, cells: 0, keys: BTreeMap::new() }
    }

    /// The sums of one key and host, one per bucket: add to them.
    ///
    /// # Errors
    /// [`TimelineError::Cells`].
    pub fn row(&mut self, key: &str, host: &Arc<str>) -> Result<&mut [i128], TimelineError> {
        if !self.keys.contains_key(key) {
            self.keys.insert(key.to_owned(), HostBuckets::new());
        }
        let hosts = self.keys.get_mut(key).ok_or(TimelineError::Cells)?;
        if !hosts.contains_key(host) {
            self.cells += self.buckets.count.max(1);
            if self.cells > limits::TIMELINE_CELLS_MAX {
                return Err(TimelineError::Cells);
            }
            hosts.insert(Arc::clone(host), vec![0; self.buckets.count]);
        }
        hosts.get_mut(host).map(Vec::as_mut_slice).ok_or(TimelineError::Cells)
    }

    /// The buckets.
    #[must_use]
    pub fn buckets(&self) -> Buckets {
        self.buckets
    }

    /// Sums and cores per bucket of one key; zeros if it has none.
    ///
    /// # Errors
    /// If a sum leaves 64 bits.
    pub fn line(&self, key: &str, reported: &HostValues) -> Result<(Vec<i64>, Vec<f64>), Overflow> {
        let none = HostBuckets::new();
        let hosts = self.keys.get(key).unwrap_or(&none);
        Ok((sums(hosts, self.buckets.count)?, cores(hosts, self.buckets, reported)))
    }

    /// The answer: the `series_max` keys with the largest sums (then by key), the rest in `other`.
    ///
    /// # Errors
    /// If a sum leaves 64 bits.
    pub fn finish(
        self,
        query: &TimelineQuery,
        reported: &HostValues,
    ) -> Result<Timeline, Overflow> {
        let Self { buckets, keys, .. } = self;
        let mut ranked: Vec<(i128, String, HostBuckets)> = keys
            .into_iter()
            .map(|(key, hosts)| (hosts.values().flatten().sum(), key, hosts))
            .collect();
        ranked.sort_by(|a, b| b.0.cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
        let rest = ranked.split_off(query.series_max.min(ranked.len()));
        let mut line = Timeline {
            start_ms: query.selection.range.from_ms,
            step_ms: query.step_ms,
            ..Timeline::default()
        };
        for (_, key, hosts) in ranked {
            line.series_cores.push(cores(&hosts, buckets, reported));
            line.series.push((key, sums(&hosts, buckets.count)?));
        }
        if !rest.is_empty() {
            let mut merged = HostBuckets::new();
            for (host, values) in rest.into_iter().flat_map(|(_, _, hosts)| hosts) {
                let sums = merged.entry(host).or_insert_with(|| vec![0; buckets.count]);
                sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
            }
            line.other_cores = Some(cores(&merged, buckets, reported));
            line.other = Some(sums(&merged, buckets.count)?);
        }
        Ok(line)
    }
}

fn sums(hosts: &HostBuckets, count: usize) -> Result<Vec<i64>, Overflow> {
    let sum = |bucket: usize| hosts.values().map(|values| values[bucket]).sum::<i128>();
    (0..count).map(|bucket| Overflow::check(sum(bucket), "a bucket")).collect()
}

fn cores(hosts: &HostBuckets, buckets: Buckets, reported: &HostValues) -> Vec<f64> {
    let at = |bucket: usize| {
        let values = hosts.iter().map(|(host, values)| (host, values[bucket]));
        reported.cores(values, buckets.range(bucket))
    };
    (0..buckets.count).map(at).collect()
}
