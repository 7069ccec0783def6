//! Layouts of address spaces: what the mappings of a process look like to the walker. Processes with
//! equal layouts (workers forked from one parent) share the pages.
//!
//! A layout that no process has any more stays, with its tables, for a while: walks that began before may
//! read it, and the programs may have given it to a child that is yet to be told of. It goes when every
//! record that was written [`REUSE_DELAY_NS`] after its last process left it has been taken in.

use super::super::{BpfError, MappingUnwind, TableId, WalkMapping};
use super::slab_map::SlabMap;
use super::space::Space;
use crate::clock::MonotonicNs;
use agent_ebpf::limits::{
    MAPPING_PAGES_MAX, MAPPING_PAGES_PER_PROCESS_MAX, MAPPINGS_PER_PAGE, REUSE_DELAY_NS,
};
use agent_ebpf::{MappingPage, ProcessEntry};
use aya::maps::{Array, MapData};
use std::collections::hash_map::RandomState;
use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasher as _;
use std::ops::Range;

/// Mappings of one process.
const MAPPINGS_MAX: usize = MAPPING_PAGES_PER_PROCESS_MAX * MAPPINGS_PER_PAGE;

/// What identifies a layout: hashed twice with secret keys, since the mappings of a process are chosen by
/// whoever runs there, and two layouts taken for one would unwind a stranger with the wrong tables.
pub(super) type LayoutKey = (u64, u64);

/// One layout in the pages.
#[derive(Debug)]
pub(super) struct Layout {
    pub(super) pages: Range<usize>,
    pub(super) tables: Vec<TableId>,
    processes: u32,
    /// When its last process left it.
    left: MonotonicNs,
}

/// All layouts.
pub(super) struct Layouts {
    pub(super) pages: SlabMap<MappingPage>,
    starts_map: Array<MapData, [u64; MAPPING_PAGES_MAX]>,
    starts: Box<[u64; MAPPING_PAGES_MAX]>,
    space: Space,
    layouts: HashMap<LayoutKey, Layout>,
    /// The layout that begins at a page.
    at_page: HashMap<usize, LayoutKey>,
    /// Layouts that lost their last process, in the order of the times.
    leaving: VecDeque<(MonotonicNs, LayoutKey)>,
    keys: (RandomState, RandomState),
}

impl Layouts {
    pub(super) fn new(
        pages: SlabMap<MappingPage>,
        starts_map: Array<MapData, [u64; MAPPING_PAGES_MAX]>,
    ) -> Self {
        Self {
            pages,
            starts_map,
            starts: Box::new([0; MAPPING_PAGES_MAX]),
            space: Space::new(MAPPING_PAGES_MAX),
            layouts: HashMap::new(),
            at_page: HashMap::new(),
            leaving: VecDeque::new(),
            keys: (RandomState::new(), RandomState::new()),
        }
    }

    /// Pages in use, and layouts in them, those that are about to go included.
    pub(super) fn sizes(&self) -> (usize, usize) {
        (self.space.used(), self.layouts.len())
    }

    pub(super) fn key(&self, mappings: &[WalkMapping]) -> LayoutKey {
        (self.keys.0.hash_one(mappings), self.keys.1.hash_one(mappings))
    }

    /// One more process with the layout `key`; its pages, if the layout exists.
    pub(super) fn share(&mut self, key: LayoutKey) -> Option<Range<usize>> {
        let layout = self.layouts.get_mut(&key)?;
        layout.processes += 1;
        Some(layout.pages.clone())
    }

    /// One more process with the layout that an entry points to, if that exists.
    pub(super) fn share_at(&mut self, entry: ProcessEntry) -> Option<(LayoutKey, &Layout)> {
        let key = *self.at_page.get(&usize::from(entry.first_page))?;
        let layout = self.layouts.get_mut(&key)?;
        layout.processes += 1;
        Some((key, layout))
    }

    /// Writes a new layout, with one process.
    pub(super) fn write(
        &mut self,
        key: LayoutKey,
        pages: &[MappingPage],
        tables: Vec<TableId>,
    ) -> Result<Range<usize>, BpfError> {
        let full = BpfError::Full { what: "pages for mappings", limit: MAPPING_PAGES_MAX };
        let run = self.space.take(pages.len()).ok_or(full)?;
        let written = self.write_pages(pages, run.clone());
        if written.is_err() {
            self.space.give_back(run.clone());
        } else {
            let left = MonotonicNs(0);
            self.layouts.insert(key, Layout { pages: run.clone(), tables, processes: 1, left });
            self.at_page.insert(run.start, key);
        }
        written.map(|()| run)
    }

