//! One virtual machine: an emulated processor, because a virtual one (KVM) is not everywhere to be had and
//! where it is may not bear these kernels. It ends by itself, or is ended.

use anyhow::{Context as _, Result};
use std::io::Read as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Beyond what the guest allows itself: a kernel that never comes up.
const PATIENCE: Duration = Duration::from_secs(200);
/// What is kept of the console.
const CONSOLE_BYTES_MAX: u64 = 1 << 20;
/// BPF maps, targets and an archive that is unpacked into memory.
const MEMORY_MIB: u32 = 768;

/// What came out of a machine.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) console: String,
    pub(crate) elapsed: Duration,
    /// It had to be ended.
    pub(crate) timed_out: bool,
}

impl Run {
    /// The kernel gave up.
    pub(crate) fn panicked(&self) -> bool {
        self.console.contains("Kernel panic")
    }
}

/// Boots a kernel with an archive as its file system, and waits for its end.
pub(crate) fn boot(qemu: &Path, image: &Path, initramfs: &Path) -> Result<Run> {
    let start = Instant::now();
    let mut child = Command::new(qemu)
        .args(["-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2"])
        .args(["-m", &MEMORY_MIB.to_string()])
        .args(["-nodefaults", "-no-user-config", "-no-reboot"])
        .args(["-display", "none", "-serial", "stdio"])
        .arg("-kernel")
        .arg(image)
        .arg("-initrd")
        .arg(initramfs)
        // A panic resets the machine at once, and that ends it.
        .args(["-append", "console=ttyS0 quiet loglevel=1 panic=-1 rdinit=/init"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .with_context(|| format!("start {}", qemu.display()))?;
    let output = child.stdout.take().context("standard output was asked for")?;
    let reader = std::thread::spawn(move || {
        let mut console = Vec::new();
        // What cannot be read is missing in what the guest was to say, and that is a failure.
        let end = output.take(CONSOLE_BYTES_MAX).read_to_end(&mut console);
        (console, end.err())
    });
    let mut timed_out = false;
    while child.try_wait()?.is_none() {
        if start.elapsed() > PATIENCE {
            timed_out = true;
            child.kill()?;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    let (console, _) = reader.join().map_err(|_panic| anyhow::anyhow!("the reader panicked"))?;
    let console = String::from_utf8_lossy(&console).replace('\r', "");
    Ok(Run { console, elapsed: start.elapsed(), timed_out })
}
