//! The load of [`crate::host`]: real programs of every kind, ended with their children.

use rustix::process::{Pid, Signal, kill_process_group};
use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use tests::observation::Observation;
use tests::{binary, need, workload};

/// One part of the load.
pub(crate) struct Part {
    name: &'static str,
    program: PathBuf,
    arguments: Vec<OsString>,
    folder: PathBuf,
    /// Executables of it and of what it starts, by the beginning of their names.
    executables: &'static [&'static str],
}

impl Part {
    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    /// Every part that this machine has the program for.
    pub(crate) fn all(folder: &Path, seconds: u32) -> Vec<Self> {
        let source = |name: &str| binary::repository().join("tests/workloads").join(name);
        let own = |name: &str| source("host").join(name).into_os_string();
        let seconds = OsString::from(seconds.to_string());
        let part = |name, variable, program, arguments: &[OsString], executables| {
            let program = need::tool(variable, program)?;
            let arguments = arguments.to_vec();
            Some(Self { name, program, arguments, folder: folder.to_owned(), executables })
        };
        let again = |command: String| {
            let script = format!("while {command}; do :; done");
            [OsString::from("-c"), script.into()]
        };
        let compile = |variable, compiler, flags: &str, file: &str| {
            let compiler = need::tool(variable, compiler)?;
            Some(again(format!("{} {flags} {}", compiler.display(), source(file).display())))
        };
        let gcc = compile("VESTA_CXX", "g++", "-O2 -g -c -o gcc.o", "split.cpp");
        let rustc = compile("RUSTC", "rustc", "-O --edition=2024 -o rustc.out", "split.rs");
        let browser = [
            "--headless=new".into(),
            "--no-sandbox".into(),
            "--disable-gpu".into(),
            "--no-first-run".into(),
            "--disable-background-networking".into(),
            "--remote-debugging-port=0".into(),
            format!("--user-data-dir={}", folder.join("chromium").display()).into(),
            format!("file://{}", source("host/page.html").display()).into(),
        ];
        let java = [
            "-XX:+PreserveFramePointer".into(),
            "-Xmx256m".into(),
            own("Busy.java"),
            seconds.clone(),
        ];
        let server = workload::go_program("host/server.go", "server");
        let parts = [
            gcc.and_then(|it| {
                part("gcc", "VESTA_SH", "sh", &it, &["cc1plus", "as", "g++", "x86_64-linux-gnu"])
            }),
            rustc.and_then(|it| {
                part(
                    "rustc",
                    "VESTA_SH",
                    "sh",
                    &it,
                    &["rustc", "ld", "cc", "gcc", "collect2", "rust-lld"],
                )
            }),
            part(
                "python3",
                "VESTA_PYTHON3",
                "python3",
                &[own("busy.py"), seconds.clone()],
                &["python"],
            ),
            part("node", "VESTA_NODE", "node", &[own("busy.js"), seconds.clone()], &["node"]),
            part("java", "VESTA_JAVA", "java", &java, &["java"]),
            part("perl", "VESTA_PERL", "perl", &[own("busy.pl"), seconds.clone()], &["perl"]),
            part("chromium", "VESTA_CHROMIUM", "chromium", &browser, &["chrom"]),
            server.map(|program| Self {
                name: "go",
                program,
                arguments: vec![seconds.clone()],
                folder: folder.to_owned(),
                executables: &["server"],
            }),
        ];
        parts.into_iter().flatten().collect()
    }
}

/// The load, running.
pub(crate) struct Load {
    children: Vec<Child>,
    executables: Vec<(&'static str, &'static [&'static str])>,
}

/// Whose samples are whose.
pub(crate) struct Ended {
    executables: Vec<(&'static str, &'static [&'static str])>,
}

impl Load {
    /// Each part in a process group of its own.
    pub(crate) fn start(parts: &[Part]) -> Self {
        let start = |part: &Part| {
            let mut command = Command::new(&part.program);
            command.args(&part.arguments).current_dir(&part.folder).process_group(0);
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            command.spawn().unwrap_or_else(|error| panic!("start {}: {error}", part.name))
        };
        Self {
            children: parts.iter().map(start).collect(),
            executables: parts.iter().map(|part| (part.name, part.executables)).collect(),
        }
    }

    pub(crate) fn end(mut self) -> Ended {
        self.kill();
        Ended { executables: std::mem::take(&mut self.executables) }
    }

    fn kill(&mut self) {
        for child in &mut self.children {
            let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
            // A group that is gone already is no error of the test.
            kill_process_group(group.expect("a child has a pid"), Signal::KILL).unwrap_or_default();
            child.wait().map(drop).unwrap_or_default();
        }
        self.children.clear();
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Ended {
    /// The part that runs such an executable; `other` is what else the host does.
    pub(crate) fn part_of(&self, sample: &Observation) -> &'static str {
        let ours = |(_, names): &&(&'static str, &'static [&'static str])| {
            names.iter().any(|name| sample.executable.starts_with(name))
        };
        self.executables.iter().find(ours).map_or("other", |(name, _)| name)
    }
}
