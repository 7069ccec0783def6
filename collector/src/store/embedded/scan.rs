//! Finds the samples of a selection and hands them on in chunks of columns, one service after another.

use super::deletions::{Of, shown, shown_span};
use super::engine::{Counters, Engine, Project, View};
use super::memtable::{ProjectRows, Rows, read_shard};
use super::segment::{Buffers, Entry, Runs, Segment, Span};
use super::symbols::Series;
use crate::limits;
use crate::profile::Attribute;
use crate::query::{Buckets, HostValues, Selection, TimeRange};
use crate::store::StoreError;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// What a question needs to know of each sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Need {
    /// Sums by stack over all series of the service will do; chunks may have samples without stacks, or stacks
    /// without samples.
    Service,
    /// Sums by stack will do.
    Stacks,
    /// As `Stacks`, but where not all samples of a chunk lie in one bucket, single samples with times.
    Buckets(Buckets),
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
    /// A time of the chunk, Unix milliseconds: the bucket of all samples if `times` is empty.
    pub(super) first_ms: i64,
    /// Indices into `dictionary`; empty like `times`.
    pub(super) sets: &'a [u32],
    /// Distinct attribute sets.
    pub(super) dictionary: &'a [Arc<[Attribute]>],
}

/// Who asked: whether they still wait (a client may hang up, and a query's time ends), and what they are to
/// be told besides the answer.
#[derive(Clone, Debug, Default)]
pub(super) struct Asker {
    left: Arc<AtomicBool>,
    /// What the answer leaves out.
    damage: Arc<Mutex<BTreeSet<String>>>,
}

impl Asker {
    /// The question ends at its next step.
    pub(super) fn leave(&self) {
        self.left.store(true, Ordering::Relaxed);
    }

    fn check(&self) -> Result<(), StoreError> {
        if self.left.load(Ordering::Relaxed) { Err(StoreError::Abandoned) } else { Ok(()) }
    }

    /// What was left out, for the reader of the answer.
    pub(super) fn warnings(&self) -> Vec<String> {
        let damage = self.damage.lock().unwrap_or_else(PoisonError::into_inner);
        damage.iter().cloned().collect()
    }
}

/// A question, prepared: which series of which services are asked for.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) project: Arc<Project>,
    pub(super) view: Arc<View>,
    pub(super) selection: Selection,
    pub(super) type_id: u32,
    pub(super) unit: Arc<str>,
    /// Types whose profiles say that a host was watched.
    reporting: BTreeSet<u32>,
    /// The series that match, by their id.
    series: Vec<Option<Arc<Series>>>,
    /// Services that have one, by their number.
    pub(super) services: BTreeSet<u32>,
    counters: Arc<Counters>,
    asker: Asker,
}

/// A series in a segment.
#[derive(Clone, Copy, Debug)]
struct Source<'a> {
    segment: &'a Segment,
    entry: &'a Entry,
    series: &'a Series,
    /// What is asked for and was not deleted.
    range: TimeRange,
}

/// Buffers that are used from series to series.
#[derive(Debug)]
struct Reading<'a> {
    runs: &'a mut Runs,
    buffers: &'a mut Buffers,
    scratch: &'a mut Scratch,
}

/// Takes the chunks of one series.
pub(super) type Visit<'v> = dyn FnMut(&Series, Chunk<'_>) -> Result<(), StoreError> + 'v;

impl Engine {
    /// Prepares a question; `None` if the project or the type does not exist.
    pub(super) fn plan(&self, selection: &Selection, asker: &Asker) -> Option<Plan> {
        // The view comes first: all that it shows is then covered by the symbols read later.
        let view = self.view();
        let project = self.project(&selection.project)?;
        let symbols = project.symbols();
        let wanted = selection.resolve_type(symbols.types.iter().map(|entry| &entry.value_type))?;
        let (kind, unit) = (Arc::clone(&wanted.kind), Arc::clone(&wanted.unit));
        let position = symbols.types.iter().position(|entry| entry.value_type == *wanted)?;
        let type_id = u32::try_from(position).ok()?;
        let reporting = (0..)
            .zip(&symbols.types)
            .filter_map(|(id, entry)| entry.value_type.reports(wanted).then_some(id))
            .collect();
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
        let mut selection = selection.clone();
        // What no merge has left behind yet is gone all the same.
        selection.range = shown(selection.range, self.type_kept_from_ms(&kind));
        let counters = Arc::clone(&self.counters);
        Some(Plan {
            project,
            view,
            selection,
            type_id,
            unit,
            reporting,
            series,
            services,
            counters,
            asker: asker.clone(),
        })
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
        let name = self.project.service_name(service);
        for segment in self.segments() {
            let range = self.shown(Of::Service(&name), segment.clean_to);
            if range.touches(segment.bounds().0, segment.bounds().1) {
                self.scan_segment(segment, (service, range), need, &mut scratch, visit)?;
            }
        }
        for (rows, clean_to) in self.memtables() {
            let range = self.shown(Of::Service(&name), clean_to);
            let shards = rows.shards();
            let mine = shards.iter().find(|&&(number, _)| number == service);
            let Some((_, shard)) = mine else { continue };
            for (&id, rows) in &*read_shard(shard) {
                self.asker.check()?;
                if let Some(series) = self.series(id) {
                    self.visit_rows((series, range), &rows.columns(), &mut scratch, visit)?;
                }
            }
        }
        Ok(())
    }

