//! Are the stacks whole: the engine samples the targets as it would any host, and what it names is held
//! against what is known of them.

use crate::report::{Report, Verdict};
use crate::targets::{BRIEF, TRUTHS, Targets, Truth};
use crate::{FREQUENCY_HZ, module};
use agent::aggregate::{
    Code, LocationIndex, NameSources, NamedWindow, NamingPatience, marker_text, start_naming,
};
use agent::bpf::FormChoice;
use agent::clock::UnixNs;
use agent::elf::LocalFiles;
use agent::engine::{self, Control, EngineOptions};
use agent::record::Recorder;
use agent::symbolize::UnnamedReason;
use agent::symbolize::kernel::{KernelRegions, KernelSymbols};
use anyhow::{Context as _, Result, anyhow, bail};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// How long the targets are sampled.
const DURATION: Duration = Duration::from_millis(2500);
/// How long the engine may take to begin.
const START_PATIENCE: Duration = Duration::from_secs(60);
/// Samples of a target that are enough to judge it. They share two emulated CPUs.
const SAMPLES_MIN: usize = 10;
/// Of so many samples one may be cut: between the kernel's making of a handler's frame and its first
/// instruction, or in the dynamic linker's first instructions, which have no information.
const SAMPLES_PER_CUT: usize = 20;
/// Of ten samples of a process that began meanwhile more than so many are complete: the first wait for
/// a table, which takes its time where an emulated CPU is shared by ten.
const COMPLETE_TENTHS: usize = 7;
/// Short processes that are started meanwhile.
const BRIEF_PROCESSES: usize = 2;

/// What was found of one program.
#[derive(Debug, Default)]
struct Found {
    samples: usize,
    complete: usize,
    /// Cut in the middle, at the limit of time that a walk may take: an emulated CPU reaches it.
    truncated: usize,
    /// Not judged by their names: looking for those took longer than it may.
    unnamed: usize,
    /// Complete ones that begin where they should.
    rooted: usize,
    /// Those with the inner function, and of these those whose outer function is right.
    inner: usize,
    true_outer: usize,
    in_kernel: usize,
    kernel_frames: usize,
    kernel_named: usize,
    deepest: usize,
    /// How the others ended, and in which code: some of them.
    cuts: Vec<String>,
}

/// Cut stacks of a target that are described.
const CUTS_SHOWN: usize = 4;

/// Samples the targets with one form, and reports on each of them.
pub(crate) fn check(report: Report, form: FormChoice, targets: &Targets) -> Result<()> {
    let recorder = Recorder::default();
    let regions = Arc::new(KernelRegions::default());
    let sources = NameSources {
        files: Arc::new(LocalFiles::new()),
        kernel: Box::new(KernelSymbols::read(Path::new("/proc"), Arc::clone(&regions))),
        perf_maps: None,
        patience: NamingPatience::RECORDING,
    };
    let (mut sink, naming) = start_naming(sources, Box::new(recorder.clone()))?;
    let options = EngineOptions {
        frequency_hz: FREQUENCY_HZ,
        form,
        duration: Some(DURATION),
        kernel_regions: Some(regions),
        ..EngineOptions::default()
    };
    let control = Control::default();
    std::thread::scope(|scope| -> Result<()> {
        let working = scope.spawn(|| work(&control, targets));
        let end = engine::run(&options, &mut sink, &control);
        targets.stop()?;
        end?;
        working.join().map_err(|_panic| anyhow!("the thread of the targets panicked"))?
    })?;
    drop(sink);
    drop(naming.join().map_err(|_panic| anyhow!("naming panicked"))?);
    let window = recorder.take().context("the engine made no window")?;
    for (index, truth) in TRUTHS.iter().enumerate() {
        target(report, truth, &found(&window, targets.pid(index), truth));
    }
    brief(report, &window);
    ledger(report, &window);
    module::judge(report, &window)
}

/// Lets the targets run, starts new processes and loads a module, once the sampling has begun.
fn work(control: &Control, targets: &Targets) -> Result<()> {
    if !control.wait_sampling(START_PATIENCE) {
        bail!("the sampling did not begin");
    }
    targets.go_on()?;
    let started = (0..BRIEF_PROCESSES).map(|_| targets.command(BRIEF).spawn());
    let started = started.collect::<std::io::Result<Vec<_>>>()?;
    if module::is_there() {
        module::load()?;
    }
    started.into_iter().try_for_each(|mut process| process.wait().map(drop))?;
    Ok(())
}

fn found(window: &NamedWindow, pid: u32, truth: &Truth) -> Found {
    let mut found = Found::default();
    for process in window.processes.iter().filter(|process| process.process.pid.0 == pid) {
        for sample in &process.samples {
            found.add(window, window.stack(sample.stack), sample.times.len(), truth);
        }
    }
    found
}

