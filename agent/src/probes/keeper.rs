//! Keeps the locks of every Go program probed, as long as a process maps it: a probe holds its file, and with it the
//! file system. Looking into a program and attaching take milliseconds to seconds, so a thread does it.

use super::go::lock_functions;
use crate::address::FileId;
use crate::bpf::{Attached, BpfError, LockProbes};
use crate::elf::ForeignFileError;
use crate::engine::OpenFiles;
use crate::limits::{PROBE_ORDERS_MAX, PROBED_FILES_MAX};
use crate::process::files::Files;
use hashbrown::HashMap;
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};

/// What happened so far, for the metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProbeCounts {
    /// Programs whose locks are probed now.
    pub programs: u64,
    /// Programs that have no locks to probe.
    pub without: u64,
    /// Programs that could not be probed.
    pub failed: u64,
    /// Times that all probes were taken away because they were met too often.
    pub over_budget: u64,
}

/// The engine's end.
pub struct LockKeeper {
    orders: SyncSender<Order>,
    counts: Arc<Counts>,
    /// Files up to this one were looked at.
    seen: u32,
    /// Go programs, and whether they were ordered to be probed.
    programs: HashMap<FileId, bool>,
    over_budget: u64,
    /// Windows left without probes.
    pause: u32,
}

#[derive(Debug, Default)]
struct Counts {
    programs: AtomicU64,
    without: AtomicU64,
    failed: AtomicU64,
}

#[derive(Debug)]
enum Order {
    Probe(FileId),
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
    pub fn start(probes: LockProbes, files: Arc<dyn OpenFiles>) -> std::io::Result<Self> {
        let (orders, received) = sync_channel(PROBE_ORDERS_MAX);
        let counts = Arc::<Counts>::default();
        let work = Work { probes, files, counts: Arc::clone(&counts), attached: HashMap::new() };
        let thread = std::thread::Builder::new().name("probes".to_owned());
        thread.spawn(move || work.run(&received))?;
        let programs = HashMap::new();
        Ok(Self { orders, counts, seen: 0, programs, over_budget: 0, pause: 0 })
    }

    /// What happened so far.
    #[must_use]
    pub fn counts(&self) -> ProbeCounts {
        ProbeCounts {
            programs: self.counts.programs.load(Ordering::Relaxed),
            without: self.counts.without.load(Ordering::Relaxed),
            failed: self.counts.failed.load(Ordering::Relaxed),
            over_budget: self.over_budget,
        }
    }

    /// Has new programs probed. Cheap: called whenever records were read.
    pub fn look(&mut self, files: &Files) {
        for id in files.new_go_programs(&mut self.seen) {
            if self.programs.len() < PROBED_FILES_MAX {
                self.programs.insert(id, false);
                self.order(id, self.pause == 0);
            }
        }
    }

    /// Has what nobody maps any more left alone, and what is mapped again probed. Called once per window.
    pub fn tidy(&mut self, files: &Files) {
        self.pause = self.pause.saturating_sub(1);
        let ids: Vec<FileId> = self.programs.keys().copied().collect();
        for id in ids {
            match files.is_mapped(id) {
                Some(mapped) => self.order(id, mapped && self.pause == 0),
                None => {
                    self.order(id, false);
                    self.programs.remove(&id);
                }
            }
        }
    }

    /// Takes all probes away for so many windows: they were met so often that they cost more than they may.
    pub fn pause(&mut self, windows: u32) {
        self.over_budget += 1;
        self.pause = windows;
        let ids: Vec<FileId> = self.programs.keys().copied().collect();
        ids.into_iter().for_each(|id| self.order(id, false));
    }

    fn order(&mut self, id: FileId, probe: bool) {
        let Some(ordered) = self.programs.get_mut(&id).filter(|ordered| **ordered != probe) else {
            return;
        };
        let order = if probe { Order::Probe(id) } else { Order::Leave(id) };
        match self.orders.try_send(order) {
            Ok(()) => *ordered = probe,
            // The next window asks again.
            Err(TrySendError::Full(_)) => {}
            Err(TrySendError::Disconnected(_)) => {
                tracing::debug!("the thread of probes is gone");
            }
        }
    }
}

/// The thread's end.
struct Work {
    probes: LockProbes,
    files: Arc<dyn OpenFiles>,
    counts: Arc<Counts>,
    attached: HashMap<FileId, Attached>,
}

/// Why a program is not probed.
#[derive(Debug, thiserror::Error)]
enum ProbeError {
    #[error("nobody has the file any more")]
    Gone,
    #[error(transparent)]
    File(#[from] ForeignFileError),
    #[error(transparent)]
    Kernel(#[from] BpfError),
}

impl Work {
    fn run(mut self, orders: &Receiver<Order>) {
        while let Ok(order) = orders.recv() {
            match order {
                Order::Leave(id) => drop(self.attached.remove(&id)),
                Order::Probe(id) => match self.probe(id) {
                    Ok(Some(attached)) => {
                        self.attached.insert(id, attached);
                    }
                    Ok(None) => {
                        self.counts.without.fetch_add(1, Ordering::Relaxed);
                    }
                    Err(error) => {
                        self.counts.failed.fetch_add(1, Ordering::Relaxed);
                        tracing::debug!(?id, %error, "a Go program is not probed");
                    }
                },
            }
            self.counts.programs.store(self.attached.len() as u64, Ordering::Relaxed);
        }
    }

    fn probe(&self, id: FileId) -> Result<Option<Attached>, ProbeError> {
        let file = self.files.open(id).ok_or(ProbeError::Gone)?;
        let functions = lock_functions(file.as_fd())?;
        if functions.is_empty() {
            return Ok(None);
        }
        Ok(Some(self.probes.attach(file.as_fd(), &functions)?))
    }
}
