//! A host of made-up processes, for tests: what is not there is gone.

use super::cgroup::CgroupIdentity;
use super::host::{FileIdentity, Host, OpenError, OpenedFile, ProcessStatus, Task};
use super::maps::{Maps, MapsEntry};
use crate::address::{AbsAddr, ElfAddr, FileId, FileOffset, Pid, Tid};
use crate::clock::MonotonicNs;
use crate::elf::{ExecutableSegment, FileFacts, ForeignFileError, ForeignFiles, Names, Runtime};
use crate::path;
use crate::symbolize::UnnamedReason;
use crate::unwind::RowTable;
use agent_ebpf::{RuleKind, UnwindRule};
use hashbrown::HashMap;
use proto::BuildId;
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

/// One made-up process.
#[derive(Clone, Debug)]
pub(crate) struct FakeProcess {
    pub(crate) status: ProcessStatus,
    pub(crate) executable: String,
    /// Start and path; every mapping has one page, from offset 0.
    pub(crate) mappings: Vec<(u64, String)>,
    pub(crate) service: Option<String>,
    /// Its environment is not in place yet.
    pub(crate) executing: bool,
    pub(crate) cgroup: String,
    /// What a read of its mappings takes.
    pub(crate) maps_wait: Duration,
    /// What a read of its environment takes.
    pub(crate) environment_wait: Duration,
}

/// The host. Every path that begins with `/` is a file whose content is its path.
#[derive(Debug, Default)]
pub(crate) struct FakeHost {
    processes: Mutex<HashMap<Pid, FakeProcess>>,
    /// The time that it slept.
    pub(crate) asleep_ns: AtomicU64,
    /// How often it was asked for the status of a process.
    pub(crate) statuses: AtomicU64,
    /// How often it was asked for the mappings of one.
    pub(crate) listings: AtomicU64,
}

/// Bytes of a made-up mapping.
pub(crate) const FAKE_BYTES: u64 = 0x1000;

impl FakeProcess {
    pub(crate) fn new(start_time_ns: u64, executable: &str, mappings: &[(u64, &str)]) -> Self {
        Self {
            status: ProcessStatus {
                parent: Pid(1),
                start_time_ns,
                comm: "comm".into(),
                kernel_thread: false,
                threads: 1,
                cpu_ticks: 1,
                zombie: false,
            },
            executable: executable.into(),
            mappings: mappings.iter().map(|&(start, path)| (start, path.into())).collect(),
            service: None,
            executing: false,
            cgroup: String::new(),
            maps_wait: Duration::ZERO,
            environment_wait: Duration::ZERO,
        }
    }
}

