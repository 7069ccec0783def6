//! Answers that look at series, times and attributes: time lines, services, labels, coverage.

use super::engine::Engine;
use super::scan::{Asker, Chunk, Need, Plan};
use super::service::Service;
use super::symbols::Series;
use crate::limits;
use crate::profile::{Attribute, ProjectName, SeriesLabels};
use crate::query::{
    Buckets, Coverage, LabelKind, LabelName, LabelValue, Overflow, ProfileTypeRow, Selection,
    ServiceRow, Timeline, TimelineBuilder, TimelineQuery, share,
};
use crate::store::{StoreError, type_rows};
use hashbrown::{HashMap, HashSet};
use std::collections::BTreeMap;
use std::sync::Arc;

impl Engine {
    pub(super) fn timeline(
        &self,
        query: &TimelineQuery,
        asker: &Asker,
    ) -> Result<Timeline, StoreError> {
        let selection = &query.selection;
        let buckets = Buckets::by_step(selection.range, query.step_ms)?;
        let mut builder = TimelineBuilder::new(buckets);
        let Some(plan) = self.plan(selection, asker) else {
            return Ok(builder.finish(query, &crate::query::HostValues::default())?);
        };
        let by = query.by.as_deref().map(|name| (name, LabelKind::of(name)));
        let need = match by {
            Some((_, LabelKind::Attribute)) => Need::Rows,
            Some((_, LabelKind::Series)) | None => Need::Buckets(buckets),
        };
        plan.scan(need, &mut |series: &Series, chunk: Chunk<'_>| {
            let host = &series.labels.host;
            match by {
                Some((name, LabelKind::Attribute)) => add_by_set(&mut builder, host, &chunk, name),
                Some((name, LabelKind::Series)) => {
                    let key = series.labels.get(name).map_or("", |value| value);
                    add_all(builder.row(key, host)?, buckets, &chunk);
                    Ok(())
                }
                None => {
                    add_all(builder.row("", host)?, buckets, &chunk);
                    Ok(())
                }
            }
        })?;
        Ok(builder.finish(query, &plan.reported()?)?)
    }

    pub(super) fn services(
        &self,
        selection: &Selection,
        trend_buckets: usize,
        asker: &Asker,
    ) -> Result<Vec<ServiceRow>, StoreError> {
        let buckets = Buckets::by_count(selection.range, trend_buckets)?;
        let Some(plan) = self.plan(selection, asker) else {
            return Ok(Vec::new());
        };
        let reported = plan.reported()?;
        let mut rows = Vec::new();
        for &number in &plan.services {
            let mut trend = TimelineBuilder::new(buckets);
            let Some(totals) = plan.service_totals(number, buckets, &mut trend)? else { continue };
            let name = plan.service(number).name.to_string();
            let (trend, trend_cores) = trend.line("", &reported)?;
            let by_host = totals.by_host.iter().map(|(host, &sum)| (host, sum));
            let total: i128 = totals.by_host.values().sum();
            rows.push(ServiceRow {
                service: name,
                total: Overflow::check(total, "a service")?,
                samples: totals.samples,
                cores: reported.cores(by_host, selection.range),
                trend,
                trend_cores,
                hosts: totals.by_host.keys().filter(|host| !host.is_empty()).count() as u64,
                containers: totals.containers.len() as u64,
                named_share: share(totals.named, total),
            });
        }
        rows.sort_by(|a, b| b.total.cmp(&a.total).then_with(|| a.service.cmp(&b.service)));
        Ok(rows)
    }

    pub(super) fn label_names(
        &self,
        selection: &Selection,
        asker: &Asker,
    ) -> Result<Vec<LabelName>, StoreError> {
        let Some(plan) = self.plan(selection, asker) else {
            return Ok(Vec::new());
        };
        let mut names: BTreeMap<String, HashSet<String>> = BTreeMap::new();
        let mut counted = 0;
        let mut add = |name: &str, value: &str| {
            if !names.contains_key(name) {
                names.insert(name.to_owned(), HashSet::new());
            }
            let values = names.get_mut(name);
            let is_new = values
                .is_some_and(|values| !values.contains(value) && values.insert(value.to_owned()));
            counted += usize::from(is_new);
            within_values(counted)
        };
        plan.scan(Need::Rows, &mut |series: &Series, chunk: Chunk<'_>| {
            for (name, value) in series.labels.each().into_iter().filter(|(_, v)| !v.is_empty()) {
                add(name, value)?;
            }
            let mut used = vec![false; chunk.dictionary.len()];
            chunk.sets.iter().for_each(|&set| used[set as usize] = true);
            let sets = chunk.dictionary.iter().zip(used).filter(|(_, used)| *used);
            for attribute in sets.flat_map(|(set, _)| set.iter()) {
                if LabelKind::of(&attribute.key) == LabelKind::Attribute {
                    add(&attribute.key, &attribute.value.text())?;
                }
            }
            Ok(())
        })?;
        let row = |(name, values): (String, HashSet<String>)| LabelName {
            name,
            values: values.len() as u64,
        };
        Ok(names.into_iter().map(row).collect())
    }

    pub(super) fn label_values(
        &self,
        selection: &Selection,
        label: &str,
        prefix: &str,
        limit: usize,
        asker: &Asker,
    ) -> Result<Vec<LabelValue>, StoreError> {
        let Some(plan) = self.plan(selection, asker) else {
            return Ok(Vec::new());
        };
        let mut counts: HashMap<String, u64> = HashMap::new();
        let mut add = |value: &str, samples: u64| {
            if value.is_empty() || !value.starts_with(prefix) || samples == 0 {
                return Ok(());
            }
            match counts.get_mut(value) {
                Some(count) => *count += samples,
                None => drop(counts.insert(value.to_owned(), samples)),
            }
            within_values(counts.len())
        };
        let kind = LabelKind::of(label);
        let need = if kind == LabelKind::Series { Need::Stacks } else { Need::Rows };
        plan.scan(need, &mut |series: &Series, chunk: Chunk<'_>| match kind {
            LabelKind::Series => {
                add(series.labels.get(label).map_or("", |value| value), chunk.samples)
            }
            LabelKind::Attribute => {
                let mut samples = vec![0_u64; chunk.dictionary.len()];
                chunk.sets.iter().for_each(|&set| samples[set as usize] += 1);
                let mut sets = chunk.dictionary.iter().zip(samples);
                sets.try_for_each(|(set, samples)| add(&attribute_text(set, label), samples))
            }
        })?;
        let mut rows: Vec<LabelValue> =
            counts.into_iter().map(|(value, samples)| LabelValue { value, samples }).collect();
        rows.sort_by(|a, b| b.samples.cmp(&a.samples).then_with(|| a.value.cmp(&b.value)));
        rows.truncate(limit);
        Ok(rows)
    }

    pub(super) fn profile_types(&self, project: &ProjectName) -> Vec<ProfileTypeRow> {
        let Some(project) = self.project(project) else {
            return Vec::new();
        };
        let symbols = project.symbols();
        type_rows(symbols.types.iter().map(|entry| (entry.value_type.clone(), entry.newest().1)))
    }

    pub(super) fn coverage(
        &self,
        selection: &Selection,
        asker: &Asker,
    ) -> Result<Coverage, StoreError> {
        let Some(plan) = self.plan(selection, asker) else {
            return Ok(Coverage::default());
        };
        let mut hosts = plan.reported()?;
        plan.scan(Need::Stacks, &mut |series: &Series, chunk: Chunk<'_>| {
            hosts.add(&series.labels.host, sum(chunk.values));
            Ok(())
        })?;
        Ok(hosts.coverage(selection.range))
    }
}

