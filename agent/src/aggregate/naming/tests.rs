//! Files that take long, and files at which a reader panics.

use super::*;
use crate::aggregate::fixtures::{PERIOD_NS, WALL, file, native, sample};
use crate::elf::{FileFacts, ForeignFileError, SourceLine};
use crate::process::fake::FakeFiles;
use crate::unwind::RowTable;
use std::os::fd::OwnedFd;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Answers late, not yet or never.
#[derive(Debug, Default)]
struct Slow {
    /// So long does it take to answer for each file below 100, but for addresses from [`QUICK`] on. It panics at 200.
    taken: Duration,
    /// There is no answer for file 7 while somebody has this.
    gate: Arc<Mutex<()>>,
}

/// Addresses from here on are quickly named.
const QUICK: u64 = 1 << 20;

impl ForeignFiles for Slow {
    fn inspect(&self, file: &OwnedFd) -> Result<FileFacts, ForeignFileError> {
        FakeFiles.inspect(file)
    }

    fn unwind_rows(&self, file: &OwnedFd) -> Result<RowTable, ForeignFileError> {
        FakeFiles.unwind_rows(file)
    }

    fn names_with(
        &self,
        id: FileId,
        _file: &OwnedFd,
        _debug_file: Option<&OwnedFd>,
        addresses: &[ElfAddr],
        _until: MonotonicNs,
    ) -> Vec<Names> {
        assert_ne!(id, FileId(200), "a defect of a reader");
        if id == FileId(7) {
            drop(self.gate.lock());
        }
        if id < FileId(100) && addresses.iter().any(|address| address.0 < QUICK) {
            std::thread::sleep(self.taken);
        }
        let line = || SourceLine {
            function: "function".into(),
            system_name: String::new(),
            file: String::new(),
            line: 0,
        };
        vec![Ok(vec![line()]); addresses.len()]
    }
}

struct NoKernel;

impl KernelNames for NoKernel {
    fn kernel(
        &mut self,
        _address: AbsAddr,
        _region: KernelRegion,
    ) -> Result<KernelSymbol, UnnamedReason> {
        panic!("a defect of what names the kernel")
    }
}

/// Every file is there.
struct Null;

impl OpenFiles for Null {
    fn open(&self, _id: FileId) -> Option<Arc<OwnedFd>> {
        Some(Arc::new(std::fs::File::open("/dev/null").unwrap().into()))
    }
}

#[derive(Clone, Debug, Default)]
struct Keep(Arc<Mutex<Vec<NamedWindow>>>);

