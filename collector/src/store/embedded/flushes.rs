//! When the memtable is frozen and written out: beside the writer, in a thread of its own, one at a time.
//! What fails is tried again, later and later; meanwhile the frozen rows stay queryable, and the memtable's
//! limit turns appends away before memory runs out.

use super::engine::Engine;
use super::flush::{Flusher, FreezeLimit, Job, is_due};
use super::memtable::Memtable;
use super::merged::{Merged, Replaced};
use super::seen::Seen;
use super::wal::Wal;
use crate::limits;
use crate::store::StoreError;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// First and longest pause after a failure.
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// What the thread is told to do.
pub(super) enum Work {
    Flush(Job),
    /// Only look whether something is too old to be kept.
    Retain,
    /// Put a merged segment in the place of others, and say what became of it.
    Replace(Merged, Sender<Result<Replaced, StoreError>>),
    /// Note that no file holds rows of the deletions with these numbers.
    Erased(BTreeSet<u64>, Sender<Result<(), StoreError>>),
}

/// The writer's end of the flushing thread.
pub(super) struct Flushes {
    engine: Arc<Engine>,
    jobs: Option<Sender<Work>>,
    done: Receiver<Result<(), StoreError>>,
    thread: Option<JoinHandle<()>>,
    /// The job of the frozen memtable.
    job: Option<Job>,
    /// True while the thread works on it.
    is_running: bool,
    /// When a failed job may be tried again.
    retry: Option<(Instant, Duration)>,
    limit: FreezeLimit,
    /// What was kept when the thread last looked: on a quiet collector days end, too.
    kept_from_ms: i64,
}

impl Flushes {
    /// Starts the thread.
    pub(super) fn start(engine: Arc<Engine>, mut flusher: Flusher) -> std::io::Result<Self> {
        let (jobs, waiting) = channel::<Work>();
        let (finished, done) = channel();
        let work = move || {
            for job in waiting {
                let result = match &job {
                    Work::Flush(job) => flusher.flush(job).and_then(|()| flusher.retain()),
                    Work::Retain => flusher.retain(),
                    Work::Replace(merged, reply) => {
                        // Who merges waits; the writer asked for nothing.
                        drop(reply.send(flusher.replace(merged)));
                        continue;
                    }
                    Work::Erased(numbers, reply) => {
                        drop(reply.send(flusher.mark_erased(numbers)));
                        continue;
                    }
                };
                if finished.send(result).is_err() {
                    break;
                }
            }
        };
        let thread = std::thread::Builder::new().name("store-flusher".to_owned()).spawn(work)?;
        let limit = FreezeLimit {
            memtable_bytes: limits::MEMTABLE_FREEZE_BYTES,
            wal_bytes: limits::WAL_FREEZE_BYTES.min(engine.data_bytes_max / 8),
            grace_ms: limits::SEGMENT_GRACE_MS,
        };
        Ok(Self {
            kept_from_ms: engine.kept_from_ms(),
            engine,
            jobs: Some(jobs),
            done,
            thread: Some(thread),
            job: None,
            is_running: false,
            retry: None,
            limit,
        })
    }

    /// Where merged segments are handed in. The thread ends when every copy is gone.
    pub(super) fn work(&self) -> Option<Sender<Work>> {
        self.jobs.clone()
    }

    /// Takes results, tries failed jobs again and freezes the memtable when it is due.
    pub(super) fn poll(&mut self, wal: &mut Wal, seen: &mut Seen) {
        if self.is_running
            && let Ok(result) = self.done.try_recv()
        {
            // The error is in the log; the job is tried again.
            drop(self.finish(result));
        }
        if self.is_running {
            return;
        }
        match self.retry {
            Some((at, _)) if Instant::now() < at => {}
            _ if self.job.is_some() => self.run(),
            _ => {
                let memtable = Arc::clone(&self.engine.view().active);
                let wal_bytes = self.engine.counters.wal_bytes.load(Ordering::Relaxed);
                if is_due(&memtable, self.engine.clock.now_ms(), wal_bytes, self.limit) {
                    self.freeze(wal, seen);
                    self.run();
                } else {
                    self.retain();
                }
            }
        }
    }

    /// Writes everything out and waits for it.
    pub(super) fn flush_all(&mut self, wal: &mut Wal, seen: &mut Seen) -> Result<(), StoreError> {
        // A look at what is too old may be under way: its end is not that of a job.
        if self.job.is_some() || self.is_running {
            self.run_and_wait()?;
        }
        if self.engine.view().active.is_empty() {
            return Ok(());
        }
        self.freeze(wal, seen);
        self.run_and_wait()
    }

    /// Makes the memtable the frozen one. Only called while none is frozen.
    fn freeze(&mut self, wal: &mut Wal, seen: &mut Seen) {
        wal.rotate();
        seen.expire(self.engine.clock.now_ms());
        self.job = Some(Job { wal_floor: wal.sequence(), seen: Arc::new(seen.clone()) });
        self.engine.change_view(|view| {
            let next = Memtable::clean_to_from(view.active.clean_to());
            view.frozen = Some(std::mem::replace(&mut view.active, Arc::new(next)));
        });
    }

    fn run(&mut self) {
        if let (Some(job), Some(jobs)) = (&self.job, &self.jobs) {
            self.is_running = jobs.send(Work::Flush(job.clone())).is_ok();
        }
    }

    /// Has the thread look whether a day became too old since it last did.
    fn retain(&mut self) {
        let kept_from_ms = self.engine.kept_from_ms();
        if kept_from_ms > self.kept_from_ms
            && let Some(jobs) = &self.jobs
        {
            self.kept_from_ms = kept_from_ms;
            self.is_running = jobs.send(Work::Retain).is_ok();
        }
    }

    fn run_and_wait(&mut self) -> Result<(), StoreError> {
        if !self.is_running {
            self.run();
        }
        let ended = || StoreError::Busy("the flusher ended".to_owned());
        let result = self.done.recv().ok().ok_or_else(ended)?;
        self.finish(result)
    }

    fn finish(&mut self, result: Result<(), StoreError>) -> Result<(), StoreError> {
        self.is_running = false;
        if self.engine.view().frozen.is_none() {
            self.job = None;
        }
        match &result {
            Ok(()) => self.retry = None,
            Err(error) => {
                let pause = self.retry.map_or(PAUSE_MIN, |(_, pause)| (2 * pause).min(PAUSE_MAX));
                tracing::error!(%error, ?pause, "cannot write segments, trying again");
                self.retry = Some((Instant::now() + pause, pause));
            }
        }
        result
    }
}

impl Drop for Flushes {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the flusher of the store panicked");
        }
    }
}
