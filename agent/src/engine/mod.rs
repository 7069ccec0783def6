//! The loop: kernel records in, sealed windows out. It owns the threads, the clocks and the order of
//! things; what a record means is decided by `process` and `normalize`, what becomes of a window by the
//! [`WindowSink`].

use crate::address::{FileId, Pid};
use crate::aggregate::Window;
use crate::clock::{MonotonicNs, WallOffset};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// What the engine is asked to do.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// Samples per second and CPU, Hz.
    pub frequency_hz: u32,
    /// Only these processes and what they fork; empty means the whole host.
    pub pids: Vec<Pid>,
    /// Stop after this time; `None` means until asked.
    pub duration: Option<Duration>,
    /// Length of one window.
    pub window: Duration,
    /// Where the host's procfs is mounted.
    pub proc_root: PathBuf,
    /// Run on a kernel that is known to lock up (see [`crate::kernel`]).
    pub ignore_kernel_defects: bool,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            frequency_hz: 19,
            pids: Vec::new(),
            duration: None,
            window: Duration::from_secs(5),
            proc_root: PathBuf::from("/proc"),
            ignore_kernel_defects: false,
        }
    }
}

/// Descriptors of the files that frames point to, for naming. A file is kept open, or opened again
/// beneath a process that still maps it and checked to be the same one.
pub trait OpenFiles: Send + Sync {
    /// An open descriptor of the file, `None` if nobody has it any more.
    fn open(&self, id: FileId) -> Option<Arc<OwnedFd>>;
}

pub use crate::aggregate::Ledger;

/// One window, closed.
#[derive(Debug)]
pub struct SealedWindow {
    /// The samples, folded.
    pub window: Window,
    /// First instant behind the window.
    pub end: MonotonicNs,
    /// Wall time of this window's monotonic times.
    pub wall: WallOffset,
    /// The sampling period, nanoseconds.
    pub period_ns: u64,
    /// What the window cost and lost.
    pub ledger: Ledger,
}

/// Where windows go: the exporter, or the recorder. Called on the engine's thread: it must hand the
/// window over and return, never wait for a network or a disk.
pub trait WindowSink {
    /// Takes a window, empty ones too: they say that the host was watched.
    fn window(&mut self, sealed: SealedWindow, files: &Arc<dyn OpenFiles>);
}
