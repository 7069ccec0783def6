//! Numbers that threads have in the PID namespace of their process: what a program writes into its own locks.

use super::{ProcFs, status_text};
use crate::address::{Pid, Tid};
use std::io;

impl ProcFs {
    /// Each thread, with its innermost number; nothing where that is the host's own. At most so many threads. A thread
    /// that ends meanwhile is left out; if none can be read, that is an error.
    pub(super) fn read_inner_numbers(&self, pid: Pid, max: usize) -> io::Result<Vec<(Tid, u32)>> {
        let mut all = Vec::new();
        let mut failed = None;
        for entry in std::fs::read_dir(self.of_process(pid, "task"))?.take(max) {
            match entry.and_then(|entry| status_text(&entry.path().join("status"))) {
                Err(error) => failed = Some(error),
                Ok(status) => match numbers(&status) {
                    Some((tid, Some(inner))) => all.push((tid, inner)),
                    Some((_, None)) => return Ok(Vec::new()),
                    None => {}
                },
            }
        }
        match failed {
            Some(error) if all.is_empty() => Err(error),
            _ => Ok(all),
        }
    }
}

/// The host's number of a thread and its innermost one, if there are two (`NSpid`, `proc_pid_status(5)`).
fn numbers(status: &str) -> Option<(Tid, Option<u32>)> {
    let line = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    let mut numbers = line.split_ascii_whitespace().map(str::parse::<u32>);
    let outer = numbers.next()?.ok()?;
    Some((Tid(outer), numbers.next_back().transpose().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_namespace_of_its_own_gives_two_numbers() {
        let status =
            |numbers: &str| format!("Name:\tx\nPid:\t4711\nNSpid:\t{numbers}\nVmRSS:\t1\n");
        assert_eq!(numbers(&status("4711")), Some((Tid(4711), None)));
        assert_eq!(numbers(&status("4711\t8")), Some((Tid(4711), Some(8))));
        assert_eq!(numbers(&status("4711\t88\t7")), Some((Tid(4711), Some(7))));
        assert_eq!(numbers(&status("4711\tx")), None);
        assert_eq!(numbers("Name:\tx\n"), None);
    }

    /// A `/proc` with process 50, whose threads have these `status` files; `None`: it ended after it was listed.
    fn inner_numbers(threads: &[(u32, Option<Vec<u8>>)]) -> Option<Vec<(Tid, u32)>> {
        let root = tempfile::tempdir().unwrap();
        for (tid, status) in threads {
            let thread = root.path().join(format!("50/task/{tid}"));
            std::fs::create_dir_all(&thread).unwrap();
            if let Some(status) = status {
                std::fs::write(thread.join("status"), status).unwrap();
            }
        }
        let host = ProcFs::new(root.path().to_owned());
        let mut numbers = host.read_inner_numbers(Pid(50), 100).ok()?;
        numbers.sort_unstable();
        Some(numbers)
    }

    #[test]
    fn a_thread_that_ends_meanwhile_costs_no_other_its_number() {
        let status = |numbers: &str| Some(format!("Name:\tx\nNSpid:\t{numbers}\n").into_bytes());
        let threads = [(50, status("50\t1")), (51, None), (52, status("52\t3")), (53, None)];
        assert_eq!(inner_numbers(&threads).unwrap(), [(Tid(50), 1), (Tid(52), 3)]);
        assert_eq!(inner_numbers(&[(50, status("50")), (51, None)]).unwrap(), []);
        assert_eq!(inner_numbers(&[(50, None), (51, None)]), None, "not all the host's own");
    }

    #[test]
    fn many_groups_and_any_name_leave_the_numbers() {
        let groups = "4000000000 ".repeat(2000);
        let mut status = b"Name:\t\xff\xfe\n".to_vec();
        status.extend(format!("Groups:\t{groups}\nNSpid:\t50\t1\n").into_bytes());
        assert_eq!(inner_numbers(&[(50, Some(status))]).unwrap(), [(Tid(50), 1)]);
    }
}
