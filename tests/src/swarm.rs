//! Many short processes, started by swarm.c.

use crate::Running;
use crate::workload;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// What to start.
#[derive(Clone, Debug)]
pub struct Swarm<'a> {
    /// Processes in total.
    pub processes: u32,
    /// One each so many microseconds, if the machine can.
    pub period_us: u32,
    /// So many at a time, at most.
    pub parallel: u32,
    /// Arguments of each; `{}` is its own path.
    pub arguments: &'a [&'a str],
    /// The programs, in turn.
    pub programs: &'a [&'a Path],
}

/// One process that was.
#[derive(Clone, Copy, Debug)]
pub struct Ended {
    /// Process id.
    pub pid: u32,
    /// Which of the programs.
    pub program: usize,
    /// CPU time by the kernel's account, its way to exec included.
    pub cpu_us: u64,
}

impl Swarm<'_> {
    /// Starts it; `None` if there is no compiler.
    #[must_use]
    pub fn start(&self) -> Option<Running> {
        let program: PathBuf = workload::c("swarm", &[])?;
        let mut command = Command::new(program);
        command.args([self.processes, self.period_us, self.parallel].map(|it| it.to_string()));
        command.args(self.arguments).arg("--").args(self.programs);
        Some(Running::start(command))
    }
}

/// Waits for the end of a swarm and gives its processes in the order of their ends.
///
/// # Panics
/// After `limit`, or if it printed something else.
#[must_use]
pub fn ended(swarm: Running, limit: Duration) -> Vec<Ended> {
    let one = |line: &str| {
        let mut numbers = line.split(' ').map(|number| number.parse::<u64>().expect("a number"));
        let mut next = || numbers.next().expect("three numbers a line");
        let (pid, program, cpu_us) = (next(), next(), next());
        let pid = u32::try_from(pid).expect("a pid fits 32 bits");
        Ended { pid, program: usize::try_from(program).expect("a small number"), cpu_us }
    };
    swarm.finish(limit).lines().map(one).collect()
}

/// Which program ran under a pid, where only one did.
#[must_use]
pub fn by_pid(ended: &[Ended]) -> HashMap<u32, Ended> {
    let mut by_pid = HashMap::new();
    let mut twice = Vec::new();
    for one in ended {
        if by_pid.insert(one.pid, *one).is_some() {
            twice.push(one.pid);
        }
    }
    by_pid.retain(|pid, _| !twice.contains(pid));
    by_pid
}
