//! The threads that read perf maps: one, and another for each that a file system holds. Not what is read.

use crate::clock::{MonotonicNs, monotonic_now};
use crate::limits::{
    PERF_MAP_READERS_MAX, PERF_MAP_REQUESTS_MAX, PERF_MAP_STUCK_NS, PERF_MAP_WAIT,
};
use crate::normalize::ProcessKey;
use hashbrown::HashMap;
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Reads the map of a process, however long that takes.
type Read = dyn Fn(ProcessKey) + Send + Sync;

/// The threads. Dropping it ends those that are not stuck.
pub(super) struct Readers {
    shared: Arc<Shared>,
}

struct Shared {
    read: Box<Read>,
    queue: Mutex<Queue>,
    wake: Condvar,
    done: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    asked: VecDeque<ProcessKey>,
    /// What threads are at, and since when; one thread at most is at one process.
    at: HashMap<ProcessKey, At>,
    threads: usize,
    closed: bool,
}

#[derive(Debug)]
struct At {
    since: MonotonicNs,
    stuck: bool,
}

impl fmt::Debug for Readers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Readers").field("queue", &*self.shared.queue()).finish_non_exhaustive()
    }
}

impl Readers {
    pub(super) fn start(read: impl Fn(ProcessKey) + Send + Sync + 'static) -> io::Result<Self> {
        let shared = Shared {
            read: Box::new(read),
            queue: Mutex::default(),
            wake: Condvar::new(),
            done: Condvar::new(),
        };
        let readers = Self { shared: Arc::new(shared) };
        readers.spawn()?;
        Ok(readers)
    }

    fn spawn(&self) -> io::Result<()> {
        let shared = Arc::clone(&self.shared);
        self.shared.queue().threads += 1;
        let thread = std::thread::Builder::new().name("perf-maps".to_owned());
        let spawned = thread.spawn(move || shared.run());
        if spawned.is_err() {
            self.shared.queue().threads -= 1;
        }
        spawned.map(|_detached| ())
    }

    /// Threads that wait now for a map that does not answer.
    pub(super) fn stuck(&self) -> u64 {
        self.shared.queue().stuck() as u64
    }

    /// Has the map of a process read soon. False if too many are asked for; whoever sees the process again asks
    /// again.
    pub(super) fn ask(&self, process: ProcessKey) -> bool {
        let mut queue = self.shared.queue();
        if queue.asked.contains(&process) {
            return true;
        }
        let room = queue.asked.len() < PERF_MAP_REQUESTS_MAX;
        if room {
            queue.asked.push_back(process);
            self.shared.wake.notify_one();
        }
        room
    }

    /// Has the map of a process read, and waits for that. False if it does not answer.
    pub(super) fn read(&self, process: ProcessKey) -> bool {
        let until = Instant::now() + PERF_MAP_WAIT;
        let mut queue = self.shared.queue();
        if queue.is_stuck(process) {
            return false;
        }
        // Somebody waits for this one: it goes first, and is one more at most.
        queue.asked.retain(|asked| *asked != process);
        queue.asked.push_front(process);
        self.shared.wake.notify_one();
        while queue.asked.contains(&process) || queue.at.contains_key(&process) {
            let left = until.saturating_duration_since(Instant::now());
            let missing = queue.replace_stuck();
            let hopeless = queue.is_stuck(process) || (missing == 0 && queue.able() == 0);
            if left.is_zero() || hopeless {
                return false;
            }
            drop(queue);
            for _ in 0..missing {
                if let Err(error) = self.spawn() {
                    tracing::warn!(%error, "no thread to read other perf maps");
                }
            }
            let wait = left.min(Duration::from_nanos(PERF_MAP_STUCK_NS / 4));
            queue = self.shared.queue();
            let waited = self.shared.done.wait_timeout(queue, wait);
            (queue, _) = waited.unwrap_or_else(PoisonError::into_inner);
        }
        true
    }
}

impl Drop for Readers {
    fn drop(&mut self) {
        self.shared.queue().closed = true;
        self.shared.wake.notify_all();
    }
}

impl Queue {
    fn stuck(&self) -> usize {
        self.at.values().filter(|at| at.stuck).count()
    }

    fn is_stuck(&self, process: ProcessKey) -> bool {
        self.at.get(&process).is_some_and(|at| at.stuck)
    }

    /// Looks for threads at a map that takes too long. Answers how many others are to be started.
    fn replace_stuck(&mut self) -> usize {
        let now = monotonic_now();
        for (process, at) in &mut self.at {
            if !at.stuck && now.since(at.since) > PERF_MAP_STUCK_NS {
                at.stuck = true;
                tracing::warn!(pid = process.pid.0, "a perf map does not answer");
            }
        }
        usize::from(self.able() == 0 && self.threads < PERF_MAP_READERS_MAX)
    }

    /// Threads that are not stuck.
    fn able(&self) -> usize {
        self.threads.saturating_sub(self.stuck())
    }

    /// The process to read next: not one that a thread is at.
    fn pop(&mut self) -> Option<ProcessKey> {
        let at = self.asked.iter().position(|process| !self.at.contains_key(process))?;
        self.asked.remove(at)
    }
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads until there are more threads than needed, or none is wanted any more.
    fn run(&self) {
        let mut queue = self.queue();
        loop {
            let next = if queue.closed { None } else { queue.pop() };
            let Some(process) = next else {
                if queue.closed || queue.able() > 1 {
                    queue.threads -= 1;
                    return;
                }
                queue = self.wake.wait(queue).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            queue.at.insert(process, At { since: monotonic_now(), stuck: false });
            drop(queue);
            (self.read)(process);
            queue = self.queue();
            queue.at.remove(&process);
            self.done.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::Pid;

    fn process(pid: u32) -> ProcessKey {
        ProcessKey { pid: Pid(pid), start_time_ns: 0 }
    }

    #[test]
    fn a_map_that_does_not_answer_holds_up_no_other() {
        let gate: Arc<(Mutex<bool>, Condvar)> = Arc::default();
        let inner = Arc::clone(&gate);
        // Processes below 100 answer only once the gate is open.
        let readers = Readers::start(move |process: ProcessKey| {
            let open = inner.0.lock().unwrap();
            if process.pid.0 < 100 {
                drop(inner.1.wait_while(open, |open| !*open).unwrap());
            }
        })
        .unwrap();
        let dead = u32::try_from(PERF_MAP_READERS_MAX - 1).unwrap();
        for pid in 0..dead {
            assert!(!readers.read(process(pid)), "it is given up");
            assert!(readers.read(process(100 + pid)), "others are read");
        }
        assert_eq!(readers.stuck(), u64::from(dead));
        let begin = Instant::now();
        assert!((0..dead).all(|pid| !readers.read(process(pid))));
        assert!(begin.elapsed() < PERF_MAP_WAIT / 2, "nobody waits twice");
        // With the last thread stuck nothing is read, and nobody waits for it.
        assert!(!readers.read(process(dead)));
        let begin = Instant::now();
        assert!((200..300).all(|pid| !readers.read(process(pid))));
        assert!(begin.elapsed() < PERF_MAP_WAIT / 2, "nobody waits in vain");
        *gate.0.lock().unwrap() = true;
        gate.1.notify_all();
        let begin = Instant::now();
        while readers.stuck() > 0 || !readers.read(process(0)) {
            assert!(begin.elapsed() < Duration::from_secs(20), "{readers:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
