//! Looks behind mappings, and at processes, on threads of their own: opening, `fstat` and reading a foreign file
//! wait for as long as its file system likes, and a dead mount never answers; mappings and environment of a
//! process wait for its `mmap_lock` and for the end of its exec (`mm_access`, kernel/fork.c). Whoever asks waits a
//! moment, as for a local disk, then goes on without; what comes late is kept for whoever asks again. What a file
//! is, is said by [`Files`].

mod job;
mod postponed;

use super::cgroup::CgroupIdentity;
use super::files::{Backing, Files};
use super::host::Task;
use super::maps::{Maps, MapsEntry};
use crate::address::Pid;
use crate::bpf::Inode;
use crate::clock::{MonotonicNs, monotonic_now};
use crate::limits::{
    LOOK_KEPT_NS, LOOK_QUEUE_BYTES_MAX, LOOK_QUEUE_MAX, LOOK_THREADS, LOOK_THREADS_MAX, LOOK_WAIT,
    LOOKS_HELD_MAX, LOOKS_KEPT_BYTES_MAX, LOOKS_KEPT_MAX,
};
use hashbrown::{HashMap, HashSet};
use job::{Answer, Job, Place, Progress, Question};
use postponed::{Patience, Postponed};
use proto::BuildId;
use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A mapping whose file is asked for, to be handed to another thread; see [`super::files::Wanted`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// Where and which.
    pub mapping: MapsEntry,
    /// Build id that the kernel reported with the mapping.
    pub build_id: Option<BuildId>,
    /// Which file it reported, where there is none, and when it was mapped.
    pub inode: Option<(Inode, MonotonicNs)>,
}

/// A process that is looked at, and those of its mappings that are asked for together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Look {
    /// Which.
    pub pid: Pid,
    /// Since when it runs its program: an answer of the program before is none.
    pub program: MonotonicNs,
    /// Who maps them, `None` if it does no longer.
    pub task: Option<Task>,
    /// Who may see the same files.
    pub relatives: [Task; 2],
    /// The mappings.
    pub asked: Vec<Asked>,
}

/// What `/proc` lists of a process.
#[derive(Debug)]
pub struct Listed {
    /// When it was asked.
    pub at: MonotonicNs,
    /// What the answer took, nanoseconds.
    pub taken_ns: u64,
    /// CPU time of it, nanoseconds.
    pub cpu_ns: u64,
    /// Its mappings, `None` if it is gone, or shielded.
    pub maps: Option<Maps>,
    /// See [`super::host::Host::executable`].
    pub executable: Option<Vec<u8>>,
}

/// What a process runs in.
#[derive(Debug)]
pub struct Surroundings {
    /// See [`super::host::Host::service_name`].
    pub service: io::Result<Option<String>>,
    /// Container and unit.
    pub cgroup: Option<CgroupIdentity>,
}

/// A question that was handed over.
#[derive(Debug)]
pub struct Ticket(Result<(Arc<Job>, Duration), Option<Answer>>);

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
    /// Mappings and processes that were not looked at, because a look at the same path of the same mounts, or at
    /// the same of the process, is stuck.
    pub held: u64,
    /// Answers that came late and nobody asked for again.
    pub forgotten: u64,
    /// Looks that were not taken, because too many wait.
    pub refused: u64,
    /// Looks that were not waited for, because the engine has waited for others since its last poll.
    pub postponed: u64,
    /// Files at which a parser panicked.
    pub panics: u64,
}

impl LookCounts {
    fn and(self, other: Self) -> Self {
        let Self { late, stuck, held, forgotten, refused, postponed, panics } = other;
        Self {
            late: self.late + late,
            stuck: self.stuck + stuck,
            held: self.held + held,
            forgotten: self.forgotten + forgotten,
            refused: self.refused + refused,
            postponed: self.postponed + postponed,
            panics: self.panics + panics,
        }
    }
}

/// Who looks: in place, or threads. Dropping it ends the threads that are not stuck.
#[derive(Debug)]
pub struct Looks {
    files: Arc<Files>,
    /// `None`: looks happen on the thread that asks.
    pools: Option<Pools>,
    /// How long is waited until the next poll.
    patience: Patience,
    /// Looks that nobody waits for.
    postponed: Mutex<Vec<Postponed>>,
}

