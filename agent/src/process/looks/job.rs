//! One look: what is asked, how far it is, and how it is answered. Not who waits for it.

use super::{Asked, Listed, Look, Surroundings, locked};
use crate::address::Pid;
use crate::clock::{MonotonicNs, monotonic_now, thread_cpu_ns};
use crate::process::files::{Backing, Files, Wanted};
use crate::process::host::{Host, Task};
use crate::process::maps::MapsEntry;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Question {
    /// What stands behind its mappings.
    Behind,
    /// [`Listed`].
    List,
    /// [`Surroundings`].
    Surroundings,
}

#[derive(Debug)]
pub(super) enum Answer {
    Behind(Vec<Backing>),
    List(Listed),
    Surroundings(Surroundings),
}

/// A path, and by whose mounts it is meant: every container may have its own file there. What is no path is every
/// process's own.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Place {
    view: Arc<[u8]>,
    pub(super) path: Vec<u8>,
}

#[derive(Debug)]
pub(super) struct Job {
    pub(super) question: Question,
    pub(super) look: Look,
    pub(super) view: Arc<[u8]>,
    pub(super) progress: Mutex<Progress>,
    pub(super) done: Condvar,
}

#[derive(Debug)]
pub(super) enum Progress {
    Waiting,
    /// A thread is at this mapping.
    At(usize),
    Done(Answer),
    /// Nobody waits for it any more; it was at this place, or had not begun. `stuck`: it is counted so.
    Abandoned {
        place: Option<Place>,
        stuck: bool,
    },
    /// Abandoned, and over since.
    Over,
}

impl Look {
    fn wanted<'a>(&self, asked: &'a Asked) -> Wanted<'a> {
        Wanted {
            task: self.task,
            relatives: self.relatives,
            mapping: &asked.mapping,
            build_id: asked.build_id.as_ref(),
            inode: asked.inode,
        }
    }
}

impl Place {
    pub(super) fn new(view: &Arc<[u8]>, (pid, program): (Pid, MonotonicNs), path: Vec<u8>) -> Self {
        if path.starts_with(b"/") {
            return Self { view: Arc::clone(view), path };
        }
        Self { view: format!("{} {}", pid.0, program.0).into_bytes().into(), path }
    }
}

impl Answer {
    /// Bytes that it holds, about.
    fn bytes(&self) -> usize {
        match self {
            Self::Behind(found) => found.len() * size_of::<Backing>(),
            Self::List(Listed { maps, .. }) => {
                let entries = maps.iter().flat_map(|maps| &maps.entries);
                entries.map(|entry| size_of::<MapsEntry>() + entry.path.len()).sum()
            }
            Self::Surroundings(_) => size_of::<Surroundings>(),
        }
    }
}

impl Question {
    /// What is asked at this step, for a thread that is stuck there.
    pub(super) fn place(self, look: &Look, view: &Arc<[u8]>, step: usize) -> Option<Place> {
        let path = match self {
            Self::Behind => look.asked.get(step)?.mapping.path.clone(),
            Self::List => b"maps".to_vec(),
            Self::Surroundings => b"environ".to_vec(),
        };
        Some(Place::new(view, (look.pid, look.program), path))
    }
}

impl Job {
    /// Bytes of what is asked, about.
    pub(super) fn bytes(&self) -> usize {
        let asked = self.look.asked.iter();
        asked.map(|asked| size_of::<Asked>() + asked.mapping.path.len()).sum()
    }

    /// Bytes of that and of its answer.
    pub(super) fn bytes_answered(&self) -> usize {
        let answer = match &*locked(&self.progress) {
            Progress::Done(answer) => answer.bytes(),
            _ => 0,
        };
        self.bytes() + answer
    }

    /// Waits until it is done, so long at most.
    pub(super) fn wait(&self, wait: Duration) -> Option<Answer> {
        let progress = locked(&self.progress);
        let unfinished = |progress: &mut Progress| !matches!(progress, Progress::Done(_));
        let (mut progress, _) = self
            .done
            .wait_timeout_while(progress, wait, unfinished)
            .unwrap_or_else(PoisonError::into_inner);
        if !matches!(&*progress, Progress::Done(_)) {
            return None;
        }
        match std::mem::replace(&mut *progress, Progress::Over) {
            Progress::Done(answer) => Some(answer),
            _ => None,
        }
    }

    /// Nobody waits for it any more. Answers it if it is done after all.
    pub(super) fn abandon(&self) -> Option<Answer> {
        let mut progress = locked(&self.progress);
        let place = match &*progress {
            Progress::At(step) => self.question.place(&self.look, &self.view, *step),
            _ => None,
        };
        match std::mem::replace(&mut *progress, Progress::Abandoned { place, stuck: false }) {
            Progress::Done(answer) => Some(answer),
            _ => None,
        }
    }

    /// Notes where the thread is. False if nobody waits and it has not begun.
    fn begin(&self, step: usize) -> bool {
        let mut progress = locked(&self.progress);
        if !matches!(&*progress, Progress::Abandoned { .. }) {
            *progress = Progress::At(step);
            return true;
        }
        step > 0
    }

    /// The answer, `None` if nobody waits for it any more; and how many parsers panicked.
    pub(super) fn answer(&self, files: &Files) -> (Option<Answer>, u64) {
        if self.question != Question::Behind && !self.begin(0) {
            return (None, 0);
        }
        match self.question {
            Question::Behind => self.behind(files),
            Question::List => (self.look.task.map(|task| list(files.host(), task)), 0),
            Question::Surroundings => {
                (self.look.task.map(|task| surroundings(files.host(), task)), 0)
            }
        }
    }

    fn behind(&self, files: &Files) -> (Option<Answer>, u64) {
        let mut found = Vec::with_capacity(self.look.asked.len());
        let mut panics = 0;
        for (step, asked) in self.look.asked.iter().enumerate() {
            if !self.begin(step) {
                return (None, panics);
            }
            // A defect of a parser costs the file, never the thread.
            let look = AssertUnwindSafe(|| files.behind(self.look.wanted(asked)));
            found.push(std::panic::catch_unwind(look).unwrap_or_else(|_panic| {
                panics += 1;
                Backing::Anonymous
            }));
        }
        (Some(Answer::Behind(found)), panics)
    }
}

fn list(host: &dyn Host, task: Task) -> Answer {
    let (at, cpu_ns) = (monotonic_now(), thread_cpu_ns());
    let maps = host.maps(task).ok();
    let executable = host.executable(task).ok();
    let (taken_ns, cpu_ns) = (monotonic_now().since(at), thread_cpu_ns().saturating_sub(cpu_ns));
    Answer::List(Listed { at, taken_ns, cpu_ns, maps, executable })
}

fn surroundings(host: &dyn Host, task: Task) -> Answer {
    let service = host.service_name(task);
    Answer::Surroundings(Surroundings { service, cgroup: host.cgroup(task.pid).ok() })
}
