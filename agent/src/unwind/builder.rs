//! Puts the rows of many functions, in any order and from several sources, into one sorted [`RowTable`].
//! Not where the rows come from.

use super::RowTable;
use crate::elf::{ExecutableSegment, ForeignFileError};
use crate::limits::{GO_PADDING_BYTES_MAX, UNWIND_PADDING_BYTES_MAX, UNWIND_ROWS_PER_FILE_MAX};
use agent_ebpf::{RuleKind, UnwindRule};
use hashbrown::HashMap;
use std::ops::Range;

/// Who says it; where two speak of the same function, the lower one is believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Origin {
    /// Known from the ABI: the entry function has no caller.
    Entry,
    /// Go's own tables.
    Go,
    /// `.eh_frame`.
    EhFrame,
    /// `.debug_frame`.
    DebugFrame,
}

/// One function: addresses relative to the base, and its rows in `Builder::rows`.
#[derive(Clone, Debug)]
struct Function {
    start: u32,
    end: u32,
    origin: Origin,
    rows: Range<usize>,
}

/// Collects functions.
#[derive(Debug)]
pub(super) struct Builder {
    base: u64,
    segments: Vec<ExecutableSegment>,
    functions: Vec<Function>,
    rows: Vec<(u32, u16)>,
    rules: RuleSet,
}

impl Builder {
    /// Takes the executable segments, ascending by address. Rows outside of them are not kept.
    pub(super) fn new(segments: Vec<ExecutableSegment>) -> Self {
        let base = segments.first().map_or(0, |segment| segment.address.0);
        Self { base, segments, functions: Vec::new(), rows: Vec::new(), rules: RuleSet::default() }
    }

    /// Opens a function at `[start, end)`; nothing if it is empty or not inside one executable segment
    /// (the linker leaves such records for functions that it threw away).
    pub(super) fn function(
        &mut self,
        range: Range<u64>,
        origin: Origin,
    ) -> Result<Option<FunctionRows<'_>>, ForeignFileError> {
        let inside = self.segments.iter().any(|segment| {
            let start = segment.address.0;
            start <= range.start && range.end <= start.saturating_add(segment.size)
        });
        if range.is_empty() || !inside {
            return Ok(None);
        }
        let start = relative(self.base, range.start)?;
        let end = relative(self.base, range.end)?;
        Ok(Some(FunctionRows { first: self.rows.len(), builder: self, start, end, origin }))
    }

    /// The function that contains `address`: its range, and whether one of its rows has no caller.
    pub(super) fn containing(&self, address: u64) -> Option<(Range<u64>, bool)> {
        let at = relative(self.base, address).ok()?;
        let function =
            self.functions.iter().find(|function| (function.start..function.end).contains(&at))?;
        let rows = self.rows.get(function.rows.clone()).unwrap_or_default();
        let end = UnwindRule::plain(RuleKind::End);
        let ends = rows.iter().any(|&(_, rule)| self.rules.get(rule) == Some(end));
        let start = self.base.saturating_add(u64::from(function.start));
        let stop = self.base.saturating_add(u64::from(function.end));
        Some((start..stop, ends))
    }

    /// The end of the executable segment that `address` is in, or the next known function's start.
    pub(super) fn bound_after(&self, address: u64) -> Option<u64> {
        let segment = self.segments.iter().find_map(|segment| {
            let end = segment.address.0.saturating_add(segment.size);
            (segment.address.0..end).contains(&address).then_some(end)
        })?;
        let at = relative(self.base, address).ok()?;
        let next = self.functions.iter().map(|function| function.start).filter(|&start| start > at);
        let next = next.min().map(|start| self.base.saturating_add(u64::from(start)));
        Some(next.unwrap_or(segment).min(segment))
    }

    /// Sorts, fills gaps, joins rows that say the same.
    pub(super) fn finish(mut self) -> Result<RowTable, ForeignFileError> {
        let no_info = self.rules.intern(UnwindRule::plain(RuleKind::NoInfo))?;
        self.functions.sort_by_key(|function| (function.start, function.origin, function.end));
        let mut table = TableWriter::with_capacity(self.rows.len());
        let mut covered = 0;
        let mut before = Origin::Entry;
        table.push(0, no_info);
        for function in &self.functions {
            if function.end <= covered {
                continue;
            }
            let gap = function.start.saturating_sub(covered);
            let both_go = function.origin == Origin::Go && before == Origin::Go;
            let padding = if both_go { GO_PADDING_BYTES_MAX } else { UNWIND_PADDING_BYTES_MAX };
            if covered > 0 && u64::from(gap) > padding {
                table.push(covered, no_info);
            }
            // Of two functions that overlap the first one keeps what it said.
            let rows = self.rows.get(function.rows.clone()).unwrap_or_default();
            let active = rows.partition_point(|&(pc, _)| pc <= covered).saturating_sub(1);
            for &(pc, rule) in rows.get(active..).unwrap_or_default() {
                table.push(pc.max(covered), rule);
            }
            covered = function.end;
            before = function.origin;
        }
        if covered > 0 {
            table.push(covered, no_info);
        }
        let TableWriter { pcs, rule_indices } = table;
        Ok(RowTable { base: self.base, pcs, rule_indices, rules: self.rules.rules })
    }
}

