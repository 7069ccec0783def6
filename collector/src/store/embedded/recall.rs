//! Known stacks of a record of the WAL, found again at the start. What cannot be found was described by a record
//! that is damaged: its samples keep their values, under a marker.

use super::engine::Engine;
use super::prepared::{KnownStack, Prepared};
use super::trie::ROOT;
use crate::profile::{FunctionDef, LineDef, LocationDef, ProjectName, WriteBatch};
use proto::FrameKind;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The name of the marker.
pub(super) const LOST: &str = "[stack lost with a damaged record]";

/// What one replay has looked for.
#[derive(Debug, Default)]
pub(super) struct Recall {
    /// Services whose every node was hashed.
    hashed: BTreeMap<(ProjectName, u32), bool>,
    /// Stacks that were not found.
    pub(super) lost: u64,
}

impl Recall {
    /// Finds the nodes of known stacks; samples of those that are not found get the marker.
    pub(super) fn find(&mut self, engine: &Engine, prepared: &mut Prepared) {
        let Prepared { batch, known, .. } = prepared;
        let lost = self.find_nodes(engine, batch, known);
        self.lost += lost.iter().filter(|&&lost| lost).count() as u64;
        if lost.contains(&true) {
            mark_lost(batch, &lost);
            prepared.describe();
        }
    }

    /// Fills in the nodes; answers which are lost.
    fn find_nodes(
        &mut self,
        engine: &Engine,
        batch: &WriteBatch,
        known: &mut [KnownStack],
    ) -> Vec<bool> {
        let project = engine.project(&batch.project);
        let symbols = project.as_ref().map(|project| project.symbols());
        let (mut asked, mut lost) = (vec![false; known.len()], vec![false; known.len()]);
        for profile in &batch.profiles {
            let tables = symbols.as_ref().and_then(|symbols| {
                let service = symbols.service(&profile.labels.service)?;
                Some((service, &symbols.locations, &symbols.services[service as usize]))
            });
            for sample in &profile.samples {
                let Some(at) = (sample.stack as usize).checked_sub(batch.stacks.len()) else {
                    continue;
                };
                if std::mem::replace(&mut asked[at], true) {
                    continue;
                }
                let node = tables.and_then(|(number, locations, service)| {
                    let key = (batch.project.clone(), number);
                    let all_hashed = self.hashed.entry(key).or_default();
                    let identity_of = |location: u32| locations[location as usize].identity;
                    service.trie_mut().recall(known[at], all_hashed, &identity_of)
                });
                lost[at] = node.is_none();
                known[at].node = node.unwrap_or(ROOT);
            }
        }
        lost
    }
}

/// Adds the marker to the batch's own stacks, behind which known ones are numbered.
fn mark_lost(batch: &mut WriteBatch, lost: &[bool]) {
    let number = |len: usize| u32::try_from(len).unwrap_or(u32::MAX);
    let none = Arc::<str>::from("");
    let function = number(batch.functions.len());
    batch.functions.push(FunctionDef {
        name: Arc::from(LOST),
        system_name: Arc::clone(&none),
        file: none,
        start_line: 0,
    });
    let location = number(batch.locations.len());
    let lines = LineDef { function, line: 0 }.into();
    batch.locations.push(LocationDef { mapping: None, address: 0, kind: FrameKind::Marker, lines });
    let marker = number(batch.stacks.len());
    batch.stacks.push(vec![location]);
    for sample in batch.profiles.iter_mut().flat_map(|profile| &mut profile.samples) {
        if let Some(at) = sample.stack.checked_sub(marker) {
            sample.stack = if lost[at as usize] { marker } else { sample.stack + 1 };
        }
    }
}
