//! Keeps the locks of every Go program and of every C library probed, as long as a process maps it: a probe holds its
//! file, and with it the file system. Looking into a file and attaching take milliseconds to seconds, so a thread does it.

use super::go::lock_functions;
use super::libc::{WaitingCall, waiting_calls};
use crate::address::FileId;
use crate::bpf::{Attached, BpfError, LibcProbes, LockProbes, ProbeCost};
use crate::elf::ForeignFileError;
use crate::engine::OpenFiles;
use crate::limits::{
    PROBE_LEAVING_STEPS_MAX, PROBE_ORDERS_MAX, PROBE_PAUSE_WINDOWS, PROBE_REFUSALS_MAX,
    PROBED_DESCRIPTORS_MAX, PROBED_FILES_MAX, PROBED_PLACES_MAX, PROBES_END_PATIENCE,
};
use crate::process::files::{Files, LockOwner};
use hashbrown::HashMap;
use std::collections::VecDeque;
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{
    Receiver, RecvTimeoutError, Sender, SyncSender, TryRecvError, TrySendError, channel,
    sync_channel,
};

mod taken;
#[cfg(test)]
mod tests;

use taken::Taken;

/// What happened so far, for the metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProbeCounts {
    /// Go programs whose locks are probed now, those included whose probes are about to be taken away.
    pub programs: u64,
    /// C libraries whose locks are probed now, those in programs that are linked statically included.
    pub libraries: u64,
    /// Files that have no locks to probe.
    pub without: u64,
    /// Times that a Go program could not be probed.
    pub programs_failed: u64,
    /// Times that a C library could not be.
    pub libraries_failed: u64,
    /// Times that a file found no room: too many files, or places in them, are probed, or by too many descriptors.
    pub refused: u64,
    /// Times that the probes of a file were taken away because they were met too often.
    pub over_budget: u64,
    /// What a hit in a Go program costs whoever meets it; 0 as long as that is not measured.
    pub go: ProbeCost,
    /// What one in a C library costs.
    pub libc: ProbeCost,
}

/// The engine's end.
pub struct LockKeeper {
    orders: SyncSender<Order>,
    answers: Receiver<(FileId, Answer)>,
    counts: Arc<Counts>,
    /// Whose locks can be probed: other files are passed over.
    owners: Vec<LockOwner>,
    /// Files up to this one were looked at.
    seen: u32,
    /// Files that may have locks, so many at most.
    probed: HashMap<FileId, Probed>,
    files_max: usize,
    /// Files that found no room there, as many at most.
    waiting: VecDeque<(FileId, LockOwner)>,
    refused: u64,
    over_budget: u64,
    /// After the orders: without them the thread ends.
    _end: End,
}

/// Waits until the thread has taken all probes away: it does that at one time, and the kernel, where the agent ends before
/// it, one after the other.
struct End {
    stop: Arc<AtomicBool>,
    /// Closed by the thread when it is done.
    done: Receiver<()>,
}

impl Drop for End {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if self.done.recv_timeout(PROBES_END_PATIENCE) == Err(RecvTimeoutError::Timeout) {
            tracing::warn!("probes are still being taken away");
        }
    }
}

/// A file that may have locks.
#[derive(Clone, Copy, Debug)]
struct Probed {
    owner: LockOwner,
    /// It was ordered to be probed.
    ordered: bool,
    /// Windows for which it is left alone: its probes cost too much, there was no room for them, or the kernel refused
    /// them.
    pause: u32,
    /// Times that the kernel refused it.
    refusals: u32,
    /// It has nothing to probe.
    useless: bool,
}

/// What is to be known of a file that was ordered to be probed and is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    /// It has nothing to probe, or is none of the files that can be understood.
    Useless,
    /// There is no room for its places.
    Later,
    /// The kernel refuses it, perhaps for a moment: it looks into every process that maps the file.
    Refused,
}

#[derive(Debug, Default)]
struct Counts {
    programs: AtomicU64,
    libraries: AtomicU64,
    without: AtomicU64,
    programs_failed: AtomicU64,
    libraries_failed: AtomicU64,
    refused: AtomicU64,
    go: Cost,
    libc: Cost,
}

