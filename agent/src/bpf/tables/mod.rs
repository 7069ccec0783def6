//! The unwind tables in BPF memory: rows of files, mappings of processes. Written here, read by the
//! walker at any time; so everything is written into unused places and then published by one store.
//!
//! What to load for which process is `process`'s decision.

mod layouts;
mod rows;
mod rules;
mod slab_map;
mod space;

use super::{BpfError, MappingUnwind, TableId, WalkMapping};
use crate::address::{Generation, Pid};
use crate::clock::{MonotonicNs, monotonic_now};
use crate::unwind::RowTable;
use agent_ebpf::limits::{
    CHUNK_ROWS, CHUNKS_MAX, CHUNKS_PER_TABLE_MAX, MAPPINGS_PER_PAGE, PAGE_SLAB_PAGES,
    PROCESSES_MAX, RULES_MAX, SLAB_CHUNKS,
};
use agent_ebpf::{
    Chunk, MappingPage, MappingTarget, ProcessEntry, REGISTERS, RuleKind, UnwindRule,
};
use aya::Ebpf;
use aya::maps::{Array, MapData, MapError};
use layouts::{LayoutKey, Layouts};
use rows::Rows;
use rules::Rules;
use slab_map::SlabMap;
use std::collections::HashMap;
use std::ops::Range;

/// The tables of one loaded sampler.
pub struct Tables {
    processes_map: aya::maps::HashMap<MapData, u32, ProcessEntry>,
    rules_map: Array<MapData, UnwindRule>,
    rules: Rules,
    rows: Rows,
    layouts: Layouts,
    tables: HashMap<TableId, Table>,
    next_table: u32,
    processes: HashMap<Pid, LayoutKey>,
}

/// One file's rows.
#[derive(Debug)]
struct Table {
    chunks: Range<usize>,
    rows: usize,
    base: u64,
    /// Each rule once.
    rules: Vec<u16>,
    /// Layouts that refer to it.
    layouts: u32,
    /// It goes when no layout refers to it any more.
    removed: bool,
}

/// What the tables hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableSizes {
    /// Files.
    pub tables: usize,
    /// Their rows.
    pub rows: usize,
    /// Chunks of 4,096 rows in use.
    pub chunks: usize,
    /// Slabs of chunks and of pages that exist.
    pub slabs: usize,
    /// Kernel memory of the slabs, bytes. The other maps have a fixed size, see `Sampler::map_bytes`.
    pub slab_bytes: u64,
    /// Distinct rules.
    pub rules: usize,
    /// Processes with a layout.
    pub processes: usize,
    /// Distinct layouts.
    pub layouts: usize,
    /// Pages of 64 mappings in use.
    pub pages: usize,
}

impl Tables {
    /// Takes the maps out of the loaded object; rows take at most `bytes_max` of kernel memory.
    pub(super) fn take(ebpf: &mut Ebpf, bytes_max: u64) -> Result<Self, BpfError> {
        let chunks = super::loader::take_map(ebpf, "SLABS")?;
        let chunks = SlabMap::new("SLABS", chunks, SLAB_CHUNKS)?;
        let pages = super::loader::take_map(ebpf, "PAGE_SLABS")?;
        let pages = SlabMap::new("PAGE_SLABS", pages, PAGE_SLAB_PAGES)?;
        Ok(Self {
            processes_map: super::loader::take_map(ebpf, "PROCESSES")?,
            rules_map: super::loader::take_map(ebpf, "RULES")?,
            // Number 0 is `NoInfo`, which is all zeros, as the map is when it is new.
            rules: Rules::new(),
            rows: Rows::new(
                chunks,
                super::loader::take_map(ebpf, "CHUNK_STARTS")?,
                chunks_in(bytes_max),
            ),
            layouts: Layouts::new(pages, super::loader::take_map(ebpf, "PAGE_STARTS")?),
            tables: HashMap::new(),
            next_table: 0,
            processes: HashMap::new(),
        })
    }

