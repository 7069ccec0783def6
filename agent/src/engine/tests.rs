//! The engine on this machine's kernel: needs root and the BPF programs; says why where it is skipped.

use super::{Control, EngineOptions, OpenFiles, SealedWindow, WindowSink, run};
use crate::address::ElfAddr;
use crate::aggregate::{NamedWindow, Namer};
use crate::elf::{ForeignFiles as _, LocalFiles, SourceLine};
use crate::normalize::MappedFile;
use crate::symbolize::kernel::KernelSymbols;
use crate::symbolize::{KernelNames as _, KernelSymbol};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Keeps every window, named.
struct Keep {
    windows: Vec<NamedWindow>,
    kernel: KernelSymbols,
    local: LocalFiles,
}

impl Keep {
    fn new() -> Self {
        let kernel = KernelSymbols::read(Path::new("/proc"));
        Self { windows: Vec::new(), kernel, local: LocalFiles::new() }
    }
}

struct Names<'a> {
    kernel: &'a mut KernelSymbols,
    local: &'a LocalFiles,
    files: &'a Arc<dyn OpenFiles>,
}

impl Namer for Names<'_> {
    fn native(&mut self, file: &Arc<MappedFile>, addresses: &[ElfAddr]) -> Vec<Vec<SourceLine>> {
        match self.files.open(file.id) {
            Some(descriptor) => self.local.names(file.id, &descriptor, addresses),
            None => vec![Vec::new(); addresses.len()],
        }
    }

    fn kernel(&mut self, address: crate::address::AbsAddr) -> Option<KernelSymbol> {
        self.kernel.kernel(address)
    }
}

impl WindowSink for Keep {
    fn window(&mut self, sealed: SealedWindow, files: &Arc<dyn OpenFiles>) {
        let SealedWindow { window, end, wall, ledger, .. } = sealed;
        let mut names = Names { kernel: &mut self.kernel, local: &self.local, files };
        self.windows.push(window.into_named(end, wall, ledger, &mut names));
    }
}

/// True if this test can sample; else the reason is printed.
fn can_sample() -> bool {
    let reason = if !rustix::process::geteuid().is_root() {
        "not root"
    } else if cfg!(not(bpf_object)) {
        "built without BPF programs"
    } else {
        return true;
    };
    eprintln!("skipped: {reason}");
    false
}

/// Every stack of a process, root first, with its count.
fn stacks(window: &NamedWindow, executable: &str) -> Vec<(String, usize)> {
    let mut lines = Vec::new();
    let wanted = |name: &str| name == executable;
    for process in window.processes.iter().filter(|p| wanted(&p.process.executable_name)) {
        for sample in &process.samples {
            let frames = window.stack(sample.stack).iter().rev().map(|&index| {
                let location = window.location(index);
                match location.lines.last() {
                    Some(line) => line.function.clone(),
                    None => location.stand_in(&window.files).map_or_else(|| "?".into(), Into::into),
                }
            });
            lines.push((frames.collect::<Vec<_>>().join(";"), sample.times.len()));
        }
    }
    lines
}

#[test]
fn a_window_of_this_host() {
    if !can_sample() {
        return;
    }
    let mut busy =
        std::process::Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
    let options = EngineOptions {
        frequency_hz: 199,
        duration: Some(Duration::from_secs(2)),
        window: Duration::from_secs(1),
        ..EngineOptions::default()
    };
    let mut keep = Keep::new();
    let result = run(&options, &mut keep, &Control::default());
    busy.kill().unwrap();
    busy.wait().unwrap();
    result.unwrap();
    let windows = keep.windows;
    assert!(windows.len() >= 2, "{} windows", windows.len());
    let mut total = 0;
    for window in &windows {
        eprintln!("{:?}", window.ledger);
        for (stack, count) in stacks(window, "dash").iter().take(5) {
            eprintln!("{count} {stack}");
        }
        total += stacks(window, "dash").iter().map(|(_, count)| count).sum::<usize>();
    }
    // One process that always runs, for two seconds, on a machine that others use too.
    assert!(total > 40, "{total} samples of the busy shell");
}
