//! Segments of one hour or one day become one: fewer files, one table of stacks and one sum for each series of a
//! day, and rows that share them. Which segments, and how. Not responsible for when, nor for what counts: a merged
//! segment is a file until the manifest has it in the place of its inputs.
//!
//! An input that cannot be read whole is not merged: nothing may be left out for good that a repair could bring
//! back.

use super::deletions::{Deletions, Of, shown_span};
use super::engine::{Engine, Project, View};
use super::memtable::HOUR_MS;
use super::new_segment::NewSegment;
use super::segment::{Buffers, Entry, Runs, Segment, SegmentWriter, SeriesRows, Span};
use crate::limits;
use crate::profile::{Attribute, ProjectName};
use crate::query::{Intervals, TimeRange};
use crate::store::StoreError;
use crate::store::embedded::manifest::SegmentFile;
use hashbrown::{HashMap, HashSet};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Segments of one hour that make it worth reading them again: as many as queries should have to open for it.
const HOUR_INPUTS_MIN: usize = 4;
/// Late segments beside that of a day which make it worth writing the day again.
const LATE_INPUTS_MIN: usize = 8;
/// How long after its end an hour is left alone, milliseconds: its memtable is a segment by then.
const HOUR_GRACE_MS: i64 = 2 * limits::SEGMENT_GRACE_MS;
/// How long after its end a day is left alone, milliseconds.
const DAY_GRACE_MS: i64 = HOUR_MS;

/// What is due when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum When {
    /// What is over for long enough at this time, Unix milliseconds.
    At(i64),
    /// Each day that has more than one segment.
    Now,
}

/// Segments that should be one.
#[derive(Clone, Debug)]
pub(super) struct Due {
    pub(super) project: ProjectName,
    /// Start of the hour or day, Unix milliseconds.
    pub(super) start_ms: i64,
    pub(super) span: Span,
    /// By time.
    pub(super) inputs: Vec<Arc<Segment>>,
}

/// A segment that can take the place of others.
#[derive(Clone, Debug)]
pub(super) struct Merged {
    pub(super) project: ProjectName,
    /// Nothing if all that they hold was deleted.
    pub(super) file: Option<SegmentFile>,
    /// The numbers of those.
    pub(super) inputs: BTreeSet<u64>,
}

/// What became of a merged segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Replaced {
    /// It is in the place of its inputs.
    Done,
    /// One of them was dropped meanwhile: it is gone too.
    Outdated,
}

impl Due {
    /// What should be merged next, the oldest first; inputs that `failed` are passed over.
    pub(super) fn next(view: &View, when: When, failed: &HashSet<BTreeSet<u64>>) -> Option<Self> {
        let mut all: Vec<Self> = Vec::new();
        for (project, segments) in &*view.segments {
            let mut spans: BTreeMap<(i64, Span), Vec<Arc<Segment>>> = BTreeMap::new();
            for segment in segments {
                let day = (Span::Day.start_of(segment.start_ms), Span::Day);
                spans.entry(day).or_default().push(Arc::clone(segment));
                if segment.span == Span::Hour {
                    let hour = (segment.start_ms, Span::Hour);
                    spans.entry(hour).or_default().push(Arc::clone(segment));
                }
            }
            let due = spans.into_iter().map(|((start_ms, span), mut inputs)| {
                inputs.sort_by_key(|segment| (segment.start_ms, segment.sequence));
                Self { project: project.clone(), start_ms, span, inputs }
            });
            all.extend(due.filter(|due| due.is_at(when) && !failed.contains(&due.sequences())));
        }
        // An hour within a day that is due too would be written twice.
        all.into_iter().min_by_key(|due| (Span::Day.start_of(due.start_ms), due.span == Span::Hour))
    }

    fn is_at(&self, when: When) -> bool {
        let late = self.inputs.iter().filter(|segment| segment.span == Span::Hour).count();
        let has_day = late < self.inputs.len();
        let enough = match self.span {
            Span::Hour => self.inputs.len() >= HOUR_INPUTS_MIN,
            Span::Day if has_day => late >= LATE_INPUTS_MIN,
            Span::Day => self.inputs.len() >= 2,
        };
        let end_ms = self.start_ms.saturating_add(self.span.ms());
        match when {
            When::Now => self.span == Span::Day && self.inputs.len() >= 2,
            When::At(now_ms) => {
                let grace_ms = match self.span {
                    Span::Hour => HOUR_GRACE_MS,
                    Span::Day => DAY_GRACE_MS,
                };
                enough && now_ms.saturating_sub(end_ms) >= grace_ms
            }
        }
    }

