//! When segments are merged: by a thread of its own, one merge after the other, beside appends, flushes and
//! queries. What it made takes the place of its inputs by way of the flusher, who alone writes the manifest.

use super::engine::Engine;
use super::erase;
use super::flushes::Work;
use super::merged::{Due, Merged, Replaced, When};
use super::segment::Span;
use crate::store::StoreError;
use hashbrown::HashSet;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// How often the thread looks whether an hour or a day is over for long enough.
const LOOK: Duration = Duration::from_secs(30);

/// Answers how many segments became part of others.
type Reply = oneshot::Sender<Result<u64, StoreError>>;

/// What the thread is asked to do.
enum Request {
    /// Merge every day that has several segments.
    Merge(Reply),
    /// Write segments anew without what deletions up to a number took.
    Erase(u64, oneshot::Sender<Result<(), StoreError>>),
}

/// The thread's other end. Dropping it waits for the thread, which ends within a service.
#[derive(Debug)]
pub(super) struct Merges {
    requests: Mutex<Option<Sender<Request>>>,
    stop: Arc<AtomicBool>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Merges {
    /// Starts the thread; `flusher` puts merged segments in the place of others.
    pub(super) fn start(engine: Arc<Engine>, flusher: Sender<Work>) -> std::io::Result<Self> {
        let (requests, waiting) = channel();
        let stop = Arc::new(AtomicBool::new(false));
        let failed = HashSet::new();
        let left_behind_ms = i64::MIN;
        let mut merger =
            Merger { engine, flusher, stop: Arc::clone(&stop), failed, left_behind_ms };
        let thread = std::thread::Builder::new().name("store-merger".to_owned());
        let thread = thread.spawn(move || merger.run(&waiting))?;
        Ok(Self { requests: Mutex::new(Some(requests)), stop, thread: Mutex::new(Some(thread)) })
    }

    /// Has every day that has several segments merged.
    pub(super) fn merge_all(&self, reply: Reply) -> Result<(), StoreError> {
        self.ask(Request::Merge(reply))
    }

    /// Has the samples of deletions up to a number removed from the disk.
    pub(super) fn erase(
        &self,
        number: u64,
        reply: oneshot::Sender<Result<(), StoreError>>,
    ) -> Result<(), StoreError> {
        self.ask(Request::Erase(number, reply))
    }

    fn ask(&self, request: Request) -> Result<(), StoreError> {
        let requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        let sent = requests.as_ref().and_then(|requests| requests.send(request).ok());
        sent.ok_or_else(|| StoreError::Busy("the store is shutting down".to_owned()))
    }

    /// Ends the thread and waits for it.
    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
        self.requests.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take()
            && thread.join().is_err()
        {
            tracing::error!("the merger of the store panicked");
        }
    }
}

/// The thread's state.
struct Merger {
    engine: Arc<Engine>,
    flusher: Sender<Work>,
    stop: Arc<AtomicBool>,
    /// Inputs that could not be merged: they stay as they are until the next start, or until others join them.
    failed: HashSet<BTreeSet<u64>>,
    /// The day in which types that are too old were left behind last, Unix milliseconds of its start.
    left_behind_ms: i64,
}

