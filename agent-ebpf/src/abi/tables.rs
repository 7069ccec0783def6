//! The tables that the agent writes and the walker reads: processes, their mappings, and the columns of
//! unwind rows. Layouts only; `agent/src/bpf/tables` fills them, `src/walk/search.rs` searches them.
//!
//! Everything a walk reads is immutable while it can be read: a new layout is written into unused pages
//! and chunks, then one 8-byte store of a [`ProcessEntry`] publishes it, and what it replaced is reused
//! only after `limits::REUSE_DELAY_NS`.

use crate::limits::{CHUNK_BLOCKS, CHUNK_GROUPS, CHUNK_ROWS, MAPPINGS_PER_PAGE};

/// What the walker knows of a process: the value of the process map. Eight bytes, so that one load sees
/// either the old or the new layout and never half of each.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessEntry {
    /// The generation that travels in each sample. Given out once: programs remember what they found by it.
    pub generation: u32,
    /// First page of the layout.
    pub first_page: u16,
    /// Number of pages, at most `limits::MAPPING_PAGES_PER_PROCESS_MAX`.
    pub pages: u16,
}

/// 64 mappings in columns, sorted by start. Binary search touches the first column only.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MappingPage {
    /// First addresses; slots that are not used hold [`UNUSED_START`].
    pub starts: [u64; MAPPINGS_PER_PAGE],
    /// First addresses behind.
    pub ends: [u64; MAPPINGS_PER_PAGE],
    /// `address - bias` (wrapping) is the key into the table's rows.
    pub biases: [u64; MAPPINGS_PER_PAGE],
    /// Packed [`MappingTarget`]s.
    pub targets: [u64; MAPPINGS_PER_PAGE],
}

/// Start of a slot that is not used: above every user address, and below 2^63 because the walker's
/// branch-free compare needs that.
pub const UNUSED_START: u64 = (1 << 63) - 1;

impl MappingPage {
    /// A page without mappings.
    pub const EMPTY: Self = Self {
        starts: [UNUSED_START; MAPPINGS_PER_PAGE],
        ends: [0; MAPPINGS_PER_PAGE],
        biases: [0; MAPPINGS_PER_PAGE],
        targets: [0; MAPPINGS_PER_PAGE],
    };
}

/// What to do in a mapping, packed into 64 bits.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MappingTarget(pub u64);

impl MappingTarget {
    /// The table is being made.
    pub const PENDING: Self = Self(Self::KIND_PENDING);
    /// [`MappingTarget::kind`] of a mapping whose table is being made.
    pub const KIND_PENDING: u64 = 0;
    /// [`MappingTarget::kind`] of a mapping with one rule.
    pub const KIND_RULE: u64 = 1;
    /// [`MappingTarget::kind`] of a mapping with a table.
    pub const KIND_TABLE: u64 = 2;

    /// A table in `chunks` consecutive chunks.
    #[must_use]
    pub const fn table(first_chunk: u16, chunks: u16) -> Self {
        Self(Self::KIND_TABLE | (first_chunk as u64) << 16 | (chunks as u64) << 32)
    }

    /// One rule for the whole mapping.
    #[must_use]
    pub const fn rule(rule: u16) -> Self {
        Self(Self::KIND_RULE | (rule as u64) << 48)
    }

    /// One of the `KIND_` constants.
    #[must_use]
    #[inline(always)]
    pub const fn kind(self) -> u64 {
        self.0 & 0xffff
    }

    /// First chunk of the table.
    #[must_use]
    #[inline(always)]
    pub const fn first_chunk(self) -> u64 {
        self.0 >> 16 & 0xffff
    }

    /// Chunks of the table.
    #[must_use]
    #[inline(always)]
    pub const fn chunks(self) -> u64 {
        self.0 >> 32 & 0xffff
    }

    /// The rule of the mapping.
    #[must_use]
    #[inline(always)]
    pub const fn rule_index(self) -> u64 {
        self.0 >> 48
    }
}

/// 4,096 unwind rows in columns (25 KiB), with two levels above them: the search looks at 16 keys a level, a
/// cache line or two, where a plain search of the column would touch nine.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Start of each block's first row, a block being 256 rows.
    pub blocks: [u32; CHUNK_BLOCKS],
    /// Start of each group's first row, a group being 16 rows.
    pub groups: [u32; CHUNK_GROUPS],
    /// Row starts, ascending, relative to the table's base; unused rows hold `u32::MAX`.
    pub pcs: [u32; CHUNK_ROWS],
    /// For each row, its rule.
    pub rules: [u16; CHUNK_ROWS],
}

impl Chunk {
    /// A chunk without rows.
    pub const EMPTY: Self = Self {
        blocks: [u32::MAX; CHUNK_BLOCKS],
        groups: [u32::MAX; CHUNK_GROUPS],
        pcs: [u32::MAX; CHUNK_ROWS],
        rules: [0; CHUNK_ROWS],
    };

    /// Fills the levels above the rows: after the rows were written, before anybody searches them.
    pub fn index(&mut self) {
        for (group, rows) in self.groups.iter_mut().zip(self.pcs.as_chunks::<16>().0) {
            *group = rows[0];
        }
        for (block, groups) in self.blocks.iter_mut().zip(self.groups.as_chunks::<16>().0) {
            *block = groups[0];
        }
    }
}

const _: () = assert!(size_of::<ProcessEntry>() == 8);
const _: () = assert!(size_of::<MappingPage>() == 2048);
const _: () = assert!(size_of::<Chunk>() == CHUNK_ROWS * 6 + CHUNK_GROUPS * 4 + CHUNK_BLOCKS * 4);
