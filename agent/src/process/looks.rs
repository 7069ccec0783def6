//! Looks behind mappings on threads of their own: opening, `fstat` and reading a foreign file wait for as
//! long as its file system likes, and a dead mount never answers. Whoever asks waits a moment, as for a
//! local disk, then goes on without; what comes late is asked for again. What a file is, is said by
//! [`Files`].

use super::files::{Backing, Files, Wanted};
use super::host::Task;
use super::maps::MapsEntry;
use crate::address::Pid;
use crate::limits::{LOOK_QUEUE_MAX, LOOK_THREADS, LOOK_THREADS_MAX, LOOK_WAIT, LOOKS_HELD_MAX};
use hashbrown::{HashMap, HashSet};
use proto::BuildId;
use std::collections::VecDeque;
use std::io;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A mapping whose file is asked for, to be handed to another thread; see [`Wanted`].
#[derive(Clone, Debug)]
pub struct Asked {
    /// Where and which.
    pub mapping: MapsEntry,
    /// Build id that the kernel reported with the mapping.
    pub build_id: Option<BuildId>,
}

/// The mappings of one process that are looked at together.
#[derive(Clone, Debug)]
pub struct Look {
    /// Whose they are.
    pub pid: Pid,
    /// Who maps them, `None` if it does no longer.
    pub task: Option<Task>,
    /// Who may see the same files.
    pub relatives: [Task; 2],
    /// The mappings.
    pub asked: Vec<Asked>,
}

/// What stands behind a mapping, or stands in for it.
#[derive(Clone, Debug)]
pub struct Seen {
    /// The file.
    pub backing: Backing,
    /// True if nobody knows yet: it is a file without facts until then.
    pub awaited: bool,
}

/// What happened so far, for the metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LookCounts {
    /// Looks that took longer than anybody waited.
    pub late: u64,
    /// Looks that wait now for a file system that does not answer.
    pub stuck: u64,
    /// Mappings that were not looked at, because a look at the same path of the same mounts is stuck.
    pub held: u64,
    /// Looks that were not taken, because too many wait.
    pub refused: u64,
    /// Files at which a parser panicked.
    pub panics: u64,
}

/// Who looks: in place, or threads. Dropping it ends the threads that are not stuck.
#[derive(Debug)]
pub struct Looks {
    files: Arc<Files>,
    /// `None`: looks happen on the thread that asks.
    shared: Option<Arc<Shared>>,
}

#[derive(Debug, Default)]
struct Shared {
    queue: Mutex<Queue>,
    wake: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    jobs: VecDeque<Arc<Job>>,
    threads: usize,
    /// Places at which a look is stuck, and who else asked for them.
    held: HashMap<Place, Vec<Pid>>,
    /// Processes whose looks found no room.
    refused: HashSet<Pid>,
    /// Processes whose looks came late and can be asked for again.
    late: Vec<Pid>,
    closed: bool,
    counts: LookCounts,
}

/// A path, and by whose mounts it is meant: every container may have its own file there.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Place {
    view: Arc<[u8]>,
    path: Vec<u8>,
}

#[derive(Debug)]
struct Job {
    look: Look,
    view: Arc<[u8]>,
    progress: Mutex<Progress>,
    done: Condvar,
}

#[derive(Debug)]
enum Progress {
    Waiting,
    /// A thread is at this mapping.
    At(usize),
    Done(Vec<Backing>),
    /// Nobody waits for it any more; it was at this path, or had not begun. `stuck`: it is counted so.
    Abandoned {
        path: Option<Vec<u8>>,
        stuck: bool,
    },
    /// Abandoned, and over since.
    Over,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Queue {
    /// Lets those that were refused ask again, as many as there is room for; only once half of it is free, so
    /// that they are not refused again one by one.
    fn readmit(&mut self) {
        if self.jobs.len() > LOOK_QUEUE_MAX / 2 || self.refused.is_empty() {
            return;
        }
        let room = LOOK_QUEUE_MAX - self.jobs.len();
        let pids: Vec<Pid> = self.refused.iter().copied().take(room).collect();
        for pid in pids {
            self.refused.remove(&pid);
            self.late.push(pid);
        }
    }
}

impl Looks {
    /// Looks on the thread that asks, for tests.
    #[cfg(test)]
    pub(crate) fn in_place(files: Arc<Files>) -> Self {
        Self { files, shared: None }
    }

    /// Starts the threads.
    ///
    /// # Errors
    /// When the host refuses a thread.
    pub fn start(files: Arc<Files>) -> io::Result<Self> {
        let shared: Arc<Shared> = Arc::default();
        for _ in 0..LOOK_THREADS {
            spawn(&shared, &files)?;
        }
        Ok(Self { files, shared: Some(shared) })
    }

