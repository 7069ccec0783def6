//! A file system that stops answering, as a server of files does that is gone: one file, served over `/dev/fuse`
//! by a thread of the test until it is told to fall silent. The protocol is that of the kernel's
//! include/uapi/linux/fuse.h, as far as one file needs it.

use crate::need;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::FdFlags;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// Node of the folder; the file has the next one.
const ROOT: u64 = 1;
const FILE: u64 = 2;
/// Bytes of the head of a request and of an answer.
const REQUEST_HEAD: usize = 40;
const ANSWER_HEAD: usize = 16;
/// `st_mode` of a folder, and of a file that can be executed.
const FOLDER_MODE: u32 = 0o040_755;
const FILE_MODE: u32 = 0o100_755;
const NO_ENTRY: i32 = -2;
const NO_CALL: i32 = -38;

/// The mounted file system; unmounted with its value.
#[derive(Debug)]
pub struct SilentMount {
    folder: tempfile::TempDir,
    /// While it is open, the kernel waits for answers.
    device: Arc<File>,
    silent: Arc<AtomicBool>,
    server: Option<JoinHandle<()>>,
    name: String,
}

impl SilentMount {
    /// Mounts one with a copy of `file` in it; `None` after saying why.
    ///
    /// # Panics
    /// If the file cannot be read, or there is no temporary folder.
    #[must_use]
    pub fn with(file: &Path) -> Option<Self> {
        let device = File::options().read(true).write(true).open("/dev/fuse");
        let Ok(device) = device else {
            need::skip("no /dev/fuse");
            return None;
        };
        let folder = tempfile::tempdir().expect("a temporary folder");
        // `mount` gets it under the same number.
        rustix::io::fcntl_setfd(&device, FdFlags::empty()).expect("a flag of a descriptor");
        let options =
            format!("fd={},rootmode=40000,user_id=0,group_id=0,allow_other", device.as_raw_fd());
        let mut mount = Command::new("mount");
        mount.args(["-i", "-t", "fuse", "-o", &options, "silent"]).arg(folder.path());
        let mounted = mount.status();
        rustix::io::fcntl_setfd(&device, FdFlags::CLOEXEC).expect("a flag of a descriptor");
        if !mounted.is_ok_and(|status| status.success()) {
            need::skip("FUSE cannot be mounted");
            return None;
        }
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let bytes = std::fs::read(file).expect("the file to serve");
        let (device, silent) = (Arc::new(device), Arc::new(AtomicBool::new(false)));
        let server = Server { name: name.clone(), bytes };
        let (serve, told) = (Arc::clone(&device), Arc::clone(&silent));
        let server = Some(std::thread::spawn(move || server.run(&serve, &told)));
        Some(Self { folder, device, silent, server, name })
    }

    /// The file.
    #[must_use]
    pub fn file(&self) -> PathBuf {
        self.folder.path().join(&self.name)
    }

    /// From now on nobody answers.
    ///
    /// # Panics
    /// If the thread that did has panicked.
    pub fn fall_silent(&mut self) {
        self.silent.store(true, Ordering::Release);
        if let Some(server) = self.server.take() {
            server.join().expect("the server ends");
        }
    }
}

impl Drop for SilentMount {
    fn drop(&mut self) {
        // Whoever waits gets an error.
        let unmounted = Command::new("umount").args(["-f", "-l"]).arg(self.folder.path()).status();
        assert!(
            unmounted.is_ok_and(|status| status.success()) || std::thread::panicking(),
            "{} stays mounted with {:?}",
            self.folder.path().display(),
            self.device
        );
    }
}

struct Server {
    name: String,
    bytes: Vec<u8>,
}

