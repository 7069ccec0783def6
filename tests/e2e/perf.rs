//! Linux perf as the second opinion on the depth of stacks: `perf record --call-graph dwarf` on the same
//! process at the same time, read with `perf script --no-inline`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tests::Running;
use tests::statistics::as_f64;

/// Another prime than the agent's, so that the two clocks do not meet.
const FREQUENCY_HZ: u32 = 397;

/// Addresses from here on belong to the kernel on x86-64.
const KERNEL_START: u64 = 1 << 63;

/// A recording under way.
pub(crate) struct Recording {
    perf: PathBuf,
    process: Running,
    folder: tempfile::TempDir,
}

/// What perf saw.
pub(crate) struct Depths {
    /// User frames of a stack, without inlined functions.
    pub(crate) mean: f64,
    /// How many stacks.
    pub(crate) samples: usize,
}

impl Recording {
    /// Records the process from one second from now on.
    pub(crate) fn start(perf: &Path, pid: u32, length: Duration) -> Self {
        std::thread::sleep(Duration::from_secs(1));
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut command = Command::new(perf);
        command.args(["record", "--quiet", "--event=cpu-clock", "--call-graph=dwarf"]);
        command.arg(format!("--freq={FREQUENCY_HZ}")).arg(format!("--pid={pid}"));
        command.arg(format!("--output={}", folder.path().join("perf.data").display()));
        command.arg("--").arg("sleep").arg(length.as_secs().to_string());
        Self { perf: perf.to_owned(), process: Running::start(command), folder }
    }

    /// Reads what was recorded.
    pub(crate) fn finish(self) -> Depths {
        let Self { perf, process, folder } = self;
        process.finish(Duration::from_secs(60));
        let data = folder.path().join("perf.data");
        let output = Command::new(perf)
            .args(["script", "--no-inline", "--fields=ip", "--input"])
            .arg(data)
            .output()
            .expect("perf runs");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success(),
            "perf script: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        depths(&text)
    }
}

/// One address a line, leaf first, an empty line behind each stack.
fn depths(script: &str) -> Depths {
    let (mut samples, mut frames) = (0, 0);
    for stack in script.split("\n\n") {
        let addresses = stack.lines().filter_map(|line| u64::from_str_radix(line.trim(), 16).ok());
        let user = addresses.filter(|&address| address < KERNEL_START).count();
        if user > 0 {
            samples += 1;
            frames += user;
        }
    }
    assert!(samples > 0, "perf recorded no stack");
    Depths { mean: as_f64(frames) / as_f64(samples), samples }
}
