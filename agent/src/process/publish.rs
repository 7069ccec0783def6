//! Keeps the kernel side current: which unwind tables are loaded, within the budget of rows, and which
//! mappings each process is walked with.

use super::compile::{Compiled, Compilers};
use super::mappings::{Mapping, MappingSet};
use super::table::ProcessTable;
use super::trampolines;
use crate::address::{FileId, Generation, Pid};
use crate::bpf::{MappingUnwind, TableId, WalkMapping};
use crate::elf::ForeignFileError;
use crate::limits::UNWIND_ROWS_MAX;
use crate::normalize::MappedFile;
use crate::symbolize::perf_maps::PerfMaps;
use crate::unwind::RowTable;
use agent_ebpf::{RuleKind, UnwindRule};
use hashbrown::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// First address that no process can map, with five-level paging.
const USER_END: u64 = 1 << 56;

/// Why the kernel side did not take something.
#[derive(Debug, thiserror::Error)]
pub enum WalkTableError {
    /// A limit of the kernel side is reached.
    #[error("no room: {0}")]
    Full(String),
    /// Anything else.
    #[error("{0}")]
    Refused(String),
}

/// What the walker reads, as far as this module writes it.
pub trait WalkTables {
    /// Loads the rows of a file.
    ///
    /// # Errors
    /// See [`WalkTableError`]; nothing is changed then.
    fn insert(&mut self, rows: &RowTable) -> Result<TableId, WalkTableError>;

    /// Removes a table as soon as no process refers to it.
    fn remove(&mut self, id: TableId);

    /// Publishes the mappings of a process, in place of what was there. Answers how many were left out.
    ///
    /// # Errors
    /// See [`WalkTableError`]; what was there stays.
    fn set_process(
        &mut self,
        pid: Pid,
        generation: Generation,
        mappings: &[WalkMapping],
    ) -> Result<usize, WalkTableError>;

    /// Forgets a process.
    ///
    /// # Errors
    /// See [`WalkTableError`].
    fn remove_process(&mut self, pid: Pid) -> Result<(), WalkTableError>;

    /// Kernel memory that grows with what is loaded, bytes.
    fn bytes(&self) -> u64;
}

/// What happened so far, for the metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PublishCounts {
    /// Tables loaded now.
    pub tables: u64,
    /// Rows loaded now.
    pub rows: u64,
    /// Tables that are being made.
    pub pending: u64,
    /// Files without a table: nothing in them can be understood.
    pub failed: u64,
    /// Times that a table did not fit, although all unused ones were removed.
    pub no_room: u64,
    /// Tables removed to make room.
    pub evicted: u64,
    /// Generations published.
    pub generations: u64,
    /// Mappings that the kernel side left out.
    pub mappings_left_out: u64,
    /// Processes that the kernel side did not take.
    pub processes_refused: u64,
}

#[derive(Debug)]
struct Table {
    /// Whose rows these are; nobody maps it any more when it is gone.
    file: Weak<MappedFile>,
    state: State,
    used: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Pending,
    Loaded {
        id: TableId,
        rows: usize,
    },
    /// The file has no rows to give.
    Failed,
    /// The file could not be opened; asked for again with the next process that maps it.
    Unreadable,
    /// It did not fit; asked for again when something was removed.
    NoRoom,
}

/// The state of the kernel side.
#[derive(Debug)]
pub struct Publisher {
    compilers: Compilers,
    perf_maps: Option<Arc<PerfMaps>>,
    tables: HashMap<FileId, Table>,
    rows: usize,
    rows_max: usize,
    /// Who waits for a table that is being made.
    waiting: HashMap<FileId, Vec<Pid>>,
    generation: u32,
    clock: u64,
    counts: PublishCounts,
}

impl Publisher {
    /// Nothing is loaded yet.
    #[must_use]
    pub fn new(compilers: Compilers, perf_maps: Option<Arc<PerfMaps>>) -> Self {
        Self {
            perf_maps,
            compilers,
            tables: HashMap::new(),
            rows: 0,
            rows_max: UNWIND_ROWS_MAX,
            waiting: HashMap::new(),
            generation: 0,
            clock: 0,
            counts: PublishCounts::default(),
        }
    }

    /// What happened so far.
    #[must_use]
    pub fn counts(&self) -> PublishCounts {
        let count = |state: fn(&State) -> bool| {
            let tables = self.tables.values().filter(|table| state(&table.state)).count();
            u64::try_from(tables).unwrap_or(u64::MAX)
        };
        PublishCounts {
            tables: count(|state| matches!(state, State::Loaded { .. })),
            pending: count(|state| *state == State::Pending),
            rows: u64::try_from(self.rows).unwrap_or(u64::MAX),
            ..self.counts
        }
    }

