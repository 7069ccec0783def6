//! Threads that compile unwind tables, so that the ring buffer is drained meanwhile. What a sample waits for
//! comes first, and small files go before large ones, which never hold all threads.
//! A thread that a dead mount holds for good is replaced, and nobody ever waits for it. What belongs to another than
//! root gets no more than its share of CPU time and of the threads.

mod priority;
mod spending;

use super::table_cache::Keeper;
use crate::address::FileId;
use crate::clock::{MonotonicNs, monotonic_now, thread_cpu_ns};
use crate::elf::{ForeignFileError, ForeignFiles, UnwindDigest};
use crate::engine::OpenFiles;
use crate::limits::{
    FILES_MAX, TABLE_CODE_NS_PER_BYTE, TABLE_LARGE_CODE_BYTES, TABLE_STUCK_NS, TABLE_USERS_WAIT_NS,
    TABLE_WORKERS, TABLE_WORKERS_LARGE, TABLE_WORKERS_MAX, TABLE_WORKERS_USERS, TABLES_READY_MAX,
    UNWIND_CODE_LATER_BYTES_PER_ROW,
};
use crate::normalize::MappedFile;
use crate::unwind::RowTable;
use agent_ebpf::UnwindRule;
use hashbrown::HashMap;
use priority::Priority;
use sha2::{Digest as _, Sha256};
use spending::{Owner, Spending};
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::panic::AssertUnwindSafe;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A table, or why there is none.
#[derive(Debug)]
pub struct Compiled {
    /// Of which file.
    pub file: FileId,
    /// What it says.
    pub unwound: Result<Arc<Unwound>, ForeignFileError>,
    /// How long it took.
    pub times: CompileTimes,
    /// False if another table of this file follows, which has more rows.
    pub whole: bool,
}

/// The way of one file through the threads.
#[derive(Clone, Copy, Debug, Default)]
pub struct CompileTimes {
    /// It was asked for.
    pub asked: MonotonicNs,
    /// A thread took it up.
    pub begun: MonotonicNs,
    /// Its table was ready.
    pub made: MonotonicNs,
}

/// Rows, and what makes them equal to those of another file.
#[derive(Debug)]
pub struct Unwound {
    /// The rows.
    pub rows: RowTable,
    /// Over all of them.
    pub digest: RowDigest,
}

/// Two tables with one digest are the same table (SHA-256). A file's own ids would not do: whoever makes
/// a file chooses its build id, and could give all who map the real one the rows of his.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RowDigest([u8; 32]);

impl RowDigest {
    /// Its bytes.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

/// The bytes of a rule, in the order of its fields.
pub(super) fn rule_bytes(rule: &UnwindRule) -> [u8; size_of::<UnwindRule>()] {
    let UnwindRule { kind, rbp, rbp_from_rbp, reserved, offset, addend } = *rule;
    let [a, b, c, d] = offset.to_le_bytes();
    let [e, f, g, h] = addend.to_le_bytes();
    [kind, rbp.cast_unsigned(), rbp_from_rbp, reserved, a, b, c, d, e, f, g, h]
}

impl Unwound {
    /// Takes rows, and looks at all of them.
    #[must_use]
    pub fn new(rows: RowTable) -> Self {
        let mut hash = Sha256::new();
        // Equal rows have equal bytes: each number is packed in one way only.
        for length in [rows.len(), rows.packed().len(), rows.rules().len()] {
            hash.update((length as u64).to_le_bytes());
        }
        hash.update(rows.base().to_le_bytes());
        hash.update(rows.packed());
        for rule in rows.rules() {
            hash.update(rule_bytes(rule));
        }
        let digest = RowDigest(hash.finalize().into());
        Self { rows, digest }
    }
}

/// What happened so far, for the metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CompileCounts {
    /// Threads that wait now for a file system that does not answer.
    pub stuck: u64,
    /// Files at which a thread was longer than any file takes.
    pub late: u64,
    /// Files put off because their owner had used up the CPU time for unwind tables.
    pub put_off: u64,
}

