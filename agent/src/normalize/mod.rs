//! From an absolute address to (file, ELF address), and from a raw sample to frames that mean the same
//! on every host. No names are looked up here.

mod stack;

pub use stack::{frames, outcome};

use crate::address::{AbsAddr, ElfAddr, FileId, FileOffset, Pid, Tid};
use crate::clock::MonotonicNs;
use crate::elf::FileFacts;
use agent_ebpf::Outcome;
use std::sync::Arc;

/// One foreign file that mappings point to. Equality of files is equality of `id`.
#[derive(Debug)]
pub struct MappedFile {
    /// The agent's number for it.
    pub id: FileId,
    /// Path as the process sees it.
    pub path: String,
    /// What the file says of itself; `None` if it could not be opened (the build id of the kernel's
    /// mmap record may still be known).
    pub facts: Option<FileFacts>,
    /// Build id that the kernel reported with the mapping.
    pub kernel_build_id: Option<proto::BuildId>,
}

/// One BPF program or trampoline of the kernel, from its load to its unload; 0 is "none known", and then
/// kallsyms names the address. See [`crate::symbolize::kernel::KernelRegions`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct KernelRegion(pub u32);

/// A frame that is no code address: it says something about the stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Marker {
    /// `[unwind: <outcome>]`: the walk stopped early, at the root end of the frames.
    Stopped(Outcome),
    /// Frames of an interpreter or JIT whose names are to come, in one frame: `[python frames: names
    /// to come]` and the like.
    Interpreter(crate::elf::Runtime),
}

/// One frame of a normalized stack.
#[derive(Clone, Debug)]
pub enum Frame {
    /// Code of a file. `address` is the address to look up: exact for leaves, minus one for callers.
    Native {
        /// The file.
        file: Arc<MappedFile>,
        /// Where in it.
        address: ElfAddr,
    },
    /// Code of a file that could not be read: without its segments no ELF address can be stated.
    /// It is shown as its file, never named.
    Unplaced {
        /// The file; its `facts` are `None`, or none of its segments holds the mapping.
        file: Arc<MappedFile>,
        /// Where in it, as a file offset.
        offset: FileOffset,
    },
    /// Kernel code (text, modules, BPF programs), at the address to look up.
    Kernel {
        /// Where.
        address: AbsAddr,
        /// What lay there when it was sampled, where code comes and goes.
        region: KernelRegion,
    },
    /// Code that no file backs (JIT): kept by address, named from a perf map later.
    Anonymous {
        /// Who compiled it, if that is known; [`crate::elf::Runtime::Native`] if not.
        runtime: crate::elf::Runtime,
        /// Where.
        address: AbsAddr,
    },
    /// A remark.
    Marker(Marker),
}

/// One process instance. A pid alone is used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProcessKey {
    /// Process id.
    pub pid: Pid,
    /// Start time since boot, nanoseconds.
    pub start_time_ns: u64,
}

impl ProcessIdentity {
    /// Which instance this is.
    #[must_use]
    pub const fn key(&self) -> ProcessKey {
        ProcessKey { pid: self.pid, start_time_ns: self.start_time_ns }
    }
}

/// Who ran: attributes that are the same for all samples of a process instance.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ProcessIdentity {
    /// Process id.
    pub pid: Pid,
    /// Start time since boot, nanoseconds; with `pid` it names one instance.
    pub start_time_ns: u64,
    /// `process.executable.name`: file name of the executable.
    pub executable_name: String,
    /// `process.executable.path`.
    pub executable_path: String,
    /// `service.name`, by the rules of OpenTelemetry.
    pub service_name: String,
    /// `container.id`.
    pub container_id: Option<String>,
    /// True for a kernel thread.
    pub kernel_thread: bool,
}

/// A sample that is ready to be folded.
#[derive(Clone, Debug)]
pub struct NormalizedSample {
    /// Who ran.
    pub process: Arc<ProcessIdentity>,
    /// Which thread.
    pub tid: Tid,
    /// `thread.name`.
    pub thread_name: Arc<str>,
    /// `cpu.logical_number`.
    pub cpu: u32,
    /// When.
    pub time: MonotonicNs,
    /// How the walk ended, as the marker says it ([`outcome`]).
    pub outcome: Outcome,
    /// Leaf first: kernel frames, user frames, a marker.
    pub frames: Vec<Frame>,
}