    /// Tables that are being made.
    #[must_use]
    pub const fn outstanding(&self) -> usize {
        self.compilers.outstanding()
    }

    /// Asks for the tables of a file that is going to be mapped.
    pub fn preload(&mut self, file: &Arc<MappedFile>) {
        self.unwind_by(file, None);
    }

    /// Publishes everything that changed: processes that ended, tables that are made, processes whose
    /// mappings are new or whose tables came.
    pub fn refresh(&mut self, processes: &mut ProcessTable, kernel: &mut dyn WalkTables) {
        for pid in processes.take_ended() {
            if let Err(error) = kernel.remove_process(pid) {
                tracing::debug!(%error, pid = pid.0, "process not removed");
            }
        }
        while let Some(compiled) = self.compilers.take() {
            self.load(compiled, processes, kernel);
        }
        for pid in processes.take_dirty() {
            self.publish(pid, processes, kernel);
        }
    }

    /// Waits for one table and loads it. False if none came in time.
    pub fn wait(
        &mut self,
        timeout: Duration,
        processes: &mut ProcessTable,
        kernel: &mut dyn WalkTables,
    ) -> bool {
        let Some(compiled) = self.compilers.wait(timeout) else { return false };
        self.load(compiled, processes, kernel);
        true
    }

    /// Asks for the tables of a process without publishing it yet.
    pub fn ask_for_tables(&mut self, mappings: &MappingSet, pid: Pid) {
        for file in mappings.mappings().iter().filter_map(|mapping| mapping.file.as_ref()) {
            self.unwind_by(file, Some(pid));
        }
    }

    fn publish(&mut self, pid: Pid, processes: &mut ProcessTable, kernel: &mut dyn WalkTables) {
        let Some(set) = processes.mappings(pid) else { return };
        // `[vsyscall]` lies in the kernel's half, where no user stack is walked.
        let user = set.mappings().iter().filter(|mapping| mapping.end.0 <= USER_END);
        let walk: Vec<WalkMapping> = user.map(|mapping| self.walk_mapping(mapping, pid)).collect();
        let trampolines = self.perf_maps.as_ref().and_then(|maps| maps.trampolines(pid));
        let walk = trampolines::apply(walk, trampolines.as_deref().unwrap_or_default());
        let walk = coalesced(walk);
        let generation = self.next_generation();
        match kernel.set_process(pid, generation, &walk) {
            Ok(left_out) => {
                self.counts.generations += 1;
                self.counts.mappings_left_out += u64::try_from(left_out).unwrap_or(u64::MAX);
                processes.published(pid, generation);
            }
            Err(error) => {
                self.counts.processes_refused += 1;
                tracing::debug!(%error, pid = pid.0, "process not published");
            }
        }
    }

    fn walk_mapping(&mut self, mapping: &Mapping, pid: Pid) -> WalkMapping {
        let unwind = match (&mapping.file, mapping.bias) {
            (Some(file), Some(_)) => self.unwind_by(file, Some(pid)),
            // JIT memory, `[vsyscall]`, `[uprobes]`, files that could not be read: frame pointers.
            _ => MappingUnwind::Rule(UnwindRule::plain(RuleKind::NoInfo)),
        };
        WalkMapping {
            start: mapping.start,
            end: mapping.end,
            bias: mapping.bias.unwrap_or(0),
            unwind,
        }
    }

    /// How code of a file is unwound now; asks for its table if nobody has yet.
    fn unwind_by(&mut self, file: &Arc<MappedFile>, pid: Option<Pid>) -> MappingUnwind {
        self.clock += 1;
        let no_table = MappingUnwind::Rule(UnwindRule::plain(RuleKind::NoInfo));
        let state = match self.tables.get_mut(&file.id) {
            Some(table) => {
                table.used = self.clock;
                table.state
            }
            None => {
                if file.facts.is_none() || !self.compilers.ask(file.id) {
                    return no_table;
                }
                let (file_held, state) = (Arc::downgrade(file), State::Pending);
                let table = Table { file: file_held, state, used: self.clock };
                self.tables.insert(file.id, table);
                State::Pending
            }
        };
        match state {
            State::Loaded { id, .. } => MappingUnwind::Table(id),
            State::Pending => {
                if let Some(pid) = pid {
                    let waiting = self.waiting.entry(file.id).or_default();
                    if waiting.last() != Some(&pid) {
                        waiting.push(pid);
                    }
                }
                MappingUnwind::Pending
            }
            State::Failed | State::Unreadable | State::NoRoom => no_table,
        }
    }

