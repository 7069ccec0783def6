//! A process with known stacks, and its tables.

use crate::address::{AbsAddr, Generation, Pid};
use crate::bpf::{MappingUnwind, TableId, Tables, WalkMapping};
use crate::elf::headers::Elf;
use crate::elf::source::Source;
use std::collections::HashMap;
use std::io::Read as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A C program compiled by gcc and running; killed when dropped.
pub(super) struct Target {
    child: Child,
    _folder: tempfile::TempDir,
}

/// A program that does not run yet.
pub(super) struct Built {
    pub(super) file: PathBuf,
    folder: tempfile::TempDir,
}

/// Builds a C program.
pub(super) fn build_c(source: &str, flags: &[&str]) -> Built {
    let folder = tempfile::tempdir().expect("a folder");
    let (text, file) = (folder.path().join("target.c"), folder.path().join("target"));
    std::fs::write(&text, source).expect("there is room");
    let status = Command::new("gcc").args(flags).arg("-o").arg(&file).arg(&text).status();
    assert!(status.expect("gcc is installed").success());
    Built { file, folder }
}

/// Builds a Go program without symbols; `None`, said aloud, if there is no Go.
pub(super) fn build_go(source: &std::path::Path) -> Option<Built> {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("target");
    let go = std::env::var_os("VESTA_GO").unwrap_or_else(|| "go".into());
    let mut build = Command::new(go);
    build.args(["build", "-ldflags=-s -w", "-o"]).arg(&file).arg(source);
    let Ok(status) = build.env("GO111MODULE", "off").env("GOFLAGS", "").status() else {
        eprintln!("skipped: no Go compiler");
        return None;
    };
    assert!(status.success());
    Some(Built { file, folder })
}

impl Target {
    pub(super) fn compile_and_run(source: &str, flags: &[&str]) -> Self {
        let Built { file, folder } = build_c(source, flags);
        let child = Command::new(&file).stdin(Stdio::null()).spawn().expect("the target runs");
        std::thread::sleep(Duration::from_millis(100)); // past its start, with everything mapped
        Self { child, _folder: folder }
    }

    /// Runs a program that was built; its output is kept for [`Target::output`].
    pub(super) fn run(program: Built, arguments: &[&str]) -> Self {
        let mut run = Command::new(&program.file);
        run.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped());
        Self { child: run.spawn().expect("the target runs"), _folder: program.folder }
    }

    /// What it printed, when it is over.
    pub(super) fn output(&mut self) -> String {
        let mut text = String::new();
        let pipe = self.child.stdout.as_mut().expect("its output is kept");
        pipe.read_to_string(&mut text).expect("it prints text");
        text
    }

    pub(super) fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).expect("it is ours");
    }

    pub(super) fn pid(&self) -> Pid {
        Pid(self.child.id())
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        self.child.kill().expect("it was not waited for yet");
        self.child.wait().expect("it is ours");
    }
}

/// Loads everything that a process has mapped.
#[derive(Default)]
pub(super) struct TableLoader {
    loaded: HashMap<String, (TableId, Vec<crate::elf::ExecutableSegment>)>,
}

impl TableLoader {
    /// Loads the tables of a process and publishes its mappings.
    pub(super) fn load(&mut self, tables: &mut Tables, pid: Pid, generation: Generation) {
        let mappings = self.mappings(tables, pid);
        assert_eq!(tables.set_process(pid, generation, &mappings).unwrap(), 0);
    }

    /// Loads the tables of a process; its mappings.
    pub(super) fn mappings(&mut self, tables: &mut Tables, pid: Pid) -> Vec<WalkMapping> {
        let text = std::fs::read_to_string(format!("/proc/{}/maps", pid.0)).unwrap();
        let mut mappings = Vec::new();
        for line in text.lines() {
            let fields: Vec<&str> = line.split_ascii_whitespace().collect();
            // Of the kernel's own: vsyscall, and where it steps through probed instructions.
            let own = line.contains("vsyscall") || line.contains("[uprobes]");
            if fields[1].as_bytes()[2] == b'x' && !own {
                mappings.push(self.mapping(tables, pid, &fields));
            }
        }
        mappings
    }

    fn mapping(&mut self, tables: &mut Tables, pid: Pid, fields: &[&str]) -> WalkMapping {
        let (start, end) = fields[0].split_once('-').unwrap();
        let [start, end, offset] =
            [start, end, fields[2]].map(|text| u64::from_str_radix(text, 16).unwrap());
        let path = fields.get(5).map_or(String::new(), |path| (*path).to_owned());
        let file = if path == "[vdso]" {
            let mut bytes = vec![0; usize::try_from(end - start).unwrap()];
            let memory = std::fs::File::open(format!("/proc/{}/mem", pid.0)).unwrap();
            std::os::unix::fs::FileExt::read_exact_at(&memory, &mut bytes, start).unwrap();
            bytes
        } else {
            std::fs::read(format!("/proc/{}/root/{path}", pid.0)).unwrap()
        };
        let (id, segments) = self.loaded.entry(path).or_insert_with(|| {
            let rows = crate::unwind::unwind_rows_from_bytes(&file).unwrap();
            let segments = Elf::parse(Source::memory(&file)).unwrap().executable_segments();
            (tables.insert(&rows).unwrap(), segments)
        });
        let segment = segments
            .iter()
            .find(|segment| {
                offset < segment.file_offset.0 + segment.size
                    && segment.file_offset.0 < offset + (end - start)
            })
            .expect("an executable segment");
        let bias = start.wrapping_sub(
            offset.wrapping_sub(segment.file_offset.0).wrapping_add(segment.address.0),
        );
        WalkMapping {
            start: AbsAddr(start),
            end: AbsAddr(end),
            bias,
            unwind: MappingUnwind::Table(*id),
        }
    }
}