/// Threads for files and threads for processes: neither takes away the other's.
#[derive(Debug, Default)]
struct Pools {
    files: Arc<Shared>,
    processes: Arc<Shared>,
}

impl Pools {
    fn of(&self, question: Question) -> &Arc<Shared> {
        match question {
            Question::Behind => &self.files,
            Question::List | Question::Surroundings => &self.processes,
        }
    }

    fn all(&self) -> [&Arc<Shared>; 2] {
        [&self.files, &self.processes]
    }
}

#[derive(Debug, Default)]
struct Shared {
    queue: Mutex<Queue>,
    wake: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    jobs: VecDeque<Arc<Job>>,
    /// Bytes of what they ask.
    jobs_bytes: usize,
    threads: usize,
    /// Places at which a look is stuck, and who else asked for them.
    held: HashMap<Place, Vec<Pid>>,
    /// Looks that were done late, and when.
    kept: VecDeque<(MonotonicNs, Arc<Job>)>,
    /// Their bytes.
    kept_bytes: usize,
    /// Processes whose looks found no room.
    refused: HashSet<Pid>,
    /// Processes whose looks came late and can be asked for again.
    late: Vec<Pid>,
    closed: bool,
    counts: LookCounts,
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

    /// Keeps a look that was done late for who asks again.
    fn keep(&mut self, job: &Arc<Job>) {
        let bytes = job.bytes_answered();
        while (self.kept.len() >= LOOKS_KEPT_MAX
            || self.kept_bytes.saturating_add(bytes) > LOOKS_KEPT_BYTES_MAX)
            && self.forget_first(|_| true)
        {}
        self.kept_bytes = self.kept_bytes.saturating_add(bytes);
        self.kept.push_back((monotonic_now(), Arc::clone(job)));
    }

    fn forget_kept(&mut self) {
        let now = monotonic_now();
        while self.forget_first(|at| now.since(at) > LOOK_KEPT_NS) {}
    }

    fn forget_first(&mut self, is_over: impl FnOnce(MonotonicNs) -> bool) -> bool {
        let first = self.kept.pop_front_if(|(at, _)| is_over(*at));
        if let Some((_, job)) = &first {
            self.kept_bytes = self.kept_bytes.saturating_sub(job.bytes_answered());
            self.counts.forgotten += 1;
        }
        first.is_some()
    }

    /// Puts a look into the queue. False if there is no room; a single one always has it.
    fn push(&mut self, job: &Arc<Job>) -> bool {
        let bytes = self.jobs_bytes.saturating_add(job.bytes());
        let full = self.jobs.len() >= LOOK_QUEUE_MAX || bytes > LOOK_QUEUE_BYTES_MAX;
        if full && !self.jobs.is_empty() {
            return false;
        }
        self.jobs_bytes = bytes;
        self.jobs.push_back(Arc::clone(job));
        true
    }

    fn pop(&mut self) -> Option<Arc<Job>> {
        let job = self.jobs.pop_front()?;
        self.jobs_bytes = self.jobs_bytes.saturating_sub(job.bytes());
        Some(job)
    }

    /// The answer to this very question, if it came late.
    fn take_kept(&mut self, question: Question, look: &Look) -> Option<Answer> {
        // Who looks, by which thread of it, is no part of the question.
        let key = |look: &Look| (look.pid, look.program);
        let same = |(_, job): &(_, Arc<Job>)| {
            job.question == question && key(&job.look) == key(look) && job.look.asked == look.asked
        };
        let at = self.kept.iter().position(same)?;
        let (_, job) = self.kept.remove(at)?;
        self.kept_bytes = self.kept_bytes.saturating_sub(job.bytes_answered());
        match std::mem::replace(&mut *locked(&job.progress), Progress::Over) {
            Progress::Done(answer) => Some(answer),
            _ => None,
        }
    }

    /// True if a look at this place is stuck; `pid` is told when it is over.
    fn is_held(&mut self, place: &Place, pid: Pid) -> bool {
        let Some(pids) = self.held.get_mut(place) else { return false };
        if pids.len() < LOOKS_HELD_MAX && pids.last() != Some(&pid) {
            pids.push(pid);
        }
        self.counts.held += 1;
        true
    }
}

