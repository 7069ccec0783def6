//! What many processes and new files cost, on this machine's kernel: needs root and the BPF programs. Each
//! prints its figures; what is asserted leaves room for a machine that others use too.

use super::tests::{can_sample, while_sampling};
use super::{EngineOptions, OpenFiles, SealedWindow, WindowSink, go_first};
use crate::limits::ENGINE_NICE;
use crate::process::publish::{WAIT_BUCKETS_NS, WaitCounts};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// CPU time of this thread, nanoseconds: the engine runs on the test's own.
fn thread_cpu_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    u64::try_from(time.tv_sec * 1_000_000_000 + time.tv_nsec).unwrap()
}

/// Takes windows and lets them go: naming them here would hold up the engine.
struct Nobody;

impl WindowSink for Nobody {
    fn window(&mut self, _sealed: SealedWindow, _files: &Arc<dyn OpenFiles>) {}
}

/// How many runnable threads share one CPU now, at least 1.
fn load() -> f64 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap();
    let load: f64 = text.split(' ').next().unwrap().parse().unwrap();
    let cpus = std::thread::available_parallelism().unwrap().get();
    (load / f64::from(u32::try_from(cpus).unwrap())).max(1.0)
}

fn options() -> EngineOptions {
    EngineOptions { window: Duration::from_secs(2), ..EngineOptions::default() }
}

/// A program of our own at a path of its own; `None` after saying why.
fn compiled(folder: &Path, name: &str, source: &str, flags: &[&str]) -> Option<PathBuf> {
    let (file, program) = (folder.join(format!("{name}.c")), folder.join(name));
    std::fs::write(&file, source).unwrap();
    let built = Command::new("cc").args(["-O1", "-o"]).args([&program, &file]).args(flags).status();
    match built {
        Ok(status) if status.success() => Some(program),
        _ => {
            eprintln!("skipped: no C compiler");
            None
        }
    }
}

/// A copy that nobody has seen: another file, with other bytes.
fn copy(of: &Path, folder: &Path, number: usize) -> PathBuf {
    let name = of.file_name().unwrap().to_string_lossy();
    let path = folder.join(format!("{name}-{number}"));
    let mut bytes = std::fs::read(of).unwrap();
    bytes.extend_from_slice(format!("never seen {number} {:?}", Instant::now()).as_bytes());
    std::fs::write(&path, bytes).unwrap();
    std::fs::set_permissions(&path, std::fs::metadata(of).unwrap().permissions()).unwrap();
    path
}

/// How busy the machine was meanwhile, and what that did to threads of the engine's priority: a thread that does nothing
/// else finds out. It meets the engine's own threads, too.
struct Probe {
    stop: Arc<AtomicBool>,
    thread: std::thread::JoinHandle<Vec<(f64, Duration)>>,
    ticks: [u64; 2],
}

/// What a probe found.
struct Crowd {
    /// CPU time that nobody used, of all.
    idle: f64,
    /// How many times as long work took as its CPU time, and how late a thread woke: 99 of 100 times no more.
    stretch: f64,
    delay: Duration,
}

impl Crowd {
    /// What is right where a goal holds for a machine that does nothing else.
    fn allows(&self, goal: Duration) -> Duration {
        if self.idle >= IDLE_MIN {
            return goal;
        }
        goal.mul_f64(self.stretch) + self.delay * THREADS_ON_THE_WAY
    }
}

/// The programs of these tests and the engine leave half of two CPUs alone. Where so much is left nobody else took any.
const IDLE_MIN: f64 = 0.4;

/// Ticks of all CPUs (proc(5), `/proc/stat`): those that were idle, or at work that makes way; all.
fn ticks() -> [u64; 2] {
    let text = std::fs::read_to_string("/proc/stat").unwrap();
    let numbers = text.lines().next().unwrap().split_whitespace().skip(1).take(8);
    let numbers: Vec<u64> = numbers.map(|number| number.parse().unwrap()).collect();
    let [_user, nice, _system, idle, waiting_for_disks, ..] = numbers[..] else { panic!("{text}") };
    [nice + idle + waiting_for_disks, numbers.iter().sum()]
}

impl Probe {
    /// CPU time of one piece of work, and what lies between two.
    const WORK: Duration = Duration::from_millis(2);
    const REST: Duration = Duration::from_millis(30);

