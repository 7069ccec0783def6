//! Names windows on a thread of their own: looking into a file that was never seen before takes up to
//! seconds, and the engine's thread drains a ring buffer.

mod asker;

use super::{Ledger, NamedWindow, Namer, NamingCounts, ProcessLedger, Window, WindowWriter};
use crate::address::{AbsAddr, ElfAddr, FileId};
use crate::clock::{MonotonicNs, monotonic_now};
use crate::elf::{ForeignFiles, Names};
use crate::engine::{Control, OpenFiles, SealedWindow, WindowSink};
use crate::limits;
use crate::normalize::{KernelRegion, MappedFile, ProcessIdentity, ProcessKey};
use crate::symbolize::perf_maps::PerfMaps;
use crate::symbolize::{KernelNames, KernelSymbol, UnnamedReason};
use asker::{Asker, Unasked};
use hashbrown::{HashMap, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;

/// Where names come from.
pub struct NameSources {
    /// Native names.
    pub files: Arc<dyn ForeignFiles>,
    /// Kernel names.
    pub kernel: Box<dyn KernelNames>,
    /// Names of code that no file backs; without, it stays unnamed.
    pub perf_maps: Option<Arc<PerfMaps>>,
    /// How long it may take.
    pub patience: NamingPatience,
}

/// How long the names of one window may take, nanoseconds: whoever writes a file can make its names as dear as
/// the limits of one file allow, and there are many files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamingPatience {
    /// While others wait.
    pub window_ns: u64,
    /// While few do.
    pub at_ease_ns: u64,
    /// Of all that are left once the engine has ended.
    pub last_ns: u64,
}

impl NamingPatience {
    /// For a file that nobody names later.
    pub const RECORDING: Self = Self {
        window_ns: limits::NAMING_RECORDING_NS_MAX,
        at_ease_ns: limits::NAMING_RECORDING_NS_MAX,
        last_ns: limits::NAMING_RECORDING_NS_MAX,
    };
}

impl Default for NamingPatience {
    /// For windows that come all the time and that the collector names too.
    fn default() -> Self {
        Self {
            window_ns: limits::NAMING_WINDOW_NS_MAX,
            at_ease_ns: limits::NAMING_AT_EASE_NS_MAX,
            last_ns: limits::NAMING_LAST_NS_MAX,
        }
    }
}

impl std::fmt::Debug for NameSources {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NameSources").finish_non_exhaustive()
    }
}

/// A window to name, and the account of those before it that were given up.
type Work = (SealedWindow, Arc<dyn OpenFiles>, GivenUp);

/// The engine's end: hands windows over and returns.
pub struct NamingSink {
    /// `None` once it is closed.
    sender: Option<SyncSender<Work>>,
    /// A window that could not be handed over, emptied: only the account of its samples is left, for the
    /// next window to take along.
    given_up: Option<Work>,
    progress: Arc<Progress>,
    /// The engine that is to end with the thread.
    control: Option<Control>,
}

/// What the thread is told beside its work.
#[derive(Debug, Default)]
struct Progress {
    /// Windows that wait.
    waiting: AtomicUsize,
    /// When the sink was gone, nanoseconds of the monotonic clock; 0 while it is there. Only what was handed over
    /// is to be named then.
    ended_ns: AtomicU64,
}

impl std::fmt::Debug for NamingSink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NamingSink").finish_non_exhaustive()
    }
}

/// The thread; ends when its sink is gone and everything is written.
#[derive(Debug)]
pub struct NamingThread {
    handle: JoinHandle<Box<dyn WindowWriter>>,
}

/// Starts the thread. It writes into `writer`.
///
/// # Errors
/// If the kernel gives no thread.
pub fn start_naming(
    sources: NameSources,
    writer: Box<dyn WindowWriter>,
) -> std::io::Result<(NamingSink, NamingThread)> {
    let (sender, receiver) = sync_channel(limits::NAMING_WINDOWS_MAX);
    let thread = std::thread::Builder::new().name("naming".to_owned());
    let progress = Arc::new(Progress::default());
    let seen = Arc::clone(&progress);
    let handle = thread.spawn(move || name_all(sources, writer, &receiver, &seen))?;
    let sink = NamingSink { sender: Some(sender), given_up: None, progress, control: None };
    Ok((sink, NamingThread { handle }))
}

