//! A whole host at work: compilers, python3, node, java with frame pointers, perl, a Go server with its clients, a
//! browser, all at once. Goal: true stacks of real programs. Method: every sample after the first two seconds is held
//! against what the files themselves say: a stack is complete if it ends where the thread began (the entry of an
//! executable, the C library's start of a thread, a root of Go) and no marker says that something is missing; a frame
//! must be named if `nm` knows a function of its file that covers its address.
//!
//! Code that a runtime made is not native, and lies in memory that no file backs: a stack with such a frame (shown
//! as `[anonymous code]`, or as the runtime's marker) is counted apart, by how it ends.

use crate::host_load::{Load, Part};
use std::collections::BTreeMap;
use std::time::Duration;
use tests::agent::AgentOptions;
use tests::metrics::{Metrics, Reading};
use tests::native::{Files, thread_root};
use tests::observation::{Frame, Observation, observations};
use tests::profiles::now_ns;
use tests::statistics::as_f64;
use tests::workload::seconds;
use tests::{Agent, Sink, need, readme};

const FREQUENCY_HZ: u32 = 499;
/// How long the load runs, and from when on it counts.
const SECONDS: u32 = 26;
const WARM_UP_NS: u64 = 2_000_000_000;

/// Native stacks of programs that live longer than a moment, and frames that a symbol covers. The agent under test
/// is hardly optimised and makes its tables beside ten busy threads.
const COMPLETE_SHARE_MIN: f64 = 0.995;
const NAMED_SHARE_MIN: f64 = 0.99;
/// How often a program that is exactly as complete as asked may fail a try by chance: both tries fail once in a million
/// runs.
const CHANCE_MAX: f64 = 1e-3;
/// Causes of a part that are shown, and characters of the stack that shows one.
const CAUSES_SHOWN: usize = 10;
const SHOWN_CHARS_MAX: usize = 300;
/// Samples of a part, for its figures to mean anything.
const SAMPLES_MIN: usize = 100;

/// Metrics that say what became of new processes and their stacks.
const NEW_FIGURES: [&str; 10] = [
    "processes_inherited_total",
    "processes_inherited_missed_total",
    "stacks_copied_total",
    "stacks_held_back_total",
    "stacks_walked_total",
    "stacks_overdue_process_total",
    "stacks_overdue_mapping_total",
    "stacks_overdue_table_total",
    "stacks_without_room_total",
    "naming_late_total",
];

/// Between these two lines of README.md stands the table.
const BEGIN: &str = "<!-- host: VESTA_BLESS=1 cargo xtask test host -->";
const END: &str = "<!-- end of host -->";

/// Roots of Go's threads and goroutines.
const GO_ROOTS: [&str; 8] = [
    "goexit",
    "mstart",
    "rt0_go",
    "_rt0_amd64_linux",
    "mcall",
    "morestack",
    "systemstack",
    "asmcgocall",
];
/// Functions of the C library in which a thread or a child on a stack of its own begins.
const THREAD_ROOTS: [&str; 6] =
    ["_start", "clone", "clone3", "__clone", "__clone3", "__GI___clone_internal"];
/// The kernel's functions in which a process has no user stack: its program is being replaced, or it has ended.
const WITHOUT_STACK: [&str; 4] = ["begin_new_exec", "load_elf_binary", "do_exit", "exit_mmap"];

