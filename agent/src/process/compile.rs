//! Threads that compile unwind tables, so that the ring buffer is drained meanwhile. What is asked for
//! last comes first: it is a process that runs now, while older requests are of the scan at the start.

use super::table_cache::TableCache;
use crate::address::FileId;
use crate::elf::{ForeignFileError, ForeignFiles};
use crate::engine::OpenFiles;
use crate::limits::{COMPILER_NICE, FILES_MAX, TABLE_WORKERS, TABLES_READY_MAX};
use crate::unwind::{RowLosses, RowTable};
use agent_ebpf::UnwindRule;
use sha2::{Digest as _, Sha256};
use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::panic::AssertUnwindSafe;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// A table, or why there is none.
#[derive(Debug)]
pub struct Compiled {
    /// Of which file.
    pub file: FileId,
    /// What it says.
    pub unwound: Result<Unwound, ForeignFileError>,
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

#[derive(Debug, Default)]
struct Queue {
    files: VecDeque<FileId>,
    closed: bool,
}

type Shared = (Mutex<Queue>, Condvar);

/// The threads. Dropping it ends them after the table they are at.
#[derive(Debug)]
pub struct Compilers {
    shared: Arc<Shared>,
    /// `None` only while it is dropped.
    ready: Option<Receiver<Compiled>>,
    threads: Vec<JoinHandle<()>>,
    outstanding: usize,
}

impl Compilers {
    /// Starts the threads; `parse` reads files, `files` opens them, `cache` keeps what was compiled.
    ///
    /// # Errors
    /// When the host refuses another thread.
    pub fn start(
        parse: &Arc<dyn ForeignFiles>,
        files: &Arc<dyn OpenFiles>,
        cache: Option<&Arc<TableCache>>,
    ) -> io::Result<Self> {
        let shared: Arc<Shared> = Arc::default();
        let (sender, ready) = sync_channel(TABLES_READY_MAX);
        let mut threads = Vec::with_capacity(TABLE_WORKERS);
        for number in 0..TABLE_WORKERS {
            let work = Work {
                shared: Arc::clone(&shared),
                parse: Arc::clone(parse),
                files: Arc::clone(files),
                cache: cache.map(Arc::clone),
                ready: sender.clone(),
            };
            let name = format!("unwind-{number}");
            threads.push(std::thread::Builder::new().name(name).spawn(move || work.run())?);
        }
        Ok(Self { shared, ready: Some(ready), threads, outstanding: 0 })
    }

    /// Asks for a table. False if too many are asked for already.
    pub fn ask(&mut self, file: FileId) -> bool {
        if self.outstanding >= FILES_MAX {
            return false;
        }
        self.outstanding += 1;
        let (queue, wake) = &*self.shared;
        queue.lock().unwrap_or_else(PoisonError::into_inner).files.push_front(file);
        wake.notify_one();
        true
    }

    /// Tables asked for and not taken yet.
    #[must_use]
    pub const fn outstanding(&self) -> usize {
        self.outstanding
    }

    /// Takes a table that is ready.
    pub fn take(&mut self) -> Option<Compiled> {
        match self.ready.as_ref()?.try_recv() {
            Ok(compiled) => {
                self.outstanding = self.outstanding.saturating_sub(1);
                Some(compiled)
            }
            Err(TryRecvError::Empty | TryRecvError::Disconnected) => None,
        }
    }

    /// Waits for a table.
    pub fn wait(&mut self, timeout: Duration) -> Option<Compiled> {
        let compiled = self.ready.as_ref()?.recv_timeout(timeout).ok()?;
        self.outstanding = self.outstanding.saturating_sub(1);
        Some(compiled)
    }
}

impl Drop for Compilers {
    fn drop(&mut self) {
        let (queue, wake) = &*self.shared;
        queue.lock().unwrap_or_else(PoisonError::into_inner).closed = true;
        wake.notify_all();
        self.ready = None; // A thread that waits to hand its table over gives up.
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread that compiles unwind tables has panicked");
            }
        }
    }
}

fn panicked() -> ForeignFileError {
    let detail = "the parser panicked".to_owned();
    ForeignFileError::Malformed { what: "unwind information", detail }
}

struct Work {
    shared: Arc<Shared>,
    parse: Arc<dyn ForeignFiles>,
    files: Arc<dyn OpenFiles>,
    cache: Option<Arc<TableCache>>,
    ready: SyncSender<Compiled>,
}

impl Work {
    fn run(self) {
        crate::engine::go_first(COMPILER_NICE);
        while let Some(file) = self.next() {
            let gone = || ForeignFileError::Io(io::Error::from(io::ErrorKind::NotFound));
            let unwound = match self.files.open(file) {
                Some(descriptor) => {
                    // A defect of a parser costs the file, never the worker.
                    let parse = AssertUnwindSafe(|| self.unwind(&descriptor));
                    std::panic::catch_unwind(parse).unwrap_or_else(|_| Err(panicked()))
                }
                None => Err(gone()),
            };
            if self.ready.send(Compiled { file, unwound }).is_err() {
                return;
            }
        }
    }

    /// From the cache, else compiled.
    fn unwind(&self, file: &OwnedFd) -> Result<Unwound, ForeignFileError> {
        let compile = || self.parse.unwind_rows(file).map(Unwound::new);
        let Some(cache) = &self.cache else { return compile() };
        let Some(digest) = self.parse.unwind_digest(file)? else { return compile() };
        if let Some(found) = cache.find(&digest) {
            return Ok(found);
        }
        let unwound = compile()?;
        // What a limit left out is counted with each compilation.
        if unwound.rows.losses() == RowLosses::default() {
            cache.store(&digest, &unwound);
        }
        Ok(unwound)
    }

    fn next(&self) -> Option<FileId> {
        let (queue, wake) = &*self.shared;
        let mut queue = queue.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if queue.closed {
                return None;
            }
            if let Some(file) = queue.files.pop_front() {
                return Some(file);
            }
            queue = wake.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }
}