impl NamingSink {
    /// If the thread ends before its sink does, this engine is stopped: nothing it samples would go anywhere.
    #[must_use]
    pub fn stopping(mut self, control: Control) -> Self {
        self.control = Some(control);
        self
    }

    /// Keeps the account of a window that was not handed over.
    fn give_up(&mut self, work: Work) {
        let observations = work.0.window.observations();
        tracing::error!(observations, "a window was dropped: naming is too slow");
        self.given_up = Some(emptied(work));
    }
}

impl NamingThread {
    /// Waits for the end, and answers the writer. The sink must be gone.
    ///
    /// # Errors
    /// If the thread panicked.
    pub fn join(self) -> std::thread::Result<Box<dyn WindowWriter>> {
        self.handle.join()
    }
}

impl WindowSink for NamingSink {
    fn window(&mut self, sealed: SealedWindow, files: &Arc<dyn OpenFiles>) {
        let Some(sender) = &self.sender else { return };
        let mut given_up = GivenUp::default();
        if let Some((sealed, _, before)) = self.given_up.take() {
            given_up.add(&before);
            given_up.ledger.add(&sealed.ledger);
        }
        self.progress.waiting.fetch_add(1, Ordering::Relaxed);
        match sender.try_send((sealed, Arc::clone(files), given_up)) {
            Ok(()) => {}
            Err(TrySendError::Full(work)) => {
                self.progress.waiting.fetch_sub(1, Ordering::Relaxed);
                self.give_up(work);
            }
            Err(TrySendError::Disconnected(work)) => {
                self.give_up(work);
                tracing::error!("the thread that names has ended: the agent ends");
                if let Some(control) = &self.control {
                    control.stop();
                }
            }
        }
    }
}

impl Drop for NamingSink {
    /// The last account goes out too: by now the thread works for nobody else.
    fn drop(&mut self) {
        self.progress.ended_ns.store(monotonic_now().0.max(1), Ordering::Relaxed);
        if let (Some(sender), Some(work)) = (self.sender.take(), self.given_up.take()) {
            self.progress.waiting.fetch_add(1, Ordering::Relaxed);
            drop(sender.send(work)); // It fails only if the thread is gone.
        }
    }
}

/// The account of windows that were given up.
#[derive(Debug, Default)]
struct GivenUp {
    ledger: Ledger,
    processes: HashMap<Arc<ProcessIdentity>, ProcessLedger>,
}

impl GivenUp {
    fn add(&mut self, other: &Self) {
        self.ledger.add(&other.ledger);
        for (process, ledger) in &other.processes {
            self.add_process(process, ledger);
        }
    }

    /// Beyond the limit of a window only the sums tell of a process.
    fn add_process(&mut self, process: &Arc<ProcessIdentity>, ledger: &ProcessLedger) {
        let room = self.processes.len() < limits::WINDOW_PROCESSES_MAX;
        match self.processes.get_mut(process) {
            Some(sum) => sum.add(ledger),
            None if room => {
                self.processes.insert(Arc::clone(process), ledger.clone());
            }
            None => {}
        }
    }
}

/// The same window with its account and without its samples.
fn emptied((mut sealed, files, mut given_up): Work) -> Work {
    let empty = Window::new(sealed.window.start(), sealed.period_ns);
    let window = std::mem::replace(&mut sealed.window, empty);
    for (process, ledger) in window.give_up(&mut sealed.ledger) {
        given_up.add_process(&process, &ledger);
    }
    (sealed, files, given_up)
}

fn name_all(
    sources: NameSources,
    mut writer: Box<dyn WindowWriter>,
    receiver: &Receiver<Work>,
    progress: &Progress,
) -> Box<dyn WindowWriter> {
    let NameSources { files, mut kernel, perf_maps, patience } = sources;
    let mut asker = Asker::new(files);
    let mut slow = HashSet::new();
    while let Ok((sealed, open, given_up)) = receiver.recv() {
        progress.waiting.fetch_sub(1, Ordering::Relaxed);
        let mut namer = HostNamer {
            asker: &mut asker,
            open: &open,
            kernel: &mut *kernel,
            perf_maps: perf_maps.as_deref(),
            begin: monotonic_now(),
            patience,
            progress,
            slow: &mut slow,
            taken_ns: HashMap::new(),
            counts: NamingCounts::default(),
        };
        let SealedWindow { window, end, wall, period_ns: _, ledger } = sealed;
        let mut named: NamedWindow = window.into_named(end, wall, ledger, &mut namer);
        named.naming = namer.counts;
        named.take_over(given_up.ledger, given_up.processes.into_iter().collect());
        writer.write(named);
    }
    writer
}

