//! Is code of a module named that came after the agent: one that tries its algorithms while it is loaded.

use crate::report::{Report, Verdict};
use agent::aggregate::{Code, LocationIndex, NamedWindow};
use anyhow::{Context as _, Result, bail};
use std::collections::BTreeSet;
use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::path::Path;

/// The module, where the archive has it.
const FILE: &str = "/module.ko";
const NAME: &std::ffi::CStr = c"raid6_pq";
/// Each algorithm is tried for 16 ticks of the kernel's clock (lib/raid6/algos.c, `raid6_choose_gen`); which ones
/// there are depends on the processor, and an emulated one does not get every tick of the sampler.
const SAMPLES_MIN: usize = 3;

/// What it tries: `raid6_avx22_gen_syndrome` and the like. What calls them is gone once it is loaded, and has no name.
const TRIED: &str = "_syndrome";
/// What says whether the processor can (`valid` of lib/raid6/algos.c): a few instructions, but an emulator takes a
/// pending tick where it meets new code.
const ASKED: [&str; 2] = ["raid6_have_", "raid6_has_"];

/// True if there is a module to load.
pub(crate) fn is_there() -> bool {
    Path::new(FILE).exists()
}

/// Loads it.
pub(crate) fn load() -> Result<()> {
    let file = File::open(FILE).with_context(|| format!("open {FILE}"))?;
    let parameters = c"".as_ptr();
    // SAFETY: the descriptor is open and the parameters end with NUL; the kernel checks what it loads.
    let result = unsafe { libc::syscall(libc::SYS_finit_module, file.as_raw_fd(), parameters, 0) };
    if result != 0 {
        bail!("load {FILE}: {}", std::io::Error::last_os_error());
    }
    Ok(())
}

/// Unloads it. What was sampled in it has no names from here on.
fn unload() -> Result<()> {
    // SAFETY: the name ends with NUL; nobody uses the module.
    if unsafe { libc::syscall(libc::SYS_delete_module, NAME.as_ptr(), 0) } != 0 {
        bail!("unload {}: {}", NAME.to_string_lossy(), std::io::Error::last_os_error());
    }
    Ok(())
}

/// What was sampled in it has its names and the module's. Then it goes.
pub(crate) fn judge(report: Report, window: &NamedWindow) -> Result<()> {
    let check = "stacks_of_a_late_module";
    if !is_there() {
        report.line(check, Verdict::Absent, &[("missing", &FILE)]);
        return Ok(());
    }
    let mut functions = BTreeSet::new();
    let (mut samples, mut tried) = (0, 0);
    for process in window.processes.iter().filter(|it| it.process.pid.0 == std::process::id()) {
        for sample in &process.samples {
            if let Some(function) = function(window, window.stack(sample.stack)) {
                samples += sample.times.len();
                tried += if function.ends_with(TRIED) { sample.times.len() } else { 0 };
                functions.insert(function);
            }
        }
    }
    let is_asked = |name: &str| ASKED.iter().any(|prefix| name.starts_with(prefix));
    let right = functions.iter().all(|name| name.ends_with(TRIED) || is_asked(name));
    let functions = functions.into_iter().collect::<Vec<_>>().join(" ");
    report.line(
        check,
        Verdict::of(tried >= SAMPLES_MIN && right),
        &[("samples", &samples), ("functions", &functions)],
    );
    unload()
}

/// The module's function in which the stack is.
fn function<'a>(window: &'a NamedWindow, stack: &[LocationIndex]) -> Option<&'a str> {
    let mut locations = stack.iter().map(|index| window.location(*index));
    let location = locations.find(|location| {
        let module = location.module.as_deref().map(str::as_bytes);
        matches!(location.code, Code::Kernel { .. }) && module == Some(NAME.to_bytes())
    })?;
    location.lines.last().map(|line| line.function.as_str())
}
