//! Writes a file instead of sending: joins the windows of a recording and writes them as pprof, folded
//! stacks or OTLP. Who starts and ends the recording is the command line's affair.

mod folded;
mod joined;
mod pprof;

#[cfg(test)]
mod tests;

pub use folded::write_folded;
pub use joined::Joined;
pub use pprof::{pprof_profile, write_pprof};

use crate::aggregate::{NamedWindow, WindowWriter};
use std::sync::{Arc, Mutex};

/// What goes into a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contents {
    /// Samples of the clock.
    Cpu,
    /// These and the waits of threads, or the waits alone where a file has one value.
    Both,
}

/// Collects the windows of one recording. Clones collect into the same recording.
#[derive(Clone, Debug, Default)]
pub struct Recorder {
    joined: Arc<Mutex<Joined>>,
}

impl Recorder {
    /// Observations so far.
    #[must_use]
    pub fn observations(&self) -> u64 {
        self.lock().observations()
    }

    /// Everything so far as one window; `None` if there was no window.
    #[must_use]
    pub fn take(&self) -> Option<NamedWindow> {
        std::mem::take(&mut *self.lock()).finish()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Joined> {
        // A panic while joining left at worst the tables of one window without its samples.
        self.joined.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl WindowWriter for Recorder {
    fn write(&mut self, window: NamedWindow) {
        self.lock().add(&window);
    }
}
