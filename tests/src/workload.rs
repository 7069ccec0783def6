//! Programs with a known truth: built from tests/workloads by the machine's own compilers, never
//! committed as binaries.

use crate::binary::{repository, scratch};
use crate::need;
use crate::process::Running;
use crate::statistics::count_is;
use serde::Deserialize;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A language with a workload `split`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Language {
    /// C, in the main thread.
    C,
    /// C++, in a second thread, with exceptions and inlined functions.
    Cpp,
    /// Rust, in a second thread.
    Rust,
    /// Go, in one goroutine.
    Go,
    /// Go without a symbol table.
    GoStripped,
}

/// CPU time of the three chains, as the program's own clock saw it.
#[derive(Clone, Debug, Deserialize)]
pub struct Truth {
    /// The language, as the program calls itself.
    pub language: String,
    /// What repeats the run.
    pub seed: u64,
    /// Nanoseconds in each chain.
    pub chains: Chains,
    /// Nanoseconds in all chains after the first second.
    pub late_ns: u64,
    /// Where the stack of the working thread ends.
    pub root: Option<Root>,
}

/// Nanoseconds of CPU time.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct Chains {
    /// 50 %.
    pub a: u64,
    /// 30 %.
    pub b: u64,
    /// 20 %.
    pub c: u64,
}

/// The outermost frame by the compiler's own unwinder.
#[derive(Clone, Debug, Deserialize)]
pub struct Root {
    /// File name of the mapping.
    pub file: String,
    /// ELF address (these files begin at address 0).
    pub address: u64,
}

impl Truth {
    /// Seconds of CPU time in the chains.
    #[must_use]
    pub fn cpu_seconds(&self) -> f64 {
        let Chains { a, b, c } = self.chains;
        seconds(a + b + c)
    }

    /// Checks a count of samples in the chains against a clock of this frequency, over a run of so many seconds.
    ///
    /// # Errors
    /// If it cannot be chance.
    pub fn count_is(
        &self,
        samples: usize,
        frequency_hz: u32,
        run_seconds: u32,
    ) -> Result<(), String> {
        let cpu = self.cpu_seconds();
        count_is(samples, cpu * f64::from(frequency_hz), cpu / f64::from(run_seconds))
    }
}

/// Nanoseconds of a short run as seconds.
///
/// # Panics
/// If the run was longer than an hour.
#[must_use]
pub fn seconds(ns: u64) -> f64 {
    f64::from(u32::try_from(ns / 1000).expect("less than an hour")) / 1e6
}

impl Chains {
    /// The shares of `a`, `b` and `c`.
    #[must_use]
    pub fn shares(self) -> [f64; 3] {
        let number =
            |ns: u64| f64::from(u32::try_from(ns / 1000).expect("microseconds of a short run"));
        let all = number(self.a) + number(self.b) + number(self.c);
        [self.a, self.b, self.c].map(|ns| number(ns) / all)
    }
}

impl Language {
    /// Builds the workload, or says why it cannot be built.
    #[must_use]
    pub fn split(self) -> Option<PathBuf> {
        match self {
            Self::C => c("split", &[]),
            Self::Cpp => {
                let compiler = need::tool("VESTA_CXX", "g++")?;
                let out = out("split-cpp");
                let flags = ["-O2", "-g", "-fomit-frame-pointer", "-pthread"];
                compile(Command::new(compiler).args(flags).arg(source("split.cpp")), &out);
                Some(out)
            }
            Self::Rust => {
                let compiler = need::tool("RUSTC", "rustc")?;
                let out = out("split-rust");
                let flags = ["--edition=2024", "-O", "-C", "force-frame-pointers=no"];
                compile(Command::new(compiler).args(flags).arg(source("split.rs")), &out);
                Some(out)
            }
            Self::Go => go("split.go", "split-go", &[]),
            Self::GoStripped => go("split.go", "split-go-stripped", &["-ldflags=-s -w"]),
        }
    }
}

/// Builds a C program of tests/workloads.
#[must_use]
pub fn c(name: &str, flags: &[&str]) -> Option<PathBuf> {
    c_variant(&format!("{name}.c"), &format!("{name}-c"), flags)
}

