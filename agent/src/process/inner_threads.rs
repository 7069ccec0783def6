//! Which thread a number means that a program wrote down itself: in a container it is one of the container's PID namespace.
//! Read when a lock names its holder, and again when it names one that is not known.

use super::host::Host;
use crate::address::{Pid, Tid};
use crate::limits::{INNER_PROCESSES_MAX, INNER_THREADS_READ_MAX};
use crate::normalize::ProcessKey;
use hashbrown::HashMap;
use std::sync::Arc;

/// The numbers of the processes that were asked about.
#[derive(Debug)]
pub(crate) struct InnerThreads {
    host: Arc<dyn Host>,
    processes: HashMap<ProcessKey, Inner>,
    /// Threads that may still be read about in this window.
    left: usize,
}

#[derive(Debug, Default)]
struct Inner {
    /// By their own number; none where all are the host's.
    threads: HashMap<u32, Tid>,
    /// It was read in this window.
    fresh: bool,
}

impl InnerThreads {
    pub(crate) fn new(host: Arc<dyn Host>) -> Self {
        Self { host, processes: HashMap::new(), left: INNER_THREADS_READ_MAX }
    }

    /// Another window: what was not found may be looked for again.
    pub(crate) fn begin(&mut self) {
        self.left = INNER_THREADS_READ_MAX;
        for process in self.processes.values_mut() {
            process.fresh = process.threads.is_empty(); // namespaces of a process stay
        }
    }

    /// The thread that has this number in its process.
    pub(crate) fn thread(&mut self, process: ProcessKey, number: u32) -> Option<Tid> {
        if self.processes.len() >= INNER_PROCESSES_MAX && !self.processes.contains_key(&process) {
            self.processes.clear();
        }
        let inner = self.processes.entry(process).or_default();
        if !inner.fresh && !inner.threads.contains_key(&number) && self.left > 0 {
            inner.fresh = true;
            inner.threads = read(self.host.as_ref(), process.pid, self.left);
            self.left = self.left.saturating_sub(inner.threads.len().max(1));
        }
        if inner.threads.is_empty() {
            return Some(Tid(number));
        }
        inner.threads.get(&number).copied()
    }
}

fn read(host: &dyn Host, pid: Pid, max: usize) -> HashMap<u32, Tid> {
    let numbers = host.inner_numbers(pid, max).unwrap_or_default();
    numbers.into_iter().map(|(tid, inner)| (inner, tid)).collect()
}
