//! Names that only this host can give (kernel, modules, BPF programs), and provisional names for native
//! code from the files that are there. A name is looked up once per location and window, not per sample.

pub mod demangle;
mod go;
pub mod kernel;
pub(crate) mod native;

use crate::address::AbsAddr;

/// A kernel function.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct KernelSymbol {
    /// Name without version suffixes.
    pub name: String,
    /// `vmlinux`, the module's name, or `bpf`.
    pub module: String,
}

/// Kernel names; answers `None` where kallsyms is hidden or the address is not code.
pub trait KernelNames: Send {
    /// Names one kernel address; the table is re-read when modules or BPF programs have come.
    fn kernel(&mut self, address: AbsAddr) -> Option<KernelSymbol>;
}
