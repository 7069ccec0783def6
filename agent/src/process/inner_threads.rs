//! Which thread a number means that a program wrote down itself: in a container it is one of the container's PID namespace.
//! Read when a lock names its holder, and again when it names one that is not known.

use super::host::Host;
use crate::address::Tid;
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
    /// By their own number, none where all are the host's; `None` before they could be read.
    threads: Option<HashMap<u32, Tid>>,
    /// They need not be read again in this window.
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
            // Namespaces of a process stay.
            process.fresh = process.threads.as_ref().is_some_and(HashMap::is_empty);
        }
    }

    /// The thread that has this number in its process.
    pub(crate) fn thread(&mut self, process: ProcessKey, number: u32) -> Option<Tid> {
        if self.processes.len() >= INNER_PROCESSES_MAX && !self.processes.contains_key(&process) {
            self.processes.clear();
        }
        let inner = self.processes.entry(process).or_default();
        let known = inner.threads.as_ref().is_some_and(|threads| threads.contains_key(&number));
        if !inner.fresh && !known && self.left > 0 {
            inner.fresh = true;
            let read = self.host.inner_numbers(process.pid, self.left);
            self.left = self.left.saturating_sub(read.as_ref().map_or(0, Vec::len).max(1));
            if let Ok(numbers) = read {
                let by_own = numbers.into_iter().map(|(tid, own)| (own, tid));
                inner.threads = Some(by_own.collect());
            }
        }
        match &inner.threads {
            Some(threads) if !threads.is_empty() => threads.get(&number).copied(),
            _ => Some(Tid(number)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::Pid;
    use crate::process::host::ProcFs;

    #[test]
    fn a_process_that_was_not_read_is_read_later() {
        let root = tempfile::tempdir().unwrap();
        let mut inner = InnerThreads::new(Arc::new(ProcFs::new(root.path().to_owned())));
        let process = ProcessKey { pid: Pid(50), start_time_ns: 1 };
        assert_eq!(inner.thread(process, 7), Some(Tid(7)), "it cannot be read");
        let thread = root.path().join("50/task/51");
        std::fs::create_dir_all(&thread).unwrap();
        std::fs::write(thread.join("status"), "NSpid:\t51\t7\n").unwrap();
        assert_eq!(inner.thread(process, 7), Some(Tid(7)), "once a window");
        inner.begin();
        inner.left = 0;
        assert_eq!(inner.thread(process, 7), Some(Tid(7)), "others were read about");
        inner.begin();
        assert_eq!(inner.thread(process, 7), Some(Tid(51)));
        assert_eq!(inner.thread(process, 8), None);
    }
}