impl Looks {
    /// Looks on the thread that asks, for tests.
    #[cfg(test)]
    pub(crate) fn in_place(files: Arc<Files>) -> Self {
        Self { files, pools: None, patience: Patience::default(), postponed: Mutex::default() }
    }

    /// Starts the threads.
    ///
    /// # Errors
    /// When the host refuses a thread.
    pub fn start(files: Arc<Files>) -> io::Result<Self> {
        let pools = Pools::default();
        for shared in pools.all() {
            for _ in 0..LOOK_THREADS {
                spawn(shared, &files)?;
            }
        }
        let (patience, postponed) = (Patience::default(), Mutex::default());
        Ok(Self { files, pools: Some(pools), patience, postponed })
    }

    /// What happened so far.
    #[must_use]
    pub fn counts(&self) -> LookCounts {
        let pools = self.pools.iter().flat_map(Pools::all);
        pools.fold(LookCounts::default(), |sum, shared| sum.and(locked(&shared.queue).counts))
    }

    /// The engine begins a poll: until the next one it waits a moment in all, however many looks it asks for.
    /// Before the first one each look has its own.
    pub fn begin_poll(&self) {
        self.patience.begin_poll();
    }

    /// Processes whose looks came late: what they asked for can be had at once now.
    pub fn take_late(&self) -> Vec<Pid> {
        self.look_after_postponed();
        let pools = self.pools.iter().flat_map(Pools::all);
        let late = pools.flat_map(|shared| {
            let mut queue = locked(&shared.queue);
            queue.forget_kept();
            std::mem::take(&mut queue.late)
        });
        late.collect()
    }

