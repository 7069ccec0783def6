//! `cargo xtask test kernels`: the agent on Debian's kernels from the oldest that it takes to the newest
//! that there is, each in an emulated machine. What runs inside is `agent/examples/kernel_check`.
//!
//! A kernel that cannot be had is no failure of the agent: it is named, counted as skipped, and the
//! command ends with exit code 3. What ran is in target/kernels.json.

mod archive;
mod branch;
mod cache;
mod guest;
mod machine;
mod matrix;

use crate::command::{print, say};
use crate::setup;
use crate::test_output::Counts;
use crate::workspace::target;
use anyhow::{Context as _, Result};
use branch::Branch;
use cache::Kernel;
use matrix::{HEADINGS, Outcome, Row};
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// Machines that run at the same time.
const LANES: usize = 2;

/// What came of all kernels.
#[derive(Debug, Default)]
pub(crate) struct Matrix {
    pub(crate) counts: Counts,
    /// Checks that failed.
    pub(crate) faults: Vec<String>,
    /// Kernels that could not be had, each with the reason.
    pub(crate) not_had: Vec<String>,
}

/// What the matrix needs, found or fetched.
#[derive(Debug)]
pub(crate) struct Machines {
    qemu: PathBuf,
    kernels: Vec<(Branch, Result<Kernel>)>,
}

impl Machines {
    /// Finds or fetches QEMU and the kernels.
    pub(crate) fn find() -> Result<Self> {
        let purpose = "the matrix of kernels";
        let qemu = setup::program("qemu-system-x86_64", "qemu-system-x86", purpose)?;
        Ok(Self { qemu, kernels: cache::kernels()? })
    }
}

/// Runs the kernels whose branch is named in `filter`, or all, and prints the matrix. `machines` are missing
/// for a reason.
pub(crate) fn run(machines: Result<Machines>, filter: Option<&str>) -> Result<Matrix> {
    let report = target().join("kernels.json");
    if report.exists() {
        // Nobody shall take an old report for this run's.
        std::fs::remove_file(&report)?;
    }
    let Machines { qemu, mut kernels } = match machines {
        Ok(machines) => machines,
        Err(error) => return Ok(Matrix::without_machines(&format!("{error:#}"))),
    };
    kernels.retain(|(branch, _)| filter.is_none_or(|filter| branch.to_string().contains(filter)));
    let folder = target().join("kernels");
    std::fs::create_dir_all(&folder).with_context(|| format!("create {}", folder.display()))?;
    let initramfs = guest::initramfs(&folder)?;
    let rows = boot_all(&qemu, &initramfs, kernels)?;
    print(HEADINGS);
    rows.iter().flat_map(Row::lines).for_each(|line| print(&line));
    std::fs::write(&report, matrix::json(&rows))
        .with_context(|| format!("write {}", report.display()))?;
    say(&format!("the matrix is in {}", report.display()));
    Ok(Matrix::of(&rows))
}

impl Matrix {
    fn of(rows: &[Row]) -> Self {
        let mut matrix = Self::default();
        for row in rows {
            matrix.counts += row.counts();
            matrix.faults.extend(row.faults());
            if let Outcome::NotHad { reason } = &row.outcome {
                matrix.not_had.push(format!("{}: {reason}", row.branch));
            }
        }
        matrix
    }

    fn without_machines(reason: &str) -> Self {
        let counts = Counts { skipped: 1, ..Counts::default() };
        Self { counts, faults: Vec::new(), not_had: vec![format!("all: {reason}")] }
    }
}

/// Boots the kernels, [`LANES`] at a time; the rows are in the order of the kernels.
fn boot_all(
    qemu: &Path,
    initramfs: &Path,
    kernels: Vec<(Branch, Result<Kernel>)>,
) -> Result<Vec<Row>> {
    let queue: VecDeque<_> = kernels.into_iter().enumerate().collect();
    let queue = Mutex::new(queue);
    let rows = Mutex::new(Vec::new());
    let lane = || -> Result<()> {
        loop {
            let next = queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
            let Some((place, (branch, kernel))) = next else { return Ok(()) };
            let row = match kernel {
                Err(error) => {
                    Row { branch, outcome: Outcome::NotHad { reason: format!("{error:#}") } }
                }
                Ok(kernel) => {
                    say(&format!("booting {branch}: {}", kernel.package.name));
                    let archive = guest::with_module(initramfs, branch, &kernel)?;
                    let mut run = machine::boot(qemu, &kernel.image, &archive)?;
                    // On a busy host the emulator now and then runs an instruction that the kernel is patching on the other
                    // processor (a jump label, also before any of our programs is loaded), and the kernel panics. What
                    // is ours panics again.
                    if run.panicked() {
                        say(&format!("{branch} panicked: it is booted once more"));
                        run = machine::boot(qemu, &kernel.image, &archive)?;
                    }
                    Row::ran(branch, kernel, &run)
                }
            };
            rows.lock().unwrap_or_else(PoisonError::into_inner).push((place, row));
        }
    };
    std::thread::scope(|scope| -> Result<()> {
        let lanes: Vec<_> = (0..LANES).map(|_| scope.spawn(lane)).collect();
        lanes.into_iter().try_for_each(|lane| match lane.join() {
            Ok(result) => result,
            Err(_panic) => anyhow::bail!("a lane panicked"),
        })
    })?;
    let mut rows = rows.into_inner().unwrap_or_else(PoisonError::into_inner);
    rows.sort_unstable_by_key(|(place, _)| *place);
    Ok(rows.into_iter().map(|(_, row)| row).collect())
}
