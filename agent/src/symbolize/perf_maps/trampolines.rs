//! Where `CPython`'s trampolines are: what its perf map calls so, if the code there is of the kind that is
//! known. Code is read on the thread of perf maps alone, and with no lock held: who chooses the addresses may
//! have put a file system behind them that never answers.

use crate::address::{AbsAddr, Tid};
use crate::limits::START_TOLERANCE_NS;
use crate::normalize::ProcessKey;
use crate::process::host::{Host, Task};
use crate::process::maps::{Maps, MapsEntry};

/// `sub $8,%rsp; call *%rcx`: how a trampoline begins (`CPython` 3.12, `Python/asm_trampoline.S`), behind an
/// `endbr64` or not. Its caller's return address lies 16 bytes above the stack pointer during the call.
const TRAMPOLINE: [u8; 6] = [0x48, 0x83, 0xec, 0x08, 0xff, 0xd1];
const ENDBR64: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];
/// Bytes that are looked at.
const CODE_BYTES: u64 = 16;

/// Those of `ranges` that are trampolines of the kind that is known.
pub(super) fn known(
    host: &impl Host,
    process: ProcessKey,
    ranges: Vec<(u64, u64)>,
) -> Vec<(AbsAddr, AbsAddr)> {
    let ProcessKey { pid, start_time_ns } = process;
    let task = Task { pid, tid: Tid(pid.0) };
    // Another process may have the pid by now.
    let is_it = |start: u64| start.abs_diff(start_time_ns) <= START_TOLERANCE_NS;
    if ranges.is_empty() || !host.status(pid).is_ok_and(|status| is_it(status.start_time_ns)) {
        return Vec::new();
    }
    let Ok(maps) = host.maps(task) else { return Vec::new() };
    let is_known = |&(start, end): &(u64, u64)| {
        let code = AbsAddr(start)..AbsAddr(end.min(start.saturating_add(CODE_BYTES)));
        if !is_anonymous(&maps, &code) {
            return false;
        }
        let code = host.memory(task, code.start, code.end).unwrap_or_default();
        code.strip_prefix(&ENDBR64).unwrap_or(&code).starts_with(&TRAMPOLINE)
    };
    let known = ranges.into_iter().filter(is_known);
    known.map(|(start, end)| (AbsAddr(start), AbsAddr(end))).collect()
}

/// True if the range lies in executable memory that no file backs: the kernel fills that itself. `CPython`
/// maps its trampolines so (`Python/perf_trampoline.c`, `new_code_arena`).
fn is_anonymous(maps: &Maps, range: &std::ops::Range<AbsAddr>) -> bool {
    let anonymous = |entry: &MapsEntry| {
        // Memory may bear a name of its own (`PR_SET_VMA_ANON_NAME`).
        entry.inode == 0 && (entry.path.is_empty() || entry.path.starts_with(b"[anon:"))
    };
    maps.entries
        .iter()
        .any(|entry| entry.start <= range.start && range.end <= entry.end && anonymous(entry))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::FileOffset;

    #[test]
    fn only_memory_that_no_file_backs_is_looked_at() {
        let check = |inode, path: &str, range: (u64, u64)| {
            let entry = MapsEntry {
                start: AbsAddr(0x1000),
                end: AbsAddr(0x2000),
                file_offset: FileOffset(0),
                inode,
                path: path.into(),
            };
            let maps = Maps { entries: vec![entry], left_out: 0 };
            is_anonymous(&maps, &(AbsAddr(range.0)..AbsAddr(range.1)))
        };
        assert!(check(0, "", (0x1000, 0x1010)));
        assert!(check(0, "[anon:cpython]", (0x1ff0, 0x2000)));
        assert!(!check(0, "", (0xff0, 0x1010)), "begins before it");
        assert!(!check(0, "", (0x1ff8, 0x2008)), "reaches beyond it");
        assert!(!check(7, "/mnt/fuse/code", (0x1000, 0x1010)));
        assert!(!check(7, "/memfd:code (deleted)", (0x1000, 0x1010)));
        assert!(!check(0, "/of/a/file/system/without/inodes", (0x1000, 0x1010)));
    }
}
