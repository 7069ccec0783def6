//! The order in which a window is written: what is alike stands side by side, so that compression finds it.
//! Any order says the same; this one takes 4 % off what zstd leaves (measured over windows of C, Python,
//! Node.js and Java).

use crate::aggregate::{Code, FoldedSample, LocationIndex, NamedWindow, ProcessSamples};

/// The places of a window's locations and stacks in the order of writing.
#[derive(Debug)]
pub(super) struct WritingOrder {
    /// By file and address.
    pub(super) locations: Vec<LocationIndex>,
    ranks: Vec<u32>,
}

impl WritingOrder {
    pub(super) fn of(window: &NamedWindow) -> Self {
        let all = 0..u32::try_from(window.locations.len()).unwrap_or(u32::MAX);
        let mut locations: Vec<LocationIndex> = all.map(LocationIndex).collect();
        locations.sort_by_key(|index| match window.location(*index).code {
            Code::Native { file, address } => (0, file, address.0),
            Code::Unplaced { file, offset } => (1, file, offset.0),
            Code::Kernel { address, .. } => (2, 0, address.0),
            Code::Anonymous { address, .. } => (3, 0, address.0),
            Code::Marker(_) => (4, 0, 0),
        });
        let mut ranks = vec![0; locations.len()];
        for (rank, index) in (0..).zip(&locations) {
            ranks[index.0 as usize] = rank;
        }
        Self { locations, ranks }
    }

    /// The samples of a process from root to leaf: a stack stands beside the one that it shares most with.
    pub(super) fn samples<'a>(
        &self,
        window: &NamedWindow,
        process: &'a ProcessSamples,
    ) -> Vec<&'a FoldedSample> {
        let mut samples: Vec<&FoldedSample> = process.samples.iter().collect();
        samples.sort_by_cached_key(|sample| {
            let stack = window.stack(sample.stack).iter().rev();
            stack.map(|index| self.ranks[index.0 as usize]).collect::<Vec<u32>>()
        });
        samples
    }
}
