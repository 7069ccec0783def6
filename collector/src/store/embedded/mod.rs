//! The embedded engine: a write-ahead log, a memtable, hour and day segments in one folder, no server beside it.
//!
//! An append is encoded, written to the WAL with one sync for all that wait, added to the memtable, and only
//! then acknowledged. Queries read the memtable and the segments; they never wait for a sync.

mod answers;
mod batch;
mod codec;
mod columns;
mod deletions;
mod engine;
mod erase;
mod files;
mod flush;
mod flushes;
pub mod inspect;
mod locks;
mod manifest;
mod memtable;
mod merge;
mod merged;
mod merges;
mod names;
mod new_segment;
mod prepared;
mod recall;
mod replay;
mod scan;
mod seen;
mod segment;
mod service;
mod symbol_log;
mod symbols;
mod trie;
mod wal;
mod writer;

pub use engine::Clock;

use super::{
    Ack, Deletion, DeletionId, FileAddress, FileAddresses, MakeBatch, ProfileStore, Retention,
    StoreError, StoreFuture, StoreStats,
};
use crate::limits;
use crate::profile::{NewNames, ProjectName};
use crate::query::{
    Coverage, FlameTree, FunctionRow, LabelName, LabelValue, Locks, LocksQuery, MergeQuery,
    ProfileTypeRow, Selection, ServiceRow, Timeline, TimelineQuery, Told,
};
use engine::{Engine, Keep};
use files::{Disk, Files};
use flush::Flusher;
use flushes::Flushes;
use merges::Merges;
use prepared::Prepared;
use scan::Asker;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use tokio::sync::oneshot;
use wal::Wal;
use writer::{Append, Command, Naming, Stored, Writer};

/// How to open an engine.
#[derive(Clone, Debug)]
pub struct EmbeddedOptions {
    /// The folder; it is made if it is missing. One process at a time may use it.
    pub data_dir: PathBuf,
    /// Limit of bytes in the folder; `None`: the smaller of 10 GiB and a tenth of the disk.
    pub data_bytes_max: Option<u64>,
    /// How long profiles are kept, if the disk's limit lets them.
    pub retention: Retention,
    /// Tells the time.
    pub clock: Clock,
}

/// The engine. Dropping it writes everything out and waits for that.
#[derive(Debug)]
pub struct EmbeddedStore {
    engine: Arc<Engine>,
    queue: Arc<Queue>,
    thread: Mutex<Option<JoinHandle<()>>>,
    merges: Merges,
    /// Locked for as long as the folder is in use.
    lock: std::fs::File,
}

impl EmbeddedStore {
    /// Opens the folder: takes its lock, reads what is there and replays the WAL.
    ///
    /// # Errors
    /// If another process uses the folder, a file cannot be read or written, or one is damaged.
    pub fn open(options: EmbeddedOptions) -> Result<Self, StoreError> {
        Self::open_with(options, Arc::new(Disk))
    }

    fn open_with(options: EmbeddedOptions, files: Arc<dyn Files>) -> Result<Self, StoreError> {
        let EmbeddedOptions { data_dir: dir, data_bytes_max, retention, clock } = options;
        let wal_dir = dir.join("wal");
        let failed = |path: &Path, source| StoreError::io("opening", path, source);
        files::create_dir(&*files, &wal_dir).map_err(|error| failed(&wal_dir, error))?;
        let lock = take_lock(&dir.join("LOCK"))?;
        let data_bytes_max = data_bytes_max.map_or_else(|| default_bytes_max(&dir), Ok)?;
        let keep = Keep { data_bytes_max, retention };
        let engine = Arc::new(Engine::new(Arc::clone(&files), dir, keep, clock));
        let queue_bytes = Arc::new(AtomicU64::new(0));
        let (mut flusher, seen) = Flusher::open(Arc::clone(&engine))?;
        flusher.retain()?;
        let floor = flusher.wal_floor();
        let flushes = Flushes::start(Arc::clone(&engine), flusher);
        let flushes = flushes.map_err(|error| failed(&wal_dir, error))?;
        let work = flushes.work();
        let mut writer = Writer {
            engine: Arc::clone(&engine),
            wal: Wal::new(files, wal_dir.clone(), floor),
            seen,
            queue_bytes: Arc::clone(&queue_bytes),
            flushes,
            deletion_number: 0,
        };
        writer.replay_all(&wal_dir, floor)?;
        let (sender, receiver) = channel();
        let thread = std::thread::Builder::new()
            .name("store-writer".to_owned())
            .spawn(move || writer.run(&receiver))
            .map_err(|error| failed(&wal_dir, error))?;
        let merges = work
            .ok_or_else(|| std::io::Error::other("the flusher ended"))
            .and_then(|work| Merges::start(Arc::clone(&engine), work))
            .map_err(|error| failed(&wal_dir, error))?;
        Ok(Self {
            engine,
            queue: Arc::new(Queue { bytes: queue_bytes, commands: Mutex::new(Some(sender)) }),
            thread: Mutex::new(Some(thread)),
            merges,
            lock,
        })
    }

