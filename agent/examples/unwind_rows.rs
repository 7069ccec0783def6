//! Compiles the unwind rows of the files named on the command line, three times each, and prints the
//! best: `cargo run --release -p agent --example unwind_rows -- /lib/x86_64-linux-gnu/libc.so.6`.
#![expect(clippy::print_stdout, reason = "an example prints")]

use agent::unwind::RowFigures;
use anyhow::{Context as _, Result};
use std::fs::File;
use std::os::fd::OwnedFd;

/// Runs of each file: the first reads from the disk.
const RUNS: usize = 3;

fn main() -> Result<()> {
    for path in std::env::args_os().skip(1) {
        let shown = path.display();
        let mut best: Option<RowFigures> = None;
        for _ in 0..RUNS {
            let file: OwnedFd = File::open(&path).with_context(|| format!("{shown}"))?.into();
            let figures = RowFigures::measure(&file).with_context(|| format!("{shown}"))?;
            best = best.filter(|best| best.time < figures.time).or(Some(figures));
        }
        let Some(best) = best else { continue };
        println!(
            "{shown}: {} rows, {} rules, {:.1} ms, {:.1} million rows/s",
            best.rows,
            best.rules,
            best.time.as_secs_f64() * 1e3,
            best.rows_per_second() as f64 / 1e6,
        );
    }
    Ok(())
}
