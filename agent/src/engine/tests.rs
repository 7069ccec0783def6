//! The engine on this machine's kernel: needs root and the BPF programs; says why where it is skipped.

use super::{
    Control, EngineCounts, EngineOptions, LibcProbing, NO_LINKS, OpenFiles, SHADOW_STACKS,
    SealedWindow, WindowSink, run,
};
use crate::address::ElfAddr;
use crate::aggregate::{FoldedSample, NamedWindow, Namer};
use crate::elf::{ForeignFiles as _, LocalFiles};
use crate::normalize::{KernelRegion, MappedFile, ProcessKey};
use crate::symbolize::kernel::KernelSymbols;
use crate::symbolize::{KernelNames as _, KernelSymbol, UnnamedReason};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Keeps every window, named.
pub(super) struct Keep {
    pub(super) windows: Vec<NamedWindow>,
    kernel: KernelSymbols,
    local: LocalFiles,
}

impl Keep {
    pub(super) fn new() -> Self {
        let kernel = KernelSymbols::read(Path::new("/proc"), Arc::default());
        Self { windows: Vec::new(), kernel, local: LocalFiles::new() }
    }
}

struct Names<'a> {
    kernel: &'a mut KernelSymbols,
    local: &'a LocalFiles,
    files: &'a Arc<dyn OpenFiles>,
}

impl Namer for Names<'_> {
    fn native(&mut self, file: &Arc<MappedFile>, addresses: &[ElfAddr]) -> Vec<crate::elf::Names> {
        match self.files.open(file.id) {
            Some(descriptor) => self.local.names(file.id, &descriptor, addresses),
            None => vec![Err(UnnamedReason::FileGone); addresses.len()],
        }
    }

    fn kernel(
        &mut self,
        address: crate::address::AbsAddr,
        region: KernelRegion,
    ) -> Result<KernelSymbol, UnnamedReason> {
        self.kernel.kernel(address, region)
    }

    fn anonymous(
        &mut self,
        _process: ProcessKey,
        addresses: &[crate::address::AbsAddr],
    ) -> Vec<crate::elf::Names> {
        vec![Err(UnnamedReason::AnonymousCode); addresses.len()]
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
pub(super) fn can_sample() -> bool {
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

/// A C program that burns 32 ms of CPU and ends, at a path of its own.
fn short_program(folder: &Path) -> Option<std::path::PathBuf> {
    let source = folder.join("short.c");
    let program = folder.join("short-lived");
    std::fs::write(
        &source,
        "#include <time.h>\n\
         static volatile unsigned long sink;\n\
         __attribute__((noinline)) static void burn(void) { for (int i = 0; i < 20000; i++) sink += i; }\n\
         int main(void) { struct timespec t;\n\
         do { burn(); clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t); }\n\
         while (t.tv_sec == 0 && t.tv_nsec < 32000000); return 0; }\n",
    )
    .unwrap();
    let built = std::process::Command::new("cc")
        .args(["-O2", "-fomit-frame-pointer", "-o"])
        .args([&program, &source])
        .status();
    match built {
        Ok(status) if status.success() => Some(program),
        _ => {
            eprintln!("skipped: no C compiler");
            None
        }
    }
}

#[test]
fn short_processes_arrive_with_their_path() {
    if !can_sample() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let Some(program) = short_program(folder.path()) else { return };
    let options = EngineOptions {
        frequency_hz: 997,
        window: Duration::from_secs(60),
        ..EngineOptions::default()
    };
    let (mut keep, started) = (Keep::new(), std::time::Instant::now());
    let (cpu_ns, _) = while_sampling(&options, &mut keep, || {
        let spawn = || std::process::Command::new(&program).spawn().unwrap();
        (0..300).map(|_| cpu_of(spawn())).sum::<u64>()
    });
    let expected = cpu_ns / (1_000_000_000 / 997);
    let (mut arrived, mut whole, mut instances) = (0, 0, 0);
    for window in &keep.windows {
        let path = program.to_str().unwrap();
        for process in window.processes.iter().filter(|p| p.process.executable_path == path) {
            instances += 1;
            assert_eq!(process.process.executable_name, "short-lived");
            for sample in &process.samples {
                arrived += sample.times.len() as u64;
                let root = window.stack(sample.stack).last();
                let root = root.and_then(|&index| window.location(index).lines.last());
                whole += sample.times.len() as u64
                    * u64::from(root.is_some_and(|line| line.function == "_start"));
            }
        }
    }
    eprintln!(
        "{arrived} of {expected} samples of {instances} processes, {whole} to the root, in {:?}",
        started.elapsed()
    );
    for window in &keep.windows {
        for process in &window.processes {
            let named = |sample: &FoldedSample| &*sample.thread_name == "short-lived";
            let other = process.process.executable_path != program.to_str().unwrap();
            if other && process.samples.iter().any(named) {
                eprintln!("samples of the program under another path: {process:?}");
            }
        }
    }
    assert!(instances >= 299, "{instances} of 300 processes");
    assert!(arrived * 100 >= expected * 95, "{arrived} of {expected} samples");
    assert!(arrived * 100 <= expected * 110, "{arrived} of {expected} samples");
}

/// Waits for a child and answers the CPU time it used, nanoseconds.
fn cpu_of(child: std::process::Child) -> u64 {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    let mut status = 0;
    let pid = libc::pid_t::try_from(child.id()).unwrap();
    // SAFETY: both pointers are to locals of the right types; the child is this process's own and is
    // waited for nowhere else.
    let waited = unsafe { libc::wait4(pid, &raw mut status, 0, usage.as_mut_ptr()) };
    assert_eq!(waited, pid);
    // SAFETY: zeroed above and filled by wait4, which succeeded.
    let usage = unsafe { usage.assume_init() };
    let nanoseconds = |time: libc::timeval| {
        u64::try_from(time.tv_sec * 1_000_000_000 + time.tv_usec * 1000).unwrap()
    };
    nanoseconds(usage.ru_utime) + nanoseconds(usage.ru_stime)
}

/// Runs the engine over the whole host while `work` runs; answers its result and the counts at the end.
pub(super) fn while_sampling<T: Send>(
    options: &EngineOptions,
    keep: &mut dyn WindowSink,
    work: impl FnOnce() -> T + Send,
) -> (T, EngineCounts) {
    let control = Control::default();
    let done = std::thread::scope(|scope| {
        let worker = scope.spawn(|| {
            assert!(control.wait_sampling(Duration::from_secs(60)), "sampling never began");
            let done = work();
            std::thread::sleep(Duration::from_millis(300));
            control.stop();
            done
        });
        run(options, keep, &control).unwrap();
        worker.join().unwrap()
    });
    (done, control.counts())
}

#[test]
fn zombies_are_nobody() {
    const ZOMBIES: u64 = 1000;
    if !can_sample() {
        return;
    }
    let mut dead: Vec<std::process::Child> =
        (0..ZOMBIES).map(|_| std::process::Command::new("/bin/true").spawn().unwrap()).collect();
    let end = std::time::Instant::now() + Duration::from_secs(20);
    let is_zombie = |pid: u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('Z'))
    };
    while !dead.iter().all(|child| is_zombie(child.id())) {
        assert!(std::time::Instant::now() < end, "they do not end");
        std::thread::sleep(Duration::from_millis(10));
    }
    let mut keep = Keep::new();
    let options = EngineOptions { window: Duration::from_secs(1), ..EngineOptions::default() };
    let work = || std::thread::sleep(Duration::from_millis(1500));
    let ((), counts) = while_sampling(&options, &mut keep, work);
    let listed = listed_processes();
    for child in &mut dead {
        child.wait().unwrap();
    }
    eprintln!("{listed} processes are listed, {} known", counts.processes.known);
    // Others start processes on this machine too; half as many zombies would be too many.
    assert!(counts.processes.known + ZOMBIES < listed + ZOMBIES / 2, "{counts:?}");
    assert!(counts.processes.known > 10, "{counts:?}");
}

