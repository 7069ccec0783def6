//! Which unwind tables are in kernel memory. Memory is counted in chunks, which is what it is made of; when
//! it runs out, the table that no sample met for longest makes room, even if processes map its file: the
//! next sample that meets it brings it back. Equal tables, of copies of one file, are one.

use super::{Publisher, WalkTableError, WalkTables, count};
use crate::address::FileId;
use crate::bpf::{TableId, chunks_of};
use crate::clock::{MonotonicNs, monotonic_now};
use crate::elf::ForeignFileError;
use crate::limits::{
    TABLE_KEEP_NS, TABLE_NO_ROOM_NS, TABLE_PARKED_ATTEMPTS_MAX, TABLE_PARKED_NS,
    TABLES_PARKED_ROWS_MAX, UNWIND_TABLE_SHARE_DIVISOR, UNWIND_TABLE_SPARE_DIVISOR, WAIT_SLOW_NS,
};
use crate::normalize::MappedFile;
use crate::process::compile::{CompileTimes, Compiled, RowDigest, Unwound};
use crate::process::table::ProcessTable;
use crate::unwind::{RowLosses, RowTable};
use hashbrown::{HashMap, HashSet};
use std::collections::VecDeque;
use std::sync::{Arc, Weak};

/// What is known of the table of one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// It is being made, or waits for memory that was just given back.
    Pending,
    /// It is loaded.
    Loaded(TableId),
    /// It was loaded and made room for others.
    Removed,
    /// The file has no rows to give.
    Failed,
    /// The file could not be opened; asked for again with the next process that maps it.
    Unreadable,
    /// It did not fit; asked for again after a while.
    NoRoom { again_at: MonotonicNs },
}

#[derive(Debug)]
struct FileTable {
    /// Whose rows these are; nobody maps it any more when it is gone.
    file: Weak<MappedFile>,
    state: State,
    /// When a sample met it last, or a program that maps it began.
    used: MonotonicNs,
    /// It was removed once, so nobody is noted who waits for it: all who map it do.
    returning: bool,
}

impl FileTable {
    /// The file store holds one reference; everything else is a process or a window.
    fn is_mapped(&self) -> bool {
        self.file.strong_count() > 1
    }
}

/// A table in kernel memory.
#[derive(Debug)]
struct LoadedTable {
    digest: RowDigest,
    rows: usize,
    chunks: usize,
    /// Files whose rows these are; never empty.
    files: Vec<FileId>,
}

/// A table that waits until what was removed for it can be used again.
#[derive(Debug)]
struct Parked {
    file: FileId,
    unwound: Arc<Unwound>,
    chunks: usize,
    until: MonotonicNs,
    attempts: u32,
}

/// The tables and their memory.
#[derive(Debug)]
pub(super) struct Budget {
    files: HashMap<FileId, FileTable>,
    loaded: HashMap<TableId, LoadedTable>,
    by_digest: HashMap<RowDigest, TableId>,
    parked: VecDeque<Parked>,
    /// Chunks of loaded and parked tables.
    chunks: usize,
    pub(super) chunks_max: usize,
}

impl Budget {
    pub(super) fn new(chunks_max: usize) -> Self {
        Self {
            files: HashMap::new(),
            loaded: HashMap::new(),
            by_digest: HashMap::new(),
            parked: VecDeque::new(),
            chunks: 0,
            chunks_max,
        }
    }

    pub(super) fn tables(&self) -> usize {
        self.loaded.len()
    }

    pub(super) fn rows(&self) -> usize {
        self.loaded.values().map(|table| table.rows).sum()
    }

    pub(super) fn pending(&self) -> usize {
        self.files.values().filter(|table| table.state == State::Pending).count()
    }

    pub(super) fn shared(&self) -> usize {
        self.loaded.values().map(|table| table.files.len() - 1).sum()
    }

    pub(super) fn has_parked(&self) -> bool {
        !self.parked.is_empty()
    }

    /// Takes out the table of a file that is parked, if there is one.
    fn unpark(&mut self, file: FileId) -> Option<Parked> {
        let at = self.parked.iter().position(|parked| parked.file == file)?;
        let parked = self.parked.remove(at)?;
        self.chunks -= parked.chunks;
        Some(parked)
    }