#[test]
fn a_host_at_work() {
    if !need::bpf() {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let parts = Part::all(folder.path(), SECONDS);
    let Some(thread_root) = thread_root() else { return };
    // One repeat: this host is not ours alone.
    let Err(reason) = run(&parts, thread_root.clone()) else { return };
    need::figure(&format!("first try: {reason}"));
    run(&parts, thread_root).expect("both tries failed");
}

/// Runs everything once; the error says what is too little.
fn run(parts: &[Part], thread_root: (String, u64)) -> Result<(), String> {
    let sink = Sink::start();
    let metrics = Metrics::somewhere();
    let arguments = metrics.arguments();
    let options = AgentOptions { arguments, ..AgentOptions::at(FREQUENCY_HZ) };
    let agent = Agent::start(&sink.url(), &options);
    let from_ns = now_ns() + WARM_UP_NS;
    let load = Load::start(parts);
    std::thread::sleep(Duration::from_secs(SECONDS.into()));
    let to_ns = now_ns();
    let ended = load.end();
    show(&metrics.read());
    agent.stop();
    let all = observations(&sink.requests());
    let mut truth =
        Truth { files: Files::default(), thread_root, from_ns, figures: BTreeMap::new() };
    for sample in &all {
        if (from_ns..to_ns).contains(&sample.time_ns) {
            truth.take(sample, ended.part_of(sample));
        }
    }
    truth.check(parts)
}

/// What became of processes and stacks that were new.
fn show(reading: &Reading) {
    let one = |name: &&str| format!("{name} {}", reading.get(name));
    let shown: Vec<String> = NEW_FIGURES.iter().map(one).collect();
    need::figure(&shown.join(", "));
}

/// What is known of right answers, and what was counted.
struct Truth {
    files: Files,
    thread_root: (String, u64),
    /// What was taken earlier does not count.
    from_ns: u64,
    figures: BTreeMap<&'static str, Figures>,
}

/// The figures of one part of the load.
#[derive(Default)]
struct Figures {
    /// Stacks of native code alone, and those of them that reach their root.
    native: usize,
    complete: usize,
    /// Stacks with code that a runtime made, and those that reach their root.
    mixed: usize,
    mixed_complete: usize,
    /// In exec or exit, where there is no user stack.
    without_stack: usize,
    /// Native frames, those with a name, those without one that a symbol covers.
    frames: usize,
    named: usize,
    wrongly_unnamed: usize,
    /// Why stacks are not complete, and one of each.
    causes: BTreeMap<String, Cause>,
    /// The same by the marker alone.
    kinds: BTreeMap<String, Cause>,
    /// Files with frames that a symbol covers and that have no name.
    unnamed_files: BTreeMap<String, (usize, u64)>,
}

/// One reason for which stacks are not complete.
struct Cause {
    count: usize,
    /// When the first and the last of them were taken, nanoseconds.
    first_ns: u64,
    last_ns: u64,
    /// The first.
    shown: String,
}

impl Cause {
    fn count(causes: &mut BTreeMap<String, Self>, name: &str, sample: &Observation) {
        let shown = || format!("{} {}: {}", sample.executable, sample.pid, sample.shown());
        let (count, time_ns) = (0, sample.time_ns);
        let new = || Self { count, first_ns: time_ns, last_ns: time_ns, shown: shown() };
        let cause = causes.entry(name.to_owned()).or_insert_with(new);
        cause.count += 1;
        cause.first_ns = cause.first_ns.min(time_ns);
        cause.last_ns = cause.last_ns.max(time_ns);
    }

    /// The most frequent first.
    fn sorted(causes: &BTreeMap<String, Self>) -> Vec<(&String, &Self)> {
        let mut causes: Vec<_> = causes.iter().collect();
        causes.sort_by_key(|(_, cause)| std::cmp::Reverse(cause.count));
        causes
    }
}

impl Truth {
    fn take(&mut self, sample: &Observation, part: &'static str) {
        let complete = self.is_complete(sample);
        let figures = self.figures.entry(part).or_default();
        if complete.is_err() && WITHOUT_STACK.iter().any(|name| sample.has(name)) {
            figures.without_stack += 1;
            return;
        }
        if sample.user().next().is_none() && sample.markers().next().is_none() {
            return; // A thread of the kernel.
        }
        let mixed = is_mixed(sample);
        match (mixed, &complete) {
            (true, Ok(())) => figures.mixed_complete += 1,
            (false, Ok(())) => figures.complete += 1,
            _ => {}
        }
        *if mixed { &mut figures.mixed } else { &mut figures.native } += 1;
        if let (false, Err(cause)) = (mixed, complete) {
            let kind = cause.split_inclusive(']').next().unwrap_or_default();
            Cause::count(&mut figures.kinds, kind, sample);
            Cause::count(&mut figures.causes, &cause, sample);
        }
        for frame in sample.user().filter(|frame| !frame.path.is_empty()) {
            figures.frames += 1;
            if !frame.functions.is_empty() {
                figures.named += 1;
            } else if self.files.covers(&frame.path, frame.address) {
                figures.wrongly_unnamed += 1;
                let file = figures.unnamed_files.entry(frame.path.clone());
                file.or_insert((0, frame.address)).0 += 1;
            }
        }
    }

    /// `Err` names what is missing.
    fn is_complete(&mut self, sample: &Observation) -> Result<(), String> {
        let missing = sample
            .markers()
            .find(|marker| marker.starts_with("[unwind:") || *marker == "[truncated]");
        let last = sample.user().last();
        if let Some(missing) = missing {
            let below = last.map_or_else(|| "nothing".to_owned(), |last| self.place(last));
            return Err(format!("{missing} above {below}"));
        }
        let Some(last) = last else { return Err("no user frame".to_owned()) };
        if self.is_root(last) { Ok(()) } else { Err(format!("ends in {}", self.place(last))) }
    }

    fn is_root(&mut self, last: &Frame) -> bool {
        let named = |names: &[&str]| names.iter().any(|name| last.is(name));
        let (file, address) = &self.thread_root;
        named(&THREAD_ROOTS)
            || last.kind == "go" && named(&GO_ROOTS)
            || last.file == *file && last.address.abs_diff(*address) <= 1
            || self.files.is_entry(&last.path, last.address)
    }

    fn place(&self, frame: &Frame) -> String {
        let function = frame.functions.last().cloned();
        let function = function.unwrap_or_else(|| format!("{:#x}", frame.address));
        format!("{}:{function}", frame.file)
    }

    fn check(self, parts: &[Part]) -> Result<(), String> {
        let mut total = Figures::default();
        for (part, figures) in &self.figures {
            need::figure(&format!("{part}: {}", figures.shown()));
            for (kind, Cause { count, first_ns, last_ns, .. }) in Cause::sorted(&figures.kinds) {
                let [first, last] =
                    [first_ns, last_ns].map(|time_ns| seconds(time_ns - self.from_ns));
                need::figure(&format!(
                    "{part}: {count} not complete, {kind}, from {first:.2} s to {last:.2} s"
                ));
            }
            for (cause, Cause { count, shown, .. }) in
                Cause::sorted(&figures.causes).into_iter().take(CAUSES_SHOWN)
            {
                need::figure(&format!("{part}: {count} not complete, {cause}; {}", cut(shown)));
            }
            if *part == "other" {
                continue; // What else the host does: nobody knows what is right there.
            }
            for (file, (count, address)) in &figures.unnamed_files {
                need::figure(&format!(
                    "{part}: {count} frames without the name that {file} has, one at {address:#x}"
                ));
            }
            total.add(figures);
        }
        need::figure(&format!("all: {}", total.shown()));
        let rows = self.figures.iter().map(|(part, figures)| figures.row(part));
        let rows: String = rows.chain([total.row("all")]).collect();
        readme::bless(BEGIN, END, &format!("{HEAD}{rows}"));
        let few = parts.iter().map(Part::name).find(|name| {
            self.figures.get(name).is_none_or(|it| it.native + it.mixed < SAMPLES_MIN)
        });
        if let Some(few) = few {
            return Err(format!("{few} has fewer than {SAMPLES_MIN} samples"));
        }
        for (part, figures) in self.figures.iter().filter(|(part, _)| **part != "other") {
            let missing = figures.native - figures.complete;
            let most = most(figures.native, 1.0 - COMPLETE_SHARE_MIN);
            if missing > most {
                let native = figures.native;
                return Err(format!(
                    "{part}: {missing} of {native} stacks are not complete, {most} may be"
                ));
            }
        }
        let named = as_f64(total.named) / as_f64(total.named + total.wrongly_unnamed);
        if named < NAMED_SHARE_MIN {
            return Err(format!("{named:.4} of frames with a symbol are named"));
        }
        Ok(())
    }
}

const HEAD: &str = "| program | native stacks | complete % | with a runtime's code | complete % | native frames | named % | of those with a symbol % |\n|---|---|---|---|---|---|---|---|\n";

impl Figures {
    /// A line of the table.
    fn row(&self, part: &str) -> String {
        let percent = |part: usize, whole: usize| 100.0 * as_f64(part) / as_f64(whole.max(1));
        format!(
            "| {part} | {} | {:.2} | {} | {:.2} | {} | {:.2} | {:.2} |\n",
            self.native,
            percent(self.complete, self.native),
            self.mixed,
            percent(self.mixed_complete, self.mixed),
            self.frames,
            percent(self.named, self.frames),
            percent(self.named, self.named + self.wrongly_unnamed),
        )
    }

    fn shown(&self) -> String {
        let percent = |part: usize, whole: usize| 100.0 * as_f64(part) / as_f64(whole.max(1));
        format!(
            "{} native stacks, {:.2} % complete; {} with code of a runtime, {:.2} % complete; {} in exec or exit; {} native frames, {:.2} % named, {:.2} % of those that a symbol covers",
            self.native,
            percent(self.complete, self.native),
            self.mixed,
            percent(self.mixed_complete, self.mixed),
            self.without_stack,
            self.frames,
            percent(self.named, self.frames),
            percent(self.named, self.named + self.wrongly_unnamed),
        )
    }

    fn add(&mut self, other: &Self) {
        self.native += other.native;
        self.complete += other.complete;
        self.mixed += other.mixed;
        self.mixed_complete += other.mixed_complete;
        self.without_stack += other.without_stack;
        self.frames += other.frames;
        self.named += other.named;
        self.wrongly_unnamed += other.wrongly_unnamed;
    }
}

/// The largest count that is no rarer than [`CHANCE_MAX`] where each of `samples` counts with this share (Poisson).
fn most(samples: usize, share: f64) -> usize {
    let mean = as_f64(samples) * share;
    let mut term = (-mean).exp();
    let mut beyond = 1.0 - term;
    let mut count = 0;
    while beyond > CHANCE_MAX && count < samples {
        count += 1;
        term *= mean / as_f64(count);
        beyond -= term;
    }
    count
}

#[test]
fn as_many_may_be_missing_as_chance_allows() {
    // By tables of the Poisson distribution: P(X > 10 | 3.5) = 0.0010, P(X > 23 | 12) = 0.0015.
    let table = [(0, 0), (700, 11), (2400, 24)];
    for (samples, expected) in table {
        assert_eq!(most(samples, 0.005), expected, "{samples}");
    }
}

/// Code of a runtime is in the stack, or was where a marker stands.
fn is_mixed(sample: &Observation) -> bool {
    sample.markers().any(|marker| {
        marker == "[anonymous code]"
            || marker.starts_with("[node frames")
            || marker.starts_with("[java frames")
    })
}

fn cut(text: &str) -> String {
    text.chars().take(SHOWN_CHARS_MAX).collect()
}
