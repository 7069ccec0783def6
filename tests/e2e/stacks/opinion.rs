//! How deep others find the same stacks: Linux perf, which copies 8 KiB of each stack and unwinds them by DWARF
//! later, and gdb, which stops the program once.

use super::case::Opinion;
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use tests::Running;
use tests::need;
use tests::statistics::as_f64;

/// Another prime than the agent's, so that the two clocks do not meet.
const FREQUENCY_HZ: u32 = 97;

/// Addresses from here on belong to the kernel on x86-64.
const KERNEL_START: u64 = 1 << 63;

/// What somebody else saw.
pub(super) struct Depth {
    pub(super) by: &'static str,
    /// User frames of a stack, the mean.
    pub(super) frames: f64,
    /// Standard error of the mean.
    pub(super) error: f64,
}

/// Asks about running programs, each by its own pid; some answer nothing.
pub(super) fn ask(programs: &[(u32, Opinion)]) -> BTreeMap<u32, Depth> {
    let of = |wanted: Opinion| {
        let matching = programs.iter().filter(move |(_, opinion)| *opinion == wanted);
        matching.map(|(pid, _)| *pid).collect::<Vec<u32>>()
    };
    let mut depths = BTreeMap::new();
    let (by_perf, by_gdb) = (of(Opinion::Perf), of(Opinion::Gdb));
    let perf = if by_perf.is_empty() { None } else { need::tool("VESTA_PERF", "perf") };
    let gdb = if by_gdb.is_empty() { None } else { need::tool("VESTA_GDB", "gdb") };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let data = folder.path().join("perf.data");
    let recording = perf.as_deref().map(|perf| record(perf, &by_perf, &data));
    if let Some(gdb) = gdb {
        for pid in by_gdb {
            depths.extend(stopped(&gdb, pid).map(|depth| (pid, depth)));
        }
    }
    if let (Some(perf), Some(mut recording)) = (perf, recording) {
        let status = recording.wait(Duration::from_secs(60));
        // If the programs end first, perf ends its `sleep`, and itself by the same signal (`__cmd_record`,
        // tools/perf/builtin-record.c).
        let ended_first = status.signal() == Some(Signal::TERM.as_raw());
        assert!(
            status.success() || ended_first,
            "perf ended with {status}: {}",
            recording.stderr()
        );
        depths.extend(read(&perf, &data));
    }
    depths
}

fn record(perf: &Path, pids: &[u32], data: &Path) -> Running {
    let pids: Vec<String> = pids.iter().map(ToString::to_string).collect();
    let mut command = Command::new(perf);
    command.args(["record", "--quiet", "--event=cpu-clock", "--call-graph=dwarf"]);
    command.arg(format!("--freq={FREQUENCY_HZ}")).arg(format!("--pid={}", pids.join(",")));
    command.arg(format!("--output={}", data.display())).args(["--", "sleep", "2"]);
    Running::start(command)
}

/// Mean depth by pid.
fn read(perf: &Path, data: &Path) -> BTreeMap<u32, Depth> {
    let mut command = Command::new(perf);
    command.args(["script", "--no-inline", "--fields=pid,ip", "--input"]).arg(data);
    let output = command.output().expect("perf runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "perf script: {said}");
    depths(&String::from_utf8_lossy(&output.stdout))
}

/// A line with the pid, then one address a line, leaf first, an empty line behind each stack.
fn depths(script: &str) -> BTreeMap<u32, Depth> {
    let mut stacks: BTreeMap<u32, Vec<f64>> = BTreeMap::new();
    for stack in script.split("\n\n") {
        let mut lines = stack.lines().skip_while(|line| line.trim().is_empty());
        let Some(pid) = lines.next().and_then(|line| line.trim().parse().ok()) else { continue };
        let addresses = lines.filter_map(|line| u64::from_str_radix(line.trim(), 16).ok());
        let user = addresses.filter(|&address| address < KERNEL_START).count();
        if user > 0 {
            stacks.entry(pid).or_default().push(as_f64(user));
        }
    }
    let mean = |(pid, depths): (u32, Vec<f64>)| {
        let count = as_f64(depths.len());
        let frames = depths.iter().sum::<f64>() / count;
        let variance = depths.iter().map(|it| (it - frames).powi(2)).sum::<f64>() / count;
        // Few stacks may be equal by chance: their depths differ by half a frame at least.
        (pid, Depth { by: "perf", frames, error: (variance.max(0.25) / count).sqrt() })
    };
    stacks.into_iter().map(mean).collect()
}

/// Longest that gdb may take to look at a program: it reads the symbols of all its files.
const LOOK_LIMIT: Duration = Duration::from_secs(20);

/// Looks of gdb at one program: it may be at its clock, some frames deeper than its leaf. A program that shares its CPU
/// is there more often than its share of the time, because the scheduler takes turns at system calls.
const LOOKS_MAX: usize = 4;

/// Frames of the stack where gdb stops the program.
fn stopped(gdb: &Path, pid: u32) -> Option<Depth> {
    let look = || {
        let mut command = Command::new(gdb);
        command.args(["-nx", "-batch", "-p", &pid.to_string()]);
        command.args(["-ex", "set backtrace past-main on", "-ex", "backtrace"]);
        let mut process = Running::start(command);
        process.ends_within(LOOK_LIMIT).then(|| process.stdout())
    };
    let looks = (0..LOOKS_MAX).map_while(|_| look());
    let text = looks.into_iter().find(|text| !text.contains("clock_gettime"))?;
    let frames = text.lines().filter(|line| line.starts_with('#')).count();
    (frames > 0).then(|| Depth { by: "gdb", frames: as_f64(frames), error: 0.0 })
}
