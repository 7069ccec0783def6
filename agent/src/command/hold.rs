//! `hold`: waits until it is told to go on, then becomes another program. `record` starts its command
//! through it, so that sampling runs before the first instruction of the command.

use agent::options::HoldOptions;
use anyhow::{Context as _, bail};
use std::io::Read as _;
use std::os::fd::{FromRawFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};

/// Exit code of a command that cannot be executed, as in a shell.
const NOT_EXECUTABLE: u8 = 126;
/// Exit code of a command that does not exist, as in a shell.
const NOT_FOUND: u8 = 127;

/// Waits for one byte, then executes the command. Returns only on failure.
pub(crate) fn hold(options: &HoldOptions) -> anyhow::Result<ExitCode> {
    let HoldOptions { descriptor, command } = options;
    if *descriptor <= 2 {
        bail!("hold is a part of record: it waits on a pipe, not on descriptor {descriptor}");
    }
    // SAFETY: `record` starts this program with the descriptor as the read end of a pipe that is meant
    // for nobody else; nothing in this process has touched it before.
    let pipe = unsafe { OwnedFd::from_raw_fd(*descriptor) };
    let mut told = [0];
    if std::fs::File::from(pipe).read(&mut told).context("waiting for the recording")? == 0 {
        return Ok(ExitCode::FAILURE); // The recording did not begin, and says why itself.
    }
    let (program, arguments) = command.split_first().context("no command")?;
    let error = Command::new(program).args(arguments).exec();
    crate::say(&format!("vesta-agent: cannot run {}: {error}", program.to_string_lossy()));
    let missing = error.kind() == std::io::ErrorKind::NotFound;
    Ok(ExitCode::from(if missing { NOT_FOUND } else { NOT_EXECUTABLE }))
}
