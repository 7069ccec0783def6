//! The command under `record`: started, held until sampling runs, waited for.

use agent::address::Pid;
use anyhow::{Context as _, bail};
use std::ffi::OsString;
use std::io::{PipeWriter, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus};
use std::time::{Duration, Instant};

/// Time that a command gets to end after Ctrl-C, which reached it too.
const END_WAIT_MAX: Duration = Duration::from_secs(2);

/// A command that exists as a process and has not begun.
#[derive(Debug)]
pub(super) struct HeldCommand {
    child: Child,
    pipe: Option<PipeWriter>,
    program: OsString,
}

impl HeldCommand {
    /// Starts the command up to the point where it would begin; `None` if there is none.
    pub(super) fn start(command: &[OsString]) -> anyhow::Result<Option<Self>> {
        let Some(program) = command.first() else { return Ok(None) };
        if find(program).is_none() {
            bail!("{} is not there or not executable", program.to_string_lossy());
        }
        let (reader, writer) = std::io::pipe().context("making a pipe")?;
        // The child inherits the read end, and only that: std opens descriptors close-on-exec.
        rustix::io::fcntl_setfd(&reader, rustix::io::FdFlags::empty())?;
        let child = Command::new(std::env::current_exe().context("finding this program")?)
            .arg("hold")
            .arg("--descriptor")
            .arg(reader.as_raw_fd().to_string())
            .arg("--")
            .args(command)
            .spawn()
            .context("starting the command")?;
        Ok(Some(Self { child, pipe: Some(writer), program: program.clone() }))
    }

    pub(super) fn pid(&self) -> Pid {
        Pid(self.child.id())
    }

    /// Path of the program.
    pub(super) fn program(&self) -> Option<PathBuf> {
        find(&self.program)
    }

    /// Lets the command begin.
    pub(super) fn release(&mut self) -> anyhow::Result<()> {
        let Some(mut pipe) = self.pipe.take() else { return Ok(()) };
        pipe.write_all(b"\n").context("starting the command")
    }

    /// Its exit code if it has ended.
    pub(super) fn try_wait(&mut self) -> anyhow::Result<Option<ExitCode>> {
        Ok(self.child.try_wait().context("waiting for the command")?.map(exit_code))
    }

    /// Waits for its end; after an interruption only for a moment.
    pub(super) fn wait_for_end(&mut self, interrupted: bool) -> anyhow::Result<ExitCode> {
        if !interrupted {
            crate::say("the recording is over, the command goes on");
            return self.child.wait().map(exit_code).context("waiting for the command");
        }
        let begin = Instant::now();
        while begin.elapsed() < END_WAIT_MAX {
            if let Some(code) = self.try_wait()? {
                return Ok(code);
            }
            std::thread::sleep(super::LOOK_EVERY);
        }
        crate::say(&format!("process {} of the command goes on", self.child.id()));
        Ok(ExitCode::SUCCESS)
    }
}

impl Drop for HeldCommand {
    /// A command that was never released ends by itself: its pipe closes. It must not stay a zombie.
    fn drop(&mut self) {
        if self.pipe.take().is_some() {
            drop(self.child.wait());
        }
    }
}

/// As a shell tells it: 128 and the signal's number for a command that a signal ended.
fn exit_code(status: ExitStatus) -> ExitCode {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1);
    ExitCode::from(u8::try_from(code & 0xff).unwrap_or(1))
}

/// The file that would be executed.
fn find(program: &OsString) -> Option<PathBuf> {
    let executable = |path: &Path| {
        path.is_file() && rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok()
    };
    if Path::new(program).components().count() > 1 || program.to_string_lossy().contains('/') {
        return Some(PathBuf::from(program)).filter(|path| executable(path));
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).map(|folder| folder.join(program)).find(|path| executable(path))
}