    /// Keeps a table among those that wait.
    fn wait(&mut self, parked: Parked) {
        self.chunks += parked.chunks;
        self.parked.push_back(parked);
    }

    pub(super) fn state(&self, file: FileId) -> Option<State> {
        self.files.get(&file).map(|table| table.state)
    }

    /// The file, while somebody maps it.
    pub(super) fn mapped(&self, file: FileId) -> Option<Arc<MappedFile>> {
        self.files.get(&file)?.file.upgrade()
    }

    /// Its path, for the log; empty if nobody maps it any more.
    pub(super) fn path(&self, file: FileId) -> String {
        self.mapped(file).map(|file| file.path.clone()).unwrap_or_default()
    }

    /// As if nobody had used any table for long.
    #[cfg(test)]
    pub(super) fn forget_use(&mut self) {
        for table in self.files.values_mut() {
            table.used = MonotonicNs(0);
        }
    }

    pub(super) fn used(&mut self, file: FileId, time: MonotonicNs) {
        if let Some(table) = self.files.get_mut(&file) {
            table.used = table.used.max(time);
        }
    }

    /// The table of a file is being made.
    pub(super) fn asked(&mut self, file: &Arc<MappedFile>, now: MonotonicNs) {
        let (id, file) = (file.id, Arc::downgrade(file));
        let table = FileTable { file, state: State::Pending, used: now, returning: false };
        self.files.insert(id, table);
    }

    /// True if a table is not there and may be made again.
    pub(super) fn wants_again(&self, file: FileId, now: MonotonicNs) -> bool {
        match self.state(file) {
            Some(State::Removed) => true,
            Some(State::NoRoom { again_at }) => again_at <= now,
            _ => false,
        }
    }

    /// It is being made again. True if it had been loaded before.
    pub(super) fn asked_again(&mut self, file: FileId) -> bool {
        let Some(table) = self.files.get_mut(&file) else { return false };
        table.returning = true;
        table.used = monotonic_now();
        std::mem::replace(&mut table.state, State::Pending) == State::Removed
    }

    /// Forgets files that are gone, and their tables. Answers which files may be asked for again.
    pub(super) fn tidy(&mut self, now: MonotonicNs, kernel: &mut dyn WalkTables) -> Vec<FileId> {
        let room = self.chunks < self.chunks_max / 8 * 7;
        let (mut gone, mut again) = (Vec::new(), Vec::new());
        self.files.retain(|file, table| {
            let mapped = table.file.strong_count() > 0;
            match table.state {
                State::Pending => true,
                State::Unreadable => false,
                State::Failed | State::Removed => mapped,
                State::NoRoom { again_at } if mapped && room && again_at <= now => {
                    again.push(*file);
                    false
                }
                State::NoRoom { .. } => mapped,
                State::Loaded(id) => {
                    if !mapped {
                        gone.push((id, *file));
                    }
                    mapped
                }
            }
        });
        for (id, file) in gone {
            self.leave(id, file, kernel);
        }
        again
    }

    /// The rows of a file are not this table any more.
    fn leave(&mut self, id: TableId, file: FileId, kernel: &mut dyn WalkTables) {
        let Some(table) = self.loaded.get_mut(&id) else { return };
        if let Some(at) = table.files.iter().position(|known| *known == file) {
            table.files.swap_remove(at);
        }
        if table.files.is_empty() {
            self.unload(id, kernel);
        }
    }

    fn has_room(&self, chunks: usize) -> bool {
        self.chunks.saturating_add(chunks) <= self.chunks_max
    }

    /// Takes a table out of kernel memory.
    fn unload(&mut self, id: TableId, kernel: &mut dyn WalkTables) -> Vec<FileId> {
        let Some(table) = self.loaded.remove(&id) else { return Vec::new() };
        self.by_digest.remove(&table.digest);
        self.chunks -= table.chunks;
        kernel.remove(id);
        table.files
    }

