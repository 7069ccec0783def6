//! Folds the samples of one window: equal (process, thread, stack) become one sample with many times.
//! Each distinct location is named once, behind the engine's back: a sealed window becomes a
//! [`NamedWindow`]. Not the wire format, not files: [`WindowWriter`] is where they begin.

mod frame;
mod ledger;
mod named;
mod naming;
mod window;

#[cfg(test)]
pub(crate) mod fixtures;
#[cfg(test)]
mod tests;

pub use frame::{ANONYMOUS_CODE, UNNAMED_KERNEL_CODE, marker_text};
pub use ledger::{Ledger, OUTCOMES};
pub use named::{
    Code, FoldedSample, Location, LocationIndex, NamedWindow, ProcessSamples, StackIndex,
};
pub use naming::{NameSources, NamingSink, NamingThread, start_naming};
pub use window::Window;

use crate::address::{AbsAddr, ElfAddr};
use crate::elf::SourceLine;
use crate::normalize::MappedFile;
use crate::symbolize::KernelSymbol;
use std::sync::Arc;

/// Names that this host can give. Asked once per distinct location of a window.
pub trait Namer {
    /// Names addresses of one file: one answer for each address, innermost (inlined) line first, an
    /// empty list where nothing is known.
    fn native(&mut self, file: &Arc<MappedFile>, addresses: &[ElfAddr]) -> Vec<Vec<SourceLine>>;

    /// Names one kernel address.
    fn kernel(&mut self, address: AbsAddr) -> Option<KernelSymbol>;
}

/// Where named windows go: the exporter or the recorder.
pub trait WindowWriter: Send {
    /// Takes one window; windows come in the order of time, also those without samples. It must not
    /// wait for a network: the next window waits behind it.
    fn write(&mut self, window: NamedWindow);
}
