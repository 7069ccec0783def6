//! A window that is complete and named: folded samples over tables of stacks, locations and files. It never
//! changes again, so it can be written twice with the same bytes.

use super::{Ledger, ProcessLedger, WaitSum};
use crate::address::{AbsAddr, ElfAddr, FileOffset, Tid};
use crate::clock::{MonotonicNs, UnixNs};
use crate::elf::SourceLine;
use crate::normalize::{KernelRegion, MappedFile, Marker, ProcessIdentity, ProcessKey};
use crate::path::file_name;
use crate::symbolize::UnnamedReason;
use crate::waits::{LockWait, Wait, WaitReason};
use hashbrown::HashMap;
use std::sync::Arc;

/// Index into [`NamedWindow::locations`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LocationIndex(pub u32);

/// Index into [`NamedWindow::stacks`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StackIndex(pub u32);

/// What a location is: its identity within this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Code {
    /// Code of a file: an index into [`NamedWindow::files`] and the address to look up.
    Native {
        /// The file.
        file: u32,
        /// Where in it.
        address: ElfAddr,
    },
    /// Code of a file that could not be read: shown as its file, never named.
    Unplaced {
        /// The file.
        file: u32,
        /// Where in it.
        offset: FileOffset,
    },
    /// Kernel code.
    Kernel {
        /// Where.
        address: AbsAddr,
        /// What lay there then.
        region: KernelRegion,
    },
    /// Code that no file backs: its address means something in its process alone.
    Anonymous {
        /// Whose.
        process: ProcessKey,
        /// Who compiled it, if that is known; [`crate::elf::Runtime::Native`] if not.
        runtime: crate::elf::Runtime,
        /// Where.
        address: AbsAddr,
    },
    /// A remark.
    Marker(Marker),
}

/// One distinct location with the names this host knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    /// What it is.
    pub code: Code,
    /// Names, innermost first; empty if nothing is known. Markers have none: their text is the
    /// writer's.
    pub lines: Vec<SourceLine>,
    /// Why there are none. Nothing for markers.
    pub unnamed: Option<UnnamedReason>,
    /// For kernel code: `vmlinux`, the module's name or `bpf`, if known.
    pub module: Option<Arc<str>>,
}

impl Location {
    /// A location that nobody has named yet.
    pub(super) const fn new(code: Code) -> Self {
        Self { code, lines: Vec::new(), unnamed: None, module: None }
    }
}

/// Equal samples, folded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoldedSample {
    /// Thread.
    pub tid: Tid,
    /// Name of the thread.
    pub thread_name: Arc<str>,
    /// Where it was.
    pub stack: StackIndex,
    /// One wall time for each observation, ascending.
    pub times: Vec<UnixNs>,
}

/// Equal waits, folded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoldedWait {
    /// Thread.
    pub tid: Tid,
    /// Name of the thread.
    pub thread_name: Arc<str>,
    /// Where it waited.
    pub stack: StackIndex,
    /// What for.
    pub told: Wait,
    /// A goroutine waited, and its thread did other work: it is no time off the CPU.
    pub goroutine: bool,
    /// The variable of a file that the lock is.
    pub place: Option<LockPlace>,
    /// How long, and how many waits ended.
    pub sum: WaitSum,
}

/// A lock that is a variable of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LockPlace {
    /// Index into [`NamedWindow::files`].
    pub file: u32,
    /// Where in it.
    pub address: ElfAddr,
}

/// A thread that held a lock while others waited for it, folded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoldedHolder {
    /// Thread.
    pub tid: Tid,
    /// Name of the thread.
    pub thread_name: Arc<str>,
    /// Where it was meanwhile, on its CPU or off it.
    pub stack: StackIndex,
    /// The lock.
    pub lock: LockWait,
    /// The variable of a file that it is.
    pub place: Option<LockPlace>,
    /// Ticks of the clock at which it was there.
    pub ticks: u64,
}

impl FoldedWait {
    /// True if it is time off the CPU that nobody took away.
    #[must_use]
    pub fn is_off_cpu(&self) -> bool {
        self.told.reason != WaitReason::Preempted && !self.goroutine
    }
}