/// A file that is asked for.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    /// Which.
    pub file: FileId,
    /// Bytes of its code: what tells best how long it takes.
    pub code_bytes: u64,
    /// A sample waits for it.
    pub urgent: bool,
    /// When.
    pub at: MonotonicNs,
}

impl Asked {
    /// The table of this file.
    #[must_use]
    pub fn of(file: &MappedFile, urgent: bool) -> Self {
        let segments = file.facts.iter().flat_map(|facts| &facts.segments);
        let code_bytes = segments.fold(0, |sum: u64, segment| sum.saturating_add(segment.size));
        Self { file: file.id, code_bytes, urgent, at: monotonic_now() }
    }

    /// True if it takes long.
    #[must_use]
    pub const fn is_large(&self) -> bool {
        self.code_bytes >= TABLE_LARGE_CODE_BYTES
    }
}

#[derive(Debug, Default)]
struct Queue {
    /// Files, each with the time at which it would be ready if a thread had begun at once: by that time they
    /// have their turns, so that small ones go first and large ones go too.
    files: Vec<(MonotonicNs, Asked)>,
    /// Files whose owner has no CPU time left, or threads enough, and when they are looked at again.
    put_off: Vec<(MonotonicNs, Asked)>,
    spending: Spending,
    closed: bool,
    /// Threads, with those that are stuck.
    threads: usize,
    /// What each thread is at, by its number.
    at: HashMap<usize, At>,
    counts: CompileCounts,
}

/// A file that a thread is at.
#[derive(Debug)]
struct At {
    file: FileId,
    large: bool,
    since: MonotonicNs,
    stuck: bool,
    /// Known once the file is open.
    owner: Option<Owner>,
}

#[derive(Debug, Default)]
struct Shared {
    queue: Mutex<Queue>,
    wake: Condvar,
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queue {
    /// Threads that are not stuck.
    fn able(&self) -> usize {
        self.threads.saturating_sub(usize::try_from(self.counts.stuck).unwrap_or(usize::MAX))
    }

    /// Lets those back in that were put off until now. When the next one comes.
    fn recall(&mut self, now: MonotonicNs) -> Option<MonotonicNs> {
        let Self { files, put_off, .. } = self;
        files.extend(put_off.extract_if(.., |(until, _)| *until <= now));
        put_off.iter().map(|(until, _)| *until).min()
    }

    /// True if the file that a thread has opened is to wait, for its owner's sake.
    fn puts_off(&mut self, thread: usize, asked: Asked, owner: Owner, now: MonotonicNs) -> bool {
        let is_user = |at: &&At| !at.stuck && at.owner.is_some_and(|owner| owner != Owner::Root);
        let many = self.at.values().filter(is_user).count() >= TABLE_WORKERS_USERS;
        let until = match self.spending.wait_until(owner, now) {
            Some(until) => {
                self.counts.put_off += 1;
                Some(until)
            }
            None => (many && owner != Owner::Root).then(|| now.plus(TABLE_USERS_WAIT_NS)),
        };
        if let Some(until) = until {
            self.put_off.push((until, asked));
        } else if let Some(at) = self.at.get_mut(&thread) {
            at.owner = Some(owner);
        }
        until.is_some()
    }

    /// Takes out the file whose turn it is. A large one waits while others of its kind have their share.
    fn pop(&mut self) -> Option<Asked> {
        let large = self.at.values().filter(|at| at.large && !at.stuck).count();
        let may = |asked: &Asked| !asked.is_large() || large < TABLE_WORKERS_LARGE;
        let waiting = self.files.iter().enumerate().filter(|(_, (_, asked))| may(asked));
        let (at, _) = waiting.min_by_key(|(_, (due, asked))| (!asked.urgent, *due))?;
        Some(self.files.swap_remove(at).1)
    }
}

/// The threads. Dropping it ends them after the table they are at.
pub struct Compilers {
    work: Work,
    /// `None` only while it is dropped.
    ready: Option<Receiver<Compiled>>,
    outstanding: usize,
    started: usize,
    stuck_ns: u64,
}

impl fmt::Debug for Compilers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Compilers");
        shown.field("outstanding", &self.outstanding).finish_non_exhaustive()
    }
}

