//! Keeps the kernel side current: which mappings each process is walked with, and which unwind tables
//! are asked for. What fits into memory is decided in [`budget`].

mod budget;
mod pages;
mod pauses;
mod retry;
mod waiting;
mod waits;

pub use waits::{WAIT_BUCKETS_NS, WaitCounts};

use super::compile::{Asked, CompileCounts, Compilers};
use super::mappings::{Mapping, MappingSet};
use super::table::ProcessTable;
use super::trampolines;
use crate::address::{FileId, Generation, Pid};
use crate::bpf::{MappingUnwind, TableId, WalkMapping, chunks_in};
use crate::clock::{MonotonicNs, monotonic_now, thread_cpu_ns};
use crate::limits::{TABLE_PREPARE_PAUSE_NS, TABLE_PREPARED_CHUNKS};
use crate::normalize::{MappedFile, ProcessKey};
use crate::symbolize::perf_maps::PerfMaps;
use crate::unwind::RowTable;
use agent_ebpf::limits::SLAB_CHUNKS;
use agent_ebpf::{ProcessEntry, RuleKind, UnwindRule};
use budget::{Budget, State};
use pages::Pages;
use pauses::Pauses;
use retry::Retries;
use std::sync::Arc;
use std::time::Duration;
use waiting::Waiting;
use waits::Waits;

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

    /// Publishes the mappings of a process, in place of what was there. Answers how many were left out. No
    /// generation is ever given twice.
    ///
    /// # Errors
    /// See [`WalkTableError`]; what was there stays.
    fn set_process(
        &mut self,
        pid: Pid,
        generation: Generation,
        mappings: &[WalkMapping],
    ) -> Result<usize, WalkTableError>;

    /// The programs gave a forked process its parent's entry. False if it is to be published.
    fn inherit(&mut self, pid: Pid, entry: ProcessEntry) -> bool;

    /// Every record that was written before `time` was taken in, and [`Self::inherit`] called.
    fn records_known_until(&mut self, time: MonotonicNs);

    /// Forgets a process.
    ///
    /// # Errors
    /// See [`WalkTableError`].
    fn remove_process(&mut self, pid: Pid) -> Result<(), WalkTableError>;

    /// The rule at an ELF address of a table.
    ///
    /// # Errors
    /// See [`WalkTableError`].
    fn rule_at(&self, id: TableId, address: u64) -> Result<UnwindRule, WalkTableError>;

    /// Distinct rules that may be added before there is no room for any other.
    fn rules_left(&self) -> usize;

    /// Rules of a table that no table has which is loaded.
    fn new_rules(&self, rows: &RowTable) -> usize;

    /// Rules that only this table has.
    fn own_rules(&self, id: TableId) -> usize;

    /// Makes memory for a table of so many chunks that may come, if there is little: that takes longer than to load
    /// one, and nobody waits now. False if the kernel gives none.
    fn prepare(&mut self, _chunks: usize) -> bool {
        true
    }

    /// Kernel memory that grows with what is loaded, bytes.
    fn bytes(&self) -> u64;
}

/// What happened so far, for the metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PublishCounts {
    /// Tables loaded now; copies of one file share theirs.
    pub tables: u64,
    /// Rows loaded now.
    pub rows: u64,
    /// Files whose table is being made, or waits for memory.
    pub pending: u64,
    /// Files that are being compiled.
    pub compiles: CompileCounts,
    /// Files that have a table that another file brought: copies of it.
    pub shared: u64,
    /// Tables whose rows came in two parts.
    pub completed: u64,
    /// Files without a table: nothing in them can be understood.
    pub failed: u64,
    /// Entries of call frame information, and functions of Go's tables, that could not be read.
    pub entries_damaged: u64,
    /// Functions, or sections of them, that a limit for one file left out of its table.
    pub functions_left_out: u64,
    /// Rows without their rule, because a file has more distinct ones than it may.
    pub rules_refused: u64,
    /// Files whose table took more CPU time than one may, and is not whole.
    pub out_of_time: u64,
    /// Times that a table did not fit, although everything that was not in use was removed.
    pub no_room: u64,
    /// Tables removed to make room.
    pub evicted: u64,
    /// Files whose table was removed and asked for again, because a sample or a process needed it.
    pub returned: u64,
    /// Generations published.
    pub generations: u64,
    /// Mappings that the kernel side left out.
    pub mappings_left_out: u64,
    /// Times that the kernel side did not take a process.
    pub processes_refused: u64,
    /// Processes that wait now to be offered again.
    pub processes_waiting: u64,
    /// Processes that are walked now by a part of their mappings, because others need room too.
    pub processes_cut: u64,
    /// Times that a process was published later, because it took long the last time.
    pub publications_put_off: u64,
    /// From the first sample or note that met a process or mapping without tables to their publication.
    pub waits: WaitCounts,
    /// The same where a table of at least half a million rows was waited for.
    pub waits_large: WaitCounts,
}