/// Figures of one service.
#[derive(Debug, Default)]
struct ServiceTotals {
    samples: u64,
    by_host: BTreeMap<Arc<str>, i128>,
    containers: HashSet<Arc<str>>,
    /// Sum of the samples whose leaf has a name.
    named: i128,
}

impl Plan {
    fn service_totals(
        &self,
        number: u32,
        buckets: Buckets,
        trend: &mut TimelineBuilder,
    ) -> Result<Option<ServiceTotals>, StoreError> {
        let service = self.service(number);
        let named = self.named_nodes(&service);
        let mut totals = ServiceTotals::default();
        self.scan_service(
            number,
            Need::Buckets(buckets),
            &mut |series: &Series, chunk: Chunk<'_>| {
                let SeriesLabels { host, container, .. } = &series.labels;
                totals.samples += chunk.samples;
                *totals.by_host.entry(Arc::clone(host)).or_default() += sum(chunk.values);
                if !container.is_empty() {
                    totals.containers.insert(Arc::clone(container));
                }

                for (&node, &value) in chunk.nodes.iter().zip(chunk.values) {
                    if named.get(node as usize).is_some_and(|&named| named) {
                        totals.named += i128::from(value);
                    }
                }
                add_all(trend.row("", host)?, buckets, &chunk);
                Ok(())
            },
        )?;
        Ok((totals.samples > 0).then_some(totals))
    }

    /// For each location node, whether its innermost function has a name.
    fn named_nodes(&self, service: &Service) -> Vec<bool> {
        // Only brought up to date here: the order of locks is symbols, then names.
        drop(self.names(service));
        let symbols = self.project.symbols();
        let names = service.names();
        let named = |&node: &u32| {
            let function = names.function[node as usize] as usize;
            symbols.functions.get(function).is_some_and(|function| function.info.named)
        };
        names.node_of.iter().map(named).collect()
    }
}

fn sum(values: &[i64]) -> i128 {
    values.iter().map(|&value| i128::from(value)).sum()
}

fn within_values(count: usize) -> Result<(), StoreError> {
    if count > limits::LABEL_VALUES_MAX {
        let max = limits::LABEL_VALUES_MAX as u64;
        return Err(StoreError::Limit { what: "distinct label values", max });
    }
    Ok(())
}

pub(super) fn attribute_text<'a>(set: &'a [Attribute], name: &str) -> std::borrow::Cow<'a, str> {
    let found = set.iter().find(|attribute| *attribute.key == *name);
    found.map_or(std::borrow::Cow::Borrowed(""), |attribute| attribute.value.text())
}

fn add_all(row: &mut [i128], buckets: Buckets, chunk: &Chunk<'_>) {
    if chunk.times.is_empty() {
        row[buckets.index(chunk.first_ms)] += sum(chunk.values);
        return;
    }
    for (&time_ms, &value) in chunk.times.iter().zip(chunk.values) {
        row[buckets.index(time_ms)] += i128::from(value);
    }
}

fn add_by_set(
    builder: &mut TimelineBuilder,
    host: &Arc<str>,
    chunk: &Chunk<'_>,
    name: &str,
) -> Result<(), StoreError> {
    let buckets = builder.buckets();
    let mut order: Vec<usize> = (0..chunk.sets.len()).collect();
    order.sort_by_key(|&at| chunk.sets[at]);
    let mut rest = order.as_slice();
    while let Some(&first) = rest.first() {
        let set = chunk.sets[first];
        let length = rest.partition_point(|&at| chunk.sets[at] == set);
        let key = attribute_text(&chunk.dictionary[set as usize], name);
        let row = builder.row(&key, host)?;
        for &at in &rest[..length] {
            row[buckets.index(chunk.times[at])] += i128::from(chunk.values[at]);
        }
        rest = &rest[length..];
    }
    Ok(())
}
