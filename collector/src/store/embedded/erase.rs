//! Which segments hold rows that a deletion took, so that they are written anew without them, or go. Not responsible for
//! how: a segment is merged with itself, and what is hidden stays behind.

use super::deletions::{Numbered, Of};
use super::engine::{Engine, View};
use super::merged::Due;
use super::segment::Segment;
use crate::profile::ProjectName;
use crate::store::{Deletion, StoreError};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Segments that could not be written anew, by their numbers, and why.
pub(super) type PassedOver = BTreeMap<u64, StoreError>;

/// The next segment that holds something hidden, the oldest first, and its number; or one that cannot be read, and why.
pub(super) fn next(
    engine: &Engine,
    view: &View,
    passed_over: &PassedOver,
) -> Result<Option<(u64, Due)>, (u64, StoreError)> {
    for (project, segments) in &*view.segments {
        let Some(newest_ms) = newest_ms(view, project) else { continue };
        let mut by_time: Vec<&Arc<Segment>> = segments.iter().collect();
        by_time.retain(|segment| !passed_over.contains_key(&segment.sequence));
        by_time.sort_by_key(|segment| (segment.start_ms, segment.sequence));
        for segment in by_time {
            let held = holds_hidden(engine, view, (project, newest_ms), segment);
            if held.map_err(|error| (segment.sequence, error))? {
                let inputs = vec![Arc::clone(segment)];
                let (start_ms, span) = (segment.start_ms, segment.span);
                let due = Due { project: project.clone(), start_ms, span, inputs };
                return Ok(Some((segment.sequence, due)));
            }
        }
    }
    Ok(None)
}

/// The latest time that a deletion of a project hides up to.
fn newest_ms(view: &View, project: &ProjectName) -> Option<i64> {
    let mine = view.deletions.pending().filter(|one| one.deletion.project == *project);
    mine.map(|one| one.deletion.before_ms).max()
}

fn holds_hidden(
    engine: &Engine,
    view: &View,
    (project, newest_ms): (&ProjectName, i64),
    segment: &Segment,
) -> Result<bool, StoreError> {
    let shown_from = |of: Of<'_>| view.deletions.shown_from_ms(project, of, segment.clean_to);
    if segment.reported_from_ms() < shown_from(Of::Reports) {
        return Ok(true);
    }
    if segment.start_ms >= newest_ms || view.deletions.number() <= segment.clean_to {
        return Ok(false);
    }
    let Some(known) = engine.project(project) else { return Ok(false) };
    for entry in segment.all_entries()? {
        let name = known.service_name(entry.service);
        if segment.times_of(entry).0 < shown_from(Of::Service(&name)) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The deletions up to a number that may still have rows in segments that were passed over: the number of each, and
/// that of such a segment.
pub(super) fn left(
    engine: &Engine,
    view: &View,
    number: u64,
    passed_over: &PassedOver,
) -> BTreeMap<u64, u64> {
    let mut left = BTreeMap::new();
    for (project, segments) in &*view.segments {
        for segment in segments.iter().filter(|it| passed_over.contains_key(&it.sequence)) {
            let pending = view.deletions.pending().filter(|one| one.number <= number);
            let held = pending.filter(|one| may_hold(engine, project, segment, one));
            left.extend(held.map(|one| (one.number, segment.sequence)));
        }
    }
    left
}

/// False if a segment has no row that a deletion takes. One that cannot be read may have rows of any service.
fn may_hold(engine: &Engine, project: &ProjectName, segment: &Segment, one: &Numbered) -> bool {
    let Deletion { project: of, service, before_ms, .. } = &one.deletion;
    let first_ms = segment.start_ms.min(segment.reported_from_ms());
    if of != project || one.number <= segment.clean_to || first_ms >= *before_ms {
        return false;
    }
    let (Some(service), Some(known)) = (service, engine.project(project)) else { return true };
    let Ok(entries) = segment.all_entries() else { return true };
    let mut mine = entries.iter().filter(|entry| known.service_name(entry.service) == *service);
    mine.any(|entry| segment.times_of(entry).0 < *before_ms)
}