    /// The next segment that is to be written anew without types that are too old, the oldest first; or one that cannot be
    /// read, and why. None is looked at that was `looked_at`.
    pub(super) fn with_old_types(
        engine: &Engine,
        looked_at: &mut HashSet<u64>,
    ) -> Result<Option<Self>, StoreError> {
        for (project, segments) in &*engine.view().segments {
            let Some(known) = engine.project(project) else { continue };
            let since_ms = engine.types_kept_from_ms(&known);
            let newest_ms = since_ms.iter().copied().max().unwrap_or(i64::MIN);
            let old = segments.iter().filter(|segment| segment.start_ms < newest_ms);
            let mut old: Vec<&Arc<Segment>> = old.collect();
            old.sort_by_key(|segment| (segment.start_ms, segment.sequence));
            for segment in old {
                if !looked_at.insert(segment.sequence) {
                    continue;
                }
                let is_old = |entry: &Entry| {
                    let since_ms = since_ms.get(entry.group().0 as usize);
                    since_ms.is_some_and(|since_ms| segment.times_of(entry).0 < *since_ms)
                };
                if segment.has_entry(is_old)? {
                    let inputs = vec![Arc::clone(segment)];
                    let (start_ms, span) = (segment.start_ms, segment.span);
                    return Ok(Some(Self { project: project.clone(), start_ms, span, inputs }));
                }
            }
        }
        Ok(None)
    }

    /// The numbers of the inputs.
    pub(super) fn sequences(&self) -> BTreeSet<u64> {
        self.inputs.iter().map(|segment| segment.sequence).collect()
    }

    /// Writes the segment that holds what the inputs hold and no deletion took. Ends early once `stop` is set.
    pub(super) fn merge(&self, engine: &Engine, stop: &AtomicBool) -> Result<Merged, StoreError> {
        let (project, inputs) = (self.project.clone(), self.sequences());
        let deletions = Arc::clone(&engine.view().deletions);
        let known = engine.project(&self.project);
        let kept = Kept {
            project: &self.project,
            known: known.as_deref(),
            deletions: &deletions,
            types_since_ms: known
                .as_ref()
                .map_or_else(Vec::new, |it| engine.types_kept_from_ms(it)),
        };
        let place = (self.start_ms, self.span);
        let new = NewSegment::of(engine, &self.project, place, deletions.number());
        let written = self.write(&new, &kept, stop);
        if !matches!(written, Ok(Some(_))) {
            for path in new.paths() {
                // It counts for nothing; the next start removes what is left.
                drop(engine.files.remove(&path));
            }
        }
        Ok(Merged { project, file: written?, inputs })
    }

    fn write(
        &self,
        new: &NewSegment<'_>,
        kept: &Kept<'_>,
        stop: &AtomicBool,
    ) -> Result<Option<SegmentFile>, StoreError> {
        let mut groups: BTreeSet<(u32, u32)> = BTreeSet::new();
        let mut open = Vec::new();
        for segment in &self.inputs {
            // Open for all of its sections.
            open.push(segment.hold()?);
            for run in segment.all_entries()?.chunk_by(|a, b| a.group() == b.group()) {
                let (type_id, service) = run[0].group();
                let from_ms = kept.rows_since_ms(segment, (type_id, service));
                if run.iter().any(|entry| segment.times_of(entry).1 >= from_ms) {
                    groups.insert((type_id, service));
                }
            }
        }
        let reports = self.reports(kept)?;
        if groups.is_empty() && reports.is_empty() {
            return Ok(None);
        }
        let mut writer = new.create()?;
        for group in groups {
            if stop.load(Ordering::Relaxed) {
                return Err(StoreError::Abandoned);
            }
            self.add_group(group, new, kept, &mut writer)?;
        }
        let reports: Vec<_> =
            reports.iter().map(|((type_id, host), spans)| (*type_id, host, spans)).collect();
        new.finish(writer, &reports).map(Some)
    }

    /// Adds the series of one type and service.
    fn add_group(
        &self,
        (type_id, service): (u32, u32),
        new: &NewSegment<'_>,
        kept: &Kept<'_>,
        writer: &mut SegmentWriter,
    ) -> Result<(), StoreError> {
        let mut sources = Vec::new();
        for segment in &self.inputs {
            let entries = segment.entries(type_id, service)?;
            let runs = Runs::over(entries, true, limits::MERGE_READ_BYTES_MAX);
            let from_ms = kept.rows_since_ms(segment, (type_id, service));
            sources.push(Source { segment, rest: entries, runs, from_ms });
        }
        let mut rows = Gathered { start_ms: self.start_ms, ..Gathered::default() };
        let next = |sources: &[Source<'_>]| {
            sources.iter().filter_map(|source| source.rest.first()).map(|entry| entry.series).min()
        };
        while let Some(series) = next(&sources) {
            let mut write = |rows: &mut Gathered| {
                let (columns, dictionary) = rows.take();
                if columns.times.is_empty() {
                    return Ok(());
                }
                let added = writer.add((type_id, service, series), columns, &dictionary);
                added.map_err(|error| new.failed(error))
            };
            for source in &mut sources {
                while let Some((entry, rest)) =
                    source.rest.split_first().filter(|(entry, _)| entry.series == series)
                {
                    source.rest = rest;
                    rows.add(source, entry, &mut write)?;
                }
            }
            write(&mut rows)?;
        }
        Ok(())
    }

