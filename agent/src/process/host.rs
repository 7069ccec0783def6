//! The host's `/proc`: everything the agent asks about one process, bounded in bytes. Files of a process
//! are opened beneath that process, so that containers and deleted files are right and no link leads out.

mod asleep;
mod inner;
mod perf_map;
mod pseudo;

pub(crate) use perf_map::PerfMapError;

use super::cgroup::CgroupIdentity;
use super::maps::{Maps, MapsEntry};
use super::service;
use crate::address::{AbsAddr, Pid, Tid};
use crate::clock::asleep_ns;
use crate::limits::{
    CGROUP_BYTES_MAX, FOREIGN_FILE_BYTES_MAX, PROCESS_STATUS_BYTES_MAX, STAT_BYTES_MAX,
    VDSO_BYTES_MAX,
};
use crate::path;
pub use asleep::Asleep;
use procfs::FromRead as _;
use rustix::fs::{FileType, Mode, OFlags, ResolveFlags};
use std::fmt;
use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read as _};
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

/// `PF_KTHREAD`, among the flags of a thread's `stat` (include/linux/sched.h).
const KERNEL_THREAD: u32 = 0x0020_0000;

/// The first fields of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessStatus {
    /// Parent.
    pub parent: Pid,
    /// Start, in nanoseconds of `CLOCK_BOOTTIME` (ticks of 10 ms).
    pub start_time_ns: u64,
    /// Thread name of the main thread.
    pub comm: String,
    /// True for a kernel thread.
    pub kernel_thread: bool,
    /// Threads that live.
    pub threads: u32,
    /// CPU time of all its threads so far, in ticks of 10 ms.
    pub cpu_ticks: u64,
    /// True if the main thread has ended (the process too, unless it has other threads).
    pub zombie: bool,
}

impl ProcessStatus {
    /// True if nothing of the process runs any more: it waits for its parent to take note, which may be for
    /// good. One whose main thread alone has ended counts more threads than that one (`num_threads` in
    /// `do_task_stat`, kernel fs/proc/array.c; 0 once it is being taken away).
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.zombie && self.threads <= 1
    }
}

/// What makes two descriptors the same file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileIdentity {
    /// Device.
    pub device: u64,
    /// Inode.
    pub inode: u64,
    /// Bytes.
    pub size: u64,
    /// Last change of the contents as whoever made the file states it, nanoseconds since 1970: stores of packages give
    /// all files one time.
    pub modified_ns: i128,
    /// Last change of the contents, the owner, the name or the links as the kernel states it, nanoseconds since 1970.
    pub changed_ns: i128,
}

impl FileIdentity {
    /// True if nothing but the time of the last change differs: somebody may have renamed or deleted the file, or made
    /// a link to it.
    #[must_use]
    pub fn is_as_before(&self, other: &Self) -> bool {
        Self { changed_ns: other.changed_ns, ..*self } == *other
    }
}

/// An opened file of a process.
#[derive(Debug)]
pub struct OpenedFile {
    /// Read-only, regular.
    pub descriptor: OwnedFd,
    /// Which one.
    pub identity: FileIdentity,
    /// True if it is called as the path says to the last letter; false if ` (deleted)` at its end is the
    /// kernel's remark.
    pub named: bool,
    /// Its path, where its name is another than the mapping's: it was renamed, or the process executed another
    /// program meanwhile, whose mapping lies in the same place.
    pub other_path: Option<Vec<u8>>,
}

/// Who maps a file: a process, and one of its threads in case the main one has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Task {
    /// Process.
    pub pid: Pid,
    /// A thread of it.
    pub tid: Tid,
}

/// Why a file of a process could not be had.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// A device, a pipe, a file of the kernel's own (`/proc`, `/sys`), or the like: it must not even be opened.
    #[error("not a regular file")]
    NotRegular,
    /// Larger than the limit.
    #[error("{size} bytes exceed the limit of {max}")]
    TooLarge {
        /// Bytes of the file.
        size: u64,
        /// The limit.
        max: u64,
    },
    /// The kernel refused, or the process is gone.
    #[error("opening failed: {0}")]
    Io(#[from] io::Error),
}

