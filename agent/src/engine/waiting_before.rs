//! Threads that wait since before the agent came: no switch told of them, and of those that never wake none ever will. Their
//! waits begin, for the kernel side, when they are found; a few are looked at with each poll.

use crate::address::{Pid, Tid};
use crate::clock::monotonic_now;
use crate::engine::Sampling;
use crate::limits::ASLEEP_READ_PER_POLL;
use crate::process::host::{Host, Task};
use agent_ebpf::WaitingThread;
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

    /// Tells the kernel side of some.
    pub(crate) fn go_on(&mut self, sampler: &mut dyn Sampling) {
        for _ in 0..ASLEEP_READ_PER_POLL {
            while self.tasks.is_empty() {
                let Some(pid) = self.pids.pop() else { return };
                let threads = self.host.threads(pid).unwrap_or_default();
                self.tasks = threads.into_iter().map(|tid| Task { pid, tid }).collect();
            }
            let Some(task) = self.tasks.pop() else { return };
            self.tell(task, sampler);
        }
    }

    fn tell(&self, task: Task, sampler: &mut dyn Sampling) {
        let asleep = || self.host.asleep(task).ok().flatten();
        let Some(before) = asleep() else { return };
        let Task { pid: Pid(tgid), tid: Tid(tid) } = task;
        let thread = WaitingThread {
            tgid,
            class: before.class as u32,
            comm: before.comm,
            since_ns: monotonic_now().0,
            ..WaitingThread::default()
        };
        // One that switched meanwhile is known already, better than here.
        if sampler.begin_wait(Tid(tid), &thread) && asleep().is_none() {
            sampler.forget_wait(Tid(tid), &thread);
        }
    }
}
