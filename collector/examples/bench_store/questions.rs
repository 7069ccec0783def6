//! The questions, and what the samples themselves say is right: a bench that answers wrongly fails.

use crate::batches::{function_name, pod_name};
use crate::data_set::{DataSet, HOUR_MS, Kind, SPAN_MS, START_MS, Series};
use anyhow::{Result, ensure};
use collector::profile::ProjectName;
use collector::query::{
    FlameTree, MatchOp, Matcher, MergeQuery, Selection, TimeRange, Timeline, TimelineQuery,
};
use std::collections::BTreeMap;

/// Steps of the time line: 1,008 in a week.
pub(crate) const STEP_MS: i64 = 10 * 60 * 1_000;
/// Pods that the time line shows, the rest is one more.
const PODS: usize = 50;
/// What the page asks for.
const NODES: usize = 20_000;
const TOP: usize = 200;

/// Samples of the type `cpu`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Question {
    pub(crate) figure: &'static str,
    /// All of them, or this one.
    pub(crate) service: Option<usize>,
    pub(crate) range: TimeRange,
    /// All pods but the first, so that no sums over all of them will do.
    pub(crate) by_label: bool,
}

/// A merge, and its answer.
pub(crate) struct Merge {
    pub(crate) question: Question,
    pub(crate) samples: u64,
    pub(crate) total: i64,
    /// By service.
    services: Vec<i64>,
}

/// The answers.
pub(crate) struct Truth {
    pub(crate) merges: Vec<Merge>,
    /// Of the first service, by the number of the pod and by step.
    pods: BTreeMap<u32, Vec<i64>>,
}

const WEEK: TimeRange = TimeRange { from_ms: START_MS, to_ms: START_MS + SPAN_MS };
/// The newest hour.
const HOUR: TimeRange = TimeRange { from_ms: WEEK.to_ms - HOUR_MS, ..WEEK };

/// Of the hour, then of the week.
const QUESTIONS: [Question; 5] = [
    question("merge_service_1h", Some(0), HOUR, false),
    question("merge_fleet_1h", None, HOUR, false),
    question("merge_service_7d", Some(0), WEEK, false),
    question("merge_service_7d_labels", Some(0), WEEK, true),
    question("merge_fleet_7d", None, WEEK, false),
];

const fn question(
    figure: &'static str,
    service: Option<usize>,
    range: TimeRange,
    by_label: bool,
) -> Question {
    Question { figure, service, range, by_label }
}

impl Question {
    pub(crate) const fn is_of_hour(&self) -> bool {
        self.range.to_ms - self.range.from_ms == HOUR_MS
    }

    fn asks_for(&self, series: &Series, time_ms: i64) -> bool {
        series.kind == Kind::Cpu
            && self.service.is_none_or(|service| service == series.service)
            && !(self.by_label && series.number == 0)
            && (self.range.from_ms..self.range.to_ms).contains(&time_ms)
    }

    pub(crate) fn merge(&self, set: &DataSet) -> MergeQuery {
        let mut matchers = Vec::new();
        if let Some(service) = self.service {
            let op = MatchOp::Equal(set.services[service].name.clone());
            matchers.push(Matcher { name: "service".to_owned(), op });
        }
        if self.by_label {
            let op = MatchOp::NotEqual(pod_name(0));
            matchers.push(Matcher { name: "pod".to_owned(), op });
        }
        let selection = selection(self.range, matchers);
        MergeQuery { selection, nodes_max: NODES, keep_self_top: TOP, leaf: None }
    }
}

fn selection(range: TimeRange, matchers: Vec<Matcher>) -> Selection {
    let project = ProjectName(crate::PROJECT.into());
    Selection { project, profile_type: "cpu".to_owned(), range, matchers }
}

/// The first service by pod.
pub(crate) fn timeline(set: &DataSet) -> TimelineQuery {
    let op = MatchOp::Equal(set.services[0].name.clone());
    let of_service = Matcher { name: "service".to_owned(), op };
    TimelineQuery {
        selection: selection(WEEK, vec![of_service]),
        by: Some("pod".to_owned()),
        step_ms: STEP_MS,
        series_max: PODS,
    }
}

impl Truth {
    pub(crate) fn of(set: &DataSet) -> Self {
        let services = set.services.len();
        let merge =
            |question| Merge { question, samples: 0, total: 0, services: vec![0; services] };
        let mut truth = Self { merges: QUESTIONS.map(merge).into(), pods: BTreeMap::new() };
        let steps = usize::try_from(SPAN_MS / STEP_MS).unwrap_or(0);
        for row in set.rows() {
            let series = &set.series[row.series as usize];
            for merge in &mut truth.merges {
                if merge.question.asks_for(series, row.time_ms) {
                    merge.samples += 1;
                    merge.total += row.value;
                    merge.services[series.service] += row.value;
                }
            }
            if series.kind == Kind::Cpu && series.service == 0 {
                let pod = truth.pods.entry(series.number).or_insert_with(|| vec![0; steps]);
                let step = usize::try_from((row.time_ms - START_MS) / STEP_MS).unwrap_or(0);
                pod[step] += row.value;
            }
        }
        truth
    }

    pub(crate) fn check_timeline(&self, answer: &Timeline) -> Result<()> {
        ensure!(answer.series.len() == PODS.min(self.pods.len()), "pods of the time line");
        let mut rest = self.pods.clone();
        for (pod, sums) in &answer.series {
            let number = pod.strip_prefix("pod-").and_then(|digits| digits.parse().ok());
            let truth = number.and_then(|number| rest.remove(&number));
            ensure!(truth.as_ref() == Some(sums), "the time line of {pod} is wrong");
        }
        let mut other = vec![0; answer.other.as_ref().map_or(0, Vec::len)];
        for pod in rest.values() {
            other.iter_mut().zip(pod).for_each(|(sum, value)| *sum += value);
        }
        let is_right = answer.other.as_ref().is_none_or(|sums| *sums == other);
        ensure!(is_right && (rest.is_empty() || answer.other.is_some()), "other pods are wrong");
        Ok(())
    }
}

impl Merge {
    pub(crate) fn check(&self, set: &DataSet, answer: &FlameTree) -> Result<()> {
        let Question { figure, .. } = self.question;
        let total = answer.node_total.first().copied().unwrap_or(0);
        let (samples, warnings) = (answer.samples, &answer.warnings);
        ensure!(samples == self.samples, "{figure}: {samples} samples, not {}", self.samples);
        ensure!(total == self.total, "{figure}: the total is {total}, not {}", self.total);
        ensure!(warnings.is_empty(), "{figure}: {warnings:?}");
        let mut roots = BTreeMap::new();
        for (service, &sum) in set.services.iter().zip(&self.services) {
            roots.insert(function_name(service.root), sum);
        }
        let mut shown = answer.node_hidden.first().copied().unwrap_or(0);
        for (node, _) in answer.node_depth.iter().enumerate().filter(|(_, depth)| **depth == 1) {
            let name = &answer.functions[answer.node_function[node] as usize].name;
            let (sum, truth) = (answer.node_total[node], roots.get(&**name));
            ensure!(truth == Some(&sum), "{figure}: {name} has {sum}, not {truth:?}");
            shown += sum;
        }
        ensure!(shown == total, "{figure}: the services' sums are {shown}, not {total}");
        Ok(())
    }
}