impl Compilers {
    /// Starts the threads; `parse` reads files, `files` opens them, `cache` keeps what was compiled.
    ///
    /// # Errors
    /// When the host refuses another thread.
    pub fn start(
        parse: &Arc<dyn ForeignFiles>,
        files: &Arc<dyn OpenFiles>,
        cache: Option<&Keeper>,
    ) -> io::Result<Self> {
        let (sender, ready) = sync_channel(TABLES_READY_MAX);
        let work = Work {
            number: 0,
            shared: Arc::default(),
            parse: Arc::clone(parse),
            files: Arc::clone(files),
            cache: cache.cloned(),
            ready: sender,
        };
        let (ready, stuck_ns) = (Some(ready), TABLE_STUCK_NS);
        let mut compilers = Self { work, ready, outstanding: 0, started: 0, stuck_ns };
        for _ in 0..TABLE_WORKERS {
            compilers.spawn()?;
        }
        Ok(compilers)
    }

    fn spawn(&mut self) -> io::Result<()> {
        let number = self.started;
        let work = Work { number, ..self.work.clone() };
        self.started += 1;
        self.work.shared.queue().threads += 1;
        let thread = std::thread::Builder::new().name(format!("unwind-{number}"));
        match thread.spawn(move || work.run()) {
            Ok(_detached) => Ok(()),
            Err(error) => {
                self.work.shared.queue().threads -= 1;
                Err(error)
            }
        }
    }

    /// Asks for a table. False if too many are asked for already.
    pub fn ask(&mut self, asked: Asked) -> bool {
        if self.outstanding >= FILES_MAX {
            return false;
        }
        self.outstanding += 1;
        let due = asked.at.plus(asked.code_bytes.saturating_mul(TABLE_CODE_NS_PER_BYTE));
        self.work.shared.queue().files.push((due, asked));
        self.work.shared.wake.notify_one();
        true
    }

    /// A sample waits for these, as far as they are asked for.
    pub fn hurry(&self, files: &[FileId]) {
        let mut queue = self.work.shared.queue();
        let Queue { files: waiting, put_off, .. } = &mut *queue;
        for (_, asked) in waiting.iter_mut().chain(put_off) {
            asked.urgent |= files.contains(&asked.file);
        }
    }

    /// Tables asked for, not taken yet, and not known to be stuck or put off: whoever waits for these waits a moment.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        let queue = self.work.shared.queue();
        let stuck = queue.threads - queue.able();
        let late = stuck + queue.put_off.len();
        if queue.able() == 0 { 0 } else { self.outstanding.saturating_sub(late) }
    }

    /// What happened so far.
    #[must_use]
    pub fn counts(&self) -> CompileCounts {
        self.work.shared.queue().counts
    }

    /// Takes a table that is ready. Called with every poll, it is where threads are found that are stuck.
    pub fn take(&mut self) -> Option<Compiled> {
        match self.ready.as_ref()?.try_recv() {
            Ok(compiled) => {
                self.outstanding = self.outstanding.saturating_sub(compiled.whole.into());
                Some(compiled)
            }
            Err(TryRecvError::Empty | TryRecvError::Disconnected) => {
                self.replace_stuck();
                None
            }
        }
    }

    /// Waits for a table.
    pub fn wait(&mut self, timeout: Duration) -> Option<Compiled> {
        let Ok(compiled) = self.ready.as_ref()?.recv_timeout(timeout) else {
            self.replace_stuck();
            return None;
        };
        self.outstanding = self.outstanding.saturating_sub(compiled.whole.into());
        Some(compiled)
    }

    /// Looks for threads at a file that takes too long, and starts another for each.
    fn replace_stuck(&mut self) {
        let now = monotonic_now();
        let (mut found, able, threads) = {
            let mut queue = self.work.shared.queue();
            let late = |at: &&mut At| !at.stuck && now.since(at.since) > self.stuck_ns;
            let mut files = Vec::new();
            for at in queue.at.values_mut().filter(late) {
                at.stuck = true;
                files.push(at.file);
            }
            let count = u64::try_from(files.len()).unwrap_or(u64::MAX);
            queue.counts.stuck += count;
            queue.counts.late += count;
            (files, queue.able(), queue.threads)
        };
        let Some(file) = found.pop() else { return };
        tracing::warn!(file = file.0, able, "an unwind table takes too long to compile");
        let missing = TABLE_WORKERS.saturating_sub(able);
        let more = missing.min(TABLE_WORKERS_MAX.saturating_sub(threads));
        if more < missing {
            tracing::warn!(threads, able, "too many files do not answer: unwind tables come late");
        }
        for _ in 0..more {
            if let Err(error) = self.spawn() {
                tracing::warn!(%error, "no thread to compile other unwind tables");
            }
        }
    }
}

