//! What a process has used so far, as the kernel accounts it.

use std::path::{Path, PathBuf};

/// Time on a CPU of all threads that live, nanoseconds (`/proc/PID/task/TID/schedstat`).
#[must_use]
pub fn cpu_ns(pid: u32) -> u64 {
    let tasks = Path::new("/proc").join(pid.to_string()).join("task");
    let of_task = |task: PathBuf| {
        let text = std::fs::read_to_string(task.join("schedstat")).ok()?;
        text.split(' ').next()?.parse::<u64>().ok()
    };
    let Ok(entries) = std::fs::read_dir(tasks) else { return 0 };
    entries.filter_map(|entry| of_task(entry.ok()?.path())).sum()
}

/// Resident memory, bytes.
#[must_use]
pub fn resident_bytes(pid: u32) -> u64 {
    status_kib(pid, "VmRSS:") * 1024
}

/// The most that ever was resident, bytes.
#[must_use]
pub fn resident_bytes_max(pid: u32) -> u64 {
    status_kib(pid, "VmHWM:") * 1024
}

fn status_kib(pid: u32, key: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(key)).unwrap_or_default();
    line.trim().trim_end_matches(" kB").parse().unwrap_or(0)
}