    /// The time that hosts reported.
    fn reports(&self, kept: &Kept<'_>) -> Result<BTreeMap<(u32, Arc<str>), Intervals>, StoreError> {
        let mut reports: BTreeMap<(u32, Arc<str>), Intervals> = BTreeMap::new();
        let always = TimeRange { from_ms: i64::MIN, to_ms: i64::MAX };
        for segment in &self.inputs {
            let from_ms = kept.reports_since_ms(segment);
            segment.reports(always, &mut |type_id, host, span| {
                if let Some((start_ms, end_ms)) = shown_span(span, from_ms) {
                    let key = (type_id, Arc::clone(host));
                    reports.entry(key).or_default().add(start_ms, end_ms);
                }
            })?;
        }
        Ok(reports)
    }
}

/// What of the inputs was not deleted, and is not too old.
struct Kept<'a> {
    project: &'a ProjectName,
    known: Option<&'a Project>,
    deletions: &'a Deletions,
    /// By type.
    types_since_ms: Vec<i64>,
}

impl Kept<'_> {
    /// The first time that is kept of the rows of a type and service.
    fn rows_since_ms(&self, segment: &Segment, (type_id, service): (u32, u32)) -> i64 {
        let name = self.known.map(|project| project.service_name(service));
        let of = Of::Service(name.as_deref().unwrap_or_default());
        let shown_from_ms = self.deletions.shown_from_ms(self.project, of, segment.clean_to);
        let type_since_ms = self.types_since_ms.get(type_id as usize).copied();
        shown_from_ms.max(type_since_ms.unwrap_or(i64::MIN))
    }

    /// The first time that is kept of reports.
    fn reports_since_ms(&self, segment: &Segment) -> i64 {
        self.deletions.shown_from_ms(self.project, Of::Reports, segment.clean_to)
    }
}

/// One input while a group is merged.
struct Source<'a> {
    segment: &'a Segment,
    /// Its series of the group that were not merged yet.
    rest: &'a [Entry],
    runs: Runs,
    /// Earlier rows were deleted.
    from_ms: i64,
}

/// Rows of one series from several segments.
#[derive(Default)]
struct Gathered {
    /// Start of the merged segment, Unix milliseconds.
    start_ms: i64,
    columns: SeriesRows,
    dictionary: Vec<Arc<[Attribute]>>,
    numbers: HashMap<Arc<[Attribute]>, u32>,
    buffers: Buffers,
}

impl Gathered {
    /// Adds the rows of an entry. What would be too many at once is written between: a series may stand in a segment
    /// several times.
    fn add(
        &mut self,
        Source { segment, runs, from_ms, .. }: &mut Source<'_>,
        entry: &Entry,
        write: &mut impl FnMut(&mut Self) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let (segment, from_ms) = (*segment, *from_ms);
        if segment.times_of(entry).1 < from_ms {
            return Ok(());
        }
        segment.read_stacks(entry, runs, &mut self.buffers)?;
        segment.read_sets(entry, runs, &mut self.buffers)?;
        for (rows, part) in entry.parts() {
            if segment.times_of_part(part).1 < from_ms {
                continue;
            }
            if self.columns.times.len() + part.rows() > limits::MERGE_ROWS_MAX {
                write(self)?;
            }
            segment.read_part(part, runs, &mut self.buffers)?;
            self.add_part(rows.start, from_ms)?;
        }
        Ok(())
    }

    /// Adds what is kept of the part that was read; its attribute sets begin at `first`.
    fn add_part(&mut self, first: usize, from_ms: i64) -> Result<(), StoreError> {
        let Self { buffers, columns, dictionary, numbers, start_ms } = self;
        let mut number = |set: &Arc<[Attribute]>| {
            *numbers.entry(Arc::clone(set)).or_insert_with(|| {
                dictionary.push(Arc::clone(set));
                u32::try_from(dictionary.len() - 1).unwrap_or(u32::MAX)
            })
        };
        let mut known: Vec<Option<u32>> = vec![None; buffers.dictionary.len()];
        let kept = buffers.times.iter().enumerate().filter(|(_, time_ms)| **time_ms >= from_ms);
        for (at, &time_ms) in kept {
            let offset = u32::try_from(time_ms - *start_ms).ok();
            let offset = offset.ok_or_else(|| StoreError::Damaged {
                path: "a segment".to_owned(),
                detail: "a row lies outside its time".to_owned(),
            })?;
            let set = buffers.sets[first + at] as usize;
            let set = *known[set].get_or_insert_with(|| number(&buffers.dictionary[set]));
            columns.times.push(offset);
            columns.nodes.push(buffers.nodes[at]);
            columns.values.push(buffers.values[at]);
            columns.sets.push(set);
        }
        Ok(())
    }

    /// What was gathered; the next rows begin anew.
    fn take(&mut self) -> (SeriesRows, Vec<Arc<[Attribute]>>) {
        self.numbers.clear();
        (std::mem::take(&mut self.columns), std::mem::take(&mut self.dictionary))
    }
}