    /// What is asked for of rows that are clean to a number, without what was deleted.
    fn shown(&self, of: Of<'_>, clean_to: u64) -> TimeRange {
        let from_ms = self.view.deletions.shown_from_ms(&self.project.name, of, clean_to);
        shown(self.selection.range, from_ms)
    }

    fn segments(&self) -> impl Iterator<Item = &Segment> {
        let all = self.view.segments.get(&self.project.name).into_iter().flatten();
        let range = self.selection.range;
        all.map(|segment| &**segment)
            .filter(move |segment| range.touches(segment.bounds().0, segment.bounds().1))
    }

    /// Visits the series of a service in one segment. A damaged section is left out and said.
    fn scan_segment(
        &self,
        segment: &Segment,
        (service, range): (u32, TimeRange),
        need: Need,
        scratch: &mut Scratch,
        visit: &mut Visit<'_>,
    ) -> Result<(), StoreError> {
        // Open for all of its sections.
        let held = match segment.hold() {
            Ok(held) => held,
            Err(error) => return self.leave_out(error),
        };
        let entries = match segment.entries(self.type_id, service) {
            Ok(entries) => entries,
            Err(error) => return self.leave_out(error),
        };
        if need == Need::Service && self.scan_sums(segment, (service, range), entries, visit)? {
            return Ok(());
        }
        let wanted = |entry: &Entry| {
            let (first_ms, last_ms) = segment.times_of(entry);
            let series = self.series(entry.series)?;
            range.touches(first_ms, last_ms).then_some(series)
        };
        let mut buffers = Buffers::default();
        // Neighbours that are all wanted are read at once.
        let all_rows = range.covers(segment.bounds().0, segment.bounds().1);
        let mut rest = entries;
        while !rest.is_empty() {
            let skipped = rest.iter().take_while(|entry| wanted(entry).is_none()).count();
            let (run, behind) = {
                let from = &rest[skipped..];
                from.split_at(from.iter().take_while(|entry| wanted(entry).is_some()).count())
            };
            let mut runs = Runs::over(run, all_rows, limits::SEGMENT_READ_BYTES_MAX);
            for entry in run {
                let Some(series) = wanted(entry) else { continue };
                self.asker.check()?;
                let source = Source { segment, entry, series, range };
                let mut reading = Reading { runs: &mut runs, buffers: &mut buffers, scratch };
                match self.visit_entry(source, need, &mut reading, visit) {
                    Err(error @ StoreError::Damaged { .. }) => self.leave_out(error)?,
                    result => result?,
                }
            }
            rest = behind;
        }
        drop(held);
        Ok(())
    }

    /// Visits the sums over all series of a service, if all of them are wanted for all of the segment's time, and the
    /// segment has such sums. What is damaged there can still be read from the series.
    fn scan_sums(
        &self,
        segment: &Segment,
        (service, range): (u32, TimeRange),
        entries: &[Entry],
        visit: &mut Visit<'_>,
    ) -> Result<bool, StoreError> {
        let (first_ms, last_ms) = segment.bounds();
        let whole = range.covers(first_ms, last_ms);
        if segment.span == Span::Hour || !whole || self.selection.has_attribute_matchers() {
            return Ok(false);
        }
        let all: Option<Vec<_>> =
            entries.iter().map(|entry| Some((entry, self.series(entry.series)?))).collect();
        let Some(all) = all else { return Ok(false) };
        let Some(&(_, first)) = all.first() else { return Ok(false) };
        let mut buffers = Buffers::default();
        if !matches!(segment.read_service(self.type_id, service, &mut buffers), Ok(true)) {
            return Ok(false);
        }
        self.asker.check()?;
        for (entry, series) in all {
            visit(series, Chunk { samples: entry.samples(), first_ms, ..Chunk::default() })?;
        }
        let (nodes, values) = (&buffers.nodes, &buffers.values);
        visit(first, Chunk { nodes, values, first_ms, ..Chunk::default() })?;
        Ok(true)
    }

