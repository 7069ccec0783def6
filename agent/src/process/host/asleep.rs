//! Threads that wait now, as `/proc` tells.

use super::{KERNEL_THREAD, ProcFs, Task};
use crate::address::{Pid, Tid};
use crate::limits::STAT_BYTES_MAX;
use crate::waits::class_of_system_call;
use agent_ebpf::WaitClass;
use std::fs::File;
use std::io::{self, Read as _};

/// A thread that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asleep {
    /// What for, as far as the kernel tells.
    pub class: WaitClass,
    /// Its name, NUL padded.
    pub comm: [u8; 16],
}

impl ProcFs {
    /// The threads of a process.
    pub(super) fn read_threads(&self, pid: Pid) -> io::Result<Vec<Tid>> {
        let entries = std::fs::read_dir(self.of_process(pid, "task"))?;
        let numbers =
            entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).map(Tid);
        Ok(numbers.collect())
    }

    /// What a thread waits for; `None` if it runs, or wants to, or is the kernel's.
    pub(super) fn read_asleep(&self, task: Task) -> io::Result<Option<Asleep>> {
        let read = |name: &str| -> io::Result<Vec<u8>> {
            let mut bytes = Vec::new();
            let file = File::open(self.of_thread(task, name))?;
            file.take(STAT_BYTES_MAX).read_to_end(&mut bytes)?;
            Ok(bytes)
        };
        let Some(comm) = asleep(&read("stat")?) else { return Ok(None) };
        Ok(class(&read("syscall")?).map(|class| Asleep { class, comm }))
    }
}

/// The name of a thread that waits (`proc_pid_stat(5)`: number, name in parentheses, state, six numbers, flags).
fn asleep(stat: &[u8]) -> Option<[u8; 16]> {
    let open = stat.iter().position(|byte| *byte == b'(')?;
    let close = stat.iter().rposition(|byte| *byte == b')')?;
    let name = stat.get(open + 1..close)?;
    let mut fields = std::str::from_utf8(stat.get(close + 1..)?).ok()?.split_ascii_whitespace();
    let state = fields.next()?;
    let flags: u32 = fields.nth(5)?.parse().ok()?;
    if !["S", "D"].contains(&state) || flags & KERNEL_THREAD != 0 {
        return None;
    }
    let mut comm = [0; 16];
    let length = name.len().min(15);
    comm[..length].copy_from_slice(&name[..length]);
    Some(comm)
}

/// The class of the system call that a thread is in (`proc_pid_syscall(5)`: its number, -1 for none, or `running`).
fn class(syscall: &[u8]) -> Option<WaitClass> {
    let number = std::str::from_utf8(syscall).ok()?.split_ascii_whitespace().next()?;
    if number == "running" {
        return None;
    }
    Some(number.parse().map_or(WaitClass::Other, class_of_system_call))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_is_told_by_state_and_system_call() {
        let name = |stat: &str| asleep(stat.as_bytes()).map(|comm| comm[..3].to_vec());
        assert_eq!(name("7 (a b) S 1 7 7 0 -1 4194304 9 9"), Some(b"a b".to_vec()));
        assert_eq!(name("7 (a) S) D 1 7 7 0 -1 4194304 9 9"), Some(b"a) ".to_vec()));
        assert_eq!(name("7 (abc) R 1 7 7 0 -1 4194304 9 9"), None);
        assert_eq!(name("7 (abc) S 1 7 7 0 -1 2129984 9 9"), None);
        assert_eq!(name("7 (abc"), None);
        let class = |text: &str| class(text.as_bytes());
        assert_eq!(class("202 0x7f 0x80 0x2 0x0 0x0 0x0 0x7f 0x7f\n"), Some(WaitClass::Futex));
        assert_eq!(class("-1 0x7f 0x7f\n"), Some(WaitClass::Other));
        assert_eq!(class("600 0x7f\n"), Some(WaitClass::Other));
        assert_eq!(class("running\n"), None);
        assert_eq!(class(""), None);
    }
}
