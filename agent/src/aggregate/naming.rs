//! Names windows on a thread of their own: looking into a file that was never seen before takes up to
//! seconds, and the engine's thread drains a ring buffer.

use super::{Ledger, NamedWindow, Namer, ProcessLedger, Window, WindowWriter};
use crate::address::{AbsAddr, ElfAddr};
use crate::elf::{ForeignFiles, Names};
use crate::engine::{OpenFiles, SealedWindow, WindowSink};
use crate::limits;
use crate::normalize::{KernelRegion, MappedFile, ProcessIdentity, ProcessKey};
use crate::symbolize::perf_maps::PerfMaps;
use crate::symbolize::{KernelNames, KernelSymbol, UnnamedReason};
use std::sync::Arc;
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
    let handle = thread.spawn(move || name_all(sources, writer, &receiver))?;
    Ok((NamingSink { sender: Some(sender), given_up: None }, NamingThread { handle }))
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
        match sender.try_send((sealed, Arc::clone(files), given_up)) {
            Ok(()) => {}
            Err(TrySendError::Full(work) | TrySendError::Disconnected(work)) => {
                let observations = work.0.window.observations();
                tracing::error!(observations, "a window was dropped: naming is too slow");
                self.given_up = Some(emptied(work));
            }
        }
    }
}

impl Drop for NamingSink {
    /// The last account goes out too: by now the thread works for nobody else.
    fn drop(&mut self) {
        if let (Some(sender), Some(work)) = (self.sender.take(), self.given_up.take()) {
            drop(sender.send(work)); // It fails only if the thread is gone.
        }
    }
}

/// The account of windows that were given up.
#[derive(Debug, Default)]
struct GivenUp {
    ledger: Ledger,
    processes: Vec<(Arc<ProcessIdentity>, ProcessLedger)>,
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
        match self.processes.iter_mut().find(|(known, _)| known == process) {
            Some((_, sum)) => sum.add(ledger),
            None if room => self.processes.push((Arc::clone(process), ledger.clone())),
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
) -> Box<dyn WindowWriter> {
    let NameSources { files, mut kernel, perf_maps } = sources;
    while let Ok((sealed, open, given_up)) = receiver.recv() {
        let mut namer = HostNamer {
            files: &*files,
            open: &*open,
            kernel: &mut *kernel,
            perf_maps: perf_maps.as_deref(),
        };
        let SealedWindow { window, end, wall, period_ns: _, ledger } = sealed;
        let mut named: NamedWindow = window.into_named(end, wall, ledger, &mut namer);
        named.take_over(given_up.ledger, given_up.processes);
        writer.write(named);
    }
    writer
}

/// Names of this host, from open files and kallsyms.
struct HostNamer<'a> {
    files: &'a dyn ForeignFiles,
    open: &'a dyn OpenFiles,
    kernel: &'a mut dyn KernelNames,
    perf_maps: Option<&'a PerfMaps>,
}

impl Namer for HostNamer<'_> {
    fn native(&mut self, file: &Arc<MappedFile>, addresses: &[ElfAddr]) -> Vec<Names> {
        match self.open.open(file.id) {
            Some(descriptor) => {
                let debug_file = self.open.open_debug(file.id);
                self.files.names_with(file.id, &descriptor, debug_file.as_deref(), addresses)
            }
            None => vec![Err(UnnamedReason::FileGone); addresses.len()],
        }
    }

    fn kernel(
        &mut self,
        address: AbsAddr,
        region: KernelRegion,
    ) -> Result<KernelSymbol, UnnamedReason> {
        self.kernel.kernel(address, region)
    }

    fn anonymous(&mut self, process: ProcessKey, addresses: &[AbsAddr]) -> Vec<Names> {
        match self.perf_maps {
            Some(maps) => maps.names(process, addresses),
            None => vec![Err(UnnamedReason::AnonymousCode); addresses.len()],
        }
    }
}