impl Merger {
    fn run(&mut self, requests: &Receiver<Request>) {
        let mut look_at = Instant::now() + LOOK;
        loop {
            // Also if somebody asks for something all the time.
            if look_at <= Instant::now() {
                self.look();
                look_at = Instant::now() + LOOK;
            }
            match requests.recv_timeout(look_at.saturating_duration_since(Instant::now())) {
                Ok(Request::Merge(reply)) => {
                    let merged = self.merge_all(When::Now);
                    self.leave_old_types_behind();
                    // Nobody listens if the caller gave up; the merges happened all the same.
                    drop(reply.send(merged));
                }
                Ok(Request::Erase(number, reply)) => {
                    let erased = self.erase(number);
                    // As above.
                    drop(reply.send(erased));
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
    }

    /// Does what is due by itself.
    fn look(&mut self) {
        let now_ms = self.engine.clock.now_ms();
        // The error is in the log and counted.
        drop(self.merge_all(When::At(now_ms)));
        let day_ms = Span::Day.start_of(now_ms);
        if day_ms > self.left_behind_ms {
            self.leave_old_types_behind();
            self.left_behind_ms = day_ms;
        }
    }

    /// Merges what is due; answers how many segments that were, or the last error.
    fn merge_all(&mut self, when: When) -> Result<u64, StoreError> {
        let (mut count, mut result) = (0, Ok(()));
        while !self.stop.load(Ordering::Relaxed)
            && let Some(due) = Due::next(&self.engine.view(), when, &self.failed)
        {
            match self.merge_one(&due) {
                Ok(inputs) => count += inputs,
                Err(StoreError::Abandoned) => break,
                Err(error) => {
                    tracing::error!(%error, "segments cannot be merged and stay as they are");
                    self.engine.counters.merges_failed.fetch_add(1, Ordering::Relaxed);
                    self.failed.insert(due.sequences());
                    result = Err(error);
                }
            }
        }
        result.map(|()| count)
    }

    /// Writes segments anew without the types that are too old. One that fails stays as it is, hidden, until the next day.
    fn leave_old_types_behind(&self) {
        let mut looked_at = HashSet::new();
        while self.engine.has_short_types() && !self.stop.load(Ordering::Relaxed) {
            let next = Due::with_old_types(&self.engine, &mut looked_at).and_then(|due| {
                let Some(due) = due else { return Ok(None) };
                self.replace(due.merge(&self.engine, &self.stop)?)?;
                Ok(Some(due))
            });
            match next {
                Ok(None) | Err(StoreError::Abandoned) => break,
                Ok(Some(due)) => {
                    let from = jiff::Timestamp::from_millisecond(due.start_ms).unwrap_or_default();
                    tracing::info!(%from, span = ?due.span, "dropped types that are too old");
                }
                Err(error) => {
                    tracing::error!(%error, "a segment keeps types that are too old");
                    self.engine.counters.merges_failed.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
    }

    /// Merges; answers how many segments became part of another.
    fn merge_one(&self, due: &Due) -> Result<u64, StoreError> {
        let merged = due.merge(&self.engine, &self.stop)?;
        if self.replace(merged)? == Replaced::Outdated {
            return Ok(0);
        }
        let inputs = due.inputs.len() as u64;
        self.engine.counters.segments_merged.fetch_add(inputs, Ordering::Relaxed);
        let from = jiff::Timestamp::from_millisecond(due.start_ms).unwrap_or_default();
        tracing::debug!(%from, span = ?due.span, inputs, "merged segments");
        Ok(inputs)
    }

    /// Writes segments anew until none holds what was deleted; an error if one may still hold rows of this deletion.
    fn erase(&self, number: u64) -> Result<(), StoreError> {
        // What cannot be read does not keep others from being written.
        let mut passed_over = BTreeMap::new();
        while !self.stop.load(Ordering::Relaxed) {
            let next = erase::next(&self.engine, &self.engine.view(), &passed_over);
            let failed = match next {
                Ok(None) => break,
                Ok(Some((sequence, due))) => {
                    let merged = due.merge(&self.engine, &self.stop);
                    // One that was dropped meanwhile holds nothing any more.
                    let replaced = merged.and_then(|merged| self.replace(merged)).map(drop);
                    replaced.map_err(|error| (sequence, error))
                }
                Err(failed) => Err(failed),
            };
            passed_over.extend(failed.err());
        }
        if self.stop.load(Ordering::Relaxed) {
            return Err(StoreError::Abandoned);
        }
        let view = self.engine.view();
        let left = erase::left(&self.engine, &view, number, &passed_over);
        let numbers = view.deletions.pending().map(|one| one.number);
        let erased = numbers.filter(|one| *one <= number && !left.contains_key(one)).collect();
        self.by_flusher(|reply| Work::Erased(erased, reply))?;
        let held = left.get(&number).and_then(|sequence| passed_over.remove(sequence));
        held.map_or(Ok(()), Err)
    }

    fn replace(&self, merged: Merged) -> Result<Replaced, StoreError> {
        self.by_flusher(|reply| Work::Replace(merged, reply))
    }

    /// Has the flusher do something and waits for its answer.
    fn by_flusher<T>(
        &self,
        work: impl FnOnce(Sender<Result<T, StoreError>>) -> Work,
    ) -> Result<T, StoreError> {
        let (reply, answer) = channel();
        let ended = || StoreError::Busy("the flusher ended".to_owned());
        self.flusher.send(work(reply)).ok().ok_or_else(ended)?;
        answer.recv().unwrap_or_else(|_| Err(ended()))
    }
}