impl FakeHost {
    pub(crate) fn processes(&self) -> MutexGuard<'_, HashMap<Pid, FakeProcess>> {
        self.processes.lock().unwrap()
    }

    fn of<T>(&self, pid: Pid, read: impl Fn(&FakeProcess) -> T) -> io::Result<T> {
        self.processes().get(&pid).map(read).ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

/// The build id that a made-up file carries.
pub(crate) fn fake_build_id(path: &str) -> BuildId {
    BuildId::new(path.as_bytes()).unwrap()
}

fn opened(path: &[u8]) -> Result<OpenedFile, OpenError> {
    let descriptor = rustix::fs::memfd_create("fake", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    let mut file = std::fs::File::from(descriptor);
    file.write_all(path).unwrap();
    let inode = path.iter().fold(7, |sum: u64, &byte| sum.wrapping_mul(31) + u64::from(byte));
    let identity =
        FileIdentity { device: 1, inode, size: path.len() as u64, modified_ns: 0, changed_ns: 0 };
    Ok(OpenedFile {
        descriptor: file.into(),
        identity,
        // One is called so, to the last letter.
        named: !path::has_remark(path) || path == b"/bin/so (deleted)",
        other_path: None,
    })
}

impl Host for FakeHost {
    fn pids(&self) -> io::Result<Vec<Pid>> {
        Ok(self.processes().keys().copied().collect())
    }

    fn status(&self, pid: Pid) -> io::Result<ProcessStatus> {
        self.statuses.fetch_add(1, Ordering::Relaxed);
        self.of(pid, |process| process.status.clone())
    }

    fn living_thread(&self, pid: Pid) -> io::Result<Tid> {
        self.of(pid, |_| Tid(pid.0 + 1))
    }

    fn executable(&self, task: Task) -> io::Result<Vec<u8>> {
        self.of(task.pid, |process| process.executable.clone().into_bytes())
    }

    fn maps(&self, task: Task) -> io::Result<Maps> {
        let entry = |(start, path): &(u64, String)| MapsEntry {
            start: AbsAddr(*start),
            end: AbsAddr(start + FAKE_BYTES),
            file_offset: FileOffset(0),
            inode: 1,
            path: path.clone().into_bytes(),
        };
        self.listings.fetch_add(1, Ordering::Relaxed);
        std::thread::sleep(self.of(task.pid, |process| process.maps_wait)?);
        self.of(task.pid, |process| Maps {
            entries: process.mappings.iter().map(entry).collect(),
            left_out: 0,
        })
    }

    fn cgroup(&self, pid: Pid) -> io::Result<CgroupIdentity> {
        self.of(pid, |process| CgroupIdentity::parse(&process.cgroup))
    }

    fn service_name(&self, task: Task) -> io::Result<Option<String>> {
        std::thread::sleep(self.of(task.pid, |process| process.environment_wait)?);
        let found = self.of(task.pid, |process| (process.service.clone(), process.executing))?;
        if found.1 { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(found.0) }
    }

    fn open(&self, task: Task, mapping: &MapsEntry) -> Result<OpenedFile, OpenError> {
        self.open_path(task, &mapping.path)
    }

    fn open_path(&self, task: Task, path: &[u8]) -> Result<OpenedFile, OpenError> {
        self.of(task.pid, |_| ())?;
        opened(path)
    }

    /// From 1,000 on, every hundred is a container.
    fn view(&self, task: Task) -> io::Result<Vec<u8>> {
        self.of(task.pid, |_| {
            (task.pid.0 / 100 * u32::from(task.pid.0 >= 1000)).to_le_bytes().into()
        })
    }

    fn memory(&self, task: Task, _start: AbsAddr, _end: AbsAddr) -> io::Result<Vec<u8>> {
        self.of(task.pid, |_| b"memory".to_vec())
    }

    fn vdso(&self) -> io::Result<(u64, Vec<u8>)> {
        Ok((FAKE_BYTES, b"vdso".to_vec()))
    }

    fn asleep_ns(&self) -> u64 {
        self.asleep_ns.load(Ordering::Relaxed)
    }
}

/// Rows in turn of so many rules, which no file of another kind has.
fn fake_rows(rows: u16, rules: u16, kind: i32) -> RowTable {
    let rule = |number: u16| UnwindRule {
        offset: 8 * (kind * 10_000 + i32::from(number) + 2),
        ..UnwindRule::plain(RuleKind::RspOffset)
    };
    let rules_of = (0..rules).map(rule).collect();
    RowTable::new(0, rules_of, (0..rows).map(|row| (row.into(), row % rules))).unwrap()
}

/// Understands made-up files: one executable segment of one page at ELF address 0, two rows, or as many rows or rules
/// as `/bin/300-rows` or `/bin/300-rules-1` (of the first kind) says; a path that holds `text` is no executable, one that holds `python` is an interpreter.
#[derive(Debug, Default)]
pub(crate) struct FakeFiles;

/// The path that a made-up file holds.
pub(crate) fn fake_path(file: &OwnedFd) -> String {
    FakeFiles::path(file)
}

impl FakeFiles {
    fn path(file: &OwnedFd) -> String {
        let file = std::fs::File::from(file.try_clone().unwrap());
        let mut bytes = [0; 256];
        let length = file.read_at(&mut bytes, 0).unwrap();
        String::from_utf8_lossy(&bytes[..length]).into_owned()
    }
}

impl ForeignFiles for FakeFiles {
    fn inspect(&self, file: &OwnedFd) -> Result<FileFacts, ForeignFileError> {
        let path = Self::path(file);
        if path.contains("text") {
            return Err(ForeignFileError::Malformed { what: "file", detail: path });
        }
        let segment =
            ExecutableSegment { address: ElfAddr(0), file_offset: FileOffset(0), size: FAKE_BYTES };
        let runtime = if path.contains("python") { Runtime::Python } else { Runtime::Native };
        Ok(FileFacts {
            segments: vec![segment],
            data: Vec::new(),
            gnu_build_id: BuildId::new(path.as_bytes()), // none for a long path
            go_build_id: None,
            htlhash: BuildId::new(&[1]).unwrap(),
            is_static: false,
            runtime,
        })
    }

    /// A separate debug file carries the build id that it is named by.
    fn build_id(&self, file: &OwnedFd) -> Option<BuildId> {
        let path = Self::path(file);
        let hex = path.strip_prefix("/usr/lib/debug/.build-id/")?.strip_suffix(".debug")?;
        let digits: Vec<u8> = hex.chars().filter_map(|c| c.to_digit(16)?.try_into().ok()).collect();
        let bytes: Vec<u8> = digits.as_chunks::<2>().0.iter().map(|[a, b]| a << 4 | b).collect();
        BuildId::new(&bytes)
    }

    fn unwind_rows(&self, file: &OwnedFd) -> Result<RowTable, ForeignFileError> {
        let path = Self::path(file);
        // What lies below `/copy` has the rows of what it is a copy of.
        let name = path.strip_prefix("/copy").unwrap_or(&path);
        let counted = name.strip_prefix("/bin/").and_then(|name| {
            let (count, kind) = name.split_once('-')?;
            Some((count.parse::<u16>().ok()?, kind))
        });
        match counted {
            Some((count, "rows")) => return Ok(fake_rows(count, 2, 0)),
            Some((count, kind)) => {
                let kind = kind.strip_prefix("rules-").unwrap().parse().unwrap();
                return Ok(fake_rows(count, count, kind));
            }
            None => {}
        }
        let size = name.bytes().fold(0, |sum, byte| (sum * 31 + u32::from(byte)) % 0xffff);
        let rules = vec![
            UnwindRule { offset: 8, ..UnwindRule::plain(RuleKind::RspOffset) },
            UnwindRule::plain(RuleKind::NoInfo),
        ];
        Ok(RowTable::new(0, rules, [(0, 0), (0x1000 + size, 1)]).unwrap())
    }

    /// What is called so has more rows later.
    fn unwind_rows_soon(&self, file: &OwnedFd) -> Result<RowTable, ForeignFileError> {
        if Self::path(file).contains("later") {
            return Ok(fake_rows(100, 2, 0).with_code_put_off(100));
        }
        self.unwind_rows(file)
    }

    fn names_with(
        &self,
        _id: FileId,
        _file: &OwnedFd,
        _debug_file: Option<&OwnedFd>,
        addresses: &[ElfAddr],
        _until: MonotonicNs,
    ) -> Vec<Names> {
        vec![Err(UnnamedReason::NoSymbol); addresses.len()]
    }
}