    /// Merges the segments of each day into one; answers how many segments that were. It is done by itself an hour
    /// after the end of a day.
    pub fn compact(&self) -> StoreFuture<'_, u64> {
        Box::pin(async move {
            let (reply, answer) = oneshot::channel();
            self.merges.merge_all(reply)?;
            answer.await.unwrap_or_else(|_| Err(StoreError::Busy("the merger ended".to_owned())))
        })
    }

    async fn learn_names(&self, names: NewNames) -> Result<(), StoreError> {
        let (prepared, encoded, bytes) = compute(move || {
            let prepared = Prepared::of_names(names);
            let encoded = batch::encode(&prepared.batch).map_err(not_encoded)?;
            let bytes = prepared_bytes(&prepared) + encoded.len() as u64;
            Ok((prepared, encoded, bytes))
        })
        .await?;
        let (reply, answer) = oneshot::channel();
        let naming = Naming { prepared, encoded, queue_bytes: bytes, reply };
        self.queue.send_sized(bytes, Command::Name(Box::new(naming)))?;
        answer.await.unwrap_or_else(|_| Err(StoreError::Busy("the writer ended".to_owned())))
    }

    async fn append_all(&self, make: MakeBatch) -> Result<Option<Ack>, StoreError> {
        let (engine, queue) = (Arc::clone(&self.engine), Arc::clone(&self.queue));
        let (reply, answer) = oneshot::channel();
        let task = tokio::task::spawn_blocking(move || hand_over(&engine, &queue, make, reply));
        // The writer's answer alone wakes whoever waits: between the two threads is no third one.
        if let Ok(stored) = answer.await {
            let Stored { ack, left } = stored?;
            drop(left);
            return Ok(Some(ack));
        }
        match task.await.unwrap_or_else(|error| Err(stopped(error)))? {
            HandedOver::Yes => Err(StoreError::Busy("the writer ended".to_owned())),
            HandedOver::Nothing => Ok(None),
        }
    }

    /// Runs a question whose answer has no place for what it leaves out.
    fn tell<T: Send + 'static>(
        &self,
        question: impl FnOnce(&Engine, &Asker) -> Result<T, StoreError> + Send + 'static,
    ) -> StoreFuture<'_, Told<T>> {
        self.ask(move |engine, asker| {
            let answer = question(engine, asker)?;
            Ok(Told { answer, warnings: asker.warnings() })
        })
    }

    /// Runs a question on a thread that may block.
    fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&Engine, &Asker) -> Result<T, StoreError> + Send + 'static,
    ) -> StoreFuture<'_, T> {
        let engine = Arc::clone(&self.engine);
        Box::pin(async move {
            let waiting = Waiting(Asker::default());
            let asker = waiting.0.clone();
            compute(move || question(&engine, &asker)).await
        })
    }
}

/// The way to the writer.
#[derive(Debug)]
struct Queue {
    /// Of the batches that wait.
    bytes: Arc<AtomicU64>,
    /// Absent while shutting down.
    commands: Mutex<Option<Sender<Command>>>,
}

impl Queue {
    fn send(&self, command: Command) -> Result<(), StoreError> {
        let commands = self.commands.lock().unwrap_or_else(PoisonError::into_inner);
        let sent = commands.as_ref().map(|commands| commands.send(command));
        match sent {
            Some(Ok(())) => Ok(()),
            _ => Err(StoreError::Busy("the store is shutting down".to_owned())),
        }
    }

