//! Which segments hold rows that a deletion took, so that they are written anew without them, or go. Not responsible for
//! how: a segment is merged with itself, and what is hidden stays behind.

use super::deletions::Of;
use super::engine::{Engine, View};
use super::merged::Due;
use super::segment::Segment;
use crate::profile::ProjectName;
use crate::store::StoreError;
use std::collections::BTreeSet;
use std::sync::Arc;

/// The next segment that holds something hidden, the oldest first; or one that cannot be read, and why.
pub(super) fn next(
    engine: &Engine,
    view: &View,
    passed_over: &BTreeSet<u64>,
) -> Result<Option<Due>, (u64, StoreError)> {
    for (project, segments) in &*view.segments {
        let Some(newest_ms) = newest_ms(view, project) else { continue };
        let mut by_time: Vec<&Arc<Segment>> = segments.iter().collect();
        by_time.retain(|segment| !passed_over.contains(&segment.sequence));
        by_time.sort_by_key(|segment| (segment.start_ms, segment.sequence));
        for segment in by_time {
            let held = holds_hidden(engine, view, (project, newest_ms), segment);
            if held.map_err(|error| (segment.sequence, error))? {
                let inputs = vec![Arc::clone(segment)];
                let (start_ms, span) = (segment.start_ms, segment.span);
                return Ok(Some(Due { project: project.clone(), start_ms, span, inputs }));
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