impl Server {
    /// Answers until it is told to fall silent, or the file system is gone. A request that was taken is answered:
    /// who waits for one that nobody has taken can be killed, who waits for one that was taken cannot (kernel
    /// fs/fuse/dev.c, `request_wait_answer`).
    fn run(&self, mut device: &File, silent: &AtomicBool) {
        let mut request = vec![0; 64 << 10];
        loop {
            let moment = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
            let mut asked = [PollFd::new(device, PollFlags::IN)];
            let waited = poll(&mut asked, Some(&moment));
            if silent.load(Ordering::Acquire) || waited.is_err() {
                return;
            }
            if matches!(waited, Ok(0)) {
                continue;
            }
            let Ok(length) = device.read(&mut request) else { return };
            let Some(answer) = request.get(..length).and_then(|request| self.answer(request))
            else {
                continue;
            };
            if device.write_all(&answer).is_err() {
                return;
            }
        }
    }

    /// Nothing for what wants no answer.
    fn answer(&self, request: &[u8]) -> Option<Vec<u8>> {
        let word = |at: usize| Some(u32::from_le_bytes(*request.get(at..)?.first_chunk()?));
        let long = |at: usize| Some(u64::from_le_bytes(*request.get(at..)?.first_chunk()?));
        let (unique, node) = (long(8)?, long(16)?);
        let body = request.get(REQUEST_HEAD..)?;
        let made = match word(4)? {
            2 | 36 | 42 => return None, // FORGET, INTERRUPT, BATCH_FORGET
            1 => {
                let asked = body.split(|&byte| byte == 0).next()?;
                if asked == self.name.as_bytes() { Ok(self.entry()) } else { Err(NO_ENTRY) }
            }
            3 => Ok([&[0; 16][..], &self.attributes(node)].concat()),
            14 | 27 => Ok(vec![0; 16]), // OPEN, OPENDIR
            15 => {
                let from = usize::try_from(long(REQUEST_HEAD + 8)?).ok()?;
                let size = usize::try_from(word(REQUEST_HEAD + 16)?).ok()?;
                let rest = self.bytes.get(from..).unwrap_or_default();
                Ok(rest.get(..size).unwrap_or(rest).to_vec())
            }
            18 | 25 | 29 => Ok(Vec::new()), // RELEASE, FLUSH, RELEASEDIR
            26 => Ok(initialized(word(REQUEST_HEAD + 8)?)),
            28 => Ok(Vec::new()), // READDIR: nothing to see
            _ => Err(NO_CALL),
        };
        let (error, body) = match made {
            Ok(body) => (0_i32, body),
            Err(error) => (error, Vec::new()),
        };
        let length = u32::try_from(ANSWER_HEAD + body.len()).ok()?;
        let head = [&length.to_le_bytes()[..], &error.to_le_bytes(), &unique.to_le_bytes()];
        Some([head.concat(), body].concat())
    }

    /// What a name stands for, to be asked again each time.
    fn entry(&self) -> Vec<u8> {
        let mut entry = FILE.to_le_bytes().to_vec();
        entry.resize(40, 0);
        entry.extend(self.attributes(FILE));
        entry
    }

    /// `struct fuse_attr`.
    fn attributes(&self, node: u64) -> Vec<u8> {
        let size = if node == ROOT { 0 } else { self.bytes.len() as u64 };
        let mode = if node == ROOT { FOLDER_MODE } else { FILE_MODE };
        let mut bytes = Vec::new();
        for long in [node, size, size.div_ceil(512), 0, 0, 0] {
            bytes.extend(long.to_le_bytes());
        }
        for word in [0, 0, 0, mode, 1, 0, 0, 0, 4096, 0] {
            bytes.extend(word.to_le_bytes());
        }
        bytes
    }
}

/// The answer to the first request: version 7.31, reads ahead as the kernel likes, writes of a page.
fn initialized(readahead: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    for word in [7, 31, readahead, 0] {
        bytes.extend(word.to_le_bytes());
    }
    for half in [12_u16, 9] {
        bytes.extend(half.to_le_bytes()); // requests in the background
    }
    for word in [4096_u32, 1] {
        bytes.extend(word.to_le_bytes());
    }
    bytes.resize(64, 0);
    bytes
}