/// What the process table asks of the host.
pub trait Host: fmt::Debug + Send + Sync {
    /// All processes.
    ///
    /// # Errors
    /// When `/proc` cannot be listed.
    fn pids(&self) -> io::Result<Vec<Pid>>;

    /// The state of a process.
    ///
    /// # Errors
    /// When it is gone, or shielded.
    fn status(&self, pid: Pid) -> io::Result<ProcessStatus>;

    /// A thread that lives, where the main one has ended.
    ///
    /// # Errors
    /// When the process is gone.
    fn living_thread(&self, pid: Pid) -> io::Result<Tid>;

    /// Path of the executable as the process sees it, with the kernel's remark if it is deleted. Asks no file
    /// system: it is called on the engine's thread.
    ///
    /// # Errors
    /// When it is gone, shielded, or a kernel thread.
    fn executable(&self, task: Task) -> io::Result<Vec<u8>>;

    /// Executable mappings.
    ///
    /// # Errors
    /// When it is gone, or shielded.
    fn maps(&self, task: Task) -> io::Result<Maps>;

    /// Container and unit.
    ///
    /// # Errors
    /// When it is gone.
    fn cgroup(&self, pid: Pid) -> io::Result<CgroupIdentity>;

    /// The service name that its environment asks for.
    ///
    /// # Errors
    /// When it is gone, or shielded, or has no environment (yet: an exec puts it in place last).
    fn service_name(&self, task: Task) -> io::Result<Option<String>>;

    /// Opens the file behind a mapping.
    ///
    /// # Errors
    /// See [`OpenError`].
    fn open(&self, task: Task, mapping: &MapsEntry) -> Result<OpenedFile, OpenError>;

    /// Opens a path in the mount namespace of a process, by name alone: the caller must check that it
    /// is the file meant.
    ///
    /// # Errors
    /// See [`OpenError`].
    fn open_path(&self, task: Task, path: &[u8]) -> Result<OpenedFile, OpenError>;

    /// What the paths of a process are relative to: equal bytes mean that equal paths are one file. Asks no
    /// file system.
    ///
    /// # Errors
    /// When it is gone, or shielded.
    fn view(&self, task: Task) -> io::Result<Vec<u8>>;

    /// Bytes of code that a process made.
    ///
    /// # Errors
    /// When the process is gone or shielded, or the range is too large.
    fn memory(&self, task: Task, start: AbsAddr, end: AbsAddr) -> io::Result<Vec<u8>>;

    /// The agent's own vDSO, which is that of every process of 64 bits: the length of its mapping, and its bytes.
    ///
    /// # Errors
    /// When the host has none.
    fn vdso(&self) -> io::Result<(u64, Vec<u8>)>;

    /// The threads of a process.
    ///
    /// # Errors
    /// When it is gone.
    fn threads(&self, _pid: Pid) -> io::Result<Vec<Tid>> {
        Ok(Vec::new())
    }

    /// What a thread waits for now; `None` if it does not.
    ///
    /// # Errors
    /// When it is gone, or shielded.
    fn asleep(&self, _task: Task) -> io::Result<Option<Asleep>> {
        Ok(None)
    }

    /// Each thread of a process with its number in the process's own PID namespace, at most so many; nothing where that
    /// is the host's.
    ///
    /// # Errors
    /// When the process is gone.
    fn inner_numbers(&self, _pid: Pid, _max: usize) -> io::Result<Vec<(Tid, u32)>> {
        Ok(Vec::new())
    }

    /// How long the host has slept until now, nanoseconds: start times of processes count it, kernel
    /// records do not. Asked whenever one is turned into the other, because a host may sleep again.
    fn asleep_ns(&self) -> u64 {
        asleep_ns()
    }
}

/// The real one.
#[derive(Debug)]
pub struct ProcFs {
    root: PathBuf,
}