    /// What happened so far.
    #[must_use]
    pub fn counts(&self) -> LookCounts {
        self.shared.as_ref().map(|shared| locked(&shared.queue).counts).unwrap_or_default()
    }

    /// Processes whose looks came late: what they asked for can be had at once now.
    pub fn take_late(&self) -> Vec<Pid> {
        let late = self.shared.as_ref().map(|shared| {
            let mut queue = locked(&shared.queue);
            std::mem::take(&mut queue.late)
        });
        late.unwrap_or_default()
    }

    /// What stands behind each mapping, in their order. Waits a moment at most.
    pub fn look(&self, look: Look) -> Vec<Seen> {
        if look.asked.is_empty() {
            return Vec::new();
        }
        let Some(shared) = &self.shared else {
            let found = look.asked.iter().map(|asked| self.files.behind(look.wanted(asked)));
            return found.map(|backing| Seen { backing, awaited: false }).collect();
        };
        let count = look.asked.len();
        let mut seen: Vec<Option<Backing>> = vec![None; count];
        let view: Arc<[u8]> = self.files.view(&look).into();
        let (places, job) = self.without_held(shared, look.clone(), &view);
        if !job.asked.is_empty() {
            let found = self.ask(shared, job, view).unwrap_or_default();
            for (place, backing) in places.iter().zip(found) {
                if let Some(seen) = seen.get_mut(*place) {
                    *seen = Some(backing);
                }
            }
        }
        let asked = seen.into_iter().zip(&look.asked);
        let answer = asked.map(|(backing, asked)| match backing {
            Some(backing) => Seen { backing, awaited: false },
            None => {
                let backing = self.files.stand_in(&asked.mapping.path, asked.build_id.as_ref());
                // What has no path has no file that could come.
                Seen { awaited: matches!(backing, Backing::File(_)), backing }
            }
        });
        answer.collect()
    }

    /// The part of a look that meets no path where another one is stuck, and the places of its mappings.
    fn without_held(&self, shared: &Shared, look: Look, view: &Arc<[u8]>) -> (Vec<usize>, Look) {
        let mut queue = locked(&shared.queue);
        let mut places = Vec::with_capacity(look.asked.len());
        let mut asked = Vec::with_capacity(look.asked.len());
        for (place, one) in look.asked.into_iter().enumerate() {
            let held = match queue.held.is_empty() {
                true => None,
                false => queue.held.get_mut(&Place::new(view, &one.mapping.path)),
            };
            if let Some(pids) = held {
                if pids.len() < LOOKS_HELD_MAX && pids.last() != Some(&look.pid) {
                    pids.push(look.pid);
                }
                queue.counts.held += 1;
            } else {
                places.push(place);
                asked.push(one);
            }
        }
        (places, Look { asked, ..look })
    }

    /// Hands a look over and waits for it.
    fn ask(&self, shared: &Arc<Shared>, look: Look, view: Arc<[u8]>) -> Option<Vec<Backing>> {
        let (progress, done) = (Mutex::new(Progress::Waiting), Condvar::new());
        let job = Arc::new(Job { look, view, progress, done });
        let wait = {
            let mut queue = locked(&shared.queue);
            if queue.jobs.len() >= LOOK_QUEUE_MAX {
                queue.counts.refused += 1;
                // It asks again when there is room: before, it would be refused again.
                if queue.refused.len() < LOOKS_HELD_MAX {
                    queue.refused.insert(job.look.pid);
                }
                return None;
            }
            queue.jobs.push_back(Arc::clone(&job));
            let busy = usize::try_from(queue.counts.stuck).unwrap_or(usize::MAX);
            if queue.threads > busy { LOOK_WAIT } else { Duration::ZERO }
        };
        shared.wake.notify_one();
        let found = job.wait(wait);
        if found.is_none() {
            self.abandoned(shared, &job);
        }
        found
    }