    /// The tables that may be removed now, in the order in which they are to be: what nobody maps, then
    /// what was not used for longest.
    fn removable(&self, now: MonotonicNs) -> Vec<TableId> {
        let mut removable = Vec::with_capacity(self.loaded.len());
        for (id, table) in &self.loaded {
            let files = table.files.iter().filter_map(|file| self.files.get(file));
            let (mapped, used) = files.fold((false, MonotonicNs(0)), |(mapped, used), file| {
                (mapped || file.is_mapped(), used.max(file.used))
            });
            if !mapped || now.since(used) >= TABLE_KEEP_NS {
                removable.push((mapped, used, *id));
            }
        }
        removable.sort_unstable();
        removable.into_iter().map(|(_, _, id)| id).collect()
    }

    /// The tables that are not `removable` and larger than `above`, by some size: the largest first.
    fn largest(
        &self,
        removable: &[TableId],
        above: usize,
        size: impl Fn(&LoadedTable, TableId) -> usize,
    ) -> Vec<TableId> {
        let removable: HashSet<&TableId> = removable.iter().collect();
        let in_use = self.loaded.iter().filter(|(id, _)| !removable.contains(id));
        let sized = in_use.map(|(id, table)| (size(table, *id), *id));
        let mut found: Vec<(usize, TableId)> = sized.filter(|(size, _)| *size > above).collect();
        found.sort_unstable_by(|a, b| b.cmp(a));
        found.into_iter().map(|(_, id)| id).collect()
    }
}

impl Publisher {
    /// Takes what a compiler made of a file, or why it made nothing.
    pub(super) fn load(
        &mut self,
        compiled: Compiled,
        processes: &mut ProcessTable,
        kernel: &mut dyn WalkTables,
    ) {
        let Compiled { file, unwound, times, whole } = compiled;
        let taken = monotonic_now();
        if let Ok(unwound) = &unwound
            && whole
        {
            let RowLosses { damaged, left_out, rules_refused, out_of_time } = unwound.rows.losses();
            self.counts.entries_damaged += damaged;
            self.counts.functions_left_out += left_out;
            self.counts.rules_refused += rules_refused;
            self.counts.out_of_time += out_of_time;
        }
        if let Some(State::Loaded(first)) = self.budget.state(file) {
            if let (Ok(unwound), true) = (unwound, whole) {
                self.complete(file, first, &unwound, processes, kernel);
            }
            return;
        }
        // What came first may wait for memory still: the whole table takes its place, if there is room for that.
        let first = self.budget.unpark(file);
        let state = match unwound {
            Ok(unwound) if unwound.rows.is_empty() => State::Failed,
            Ok(unwound) => {
                let chunks = chunks_of(&unwound.rows);
                let until = monotonic_now();
                let parked = Parked { file, unwound, chunks, until, attempts: 0 };
                self.insert(parked, processes, kernel)
            }
            Err(error) => {
                tracing::debug!(%error, file = file.0, "file without unwind table");
                match error {
                    ForeignFileError::Io(_) => State::Unreadable,
                    _ => State::Failed,
                }
            }
        };
        let state = match (first, state) {
            (Some(first), State::Failed | State::Unreadable | State::NoRoom { .. }) => {
                self.budget.wait(first);
                State::Pending
            }
            (_, state) => state,
        };
        self.counts.failed += u64::from(matches!(state, State::Failed | State::Unreadable));
        self.tell_slow(file, times, taken);
        self.arrived(file, state, processes);
    }

    /// The whole table of a file takes the place of the one that came first. If there is no room, that one stays.
    fn complete(
        &mut self,
        file: FileId,
        first: TableId,
        unwound: &Unwound,
        processes: &mut ProcessTable,
        kernel: &mut dyn WalkTables,
    ) {
        let chunks = chunks_of(&unwound.rows);
        match self.find_or_add(file, unwound, (chunks, 0), processes, kernel) {
            Ok(id) => {
                self.counts.completed += 1;
                self.budget.leave(first, file, kernel);
                self.arrived(file, State::Loaded(id), processes);
                processes.mark_dirty_by_file(&[file]);
            }
            Err(error) => {
                tracing::debug!(%error, path = self.budget.path(file), "some rows found no room");
                self.counts.no_room += 1;
            }
        }
    }

