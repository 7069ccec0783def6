//! Finds the rule of an address in the tables of the BPF side: process, page of mappings, chunk of rows. Every
//! search is free of branches and masks its indices, so it stays inside its arrays whatever they hold.

use crate::limits::{
    CHUNK_BLOCKS, CHUNK_GROUPS, CHUNK_ROWS, CHUNKS_MAX, MAPPING_PAGES_MAX, MAPPINGS_PER_PAGE,
};
use crate::verifier::{at_most, element};
use crate::{Chunk, MappingPage, MappingTarget, Outcome, ProcessEntry, UnwindRule};
use core::mem::offset_of;

/// The tables, wherever they lie. `None` for a part that is not there.
pub trait Tables {
    /// One page of mappings.
    fn page(&self, index: u64) -> Option<&MappingPage>;
    /// First address of every page.
    fn page_starts(&self) -> Option<&[u64; MAPPING_PAGES_MAX]>;
    /// One chunk of rows.
    fn chunk(&self, index: u64) -> Option<&Chunk>;
    /// First key of every chunk.
    fn chunk_starts(&self) -> Option<&[u32; CHUNKS_MAX]>;
    /// One rule.
    fn rule(&self, number: u64) -> Option<UnwindRule>;
}

/// The rule at `pc` of a process. `zero` is 0, and in BPF never known to be that: a search that starts from a
/// literal is unrolled by the verifier into all its paths.
///
/// # Errors
/// With the outcome of the walk, where there is no rule.
#[inline(always)]
pub fn rule_at(
    tables: &impl Tables,
    process: ProcessEntry,
    zero: u64,
    pc: u64,
) -> Result<UnwindRule, Outcome> {
    let page = find_page(tables, process, zero, pc)?;
    let page = tables.page(page).ok_or(Outcome::TableCorrupt)?;
    let mut slot = zero;
    let mut step = MAPPINGS_PER_PAGE as u64 / 2;
    while step > 0 {
        slot += at_most(column(page, offset_of!(MappingPage, starts), slot + step), pc) * step;
        step /= 2;
    }
    let start = column(page, offset_of!(MappingPage, starts), slot);
    let end = column(page, offset_of!(MappingPage, ends), slot);
    if pc < start || pc >= end {
        return Err(Outcome::MappingUnknown);
    }
    let target = MappingTarget(column(page, offset_of!(MappingPage, targets), slot));
    let key = pc.wrapping_sub(column(page, offset_of!(MappingPage, biases), slot));
    let rule = if target.kind() == MappingTarget::KIND_TABLE {
        find_row(tables, target, zero, key)?
    } else if target.kind() == MappingTarget::KIND_RULE {
        target.rule_index()
    } else {
        return Err(Outcome::TablePending);
    };
    let mut rule = tables.rule(rule).ok_or(Outcome::TableCorrupt)?;
    rule.reserved = u8::from(target.kind() == MappingTarget::KIND_RULE);
    Ok(rule)
}

/// One element of the column of a page that begins at byte `column`.
#[inline(always)]
fn column(page: &MappingPage, column: usize, slot: u64) -> u64 {
    // SAFETY: each column of a page has that many elements.
    unsafe { element::<MAPPINGS_PER_PAGE, u64, _>(page, column, slot) }
}

/// The page of the process that `pc` would lie in.
#[inline(always)]
fn find_page(
    tables: &impl Tables,
    process: ProcessEntry,
    zero: u64,
    pc: u64,
) -> Result<u64, Outcome> {
    let first = u64::from(process.first_page);
    let pages = u64::from(process.pages);
    if pages <= 1 {
        return Ok(first); // nearly every process has fewer than 64 mappings
    }
    let starts = tables.page_starts().ok_or(Outcome::TableCorrupt)?;
    let mut page = zero;
    let mut step = 64;
    while step > 0 {
        let inside = at_most(page + step + 1, pages);
        // Outside, the first one is looked at, which is in the cache.
        let next = first + (page + step) * inside;
        // SAFETY: the flat array holds MAPPING_PAGES_MAX elements.
        let start = unsafe { element::<MAPPING_PAGES_MAX, u64, _>(starts, 0, next) };
        page += (inside & at_most(start, pc)) * step;
        step /= 2;
    }
    Ok(first + page)
}

/// The rule of the row at `key` of a table.
#[inline(always)]
fn find_row(
    tables: &impl Tables,
    target: MappingTarget,
    zero: u64,
    key: u64,
) -> Result<u64, Outcome> {
    if key >= u64::from(u32::MAX) {
        return Ok(0); // before the first row, or behind what 32 bits reach: NoInfo
    }
    let chunk = if target.chunks() <= 1 {
        target.first_chunk()
    } else {
        find_chunk(tables, target, zero, key)?
    };
    let rows = tables.chunk(chunk).ok_or(Outcome::TableCorrupt)?;
    // Three levels of 16, each in a cache line or two. A plain search of the column touches nine, and they
    // are cold at 19 Hz.
    let block = find_of_16::<CHUNK_BLOCKS>(rows, offset_of!(Chunk, blocks), zero, key);
    let group = find_of_16::<CHUNK_GROUPS>(rows, offset_of!(Chunk, groups), block * 16, key);
    let row = find_of_16::<CHUNK_ROWS>(rows, offset_of!(Chunk, pcs), group * 16, key);
    // SAFETY: the column holds that many rows.
    let rule: u16 = unsafe { element::<CHUNK_ROWS, u16, _>(rows, offset_of!(Chunk, rules), row) };
    Ok(u64::from(rule))
}

/// The last of the 16 elements from `first` on that is at most `key`; `first` if none is.
#[inline(always)]
fn find_of_16<const N: usize>(rows: &Chunk, column: usize, first: u64, key: u64) -> u64 {
    let mut at = first;
    let mut step = 8;
    while step > 0 {
        // SAFETY: the caller's column has that many elements.
        let start: u32 = unsafe { element::<N, u32, _>(rows, column, at + step) };
        at += at_most(u64::from(start), key) * step;
        step /= 2;
    }
    at
}

/// The chunk of a table that the row at `key` lies in.
#[inline(always)]
fn find_chunk(
    tables: &impl Tables,
    target: MappingTarget,
    zero: u64,
    key: u64,
) -> Result<u64, Outcome> {
    let starts = tables.chunk_starts().ok_or(Outcome::TableCorrupt)?;
    let mut chunk = zero;
    let mut step = 2048;
    while step > 0 {
        let inside = at_most(chunk + step + 1, target.chunks());
        let next = target.first_chunk() + (chunk + step) * inside;
        // SAFETY: the flat array holds CHUNKS_MAX elements.
        let start: u32 = unsafe { element::<CHUNKS_MAX, u32, _>(starts, 0, next) };
        chunk += (inside & at_most(u64::from(start), key)) * step;
        step /= 2;
    }
    Ok(target.first_chunk() + chunk)
}