    fn start() -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let until = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            go_first(ENGINE_NICE);
            let mut found = Vec::new();
            while !until.load(Ordering::Relaxed) {
                let asleep = Instant::now();
                std::thread::sleep(Self::REST);
                let late = asleep.elapsed().saturating_sub(Self::REST);
                let (begin, begin_ns) = (Instant::now(), thread_cpu_ns());
                while thread_cpu_ns() - begin_ns < u64::try_from(Self::WORK.as_nanos()).unwrap() {}
                found.push((begin.elapsed().as_secs_f64() / Self::WORK.as_secs_f64(), late));
            }
            found
        });
        Self { stop, thread, ticks: ticks() }
    }

    fn stop(self) -> Crowd {
        self.stop.store(true, Ordering::Relaxed);
        let found = self.thread.join().unwrap();
        let [idle, all] = ticks();
        let idle = as_f64(idle - self.ticks[0]) / as_f64((all - self.ticks[1]).max(1));
        let (mut stretches, mut delays): (Vec<f64>, Vec<Duration>) = found.into_iter().unzip();
        stretches.sort_by(f64::total_cmp);
        delays.sort_unstable();
        let at = stretches.len() * 99 / 100;
        let stretch = stretches.get(at).copied().unwrap_or(1.0).max(1.0);
        Crowd { idle, stretch, delay: delays.get(at).copied().unwrap_or_default() }
    }
}

/// Threads that a table goes through: each may wake late.
const THREADS_ON_THE_WAY: u32 = 4;
/// How often a test may fail although what it says is true.
const FALSE_ALARMS: f64 = 1e-6;

/// The least number of late ones among `count` that shows, but for a false alarm, that more than one in a hundred is
/// late.
fn too_many_late(count: u64) -> u64 {
    let (mut term, mut tails) = (0.99_f64.powf(as_f64(count)), vec![1.0]);
    for late in 0..count {
        tails.push(tails.last().unwrap() - term);
        term *= as_f64(count - late) / as_f64(late + 1) * 0.01 / 0.99;
    }
    let at = tails.iter().position(|tail| *tail < FALSE_ALARMS).unwrap_or(tails.len());
    u64::try_from(at).unwrap()
}

fn as_f64(count: u64) -> f64 {
    f64::from(u32::try_from(count).unwrap())
}

#[test]
fn few_late_ones_show_nothing() {
    // Of 150, 1.5 are late on average: 10 or more in 3 of a million tests (Poisson: 3.9), 11 in 0.4.
    for (count, late) in [(1, 2), (10, 5), (150, 11), (1000, 29)] {
        assert_eq!(too_many_late(count), late, "of {count}");
    }
}

/// Fails if more than one wait in a hundred is longer than the goal allows on this machine, now.
#[track_caller]
fn check_waits(what: &str, waits: &WaitCounts, goal: Duration, probe: Probe) {
    let crowd = probe.stop();
    let ms = |ns: u64| ns / 1_000_000;
    // The goal is that of an optimised agent. With the checks on a table takes three times as long.
    let checked = if cfg!(debug_assertions) { 3.0 } else { 1.0 };
    let allowed = crowd.allows(goal.mul_f64(checked));
    // A histogram knows no more than its bounds.
    let allowed_ns = u64::try_from(allowed.as_nanos()).unwrap();
    let within = WAIT_BUCKETS_NS.partition_point(|&bound| bound < allowed_ns);
    let late: u64 = waits.buckets.iter().skip(within + 1).sum();
    let late_max = too_many_late(waits.count);
    eprintln!(
        "{what}: {} waits, mean {} ms, p99 {} ms, longest {} ms, {} overdue, {} abandoned; {late} longer than {} ms, {late_max} show something; {:.2} idle, work took {:.1} times its CPU time, threads woke {:?} late",
        waits.count,
        ms(waits.sum_ns.checked_div(waits.count).unwrap_or(0)),
        ms(waits.p99_ns()),
        ms(waits.max_ns),
        waits.overdue,
        waits.abandoned,
        ms(WAIT_BUCKETS_NS.get(within).copied().unwrap_or(u64::MAX)),
        crowd.idle,
        crowd.stretch,
        crowd.delay,
    );
    assert!(late < late_max, "{what}: {late} of {} waits", waits.count);
}

/// Spins for as many milliseconds of CPU as its argument says, with every library mapped that is named
/// behind it.
const SPIN: &str = "#include <dlfcn.h>\n#include <stdlib.h>\n#include <time.h>\n\
    static volatile unsigned long sink;\n\
    int main(int n, char **a) { for (int i = 2; i < n; i++) dlopen(a[i], RTLD_LAZY);\n\
    struct timespec t; do { for (int i = 0; i < 20000; i++) sink += i;\n\
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t); }\n\
    while (t.tv_sec * 1000 + t.tv_nsec / 1000000 < atol(a[1])); return 0; }\n";