    /// Says where the time went, of a table that took longer than anybody should wait for it.
    fn tell_slow(&self, file: FileId, times: CompileTimes, taken: MonotonicNs) {
        let CompileTimes { asked, begun, made } = times;
        let now = monotonic_now();
        if now.since(asked) < WAIT_SLOW_NS {
            return;
        }
        let ms = |from: MonotonicNs, to: MonotonicNs| to.since(from) / 1_000_000;
        tracing::debug!(
            path = self.budget.path(file),
            queued_ms = ms(asked, begun),
            compiled_ms = ms(begun, made),
            ready_ms = ms(made, taken),
            loaded_ms = ms(taken, now),
            "an unwind table came late"
        );
    }

    /// Loads tables whose wait for memory is over.
    pub(super) fn load_parked(
        &mut self,
        now: MonotonicNs,
        processes: &mut ProcessTable,
        kernel: &mut dyn WalkTables,
    ) {
        // Each is looked at once: what does not fit again goes behind the others.
        for _ in 0..self.budget.parked.len() {
            let Some(parked) = self.budget.parked.pop_front() else { break };
            if parked.until > now {
                self.budget.parked.push_back(parked);
                continue;
            }
            self.budget.chunks -= parked.chunks;
            let file = parked.file;
            let state = self.insert(parked, processes, kernel);
            self.arrived(file, state, processes);
        }
    }

    /// The table of a file is in this state now: who waits for it is published again.
    fn arrived(&mut self, file: FileId, state: State, processes: &mut ProcessTable) {
        let Some(table) = self.budget.files.get_mut(&file) else {
            drop(self.waiting.end(file));
            return;
        };
        table.state = state;
        if state == State::Pending {
            return;
        }
        let returning = std::mem::take(&mut table.returning);
        let pids = self.waiting.end(file);
        let pids: Vec<_> = pids.into_iter().collect();
        if let State::Loaded(id) = state
            && let Some(table) = self.budget.loaded.get(&id)
        {
            self.waits.loaded(table.rows, &pids);
        }
        for pid in pids {
            processes.mark_dirty(pid);
        }
        if returning {
            processes.mark_dirty_by_file(&[file]);
        }
    }

    fn insert(
        &mut self,
        table: Parked,
        processes: &mut ProcessTable,
        kernel: &mut dyn WalkTables,
    ) -> State {
        let file = table.file;
        if !self.budget.files.contains_key(&file) {
            return State::Removed; // forgotten meanwhile
        }
        let now = monotonic_now();
        // Free chunks may be in pieces: with each attempt more are to be free.
        let more = self.budget.chunks_max / 8 * usize::try_from(table.attempts).unwrap_or(1);
        let unwound = Arc::clone(&table.unwound);
        match self.find_or_add(file, &unwound, (table.chunks, more), processes, kernel) {
            Ok(id) => State::Loaded(id),
            Err(WalkTableError::Full(what)) if self.budget.has_room(table.chunks) => {
                tracing::debug!(what, file = file.0, "unwind table waits for memory");
                self.park(table, now)
            }
            Err(WalkTableError::Full(_)) => self.no_room(now),
            Err(WalkTableError::Refused(what)) => {
                tracing::warn!(what, file = file.0, "unwind table not loaded");
                State::Failed
            }
        }
    }

    /// The table that has these rows: one that is loaded, or a new one. So many chunks, and `more` of them, are to be
    /// free.
    fn find_or_add(
        &mut self,
        file: FileId,
        unwound: &Unwound,
        (chunks, more): (usize, usize),
        processes: &mut ProcessTable,
        kernel: &mut dyn WalkTables,
    ) -> Result<TableId, WalkTableError> {
        if let Some(&id) = self.budget.by_digest.get(&unwound.digest)
            && let Some(loaded) = self.budget.loaded.get_mut(&id)
        {
            loaded.files.push(file);
            return Ok(id);
        }
        let now = monotonic_now();
        self.make_room(chunks.saturating_add(more), now, processes, kernel);
        if !self.budget.has_room(chunks) {
            return Err(WalkTableError::Full("chunks of the budget".to_owned()));
        }
        // Once: numbers of rules that were given back are used again only after a delay.
        if more == 0 {
            self.make_room_for_rules(&unwound.rows, now, processes, kernel);
        }
        let id = kernel.insert(&unwound.rows)?;
        let (digest, rows) = (unwound.digest, unwound.rows.len());
        self.budget.chunks += chunks;
        self.budget.by_digest.insert(digest, id);
        self.budget.loaded.insert(id, LoadedTable { digest, rows, chunks, files: vec![file] });
        Ok(id)
    }