impl Drop for Compilers {
    fn drop(&mut self) {
        self.work.shared.queue().closed = true;
        self.work.shared.wake.notify_all();
        // A thread that waits to hand its table over gives up. Nobody joins the threads: one that is stuck
        // would hold up the end of the agent.
        self.ready = None;
    }
}

fn panicked() -> ForeignFileError {
    let detail = "the parser panicked".to_owned();
    ForeignFileError::Malformed { what: "unwind information", detail }
}

/// What a thread works with.
#[derive(Clone)]
struct Work {
    number: usize,
    shared: Arc<Shared>,
    parse: Arc<dyn ForeignFiles>,
    files: Arc<dyn OpenFiles>,
    cache: Option<Keeper>,
    ready: SyncSender<Compiled>,
}

impl Work {
    fn run(self) {
        let priority = Priority::of_this_thread();
        while let Some(asked) = self.next() {
            let Asked { file, at, .. } = asked;
            let (begun, began_ns) = (monotonic_now(), thread_cpu_ns());
            let times = || CompileTimes { asked: at, begun, made: monotonic_now() };
            let first = |rows: RowTable| {
                let unwound = Ok(Arc::new(Unwound::new(rows)));
                let first = Compiled { file, unwound, times: times(), whole: false };
                let _closed = self.ready.send(first);
            };
            // A defect of a parser costs the file, never the worker.
            let compile = AssertUnwindSafe(|| self.compile(asked, &priority, &first));
            let made = std::panic::catch_unwind(compile).unwrap_or_else(|_panic| Err(panicked()));
            self.done(thread_cpu_ns().saturating_sub(began_ns));
            let Some(made) = made.transpose() else { continue };
            let (unwound, to_keep) = match made {
                Ok(Made { unwound, keep }) => {
                    let unwound = Arc::new(unwound);
                    (Ok(Arc::clone(&unwound)), keep.map(|keep| (keep, unwound)))
                }
                Err(error) => (Err(error), None),
            };
            // Nobody takes it only if all is closed, which is what is looked at next.
            let whole = Compiled { file, unwound, times: times(), whole: true };
            let _closed = self.ready.send(whole);
            if let (Some(cache), Some((keep, unwound))) = (&self.cache, to_keep) {
                self.keep(cache, keep, unwound);
            }
        }
    }

    /// Hands a table over to be kept on disk. What it is found by, where its rows are from code, is read only now:
    /// somebody waited for the table.
    fn keep(&self, cache: &Keeper, keep: Keep, unwound: Arc<Unwound>) {
        match keep {
            Keep::By(digest) => cache.store(digest, unwound),
            Keep::WithCode { file, digest } => {
                let read = AssertUnwindSafe(|| self.parse.unwind_digest_with_code(&file));
                let whole = std::panic::catch_unwind(read).ok().and_then(Result::ok).flatten();
                if let Some(whole) = whole {
                    cache.store(whole, unwound);
                    cache.store(digest, Arc::new(Unwound::new(RowTable::default())));
                }
            }
        }
    }

    /// `None` if it is put off. A table that does not have all rows yet is handed to `first`.
    fn compile(
        &self,
        asked: Asked,
        priority: &Priority,
        first: &dyn Fn(RowTable),
    ) -> Result<Option<Made>, ForeignFileError> {
        let gone = || ForeignFileError::Io(io::Error::from(io::ErrorKind::NotFound));
        let file = self.files.open(asked.file).ok_or_else(gone)?;
        let owner = Owner::of(&file);
        if self.shared.queue().puts_off(self.number, asked, owner, monotonic_now()) {
            return Ok(None);
        }
        priority.set_for(owner);
        self.unwind(&file, first).map(Some)
    }