    fn load(
        &mut self,
        compiled: Compiled,
        processes: &mut ProcessTable,
        kernel: &mut dyn WalkTables,
    ) {
        let Compiled { file, rows } = compiled;
        let state = match rows {
            Ok(rows) if rows.pcs.is_empty() => State::Failed,
            Ok(rows) => self.insert(&rows, kernel),
            Err(error) => {
                tracing::debug!(%error, file = file.0, "file without unwind table");
                match error {
                    ForeignFileError::Io(_) => State::Unreadable,
                    _ => State::Failed,
                }
            }
        };
        self.counts.failed += u64::from(matches!(state, State::Failed | State::Unreadable));
        if let Some(table) = self.tables.get_mut(&file) {
            table.state = state;
        } else if let State::Loaded { id, .. } = state {
            kernel.remove(id);
        }
        for pid in self.waiting.remove(&file).unwrap_or_default() {
            processes.mark_dirty(pid);
        }
    }

    fn insert(&mut self, rows: &RowTable, kernel: &mut dyn WalkTables) -> State {
        let count = rows.pcs.len();
        self.make_room(count, kernel);
        if self.rows.saturating_add(count) > self.rows_max {
            self.counts.no_room += 1;
            return State::NoRoom;
        }
        let mut inserted = kernel.insert(rows);
        if matches!(inserted, Err(WalkTableError::Full(_))) {
            // Fragments: give back more than what is needed, once.
            self.make_room(self.rows_max / 8, kernel);
            inserted = kernel.insert(rows);
        }
        match inserted {
            Ok(id) => {
                self.rows += count;
                State::Loaded { id, rows: count }
            }
            Err(WalkTableError::Full(what)) => {
                tracing::debug!(what, "unwind table not loaded");
                self.counts.no_room += 1;
                State::NoRoom
            }
            Err(WalkTableError::Refused(what)) => {
                tracing::warn!(what, "unwind table not loaded");
                State::Failed
            }
        }
    }

    /// Removes tables of files that nobody maps, least recently used first, until `rows` fit.
    fn make_room(&mut self, rows: usize, kernel: &mut dyn WalkTables) {
        if self.rows.saturating_add(rows) <= self.rows_max {
            return;
        }
        // The file store holds one reference; everything else is a process or a window.
        let unused = |table: &Table| table.file.strong_count() <= 1;
        let mut removable: Vec<(u64, FileId)> = self
            .tables
            .iter()
            .filter(|(_, table)| matches!(table.state, State::Loaded { .. }) && unused(table))
            .map(|(id, table)| (table.used, *id))
            .collect();
        removable.sort_unstable();
        for (_, file) in removable {
            if self.rows.saturating_add(rows) <= self.rows_max {
                break;
            }
            if let Some(Table { state: State::Loaded { id, rows }, .. }) = self.tables.remove(&file)
            {
                kernel.remove(id);
                self.rows = self.rows.saturating_sub(rows);
                self.counts.evicted += 1;
            }
        }
    }

    /// Forgets what is known of files that are gone. Answers which files may be asked for again, because
    /// there is room now. Cheap enough to be called once per window.
    pub fn tidy(&mut self, kernel: &mut dyn WalkTables) -> Vec<FileId> {
        let room = self.rows < self.rows_max / 8 * 7;
        let (mut freed, mut again) = (0, Vec::new());
        self.tables.retain(|file, table| {
            let mapped = table.file.strong_count() > 0;
            match table.state {
                State::Pending => true,
                State::Unreadable => false,
                State::Failed => mapped,
                State::NoRoom if mapped && room => {
                    again.push(*file);
                    false
                }
                State::NoRoom => mapped,
                State::Loaded { id, rows } => {
                    if !mapped {
                        kernel.remove(id);
                        freed += rows;
                    }
                    mapped
                }
            }
        });
        self.rows = self.rows.saturating_sub(freed);
        again
    }

    fn next_generation(&mut self) -> Generation {
        // 0 means none; 2^32 generations are a year at a hundred a second.
        self.generation = self.generation.wrapping_add(1).max(1);
        Generation(self.generation)
    }
}

/// Adjacent mappings that are walked in the same way become one.
fn coalesced(mappings: Vec<WalkMapping>) -> Vec<WalkMapping> {
    let mut kept: Vec<WalkMapping> = Vec::with_capacity(mappings.len());
    for mapping in mappings {
        match kept.last_mut() {
            Some(last)
                if last.end == mapping.start
                    && last.bias == mapping.bias
                    && last.unwind == mapping.unwind =>
            {
                last.end = mapping.end;
            }
            _ => kept.push(mapping),
        }
    }
    kept
}

#[cfg(test)]
mod tests;
