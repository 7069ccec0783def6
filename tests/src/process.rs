//! A child process with its output in a file, ended with its value.

use crate::eventually;
use rustix::process::{Pid, Signal, kill_process};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// A running program under test.
#[derive(Debug)]
pub struct Running {
    child: Child,
    name: String,
    folder: tempfile::TempDir,
}

impl Running {
    /// Starts the command; standard output and standard error go to files of their own.
    ///
    /// # Panics
    /// If it cannot be started.
    #[must_use]
    pub fn start(mut command: Command) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file =
            |name: &str| std::fs::File::create(folder.path().join(name)).expect("a new file");
        command.stdin(Stdio::null()).stdout(file("stdout")).stderr(file("stderr"));
        let name = Path::new(command.get_program()).file_name().unwrap_or_default();
        let name = name.to_string_lossy().into_owned();
        let child = command.spawn().unwrap_or_else(|error| panic!("start {name}: {error}"));
        Self { child, name, folder }
    }

    /// Process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Where standard output goes.
    #[must_use]
    pub fn stdout_file(&self) -> PathBuf {
        self.folder.path().join("stdout")
    }

    /// What it printed so far.
    #[must_use]
    pub fn stdout(&self) -> String {
        read(&self.stdout_file())
    }

    /// What it printed to standard error so far.
    #[must_use]
    pub fn stderr(&self) -> String {
        read(&self.folder.path().join("stderr"))
    }

    /// Waits until standard output or standard error holds the text.
    ///
    /// # Panics
    /// After `limit`, or if the process ends before.
    pub fn wait_for(&mut self, text: &str, limit: Duration) {
        eventually(&format!("{} says {text:?}", self.name), limit, || {
            let said = self.stdout() + &self.stderr();
            if said.contains(text) {
                return Ok(());
            }
            let ended = self.child.try_wait().expect("a child can be waited for");
            assert!(ended.is_none(), "{} ended with {ended:?} and said:\n{said}", self.name);
            Err(format!("it said:\n{said}"))
        });
    }

    /// True while it runs.
    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("a child can be waited for").is_none()
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        // A process that is gone already is no error of the test.
        kill_process(pid.expect("a child has a pid"), signal).unwrap_or_default();
    }

    /// True if it ends before the limit.
    pub fn ends_within(&mut self, limit: Duration) -> bool {
        let start = Instant::now();
        while self.is_running() {
            if start.elapsed() > limit {
                return false;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        true
    }

    /// Waits for the end.
    ///
    /// # Panics
    /// After `limit`.
    pub fn wait(&mut self, limit: Duration) -> ExitStatus {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("a child can be waited for") {
                return status;
            }
            assert!(
                start.elapsed() < limit,
                "{} did not end within {limit:?} and said:\n{}{}",
                self.name,
                self.stdout(),
                self.stderr()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits for the end, wants success and gives standard output.
    ///
    /// # Panics
    /// After `limit`, or if it fails.
    pub fn finish(mut self, limit: Duration) -> String {
        let status = self.wait(limit);
        assert!(status.success(), "{} ended with {status}: {}", self.name, self.stderr());
        self.stdout()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.is_running() {
            self.signal(Signal::TERM);
            let start = Instant::now();
            while self.is_running() && start.elapsed() < Duration::from_secs(5) {
                std::thread::sleep(Duration::from_millis(20));
            }
            self.signal(Signal::KILL);
            self.child.wait().map(|_| ()).unwrap_or_default();
        }
        if std::thread::panicking() {
            let (stdout, stderr) = (self.stdout(), self.stderr());
            eprintln!("---- {} said ----\n{}{}", self.name, tail(&stdout), tail(&stderr));
        }
    }
}

/// The last lines, enough to see why.
fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(40)..].iter().map(|line| format!("{line}\n")).collect()
}

fn read(path: &Path) -> String {
    let mut bytes = Vec::new();
    if let Ok(mut file) = std::fs::File::open(path) {
        file.read_to_end(&mut bytes).unwrap_or_default();
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