#[derive(Debug, Default)]
struct Cost {
    ns: AtomicU64,
    hits: AtomicU64,
}

impl Cost {
    fn store(&self, cost: ProbeCost) {
        self.ns.store(cost.ns, Ordering::Relaxed);
        self.hits.store(cost.hits, Ordering::Relaxed);
    }

    fn load(&self) -> ProbeCost {
        let Self { ns, hits } = self;
        ProbeCost { ns: ns.load(Ordering::Relaxed), hits: hits.load(Ordering::Relaxed) }
    }
}

#[derive(Debug)]
enum Order {
    Probe(FileId, LockOwner),
    Leave(FileId),
}

impl std::fmt::Debug for LockKeeper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LockKeeper").field("counts", &self.counts()).finish_non_exhaustive()
    }
}

impl LockKeeper {
    /// Starts the thread, which ends with this value.
    ///
    /// # Errors
    /// If the kernel gives no thread.
    pub fn start(probes: Probes, files: Arc<dyn OpenFiles>) -> std::io::Result<Self> {
        let (orders, received) = sync_channel(PROBE_ORDERS_MAX);
        // As many answers as orders at most.
        let (answer, answers) = channel();
        let counts = Arc::<Counts>::default();
        let owners = probes.owners();
        let (attached, unfinished, leaving, steps) = Default::default();
        let (stop, (closed_when_done, done)) = (Arc::<AtomicBool>::default(), channel());
        let end = End { stop: Arc::clone(&stop), done };
        let counts_of_work = Arc::clone(&counts);
        let work = Work {
            probes,
            files,
            counts: counts_of_work,
            answer,
            attached,
            unfinished,
            leaving,
            steps,
            stop,
        };
        let thread = std::thread::Builder::new().name("probes".to_owned());
        thread.spawn(move || {
            work.run(&received);
            drop(closed_when_done);
        })?;
        Ok(Self::new(orders, answers, counts, (owners, PROBED_FILES_MAX), end))
    }

    fn new(
        orders: SyncSender<Order>,
        answers: Receiver<(FileId, Answer)>,
        counts: Arc<Counts>,
        (owners, files_max): (Vec<LockOwner>, usize),
        end: End,
    ) -> Self {
        let (probed, waiting) = Default::default();
        let (seen, refused, over_budget) = (0, 0, 0);
        Self {
            orders,
            answers,
            counts,
            owners,
            seen,
            probed,
            files_max,
            waiting,
            refused,
            over_budget,
            _end: end,
        }
    }

    /// What happened so far.
    #[must_use]
    pub fn counts(&self) -> ProbeCounts {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        ProbeCounts {
            programs: of(&self.counts.programs),
            libraries: of(&self.counts.libraries),
            without: of(&self.counts.without),
            programs_failed: of(&self.counts.programs_failed),
            libraries_failed: of(&self.counts.libraries_failed),
            refused: self.refused + of(&self.counts.refused),
            over_budget: self.over_budget,
            go: self.counts.go.load(),
            libc: self.counts.libc.load(),
        }
    }

    /// Has new files probed. Cheap: called whenever records were read.
    pub fn look(&mut self, files: &Files) {
        for (id, owner) in files.new_with_locks(&mut self.seen) {
            if !self.owners.contains(&owner) {
                continue;
            }
            if self.probed.len() < self.files_max {
                self.add(id, owner);
                continue;
            }
            self.refused += 1;
            if self.waiting.len() < self.files_max {
                self.waiting.push_back((id, owner));
            }
        }
    }

    fn add(&mut self, id: FileId, owner: LockOwner) {
        let (ordered, pause, refusals, useless) = Default::default();
        self.probed.insert(id, Probed { owner, ordered, pause, refusals, useless });
        self.order(id, true);
    }

