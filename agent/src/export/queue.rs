//! What is not acknowledged yet, in order, within bounds. In memory; a spool on disk would stand behind
//! the same three calls (`push`, `take`, `put_back`), because requests are bytes that never change.

use super::otlp::Request;
use crate::limits;
use crate::metrics::{ExportMetrics, Reason};
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// Bounds of a queue.
#[derive(Clone, Copy, Debug)]
pub struct QueueLimits {
    /// Uncompressed bytes, at most, that of the request on its way included.
    pub bytes_max: usize,
    /// Age, at most.
    pub age_max: Duration,
}

impl Default for QueueLimits {
    fn default() -> Self {
        Self { bytes_max: limits::EXPORT_QUEUE_BYTES_MAX, age_max: limits::EXPORT_QUEUE_AGE_MAX }
    }
}

/// A request with its history.
#[derive(Debug)]
pub struct Entry {
    /// The request.
    pub request: Request,
    queued: Instant,
}

/// A queue between the writer of windows and the sender.
#[derive(Debug)]
pub struct Queue {
    limits: QueueLimits,
    metrics: ExportMetrics,
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<Entry>,
    /// Observations of the request that was taken.
    on_its_way: Option<u64>,
    bytes: usize,
    requests: usize,
    closed: bool,
}

impl Queue {
    /// An empty queue.
    #[must_use]
    pub fn new(limits: QueueLimits, metrics: ExportMetrics) -> Self {
        Self { limits, metrics, state: Mutex::default(), changed: Notify::new() }
    }

    /// Appends a request. The oldest waiting ones go, and are counted, where it does not fit.
    pub fn push(&self, request: Request) {
        let mut state = self.lock();
        let bytes = request.bytes.len();
        while state.bytes.saturating_add(bytes) > self.limits.bytes_max {
            let Some(oldest) = state.waiting.pop_front() else { break };
            self.forget(&mut state, &oldest.request, Some("queue full"));
        }
        if state.bytes.saturating_add(bytes) > self.limits.bytes_max {
            self.count_dropped(&request, "queue full");
            return;
        }
        state.bytes += bytes;
        state.requests += 1;
        state.waiting.push_back(Entry { request, queued: Instant::now() });
        self.show(&state);
        drop(state);
        self.changed.notify_one();
    }

    /// Takes the oldest request that is young enough; `None` once the queue is closed and empty. It
    /// counts as queued until it is given to [`Self::done`], [`Self::give_up`] or [`Self::put_back`].
    pub async fn take(&self) -> Option<Entry> {
        loop {
            {
                let mut state = self.lock();
                while let Some(entry) = state.waiting.pop_front() {
                    if entry.queued.elapsed() <= self.limits.age_max {
                        state.on_its_way = Some(entry.request.observations);
                        return Some(entry);
                    }
                    self.forget(&mut state, &entry.request, Some("too old"));
                }
                if state.closed {
                    return None;
                }
            }
            self.changed.notified().await;
        }
    }

    /// Returns a request that has to be sent again: it is the oldest.
    pub fn put_back(&self, entry: Entry) {
        let mut state = self.lock();
        state.on_its_way = None;
        state.waiting.push_front(entry);
        drop(state);
        self.changed.notify_one();
    }

    /// A request that was taken is acknowledged.
    pub fn done(&self, entry: &Entry) {
        let mut state = self.lock();
        state.on_its_way = None;
        self.forget(&mut state, &entry.request, None);
    }

    /// A request that was taken will never be accepted.
    pub fn give_up(&self, entry: &Entry, reason: &'static str) {
        let mut state = self.lock();
        state.on_its_way = None;
        self.forget(&mut state, &entry.request, Some(reason));
    }

    /// No more requests come: [`Self::take`] ends once the queue is empty.
    pub fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_one();
    }

    /// Ends once the queue is closed.
    pub async fn closed(&self) {
        while !self.lock().closed {
            self.changed.notified().await;
        }
    }

    /// Gives up everything that waits or is on its way; answers the number of observations.
    pub fn give_up_all(&self, reason: &'static str) -> u64 {
        let mut state = self.lock();
        let mut observations = state.on_its_way.take().unwrap_or(0);
        self.metrics.observations_dropped.get_or_create(&Reason { reason }).inc_by(observations);
        while let Some(entry) = state.waiting.pop_front() {
            observations = observations.saturating_add(entry.request.observations);
            self.forget(&mut state, &entry.request, Some(reason));
        }
        observations
    }

    /// Uncompressed bytes in the queue, the request on its way included.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.lock().bytes
    }

    fn forget(&self, state: &mut State, request: &Request, dropped: Option<&'static str>) {
        state.bytes = state.bytes.saturating_sub(request.bytes.len());
        state.requests = state.requests.saturating_sub(1);
        self.show(state);
        if let Some(reason) = dropped {
            self.count_dropped(request, reason);
        }
    }

    fn count_dropped(&self, request: &Request, reason: &'static str) {
        let counter = self.metrics.observations_dropped.get_or_create(&Reason { reason });
        counter.inc_by(request.observations);
    }

    fn show(&self, state: &State) {
        self.metrics.queue_bytes.set(i64::try_from(state.bytes).unwrap_or(i64::MAX));
        self.metrics.queue_requests.set(i64::try_from(state.requests).unwrap_or(i64::MAX));
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic while the lock was held left counts that are at worst off by one request.
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}
