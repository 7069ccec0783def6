//! Known stacks of a record of the WAL, found again at the start. What cannot be found was described by a record
//! that is damaged: its samples keep their values, under a marker.

use super::engine::Engine;
use super::prepared::{KnownStack, Prepared};
use super::trie::ROOT;
use crate::profile::WriteBatch;
use std::sync::Arc;

/// The name of the marker.
pub(super) const LOST: &str = "[stack lost with a damaged record]";

/// Finds the nodes of known stacks; samples of those that are not found get the marker. Answers how many were not.
pub(super) fn find(engine: &Engine, prepared: &mut Prepared) -> u64 {
    let Prepared { batch, known, .. } = prepared;
    let lost = find_nodes(engine, batch, known);
    if lost.contains(&true) {
        mark_lost(batch, &lost);
        prepared.describe();
    }
    lost.iter().filter(|&&lost| lost).count() as u64
}

/// Fills in the nodes; answers which are lost.
fn find_nodes(engine: &Engine, batch: &WriteBatch, known: &mut [KnownStack]) -> Vec<bool> {
    let project = engine.project(&batch.project);
    let symbols = project.as_ref().map(|project| project.symbols());
    let (mut asked, mut lost) = (vec![false; known.len()], vec![false; known.len()]);
    for profile in &batch.profiles {
        let tables = symbols.as_ref().and_then(|symbols| {
            let service = symbols.service(&profile.labels.service)?;
            Some((&symbols.locations, &symbols.services[service as usize]))
        });
        for sample in &profile.samples {
            let Some(at) = (sample.stack as usize).checked_sub(batch.stacks.len()) else {
                continue;
            };
            if std::mem::replace(&mut asked[at], true) {
                continue;
            }
            let node = tables.and_then(|(locations, service)| {
                let identity_of = |location: u32| locations[location as usize].identity;
                service.trie_mut().recall(known[at], &identity_of)
            });
            lost[at] = node.is_none();
            known[at].node = node.unwrap_or(ROOT);
        }
    }
    lost
}

/// Adds the marker to the batch's own stacks, behind which known ones are numbered.
fn mark_lost(batch: &mut WriteBatch, lost: &[bool]) {
    let marker = batch.add_marker(&Arc::from(LOST));
    for sample in batch.profiles.iter_mut().flat_map(|profile| &mut profile.samples) {
        if let Some(at) = sample.stack.checked_sub(marker) {
            sample.stack = if lost[at as usize] { marker } else { sample.stack + 1 };
        }
    }
}
