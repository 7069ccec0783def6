//! Finds the samples of a selection and hands them on in chunks of columns, one service after another.

use super::engine::{Engine, Project, View};
use super::memtable::{ProjectRows, Rows, read_shard};
use super::symbols::Series;
use crate::profile::Attribute;
use crate::query::{HostValues, Selection, TimeRange};
use crate::store::StoreError;
use std::collections::BTreeSet;
use std::sync::Arc;

/// What a question needs to know of each sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Need {
    /// Sums by stack will do.
    Stacks,
    /// Single samples with times and attributes.
    Rows,
}

/// Samples of one series, as parallel columns.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Chunk<'a> {
    /// Nodes of the service's location trie.
    pub(super) nodes: &'a [u32],
    /// Values, or sums by stack if `times` is empty.
    pub(super) values: &'a [i64],
    /// Observations behind `values`.
    pub(super) samples: u64,
    /// Unix milliseconds; empty if only sums were asked for and are at hand.
    pub(super) times: &'a [i64],
    /// Indices into `dictionary`; empty like `times`.
    pub(super) sets: &'a [u32],
    /// Distinct attribute sets.
    pub(super) dictionary: &'a [Arc<[Attribute]>],
}

/// A question, prepared: which series of which services are asked for.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) project: Arc<Project>,
    pub(super) view: Arc<View>,
    pub(super) selection: Selection,
    pub(super) type_id: u32,
    pub(super) unit: Arc<str>,
    /// The series that match, by their id.
    series: Vec<Option<Arc<Series>>>,
    /// Services that have one, by their number.
    pub(super) services: BTreeSet<u32>,
}

/// Takes the chunks of one series.
pub(super) type Visit<'v> = dyn FnMut(&Series, Chunk<'_>) -> Result<(), StoreError> + 'v;

impl Engine {
    /// Prepares a question; `None` if the project or the type does not exist.
    pub(super) fn plan(&self, selection: &Selection) -> Option<Plan> {
        // The view comes first: all that it shows is then covered by the symbols read later.
        let view = self.view();
        let project = self.project(&selection.project)?;
        let symbols = project.symbols();
        let wanted = selection.resolve_type(symbols.types.iter().map(|entry| &entry.value_type))?;
        let unit = Arc::clone(&wanted.unit);
        let position = symbols.types.iter().position(|entry| entry.value_type == *wanted)?;
        let type_id = u32::try_from(position).ok()?;
        let mut services = BTreeSet::new();
        let mut series = Vec::with_capacity(symbols.series.len());
        for candidate in &symbols.series {
            let hit = candidate.type_id == type_id && selection.matches_series(&candidate.labels);
            if hit {
                services.insert(candidate.service);
            }
            series.push(hit.then(|| Arc::clone(candidate)));
        }
        drop(symbols);
        let selection = selection.clone();
        Some(Plan { project, view, selection, type_id, unit, series, services })
    }
}

impl Plan {
    /// The series with this id, if it matches.
    pub(super) fn series(&self, id: u32) -> Option<&Arc<Series>> {
        self.series.get(id as usize)?.as_ref()
    }

    /// Visits the selected samples of one service.
    pub(super) fn scan_service(
        &self,
        service: u32,
        need: Need,
        visit: &mut Visit<'_>,
    ) -> Result<(), StoreError> {
        let mut scratch = Scratch::default();
        for rows in self.memtables() {
            let shards = rows.shards();
            let mine = shards.iter().find(|&&(number, _)| number == service);
            let Some((_, shard)) = mine else { continue };
            for (&id, rows) in &*read_shard(shard) {
                if let Some(series) = self.series(id) {
                    self.visit_rows(series, &rows.columns(), &mut scratch, visit)?;
                }
            }
        }
        let _ = need;
        Ok(())
    }

    /// Visits the selected samples of all services.
    pub(super) fn scan(&self, need: Need, visit: &mut Visit<'_>) -> Result<(), StoreError> {
        self.services.iter().try_for_each(|&service| self.scan_service(service, need, visit))
    }

