//! Names windows on a thread of their own: looking into a file that was never seen before takes up to
//! seconds, and the engine's thread drains a ring buffer.

use super::{NamedWindow, Namer, WindowWriter};
use crate::address::{AbsAddr, ElfAddr};
use crate::elf::{ForeignFiles, Names};
use crate::engine::{OpenFiles, SealedWindow, WindowSink};
use crate::limits;
use crate::normalize::{KernelRegion, MappedFile, ProcessKey};
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

type Work = (SealedWindow, Arc<dyn OpenFiles>);

/// The engine's end: hands windows over and returns.
#[derive(Debug)]
pub struct NamingSink {
    sender: SyncSender<Work>,
    /// Observations of windows that could not be handed over, for the next window's account.
    dropped: u64,
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
    Ok((NamingSink { sender, dropped: 0 }, NamingThread { handle }))
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
    fn window(&mut self, mut sealed: SealedWindow, files: &Arc<dyn OpenFiles>) {
        sealed.ledger.dropped = sealed.ledger.dropped.saturating_add(self.dropped);
        match self.sender.try_send((sealed, Arc::clone(files))) {
            Ok(()) => self.dropped = 0,
            Err(TrySendError::Full((sealed, _)) | TrySendError::Disconnected((sealed, _))) => {
                let observations = sealed.window.observations() as u64;
                self.dropped = sealed.ledger.dropped.saturating_add(observations);
                tracing::error!(observations, "a window was dropped: naming is too slow");
            }
        }
    }
}

fn name_all(
    sources: NameSources,
    mut writer: Box<dyn WindowWriter>,
    receiver: &Receiver<Work>,
) -> Box<dyn WindowWriter> {
    let NameSources { files, mut kernel, perf_maps } = sources;
    while let Ok((sealed, open)) = receiver.recv() {
        let mut namer = HostNamer {
            files: &*files,
            open: &*open,
            kernel: &mut *kernel,
            perf_maps: perf_maps.as_deref(),
        };
        let SealedWindow { window, end, wall, period_ns: _, ledger } = sealed;
        let named: NamedWindow = window.into_named(end, wall, ledger, &mut namer);
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