impl Found {
    fn add(&mut self, window: &NamedWindow, stack: &[LocationIndex], times: usize, truth: &Truth) {
        let mut functions = Vec::new();
        let mut whole = true;
        let mut truncated = false;
        let mut in_kernel = false;
        let mut unnamed = false;
        for location in stack.iter().map(|index| window.location(*index)) {
            let name = location.lines.last().map(|line| line.function.as_str());
            match location.code {
                Code::Marker(marker) => {
                    whole = false;
                    truncated |= marker_text(marker) == "[truncated]";
                }
                Code::Kernel { .. } => {
                    in_kernel = true;
                    self.kernel_frames += 1;
                    self.kernel_named += usize::from(name.is_some());
                }
                _ => {
                    let reason = location.unnamed;
                    unnamed |= reason.is_some_and(|reason| reason != UnnamedReason::NoSymbol);
                    functions.push(name.unwrap_or(""));
                }
            }
        }
        self.samples += times;
        self.deepest = self.deepest.max(functions.len());
        self.in_kernel += if in_kernel { times } else { 0 };
        let rooted = functions.last().is_some_and(|root| truth.root.contains(root));
        if truncated {
            self.truncated += times;
            return;
        }
        if !whole {
            if self.cuts.len() < CUTS_SHOWN {
                self.cuts.push(cut(window, stack));
            }
            return;
        }
        self.complete += times;
        if unnamed {
            self.unnamed += times;
            return;
        }
        if rooted {
            self.rooted += times;
        } else if self.cuts.len() < CUTS_SHOWN {
            self.cuts.push(cut(window, stack));
        }
        if functions.contains(&truth.inner) {
            self.inner += times;
            let outer = functions.iter().filter(|name| **name == truth.outer).count();
            self.true_outer += if outer == truth.outer_times { times } else { 0 };
        }
    }
}

/// What ended a stack, and the code of its last frames.
fn cut(window: &NamedWindow, stack: &[LocationIndex]) -> String {
    let locations = stack.iter().rev().map(|index| window.location(*index));
    let text = locations.take(3).map(|location| match location.code {
        Code::Marker(marker) => marker_text(marker).into_owned(),
        Code::Native { file, address } => {
            let path = window
                .files
                .get(file as usize)
                .map_or("", |file| file.path.rsplit('/').next().unwrap_or(""));
            let function = match (location.lines.last(), location.unnamed) {
                (Some(line), _) => line.function.clone(),
                (None, reason) => format!("{reason:?}"),
            };
            format!("{function} {path}+{:#x}", address.0)
        }
        other => format!("{other:?}"),
    });
    format!("({})", text.collect::<Vec<_>>().join(" < "))
}

fn target(report: Report, truth: &Truth, found: &Found) {
    let Found {
        samples, complete, truncated, unnamed, rooted, inner, true_outer, in_kernel, ..
    } = *found;
    let cuts_max = 1 + samples / SAMPLES_PER_CUT;
    let good = samples >= SAMPLES_MIN
        && complete + truncated + cuts_max >= samples
        && rooted + unnamed == complete
        && (inner + unnamed) * 10 > samples
        && true_outer == inner
        && in_kernel * 100 >= samples * truth.kernel_percent
        && found.kernel_named == found.kernel_frames;
    report.line(
        &format!("stacks_{}", truth.program),
        Verdict::of(good),
        &[
            ("samples", &samples),
            ("complete", &complete),
            ("truncated", &truncated),
            ("unnamed", &unnamed),
            ("rooted", &rooted),
            ("inner", &inner),
            ("true_outer", &true_outer),
            ("in_kernel", &in_kernel),
            ("kernel_frames", &found.kernel_frames),
            ("kernel_named", &found.kernel_named),
            ("deepest", &found.deepest),
            ("cuts", &found.cuts.join(" ")),
        ],
    );
}

/// Processes that began while sampled are known by their path, and soon by their tables: how soon is told,
/// and judged by the share of whole stacks.
fn brief(report: Report, window: &NamedWindow) {
    let (mut processes, mut samples, mut complete, mut relapses) = (0, 0, 0, 0);
    let mut wait_ns = 0;
    let of_brief =
        window.processes.iter().filter(|process| process.process.executable_path.ends_with(BRIEF));
    for process in of_brief {
        processes += 1;
        let mut found: Vec<(UnixNs, bool)> = Vec::new();
        for sample in &process.samples {
            let mut stack = window.stack(sample.stack).iter();
            let is_marker =
                |index: &LocationIndex| matches!(window.location(*index).code, Code::Marker(_));
            let whole = !stack.any(is_marker);
            found.extend(sample.times.iter().map(|time| (*time, whole)));
        }
        found.sort_unstable();
        let first = found.iter().position(|(_, whole)| *whole).unwrap_or(found.len());
        let (waiting, rest) = found.split_at(first);
        samples += found.len();
        complete += rest.iter().filter(|(_, whole)| *whole).count();
        relapses += rest.iter().filter(|(_, whole)| !*whole).count();
        if let [(begin, _), ..] = waiting
            && let [(end, _), ..] = rest
        {
            wait_ns = wait_ns.max(end.0.saturating_sub(begin.0));
        }
    }
    let wait_ms = wait_ns / 1_000_000;
    let good = processes == BRIEF_PROCESSES && complete * 10 > samples * COMPLETE_TENTHS;
    report.line(
        "stacks_of_new_processes",
        Verdict::of(good),
        &[
            ("processes", &processes),
            ("samples", &samples),
            ("complete", &complete),
            ("relapses", &relapses),
            ("wait_ms_max", &wait_ms),
        ],
    );
}

/// The account of the engine.
fn ledger(report: Report, window: &NamedWindow) {
    let ledger = &window.ledger;
    let closes = ledger.check(window.observations());
    let gap = closes.map_or_else(|gap| gap.to_string(), |()| String::new());
    report.line(
        "engine_ledger",
        Verdict::of(gap.is_empty() && ledger.runs > 0),
        &[
            ("ticks", &ledger.ticks_expected),
            ("runs", &ledger.runs),
            ("asleep", &ledger.asleep),
            ("missed", &ledger.missed()),
            ("shipped", &ledger.shipped),
            ("received", &ledger.received),
            ("lost", &ledger.lost()),
            ("gap", &gap),
        ],
    );
}