/// Programs that nobody has seen, and the CPU time of each.
const NEW_PROGRAMS: u64 = 150;
const NEW_PROGRAM_MS: &str = "80";
/// Between two of them.
const REST: Duration = Duration::from_millis(60);
const SYSTEM_FOLDERS: [&str; 2] = ["/usr/lib/x86_64-linux-gnu", "/lib/x86_64-linux-gnu"];

#[test]
fn tables_of_new_files_come_within_100_ms() {
    if !can_sample() {
        return;
    }
    // A program is met by 20 ticks on average, whoever else wants the CPU: one in e^20 by none.
    let options = EngineOptions { frequency_hz: 249, ..options() };
    let folder = tempfile::tempdir().unwrap();
    let Some(spin) = compiled(folder.path(), "spin", SPIN, &[]) else { return };
    let libraries = ["libstdc++.so.6", "libcrypto.so.3", "libm.so.6", "libgcc_s.so.1"];
    let libraries: Vec<PathBuf> = libraries
        .into_iter()
        .filter_map(|name| {
            let paths = SYSTEM_FOLDERS.map(|folder| Path::new(folder).join(name));
            paths.into_iter().find(|path| path.exists())
        })
        .collect();
    let probe = Probe::start();
    let ((), counts) = while_sampling(&options, &mut Nobody, || {
        for number in 0..usize::try_from(NEW_PROGRAMS).unwrap() {
            // One after the other: how late one is says nothing of the others.
            let program = copy(&spin, folder.path(), number);
            let new: Vec<PathBuf> =
                libraries.iter().map(|of| copy(of, folder.path(), number)).collect();
            let status = Command::new(&program).arg(NEW_PROGRAM_MS).args(&new).status();
            assert!(status.unwrap().success());
            for path in new.iter().chain([&program]) {
                std::fs::remove_file(path).unwrap();
            }
            std::thread::sleep(REST);
        }
    });
    let waits = counts.tables.waits;
    // Where the CPU is so scarce that one takes a second, it is published before a tick meets it.
    let few = if load() < 4.0 { NEW_PROGRAMS * 9 / 10 } else { NEW_PROGRAMS / 2 };
    assert!(waits.count + waits.abandoned >= few, "{counts:?}");
    check_waits("programs that nobody has seen", &waits, Duration::from_millis(100), probe);
}

/// The largest library at hand: a million rows.
fn large_library() -> Option<PathBuf> {
    let root = Command::new("rustc").args(["--print", "sysroot"]).output().ok()?;
    let folder = PathBuf::from(String::from_utf8(root.stdout).ok()?.trim()).join("lib");
    let mut files = std::fs::read_dir(folder).ok()?.filter_map(|entry| Some(entry.ok()?.path()));
    files.find(|path| path.to_string_lossy().contains("librustc_driver"))
}

/// How often it is met as one that nobody has seen.
const LARGE_LIBRARIES: usize = 10;

#[test]
fn a_table_of_a_million_rows_comes_within_300_ms() {
    if !can_sample() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let Some(spin) = compiled(folder.path(), "spin", SPIN, &[]) else { return };
    let Some(library) = large_library() else {
        eprintln!("skipped: no librustc_driver");
        return;
    };
    let libraries = library.parent().unwrap().to_owned();
    let probe = Probe::start();
    let ((), counts) = while_sampling(&options(), &mut Nobody, || {
        for number in 0..LARGE_LIBRARIES {
            let new = copy(&library, folder.path(), number);
            let mut command = Command::new(&spin);
            command.arg("500").arg(&new).env("LD_LIBRARY_PATH", &libraries);
            assert!(command.status().unwrap().success());
            std::fs::remove_file(new).unwrap();
            std::thread::sleep(8 * REST);
        }
    });
    let large = counts.tables.waits_large;
    eprintln!("{} rows are loaded", counts.tables.rows);
    // On a full machine a program may be over, or its other files may be what it waited for.
    assert!(large.count >= 1, "{counts:?}");
    check_waits("a library of a million rows", &large, Duration::from_millis(300), probe);
}