/// The samples of one process instance.
#[derive(Clone, Debug)]
pub struct ProcessSamples {
    /// Who ran.
    pub process: Arc<ProcessIdentity>,
    /// Folded samples, in the order of their first observation; none where all were dropped.
    pub samples: Vec<FoldedSample>,
    /// Its waits.
    pub waits: Vec<FoldedWait>,
    /// Who held what others waited for.
    pub holders: Vec<FoldedHolder>,
    /// What became of its samples.
    pub ledger: ProcessLedger,
}

impl ProcessSamples {
    /// Nothing of a process yet.
    #[must_use]
    pub fn of(process: Arc<ProcessIdentity>) -> Self {
        let (samples, waits, holders, ledger) = Default::default();
        Self { process, samples, waits, holders, ledger }
    }
}

/// What went wrong while a window was named.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NamingCounts {
    /// Files and processes whose code has no names, because those before them took the window's time.
    pub late: u64,
    /// Files, and kernel addresses, that made what names them panic.
    pub panics: u64,
    /// Files that did not answer.
    pub silent: u64,
}

impl NamingCounts {
    /// Adds another window's.
    pub fn add(&mut self, other: Self) {
        let Self { late, panics, silent } = other;
        self.late += late;
        self.panics += panics;
        self.silent += silent;
    }
}

/// A sealed window with names.
#[derive(Clone, Debug)]
pub struct NamedWindow {
    /// First instant covered.
    pub start: UnixNs,
    /// First instant behind it.
    pub end: UnixNs,
    /// Length by the monotonic clock, nanoseconds.
    pub duration_ns: u64,
    /// First instant covered, on the clock of the kernel.
    pub start_monotonic: MonotonicNs,
    /// Nanoseconds of CPU that one observation stands for: 1e9 / frequency.
    pub period_ns: u64,
    /// Samples by process instance, in the order of their first sample.
    pub processes: Vec<ProcessSamples>,
    /// Stacks, leaf first.
    pub stacks: Vec<Arc<[LocationIndex]>>,
    /// Distinct locations.
    pub locations: Vec<Location>,
    /// Distinct files.
    pub files: Vec<Arc<MappedFile>>,
    /// Names of variables that are locks, as far as this host knows them.
    pub lock_names: HashMap<LockPlace, Arc<str>>,
    /// What became of every tick.
    pub ledger: Ledger,
    /// What has no names and could have them.
    pub naming: NamingCounts,
}

impl NamedWindow {
    /// Number of observations in the window.
    #[must_use]
    pub fn observations(&self) -> u64 {
        let samples = self.processes.iter().flat_map(|process| &process.samples);
        samples.map(|sample| sample.times.len() as u64).sum()
    }

    /// Frames of the window and which have no name: the sums over its processes.
    #[must_use]
    pub fn name_counts(&self) -> ProcessLedger {
        let mut sums = ProcessLedger::default();
        self.processes.iter().for_each(|process| sums.add(&process.ledger));
        sums
    }

    /// Takes the account of windows before this one along, which were given up.
    pub(super) fn take_over(
        &mut self,
        mut before: Ledger,
        processes: Vec<(Arc<ProcessIdentity>, ProcessLedger)>,
    ) {
        before.add(&self.ledger);
        self.ledger = before;
        let known = self.processes.iter().enumerate();
        let known: HashMap<_, _> =
            known.map(|(place, known)| (Arc::clone(&known.process), place)).collect();
        for (process, ledger) in processes {
            match known.get(&process).and_then(|place| self.processes.get_mut(*place)) {
                Some(known) => known.ledger.add(&ledger),
                None => {
                    self.processes.push(ProcessSamples { ledger, ..ProcessSamples::of(process) });
                }
            }
        }
    }

    /// The name of a lock: its symbol, or its file and where in it.
    #[must_use]
    pub fn lock_name(&self, place: LockPlace) -> String {
        match self.lock_names.get(&place) {
            Some(name) => name.to_string(),
            None => {
                let path = self.files.get(place.file as usize).map_or("", |file| &file.path);
                format!("{}+{:#x}", file_name(path), place.address.0)
            }
        }
    }

    /// The stack with this index. Indices of a window are always within its tables.
    #[must_use]
    pub fn stack(&self, index: StackIndex) -> &[LocationIndex] {
        &self.stacks[index.0 as usize]
    }

    /// The location with this index.
    #[must_use]
    pub fn location(&self, index: LocationIndex) -> &Location {
        &self.locations[index.0 as usize]
    }
}
