//! Memory for unwind rows: slabs of 128 chunks that are made when needed, because an update of a
//! map-in-map waits an RCU grace period (11.8 ms measured) and one per chunk would take seconds.

use super::super::BpfError;
use super::super::raw;
use super::space::Space;
use crate::clock::MonotonicNs;
use agent_ebpf::Chunk;
use agent_ebpf::limits::{CHUNK_ROWS, CHUNKS_MAX, SLAB_CHUNKS};
use aya::maps::{Array, ArrayOfMaps, MapData};
use std::ops::Range;
use std::os::fd::{AsFd as _, OwnedFd};

/// The slabs and what is free in them.
pub(super) struct Slabs {
    outer: ArrayOfMaps<MapData, Array<MapData, Chunk>>,
    starts_map: Array<MapData, [u32; CHUNKS_MAX]>,
    starts: Box<[u32; CHUNKS_MAX]>,
    slabs: Vec<Array<MapData, Chunk>>,
    space: Space,
    /// Describes a chunk to the kernel: without it 5.15 to 6.1 refuse the inner map, because the
    /// template that aya makes has BTF (kernel `bpf_map_meta_equal`).
    chunk_btf: OwnedFd,
    slab_bytes: u64,
}

impl Slabs {
    pub(super) fn new(
        outer: ArrayOfMaps<MapData, Array<MapData, Chunk>>,
        starts_map: Array<MapData, [u32; CHUNKS_MAX]>,
    ) -> Result<Self, BpfError> {
        Ok(Self {
            outer,
            starts_map,
            starts: Box::new([0; CHUNKS_MAX]),
            slabs: Vec::new(),
            space: Space::new(CHUNKS_MAX),
            chunk_btf: raw::load_value_btf(size_of::<Chunk>())?,
            slab_bytes: 0,
        })
    }

    /// Chunks in use, and slabs made.
    pub(super) fn sizes(&self) -> (usize, usize) {
        (self.space.used(), self.slabs.len())
    }

    /// Kernel memory of the slabs, bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.slab_bytes * self.slabs.len() as u64
    }

    /// Writes rows, sorted by key, into unused chunks.
    pub(super) fn write(
        &mut self,
        rows: impl Iterator<Item = (u32, u16)>,
        count: usize,
        now: MonotonicNs,
    ) -> Result<Range<usize>, BpfError> {
        let full = BpfError::Full { what: "chunks for unwind rows", limit: CHUNKS_MAX };
        let run = self.space.take(count.div_ceil(CHUNK_ROWS), now).ok_or(full)?;
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
        while self.slabs.len() * SLAB_CHUNKS < run.end {
            self.add_slab()?;
        }
        let mut chunk = Box::new(Chunk::EMPTY);
        for index in run {
            *chunk = Chunk::EMPTY;
            let places = chunk.pcs.iter_mut().zip(chunk.rules.iter_mut());
            for ((pc, rule), row) in places.zip(&mut rows) {
                (*pc, *rule) = row;
            }
            self.starts[index] = chunk.pcs[0];
            let slab = &mut self.slabs[index / SLAB_CHUNKS];
            let place = u32::try_from(index % SLAB_CHUNKS).expect("below 128");
            slab.set(place, chunk.as_ref(), 0).map_err(BpfError::map("slab"))?;
        }
        self.starts_map.set(0, self.starts.as_ref(), 0).map_err(BpfError::map("CHUNK_STARTS"))
    }

    fn add_slab(&mut self) -> Result<(), BpfError> {
        let number = u32::try_from(self.slabs.len()).expect("at most 64");
        let fd = raw::create_array(size_of::<Chunk>(), SLAB_CHUNKS, self.chunk_btf.as_fd())?;
        self.slab_bytes = raw::map_bytes(fd.as_fd())?;
        let map = MapData::from_fd(fd).map_err(BpfError::map("slab"))?;
        let slab = Array::try_from(aya::maps::Map::Array(map)).map_err(BpfError::map("slab"))?;
        self.outer.set(number, &slab, 0).map_err(BpfError::map("SLABS"))?;
        self.slabs.push(slab);
        Ok(())
    }

    /// Gives the chunks of a table back, whose last user is gone.
    pub(super) fn retire(&mut self, run: Range<usize>, now: MonotonicNs) {
        self.space.retire(run, now);
    }
}
