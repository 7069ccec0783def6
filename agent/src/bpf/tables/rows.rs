//! Memory for unwind rows: which chunks belong to whom, and what is written into them.

use super::super::BpfError;
use super::slab_map::SlabMap;
use super::space::Space;
use agent_ebpf::Chunk;
use agent_ebpf::limits::CHUNKS_MAX;
use aya::maps::{Array, MapData};
use std::ops::Range;

/// The chunks and what is free of them.
pub(super) struct Rows {
    pub(super) chunks: SlabMap<Chunk>,
    starts_map: Array<MapData, [u32; CHUNKS_MAX]>,
    starts: Box<[u32; CHUNKS_MAX]>,
    space: Space,
    chunks_max: usize,
}

impl Rows {
    pub(super) fn new(
        chunks: SlabMap<Chunk>,
        starts_map: Array<MapData, [u32; CHUNKS_MAX]>,
        chunks_max: usize,
    ) -> Self {
        let starts = Box::new([0; CHUNKS_MAX]);
        Self { chunks, starts_map, starts, space: Space::new(chunks_max), chunks_max }
    }

    /// Chunks in use.
    pub(super) fn used(&self) -> usize {
        self.space.used()
    }

    /// One more slab, if the places behind all that are used are fewer than so many.
    pub(super) fn prepare(&mut self, chunks: usize) -> Result<(), BpfError> {
        let made = self.chunks.values();
        let wanted = self.space.behind_all().saturating_add(chunks);
        if made < wanted && made < self.chunks_max { self.chunks.add_slab() } else { Ok(()) }
    }

    /// Writes rows, sorted by key, into `count` unused chunks.
    pub(super) fn write(
        &mut self,
        rows: impl Iterator<Item = (u32, u16)>,
        count: usize,
    ) -> Result<Range<usize>, BpfError> {
        let full = BpfError::Full { what: "chunks for unwind rows", limit: self.chunks_max };
        let run = self.space.take(count).ok_or(full)?;
        let written = self.write_chunks(rows, run.clone());
        if written.is_err() {
            self.space.give_back(run.clone());
        }
        written.map(|()| run)
    }

    fn write_chunks(
        &mut self,
        mut rows: impl Iterator<Item = (u32, u16)>,
        run: Range<usize>,
    ) -> Result<(), BpfError> {
        let mut chunk = Box::new(Chunk::EMPTY);
        for index in run {
            *chunk = Chunk::EMPTY;
            let places = chunk.pcs.iter_mut().zip(chunk.rules.iter_mut());
            for ((pc, rule), row) in places.zip(&mut rows) {
                (*pc, *rule) = row;
            }
            chunk.index();
            self.starts[index] = chunk.pcs[0];
            self.chunks.set(index, &chunk)?;
        }
        self.starts_map.set(0, self.starts.as_ref(), 0).map_err(BpfError::map("CHUNK_STARTS"))
    }

    /// The rule number of the row that covers `key` in the chunks of a table, 0 (no information) where
    /// none does.
    pub(super) fn rule_at(&self, run: &Range<usize>, key: u32) -> Result<u16, BpfError> {
        let starts = self.starts.get(run.clone()).unwrap_or_default();
        let Some(at) = starts.partition_point(|start| *start <= key).checked_sub(1) else {
            return Ok(0);
        };
        let chunk = self.chunks.get(run.start + at)?;
        let row = chunk.pcs.partition_point(|pc| *pc <= key).checked_sub(1);
        Ok(row.and_then(|row| chunk.rules.get(row)).copied().unwrap_or(0))
    }

    /// Gives the chunks of a table back, that no layout refers to.
    pub(super) fn give_back(&mut self, run: Range<usize>) {
        self.space.give_back(run);
    }
}
