//! How fast rows are compiled, for benchmarks.

use super::unwind_rows;
use crate::elf::ForeignFileError;
use crate::elf::source::Source;
use std::os::fd::{AsFd as _, OwnedFd};
use std::time::{Duration, Instant};

/// What compiling one file gave and cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowFigures {
    /// Rows of the table.
    pub rows: usize,
    /// Distinct rules.
    pub rules: usize,
    /// Wall time from the open file to the table.
    pub time: Duration,
}

impl RowFigures {
    /// Compiles the rows of `file` once, and takes the time.
    ///
    /// # Errors
    /// See [`ForeignFileError`].
    pub fn measure(file: &OwnedFd) -> Result<Self, ForeignFileError> {
        let start = Instant::now();
        let table = unwind_rows(Source::file(file.as_fd())?)?;
        let time = start.elapsed();
        Ok(Self { rows: table.len(), rules: table.rules().len(), time })
    }

    /// Rows compiled in one second.
    #[must_use]
    pub fn rows_per_second(&self) -> u64 {
        let rows = u128::try_from(self.rows).unwrap_or(0);
        let rate = rows.saturating_mul(1_000_000_000) / self.time.as_nanos().max(1);
        u64::try_from(rate).unwrap_or(u64::MAX)
    }
}
