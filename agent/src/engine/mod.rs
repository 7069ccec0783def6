//! The loop: kernel records in, sealed windows out. It owns the threads, the clocks and the order of
//! things; what a record means is decided by `process` and `normalize`, what becomes of a window by the
//! [`WindowSink`].

mod control;
mod held;
mod kernel_side;
#[cfg(test)]
mod load_tests;
mod off_cpu;
mod preload;
mod sampling;
#[cfg(test)]
mod tests;
mod waiting_before;
mod walked;

pub use control::Control;
pub use kernel_side::Sampling;
pub use off_cpu::OffCpuCounts;
pub use sampling::{Engine, EngineCounts};

use crate::address::{FileId, Pid};
use crate::aggregate::Window;
use crate::bpf::{self, Sampler};
use crate::clock::{MonotonicNs, WallOffset};
use crate::elf::{ForeignFiles, LocalFiles};
use crate::kernel::{KernelFacts, KernelVersion, NO_LINKS, SHADOW_STACKS, allows_libc_probes};
use crate::limits::{
    ALLOCATION_KEPT_BYTES_MAX, ALLOCATION_MAPPED_BYTES_MIN, DESCRIPTORS_MAX, ENGINE_NICE,
    UNWIND_TABLE_BYTES_MAX,
};
use crate::process::host::{Host, ProcFs};
use crate::symbolize::kernel::KernelRegions;
use crate::symbolize::perf_maps::PerfMaps;
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
    /// The time that threads spend off their CPU is measured too, where the kernel allows it.
    pub off_cpu: bool,
    /// Of how many waits the stack is taken.
    pub wait_stacks: crate::bpf::WaitStacks,
    /// Then locks of Go are probed.
    pub go_lock_probes: bool,
    /// And the waiting paths of C libraries.
    pub libc_lock_probes: LibcProbing,
    /// Form of the programs.
    pub form: crate::bpf::FormChoice,
    /// Size of the ring buffer, bytes; `None`: by CPUs and frequency.
    pub ring_bytes: Option<u32>,
    /// The programs write diagnostics to the log.
    pub bpf_log: bool,
    /// Kernel memory for unwind tables, bytes.
    pub table_bytes_max: u64,
    /// Folder of compiled tables; `None`: they are not kept.
    pub table_cache: Option<PathBuf>,
    /// Executables whose tables, and those of their libraries, are loaded before sampling begins.
    pub preload: Vec<PathBuf>,
    /// Names of code that no file backs, shared with the thread that names: it is told which processes
    /// run such code, and says where `CPython`'s trampolines are.
    pub perf_maps: Option<Arc<PerfMaps>>,
    /// Kernel code that comes and goes, shared likewise.
    pub kernel_regions: Option<Arc<KernelRegions>>,
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
            off_cpu: false,
            go_lock_probes: true,
            libc_lock_probes: LibcProbing::Never,
            wait_stacks: crate::bpf::WaitStacks::default(),
            form: crate::bpf::FormChoice::default(),
            ring_bytes: None,
            bpf_log: false,
            table_bytes_max: UNWIND_TABLE_BYTES_MAX,
            table_cache: None,
            preload: Vec::new(),
            perf_maps: None,
            kernel_regions: None,
        }
    }
}

/// Whether C libraries are probed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LibcProbing {
    /// Nobody asked for it.
    Never,
    /// Where one link of the kernel has all places of a file.
    WhereLinked,
    /// Where the kernel takes them at all.
    Always,
}

impl LibcProbing {
    /// Why they are not probed though that was asked for; `links`: the kernel is one that should have them, `safe`: see
    /// [`allows_libc_probes`].
    fn refusal(self, links: bool, safe: bool) -> Option<&'static str> {
        match self {
            Self::Never => None,
            Self::WhereLinked | Self::Always if !safe => Some(SHADOW_STACKS),
            Self::WhereLinked if !links => Some(NO_LINKS),
            Self::WhereLinked | Self::Always => None,
        }
    }

    /// Says why. Whoever asked for them must hear it; that they are not had by default is no fault of the host.
    fn tell(self, why: &str) {
        if self == Self::Always {
            tracing::warn!("locks of C libraries are not probed: {why}");
        } else {
            tracing::info!("locks of C libraries are not probed: {why}");
        }
    }
}

/// Descriptors of the files that frames point to, for naming. A file is kept open, or opened again
/// beneath a process that still maps it and checked to be the same one.
pub trait OpenFiles: Send + Sync {
    /// An open descriptor of the file, `None` if nobody has it any more.
    fn open(&self, id: FileId) -> Option<Arc<OwnedFd>>;

