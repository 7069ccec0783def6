//! Looks that the engine does not wait for: between two polls it waits a moment in all, because the ring buffer
//! fills meanwhile. They are done all the same, and who asked is told with a later poll.

use super::job::{Answer, Job, Progress, Question};
use super::{Looks, locked};
use crate::clock::{MonotonicNs, monotonic_now, nanoseconds};
use crate::limits::{LOOK_WAIT, LOOK_WAIT_PER_POLL};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long the engine still waits until its next poll.
#[derive(Debug)]
pub(super) struct Patience {
    /// Nanoseconds; `u64::MAX` before the first poll.
    left_ns: AtomicU64,
}

impl Default for Patience {
    fn default() -> Self {
        Self { left_ns: AtomicU64::new(u64::MAX) }
    }
}

impl Patience {
    pub(super) fn begin_poll(&self) {
        self.left_ns.store(nanoseconds(LOOK_WAIT_PER_POLL), Ordering::Relaxed);
    }

    /// Waits for `wait`, or for what is left. Answers what came, and whether all of `wait` was granted.
    pub(super) fn spend<T>(
        &self,
        wait: Duration,
        waits: impl FnOnce(Duration) -> Option<T>,
    ) -> (Option<T>, bool) {
        let left_ns = self.left_ns.load(Ordering::Relaxed);
        let left = Duration::from_nanos(left_ns);
        let begin = Instant::now();
        let answer = waits(wait.min(left));
        if left_ns != u64::MAX {
            let spent_ns = nanoseconds(begin.elapsed());
            self.left_ns.store(left_ns.saturating_sub(spent_ns), Ordering::Relaxed);
        }
        (answer, wait <= left)
    }
}

/// A look that nobody waits for.
#[derive(Debug)]
pub(super) struct Postponed {
    job: Arc<Job>,
    /// Since when a thread has been seen at it.
    begun: Option<MonotonicNs>,
}

/// What is to be done about one.
enum Next {
    Keep,
    TooLong,
    Wait,
    Forget,
}

impl Postponed {
    pub(super) fn new(job: Arc<Job>) -> Self {
        Self { job, begun: None }
    }

    fn next(&mut self, now: MonotonicNs) -> Next {
        match &*locked(&self.job.progress) {
            Progress::Waiting => Next::Wait,
            Progress::Done(_) => Next::Keep,
            Progress::Abandoned { .. } | Progress::Over => Next::Forget,
            Progress::At(_) => {
                let begun = *self.begun.get_or_insert(now);
                if now.since(begun) > nanoseconds(LOOK_WAIT) { Next::TooLong } else { Next::Wait }
            }
        }
    }
}

impl Looks {
    /// Keeps the answers that came since, and tells who asked; a look that takes too long is abandoned as if
    /// somebody had waited for it.
    pub(super) fn look_after_postponed(&self) {
        let Some(pools) = &self.pools else { return };
        let now = monotonic_now();
        let postponed = std::mem::take(&mut *locked(&self.postponed));
        let mut left = Vec::with_capacity(postponed.len());
        for mut one in postponed {
            let shared = pools.of(one.job.question);
            match one.next(now) {
                Next::Wait => left.push(one),
                Next::Forget => {}
                Next::Keep => {
                    let mut queue = locked(&shared.queue);
                    queue.keep(&one.job);
                    // Whoever wants to know what a process runs in asks with its next sample.
                    if one.job.question != Question::Surroundings {
                        queue.late.push(one.job.look.pid);
                    }
                }
                Next::TooLong => match one.job.abandon() {
                    None => self.abandoned(shared, &one.job),
                    // It was done this very moment.
                    Some(answer) => left.push(one.done(answer)),
                },
            }
        }
        locked(&self.postponed).extend(left);
    }
}

impl Postponed {
    fn done(self, answer: Answer) -> Self {
        *locked(&self.job.progress) = Progress::Done(answer);
        self
    }
}