/// The rows of one function, while they come.
#[derive(Debug)]
pub(super) struct FunctionRows<'b> {
    builder: &'b mut Builder,
    start: u32,
    end: u32,
    origin: Origin,
    first: usize,
}

impl FunctionRows<'_> {
    /// Adds a row from `address` on. Addresses must not fall; what lies outside the function is cut.
    pub(super) fn push(&mut self, address: u64, rule: UnwindRule) -> Result<(), ForeignFileError> {
        let pc = relative(self.builder.base, address).map_or(self.end, |pc| pc.max(self.start));
        if pc >= self.end {
            return Ok(());
        }
        let rule = self.builder.rules.intern(rule)?;
        let rows = &mut self.builder.rows;
        let own = rows.get_mut(self.first..).unwrap_or_default();
        match own.last_mut() {
            Some(last) if last.1 == rule || last.0 > pc => return Ok(()),
            Some(last) if last.0 == pc => {
                last.1 = rule;
                return Ok(());
            }
            _ => {}
        }
        if rows.len() >= UNWIND_ROWS_PER_FILE_MAX {
            let max = UNWIND_ROWS_PER_FILE_MAX as u64;
            return Err(ForeignFileError::Limit { what: "unwind rows of one file", max });
        }
        rows.push((pc, rule));
        Ok(())
    }

    /// Forgets the rows so far and says one rule for the whole function.
    pub(super) fn replace(&mut self, rule: UnwindRule) -> Result<(), ForeignFileError> {
        self.builder.rows.truncate(self.first);
        let start = self.builder.base.saturating_add(u64::from(self.start));
        self.push(start, rule)
    }

    /// Ends the function.
    pub(super) fn finish(self) {
        let Self { builder, start, end, origin, first } = self;
        let rows = first..builder.rows.len();
        if !rows.is_empty() {
            builder.functions.push(Function { start, end, origin, rows });
        }
    }
}

/// Distinct rules, numbered in the order of their first use.
#[derive(Debug, Default)]
struct RuleSet {
    rules: Vec<UnwindRule>,
    indices: HashMap<UnwindRule, u16>,
}

impl RuleSet {
    fn intern(&mut self, rule: UnwindRule) -> Result<u16, ForeignFileError> {
        if let Some(&index) = self.indices.get(&rule) {
            return Ok(index);
        }
        let limit = |_| ForeignFileError::Limit {
            what: "distinct unwind rules of one file",
            max: agent_ebpf::limits::RULES_MAX as u64,
        };
        let index = u16::try_from(self.rules.len()).map_err(limit)?;
        self.rules.push(rule);
        self.indices.insert(rule, index);
        Ok(index)
    }

    fn get(&self, index: u16) -> Option<UnwindRule> {
        self.rules.get(usize::from(index)).copied()
    }
}

/// Appends rows, joining neighbours.
#[derive(Debug)]
struct TableWriter {
    pcs: Vec<u32>,
    rule_indices: Vec<u16>,
}

impl TableWriter {
    fn with_capacity(rows: usize) -> Self {
        Self { pcs: Vec::with_capacity(rows), rule_indices: Vec::with_capacity(rows) }
    }

    fn push(&mut self, pc: u32, rule: u16) {
        if self.pcs.last() == Some(&pc) {
            self.pcs.pop();
            self.rule_indices.pop();
        }
        if self.rule_indices.last() != Some(&rule) {
            self.pcs.push(pc);
            self.rule_indices.push(rule);
        }
    }
}

fn relative(base: u64, address: u64) -> Result<u32, ForeignFileError> {
    let limit = ForeignFileError::Limit { what: "bytes of code", max: u64::from(u32::MAX) };
    address.checked_sub(base).and_then(|pc| u32::try_from(pc).ok()).ok_or(limit)
}