    /// Loads the rows of a file.
    ///
    /// # Errors
    /// If the table is malformed, the memory is used up, or the kernel refuses; nothing is changed then.
    pub fn insert(&mut self, table: &RowTable) -> Result<TableId, BpfError> {
        check(table)?;
        let now = monotonic_now();
        let numbers = self.intern(table.rules(), now)?;
        let lead = needs_lead(table).then_some((0, 0));
        let rows = table.rows().map(|(pc, index)| (pc, numbers[usize::from(index)]));
        match self.rows.write(lead.into_iter().chain(rows), chunks_of(table)) {
            Ok(chunks) => {
                let id = TableId(self.next_table);
                self.next_table = self.next_table.wrapping_add(1);
                let (rows, base) = (table.len(), table.base());
                let table =
                    Table { chunks, rows, base, rules: numbers, layouts: 0, removed: false };
                self.tables.insert(id, table);
                Ok(id)
            }
            Err(error) => {
                self.release_rules(&numbers, now);
                Err(error)
            }
        }
    }

    /// Makes memory for a table of so many chunks, a slab at most: it waits until the kernel has seen that nobody reads
    /// the place of the slab (12 ms), which a table then need not. False if the kernel refuses.
    pub fn prepare(&mut self, chunks: usize) -> bool {
        let prepared = self.rows.prepare(chunks);
        let refused =
            |error: &BpfError| tracing::debug!(%error, "no memory for tables that may come");
        prepared.inspect_err(refused).is_ok()
    }

    /// The rule at an ELF address of a table, read back from the kernel's memory: for stacks that are
    /// walked here, which are few. Tables are not kept twice for them.
    ///
    /// # Errors
    /// If there is no such table, or the kernel refuses.
    pub fn rule_at(&self, id: TableId, address: u64) -> Result<UnwindRule, BpfError> {
        let table = self.tables.get(&id).ok_or(BpfError::NoTable(id))?;
        let key = u32::try_from(address.wrapping_sub(table.base)).unwrap_or(u32::MAX);
        let number = if key == u32::MAX { 0 } else { self.rows.rule_at(&table.chunks, key)? };
        self.rules.rule(number).ok_or(BpfError::NoTable(id))
    }

    /// Distinct rules that may be added, once those that were given back may be used again.
    #[must_use]
    pub fn rules_left(&self) -> usize {
        RULES_MAX.saturating_sub(self.rules.len())
    }

    /// Rules of a table that no loaded one has.
    #[must_use]
    pub fn new_rules(&self, table: &RowTable) -> usize {
        table.rules().iter().filter(|rule| !self.rules.has(rule)).count()
    }

    /// Rules that only this table has.
    #[must_use]
    pub fn own_rules(&self, id: TableId) -> usize {
        let rules = self.tables.get(&id).map_or(&[][..], |table| &table.rules);
        rules.iter().filter(|number| self.rules.users(**number) == 1).count()
    }

    /// Removes a table; its memory is used again when no layout refers to it any more.
    pub fn remove(&mut self, id: TableId) {
        if let Some(table) = self.tables.get_mut(&id) {
            table.removed = true;
            self.drop_if_unused(id, monotonic_now());
        }
    }

    /// Publishes the mappings of a process, in place of what was there. Returns how many mappings were
    /// left out because they overlap others or are more than the limit.
    ///
    /// # Errors
    /// If a table does not exist, the memory is used up, or the kernel refuses; what was there stays.
    pub fn set_process(
        &mut self,
        pid: Pid,
        generation: Generation,
        mappings: &[WalkMapping],
    ) -> Result<usize, BpfError> {
        let now = monotonic_now();
        let (mappings, left_out) = layouts::normalized(mappings);
        let key = self.layouts.key(&mappings);
        let pages = match self.layouts.share(key) {
            Some(pages) => pages,
            None => self.write_layout(key, &mappings, now)?,
        };
        let entry = ProcessEntry {
            generation: generation.0,
            first_page: u16::try_from(pages.start).expect("below 8,192"),
            pages: u16::try_from(pages.len()).expect("at most 128"),
        };
        if let Err(error) = self.processes_map.insert(pid.0, entry, 0) {
            self.layouts.release(key, now);
            return Err(process_error(error));
        }
        if let Some(old) = self.processes.insert(pid, key) {
            // Writing the new one may have waited for the kernel: walks use the old one until now.
            self.layouts.release(old, monotonic_now());
        }
        Ok(left_out)
    }

