//! Reads what a process and its BPF programs have used so far.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use tests::kernel;

/// Switches the kernel's BPF statistics on, and back to what it was.
pub(crate) struct BpfStatistics {
    before: String,
}

const SWITCH: &str = "/proc/sys/kernel/bpf_stats_enabled";

impl BpfStatistics {
    pub(crate) fn on() -> Self {
        let before = std::fs::read_to_string(SWITCH).expect("root reads it");
        std::fs::write(SWITCH, "1").expect("root writes it");
        Self { before }
    }
}

impl Drop for BpfStatistics {
    fn drop(&mut self) {
        std::fs::write(SWITCH, self.before.trim()).unwrap_or_default();
    }
}

/// What was used up to a moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reading {
    /// Time on a CPU of all threads, nanoseconds (`/proc/PID/task/TID/schedstat`).
    pub(crate) cpu_ns: u64,
    /// What each BPF program that it holds used.
    programs: BTreeMap<u32, BpfUse>,
    /// Resident memory, bytes.
    pub(crate) rss_bytes: u64,
    /// The most that it ever was.
    pub(crate) rss_peak_bytes: u64,
}

impl Reading {
    pub(crate) fn of(pid: u32) -> Self {
        let process = Path::new("/proc").join(pid.to_string());
        Self {
            cpu_ns: entries(&process.join("task")).iter().filter_map(|task| on_cpu_ns(task)).sum(),
            programs: entries(&process.join("fdinfo"))
                .iter()
                .filter_map(|it| program(it))
                .collect(),
            rss_bytes: status_bytes(&process, "VmRSS:"),
            rss_peak_bytes: status_bytes(&process, "VmHWM:"),
        }
    }

    /// What its BPF programs used since an earlier reading.
    pub(crate) fn bpf_since(&self, earlier: &Self) -> BpfUse {
        let mut sum = BpfUse::default();
        for (id, now) in &self.programs {
            let before = earlier.programs.get(id).copied().unwrap_or_default();
            sum.ns += now.ns.saturating_sub(before.ns);
            sum.clock_ns += now.clock_ns.saturating_sub(before.clock_ns);
            sum.clock_runs += now.clock_runs.saturating_sub(before.clock_runs);
        }
        sum
    }
}

/// What BPF programs used.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct BpfUse {
    /// Time of all programs, nanoseconds.
    pub(crate) ns: u64,
    /// Time of those alone that a clock runs: others run at each fork or exec, and are short.
    pub(crate) clock_ns: u64,
    /// How often a clock ran them.
    pub(crate) clock_runs: u64,
}

/// `BPF_PROG_TYPE_PERF_EVENT` (kernel include/uapi/linux/bpf.h).
const TYPE_PERF_EVENT: u64 = 7;

/// Kernel memory of BPF maps that were not there before, bytes: those without a descriptor too.
pub(crate) fn new_map_bytes(before: &BTreeSet<u32>) -> u64 {
    kernel::bpf_maps().difference(before).filter_map(|&id| kernel::bpf_map_bytes(id)).sum()
}

/// CPU time of the whole host without idle, and with it, in ticks.
pub(crate) fn host_ticks() -> (u64, u64) {
    let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let line = stat.lines().next().unwrap_or_default();
    let ticks: Vec<u64> =
        line.split_whitespace().skip(1).take(8).filter_map(|it| it.parse().ok()).collect();
    let all: u64 = ticks.iter().sum();
    let idle: u64 = ticks.iter().skip(3).take(2).sum();
    (all - idle, all)
}

fn entries(folder: &Path) -> Vec<std::path::PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    entries.filter_map(|entry| entry.ok().map(|entry| entry.path())).collect()
}

fn on_cpu_ns(task: &Path) -> Option<u64> {
    let text = std::fs::read_to_string(task.join("schedstat")).ok()?;
    text.split(' ').next()?.parse().ok()
}

fn program(fdinfo: &Path) -> Option<(u32, BpfUse)> {
    let text = std::fs::read_to_string(fdinfo).ok()?;
    let number = |key: &str| -> Option<u64> {
        text.lines().find_map(|line| line.strip_prefix(key))?.trim().parse().ok()
    };
    let id = u32::try_from(number("prog_id:")?).ok()?;
    let (ns, runs) = (number("run_time_ns:")?, number("run_cnt:")?);
    let by_clock = u64::from(number("prog_type:")? == TYPE_PERF_EVENT);
    Some((id, BpfUse { ns, clock_ns: ns * by_clock, clock_runs: runs * by_clock }))
}

fn status_bytes(process: &Path, key: &str) -> u64 {
    let status = std::fs::read_to_string(process.join("status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(key)).unwrap_or_default();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap_or(0) * 1024
}
