//! Which segments hold rows that a deletion took, so that they are written anew without them, or go. Not responsible for
//! how: a segment is merged with itself, and what is hidden stays behind.

use super::deletions::Numbered;
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
        let mut by_time: Vec<&Arc<Segment>> = segments.iter().collect();
        by_time.retain(|segment| !passed_over.contains_key(&segment.sequence));
        by_time.sort_by_key(|segment| (segment.start_ms, segment.sequence));
        for segment in by_time {
            let mut pending = view.deletions.pending();
            let held = pending
                .try_fold(false, |held, one| Ok(held || holds(engine, project, segment, one)?));
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

/// True if a segment has rows, or reported time, that a deletion takes.
fn holds(
    engine: &Engine,
    project: &ProjectName,
    segment: &Segment,
    one: &Numbered,
) -> Result<bool, StoreError> {
    let Deletion { project: of, service, before_ms, .. } = &one.deletion;
    if of != project || one.number <= segment.clean_to {
        return Ok(false);
    }
    if service.is_none() && segment.reported_from_ms() < *before_ms {
        return Ok(true);
    }
    if segment.start_ms >= *before_ms {
        return Ok(false);
    }
    // Rows without names may be anybody's.
    let Some(known) = engine.project(project) else { return Ok(true) };
    let mine = service.as_ref().map(|name| known.symbols().service(name));
    let is_mine = |number| mine.is_none_or(|mine| mine == Some(number));
    let mut entries = segment.all_entries()?.iter();
    Ok(entries.any(|entry| segment.times_of(entry).0 < *before_ms && is_mine(entry.service)))
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
            // One that cannot be read may have rows of any service.
            let held = pending.filter(|one| holds(engine, project, segment, one).unwrap_or(true));
            left.extend(held.map(|one| (one.number, segment.sequence)));
        }
    }
    left
}