    /// The programs gave `pid` its parent's entry at fork: the layout is the child's too. False if mappings are
    /// to be published for it: it has others, or did not get the entry after all, or a table is to go.
    pub fn inherit(&mut self, pid: Pid, entry: ProcessEntry) -> bool {
        if self.processes.contains_key(&pid) {
            return false;
        }
        let Some((key, layout)) = self.layouts.share_at(entry) else { return false };
        self.processes.insert(pid, key);
        let tables = layout.tables.iter().filter_map(|id| self.tables.get(id));
        !tables.into_iter().any(|table| table.removed)
    }

    /// Every record that was written before `time` was taken in, and [`Self::inherit`] called for all who
    /// inherited: what was left long enough before is used again.
    pub fn records_known_until(&mut self, time: MonotonicNs) {
        let now = monotonic_now();
        for id in self.layouts.expire(time) {
            if let Some(table) = self.tables.get_mut(&id) {
                table.layouts -= 1;
            }
            self.drop_if_unused(id, now);
        }
    }

    /// Forgets a process.
    ///
    /// # Errors
    /// If the kernel refuses. That the entry is gone already, by exec, is none.
    pub fn remove_process(&mut self, pid: Pid) -> Result<(), BpfError> {
        let removed = match self.processes_map.remove(&pid.0) {
            Ok(()) | Err(MapError::KeyNotFound) => Ok(()),
            Err(error) if super::error::source_errno(&error) == Some(libc::ENOENT) => Ok(()),
            Err(error) => Err(process_error(error)),
        };
        if let Some(key) = self.processes.remove(&pid) {
            self.layouts.release(key, monotonic_now());
        }
        removed
    }

    /// What the tables hold.
    #[must_use]
    pub fn sizes(&self) -> TableSizes {
        let (pages, layouts) = self.layouts.sizes();
        TableSizes {
            tables: self.tables.len(),
            rows: self.tables.values().map(|table| table.rows).sum(),
            chunks: self.rows.used(),
            slabs: self.rows.chunks.slabs() + self.layouts.pages.slabs(),
            slab_bytes: self.rows.chunks.bytes() + self.layouts.pages.bytes(),
            rules: self.rules.len(),
            processes: self.processes.len(),
            layouts,
            pages,
        }
    }

    /// What the programs see of a process.
    #[cfg(test)]
    pub(super) fn entry(&self, pid: Pid) -> Option<ProcessEntry> {
        self.processes_map.get(&pid.0, 0).ok()
    }

    /// Processes that the programs see.
    #[cfg(test)]
    pub(super) fn entries(&self) -> usize {
        self.processes_map.keys().filter(Result::is_ok).count()
    }

    fn intern(&mut self, rules: &[UnwindRule], now: MonotonicNs) -> Result<Vec<u16>, BpfError> {
        let mut numbers = Vec::with_capacity(rules.len());
        for rule in rules {
            match self.intern_one(*rule, now) {
                Ok(number) => numbers.push(number),
                Err(error) => {
                    self.release_rules(&numbers, now);
                    return Err(error);
                }
            }
        }
        Ok(numbers)
    }

    fn intern_one(&mut self, rule: UnwindRule, now: MonotonicNs) -> Result<u16, BpfError> {
        let full = BpfError::Full { what: "unwind rules", limit: RULES_MAX };
        let interned = self.rules.intern(rule, now).ok_or(full)?;
        if interned.new
            && let Err(error) = self.rules_map.set(u32::from(interned.number), rule, 0)
        {
            self.rules.release(interned.number, now);
            return Err(BpfError::Map { map: "RULES", source: error });
        }
        Ok(interned.number)
    }

    fn release_rules(&mut self, numbers: &[u16], now: MonotonicNs) {
        for number in numbers {
            self.rules.release(*number, now);
        }
    }

    fn write_layout(
        &mut self,
        key: LayoutKey,
        mappings: &[WalkMapping],
        now: MonotonicNs,
    ) -> Result<Range<usize>, BpfError> {
        let mut pages = Vec::new();
        let mut tables = Vec::new();
        for part in mappings.chunks(MAPPINGS_PER_PAGE) {
            pages.push(self.page(part, &mut tables, now)?);
        }
        if pages.is_empty() {
            pages.push(MappingPage::EMPTY); // a process that has nothing executable is known all the same
        }
        tables.sort_unstable();
        tables.dedup();
        let run = self.layouts.write(key, &pages, tables.clone())?;
        for id in tables {
            if let Some(table) = self.tables.get_mut(&id) {
                table.layouts += 1;
            }
        }
        Ok(run)
    }

