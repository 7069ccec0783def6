//! Names that only this host can give: of the kernel, its modules and BPF programs, and of code that a JIT
//! writes down; and provisional names for native code, from the files that are there. A name is looked up
//! once per location and window, not per sample.

pub mod demangle;
mod go;
pub mod kernel;
pub(crate) mod native;
pub mod perf_maps;
mod unnamed;

pub use unnamed::UnnamedReason;

use crate::address::AbsAddr;
use crate::normalize::KernelRegion;

/// A kernel function.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct KernelSymbol {
    /// Name without version suffixes.
    pub name: String,
    /// `vmlinux`, the module's name, or `bpf`.
    pub module: String,
}

/// Names of the kernel.
pub trait KernelNames: Send {
    /// Names one kernel address; the table is re-read when modules or BPF programs have come.
    ///
    /// # Errors
    /// The reason why there is no name.
    fn kernel(
        &mut self,
        address: AbsAddr,
        region: KernelRegion,
    ) -> Result<KernelSymbol, UnnamedReason>;
}
