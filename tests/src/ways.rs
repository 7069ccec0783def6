//! Programs that wait in one way each (tests/workloads/waits), and what they say of it.

use crate::process::Running;
use crate::{need, workload};
use serde::Deserialize;
use std::path::PathBuf;
use std::process::Command;

/// Whose ways to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Library {
    /// The C library of this host.
    Glibc,
    /// The same, linked statically and stripped: it names nothing.
    GlibcStripped,
    /// musl, linked statically.
    Musl,
    /// Rust's standard library, and `parking_lot`.
    Rust,
    /// Go's package sync.
    Go,
    /// The same without symbols.
    GoStripped,
    /// A JVM.
    Java,
}

/// What a program says when it is over.
#[derive(Clone, Debug, Deserialize)]
pub struct WaitTruth {
    /// Its way.
    pub case: String,
    /// Its process.
    pub pid: u32,
    /// The thread that waited; 0 if it does not know.
    pub tid: i64,
    /// The thread that lets it go; 0 if it does not know.
    #[serde(default)]
    pub holder: i64,
    /// Nanoseconds of all waits.
    pub waited_ns: u64,
    /// How many.
    pub waits: u64,
    /// Address of the lock, 0 if it has none or does not know.
    pub lock: u64,
    /// Uncontended locks taken by another thread.
    pub beside: u64,
}

impl Library {
    /// Builds the program, or says why it cannot.
    #[must_use]
    pub fn program(self) -> Option<Program> {
        let file = match self {
            Self::Glibc => workload::c_variant("waits/waits.c", "waits-c", &["-pthread"])?,
            Self::GlibcStripped => {
                let flags = ["-pthread", "-static", "-s"];
                workload::c_variant("waits/waits.c", "waits-c-stripped", &flags)?
            }
            Self::Musl => musl()?,
            Self::Rust => crate::binary::program("waits"),
            Self::Go => workload::go_program("waits/waits.go", "waits-go")?,
            Self::GoStripped => workload::go_stripped("waits/waits.go", "waits-go-stripped")?,
            Self::Java => return java(),
        };
        Some(Program { file, arguments: Vec::new() })
    }
}

/// A program that takes the name of a way and a time.
#[derive(Clone, Debug)]
pub struct Program {
    file: PathBuf,
    arguments: Vec<String>,
}

impl Program {
    /// Starts it for so long; `beside`: with a thread that takes locks which nobody else wants.
    #[must_use]
    pub fn start(&self, case: &str, milliseconds: u64, beside: bool) -> Running {
        let mut command = Command::new(&self.file);
        self.tell(&mut command, case, milliseconds);
        if beside {
            command.arg("1");
        }
        Running::start(command)
    }

    /// What starts it in a shell.
    #[must_use]
    pub fn command_line(&self, case: &str, milliseconds: u64) -> String {
        let file = self.file.to_string_lossy().into_owned();
        let words = [file].into_iter().chain(self.arguments.iter().cloned());
        let quoted: Vec<String> = words.map(|word| format!("'{word}'")).collect();
        format!("{} {case} {milliseconds}", quoted.join(" "))
    }

    fn tell(&self, command: &mut Command, case: &str, milliseconds: u64) {
        command.args(&self.arguments).arg(case).arg(milliseconds.to_string());
    }
}

fn musl() -> Option<PathBuf> {
    let compiler = need::tool("VESTA_MUSL_CC", "musl-gcc")?;
    let out = workload::out("waits-musl");
    let mut command = Command::new(compiler);
    command.args(["-O2", "-static", "-pthread", "-o"]).arg(&out);
    workload::run(command.arg(workload::source("waits/waits.c")));
    Some(out)
}

fn java() -> Option<Program> {
    let compiler = need::tool("VESTA_JAVAC", "javac")?;
    let file = need::tool("VESTA_JAVA", "java")?;
    let classes = workload::out("waits-java");
    let mut command = Command::new(compiler);
    command.arg("-d").arg(&classes).arg(workload::source("waits/Waits.java"));
    workload::run(&mut command);
    let classes = classes.to_string_lossy().into_owned();
    let arguments = ["-Xmx64m", "-XX:+PreserveFramePointer", "-cp", classes.as_str(), "Waits"];
    let arguments = arguments.map(str::to_owned).to_vec();
    Some(Program { file, arguments })
}
