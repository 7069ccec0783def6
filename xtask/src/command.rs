//! Running other programs and telling a person about it: progress on standard error, data on standard
//! output.

use anyhow::{Context as _, Result, bail};
use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// One line of progress.
#[expect(clippy::print_stderr, reason = "progress belongs on standard error")]
pub(crate) fn say(line: &str) {
    eprintln!("xtask: {line}");
}

/// One line of output.
#[expect(clippy::print_stdout, reason = "a command line tool prints its answer")]
pub(crate) fn print(line: &str) {
    println!("{line}");
}

/// A command without standard input: nothing here may wait for an answer.
pub(crate) fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    command.stdin(Stdio::null());
    command
}

/// Runs to the end; the output is the person's. What the tool prints goes to standard error, so that
/// standard output holds nothing but answers.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let status = command
        .stdout(Stdio::from(std::io::stderr()))
        .status()
        .with_context(|| format!("start {}", shown(command)))?;
    if !status.success() {
        bail!("{} ended with {status}", shown(command));
    }
    Ok(())
}

/// Runs to the end and gives standard output; an error carries standard error.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("start {}", shown(command)))?;
    if !output.status.success() {
        let reason = String::from_utf8_lossy(&output.stderr);
        bail!("{} ended with {}: {}", shown(command), output.status, reason.trim());
    }
    String::from_utf8(output.stdout)
        .with_context(|| format!("{} printed text that is not UTF-8", shown(command)))
}

/// True if the program runs and succeeds; it prints nothing.
pub(crate) fn succeeds(command: &mut Command) -> bool {
    let quiet = command.stdout(Stdio::null()).stderr(Stdio::null());
    quiet.status().is_ok_and(|status| status.success())
}

/// The first program of that name in PATH.
pub(crate) fn on_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(program)).find(|file| file.is_file())
}

/// The command as one line.
pub(crate) fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}