impl Keep {
    fn windows(&self) -> Vec<NamedWindow> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

impl WindowWriter for Keep {
    fn write(&mut self, window: NamedWindow) {
        self.0.lock().unwrap().push(window);
    }
}

/// Writes nothing.
struct Broken;

impl WindowWriter for Broken {
    fn write(&mut self, _window: NamedWindow) {
        panic!("a defect that is caught nowhere")
    }
}

fn patience(window_ns: u64, last_ns: u64) -> NamingPatience {
    NamingPatience { window_ns, at_ease_ns: window_ns, last_ns }
}

fn sources(files: impl ForeignFiles + 'static, patience: NamingPatience) -> NameSources {
    NameSources { files: Arc::new(files), kernel: Box::new(NoKernel), perf_maps: None, patience }
}

fn start(taken: Duration, window_ns: u64, last_ns: u64) -> (NamingSink, NamingThread, Keep) {
    let keep = Keep::default();
    let files = Slow { taken, ..Slow::default() };
    let sources = sources(files, patience(window_ns, last_ns));
    let (sink, thread) = start_naming(sources, Box::new(keep.clone())).unwrap();
    (sink, thread, keep)
}

/// A window with one stack through these files, the leaf first.
fn sealed(files: &[u32]) -> SealedWindow {
    let mut window = Window::new(MonotonicNs(0), PERIOD_NS);
    let frames = files.iter().map(|id| native(&file(*id), 0x1000 + u64::from(*id))).collect();
    window.add(&sample(1, 1, 1, frames));
    let end = MonotonicNs(5_000_000_000);
    SealedWindow { window, end, wall: WALL, period_ns: PERIOD_NS, ledger: Ledger::default() }
}

fn hand_over(sink: &mut NamingSink, sealed: SealedWindow) {
    let files: Arc<dyn OpenFiles> = Arc::new(Null);
    sink.window(sealed, &files);
}

/// The files whose code has no name, and why.
fn unnamed(window: &NamedWindow) -> Vec<(u32, UnnamedReason)> {
    let one = |location: &crate::aggregate::Location| match location.code {
        crate::aggregate::Code::Native { file, .. } => {
            Some((window.files[file as usize].id.0, location.unnamed?))
        }
        _ => None,
    };
    window.locations.iter().filter_map(one).collect()
}

#[test]
fn a_window_has_so_much_time_and_slow_files_are_last() {
    let taken = Duration::from_nanos(limits::NAMING_SLOW_NS) + Duration::from_millis(10);
    let (mut sink, thread, keep) = start(taken, limits::NAMING_SLOW_NS * 2, u64::MAX / 2);
    let files: Vec<u32> = (0..20).chain([100]).collect();
    let begin = Instant::now();
    for _ in 0..2 {
        hand_over(&mut sink, sealed(&files));
    }
    while keep.0.lock().unwrap().len() < 2 {
        assert!(begin.elapsed() < Duration::from_secs(30));
        std::thread::sleep(Duration::from_millis(5));
    }
    let windows = keep.windows();
    // Two files take the time of a window, and one at least is named.
    let late: Vec<_> = unnamed(&windows[0])
        .into_iter()
        .map(|(id, reason)| {
            assert_eq!(reason, UnnamedReason::Limit);
            id
        })
        .collect();
    assert!(late.len() >= 19 && late.contains(&100), "{late:?}");
    assert_eq!(
        windows[0].naming,
        NamingCounts { late: late.len() as u64, ..NamingCounts::default() }
    );
    // What was slow comes behind what nobody knows.
    let again = unnamed(&windows[1]);
    assert!(again.iter().any(|(id, _)| *id == 0), "{again:?}");
    drop(sink);
    thread.join().unwrap();
}

#[test]
fn who_ends_does_not_wait_for_names() {
    let (mut sink, thread, keep) = start(Duration::from_millis(20), u64::MAX / 2, 0);
    let files: Vec<u32> = (0..90).collect();
    let begin = Instant::now();
    for _ in 0..4 {
        hand_over(&mut sink, sealed(&files));
    }
    drop(sink);
    thread.join().unwrap();
    // With all names it would take 7 s.
    assert!(begin.elapsed() < Duration::from_secs(3), "{:?}", begin.elapsed());
    let windows = keep.windows();
    assert_eq!(windows.len(), 4);
    assert_eq!(unnamed(&windows[3]).len(), 90);
}

#[test]
fn what_panics_costs_its_own_name() {
    let (mut sink, thread, keep) = start(Duration::ZERO, u64::MAX / 2, u64::MAX / 2);
    let mut sealed = sealed(&[1, 200, 2]);
    let (address, region) = (AbsAddr(1 << 63), KernelRegion::default());
    let kernel = crate::normalize::Frame::Kernel { address, region };
    sealed.window.add(&sample(1, 1, 1, vec![kernel]));
    hand_over(&mut sink, sealed);
    drop(sink);
    thread.join().unwrap();
    let window = keep.windows().remove(0);
    assert_eq!(unnamed(&window), [(200, UnnamedReason::NotReadable)]);
    let kernel = window
        .locations
        .iter()
        .filter(|location| matches!(location.code, crate::aggregate::Code::Kernel { .. }));
    let kernel: Vec<_> = kernel.map(|location| location.unnamed).collect();
    assert_eq!(kernel, [Some(UnnamedReason::NotReadable)]);
    assert_eq!(window.naming, NamingCounts { panics: 2, ..NamingCounts::default() });
}

#[test]
fn the_engine_ends_with_the_thread_that_names() {
    let sources = sources(Slow::default(), patience(u64::MAX / 2, u64::MAX / 2));
    let (sink, thread) = start_naming(sources, Box::new(Broken)).unwrap();
    let control = Control::default();
    let mut sink = sink.stopping(control.clone());
    let begin = Instant::now();
    while !control.is_stopping() {
        assert!(begin.elapsed() < Duration::from_secs(30), "nobody noticed");
        hand_over(&mut sink, sealed(&[1]));
        std::thread::sleep(Duration::from_millis(5));
    }
    drop(sink);
    assert!(thread.join().is_err());
}

#[test]
fn a_file_that_falls_silent_holds_up_nobody() {
    let gate = Arc::new(Mutex::new(()));
    let held = gate.lock().unwrap();
    let open: Arc<dyn OpenFiles> = Arc::new(Null);
    let files = Slow { gate: Arc::clone(&gate), ..Slow::default() };
    let mut asker = Asker::new(Arc::new(files)).waiting(Duration::from_millis(50));
    let mut ask = |file: u32| {
        let begin = Instant::now();
        let names = asker.ask(FileId(file), &open, (&[ElfAddr(1)], MonotonicNs(u64::MAX)));
        (names.map(|names| names.len()), begin.elapsed() >= Duration::from_millis(50))
    };
    assert_eq!(ask(1).0, Ok(1));
    assert_eq!(ask(7), (Err(Unasked::Silent), true));
    assert_eq!(ask(2).0, Ok(1), "another thread goes on");
    assert_eq!(ask(7), (Err(Unasked::Silent), false), "nobody waits for it again");
    drop(held);
    let begin = Instant::now();
    while ask(7).0 != Ok(1) {
        assert!(begin.elapsed() < Duration::from_secs(30), "it answers again");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The names of a window's locks are asked for after those of its code.
#[test]
fn a_file_stays_slow_whose_variables_are_named_quickly() {
    let taken = Duration::from_nanos(limits::NAMING_SLOW_NS) + Duration::from_millis(10);
    let mut asker = Asker::new(Arc::new(Slow { taken, ..Slow::default() }));
    let open: Arc<dyn OpenFiles> = Arc::new(Null);
    let progress = Progress::default();
    let mut slow = HashSet::new();
    let mut window = |addresses: &[u64]| {
        let mut namer = HostNamer {
            asker: &mut asker,
            open: &open,
            kernel: &mut NoKernel,
            perf_maps: None,
            begin: monotonic_now(),
            patience: patience(u64::MAX / 2, u64::MAX / 2),
            progress: &progress,
            slow: &mut slow,
            taken_ns: HashMap::new(),
            counts: NamingCounts::default(),
        };
        for address in addresses {
            assert!(namer.native(&file(1), &[ElfAddr(*address)])[0].is_ok());
        }
        namer.is_slow(FileId(1))
    };
    assert!(window(&[1, QUICK]), "slow in this window");
    assert!(!window(&[QUICK]), "not any more in another");
}

#[test]
fn the_account_of_many_processes_is_kept_quickly() {
    let mut given_up = GivenUp::default();
    let begin = Instant::now();
    for round in 0..2 {
        for pid in 0..40_000 {
            let ledger = ProcessLedger { received: 1 + round, ..ProcessLedger::default() };
            given_up.add_process(&crate::aggregate::fixtures::process(pid), &ledger);
        }
    }
    assert_eq!(given_up.processes.len(), 40_000);
    assert!(given_up.processes.values().all(|ledger| ledger.received == 3));
    // Each against all others would take a minute.
    assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
}