    /// Has what nobody maps any more left alone, and what is mapped again probed. What has nothing to probe makes room for
    /// what waits. Called once per window.
    pub fn tidy(&mut self, files: &Files) {
        self.hear();
        let ids: Vec<FileId> = self.probed.keys().copied().collect();
        for id in ids {
            let Some(probed) = self.probed.get_mut(&id) else { continue };
            probed.pause = probed.pause.saturating_sub(1);
            let Probed { pause, useless, .. } = *probed;
            match files.is_mapped(id).filter(|_| !useless) {
                Some(mapped) => {
                    self.order(id, mapped && pause == 0);
                }
                // If the order finds no room, the next window asks again: who forgot the file could not have it left.
                None => {
                    if self.order(id, false) {
                        self.probed.remove(&id);
                    }
                }
            }
        }
        while self.probed.len() < self.files_max {
            let Some((id, owner)) = self.waiting.pop_front() else { break };
            if files.is_mapped(id).is_some() {
                self.add(id, owner);
            }
        }
    }

    /// What became of orders.
    fn hear(&mut self) {
        while let Ok((id, answer)) = self.answers.try_recv() {
            let Some(probed) = self.probed.get_mut(&id) else { continue };
            match answer {
                Answer::Useless => probed.useless = true,
                Answer::Later => probed.pause = PROBE_PAUSE_WINDOWS,
                Answer::Refused => {
                    probed.refusals += 1;
                    probed.pause = PROBE_PAUSE_WINDOWS;
                    probed.useless = probed.refusals >= PROBE_REFUSALS_MAX;
                }
            }
        }
    }

    /// True if the file is probed, or will be soon.
    pub fn is_probed(&self, id: FileId) -> bool {
        self.probed.get(&id).is_some_and(|probed| probed.ordered)
    }

    /// Leaves a file alone for so many windows: its probes were met so often that they cost more than they may.
    pub fn pause(&mut self, id: FileId, windows: u32) {
        if let Some(probed) = self.probed.get_mut(&id) {
            probed.pause = windows;
            self.over_budget += 1;
            self.order(id, false);
        }
    }

    /// Leaves all C libraries alone for so many windows.
    pub fn pause_libraries(&mut self, windows: u32) {
        let is_library = |(id, it): (&FileId, &Probed)| {
            (it.owner == LockOwner::Libc && it.ordered).then_some(*id)
        };
        let ids: Vec<FileId> = self.probed.iter().filter_map(is_library).collect();
        ids.into_iter().for_each(|id| self.pause(id, windows));
    }

    /// False if there was no room for the order: the next window asks again.
    fn order(&mut self, id: FileId, probe: bool) -> bool {
        let Some(probed) = self.probed.get_mut(&id).filter(|it| it.ordered != probe) else {
            return true;
        };
        let order = if probe { Order::Probe(id, probed.owner) } else { Order::Leave(id) };
        match self.orders.try_send(order) {
            Ok(()) => probed.ordered = probe,
            Err(TrySendError::Full(_)) => return false,
            // And with it all probes.
            Err(TrySendError::Disconnected(_)) => {
                tracing::debug!("the thread of probes is gone");
            }
        }
        true
    }
}

/// What attaches to the locks of Go and of C libraries, as far as the kernel takes it.
#[derive(Debug, Default)]
pub struct Probes {
    /// Of Go.
    pub go: Option<LockProbes>,
    /// Of C libraries.
    pub libc: Option<LibcProbes>,
}

impl Probes {
    /// Whose locks can be probed.
    fn owners(&self) -> Vec<LockOwner> {
        let go = self.go.as_ref().map(|_| LockOwner::Go);
        let libc = self.libc.as_ref().map(|_| LockOwner::Libc);
        go.into_iter().chain(libc).collect()
    }
}

/// A C library that is being probed, a form of locks or a place at a time: a host has many processes that map it, and each
/// place goes to all of them.
struct Unfinished {
    id: FileId,
    calls: Vec<WaitingCall>,
    attached: Attached,
}

/// The thread's end.
struct Work {
    probes: Probes,
    files: Arc<dyn OpenFiles>,
    counts: Arc<Counts>,
    answer: Sender<(FileId, Answer)>,
    attached: HashMap<FileId, (LockOwner, Attached)>,
    /// The first one is being probed.
    unfinished: VecDeque<Unfinished>,
    /// Left alone as soon as there is nothing else to do: all of them at one time. They take room until then.
    leaving: HashMap<FileId, (LockOwner, Attached)>,
    /// Steps that were done since the first of them came.
    steps: u32,
    /// The engine ends.
    stop: Arc<AtomicBool>,
}

