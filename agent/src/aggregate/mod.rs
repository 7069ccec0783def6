//! Folds the samples of one window: equal (process, thread, stack) become one sample with many times.
//! Each distinct location is named once, when the window is sealed. Not the wire format, not files:
//! [`WindowSink`] is where they begin.

mod ledger;
mod sealed;
mod window;

#[cfg(test)]
mod tests;

pub use ledger::{Ledger, OUTCOMES};
pub use sealed::{
    Code, FoldedSample, Location, LocationIndex, ProcessSamples, SealedWindow, StackIndex,
};
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

/// Where sealed windows go: the exporter or the recorder.
pub trait WindowSink: Send {
    /// Takes one window; windows come in the order of time, also those without samples. It must not
    /// wait for a network: the caller is the loop that drains the ring buffer, or a thread next to it.
    fn accept(&mut self, window: SealedWindow);
}