    fn visit_entry(
        &self,
        source: Source<'_>,
        need: Need,
        reading: &mut Reading<'_>,
        visit: &mut Visit<'_>,
    ) -> Result<(), StoreError> {
        let Source { segment, entry, series, range } = source;
        let (first_ms, last_ms) = segment.times_of(entry);
        let by_attribute = self.selection.has_attribute_matchers();
        let whole = range.covers(first_ms, last_ms) && !by_attribute;
        let sums_will_do = match need {
            Need::Service | Need::Stacks => true,
            Need::Buckets(buckets) => whole && buckets.index(first_ms) == buckets.index(last_ms),
            Need::Rows => false,
        };
        let Reading { runs, buffers, scratch } = reading;
        if whole && sums_will_do && segment.read_sums(entry, runs, buffers)? {
            let samples = entry.samples();
            let (nodes, values) = (&buffers.nodes, &buffers.values);
            return visit(series, Chunk { nodes, values, samples, first_ms, ..Chunk::default() });
        }
        segment.read_stacks(entry, runs, buffers)?;
        let with_sets = by_attribute || need == Need::Rows;
        if with_sets {
            segment.read_sets(entry, runs, buffers)?;
        }
        for (rows, part) in entry.parts() {
            let (first_ms, last_ms) = segment.times_of_part(part);
            if !range.touches(first_ms, last_ms) {
                continue;
            }
            self.asker.check()?;
            if let Err(error) = segment.read_part(part, runs, buffers) {
                self.leave_out(error)?;
                continue;
            }
            let columns = Columns {
                times: &buffers.times,
                nodes: &buffers.nodes,
                values: &buffers.values,
                sets: if with_sets { &buffers.sets[rows] } else { &[] },
                dictionary: if with_sets { &buffers.dictionary } else { &[] },
                first_ms,
                last_ms,
            };
            self.visit_rows((series, range), &columns, scratch, visit)?;
        }
        Ok(())
    }

    /// Tells the reader of the answer something, once.
    pub(super) fn warn(&self, text: String) {
        self.asker.damage.lock().unwrap_or_else(PoisonError::into_inner).insert(text);
    }

    /// Says that a section is damaged; the answer goes on without it.
    fn leave_out(&self, error: StoreError) -> Result<(), StoreError> {
        let StoreError::Damaged { path, detail } = &error else { return Err(error) };
        tracing::error!(%error, "a query leaves out what it cannot read");
        self.counters.sections_damaged.fetch_add(1, Ordering::Relaxed);
        // Where the folder lies is none of a client's business.
        let file = path.rsplit('/').next().unwrap_or_default();
        let text = format!("a damaged part of {file} is left out: {detail}");
        self.warn(text);
        Ok(())
    }

    /// Visits the selected samples of all services.
    pub(super) fn scan(&self, need: Need, visit: &mut Visit<'_>) -> Result<(), StoreError> {
        self.services.iter().try_for_each(|&service| self.scan_service(service, need, visit))
    }

    /// Reported time of the hosts that the selection asks for.
    pub(super) fn reported(&self) -> Result<HostValues, StoreError> {
        let mut hosts = HostValues::default();
        let range = self.selection.range;
        for segment in self.view.segments.get(&self.project.name).into_iter().flatten() {
            let from_ms = self.reports_from_ms(segment.clean_to);
            let read = segment.reports(range, &mut |type_id, host, span| {
                let Some(span) = shown_span(span, from_ms) else { return };
                if self.reporting.contains(&type_id) && self.selection.matches_host(host) {
                    report(&mut hosts, host, &[span], range);
                }
            });
            read.or_else(|error| self.leave_out(error))?;
        }
        for (rows, clean_to) in self.memtables() {
            let from_ms = self.reports_from_ms(clean_to);
            for ((_, type_id, host), intervals) in &*rows.reports() {
                if self.reporting.contains(type_id) && self.selection.matches_host(host) {
                    let spans = intervals.spans().iter();
                    let spans: Vec<(i64, i64)> =
                        spans.filter_map(|&span| shown_span(span, from_ms)).collect();
                    report(&mut hosts, host, &spans, range);
                }
            }
        }
        Ok(hosts)
    }

    /// Time before it does not count: a span may begin in a day whose values are hidden.
    fn reports_from_ms(&self, clean_to: u64) -> i64 {
        let deletions = &self.view.deletions;
        let shown_from_ms = deletions.shown_from_ms(&self.project.name, Of::Reports, clean_to);
        shown_from_ms.max(self.selection.range.from_ms)
    }

    /// The rows that no segment holds, and the number that they are clean to.
    fn memtables(&self) -> impl Iterator<Item = (Arc<ProjectRows>, u64)> {
        let all = [Some(&self.view.active), self.view.frozen.as_ref()];
        all.into_iter().flatten().filter_map(|memtable| {
            // Read before the rows: they are only ever cleaner.
            let clean_to = memtable.clean_to();
            Some((memtable.project(&self.project.name)?, clean_to))
        })
    }

    /// Hands on what lies in the range and passes the matchers of attributes.
    pub(super) fn visit_rows(
        &self,
        (series, range): (&Series, TimeRange),
        all: &Columns<'_>,
        scratch: &mut Scratch,
        visit: &mut Visit<'_>,
    ) -> Result<(), StoreError> {
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
            first_ms: self.first_ms,
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
            let set = all.sets.get(at).copied();
            if range.contains(time_ms) && set.is_none_or(|set| passes[set as usize]) {
                self.times.push(time_ms);
                self.nodes.push(all.nodes[at]);
                self.values.push(all.values[at]);
                self.sets.extend(set);
            }
        }
    }
}
