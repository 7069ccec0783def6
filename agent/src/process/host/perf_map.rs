//! The perf map of a process: `/tmp/perf-PID.map` in its own file system, by the pid that it knows itself by.
//! The file lies in a directory where everybody may write: it counts only if the process could have written
//! it, since the process began. What stands in it is `symbolize`'s.

use super::{Host as _, OpenError, OpenedFile, ProcFs, Task, open_regular, status_text};
use crate::address::{Pid, Tid};
use crate::clock::{UnixNs, WallOffset, asleep_ns, monotonic_now};
use crate::limits::START_TOLERANCE_NS;
use rustix::fs::fstat;
use std::io;

/// Clocks of file systems tick with the kernel's timer, and containers' wall clocks are the host's: a map
/// that is older than its process by more than this is another's, nanoseconds.
const OLDER_NS_MAX: i128 = 2_000_000_000;
/// The same for an exec, whose time the kernel tells exactly: two ticks of the coarsest timer (`HZ=100`), by
/// which file systems count. A program that executes another at once has written its map just before.
const OLDER_THAN_EXEC_NS_MAX: i128 = 20_000_000;

/// Why a process has no perf map that counts.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PerfMapError {
    /// Another user's file.
    #[error("the perf map belongs to user {owner}, the process to {user}")]
    NotOwned {
        /// Of the file.
        owner: u32,
        /// Effective user of the process.
        user: u32,
    },
    /// Left by an earlier process with the same pid, or by the program that this one executed another from.
    #[error("the perf map is older than the program")]
    Stale,
    /// Another process has the pid by now.
    #[error("the process has ended")]
    Ended,
    /// There is none, or it is no regular file.
    #[error(transparent)]
    Open(#[from] OpenError),
}

impl From<io::Error> for PerfMapError {
    fn from(error: io::Error) -> Self {
        Self::Open(error.into())
    }
}

impl ProcFs {
    /// Opens the perf map of the process that began at `start_time_ns` (since boot), and executed its program
    /// at `executed`, where that is known.
    pub(crate) fn perf_map(
        &self,
        pid: Pid,
        start_time_ns: u64,
        executed: Option<UnixNs>,
    ) -> Result<OpenedFile, PerfMapError> {
        if self.status(pid)?.start_time_ns.abs_diff(start_time_ns) > START_TOLERANCE_NS {
            return Err(PerfMapError::Ended);
        }
        let text = status_text(&self.of_process(pid, "status"))?;
        let Credentials { user, inner_pid } =
            Credentials::parse(&text).ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))?;
        let task = Task { pid, tid: Tid(pid.0) };
        let found = self.find_beneath(task, format!("/tmp/perf-{inner_pid}.map").as_bytes())?;
        // Before it is opened: another user's file may lie where opening it acts.
        let owner = fstat(&found).map_err(io::Error::from)?.st_uid;
        if owner != user && owner != 0 {
            return Err(PerfMapError::NotOwned { owner, user });
        }
        let opened = open_regular(&found)?;
        let since_start =
            (monotonic_now().0.saturating_add(asleep_ns())).saturating_sub(start_time_ns);
        let now = i128::from(WallOffset::read().to_unix(monotonic_now()).0);
        if opened.identity.modified_ns + OLDER_NS_MAX < now - i128::from(since_start) {
            return Err(PerfMapError::Stale);
        }
        let of_this_program = |executed: UnixNs| {
            opened.identity.modified_ns + OLDER_THAN_EXEC_NS_MAX >= i128::from(executed.0)
        };
        if !executed.is_none_or(of_this_program) {
            return Err(PerfMapError::Stale);
        }
        Ok(opened)
    }
}

/// What `/proc/PID/status` says of who a process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Credentials {
    /// Effective user, in the host's user namespace.
    user: u32,
    /// Its pid in the innermost PID namespace.
    inner_pid: u32,
}

impl Credentials {
    fn parse(status: &str) -> Option<Self> {
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.map(str::split_ascii_whitespace)
        };
        // real, effective, saved, file system (proc_pid_status(5))
        let user = field("Uid:")?.nth(1)?.parse().ok()?;
        // Kernels without PID namespaces have no such line.
        let inner = field("NSpid:").or_else(|| field("Pid:"));
        Some(Self { user, inner_pid: inner?.last()?.parse().ok()? })
    }
}

#[cfg(test)]
mod tests {
    use super::Credentials;

    #[test]
    fn the_innermost_pid_and_the_effective_user_count() {
        let status = "Name:\tnode\nPid:\t4711\nUid:\t0\t1000\t0\t0\nNSpid:\t4711\t88\t7\n";
        assert_eq!(Credentials::parse(status), Some(Credentials { user: 1000, inner_pid: 7 }));
        let status = "Name:\tnode\nPid:\t4711\nUid:\t5\t5\t5\t5\n";
        assert_eq!(Credentials::parse(status), Some(Credentials { user: 5, inner_pid: 4711 }));
        assert_eq!(Credentials::parse("Name:\tUid:\n"), None);
        assert_eq!(Credentials::parse(""), None);
    }
}