    /// Reported time of the hosts that the selection asks for.
    pub(super) fn reported(&self) -> HostValues {
        let mut hosts = HostValues::default();
        let range = self.selection.range;
        for rows in self.memtables() {
            for ((_, type_id, host), intervals) in &*rows.reports() {
                if *type_id == self.type_id && self.selection.matches_host(host) {
                    report(&mut hosts, host, intervals.spans(), range);
                }
            }
        }
        hosts
    }

    fn memtables(&self) -> impl Iterator<Item = Arc<ProjectRows>> {
        let all = [Some(&self.view.active), self.view.frozen.as_ref()];
        all.into_iter().flatten().filter_map(|memtable| memtable.project(&self.project.name))
    }

    /// Hands on what lies in the range and passes the matchers of attributes.
    pub(super) fn visit_rows(
        &self,
        series: &Series,
        all: &Columns<'_>,
        scratch: &mut Scratch,
        visit: &mut Visit<'_>,
    ) -> Result<(), StoreError> {
        let range = self.selection.range;
        if !range.touches(all.first_ms, all.last_ms) {
            return Ok(());
        }
        let by_attribute = self.selection.has_attribute_matchers();
        if range.covers(all.first_ms, all.last_ms) && !by_attribute {
            return visit(series, all.chunk());
        }
        let passes: Vec<bool> =
            all.dictionary.iter().map(|set| self.selection.matches_attributes(set)).collect();
        scratch.fill(all, range, &passes);
        let columns = Columns {
            times: &scratch.times,
            nodes: &scratch.nodes,
            values: &scratch.values,
            sets: &scratch.sets,
            ..*all
        };
        if columns.times.is_empty() { Ok(()) } else { visit(series, columns.chunk()) }
    }
}

/// Adds the spans that touch the range.
pub(super) fn report(
    hosts: &mut HostValues,
    host: &Arc<str>,
    spans: &[(i64, i64)],
    range: TimeRange,
) {
    for &(start_ms, end_ms) in spans {
        if start_ms < range.to_ms && end_ms > range.from_ms {
            hosts.report(host, start_ms, end_ms);
        }
    }
}

/// Rows of one series before they are filtered.
#[derive(Clone, Copy, Debug)]
pub(super) struct Columns<'a> {
    pub(super) times: &'a [i64],
    pub(super) nodes: &'a [u32],
    pub(super) values: &'a [i64],
    pub(super) sets: &'a [u32],
    pub(super) dictionary: &'a [Arc<[Attribute]>],
    pub(super) first_ms: i64,
    pub(super) last_ms: i64,
}

impl<'a> Columns<'a> {
    fn chunk(&self) -> Chunk<'a> {
        Chunk {
            nodes: self.nodes,
            values: self.values,
            samples: self.nodes.len() as u64,
            times: self.times,
            sets: self.sets,
            dictionary: self.dictionary,
        }
    }
}

impl Rows {
    pub(super) fn columns(&self) -> Columns<'_> {
        Columns {
            times: &self.times,
            nodes: &self.nodes,
            values: &self.values,
            sets: &self.sets,
            dictionary: &self.dictionary,
            first_ms: self.first_ms,
            last_ms: self.last_ms,
        }
    }
}

/// Buffers for filtered rows, used again and again.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    times: Vec<i64>,
    nodes: Vec<u32>,
    values: Vec<i64>,
    sets: Vec<u32>,
}

impl Scratch {
    fn fill(&mut self, all: &Columns<'_>, range: TimeRange, passes: &[bool]) {
        self.times.clear();
        self.nodes.clear();
        self.values.clear();
        self.sets.clear();
        for (at, &time_ms) in all.times.iter().enumerate() {
            if range.contains(time_ms) && passes[all.sets[at] as usize] {
                self.times.push(time_ms);
                self.nodes.push(all.nodes[at]);
                self.values.push(all.values[at]);
                self.sets.push(all.sets[at]);
            }
        }
    }
}