    fn no_room(&mut self, now: MonotonicNs) -> State {
        self.counts.no_room += 1;
        State::NoRoom { again_at: now.plus(TABLE_NO_ROOM_NS) }
    }

    /// Keeps a table until removed memory can be used again.
    fn park(&mut self, table: Parked, now: MonotonicNs) -> State {
        let rows: usize = self.budget.parked.iter().map(|parked| parked.unwound.rows.len()).sum();
        let attempts = table.attempts + 1;
        if attempts > TABLE_PARKED_ATTEMPTS_MAX
            || rows.saturating_add(table.unwound.rows.len()) > TABLES_PARKED_ROWS_MAX
        {
            return self.no_room(now);
        }
        let until = now.plus(TABLE_PARKED_NS);
        self.budget.wait(Parked { until, attempts, ..table });
        State::Pending
    }

    /// Removes tables until `chunks` fit, and somewhat more, so that the next one finds room that can be
    /// used at once.
    fn make_room(
        &mut self,
        chunks: usize,
        now: MonotonicNs,
        processes: &mut ProcessTable,
        kernel: &mut dyn WalkTables,
    ) {
        let max = self.budget.chunks_max;
        let spare = max / UNWIND_TABLE_SPARE_DIVISOR;
        if self.budget.chunks.saturating_add(chunks).saturating_add(spare / 2) <= max {
            return;
        }
        let removable = self.budget.removable(now);
        // However much it is used, no table has more than its share while a smaller one finds no room.
        let share = chunks.max(max / UNWIND_TABLE_SHARE_DIVISOR);
        let greedy = self.budget.largest(&removable, share, |table, _| table.chunks);
        let mut removed = Vec::new();
        for (number, id) in removable.iter().chain(&greedy).enumerate() {
            let spare = if number < removable.len() { spare } else { 0 };
            if self.budget.chunks.saturating_add(chunks).saturating_add(spare) <= max {
                break;
            }
            removed.extend(self.evict(*id, kernel));
        }
        tracing::debug!(files = count(removed.len()), "unwind tables removed to make room");
        processes.mark_dirty_by_file(&removed);
    }

    /// Removes tables until the rules of another find room: what was not used for long, then, however much it is
    /// used, what has more rules to itself than that one needs.
    fn make_room_for_rules(
        &mut self,
        rows: &RowTable,
        now: MonotonicNs,
        processes: &mut ProcessTable,
        kernel: &mut dyn WalkTables,
    ) {
        let (needed, mut left) = (kernel.new_rules(rows), kernel.rules_left());
        if needed <= left {
            return;
        }
        let removable = self.budget.removable(now);
        let greedy = self.budget.largest(&removable, needed, |_, id| kernel.own_rules(id));
        let mut removed = Vec::new();
        for id in removable.into_iter().chain(greedy) {
            let own = kernel.own_rules(id);
            if needed > left && own > 0 {
                removed.extend(self.evict(id, kernel));
                left = left.saturating_add(own);
            }
        }
        tracing::debug!(files = count(removed.len()), "unwind tables removed for their rules");
        processes.mark_dirty_by_file(&removed);
    }

    /// Removes one table; the files whose it was.
    fn evict(&mut self, id: TableId, kernel: &mut dyn WalkTables) -> Vec<FileId> {
        self.counts.evicted += 1;
        let files = self.budget.unload(id, kernel);
        for file in &files {
            if let Some(table) = self.budget.files.get_mut(file) {
                table.state = State::Removed;
            }
            tracing::debug!(path = self.budget.path(*file), "an unwind table makes room");
        }
        files
    }
}