    /// Gives the writer what takes these bytes of memory while it waits.
    fn send_sized(&self, bytes: u64, command: Command) -> Result<(), StoreError> {
        let queued = self.bytes.fetch_add(bytes, Ordering::Relaxed);
        // One batch larger than the whole queue must still get through.
        if queued > 0 && queued + bytes > limits::APPEND_QUEUE_BYTES_MAX {
            self.bytes.fetch_sub(bytes, Ordering::Relaxed);
            return Err(StoreError::Busy("too many batches wait for the disk".to_owned()));
        }
        let sent = self.send(command);
        if sent.is_err() {
            self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        }
        sent
    }
}

/// Whether there was a batch for the writer.
enum HandedOver {
    Yes,
    Nothing,
}

/// Makes a batch, does what needs no order beside the writer, and gives it to the writer, who replies.
fn hand_over(
    engine: &Engine,
    queue: &Queue,
    make: MakeBatch,
    reply: oneshot::Sender<Result<Stored, StoreError>>,
) -> Result<HandedOver, StoreError> {
    let Some(batch) = make() else { return Ok(HandedOver::Nothing) };
    batch.check()?;
    let prepared = Prepared::new(engine, batch);
    let encoded = prepared.encode().map_err(not_encoded)?;
    let queue_bytes = prepared_bytes(&prepared) + encoded.len() as u64;
    let append = Append { prepared, encoded, queue_bytes, reply };
    queue.send_sized(queue_bytes, Command::Append(Box::new(append)))?;
    Ok(HandedOver::Yes)
}

/// Held by a future that waits for an answer; dropped with it.
struct Waiting(Asker);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.leave();
    }
}

/// Runs work that takes longer than an async thread may be held.
async fn compute<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
) -> Result<T, StoreError> {
    let joined = tokio::task::spawn_blocking(work).await;
    joined.unwrap_or_else(|error| Err(stopped(error)))
}

fn stopped(error: tokio::task::JoinError) -> StoreError {
    let what = "a task of the store".to_owned();
    StoreError::Io { what, source: std::io::Error::other(error) }
}

impl Drop for EmbeddedStore {
    fn drop(&mut self) {
        self.merges.stop();
        // Without a sender the writer ends, after it served what waits.
        self.queue.commands.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take()
            && thread.join().is_err()
        {
            tracing::error!("the writer of the store panicked");
        }
        // Closing is not enough: a process that is being forked holds copies of all descriptors until it
        // executes its program, and with them the lock.
        if let Err(error) = self.lock.unlock() {
            tracing::warn!(%error, "cannot unlock the data folder");
        }
    }
}

impl ProfileStore for EmbeddedStore {
    fn append_made(&self, make: MakeBatch) -> StoreFuture<'_, Option<Ack>> {
        Box::pin(self.append_all(make))
    }

    fn delete(&self, deletion: Deletion) -> StoreFuture<'_, ()> {
        Box::pin(async move {
            let (reply, answer) = oneshot::channel();
            self.queue.send(Command::Delete(Box::new(deletion), reply))?;
            answer.await.unwrap_or_else(|_| Err(StoreError::Busy("the writer ended".to_owned())))
        })
    }

    fn erase(&self, id: DeletionId) -> StoreFuture<'_, ()> {
        Box::pin(async move {
            let deletions = Arc::clone(&self.engine.view().deletions);
            let number = deletions.get(id).filter(|one| !one.is_erased).map(|one| one.number);
            let Some(number) = number else { return Ok(()) };
            // The log holds the rows, too, until the memtable after them is in segments.
            self.flush().await?;
            let (reply, answer) = oneshot::channel();
            self.merges.erase(number, reply)?;
            answer.await.unwrap_or_else(|_| Err(StoreError::Busy("the merger ended".to_owned())))
        })
    }

    fn learn(&self, names: NewNames) -> StoreFuture<'_, ()> {
        Box::pin(self.learn_names(names))
    }

    fn unnamed(&self, file: FileAddresses) -> StoreFuture<'_, Vec<FileAddress>> {
        self.ask(move |engine, _| {
            let project = engine.project(&file.project);
            Ok(project.map_or_else(Vec::new, |project| project.symbols().unnamed_of(&file)))
        })
    }

    fn merge(&self, query: MergeQuery) -> StoreFuture<'_, FlameTree> {
        self.ask(move |engine, asker| engine.merge(&query, asker))
    }

    fn functions(
        &self,
        selection: Selection,
        limit: usize,
    ) -> StoreFuture<'_, Told<Vec<FunctionRow>>> {
        self.tell(move |engine, asker| engine.functions(&selection, limit, asker))
    }

    fn locks(&self, query: LocksQuery) -> StoreFuture<'_, Locks> {
        self.ask(move |engine, asker| engine.locks(&query, asker))
    }

    fn timeline(&self, query: TimelineQuery) -> StoreFuture<'_, Told<Timeline>> {
        self.tell(move |engine, asker| engine.timeline(&query, asker))
    }

    fn services(
        &self,
        selection: Selection,
        trend_buckets: usize,
    ) -> StoreFuture<'_, Told<Vec<ServiceRow>>> {
        self.tell(move |engine, asker| engine.services(&selection, trend_buckets, asker))
    }

    fn label_names(&self, selection: Selection) -> StoreFuture<'_, Told<Vec<LabelName>>> {
        self.tell(move |engine, asker| engine.label_names(&selection, asker))
    }

    fn label_values(
        &self,
        selection: Selection,
        label: String,
        prefix: String,
        limit: usize,
    ) -> StoreFuture<'_, Told<Vec<LabelValue>>> {
        self.tell(move |engine, asker| {
            engine.label_values(&selection, &label, &prefix, limit, asker)
        })
    }

    fn profile_types(&self, project: ProjectName) -> StoreFuture<'_, Vec<ProfileTypeRow>> {
        self.ask(move |engine, _| Ok(engine.profile_types(&project)))
    }

    fn coverage(&self, selection: Selection) -> StoreFuture<'_, Told<Coverage>> {
        self.tell(move |engine, asker| engine.coverage(&selection, asker))
    }

    fn stats(&self) -> StoreFuture<'_, StoreStats> {
        self.ask(|engine, _| Ok(engine.stats()))
    }

    fn flush(&self) -> StoreFuture<'_, ()> {
        Box::pin(async move {
            let (reply, answer) = oneshot::channel();
            self.queue.send(Command::Flush(reply))?;
            answer.await.unwrap_or_else(|_| Err(StoreError::Busy("the writer ended".to_owned())))
        })
    }
}