impl ProcFs {
    /// Reads beneath `root`, which is `/proc` unless the host's is mounted elsewhere.
    #[must_use]
    pub fn new(root: PathBuf) -> Self {
        Self { root }
    }

    fn of_process(&self, pid: Pid, name: &str) -> PathBuf {
        self.root.join(format!("{}/{name}", pid.0))
    }

    fn of_thread(&self, task: Task, name: &str) -> PathBuf {
        self.root.join(format!("{}/task/{}/{name}", task.pid.0, task.tid.0))
    }

    /// The process's entry, or its thread's: the memory of a process hangs on its threads, and the main
    /// one loses it when it ends before the others.
    fn try_both<T>(
        &self,
        task: Task,
        name: &str,
        read: impl Fn(&Path) -> io::Result<T>,
    ) -> io::Result<T> {
        read(&self.of_process(task.pid, name)).or_else(|error| {
            if task.tid.0 == task.pid.0 {
                return Err(error);
            }
            read(&self.of_thread(task, name)).map_err(|_second| error)
        })
    }

    /// Where an entry leads to, as the kernel writes it.
    fn link(&self, task: Task, name: &str) -> io::Result<Vec<u8>> {
        self.try_both(task, name, |path| Ok(rustix::fs::readlink(path, Vec::new())?.into_bytes()))
    }

    fn open_executable(&self, task: Task) -> Result<OpenedFile, OpenError> {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let exe =
            self.try_both(task, "exe", |path| Ok(rustix::fs::open(path, flags, Mode::empty())?))?;
        open_regular(&exe)
    }

    /// True if the file is what lies at `path` to the last letter: then ` (deleted)` is part of its name.
    fn is_named(&self, task: Task, path: &[u8], identity: FileIdentity) -> bool {
        self.open_beneath(task, path).is_ok_and(|found| found.identity == identity)
    }

    fn with_name(
        &self,
        opened: OpenedFile,
        task: Task,
        path: &[u8],
    ) -> Result<OpenedFile, OpenError> {
        let named = !path::has_remark(path) || self.is_named(task, path, opened.identity);
        Ok(OpenedFile { named, ..opened })
    }

    fn open_beneath(&self, task: Task, path: &[u8]) -> Result<OpenedFile, OpenError> {
        open_regular(&self.find_beneath(task, path)?)
    }

    /// An `O_PATH` descriptor of what lies at `path` in the mount namespace of a process: nothing is opened yet.
    fn find_beneath(&self, task: Task, path: &[u8]) -> io::Result<OwnedFd> {
        let directory = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = self
            .try_both(task, "root", |root| Ok(rustix::fs::open(root, directory, Mode::empty())?))?;
        let found = rustix::fs::openat2(
            root,
            Path::new(std::ffi::OsStr::from_bytes(path)),
            OFlags::PATH | OFlags::CLOEXEC,
            Mode::empty(),
            ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS,
        )?;
        Ok(found)
    }
}

/// Opens for reading what `found`, an `O_PATH` descriptor, points to, if it is a regular file: devices
/// and pipes must not be opened at all, because opening them may act or wait; nor the kernel's own files.
fn open_regular(found: &OwnedFd) -> Result<OpenedFile, OpenError> {
    regular_identity(found.as_fd())?;
    pseudo::refuse(found)?;
    let again = format!("/proc/self/fd/{}", found.as_raw_fd());
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
    let descriptor = rustix::fs::open(again, flags, Mode::empty()).map_err(io::Error::from)?;
    let identity = regular_identity(descriptor.as_fd())?;
    Ok(OpenedFile { descriptor, identity, named: true, other_path: None })
}

/// The path of an open file if its last component is not that of `path`. Folders are not compared: they look
/// different from another mount namespace.
fn other_path(found: &OwnedFd, path: &[u8]) -> Option<Vec<u8>> {
    let link = format!("/proc/self/fd/{}", found.as_raw_fd());
    let link = rustix::fs::readlink(link, Vec::new()).ok()?.into_bytes();
    let name = |path: &[u8]| path::file_name(&path::shown(path)).to_owned();
    (name(&link) != name(path)).then_some(link)
}

