//! Reported time: which milliseconds a host covered with profiles, and cores computed from it.

use super::{Coverage, TimeRange};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A union of half open spans of time, Unix milliseconds. Order of insertion does not matter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Intervals {
    /// Sorted, disjoint, not touching.
    spans: Vec<(i64, i64)>,
}

impl Intervals {
    /// Adds [start, end); an empty span adds nothing.
    pub fn add(&mut self, start_ms: i64, end_ms: i64) {
        if start_ms >= end_ms {
            return;
        }
        let first = self.spans.partition_point(|&(_, end)| end < start_ms);
        let behind = first + self.spans[first..].partition_point(|&(start, _)| start <= end_ms);
        if first == behind {
            self.spans.insert(first, (start_ms, end_ms));
            return;
        }
        let start = start_ms.min(self.spans[first].0);
        let end = end_ms.max(self.spans[behind - 1].1);
        self.spans.splice(first..behind, [(start, end)]);
    }

    /// The spans, sorted.
    #[must_use]
    pub fn spans(&self) -> &[(i64, i64)] {
        &self.spans
    }

    /// Milliseconds of `range` that the union covers.
    #[must_use]
    pub fn covered_ms(&self, range: TimeRange) -> i64 {
        let first = self.spans.partition_point(|&(_, end)| end <= range.from_ms);
        self.spans[first..]
            .iter()
            .take_while(|&&(start, _)| start < range.to_ms)
            .map(|&(start, end)| end.min(range.to_ms) - start.max(range.from_ms))
            .sum()
    }
}

/// Values and reported time by host. Sorted by name, so that sums of floats are the same in every engine.
#[derive(Clone, Debug, Default)]
pub struct HostValues {
    reported: BTreeMap<Arc<str>, Intervals>,
    values: BTreeMap<Arc<str>, i128>,
}

impl HostValues {
    /// Adds a span that `host` reported.
    pub fn report(&mut self, host: &Arc<str>, start_ms: i64, end_ms: i64) {
        match self.reported.get_mut(host) {
            Some(intervals) => intervals.add(start_ms, end_ms),
            None => self.reported.entry(Arc::clone(host)).or_default().add(start_ms, end_ms),
        }
    }

    /// Adds a value of `host`.
    pub fn add(&mut self, host: &Arc<str>, value: i128) {
        match self.values.get_mut(host) {
            Some(sum) => *sum += value,
            None => *self.values.entry(Arc::clone(host)).or_default() += value,
        }
    }

    /// Coverage of the range, with the cores of the values added.
    #[must_use]
    pub fn coverage(&self, range: TimeRange) -> Coverage {
        let covered = self.reported.values().map(|intervals| intervals.covered_ms(range));
        let (hosts, host_ms) = covered
            .filter(|&milliseconds| milliseconds > 0)
            .fold((0, 0), |(hosts, sum), milliseconds| (hosts + 1, sum + milliseconds));
        let by_host = self.values.iter().map(|(host, &value)| (host, value));
        Coverage { hosts, host_ms, cores: self.cores(by_host, range) }
    }

    /// Sum over hosts of value / time of `range` that this host reported. A host with a value and no
    /// reported time (a pushed profile without a duration) is taken to cover the whole range.
    pub fn cores<'a>(
        &self,
        values: impl Iterator<Item = (&'a Arc<str>, i128)>,
        range: TimeRange,
    ) -> f64 {
        let of_host = |(host, value): (&Arc<str>, i128)| {
            let reported = self.reported.get(host).map_or(0, |spans| spans.covered_ms(range));
            let denominator_ms = if reported > 0 { reported } else { range.length_ms().max(1) };
            as_float(value) / (as_float(i128::from(denominator_ms)) * 1e6)
        };
        // Not `sum()`: the sum of no floats is -0.0.
        values.filter(|&(_, value)| value != 0).map(of_host).fold(0.0, |sum, cores| sum + cores)
    }
}

/// The nearest float; answers show three digits of it.
#[expect(clippy::cast_precision_loss, reason = "shares and cores are shown with three digits")]
fn as_float(value: i128) -> f64 {
    value as f64
}

/// Part of a whole, 0 to 1; 0 where the whole is not positive.
#[must_use]
pub fn share(part: i128, whole: i128) -> f64 {
    if whole > 0 { (as_float(part) / as_float(whole)).clamp(0.0, 1.0) } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn union(spans: &[(i64, i64)]) -> Intervals {
        let mut union = Intervals::default();
        spans.iter().for_each(|&(start, end)| union.add(start, end));
        union
    }

    #[test]
    fn unions_merge_what_overlaps_or_touches() {
        type Spans<'a> = &'a [(i64, i64)];
        let rows: [(Spans<'_>, Spans<'_>); 6] = [
            (&[(0, 5), (5, 10)], &[(0, 10)]),
            (&[(5, 10), (0, 5)], &[(0, 10)]),
            (&[(0, 5), (6, 10)], &[(0, 5), (6, 10)]),
            (&[(0, 2), (4, 6), (8, 10), (1, 9)], &[(0, 10)]),
            (&[(3, 3), (5, 4)], &[]),
            (&[(10, 20), (0, 5), (2, 3), (30, 40)], &[(0, 5), (10, 20), (30, 40)]),
        ];
        for (added, spans) in rows {
            assert_eq!(union(added).spans(), spans, "{added:?}");
        }
    }

    #[test]
    fn covered_time_is_cut_at_the_range() {
        let spans = union(&[(0, 10), (20, 30)]);
        let rows = [((0, 30), 20), ((5, 25), 10), ((10, 20), 0), ((-5, 1), 1), ((29, 99), 1)];
        for ((from_ms, to_ms), covered) in rows {
            assert_eq!(
                spans.covered_ms(TimeRange { from_ms, to_ms }),
                covered,
                "{from_ms}..{to_ms}"
            );
        }
    }

    #[test]
    fn cores_are_summed_over_hosts_with_their_own_time() {
        let (a, b) = (Arc::from("a"), Arc::from("b"));
        let mut hosts = HostValues::default();
        hosts.report(&a, 0, 1_000);
        hosts.report(&a, 500, 1_000);
        hosts.report(&b, 0, 500);
        hosts.add(&a, 2_000_000_000);
        hosts.add(&b, 1_000_000_000);
        let coverage = hosts.coverage(TimeRange { from_ms: 0, to_ms: 10_000 });
        assert_eq!(coverage, Coverage { hosts: 2, host_ms: 1_500, cores: 4.0 });
    }
}
