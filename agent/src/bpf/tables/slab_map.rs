//! A table of fixed-size values whose memory is made in slabs when needed: a map of maps. Slabs are few
//! and large, because an update of the outer map waits an RCU grace period (11.8 ms measured).

use super::super::{BpfError, raw};
use aya::Pod;
use aya::maps::{Array, ArrayOfMaps, Map, MapData};
use std::os::fd::{AsFd as _, OwnedFd};

/// Values in slabs.
pub(super) struct SlabMap<V: Pod> {
    name: &'static str,
    outer: ArrayOfMaps<MapData, Array<MapData, V>>,
    slab_values: usize,
    slabs: Vec<Array<MapData, V>>,
    /// Describes a value to the kernel: without it 5.15 to 6.1 refuse the inner map, because the
    /// template that aya makes has BTF (kernel `bpf_map_meta_equal`).
    btf: OwnedFd,
    slab_bytes: u64,
}

impl<V: Pod> SlabMap<V> {
    pub(super) fn new(
        name: &'static str,
        outer: ArrayOfMaps<MapData, Array<MapData, V>>,
        slab_values: usize,
    ) -> Result<Self, BpfError> {
        let btf = raw::load_value_btf(size_of::<V>())?;
        Ok(Self { name, outer, slab_values, slabs: Vec::new(), btf, slab_bytes: 0 })
    }

    /// Slabs that exist.
    pub(super) fn slabs(&self) -> usize {
        self.slabs.len()
    }

    /// Places for values in them.
    pub(super) fn values(&self) -> usize {
        self.slabs.len() * self.slab_values
    }

    /// Kernel memory of the slabs, bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.slab_bytes * self.slabs.len() as u64
    }

    /// Writes one value, in a new slab if need be.
    pub(super) fn set(&mut self, index: usize, value: &V) -> Result<(), BpfError> {
        while self.slabs.len() <= index / self.slab_values {
            self.add_slab()?;
        }
        let slab = &mut self.slabs[index / self.slab_values];
        let place = u32::try_from(index % self.slab_values).expect("at most 256 values");
        slab.set(place, value, 0).map_err(BpfError::map(self.name))
    }

    /// Reads one value back. Its slab exists if it was ever written.
    pub(super) fn get(&self, index: usize) -> Result<V, BpfError> {
        let missing = || BpfError::Table { reason: "a value that was never written" };
        let slab = self.slabs.get(index / self.slab_values).ok_or_else(missing)?;
        let place = u32::try_from(index % self.slab_values).expect("at most 256 values");
        slab.get(&place, 0).map_err(BpfError::map(self.name))
    }

    /// Makes another slab.
    pub(super) fn add_slab(&mut self) -> Result<(), BpfError> {
        let failed = BpfError::map(self.name);
        let number = u32::try_from(self.slabs.len()).expect("at most 64 slabs");
        let fd = raw::create_array(size_of::<V>(), self.slab_values, self.btf.as_fd())?;
        self.slab_bytes = raw::map_bytes(fd.as_fd())?;
        let map = Map::Array(MapData::from_fd(fd).map_err(&failed)?);
        let slab = Array::try_from(map).map_err(&failed)?;
        self.outer.set(number, &slab, 0).map_err(&failed)?;
        self.slabs.push(slab);
        Ok(())
    }
}
