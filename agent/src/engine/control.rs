//! How others speak to a running engine.

use super::EngineCounts;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Tells the engine to stop, and others that it samples. Clones speak of the same engine.
#[derive(Clone, Debug, Default)]
pub struct Control {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    stop: AtomicBool,
    sampling: Mutex<bool>,
    changed: Condvar,
    counts: Mutex<EngineCounts>,
}

impl Control {
    /// Asks the engine to drain what is there, seal the last window and return.
    pub fn stop(&self) {
        self.shared.stop.store(true, Ordering::Release);
    }

    /// True once it was asked to stop; the engine looks at it at least every 100 ms.
    #[must_use]
    pub fn is_stopping(&self) -> bool {
        self.shared.stop.load(Ordering::Acquire)
    }

    /// The engine says that every CPU is sampled from now on.
    pub(super) fn set_sampling(&self) {
        *self.shared.sampling.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.shared.changed.notify_all();
    }

    /// Waits until every CPU is sampled, for at most `wait_max`; answers whether it is.
    #[must_use]
    pub fn wait_sampling(&self, wait_max: Duration) -> bool {
        let sampling = self.shared.sampling.lock().unwrap_or_else(PoisonError::into_inner);
        let waited =
            self.shared.changed.wait_timeout_while(sampling, wait_max, |sampling| !*sampling);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// What the engine has counted, as of its last window.
    #[must_use]
    pub fn counts(&self) -> EngineCounts {
        *self.shared.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The engine says what it has counted.
    pub(super) fn set_counts(&self, counts: EngineCounts) {
        *self.shared.counts.lock().unwrap_or_else(PoisonError::into_inner) = counts;
    }
}
