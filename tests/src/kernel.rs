//! What the kernel holds of a process under test: its BPF programs, and whether they are gone.

use std::collections::BTreeSet;

/// bpf(2), include/uapi/linux/bpf.h.
const BPF_PROG_GET_NEXT_ID: libc::c_int = 11;

/// The part of `union bpf_attr` that walks over ids.
#[repr(C)]
#[derive(Default)]
struct NextId {
    start_id: u32,
    next_id: u32,
    open_flags: u32,
}

/// Ids of every BPF program that is loaded on this host.
#[must_use]
pub fn bpf_programs() -> BTreeSet<u32> {
    let mut ids = BTreeSet::new();
    let mut attributes = NextId::default();
    let size = size_of::<NextId>();
    loop {
        // SAFETY: the kernel reads and writes `size` bytes of `attributes`, which lives across the call.
        let result = unsafe {
            libc::syscall(libc::SYS_bpf, BPF_PROG_GET_NEXT_ID, &raw mut attributes, size)
        };
        // ENOENT ends the walk; ids only grow, so it ends.
        if result != 0 || !ids.insert(attributes.next_id) {
            return ids;
        }
        attributes.start_id = attributes.next_id;
    }
}

/// Ids of the BPF programs that a process holds open.
#[must_use]
pub fn bpf_programs_of(pid: u32) -> BTreeSet<u32> {
    let Ok(entries) = std::fs::read_dir(format!("/proc/{pid}/fdinfo")) else {
        return BTreeSet::new();
    };
    let id = |path: std::path::PathBuf| {
        let text = std::fs::read_to_string(path).ok()?;
        let id = text.lines().find_map(|line| line.strip_prefix("prog_id:"))?;
        id.trim().parse().ok()
    };
    entries.filter_map(|entry| id(entry.ok()?.path())).collect()
}

/// Children of a process.
#[must_use]
pub fn children(pid: u32) -> Vec<u32> {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    let of_thread = |path: std::path::PathBuf| std::fs::read_to_string(path.join("children")).ok();
    let lists = threads.filter_map(|thread| of_thread(thread.ok()?.path()));
    lists
        .flat_map(|list| {
            list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>()
        })
        .collect()
}
