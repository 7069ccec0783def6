//! Programs of others, which do not tell their truth: their stacks must end where a thread begins, at the entry
//! of the executable or in the function that makes threads. Which frames lie between is not known, so named is the share
//! of all user frames, and files without symbols are part of it.

use super::judge::FREQUENCY_HZ;
use super::table::{self, Row};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tests::agent::AgentOptions;
use tests::chain::{Chain, Place};
use tests::observation::{Frame, Observation, observations};
use tests::profiles::now_ns;
use tests::statistics::as_f64;
use tests::workload::Language;
use tests::{Agent, Running, Sink, need, seed};

/// One such program.
pub(super) struct Foreign {
    pub(super) name: &'static str,
    pub(super) what: &'static str,
    /// What is started, or why it cannot be.
    pub(super) command: fn() -> Result<Command, String>,
    /// Functions that no caller stands above; a part of their name.
    pub(super) roots: &'static [&'static str],
    /// Share of the stacks that must reach their root.
    pub(super) complete_min: f64,
}

/// Fewer samples say nothing.
const SAMPLES_MIN: usize = 200;

/// Bytes behind the entry of an executable that belong to its first function.
const ENTRY_BYTES: u64 = 64;

/// Longest run of one.
const RUN_LIMIT: Duration = Duration::from_secs(120);

pub(super) const FOREIGN: [Foreign; 3] = [
    Foreign {
        name: "go",
        what: "Go: leaves without a frame (`split.go`)",
        command: || {
            let program = Language::Go.split().ok_or("without Go there is no such program")?;
            let mut command = Command::new(program);
            command.arg("4").arg(seed().to_string());
            Ok(command)
        },
        roots: &["goexit", "mstart", "rt0_", "mcall", "morestack", "systemstack"],
        complete_min: 0.995,
    },
    Foreign {
        name: "openssl",
        what: "`openssl speed` (sha512, rsa2048, ecdsap256): its assembly; without local symbols",
        command: || {
            let tool = need::tool("VESTA_OPENSSL", "openssl").ok_or("without openssl")?;
            let mut command = Command::new(tool);
            command.args(["speed", "-seconds", "1", "-bytes", "16384", "sha512", "rsa2048"]);
            command.arg("ecdsap256");
            Ok(command)
        },
        roots: &[],
        complete_min: 0.995,
    },
    Foreign {
        name: "rustc",
        what: "rustc at work on a real crate: its compiler library went through BOLT",
        command: rustc,
        roots: &["clone3"],
        complete_min: 0.995,
    },
];

/// The compiler at work on a crate that this repository's own build has fetched.
fn rustc() -> Result<Command, String> {
    let tool = need::tool("RUSTC", "rustc").ok_or("without rustc")?;
    let sysroot = Command::new(tool).args(["--print", "sysroot"]).output();
    let sysroot = sysroot.map_err(|error| format!("rustc does not say where it is: {error}"))?;
    let compiler = PathBuf::from(String::from_utf8_lossy(&sysroot.stdout).trim()).join("bin/rustc");
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo")));
    let source = home.and_then(|home| newest_gimli(&home.join("registry/src")));
    let source = source.ok_or("the sources of crate gimli are not in Cargo's folder")?;
    let mut command = Command::new(compiler);
    command.args([
        "--edition=2024",
        "--crate-type=lib",
        "--crate-name=gimli",
        "-O",
        "--cap-lints=allow",
    ]);
    command.args(["--cfg", "feature=\"read-core\"", "--cfg", "feature=\"read\""]);
    command.args(["--cfg", "feature=\"std\"", "--emit=metadata,obj", "--out-dir"]);
    command.arg(tests::binary::scratch("stacks")).arg(source);
    Ok(command)
}

fn newest_gimli(registries: &Path) -> Option<PathBuf> {
    let folders = |folder: &Path| {
        let entries = std::fs::read_dir(folder).into_iter().flatten();
        entries.filter_map(|entry| Some(entry.ok()?.path())).collect::<Vec<PathBuf>>()
    };
    let crates = folders(registries).into_iter().flat_map(|registry| folders(&registry));
    let is_gimli = |folder: &PathBuf| {
        folder.file_name().is_some_and(|name| name.to_string_lossy().starts_with("gimli-0.34"))
    };
    Some(crates.filter(is_gimli).max()?.join("src/lib.rs"))
}

