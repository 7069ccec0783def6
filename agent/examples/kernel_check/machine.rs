//! The virtual machine around the checks: what the first process must mount, a clock that nothing outlives,
//! and its end. Run by anybody else, it touches nothing.

use crate::report::{Report, Verdict};
use anyhow::{Context as _, Result, bail};
use std::ffi::CString;
use std::time::Duration;

/// An emulated machine beside another one takes a sixth of this.
const PATIENCE: Duration = Duration::from_secs(150);

/// What is mounted, and where.
const MOUNTS: [(&str, &str); 4] =
    [("proc", "/proc"), ("sysfs", "/sys"), ("devtmpfs", "/dev"), ("tmpfs", "/tmp")];

/// Process 1 of a virtual machine, or nothing of the kind.
#[derive(Debug)]
pub(crate) struct Guest {
    is_first: bool,
}

impl Guest {
    /// Mounts what the agent needs, and sees to it that the machine ends.
    pub(crate) fn enter() -> Result<Self> {
        let is_first = std::process::id() == 1;
        if is_first {
            MOUNTS.iter().try_for_each(|(kind, place)| mount(kind, place))?;
            std::thread::Builder::new().name("end".to_owned()).spawn(|| {
                std::thread::sleep(PATIENCE);
                let error = format!("not done after {} s", PATIENCE.as_secs());
                Report::OF_KERNEL.line("run", Verdict::Failed, &[("error", &error)]);
                power_off();
            })?;
        }
        Ok(Self { is_first })
    }

    /// Ends the machine.
    pub(crate) fn leave(self) -> Result<()> {
        if self.is_first {
            power_off();
            bail!("the machine goes on");
        }
        Ok(())
    }
}

fn mount(kind: &str, place: &str) -> Result<()> {
    std::fs::create_dir_all(place).with_context(|| format!("create {place}"))?;
    let kind_c = CString::new(kind)?;
    let place_c = CString::new(place)?;
    let [kind_c, place_c] = [kind_c.as_ptr(), place_c.as_ptr()];
    // SAFETY: the strings end with NUL and outlive the call; these file systems take no data.
    let result = unsafe { libc::mount(kind_c, place_c, kind_c, 0, std::ptr::null()) };
    let error = std::io::Error::last_os_error();
    // Some kernels mount devtmpfs themselves.
    if result != 0 && error.raw_os_error() != Some(libc::EBUSY) {
        return Err(error).with_context(|| format!("mount {kind} on {place}"));
    }
    Ok(())
}

fn power_off() {
    // SAFETY: no disk has unwritten data; the machine may end at any moment.
    unsafe { libc::reboot(libc::RB_POWER_OFF) };
}