fn nanoseconds(seconds: impl Into<i128>, rest: impl Into<i128>) -> i128 {
    seconds.into() * 1_000_000_000 + rest.into()
}

fn regular_identity(file: impl AsFd) -> Result<FileIdentity, OpenError> {
    let stat = rustix::fs::fstat(file).map_err(io::Error::from)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(OpenError::NotRegular);
    }
    let size = u64::try_from(stat.st_size).unwrap_or(0);
    if size > FOREIGN_FILE_BYTES_MAX {
        return Err(OpenError::TooLarge { size, max: FOREIGN_FILE_BYTES_MAX });
    }
    Ok(FileIdentity {
        device: stat.st_dev,
        inode: stat.st_ino,
        size,
        modified_ns: nanoseconds(stat.st_mtime, stat.st_mtime_nsec),
        changed_ns: nanoseconds(stat.st_ctime, stat.st_ctime_nsec),
    })
}

impl Host for ProcFs {
    fn pids(&self) -> io::Result<Vec<Pid>> {
        let mut pids = Vec::new();
        for entry in std::fs::read_dir(&self.root)? {
            let name = entry?.file_name();
            pids.extend(name.to_str().and_then(|name| name.parse().ok()).map(Pid));
        }
        Ok(pids)
    }

    fn status(&self, pid: Pid) -> io::Result<ProcessStatus> {
        let file = File::open(self.of_process(pid, "stat"))?;
        let stat = procfs::process::Stat::from_read(file.take(STAT_BYTES_MAX))
            .map_err(io::Error::other)?;
        let kernel_thread = stat.flags & KERNEL_THREAD != 0;
        Ok(ProcessStatus {
            parent: Pid(u32::try_from(stat.ppid).unwrap_or(0)),
            start_time_ns: stat.starttime.saturating_mul(1_000_000_000 / ticks_per_second()),
            comm: stat.comm,
            kernel_thread,
            threads: u32::try_from(stat.num_threads).unwrap_or(0),
            cpu_ticks: stat.utime.saturating_add(stat.stime),
            zombie: matches!(stat.state, 'Z' | 'X' | 'x'),
        })
    }

    fn living_thread(&self, pid: Pid) -> io::Result<Tid> {
        for entry in std::fs::read_dir(self.of_process(pid, "task"))? {
            let name = entry?.file_name();
            let tid = name.to_str().and_then(|name| name.parse().ok());
            if let Some(tid) = tid.filter(|&tid| tid != pid.0) {
                return Ok(Tid(tid));
            }
        }
        Err(io::ErrorKind::NotFound.into())
    }

    fn threads(&self, pid: Pid) -> io::Result<Vec<Tid>> {
        self.read_threads(pid)
    }

    fn asleep(&self, task: Task) -> io::Result<Option<Asleep>> {
        self.read_asleep(task)
    }

    fn inner_numbers(&self, pid: Pid, max: usize) -> io::Result<Vec<(Tid, u32)>> {
        self.read_inner_numbers(pid, max)
    }

    fn executable(&self, task: Task) -> io::Result<Vec<u8>> {
        self.link(task, "exe")
    }

    fn maps(&self, task: Task) -> io::Result<Maps> {
        let maps = Maps::read(BufReader::new(File::open(self.of_process(task.pid, "maps"))?))?;
        if maps.entries.is_empty() && task.tid.0 != task.pid.0 {
            return Maps::read(BufReader::new(File::open(self.of_thread(task, "maps"))?));
        }
        Ok(maps)
    }

    fn cgroup(&self, pid: Pid) -> io::Result<CgroupIdentity> {
        let mut text = Vec::new();
        File::open(self.of_process(pid, "cgroup"))?
            .take(CGROUP_BYTES_MAX)
            .read_to_end(&mut text)?;
        Ok(CgroupIdentity::parse(&String::from_utf8_lossy(&text)))
    }