/// Runs each by itself; one repeat is allowed, the machine is not ours alone.
pub(super) fn check(programs: &[Foreign]) {
    if !need::bpf() {
        return;
    }
    let thread_root = thread_root();
    let mut failed = Vec::new();
    for program in programs {
        let Err(first) = run(program, thread_root.as_ref()) else { continue };
        need::figure(&format!("first try: {first}"));
        failed.extend(run(program, thread_root.as_ref()).err());
    }
    assert!(failed.is_empty(), "both tries failed:\n{}", failed.join("\n"));
}

/// Where the C library begins a thread, as a chain in a thread says it; its symbol may be in no file of this host.
fn thread_root() -> Option<Place> {
    let program = super::build::build(&super::kinds::THREAD)?;
    let mut command = Command::new(program);
    command.arg("1");
    Some(Chain::parse(&Running::start(command).finish(RUN_LIMIT)).root)
}

fn run(program: &Foreign, thread_root: Option<&Place>) -> Result<(), String> {
    let command = match (program.command)() {
        Ok(command) => command,
        Err(reason) => {
            need::skip(&format!("{}: {reason}", program.name));
            return Ok(());
        }
    };
    let executable = PathBuf::from(command.get_program());
    let name = executable.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let entry = entry_of(&executable).ok_or("an executable has an entry")?;
    let sink = Sink::start();
    let agent = Agent::start(&sink.url(), &AgentOptions::at(FREQUENCY_HZ));
    let start_ns = now_ns();
    let process = Running::start(command);
    let pid = process.pid();
    process.finish(RUN_LIMIT);
    agent.stop();
    let samples: Vec<Observation> = observations(&sink.requests())
        .into_iter()
        .filter(|sample| sample.pid == pid && sample.time_ns >= start_ns + 1_000_000_000)
        .collect();
    let is_root = |frame: &Frame| {
        let in_entry = frame.address.checked_sub(entry).is_some_and(|bytes| bytes < ENTRY_BYTES);
        let named = |function: &String| program.roots.iter().any(|root| function.contains(root));
        let begins_thread =
            |root: &Place| frame.file == root.file && root.address.wrapping_sub(frame.address) <= 1;
        frame.file == name && in_entry
            || frame.functions.iter().any(named)
            || thread_root.is_some_and(begins_thread)
    };
    let complete = |sample: &&Observation| {
        sample.markers().next().is_none() && sample.user().last().is_none_or(is_root)
    };
    judge(program, &samples, complete)
}

fn judge(
    program: &Foreign,
    samples: &[Observation],
    complete: impl Fn(&&Observation) -> bool,
) -> Result<(), String> {
    let Foreign { name, what, .. } = program;
    let frames = || samples.iter().flat_map(Observation::user);
    let named = frames().filter(|frame| !frame.functions.is_empty()).count();
    let share = |part: usize, all: usize| as_f64(part) / as_f64(all.max(1));
    let row = Row {
        name: (*name).to_owned(),
        what: (*what).to_owned(),
        samples: samples.len(),
        complete: share(samples.iter().filter(&complete).count(), samples.len()),
        named: share(named, frames().count()),
        depth: share(frames().count(), samples.len()),
        opinion: String::new(),
    };
    need::figure(&row.text());
    table::write(&row);
    table::assemble();
    if samples.len() < SAMPLES_MIN {
        return Err(format!("{name}: only {} samples", samples.len()));
    }
    let strange = samples.iter().find(|sample| !complete(sample)).map(Observation::shown);
    match strange {
        Some(strange) if row.complete < program.complete_min => {
            Err(format!("{name}: {:.4} complete; not so: {strange}", row.complete))
        }
        _ => Ok(()),
    }
}

/// `e_entry` of an ELF file (generic ABI, chapter 4: eight bytes at 24).
fn entry_of(program: &Path) -> Option<u64> {
    let bytes = std::fs::read(program).ok()?;
    Some(u64::from_le_bytes(bytes.get(24..32)?.try_into().ok()?))
}