    fn write_pages(&mut self, pages: &[MappingPage], run: Range<usize>) -> Result<(), BpfError> {
        for (index, page) in run.zip(pages) {
            self.pages.set(index, page)?;
            self.starts[index] = page.starts[0];
        }
        self.starts_map.set(0, self.starts.as_ref(), 0).map_err(BpfError::map("PAGE_STARTS"))
    }

    /// One process less.
    pub(super) fn release(&mut self, key: LayoutKey, now: MonotonicNs) {
        let Some(layout) = self.layouts.get_mut(&key) else { return };
        layout.processes -= 1;
        if layout.processes == 0 {
            layout.left = now;
            self.leaving.push_back((now, key));
        }
    }

    /// Gives back what was left long enough before `time`, up to which all records were taken in. The tables
    /// of those layouts.
    pub(super) fn expire(&mut self, time: MonotonicNs) -> Vec<TableId> {
        let mut tables = Vec::new();
        let over = |left: &MonotonicNs| left.plus(REUSE_DELAY_NS) <= time;
        while let Some((left, key)) = self.leaving.pop_front_if(|(left, _)| over(left)) {
            // Somebody may have it again, and may have left it again.
            let gone = |layout: &Layout| layout.processes == 0 && layout.left == left;
            if self.layouts.get(&key).is_some_and(gone)
                && let Some(layout) = self.layouts.remove(&key)
            {
                self.at_page.remove(&layout.pages.start);
                self.space.give_back(layout.pages);
                tables.extend(layout.tables);
            }
        }
        tables
    }
}

/// Sorts, drops what overlaps or does not fit, and joins neighbours that are unwound alike. The second
/// result is how many were dropped.
pub(super) fn normalized(mappings: &[WalkMapping]) -> (Vec<WalkMapping>, usize) {
    let mut sorted = mappings.to_vec();
    sorted.sort_unstable_by_key(|mapping| (mapping.start, mapping.end));
    let mut dropped = 0;
    let mut kept: Vec<WalkMapping> = Vec::with_capacity(sorted.len());
    for mapping in sorted {
        let before = kept.last_mut();
        let overlaps = before.as_ref().is_some_and(|before| mapping.start < before.end);
        if mapping.start >= mapping.end
            || mapping.start.0 >= agent_ebpf::tables::UNUSED_START
            || overlaps
        {
            dropped += 1;
        } else if let Some(before) = before
            && before.end == mapping.start
            && before.unwind == mapping.unwind
            && (before.bias == mapping.bias || !matches!(mapping.unwind, MappingUnwind::Table(_)))
        {
            before.end = mapping.end;
        } else if kept.len() < MAPPINGS_MAX {
            kept.push(mapping);
        } else {
            dropped += 1;
        }
    }
    (kept, dropped)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::AbsAddr;

    fn mapping(start: u64, end: u64, bias: u64, unwind: MappingUnwind) -> WalkMapping {
        WalkMapping { start: AbsAddr(start), end: AbsAddr(end), bias, unwind }
    }

    #[test]
    fn neighbours_that_are_unwound_alike_are_joined() {
        let table = MappingUnwind::Table(TableId(1));
        let pending = MappingUnwind::Pending;
        let rows: [(&str, Vec<WalkMapping>, Vec<WalkMapping>, usize); 5] = [
            ("nothing", vec![], vec![], 0),
            (
                "one table at one bias is one range",
                vec![mapping(20, 30, 5, table), mapping(10, 20, 5, table)],
                vec![mapping(10, 30, 5, table)],
                0,
            ),
            (
                "another bias is another range",
                vec![mapping(10, 20, 5, table), mapping(20, 30, 6, table)],
                vec![mapping(10, 20, 5, table), mapping(20, 30, 6, table)],
                0,
            ),
            (
                "the bias says nothing where there is no table",
                vec![mapping(10, 20, 5, pending), mapping(20, 30, 6, pending)],
                vec![mapping(10, 30, 5, pending)],
                0,
            ),
            (
                "what overlaps or is empty goes",
                vec![
                    mapping(10, 20, 5, table),
                    mapping(15, 30, 5, pending),
                    mapping(40, 40, 0, table),
                ],
                vec![mapping(10, 20, 5, table)],
                2,
            ),
        ];
        for (what, given, expected, dropped) in rows {
            assert_eq!(normalized(&given), (expected, dropped), "{what}");
        }
    }

    #[test]
    fn more_mappings_than_the_limit_are_counted() {
        let many: Vec<_> = (0..MAPPINGS_MAX as u64 + 3)
            .map(|n| mapping(n * 10, n * 10 + 5, 0, MappingUnwind::Pending))
            .collect();
        let (kept, dropped) = normalized(&many);
        assert_eq!((kept.len(), dropped), (MAPPINGS_MAX, 3));
    }
}
