//! Keeps the locks of every Go program probed, as long as a process maps it: a probe holds its file, and with it the
//! file system. Looking into a program and attaching take milliseconds to seconds, so a thread does it.

use super::go::lock_functions;
use crate::address::FileId;
use crate::bpf::{Attached, BpfError, LockProbes, ProbeCost};
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
    /// Times that the probes of a program were taken away because they were met too often.
    pub over_budget: u64,
    /// What a hit costs whoever meets it, nanoseconds; 0 as long as that is not measured.
    pub cost_ns: u64,
    /// Hits by which it was measured.
    pub own_hits: u64,
}

/// The engine's end.
pub struct LockKeeper {
    orders: SyncSender<Order>,
    counts: Arc<Counts>,
    /// Files up to this one were looked at.
    seen: u32,
    /// Go programs.
    programs: HashMap<FileId, Program>,
    over_budget: u64,
}

/// A Go program.
#[derive(Clone, Copy, Debug, Default)]
struct Program {
    /// It was ordered to be probed.
    ordered: bool,
    /// Windows for which it is left alone, because its probes cost too much.
    pause: u32,
}

#[derive(Debug, Default)]
struct Counts {
    programs: AtomicU64,
    without: AtomicU64,
    failed: AtomicU64,
    cost_ns: AtomicU64,
    own_hits: AtomicU64,
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
        Ok(Self { orders, counts, seen: 0, programs: HashMap::new(), over_budget: 0 })
    }

    /// What happened so far.
    #[must_use]
    pub fn counts(&self) -> ProbeCounts {
        ProbeCounts {
            programs: self.counts.programs.load(Ordering::Relaxed),
            without: self.counts.without.load(Ordering::Relaxed),
            failed: self.counts.failed.load(Ordering::Relaxed),
            over_budget: self.over_budget,
            cost_ns: self.counts.cost_ns.load(Ordering::Relaxed),
            own_hits: self.counts.own_hits.load(Ordering::Relaxed),
        }
    }

    /// Has new programs probed. Cheap: called whenever records were read.
    pub fn look(&mut self, files: &Files) {
        for id in files.new_go_programs(&mut self.seen) {
            if self.programs.len() < PROBED_FILES_MAX {
                self.programs.insert(id, Program::default());
                self.order(id, true);
            }
        }
    }

    /// Has what nobody maps any more left alone, and what is mapped again probed. Called once per window.
    pub fn tidy(&mut self, files: &Files) {
        let ids: Vec<FileId> = self.programs.keys().copied().collect();
        for id in ids {
            let pause = self.programs.get_mut(&id).map_or(0, |program| {
                program.pause = program.pause.saturating_sub(1);
                program.pause
            });
            match files.is_mapped(id) {
                Some(mapped) => self.order(id, mapped && pause == 0),
                None => {
                    self.order(id, false);
                    self.programs.remove(&id);
                }
            }
        }
    }

    /// Leaves a program alone for so many windows: its probes were met so often that they cost more than they may.
    pub fn pause(&mut self, id: FileId, windows: u32) {
        if let Some(program) = self.programs.get_mut(&id) {
            program.pause = windows;
            self.over_budget += 1;
            self.order(id, false);
        }
    }

    fn order(&mut self, id: FileId, probe: bool) {
        let Some(program) = self.programs.get_mut(&id).filter(|it| it.ordered != probe) else {
            return;
        };
        let order = if probe { Order::Probe(id) } else { Order::Leave(id) };
        match self.orders.try_send(order) {
            Ok(()) => program.ordered = probe,
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
    /// Measures what a probe costs: nobody is probed before that is known.
    fn measure(&self) -> bool {
        match self.probes.cost_ns() {
            Ok(ProbeCost { ns, hits }) => {
                self.counts.cost_ns.store(ns, Ordering::Relaxed);
                self.counts.own_hits.store(hits, Ordering::Relaxed);
                tracing::info!(cost_ns = ns, "locks of Go are probed");
                true
            }
            Err(error) => {
                tracing::warn!(%error, "locks of Go are not probed: what a probe costs is not known");
                false
            }
        }
    }

    fn run(mut self, orders: &Receiver<Order>) {
        if !self.measure() {
            return;
        }
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