    /// A look takes too long: another thread takes the place of the one that is at it.
    fn abandoned(&self, shared: &Arc<Shared>, job: &Job) {
        let mut queue = locked(&shared.queue);
        queue.counts.late += 1;
        let path = match &mut *locked(&job.progress) {
            Progress::Abandoned { path: Some(path), stuck } => {
                *stuck = true;
                path.clone()
            }
            _ => return,
        };
        // What has no path (the vDSO) is every process's own.
        if path.starts_with(b"/") {
            let place = Place::new(&job.view, &path);
            queue.held.entry(place).or_default().push(job.look.pid);
        }
        queue.counts.stuck += 1;
        let more = queue.threads < LOOK_THREADS_MAX;
        let stuck = queue.counts.stuck;
        drop(queue);
        let path = String::from_utf8_lossy(&path);
        if more {
            tracing::warn!(%path, stuck, "a file does not answer; others are looked at meanwhile");
            if let Err(error) = spawn(shared, &self.files) {
                tracing::warn!(%error, "no thread to look at other files");
            }
        } else {
            tracing::warn!(%path, stuck, "too many files do not answer: new files have no tables");
        }
    }
}

impl Drop for Looks {
    fn drop(&mut self) {
        // Nobody joins the threads: one that is stuck would hold up the end of the agent.
        if let Some(shared) = &self.shared {
            locked(&shared.queue).closed = true;
            shared.wake.notify_all();
        }
    }
}

impl Look {
    fn wanted<'a>(&self, asked: &'a Asked) -> Wanted<'a> {
        Wanted {
            task: self.task,
            relatives: self.relatives,
            mapping: &asked.mapping,
            build_id: asked.build_id.as_ref(),
        }
    }
}

impl Place {
    fn new(view: &Arc<[u8]>, path: &[u8]) -> Self {
        Self { view: Arc::clone(view), path: path.to_vec() }
    }
}

impl Job {
    /// Waits until it is done; abandons it if that takes too long.
    fn wait(&self, wait: Duration) -> Option<Vec<Backing>> {
        let progress = locked(&self.progress);
        let unfinished = |progress: &mut Progress| !matches!(progress, Progress::Done(_));
        let (mut progress, _) = self
            .done
            .wait_timeout_while(progress, wait, unfinished)
            .unwrap_or_else(PoisonError::into_inner);
        let path = match &*progress {
            Progress::At(place) => self.look.asked.get(*place).map(|one| one.mapping.path.clone()),
            _ => None,
        };
        match std::mem::replace(&mut *progress, Progress::Abandoned { path, stuck: false }) {
            Progress::Done(found) => Some(found),
            _ => None,
        }
    }

    /// Notes where the thread is. False if nobody waits and it has not begun.
    fn begin(&self, place: usize) -> bool {
        let mut progress = locked(&self.progress);
        if !matches!(&*progress, Progress::Abandoned { .. }) {
            *progress = Progress::At(place);
            return true;
        }
        place > 0
    }
}

fn spawn(shared: &Arc<Shared>, files: &Arc<Files>) -> io::Result<()> {
    let (shared, files) = (Arc::clone(shared), Arc::clone(files));
    locked(&shared.queue).threads += 1;
    let counted = Arc::clone(&shared);
    let thread = std::thread::Builder::new().name("look".to_owned());
    match thread.spawn(move || run(&shared, &files)) {
        Ok(_detached) => Ok(()),
        Err(error) => {
            locked(&counted.queue).threads -= 1;
            Err(error)
        }
    }
}

/// Takes looks until there are more threads than needed, or none is wanted any more.
fn run(shared: &Shared, files: &Files) {
    loop {
        let job = {
            let mut queue = locked(&shared.queue);
            loop {
                let busy = usize::try_from(queue.counts.stuck).unwrap_or(usize::MAX);
                let surplus = queue.threads.saturating_sub(busy) > LOOK_THREADS;
                // A thread too many that was woken for a look takes it: nobody else is woken for it.
                if !queue.closed
                    && let Some(job) = queue.jobs.pop_front()
                {
                    queue.readmit();
                    break job;
                }
                if queue.closed || surplus {
                    queue.threads -= 1;
                    return;
                }
                queue = shared.wake.wait(queue).unwrap_or_else(PoisonError::into_inner);
            }
        };
        work(shared, files, &job);
    }
}

fn work(shared: &Shared, files: &Files, job: &Job) {
    let mut found = Vec::with_capacity(job.look.asked.len());
    let mut panics = 0;
    for (place, asked) in job.look.asked.iter().enumerate() {
        if !job.begin(place) {
            break;
        }
        // A defect of a parser costs the file, never the thread.
        let look = AssertUnwindSafe(|| files.behind(job.look.wanted(asked)));
        found.push(std::panic::catch_unwind(look).unwrap_or_else(|_panic| {
            panics += 1;
            Backing::Anonymous
        }));
    }
    let mut queue = locked(&shared.queue);
    queue.counts.panics += panics;
    let mut progress = locked(&job.progress);
    let Progress::Abandoned { path, stuck } = &*progress else {
        *progress = Progress::Done(found);
        job.done.notify_all();
        return;
    };
    queue.late.push(job.look.pid);
    if let (Some(path), true) = (path, stuck) {
        let pids = queue.held.remove(&Place::new(&job.view, path)).unwrap_or_default();
        queue.late.extend(pids);
        queue.counts.stuck = queue.counts.stuck.saturating_sub(1);
    }
    *progress = Progress::Over;
}

#[cfg(test)]
mod tests;