    /// What stands behind each mapping, in their order. Waits a moment at most.
    pub fn look(&self, look: Look) -> Vec<Seen> {
        if look.asked.is_empty() {
            return Vec::new();
        }
        let mut seen: Vec<Option<Backing>> = vec![None; look.asked.len()];
        let view: Arc<[u8]> = match &self.pools {
            Some(_) => self.files.view(&look).into(),
            None => Arc::default(),
        };
        let (places, part) = self.without_held(look.clone(), &view);
        if !part.asked.is_empty()
            && let Some(Answer::Behind(found)) =
                self.wait(self.hand_over(Question::Behind, part, view))
        {
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

    /// What `/proc` lists of a process. `None` if it does not answer in a moment: the process is among the late
    /// ones when it has.
    pub fn list(&self, look: Look) -> Option<Listed> {
        match self.wait(self.ask(Question::List, look))? {
            Answer::List(listed) => Some(listed),
            _ => None,
        }
    }

    /// Asks for the surroundings of a process, without waiting for them.
    pub fn ask_surroundings(&self, look: Look) -> Ticket {
        self.ask(Question::Surroundings, look)
    }

    /// What a process runs in. `None` if it does not answer in a moment; asked again, it says so at once.
    pub fn surroundings(&self, ticket: Ticket) -> Option<Surroundings> {
        match self.wait(ticket)? {
            Answer::Surroundings(surroundings) => Some(surroundings),
            _ => None,
        }
    }

    /// The part of a look that meets no path where another one is stuck, and the places of its mappings.
    fn without_held(&self, look: Look, view: &Arc<[u8]>) -> (Vec<usize>, Look) {
        let Some(pools) = &self.pools else { return ((0..look.asked.len()).collect(), look) };
        let mut queue = locked(&pools.files.queue);
        if queue.held.is_empty() {
            return ((0..look.asked.len()).collect(), look);
        }
        let (pid, program) = (look.pid, look.program);
        let mut places = Vec::with_capacity(look.asked.len());
        let mut asked = Vec::with_capacity(look.asked.len());
        for (place, one) in look.asked.into_iter().enumerate() {
            let path = one.mapping.path.clone();
            if !queue.is_held(&Place::new(view, (pid, program), path), pid) {
                places.push(place);
                asked.push(one);
            }
        }
        (places, Look { asked, ..look })
    }

    /// Asks of a process itself, unless such a question is stuck.
    fn ask(&self, question: Question, look: Look) -> Ticket {
        let view = Arc::default();
        if let Some(pools) = &self.pools {
            let place = question.place(&look, &view, 0);
            let mut queue = locked(&pools.of(question).queue);
            if place.is_some_and(|place| queue.is_held(&place, look.pid)) {
                return Ticket(Err(None));
            }
        }
        self.hand_over(question, look, view)
    }

    fn hand_over(&self, question: Question, look: Look, view: Arc<[u8]>) -> Ticket {
        let (progress, done) = (Mutex::new(Progress::Waiting), Condvar::new());
        let job = Arc::new(Job { question, look, view, progress, done });
        let Some(pools) = &self.pools else {
            let (answer, _panics) = job.answer(&self.files);
            return Ticket(Err(answer));
        };
        let shared = pools.of(question);
        let mut queue = locked(&shared.queue);
        if let Some(answer) = queue.take_kept(question, &job.look) {
            return Ticket(Err(Some(answer)));
        }
        if !queue.push(&job) {
            queue.counts.refused += 1;
            // It asks again when there is room: before, it would be refused again.
            if queue.refused.len() < LOOKS_HELD_MAX {
                queue.refused.insert(job.look.pid);
            }
            return Ticket(Err(None));
        }
        let busy = usize::try_from(queue.counts.stuck).unwrap_or(usize::MAX);
        let wait = if queue.threads > busy { LOOK_WAIT } else { Duration::ZERO };
        drop(queue);
        shared.wake.notify_one();
        Ticket(Ok((job, wait)))
    }

    fn wait(&self, ticket: Ticket) -> Option<Answer> {
        let (job, wait) = match ticket.0 {
            Ok(job) => job,
            Err(answer) => return answer,
        };
        let (answer, enough) = self.patience.spend(wait, |wait| job.wait(wait));
        if answer.is_some() {
            return answer;
        }
        let pools = self.pools.as_ref()?;
        let shared = pools.of(job.question);
        if !enough {
            locked(&shared.queue).counts.postponed += 1;
            locked(&self.postponed).push(Postponed::new(job));
            return None;
        }
        let answer = job.abandon();
        if answer.is_none() {
            self.abandoned(shared, &job);
        }
        answer
    }

    /// A look takes too long: another thread takes the place of the one that is at it.
    fn abandoned(&self, shared: &Arc<Shared>, job: &Job) {
        let mut queue = locked(&shared.queue);
        queue.counts.late += 1;
        let place = match &mut *locked(&job.progress) {
            Progress::Abandoned { place: Some(place), stuck } => {
                *stuck = true;
                place.clone()
            }
            _ => return,
        };
        let path = place.path.clone();
        queue.held.entry(place).or_default().push(job.look.pid);
        queue.counts.stuck += 1;
        let more = queue.threads < LOOK_THREADS_MAX;
        let stuck = queue.counts.stuck;
        drop(queue);
        let (path, pid) = (String::from_utf8_lossy(&path), job.look.pid.0);
        if more {
            tracing::warn!(%path, pid, stuck, "a file does not answer; others are looked at meanwhile");
            if let Err(error) = spawn(shared, &self.files) {
                tracing::warn!(%error, "no thread to look at other files");
            }
        } else {
            tracing::warn!(%path, pid, stuck, "too many files do not answer: new files have no tables");
        }
    }
}

impl Drop for Looks {
    fn drop(&mut self) {
        // Nobody joins the threads: one that is stuck would hold up the end of the agent.
        for shared in self.pools.iter().flat_map(Pools::all) {
            locked(&shared.queue).closed = true;
            shared.wake.notify_all();
        }
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
                    && let Some(job) = queue.pop()
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

fn work(shared: &Shared, files: &Files, job: &Arc<Job>) {
    let (answer, panics) = job.answer(files);
    let mut queue = locked(&shared.queue);
    queue.counts.panics += panics;
    let mut progress = locked(&job.progress);
    let after = answer.map_or(Progress::Over, Progress::Done);
    let Progress::Abandoned { place, stuck } = std::mem::replace(&mut *progress, after) else {
        job.done.notify_all();
        return;
    };
    // Whoever wants to know what a process runs in asks with its next sample.
    let told = job.question != Question::Surroundings;
    if told {
        queue.late.push(job.look.pid);
    }
    let done = matches!(&*progress, Progress::Done(_));
    drop(progress);
    if done {
        queue.keep(job);
    }
    if let (Some(place), true) = (place, stuck) {
        let pids = queue.held.remove(&place).unwrap_or_default();
        if told {
            queue.late.extend(pids);
        }
        queue.counts.stuck = queue.counts.stuck.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests;
