//! Measures the collector's store: `cargo xtask bench store`. A week of a fleet is generated from a stated seed
//! ([`data_set`] says how) and written through the engine's own way of writing; then questions are asked of it, and of
//! chdb with the same samples ([`peer`]). At last requests are sent to a collector, from bytes to durable samples
//! ([`sending`]). Every total is compared with what the generated samples say. Not a test: it judges no figure.

mod batches;
mod data_set;
mod engine;
mod figures;
mod folder;
mod otlp;
mod peer;
mod questions;
mod random;
// The tests' own, which a crate for both would be too large a piece for.
#[path = "../../../tests/src/raw.rs"]
mod raw;
mod sending;

use anyhow::{Result, ensure};
use clap::{Parser, ValueEnum};
use data_set::DataSet;
use engine::Engine;
use figures::{Report, progress};
use folder::Folder;
use peer::Peer;
use questions::Truth;
use sending::Sending;
use std::path::PathBuf;

/// The project of all samples.
const PROJECT: &str = "default";
/// Below it services have no stacks to choose from.
const SAMPLES_MIN: usize = 100_000;

/// Measures the store.
#[derive(Debug, Parser)]
#[command(
    bin_name = "cargo xtask bench store --",
    after_help = "\
Examples:
  cargo xtask bench store
  cargo xtask bench store --samples 100000000 --dir /var/tmp/store --json
  cargo xtask bench store --parts sending"
)]
struct Options {
    /// One JSON object a line: `{\"figure\",\"value\",\"unit\"}`, beside chdb with `peer` and `ratio` (chdb's over ours).
    #[arg(long)]
    json: bool,
    /// Samples in the set, over seven days; there is a stack for each hundred.
    #[arg(long, default_value_t = 10_000_000)]
    samples: usize,
    /// Samples that are sent to a collector, in each of three forms.
    #[arg(long, default_value_t = 6_000_000)]
    sent: usize,
    /// Seed of the set.
    #[arg(long, default_value_t = 42)]
    seed: u64,
    /// What to measure.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Part::Set, Part::Sending])]
    parts: Vec<Part>,
    /// A folder that is kept: what was written there is not written again [default: a temporary one].
    #[arg(long)]
    dir: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// The set in the engine, and in chdb where that is to be had.
    Set,
    /// OTLP requests to a collector.
    Sending,
}

fn main() -> Result<()> {
    let Options { json, samples, sent, seed, parts, dir } = Options::parse();
    ensure!(samples >= SAMPLES_MIN, "--samples must be at least {SAMPLES_MIN}");
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let report = Report { json };
    let folder = Folder::new(dir, format!("{samples} samples, seed {seed}"))?;
    let set = DataSet::new(samples, seed);
    let (stacks, series) = (set.stacks(), set.series.len());
    progress(&format!("{samples} samples, {stacks} stacks, {series} series, seed {seed}"));
    if parts.contains(&Part::Set) {
        let mut peer = Peer::start(&folder, &set)?;
        let truth = Truth::of(&set);
        let (set, truth, folder) = (&set, &truth, &folder);
        Engine { runtime: &runtime, set, truth, folder, report }.measure(&mut peer)?;
    }
    if parts.contains(&Part::Sending) {
        Sending { runtime: &runtime, set: &set, folder: &folder, report }.measure(sent)?;
    }
    Ok(())
}

fn float(count: usize) -> f64 {
    precise(count as u64)
}

#[expect(clippy::cast_precision_loss, reason = "figures are shown with a few digits")]
fn precise(count: u64) -> f64 {
    count as f64
}
