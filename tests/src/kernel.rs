//! What the kernel holds of a process under test: its BPF programs, and whether they are gone.

use std::collections::BTreeSet;

use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};

/// bpf(2), include/uapi/linux/bpf.h.
const BPF_PROG_GET_NEXT_ID: libc::c_int = 11;
const BPF_MAP_GET_NEXT_ID: libc::c_int = 12;
const BPF_MAP_GET_FD_BY_ID: libc::c_int = 14;

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
    ids(BPF_PROG_GET_NEXT_ID)
}

/// Ids of every BPF map on this host.
#[must_use]
pub fn bpf_maps() -> BTreeSet<u32> {
    ids(BPF_MAP_GET_NEXT_ID)
}

/// Kernel memory that a BPF map takes; `None` if it is gone.
#[must_use]
pub fn bpf_map_bytes(id: u32) -> Option<u64> {
    let mut attributes = NextId { start_id: id, ..NextId::default() };
    let result = bpf(BPF_MAP_GET_FD_BY_ID, &mut attributes);
    let descriptor = i32::try_from(result).ok().filter(|&descriptor| descriptor >= 0)?;
    // SAFETY: the kernel has just made this descriptor for us, and nothing else knows it.
    let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor) };
    let info = format!("/proc/self/fdinfo/{}", descriptor.as_raw_fd());
    let info = std::fs::read_to_string(info).ok()?;
    info.lines().find_map(|line| line.strip_prefix("memlock:"))?.trim().parse().ok()
}

fn ids(command: libc::c_int) -> BTreeSet<u32> {
    let mut ids = BTreeSet::new();
    let mut attributes = NextId::default();
    // ENOENT ends the walk; ids only grow, so it ends.
    while bpf(command, &mut attributes) == 0 && ids.insert(attributes.next_id) {
        attributes.start_id = attributes.next_id;
    }
    ids
}

fn bpf(command: libc::c_int, attributes: &mut NextId) -> libc::c_long {
    // SAFETY: the kernel reads and writes as many bytes of `attributes` as it is told, and it outlives the call.
    unsafe { libc::syscall(libc::SYS_bpf, command, &raw mut *attributes, size_of::<NextId>()) }
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