#[test]
fn five_hundred_execs_a_second() {
    const EXECS: u32 = 3000;
    if !can_sample() {
        return;
    }
    let before = thread_cpu_ns();
    let (_, idle) =
        while_sampling(&options(), &mut Nobody, || std::thread::sleep(Duration::from_secs(4)));
    let start_ns = thread_cpu_ns() - before;
    let before = thread_cpu_ns();
    let (taken, counts) = while_sampling(&options(), &mut Nobody, || {
        let begin = Instant::now();
        for number in 0..EXECS {
            let due = begin + Duration::from_millis(2) * number;
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            assert!(Command::new("/bin/true").stdin(Stdio::null()).status().unwrap().success());
        }
        begin.elapsed()
    });
    let cost_ns = (thread_cpu_ns() - before).saturating_sub(start_ns);
    let a_second = f64::from(EXECS) / taken.as_secs_f64();
    eprintln!(
        "{a_second:.0} execs a second for {taken:?}: {} us of the engine for each; {} maps read before, {} now",
        cost_ns / 1000 / u64::from(EXECS),
        idle.processes.maps_read,
        counts.processes.maps_read,
    );
    assert_eq!((counts.processes.lost, counts.processes.refused), (0, 0));
    assert!(counts.waiting < 1000, "no backlog: {counts:?}");
    // With the grace of two seconds: those of the last ones.
    assert!(counts.processes.known < idle.processes.known + 2500, "{counts:?}");
    assert!(cost_ns / u64::from(EXECS) < 1_000_000, "{cost_ns} ns");
}

/// Forks as many children as its argument says, which sleep; says so and waits until its input ends.
const FORKS: &str = "#include <stdio.h>\n#include <stdlib.h>\n#include <unistd.h>\n\
    #include <signal.h>\n#include <sys/prctl.h>\n\
    int main(int n, char **a) { int count = atoi(a[1]), made = 0;\n\
    for (int i = 0; i < count; i++) { int pid = fork(); if (pid < 0) break;\n\
    if (pid == 0) { prctl(PR_SET_PDEATHSIG, SIGKILL); for (;;) pause(); } made++; }\n\
    printf(\"%d\\n\", made); fflush(stdout); (void)!getchar(); kill(0, SIGKILL); }\n";

#[test]
fn ten_thousand_processes() {
    const PROCESSES: u64 = 10_000;
    if !can_sample() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let Some(forks) = compiled(folder.path(), "forks", FORKS, &["-static"]) else { return };
    let memory = std::fs::read_to_string("/proc/meminfo").unwrap();
    let available = memory.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let available_kib: u64 = available.unwrap().trim().trim_end_matches(" kB").parse().unwrap();
    if available_kib < 3 << 20 {
        eprintln!("skipped: 10,000 processes want 3 GiB of free memory");
        return;
    }
    let mut command = Command::new(&forks);
    command.arg(PROCESSES.to_string()).stdin(Stdio::piped()).stdout(Stdio::piped());
    // A group of its own, which it ends as a whole.
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    let mut child = command.spawn().unwrap();
    let mut line = String::new();
    let stdout = child.stdout.take().unwrap();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(stdout), &mut line).unwrap();
    if line.trim() != PROCESSES.to_string() {
        eprintln!("skipped: this host allows only {} processes", line.trim());
    } else {
        let (before, begin) = (thread_cpu_ns(), Instant::now());
        let (started, counts) = while_sampling(&options(), &mut Nobody, || {
            let started = begin.elapsed();
            std::thread::sleep(Duration::from_secs(3));
            started
        });
        eprintln!(
            "{} processes: sampling after {started:?}, {} ms of the engine in all, {} generations, {} bytes of tables",
            counts.processes.known,
            (thread_cpu_ns() - before) / 1_000_000,
            counts.tables.generations,
            counts.table_bytes,
        );
        assert!(counts.processes.known >= PROCESSES, "{counts:?}");
        assert!(counts.tables.generations >= PROCESSES, "all are published: {counts:?}");
        assert_eq!((counts.processes.refused, counts.tables.processes_refused), (0, 0));
    }
    drop(child.stdin.take());
    let group = rustix::process::Pid::from_child(&child);
    child.wait().unwrap();
    // Whoever takes them over reaps them one by one; the next test is not to meet them.
    let end = Instant::now() + Duration::from_secs(120);
    while rustix::process::test_kill_process_group(group).is_ok() {
        assert!(Instant::now() < end, "processes of this test are left");
        std::thread::sleep(Duration::from_millis(50));
    }
}
