//! Sampling every process wants root, or the capabilities that stand for it.

use anyhow::bail;
use std::io::IsTerminal as _;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

const CAP_SYS_ADMIN: u32 = 21;
const CAP_PERFMON: u32 = 38;
const CAP_BPF: u32 = 39;

/// Goes on if this process may sample; else starts again through sudo where a person can type a
/// password; else says which line to type. `elevate` is false where the line holds a command of the
/// user's: that must not become root's unasked.
pub(crate) fn ensure(elevate: bool) -> anyhow::Result<()> {
    if rustix::process::geteuid().is_root() || has_capabilities() {
        return Ok(());
    }
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    let words: Vec<_> = arguments.iter().map(|word| word.to_string_lossy()).collect();
    let line = format!("sudo vesta-agent {}", words.join(" "));
    if !elevate || !std::io::stdin().is_terminal() || !on_path("sudo") {
        bail!("sampling wants root or CAP_BPF and CAP_PERFMON; as root: {line}");
    }
    crate::say(&format!("vesta-agent: sampling wants root, starting again: {line}"));
    let program = std::env::current_exe()?;
    let error = Command::new("sudo").arg("--").arg(program).args(arguments).exec();
    bail!("sudo did not start: {error}");
}

/// True if the effective set holds what loading and attaching ask for (capabilities(7)).
fn has_capabilities() -> bool {
    let effective = agent::doctor::effective_capabilities().unwrap_or(0);
    let has = |capability: u32| effective >> capability & 1 == 1;
    has(CAP_SYS_ADMIN) || (has(CAP_BPF) && has(CAP_PERFMON))
}

fn on_path(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(name).is_file())
}