/// Names of this host, from open files and kallsyms.
struct HostNamer<'a> {
    asker: &'a mut Asker,
    open: &'a Arc<dyn OpenFiles>,
    kernel: &'a mut dyn KernelNames,
    perf_maps: Option<&'a PerfMaps>,
    begin: MonotonicNs,
    patience: NamingPatience,
    progress: &'a Progress,
    /// Files that took long.
    slow: &'a mut HashSet<FileId>,
    /// How long the names of each file have taken in this window.
    taken_ns: HashMap<FileId, u64>,
    counts: NamingCounts,
}

impl HostNamer<'_> {
    /// When this window's time is over.
    fn until(&self) -> MonotonicNs {
        let NamingPatience { window_ns, at_ease_ns, last_ns } = self.patience;
        let waiting = self.progress.waiting.load(Ordering::Relaxed);
        let at_ease = waiting <= limits::NAMING_WAITING_AT_EASE;
        let own = self.begin.plus(if at_ease { at_ease_ns } else { window_ns });
        match self.progress.ended_ns.load(Ordering::Relaxed) {
            0 => own,
            ended_ns => own.min(MonotonicNs(ended_ns).plus(last_ns)),
        }
    }

    /// The time that is left for names; `None`, and counted, once it is over.
    fn time_left(&mut self) -> Option<MonotonicNs> {
        let until = self.until();
        let over = monotonic_now() >= until;
        self.counts.late += u64::from(over);
        (!over).then_some(until)
    }

    /// What `ask` answers. A defect of what reads foreign bytes costs their names, never the thread.
    fn guarded<T>(&mut self, ask: impl FnOnce(&mut Self) -> T, defect: T) -> T {
        let answer = catch_unwind(AssertUnwindSafe(|| ask(self)));
        self.counts.panics += u64::from(answer.is_err());
        answer.unwrap_or(defect)
    }

    fn remember(&mut self, file: FileId, taken_ns: u64) {
        // A file is asked twice where it has locks: for its code, then for its variables.
        let all_ns = self.taken_ns.entry(file).or_default();
        *all_ns = all_ns.saturating_add(taken_ns);
        if *all_ns < limits::NAMING_SLOW_NS {
            self.slow.remove(&file);
            return;
        }
        if self.slow.len() >= limits::NAMING_SLOW_FILES_MAX {
            self.slow.clear();
        }
        self.slow.insert(file);
    }
}

impl Namer for HostNamer<'_> {
    fn native(&mut self, file: &Arc<MappedFile>, addresses: &[ElfAddr]) -> Vec<Names> {
        let nothing = |reason| vec![Err(reason); addresses.len()];
        let Some(until) = self.time_left() else { return nothing(UnnamedReason::Limit) };
        let begin = monotonic_now();
        let names = self.asker.ask(file.id, self.open, (addresses, until));
        self.remember(file.id, monotonic_now().since(begin));
        names.unwrap_or_else(|unasked| match unasked {
            Unasked::Panic => {
                self.counts.panics += 1;
                nothing(UnnamedReason::NotReadable)
            }
            Unasked::Silent => {
                self.counts.silent += 1;
                nothing(UnnamedReason::NotReadable)
            }
        })
    }

    fn is_slow(&self, file: FileId) -> bool {
        self.slow.contains(&file)
    }

    fn kernel(
        &mut self,
        address: AbsAddr,
        region: KernelRegion,
    ) -> Result<KernelSymbol, UnnamedReason> {
        let defect = Err(UnnamedReason::NotReadable);
        self.guarded(|this| this.kernel.kernel(address, region), defect)
    }

    fn anonymous(&mut self, process: ProcessKey, addresses: &[AbsAddr]) -> Vec<Names> {
        let nothing = |reason| vec![Err(reason); addresses.len()];
        if self.time_left().is_none() {
            return nothing(UnnamedReason::Limit);
        }
        let ask = |this: &mut Self| match this.perf_maps {
            Some(maps) => maps.names(process, addresses),
            None => nothing(UnnamedReason::AnonymousCode),
        };
        self.guarded(ask, nothing(UnnamedReason::NotReadable))
    }
}

#[cfg(test)]
mod tests;
