//! What names change in the stacks of a window. Locations that a reader cannot tell apart become one (kernel
//! code and code that no file backs travel without addresses), and frames of an interpreter's compiler give
//! way to one marker, unless its program told their names.

use super::named::{Code, Location, LocationIndex};
use super::window::Interner;
use crate::elf::Runtime;
use crate::limits;
use crate::normalize::Marker;
use hashbrown::HashMap;
use std::sync::Arc;

/// Stacks as they are shown.
pub(super) struct Settled {
    pub(super) stacks: Vec<Arc<[LocationIndex]>>,
    /// The place in `stacks` of each stack that was given.
    pub(super) places: Vec<u32>,
}

/// Settles the stacks of a window whose locations are named.
pub(super) fn settled(stacks: &[Arc<[LocationIndex]>], locations: &[Location]) -> Settled {
    let shown = shown_locations(locations);
    let location = |index: &LocationIndex| &locations[index.0 as usize];
    let mut interner: Interner<Arc<[LocationIndex]>> = Interner::default();
    let mut places = Vec::with_capacity(stacks.len());
    let mut settled = Vec::new();
    for stack in stacks {
        let named = stack.iter().any(|index| is_compiled(location(index)) == Some(true));
        let dropped = |index: &LocationIndex| match location(index).code {
            Code::Marker(Marker::Interpreter(_)) => named,
            _ => !named && is_compiled(location(index)) == Some(false),
        };
        settled.clear();
        let kept = stack.iter().filter(|index| !dropped(index));
        settled.extend(kept.map(|index| shown[index.0 as usize]));
        let place = interner.get_or_insert(&settled[..], limits::WINDOW_STACKS_MAX);
        places.push(place.expect("no more stacks than were given, which fit"));
    }
    Settled { stacks: interner.into_list(), places }
}

/// Whether code of an interpreter's compiler has a name; nothing for all other locations.
fn is_compiled(location: &Location) -> Option<bool> {
    let Code::Anonymous { runtime, .. } = location.code else { return None };
    (runtime != Runtime::Native).then_some(!location.lines.is_empty())
}

/// For each location the first one that a reader cannot tell from it.
fn shown_locations(locations: &[Location]) -> Vec<LocationIndex> {
    let mut first: HashMap<_, LocationIndex> = HashMap::new();
    let mut shown = Vec::with_capacity(locations.len());
    for (at, location) in locations.iter().enumerate() {
        let own = LocationIndex(u32::try_from(at).unwrap_or(u32::MAX));
        let kind = match location.code {
            // The same text stands for all unnamed ones, but their reasons are counted.
            _ if location.lines.is_empty() => None,
            Code::Kernel { .. } => Some(None),
            Code::Anonymous { runtime, .. } => Some(Some(runtime)),
            _ => None,
        };
        shown.push(kind.map_or(own, |runtime| {
            let key = (runtime, location.module.as_deref(), location.lines.as_slice());
            *first.entry(key).or_insert(own)
        }));
    }
    shown
}