    /// From the cache, else compiled.
    fn unwind(
        &self,
        file: &Arc<OwnedFd>,
        first: &dyn Fn(RowTable),
    ) -> Result<Made, ForeignFileError> {
        let digest = match &self.cache {
            Some(_) => self.parse.unwind_digest(file)?,
            None => None,
        };
        if let Some(unwound) = digest.and_then(|digest| self.find(file, &digest)) {
            return Ok(Made { unwound, keep: None });
        }
        let unwound = self.rows(file, first).map(Unwound::new)?;
        // Another time there may be time enough.
        let whole = unwound.rows.losses().out_of_time == 0;
        let keep = digest.filter(|_| whole).map(|digest| match unwound.rows.is_from_code() {
            true => Keep::WithCode { file: Arc::clone(file), digest },
            false => Keep::By(digest),
        });
        Ok(Made { unwound, keep })
    }

    /// All rows. Where some take long to find, in code that nothing describes, the others are handed out first.
    fn rows(&self, file: &OwnedFd, first: &dyn Fn(RowTable)) -> Result<RowTable, ForeignFileError> {
        let soon = self.parse.unwind_rows_soon(file)?;
        let put_off = soon.code_put_off();
        if put_off == 0 {
            return Ok(soon);
        }
        if soon.len() as u64 >= put_off / UNWIND_CODE_LATER_BYTES_PER_ROW {
            first(soon);
        }
        self.parse.unwind_rows(file)
    }

    /// The cached table. One without rows stands for another, that is found by the code too: few files have rows
    /// from code, and the code of all of them would have to be read.
    fn find(&self, file: &OwnedFd, digest: &UnwindDigest) -> Option<Unwound> {
        let cache = self.cache.as_ref()?;
        let found = cache.find(digest)?;
        if !found.rows.is_empty() {
            return Some(found);
        }
        let whole = self.parse.unwind_digest_with_code(file).ok()??;
        cache.find(&whole).filter(|found| !found.rows.is_empty())
    }

    /// The file to compile next. `None` if there are more threads than needed, or none is wanted any more.
    fn next(&self) -> Option<Asked> {
        let mut queue = self.shared.queue();
        loop {
            let now = monotonic_now();
            let recalled = queue.recall(now);
            let asked = if queue.closed { None } else { queue.pop() };
            if let Some(asked) = asked {
                let (file, large) = (asked.file, asked.is_large());
                let at = At { file, large, since: now, stuck: false, owner: None };
                queue.at.insert(self.number, at);
                return Some(asked);
            }
            if queue.closed || queue.able() > TABLE_WORKERS {
                queue.threads -= 1;
                return None;
            }
            let wake = &self.shared.wake;
            queue = match recalled {
                None => wake.wait(queue).unwrap_or_else(PoisonError::into_inner),
                Some(at) => {
                    let wait = Duration::from_nanos(at.since(now));
                    wake.wait_timeout(queue, wait).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }

    /// The file is compiled, which took so much CPU time: a thread that waits to hand it over is not stuck.
    fn done(&self, taken_ns: u64) {
        let mut queue = self.shared.queue();
        let at = queue.at.remove(&self.number);
        if let Some(owner) = at.as_ref().and_then(|at| at.owner) {
            queue.spending.spent(owner, taken_ns, monotonic_now());
        }
        if at.as_ref().is_some_and(|at| at.stuck) {
            queue.counts.stuck = queue.counts.stuck.saturating_sub(1);
        }
        if at.is_some_and(|at| at.large) {
            // Another large one may have waited for this one's end.
            self.shared.wake.notify_one();
        }
    }
}

/// A table, and how it is to be kept.
struct Made {
    unwound: Unwound,
    keep: Option<Keep>,
}

/// What a table on disk is to be found by.
enum Keep {
    /// This.
    By(UnwindDigest),
    /// The digest of the file with its code; this one, without the code, says so.
    WithCode { file: Arc<OwnedFd>, digest: UnwindDigest },
}

#[cfg(test)]
mod tests;
