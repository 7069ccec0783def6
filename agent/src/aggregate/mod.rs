//! Folds the samples of one window: equal (process, thread, stack) become one sample with many times; and the
//! waits of threads, which have sums instead.
//! Each distinct location is named once, behind the engine's back: a sealed window becomes a
//! [`NamedWindow`]. Not the wire format, not files: [`WindowWriter`] is where they begin.

mod account;
mod frame;
mod holders;
mod ledger;
mod named;
mod naming;
mod reason;
mod settle;
mod waits;
mod window;

#[cfg(test)]
pub(crate) mod fixtures;
#[cfg(test)]
mod tests;

pub use account::{ProcessLedger, UNNAMED_REASONS};
pub use frame::{ANONYMOUS_CODE, UNNAMED_KERNEL_CODE, marker_text};
pub use ledger::{DROP_REASONS, DropReason, Gap, Ledger, OUTCOMES, WaitLedger};
pub use named::{
    Code, FoldedHolder, FoldedSample, FoldedWait, Location, LocationIndex, LockPlace, NamedWindow,
    NamingCounts, ProcessSamples, StackIndex,
};
pub use naming::{NameSources, NamingPatience, NamingSink, NamingThread, start_naming};
pub use waits::WaitSum;
#[cfg(test)]
pub(crate) use window::WindowLimits;
pub use window::{Window, WindowWait};

use crate::address::{AbsAddr, ElfAddr, FileId};
use crate::elf::Names;
use crate::normalize::{KernelRegion, MappedFile, ProcessKey};
use crate::symbolize::{KernelSymbol, UnnamedReason};
use std::sync::Arc;

/// Names that this host can give. Asked once per distinct location of a window.
pub trait Namer {
    /// Names addresses of one file, one answer for each address.
    fn native(&mut self, file: &Arc<MappedFile>, addresses: &[ElfAddr]) -> Vec<Names>;

    /// True for a file that took long the last time: it is named behind the others.
    fn is_slow(&self, _file: FileId) -> bool {
        false
    }

    /// Names one kernel address.
    ///
    /// # Errors
    /// The reason why there is no name.
    fn kernel(
        &mut self,
        address: AbsAddr,
        region: KernelRegion,
    ) -> Result<KernelSymbol, UnnamedReason>;

    /// Names addresses of code that no file backs, one answer for each address.
    fn anonymous(&mut self, process: ProcessKey, addresses: &[AbsAddr]) -> Vec<Names>;
}

/// Where named windows go: the exporter or the recorder.
pub trait WindowWriter: Send {
    /// Takes one window; windows come in the order of time, also those without samples. It must not
    /// wait for a network: the next window waits behind it.
    fn write(&mut self, window: NamedWindow);
}