/// Processes that `/proc` lists, zombies too.
fn listed_processes() -> u64 {
    let entries = std::fs::read_dir("/proc").unwrap();
    let listed = entries
        .filter_map(|entry| entry.unwrap().file_name().to_str()?.parse::<u32>().ok())
        .count();
    listed as u64
}

#[test]
fn five_thousand_short_processes_leave_nothing_behind() {
    if !can_sample() {
        return;
    }
    let mut keep = Keep::new();
    let options = EngineOptions { window: Duration::from_secs(2), ..EngineOptions::default() };
    let ((), counts) = while_sampling(&options, &mut keep, || {
        for _ in 0..5000 {
            let status = std::process::Command::new("/bin/true").status().unwrap();
            assert!(status.success());
        }
        // The grace of the last ones.
        std::thread::sleep(Duration::from_secs(3));
    });
    let living = listed_processes();
    eprintln!("{living} processes live: {counts:?}");
    // Others start processes on this machine too.
    assert!(counts.processes.known < living + 500, "{counts:?}");
    assert_eq!(counts.processes.refused, 0);
    assert!(counts.files.open <= 512, "{counts:?}");
}

#[test]
fn c_libraries_are_probed_by_default_where_there_are_links_and_no_shadow_stacks() {
    use LibcProbing::{Always, Never, WhereLinked};
    for (probing, links, safe, refusal) in [
        (Never, false, false, None),
        (WhereLinked, true, true, None),
        (WhereLinked, false, true, Some(NO_LINKS)),
        (WhereLinked, true, false, Some(SHADOW_STACKS)),
        (Always, false, true, None),
        (Always, true, false, Some(SHADOW_STACKS)),
    ] {
        assert_eq!(probing.refusal(links, safe), refusal, "{probing:?}, {links}, {safe}");
    }
}