    fn service_name(&self, task: Task) -> io::Result<Option<String>> {
        self.try_both(task, "environ", |path| {
            let mut environment = BufReader::new(File::open(path)?);
            if environment.fill_buf()?.is_empty() {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            service::name_in_environment(environment)
        })
    }

    fn open(&self, task: Task, mapping: &MapsEntry) -> Result<OpenedFile, OpenError> {
        // No leading zeros: the kernel compares the name with its own (`fs/proc/base.c`).
        let range = format!("map_files/{:x}-{:x}", mapping.start.0, mapping.end.0);
        let path_flags = OFlags::PATH | OFlags::CLOEXEC;
        let by_range =
            rustix::fs::open(self.of_process(task.pid, &range), path_flags, Mode::empty());
        if let Ok(found) = by_range {
            let other_path = other_path(&found, &mapping.path);
            let opened = OpenedFile { other_path, ..open_regular(&found)? };
            return self.with_name(opened, task, &mapping.path);
        }
        // By name: only what still has its name, and where the inode is known, this very one.
        let remark = path::has_remark(&mapping.path);
        let is = |found: &OpenedFile| match mapping.inode {
            0 => !remark,
            inode => found.identity.inode == inode,
        };
        if mapping.path.starts_with(b"/")
            && let Ok(found) = self.open_beneath(task, &mapping.path)
            && is(&found)
        {
            return Ok(found);
        }
        if self.executable(task)? != mapping.path {
            return Err(io::Error::from(io::ErrorKind::NotFound).into());
        }
        self.with_name(self.open_executable(task)?, task, &mapping.path)
    }

    fn open_path(&self, task: Task, path: &[u8]) -> Result<OpenedFile, OpenError> {
        self.open_beneath(task, path)
    }

    fn view(&self, task: Task) -> io::Result<Vec<u8>> {
        // The root too: in one mount namespace it may be another folder (chroot(2)).
        let mut view = self.link(task, "ns/mnt")?;
        view.push(0);
        view.extend(self.link(task, "root")?);
        Ok(view)
    }

    fn memory(&self, task: Task, start: AbsAddr, end: AbsAddr) -> io::Result<Vec<u8>> {
        self.try_both(task, "mem", |path| read_memory(path, start, end))
    }

    fn vdso(&self) -> io::Result<(u64, Vec<u8>)> {
        // Not beneath the host's `/proc`, where the agent may not be found.
        let maps = Maps::read(BufReader::new(File::open("/proc/self/maps")?))?;
        let vdso = maps.entries.iter().find(|entry| entry.path == b"[vdso]");
        let vdso = vdso.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
        let bytes = read_memory(Path::new("/proc/self/mem"), vdso.start, vdso.end)?;
        Ok((vdso.end.0.saturating_sub(vdso.start.0), bytes))
    }
}

/// A `status` file of a process or of a thread. Its name may be any bytes.
fn status_text(path: &Path) -> io::Result<String> {
    let mut text = Vec::new();
    File::open(path)?.take(PROCESS_STATUS_BYTES_MAX).read_to_end(&mut text)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

fn read_memory(path: &Path, start: AbsAddr, end: AbsAddr) -> io::Result<Vec<u8>> {
    let length = end.0.checked_sub(start.0).filter(|&length| length <= VDSO_BYTES_MAX);
    let length = length.and_then(|length| usize::try_from(length).ok());
    let length = length.ok_or_else(|| io::Error::from(io::ErrorKind::FileTooLarge))?;
    let mut bytes = vec![0; length];
    File::open(path)?.read_exact_at(&mut bytes, start.0)?;
    Ok(bytes)
}

/// `USER_HZ`: the unit of times in `/proc/PID/stat`.
fn ticks_per_second() -> u64 {
    rustix::param::clock_ticks_per_second().max(1)
}

#[cfg(test)]
mod tests;