/// Why a batch has no bytes for the log.
fn not_encoded(source: std::io::Error) -> StoreError {
    match source.kind() {
        std::io::ErrorKind::FileTooLarge => StoreError::Limit {
            what: "bytes of a batch in the log",
            max: limits::WAL_BATCH_BYTES_MAX as u64,
        },
        _ => StoreError::Io { what: "compressing a batch".to_owned(), source },
    }
}

/// Memory of a prepared batch, roughly; texts are shared with few others, so they count once.
fn prepared_bytes(prepared: &Prepared) -> u64 {
    let batch = &prepared.batch;
    let frames: usize = batch.stacks.iter().map(Vec::len).sum();
    let lines: usize = batch.locations.iter().map(|location| location.lines.len()).sum();
    let texts: usize = batch
        .functions
        .iter()
        .map(|function| function.name.len() + function.system_name.len() + function.file.len())
        .sum();
    let attributes: usize = batch.attribute_sets.iter().map(Vec::len).sum();
    let bytes = batch.sample_count() * 24
        + batch.profiles.len() * 256
        + frames * 4
        + batch.stacks.len() * 24
        + batch.locations.len() * 56
        + lines * 16
        + batch.functions.len() * 64
        + texts
        + attributes * 64
        + prepared.found_bytes();
    bytes as u64
}

/// Takes the lock of the folder; the kernel gives it back when the process ends, however it ends.
fn take_lock(path: &Path) -> Result<std::fs::File, StoreError> {
    let failed = |source| StoreError::io("locking", path, source);
    let open = std::fs::OpenOptions::new().create(true).truncate(false).write(true).open(path);
    let file = open.map_err(failed)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(std::fs::TryLockError::WouldBlock) => Err(failed(std::io::Error::new(
            std::io::ErrorKind::ResourceBusy,
            "another process uses this data folder",
        ))),
        Err(std::fs::TryLockError::Error(error)) => Err(failed(error)),
    }
}

/// The smaller of 10 GiB and a tenth of the disk.
fn default_bytes_max(dir: &Path) -> Result<u64, StoreError> {
    let disk = rustix::fs::statvfs(dir)
        .map_err(|error| StoreError::io("asking for the size of the disk of", dir, error.into()))?;
    Ok((disk.f_blocks.saturating_mul(disk.f_frsize) / 10).min(limits::DATA_BYTES_DEFAULT_MAX))
}

#[cfg(test)]
mod tests;