    fn page(
        &mut self,
        mappings: &[WalkMapping],
        tables: &mut Vec<TableId>,
        now: MonotonicNs,
    ) -> Result<MappingPage, BpfError> {
        let mut page = MappingPage::EMPTY;
        for (slot, mapping) in mappings.iter().enumerate() {
            page.starts[slot] = mapping.start.0;
            page.ends[slot] = mapping.end.0;
            let (target, base) = match mapping.unwind {
                MappingUnwind::Pending => (MappingTarget::PENDING, 0),
                // A rule of a mapping keeps its number forever: there are a handful of them.
                MappingUnwind::Rule(rule) => (MappingTarget::rule(self.whole_rule(rule, now)?), 0),
                MappingUnwind::Table(id) => {
                    let table = self.tables.get(&id).filter(|table| !table.removed);
                    let table = table.ok_or(BpfError::NoTable(id))?;
                    tables.push(id);
                    let first = u16::try_from(table.chunks.start).expect("below 8,192");
                    let chunks = u16::try_from(table.chunks.len()).expect("below 4,096");
                    (MappingTarget::table(first, chunks), table.base)
                }
            };
            page.targets[slot] = target.0;
            page.biases[slot] = mapping.bias.wrapping_add(base);
        }
        Ok(page)
    }

    fn whole_rule(&mut self, rule: UnwindRule, now: MonotonicNs) -> Result<u16, BpfError> {
        if let Some(number) = self.rules.kept(&rule) {
            return Ok(number);
        }
        check_rule(&rule)?;
        let number = self.intern_one(rule, now)?;
        self.rules.keep(rule, number);
        Ok(number)
    }

    fn drop_if_unused(&mut self, id: TableId, now: MonotonicNs) {
        let unused = |table: &Table| table.removed && table.layouts == 0;
        if self.tables.get(&id).is_some_and(unused)
            && let Some(table) = self.tables.remove(&id)
        {
            self.rows.give_back(table.chunks);
            self.release_rules(&table.rules, now);
        }
    }
}

impl std::fmt::Debug for Tables {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tables").field("sizes", &self.sizes()).finish_non_exhaustive()
    }
}

/// Chunks that these bytes make, within what the maps can hold.
#[must_use]
pub fn chunks_in(bytes: u64) -> usize {
    let chunks = bytes / size_of::<Chunk>() as u64;
    usize::try_from(chunks).unwrap_or(usize::MAX).min(CHUNKS_MAX)
}

/// Chunks that a table takes: the unit in which memory is given out, however few rows fill it.
#[must_use]
pub fn chunks_of(table: &RowTable) -> usize {
    (table.len() + usize::from(needs_lead(table))).div_ceil(CHUNK_ROWS)
}

/// An address before the first row must not find that row.
fn needs_lead(table: &RowTable) -> bool {
    table.rows().next().is_some_and(|(first, _)| first != 0)
}

fn process_error(error: MapError) -> BpfError {
    if super::error::source_errno(&error) == Some(libc::E2BIG) {
        return BpfError::Full { what: "processes with mappings", limit: PROCESSES_MAX };
    }
    BpfError::Map { map: "PROCESSES", source: error }
}

/// A table that the walker can search: what it finds in memory it does not check again. That rows are in
/// order and have a rule, the type says.
fn check(table: &RowTable) -> Result<(), BpfError> {
    let malformed = |reason| Err(BpfError::Table { reason });
    if table.is_empty() {
        return malformed("no rows");
    }
    if table.len() + 1 > CHUNKS_PER_TABLE_MAX * CHUNK_ROWS {
        return malformed("more rows than a table may have");
    }
    table.rules().iter().try_for_each(check_rule)
}

fn check_rule(rule: &UnwindRule) -> Result<(), BpfError> {
    if rule.kind > RuleKind::LAST as u8 {
        return Err(BpfError::Table { reason: "a rule of an unknown kind" });
    }
    let names_register = [RuleKind::ReturnRegister, RuleKind::LeafRegister].map(|kind| kind as u8);
    let known = usize::try_from(rule.addend).is_ok_and(|number| number < REGISTERS);
    if names_register.contains(&rule.kind) && !known {
        return Err(BpfError::Table { reason: "a rule with an unknown register" });
    }
    Ok(())
}