/// Why a file is not probed.
#[derive(Debug, thiserror::Error)]
enum ProbeError {
    #[error("nobody has the file any more")]
    Gone,
    #[error("no room: {0:?} are taken")]
    NoRoom(Taken),
    #[error(transparent)]
    File(#[from] ForeignFileError),
    #[error(transparent)]
    Kernel(#[from] BpfError),
}

impl Work {
    /// Measures what probes cost: nobody is probed before that is known.
    fn measure(&mut self) {
        let Self { probes: Probes { go, libc }, counts, .. } = self;
        if !go.as_ref().is_none_or(|probes| measured("Go", probes.cost_ns(), &counts.go)) {
            *go = None;
        }
        let libraries = "C libraries";
        if !libc.as_ref().is_none_or(|probes| measured(libraries, probes.cost_ns(), &counts.libc)) {
            *libc = None;
        }
    }

    fn run(mut self, orders: &Receiver<Order>) {
        self.measure();
        while !self.stop.load(Ordering::Relaxed) {
            // A Go program waits for the search of a C library, not for its places, nor for the kernel's grace periods.
            let order = if self.unfinished.is_empty() && self.leaving.is_empty() {
                orders.recv().map_err(|_over| TryRecvError::Disconnected)
            } else {
                orders.try_recv()
            };
            match order {
                Ok(order) => self.obey(order),
                Err(TryRecvError::Empty) => self.go_on(),
                Err(TryRecvError::Disconnected) => break,
            }
            self.end_overdue();
            self.count();
        }
        let attached = self.attached.drain().chain(self.leaving.drain());
        let attached = attached.map(|(_, (_, attached))| attached);
        Attached::end(attached.chain(self.unfinished.drain(..).map(|it| it.attached)));
    }

    fn count(&self) {
        let probed = || self.attached.values().chain(self.leaving.values());
        let of = |owner| probed().filter(|(it, _)| *it == owner).count() as u64;
        self.counts.programs.store(of(LockOwner::Go), Ordering::Relaxed);
        self.counts.libraries.store(of(LockOwner::Libc), Ordering::Relaxed);
    }

    /// A step is done. What is to be left waits for so many, however many orders come.
    fn end_overdue(&mut self) {
        self.steps = if self.leaving.is_empty() { 0 } else { self.steps + 1 };
        if self.steps >= PROBE_LEAVING_STEPS_MAX {
            self.end_leaving();
        }
    }

    fn end_leaving(&mut self) {
        Attached::end(self.leaving.drain().map(|(_, (_, attached))| attached));
        self.steps = 0;
    }

    fn obey(&mut self, order: Order) {
        let (id, owner) = match order {
            Order::Leave(id) => {
                self.unfinished.retain(|it| it.id != id);
                self.leaving.extend(self.attached.remove_entry(&id));
                return;
            }
            Order::Probe(id, owner) => (id, owner),
        };
        // It was counted all the time, so there is room for it.
        if let Some(still) = self.leaving.remove(&id) {
            self.attached.insert(id, still);
            return;
        }
        // Nobody could measure what its probes cost.
        if !self.probes.owners().contains(&owner) {
            return self.answer(id, Answer::Useless);
        }
        let done = match owner {
            LockOwner::Go => self.probe_go(id),
            LockOwner::Libc => self.look_for_calls(id),
        };
        match done {
            Ok(true) => {}
            Ok(false) => {
                self.counts.without.fetch_add(1, Ordering::Relaxed);
                self.answer(id, Answer::Useless);
            }
            Err(error) => self.fail(id, owner, &error),
        }
    }

    fn fail(&self, id: FileId, owner: LockOwner, error: &ProbeError) {
        let count = match (error, owner) {
            (ProbeError::NoRoom(_), _) => &self.counts.refused,
            (_, LockOwner::Go) => &self.counts.programs_failed,
            (_, LockOwner::Libc) => &self.counts.libraries_failed,
        };
        count.fetch_add(1, Ordering::Relaxed);
        tracing::debug!(?id, %error, "the locks of a file are not probed");
        match error {
            ProbeError::NoRoom(_) => self.answer(id, Answer::Later),
            ProbeError::Kernel(_) => self.answer(id, Answer::Refused),
            ProbeError::File(
                ForeignFileError::Malformed { .. } | ForeignFileError::Limit { .. },
            ) => self.answer(id, Answer::Useless),
            ProbeError::Gone | ProbeError::File(_) => {}
        }
    }

    fn answer(&self, id: FileId, answer: Answer) {
        // Nobody hears it if the engine ends.
        let _heard = self.answer.send((id, answer));
    }

    /// What all files take, those that are being probed as if they were done.
    fn taken(&self) -> Taken {
        let probed = self.attached.values().chain(self.leaving.values());
        let probed = probed.map(|(_, attached)| Taken::of(attached));
        let begun = self.unfinished.iter();
        let begun = begun.map(|it| Taken::of(&it.attached).and(self.probes.taken_by(&it.calls)));
        probed.chain(begun).fold(Taken::default(), Taken::and)
    }

    /// Fails unless there is room for all that a file may have: then its search is not for nothing.
    fn room(&self, owner: LockOwner) -> Result<(), ProbeError> {
        let taken = self.taken();
        let Taken { places, descriptors } = taken.and(self.probes.taken_at_most(owner));
        if places > PROBED_PLACES_MAX || descriptors > PROBED_DESCRIPTORS_MAX {
            return Err(ProbeError::NoRoom(taken));
        }
        Ok(())
    }

    /// The same, after what is to be left has made some.
    fn make_room(&mut self, owner: LockOwner) -> Result<(), ProbeError> {
        if self.room(owner).is_err() {
            self.end_leaving();
        }
        self.room(owner)
    }

    /// False if there is nothing to probe.
    fn probe_go(&mut self, id: FileId) -> Result<bool, ProbeError> {
        self.make_room(LockOwner::Go)?;
        let Some(probes) = &self.probes.go else { return Ok(false) };
        let file = self.files.open(id).ok_or(ProbeError::Gone)?;
        let functions = lock_functions(file.as_fd())?;
        if functions.is_empty() {
            return Ok(false);
        }
        let attached = probes.attach(file.as_fd(), &functions)?;
        self.attached.insert(id, (LockOwner::Go, attached));
        Ok(true)
    }

    /// Finds where a C library is to be probed; false if there is nothing.
    fn look_for_calls(&mut self, id: FileId) -> Result<bool, ProbeError> {
        // The search takes up to two seconds of CPU time: what is to be left should not be met for so long.
        self.end_leaving();
        self.room(LockOwner::Libc)?;
        let file = self.files.open(id).ok_or(ProbeError::Gone)?;
        let calls = waiting_calls(file.as_fd())?;
        if calls.is_empty() {
            return Ok(false);
        }
        self.unfinished.push_back(Unfinished { id, calls, attached: Attached::default() });
        Ok(true)
    }

    /// Probes the next places of the first unfinished library, or takes away what is to be left.
    fn go_on(&mut self) {
        let Some(mut unfinished) = self.unfinished.pop_front() else {
            return self.end_leaving();
        };
        if unfinished.calls.is_empty() {
            let Unfinished { id, attached, .. } = unfinished;
            self.attached.insert(id, (LockOwner::Libc, attached));
            return;
        }
        let mut attach = || -> Result<(), ProbeError> {
            let Some(probes) = &self.probes.libc else { return Ok(()) };
            let file = self.files.open(unfinished.id).ok_or(ProbeError::Gone)?;
            let Unfinished { calls, attached, .. } = &mut unfinished;
            Ok(probes.attach_next(file.as_fd(), calls, attached)?)
        };
        match attach() {
            Ok(()) => self.unfinished.push_front(unfinished),
            Err(error) => self.fail(unfinished.id, LockOwner::Libc, &error),
        }
    }
}

/// Keeps what a probe was found to cost; false if that is not known.
fn measured(whose: &str, cost: Result<ProbeCost, BpfError>, to: &Cost) -> bool {
    match cost {
        Ok(cost) => {
            to.store(cost);
            tracing::info!(cost_ns = cost.ns, "locks of {whose} are probed");
            true
        }
        Err(error) => {
            tracing::warn!(%error, "locks of {whose} are not probed: what a probe costs is not known");
            false
        }
    }
}