/// Builds a C program of tests/workloads once more, with other flags and under another name.
#[must_use]
pub fn c_variant(source_name: &str, name: &str, flags: &[&str]) -> Option<PathBuf> {
    let compiler = need::tool("VESTA_CC", "gcc")?;
    let out = out(name);
    let mut command = Command::new(compiler);
    command.args(["-O2", "-fomit-frame-pointer"]).arg(source(source_name)).args(flags);
    compile(&mut command, &out);
    Some(out)
}

/// Builds the library whose functions end in `own`: two of them differ in their names only.
#[must_use]
pub fn plugin(own: &str) -> Option<PathBuf> {
    let flags = ["-shared", "-fPIC", &format!("-DSELF={own}")];
    c_variant("plugin.c", &format!("plugin-{own}.so"), &flags)
}

/// ELF address of a dynamic symbol, by binutils, which come with the compiler.
///
/// # Panics
/// If there is none.
#[must_use]
pub fn symbol_address(file: &Path, name: &str) -> u64 {
    let output = Command::new("nm").arg("--dynamic").arg(file).output().expect("nm runs");
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().find(|line| line.ends_with(&format!(" {name}")));
    let address = line.and_then(|line| u64::from_str_radix(line.split(' ').next()?, 16).ok());
    address.unwrap_or_else(|| panic!("no {name} in {}: {text}", file.display()))
}

/// The two programs of relay.c: the same addresses in both, other names.
#[must_use]
pub fn relays() -> Option<[PathBuf; 2]> {
    let build = |name: &str, own: &str| {
        c_variant("relay.c", name, &["-static", "-no-pie", &format!("-DSELF={own}")])
    };
    Some([build("relay-a", "a")?, build("relay-b", "b")?])
}

/// CPU nanoseconds that the two programs of relay.c spun.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
pub struct RelayTruth {
    /// In relay-a.
    pub a: u64,
    /// In relay-b.
    pub b: u64,
}

impl RelayTruth {
    /// The sums of what the programs printed, a line each.
    ///
    /// # Panics
    /// If a line is something else.
    #[must_use]
    pub fn sum(lines: &str) -> Self {
        let one = |line: &str| -> Self {
            serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))
        };
        let add = |sum: Self, it: Self| Self { a: sum.a + it.a, b: sum.b + it.b };
        lines.lines().map(one).fold(Self::default(), add)
    }
}

/// Builds a Go program of tests/workloads.
#[must_use]
pub fn go_program(source_name: &str, name: &str) -> Option<PathBuf> {
    go(source_name, name, &[])
}

/// The same without symbols.
#[must_use]
pub fn go_stripped(source_name: &str, name: &str) -> Option<PathBuf> {
    go(source_name, name, &["-ldflags=-s -w"])
}

fn go(source_name: &str, name: &str, flags: &[&str]) -> Option<PathBuf> {
    let go = need::tool("VESTA_GO", "go")?;
    let out = out(name);
    // One file, no module: nothing is fetched. The cache is where the user has it.
    let mut command = Command::new(go);
    command.arg("build").args(flags).arg("-o").arg(&out).arg(source(source_name));
    run(command.env("GO111MODULE", "off").env("GOFLAGS", ""));
    Some(out)
}

/// A file of tests/workloads.
#[must_use]
pub fn source(name: &str) -> PathBuf {
    repository().join("tests/workloads").join(name)
}

/// Where a program of this name is built to.
#[must_use]
pub fn out(name: &str) -> PathBuf {
    scratch("workloads").join(name)
}

fn compile(command: &mut Command, out: &Path) {
    run(command.arg("-o").arg(out));
}

/// Runs a tool that builds.
///
/// # Panics
/// If it fails; what it said is part of the message.
pub fn run(command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| panic!("start {command:?}: {error}"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?} ended with {}: {said}", output.status);
}

/// Starts a `split` for so many seconds.
#[must_use]
pub fn start_split(program: &Path, seconds: u64, seed: u64) -> Running {
    let mut command = Command::new(program);
    command.arg(seconds.to_string()).arg(seed.to_string());
    Running::start(command)
}

/// The truth that a finished `split` printed.
///
/// # Panics
/// If it does not end within a minute, or prints something else.
pub fn truth(split: Running) -> Truth {
    parse_truth(&split.finish(std::time::Duration::from_secs(60)))
}

/// The truth in what a `split` printed.
///
/// # Panics
/// If there is none.
#[must_use]
pub fn parse_truth(text: &str) -> Truth {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}