    /// The file's separate debug file, where this host has one beneath the same root.
    fn open_debug(&self, _id: FileId) -> Option<Arc<OwnedFd>> {
        None
    }
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

/// Why the engine did not start, or ended early.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// This kernel is not sampled.
    #[error(transparent)]
    Kernel(#[from] crate::kernel::Refusal),
    /// The kernel side failed.
    #[error(transparent)]
    Bpf(#[from] crate::bpf::BpfError),
    /// The host's processes cannot be listed.
    #[error("cannot list processes in {path}: {source}")]
    Processes {
        /// Where procfs was expected.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The host refused a thread.
    #[error("cannot start a thread: {0}")]
    Thread(std::io::Error),
}

/// Samples until `control` says stop or the duration is over; every window goes to `sink`. Everything is
/// detached when it returns.
///
/// # Errors
/// See [`EngineError`].
pub fn run(
    options: &EngineOptions,
    sink: &mut dyn WindowSink,
    control: &Control,
) -> Result<(), EngineError> {
    KernelFacts::read(&options.proc_root).check(options.ignore_kernel_defects)?;
    // What this thread starts later must not go first: programs of its caller would keep the threads of
    // the next engine waiting.
    let nice = rustix::process::getpriority_process(None);
    go_first(ENGINE_NICE);
    let end = run_first(options, sink, control);
    if let Ok(nice) = nice {
        go_first(nice);
    }
    end
}

fn run_first(
    options: &EngineOptions,
    sink: &mut dyn WindowSink,
    control: &Control,
) -> Result<(), EngineError> {
    raise_descriptor_limit();
    return_freed_memory();
    let libc = if options.off_cpu { options.libc_lock_probes } else { LibcProbing::Never };
    let links = KernelVersion::running().is_some_and(KernelVersion::links_probes);
    let refusal = libc.refusal(links, allows_libc_probes(&options.proc_root));
    refusal.iter().for_each(|why| libc.tell(why));
    let (mut sampler, tables) = Sampler::load(&bpf::Options {
        frequency_hz: options.frequency_hz,
        form: options.form,
        ring_bytes: options.ring_bytes,
        bpf_log: options.bpf_log,
        pid_filter: (!options.pids.is_empty()).then(|| options.pids.clone()),
        table_bytes_max: options.table_bytes_max,
        off_cpu: options.off_cpu,
        wait_stacks: options.wait_stacks,
        go_locks: options.off_cpu && options.go_lock_probes,
        libc_locks: libc != LibcProbing::Never && refusal.is_none(),
        ..bpf::Options::default()
    })?;
    // A kernel that should have links may refuse them.
    if libc == LibcProbing::WhereLinked && sampler.forget_single_libc_probes() {
        libc.tell(NO_LINKS);
    }
    if let Some(error) = sampler.waits_refused() {
        tracing::warn!(%error, "off-CPU time is not measured");
    }
    let host: Arc<dyn Host> = Arc::new(ProcFs::new(options.proc_root.clone()));
    let foreign: Arc<dyn ForeignFiles> = Arc::new(LocalFiles::new());
    let mut engine = Engine::new(options, host, &foreign, Box::new(sampler), Box::new(tables))?;
    engine.load_existing(control)?;
    engine.run(sink, control)
}

/// Lets this thread, and those that it starts, have the CPU soon when they want it: a new process that
/// spins waits for its tables behind everybody else that does, and each of them has its turn first. It is
/// a right of root; without it tables come later.
pub(crate) fn go_first(nice: i32) {
    // Linux keeps it for each thread, against POSIX (setpriority(2), "C library/kernel differences").
    if let Err(error) = rustix::process::setpriority_process(None, nice) {
        tracing::debug!(%error, "the priority stays");
    }
}

/// Descriptors are needed by CPU and by file; the usual soft limit of 1,024 does for neither on a large
/// host. Raising it up to the hard limit needs no right.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current =
        limit.maximum.map_or(Some(DESCRIPTORS_MAX), |hard| Some(hard.min(DESCRIPTORS_MAX)));
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::debug!(%error, "the limit of descriptors stays");
    }
}

/// Tables of a million rows come and go. The C library would keep what they leave for later (59 MB
/// resident after a start beside a Rust compiler, 20 MB with this): large blocks are to be mapped and
/// unmapped, which it does once its thresholds are fixed (mallopt(3)).
fn return_freed_memory() {
    #[cfg(target_env = "gnu")]
    for (parameter, bytes) in [
        (libc::M_MMAP_THRESHOLD, ALLOCATION_MAPPED_BYTES_MIN),
        (libc::M_TRIM_THRESHOLD, ALLOCATION_KEPT_BYTES_MAX),
    ] {
        // SAFETY: mallopt changes a setting of the allocator under its own lock; both parameters take
        // any number of bytes.
        let done = unsafe { libc::mallopt(parameter, bytes) };
        if done != 1 {
            tracing::debug!(parameter, "the allocator keeps its setting");
        }
    }
}
