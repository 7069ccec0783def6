//! Numbers that threads have in the PID namespace of their process: what a program writes into its own locks.

use super::ProcFs;
use crate::address::{Pid, Tid};
use std::fs::File;
use std::io::{self, Read as _};

/// Bytes of a `status` file: about 1,500.
const STATUS_BYTES_MAX: u64 = 16 << 10;

impl ProcFs {
    /// Each thread, with its innermost number; nothing where that is the host's own. At most so many threads.
    pub(super) fn read_inner_numbers(&self, pid: Pid, max: usize) -> io::Result<Vec<(Tid, u32)>> {
        let mut all = Vec::new();
        for entry in std::fs::read_dir(self.of_process(pid, "task"))?.take(max) {
            let entry = entry?;
            let mut status = String::new();
            let file = File::open(entry.path().join("status"))?;
            if file.take(STATUS_BYTES_MAX).read_to_string(&mut status).is_err() {
                continue; // it is over
            }
            match numbers(&status) {
                Some((tid, inner)) => all.push((tid, inner)),
                None => return Ok(Vec::new()),
            }
        }
        Ok(all)
    }
}

/// The host's number of a thread and its innermost one, if there are two (`NSpid`, `proc_pid_status(5)`).
fn numbers(status: &str) -> Option<(Tid, u32)> {
    let line = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    let mut numbers = line.split_ascii_whitespace().map(str::parse::<u32>);
    let outer = numbers.next()?.ok()?;
    Some((Tid(outer), numbers.next_back()?.ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_namespace_of_its_own_gives_two_numbers() {
        let status =
            |numbers: &str| format!("Name:\tx\nPid:\t4711\nNSpid:\t{numbers}\nVmRSS:\t1\n");
        assert_eq!(numbers(&status("4711")), None);
        assert_eq!(numbers(&status("4711\t8")), Some((Tid(4711), 8)));
        assert_eq!(numbers(&status("4711\t88\t7")), Some((Tid(4711), 7)));
        assert_eq!(numbers("Name:\tx\n"), None);
    }
}