/// The state of the kernel side.
#[derive(Debug)]
pub struct Publisher {
    compilers: Compilers,
    perf_maps: Option<Arc<PerfMaps>>,
    budget: Budget,
    /// Who waits for a table that is being made.
    waiting: Waiting,
    retries: Retries,
    pauses: Pauses,
    pages: Pages,
    waits: Waits,
    generation: u32,
    /// A large table was asked for, since memory was prepared last.
    large_asked: bool,
    /// Memory is not prepared before.
    prepare_at: MonotonicNs,
    counts: PublishCounts,
}

impl Publisher {
    /// Nothing is loaded yet; tables take at most `bytes_max` of kernel memory.
    #[must_use]
    pub fn new(compilers: Compilers, bytes_max: u64, perf_maps: Option<Arc<PerfMaps>>) -> Self {
        Self {
            perf_maps,
            compilers,
            budget: Budget::new(chunks_in(bytes_max)),
            waiting: Waiting::default(),
            retries: Retries::default(),
            pauses: Pauses::default(),
            pages: Pages::default(),
            waits: Waits::default(),
            generation: 0,
            large_asked: false,
            prepare_at: MonotonicNs(0),
            counts: PublishCounts::default(),
        }
    }

    /// What happened so far.
    #[must_use]
    pub fn counts(&self) -> PublishCounts {
        let (waits, waits_large) = self.waits.counts();
        PublishCounts {
            tables: count(self.budget.tables()),
            pending: count(self.budget.pending()),
            compiles: self.compilers.counts(),
            shared: count(self.budget.shared()),
            rows: count(self.budget.rows()),
            processes_waiting: count(self.retries.len()),
            processes_cut: count(self.pages.cut_processes()),
            waits,
            waits_large,
            ..self.counts
        }
    }

