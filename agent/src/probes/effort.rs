//! What the search of one file may take: who made the file may want it to take for ever.

use crate::clock::thread_cpu_ns;
use crate::elf::ForeignFileError;
use crate::limits::{PROBED_FILE_CPU_NS_MAX, PROBED_FUNCTIONS_MAX};
use std::cell::Cell;

/// What one search has taken, of what it may take.
#[derive(Debug)]
pub(crate) struct Effort {
    /// CPU time of this thread at which it is over.
    until_ns: u64,
    /// Functions that were decoded.
    pub(super) functions: Cell<usize>,
    /// The limit that was reached.
    over: Cell<Option<(&'static str, u64)>>,
}

impl Effort {
    /// Begins now.
    pub(crate) fn begin() -> Self {
        Self::until(thread_cpu_ns().saturating_add(PROBED_FILE_CPU_NS_MAX))
    }

    /// The same, to another time.
    pub(super) fn until(until_ns: u64) -> Self {
        Self { until_ns, functions: Cell::new(0), over: Cell::new(None) }
    }

    /// False once too much was done. Asks the kernel, 200 ns.
    pub(crate) fn goes_on(&self) -> bool {
        if self.over.get().is_none() && thread_cpu_ns() > self.until_ns {
            self.over.set(Some(("nanoseconds of a search for locks", PROBED_FILE_CPU_NS_MAX)));
        }
        self.over.get().is_none()
    }

    /// The same, before one more function is decoded.
    pub(crate) fn goes_on_to_function(&self) -> bool {
        if self.functions.get() >= PROBED_FUNCTIONS_MAX {
            let max = PROBED_FUNCTIONS_MAX as u64;
            self.over.set(Some(("functions that may have locks", max)));
        }
        self.functions.set(self.functions.get() + 1);
        self.goes_on()
    }

    /// Ends the search: what was found of a file that took too much is not to be used.
    pub(crate) fn end(&self) -> Result<(), ForeignFileError> {
        match self.over.get() {
            Some((what, max)) => Err(ForeignFileError::Limit { what, max }),
            None => Ok(()),
        }
    }
}
