//! Threads that wait since before the agent came: no switch told of them, and of those that never wake none ever will. Their
//! waits begin, for the kernel side, when they are found; a few are looked at with each poll.

use crate::address::{Pid, Tid};
use crate::clock::monotonic_now;
use crate::engine::Sampling;
use crate::limits::ASLEEP_READ_PER_POLL;
use crate::process::host::{Host, Task};
use agent_ebpf::WaitingThread;
use std::io;
use std::sync::Arc;

/// Those that are to be looked at.
#[derive(Debug)]
pub(crate) struct WaitingBefore {
    host: Arc<dyn Host>,
    pids: Vec<Pid>,
    tasks: Vec<Task>,
}

impl WaitingBefore {
    pub(crate) fn new(host: Arc<dyn Host>, pids: Vec<Pid>) -> Self {
        Self { host, pids, tasks: Vec::new() }
    }

    /// Tells the kernel side of some. Answers how many live and could not be looked at.
    pub(crate) fn go_on(&mut self, sampler: &mut dyn Sampling) -> u64 {
        let mut refused = 0;
        for _ in 0..ASLEEP_READ_PER_POLL {
            while self.tasks.is_empty() {
                let Some(pid) = self.pids.pop() else { return refused };
                let threads = self.host.threads(pid);
                refused += u64::from(is_refused(&threads));
                let threads = threads.unwrap_or_default().into_iter();
                self.tasks = threads.map(|tid| Task { pid, tid }).collect();
            }
            let Some(task) = self.tasks.pop() else { return refused };
            refused += u64::from(is_refused(&self.tell(task, sampler)));
        }
        refused
    }

    fn tell(&self, task: Task, sampler: &mut dyn Sampling) -> io::Result<()> {
        let Some(before) = self.host.asleep(task)? else { return Ok(()) };
        let Task { pid: Pid(tgid), tid: Tid(tid) } = task;
        let thread = WaitingThread {
            tgid,
            class: before.class as u32,
            comm: before.comm,
            since_ns: monotonic_now().0,
            ..WaitingThread::default()
        };
        // One that switched meanwhile is known already, better than here.
        if sampler.begin_wait(Tid(tid), &thread) && !matches!(self.host.asleep(task), Ok(Some(_))) {
            sampler.forget_wait(Tid(tid), &thread);
        }
        Ok(())
    }
}

/// True if a thread, or a process, is there and was not to be read.
fn is_refused<T>(read: &io::Result<T>) -> bool {
    read.as_ref().is_err_and(|error| {
        error.kind() != io::ErrorKind::NotFound && error.raw_os_error() != Some(libc::ESRCH)
    })
}