    /// Tables that are being made and come soon.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.compilers.outstanding()
    }

    /// True if something comes soon that should not wait for the next ordinary poll.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.outstanding() > 0 || self.budget.has_parked()
    }

    /// Asks for the tables of a file that is going to be mapped.
    pub fn preload(&mut self, file: &Arc<MappedFile>) {
        self.unwind_by(file, None, true);
    }

    /// A sample was walked through this file at `time`: its table is in use.
    pub fn used(&mut self, file: FileId, time: MonotonicNs) {
        self.budget.used(file, time);
    }

    /// The sampler met code of this file while its table was not there: it is made again, if it was
    /// removed.
    pub fn wanted(&mut self, file: FileId) {
        if self.budget.wants_again(file, monotonic_now()) {
            self.ask_again(file, true);
        } else if self.budget.state(file) == Some(State::Pending) {
            self.compilers.hurry(&[file]);
        }
    }

    /// The sampler could not walk a stack of this process at `time`, because something is not published:
    /// the wait for it is measured.
    pub fn missed(&mut self, pid: Pid, time: MonotonicNs) {
        if self.waits.begin(pid, time) {
            let files = self.waiting.files(pid);
            if !files.is_empty() {
                self.compilers.hurry(&files);
            }
        }
    }

    /// Publishes everything that changed: processes that ended, tables that are made, processes whose
    /// mappings are new or whose tables came.
    pub fn refresh(&mut self, processes: &mut ProcessTable, kernel: &mut dyn WalkTables) {
        // Before those that ended: a child may be among them.
        for (pid, entry) in processes.take_inherited() {
            if !kernel.inherit(pid, entry) {
                processes.mark_dirty(pid);
            }
        }
        self.forget_ended(processes, kernel);
        let now = monotonic_now();
        for pid in processes.take_replaced() {
            self.waits.forget(pid, now);
            self.pauses.forget(pid);
        }
        while let Some(compiled) = self.compilers.take() {
            self.load(compiled, processes, kernel);
        }
        let now = monotonic_now();
        self.load_parked(now, processes, kernel);
        let due = [self.retries.due(now), self.pauses.due(now), self.pages.relaxed(now)];
        for pid in due.into_iter().flatten() {
            processes.mark_dirty(pid);
        }
        for pid in processes.take_dirty() {
            if self.pauses.puts_off(pid, now) {
                self.counts.publications_put_off += 1;
            } else {
                self.publish(pid, processes, kernel);
            }
        }
        self.prepare(now, kernel);
    }

    /// Has memory made for tables that may come.
    fn prepare(&mut self, now: MonotonicNs, kernel: &mut dyn WalkTables) {
        // Who waits for a large table waits for longer than this takes.
        let large = std::mem::take(&mut self.large_asked);
        if now < self.prepare_at || !(large || self.waits.is_empty()) {
            return;
        }
        if !kernel.prepare(if large { SLAB_CHUNKS } else { TABLE_PREPARED_CHUNKS }) {
            self.prepare_at = now.plus(TABLE_PREPARE_PAUSE_NS);
        }
    }

    fn forget_ended(&mut self, processes: &mut ProcessTable, kernel: &mut dyn WalkTables) {
        let now = monotonic_now();
        for pid in processes.take_ended() {
            self.retries.forget(pid);
            self.pauses.forget(pid);
            self.pages.forget(pid);
            self.waits.forget(pid, now);
            // A table may never come, and processes begin and end meanwhile.
            self.waiting.forget(pid);
            if let Err(error) = kernel.remove_process(pid) {
                tracing::debug!(%error, pid = pid.0, "process not removed");
            }
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
            self.unwind_by(file, Some(pid), true);
        }
    }

    fn publish(&mut self, pid: Pid, processes: &mut ProcessTable, kernel: &mut dyn WalkTables) {
        let began_ns = thread_cpu_ns();
        let Some(set) = processes.mappings(pid) else {
            self.retries.forget(pid);
            self.waits.forget(pid, monotonic_now());
            return;
        };
        // A program that begins needs its tables; one that is published again, because some of them were
        // removed, gets them back when a sample meets one.
        let fresh = !processes.is_published(pid);
        let Some(process) = processes.key(pid) else { return };
        let mut walk = self.walk_mappings(&set, process, fresh);
        let cut = self.pages.cut(&mut walk);
        let generation = self.next_generation();
        match kernel.set_process(pid, generation, &walk) {
            Ok(left_out) => {
                self.counts.generations += 1;
                self.counts.mappings_left_out += count(left_out.saturating_add(cut));
                self.retries.forget(pid);
                self.pages.published(pid, walk.len(), cut);
                processes.published(pid, generation);
                let now = monotonic_now();
                self.pauses.published(pid, thread_cpu_ns().saturating_sub(began_ns), now);
                if self.waits.is_waiting(pid) && !self.misses_any(&set) {
                    self.waits.end(pid, now);
                }
            }
            Err(error) => {
                let now = monotonic_now();
                self.counts.processes_refused += 1;
                self.retries.refused(pid, now);
                if matches!(error, WalkTableError::Full(_)) {
                    for pid in self.pages.refused(walk.len(), now) {
                        self.pauses.forget(pid);
                        processes.mark_dirty(pid);
                    }
                }
                tracing::debug!(%error, pid = pid.0, "process not published");
            }
        }
    }

    /// How each mapping of a process is walked now; asks for tables that nobody asked for yet, and, where
    /// a program begins (`fresh`), for those that were removed.
    pub fn walk_mappings(
        &mut self,
        set: &MappingSet,
        process: ProcessKey,
        fresh: bool,
    ) -> Vec<WalkMapping> {
        let pid = process.pid;
        // `[vsyscall]` lies in the kernel's half, where no user stack is walked.
        let user = set.mappings().iter().filter(|mapping| mapping.end.0 <= USER_END);
        let walk: Vec<WalkMapping> =
            user.map(|mapping| self.walk_mapping(mapping, pid, fresh)).collect();
        let trampolines = self.perf_maps.as_ref().and_then(|maps| maps.trampolines(process));
        coalesced(trampolines::apply(walk, trampolines.as_deref().unwrap_or_default()))
    }

    /// True if a table of these mappings is not there, be it that there is no room for it. One that was removed is
    /// missed by nobody: it would have been asked for.
    fn misses_any(&self, set: &MappingSet) -> bool {
        let missed = |state| matches!(state, State::Pending | State::NoRoom { .. });
        set.mappings().iter().any(|mapping| {
            let state = mapping.file.as_ref().and_then(|file| self.budget.state(file.id));
            mapping.awaited || state.is_some_and(missed)
        })
    }

    fn walk_mapping(&mut self, mapping: &Mapping, pid: Pid, fresh: bool) -> WalkMapping {
        let unwind = match (&mapping.file, mapping.bias) {
            _ if mapping.awaited => MappingUnwind::Pending,
            (Some(file), Some(_)) => self.unwind_by(file, Some(pid), fresh),
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

    /// How code of a file is unwound now; asks for its table if nobody has yet, and if it was removed,
    /// where a program begins (`fresh`).
    fn unwind_by(
        &mut self,
        file: &Arc<MappedFile>,
        pid: Option<Pid>,
        fresh: bool,
    ) -> MappingUnwind {
        let no_table = MappingUnwind::Rule(UnwindRule::plain(RuleKind::NoInfo));
        let now = monotonic_now();
        if fresh {
            self.budget.used(file.id, now);
        }
        let urgent = pid.is_some_and(|pid| self.waits.is_waiting(pid));
        let state = match self.budget.state(file.id) {
            Some(_) if fresh && self.budget.wants_again(file.id, now) => {
                self.ask_again(file.id, urgent);
                State::Pending
            }
            Some(state) => state,
            None => {
                let asked = Asked::of(file, urgent);
                if file.facts.is_none() || !self.compilers.ask(asked) {
                    return no_table;
                }
                self.large_asked |= asked.is_large();
                self.budget.asked(file, now);
                State::Pending
            }
        };
        match state {
            State::Loaded(id) => MappingUnwind::Table(id),
            State::Pending => {
                if let Some(pid) = pid {
                    self.waiting.add(file.id, pid);
                }
                MappingUnwind::Pending
            }
            // A sample that meets it says so, and brings it back.
            State::Removed | State::NoRoom { .. } => MappingUnwind::Pending,
            State::Failed | State::Unreadable => no_table,
        }
    }

    fn ask_again(&mut self, file: FileId, urgent: bool) {
        let Some(mapped) = self.budget.mapped(file) else { return };
        if self.compilers.ask(Asked::of(&mapped, urgent)) {
            tracing::debug!(path = mapped.path, "an unwind table is made again");
            self.counts.returned += u64::from(self.budget.asked_again(file));
        }
    }

    /// Forgets what is known of files that are gone. Answers which files may be asked for again, because
    /// there is room now. Cheap enough to be called once per window.
    pub fn tidy(&mut self, kernel: &mut dyn WalkTables) -> Vec<FileId> {
        let now = monotonic_now();
        self.waits.forget_overdue(now);
        self.budget.tidy(now, kernel)
    }

    fn next_generation(&mut self) -> Generation {
        // 0 means none; 2^32 generations are a year at a hundred a second.
        self.generation = self.generation.wrapping_add(1).max(1);
        Generation(self.generation)
    }
}

fn count(length: usize) -> u64 {
    u64::try_from(length).unwrap_or(u64::MAX)
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
mod scene;
#[cfg(test)]
mod tests;
