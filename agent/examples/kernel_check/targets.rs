//! The programs whose stacks are known, and what must be in each of them.

use anyhow::{Context as _, Result};
use rustix::process::{Pid, Signal, kill_process};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A program and the truth about its stacks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Truth {
    /// Its file.
    pub(crate) program: &'static str,
    /// Where it spends much of its time.
    pub(crate) inner: &'static str,
    /// What is then always above it, and how often.
    pub(crate) outer: &'static str,
    pub(crate) outer_times: usize,
    /// Where every stack begins, one of these.
    pub(crate) root: &'static [&'static str],
    /// At least this share of its samples hits the kernel, percent.
    pub(crate) kernel_percent: usize,
}

const START: &[&str] = &["_start"];

/// Sources in tests/workloads/kernels, which xtask compiles without frame pointers.
pub(crate) const TRUTHS: [Truth; 5] = [
    Truth {
        program: "deep_static",
        inner: "burn",
        outer: "deep",
        outer_times: 21,
        root: START,
        kernel_percent: 0,
    },
    Truth {
        program: "deep_dynamic",
        inner: "burn",
        outer: "deep",
        outer_times: 21,
        root: START,
        kernel_percent: 0,
    },
    Truth {
        program: "system_calls",
        inner: "fill",
        outer: "main",
        outer_times: 1,
        root: START,
        kernel_percent: 50,
    },
    Truth {
        program: "locks",
        inner: "contend",
        outer: "thread",
        outer_times: 1,
        root: &["clone3", "__clone3", "clone", "__clone", "_start"],
        kernel_percent: 0,
    },
    Truth {
        program: "signals",
        inner: "in_handler",
        outer: "victim",
        outer_times: 1,
        root: START,
        kernel_percent: 0,
    },
];

/// Lives for 300 ms of CPU time, or not at all.
pub(crate) const BRIEF: &str = "brief";

/// How long the targets may take to start.
const START_PATIENCE: Duration = Duration::from_secs(20);
/// CPU time after which a target is in its own code, in clock ticks of 10 ms: its dynamic linker is done.
const START_TICKS: u64 = 40;

/// By the CPU time of all its threads, fields 14 and 15 of `/proc/PID/stat` (proc(5)).
fn is_past_its_start(child: &Child) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap_or_default();
    let after_name = stat.rsplit(") ").next().unwrap_or_default();
    let times = after_name.split(' ').skip(11).take(2);
    times.filter_map(|ticks| ticks.parse::<u64>().ok()).sum::<u64>() >= START_TICKS
}

/// All of them, running until this is dropped.
#[derive(Debug)]
pub(crate) struct Targets {
    folder: PathBuf,
    children: Vec<Child>,
}

impl Targets {
    /// Starts them, waits until they have everything mapped, and stops them: the agent's start is not to
    /// share two emulated CPUs with five programs that want both.
    pub(crate) fn start(folder: &Path) -> Result<Self> {
        let mut targets = Self { folder: folder.to_owned(), children: Vec::new() };
        for truth in TRUTHS {
            let child = targets.command(truth.program).spawn();
            targets.children.push(child.with_context(|| format!("start {}", truth.program))?);
        }
        let begin = Instant::now();
        while begin.elapsed() < START_PATIENCE && !targets.children.iter().all(is_past_its_start) {
            std::thread::sleep(Duration::from_millis(50));
        }
        targets.signal(Signal::STOP)?;
        Ok(targets)
    }

    /// They run from here on.
    pub(crate) fn go_on(&self) -> Result<()> {
        self.signal(Signal::CONT)
    }

    /// They run no more.
    pub(crate) fn stop(&self) -> Result<()> {
        self.signal(Signal::STOP)
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        for child in &self.children {
            kill_process(Pid::from_child(child), signal).context("signal a target")?;
        }
        Ok(())
    }

    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = Command::new(self.folder.join(program));
        command.stdin(Stdio::null());
        command
    }

    /// The process that runs a target.
    pub(crate) fn pid(&self, index: usize) -> u32 {
        self.children[index].id()
    }
}

impl Drop for Targets {
    fn drop(&mut self) {
        for child in &mut self.children {
            // One that is gone has failed its check already.
            if child.kill().is_ok() {
                drop(child.wait());
            }
        }
    }
}
