//! `record`: samples a command, some processes or the host for a while, into a file.

mod command;
mod output;
mod progress;

use super::sampling::{self, Sampling, Scope};
use agent::address::Pid;
use agent::aggregate::{NamedWindow, NamingPatience, WaitLedger};
use agent::bpf::WaitStacks;
use agent::limits;
use agent::options::{Format, RecordOptions};
use agent::record::Contents;
use agent::record::Recorder;
use anyhow::{Context as _, bail};
use command::HeldCommand;
use output::Output;
use progress::Progress;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Time between looks at the command, the clock and the signals.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Records; answers the command's own exit code where there is a command.
pub(crate) fn record(options: &RecordOptions) -> anyhow::Result<ExitCode> {
    let format = format_of(options)?;
    check_pids(&options.pids)?;
    let interrupted = interrupts()?;
    let output = Output::open(&options.output)?;
    let recorder = Recorder::default();
    let mut held = HeldCommand::start(&options.command)?;
    let scope = scope(options, held.as_ref());
    let duration = scope.duration;
    let sampling = sampling::start(&options.sampling, scope, Box::new(recorder.clone()), || {})?;
    if !wait_until_sampling(&sampling, &interrupted) {
        sampling.finish()?;
        bail!("interrupted before sampling began");
    }
    if let Some(held) = &mut held {
        held.release()?;
    }
    let progress = Progress::start(duration, recorder.clone());
    let begin = Instant::now();
    let mut exit = None;
    while !sampling.is_over() && !interrupted.load(Ordering::Acquire) {
        exit = held.as_mut().map(HeldCommand::try_wait).transpose()?.flatten();
        if exit.is_some() || duration.is_some_and(|duration| begin.elapsed() >= duration) {
            break;
        }
        progress.show(begin.elapsed());
        std::thread::sleep(LOOK_EVERY);
    }
    sampling.finish()?;
    progress.end();
    let window = recorder.take().context("the recording has no window")?;
    let contents = if options.off_cpu { Contents::Both } else { Contents::Cpu };
    let place = output.write(&window, (format, contents), options.host_name.clone())?;
    crate::say(&summary(&window, &place));
    match (exit, held) {
        (Some(code), _) => Ok(code),
        (None, Some(mut held)) => held.wait_for_end(interrupted.load(Ordering::Acquire)),
        (None, None) => Ok(ExitCode::SUCCESS),
    }
}

fn format_of(options: &RecordOptions) -> anyhow::Result<Format> {
    let by_name = Format::of_path(&options.output);
    options.format.or(by_name).with_context(|| {
        format!(
            "{} has no known ending; name it .pb.gz, .folded or .otlp, or give --format",
            options.output.display()
        )
    })
}

fn check_pids(pids: &[u32]) -> anyhow::Result<()> {
    match pids.iter().find(|pid| !Path::new("/proc").join(pid.to_string()).exists()) {
        Some(pid) => bail!("there is no process {pid}"),
        None => Ok(()),
    }
}

fn scope(options: &RecordOptions, held: Option<&HeldCommand>) -> Scope {
    let mut pids: Vec<Pid> = options.pids.iter().copied().map(Pid).collect();
    pids.extend(held.map(HeldCommand::pid));
    let default = held.is_none().then_some(limits::RECORD_DURATION_DEFAULT);
    Scope {
        pids,
        off_cpu: options.off_cpu,
        wait_stacks: WaitStacks::Many,
        duration: options.duration.or(default),
        preload: held.and_then(HeldCommand::program).into_iter().collect(),
        patience: NamingPatience::RECORDING,
    }
}

/// Set by Ctrl-C and SIGTERM: the recording ends and the file is written.
fn interrupts() -> anyhow::Result<Arc<AtomicBool>> {
    let interrupted = Arc::new(AtomicBool::new(false));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let told = Arc::clone(&interrupted);
    let (ready, is_ready) = std::sync::mpsc::sync_channel(1);
    std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
        runtime.block_on(async move {
            use tokio::signal::unix::{SignalKind, signal};
            let listeners = (signal(SignalKind::interrupt()), signal(SignalKind::terminate()));
            let (Ok(mut interrupt), Ok(mut terminate)) = listeners else { return };
            if ready.send(()).is_err() {
                return; // Nobody records any more.
            }
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
            told.store(true, Ordering::Release);
        });
    })?;
    is_ready.recv().context("listening for Ctrl-C")?;
    Ok(interrupted)
}

/// True once every CPU is sampled; false if the engine ended or the person stopped it before.
fn wait_until_sampling(sampling: &Sampling, interrupted: &AtomicBool) -> bool {
    while !sampling.is_over() && !interrupted.load(Ordering::Acquire) {
        if sampling.control.wait_sampling(LOOK_EVERY) {
            return true;
        }
    }
    sampling.control.wait_sampling(Duration::ZERO)
}

/// The last line: what became of every tick of the clock, how good the stacks are, where it lies.
fn summary(window: &NamedWindow, place: &str) -> String {
    let ledger = &window.ledger;
    let names = window.name_counts();
    let waits = match ledger.waits {
        WaitLedger { switches: 0, .. } => String::new(),
        waits => format!(
            "; {} waits, {:.3} s off the CPU, {} of it without a stack, {} lost",
            waits.ended,
            Duration::from_nanos(waits.ns).as_secs_f64(),
            percent(waits.not_sampled_ns, waits.ns),
            waits.ends_lost.saturating_add(waits.threads_refused),
        ),
    };
    format!(
        "{} ticks: {} runs, {} asleep, {} missed; {} samples, {} idle, {} filtered, {} lost; \
         {} incomplete, {} of frames unnamed{waits}; wrote {place}",
        ledger.ticks_expected,
        ledger.runs,
        ledger.asleep,
        ledger.missed(),
        window.observations(),
        ledger.idle,
        ledger.filtered.saturating_add(ledger.unwanted),
        ledger.lost(),
        percent(ledger.received.saturating_sub(ledger.complete()), ledger.received),
        percent(names.unnamed(), names.frames),
    )
}

/// A share with two digits behind the point, rounded up: what is not zero does not look like it.
fn percent(part: u64, whole: u64) -> String {
    let share = part.saturating_mul(10_000).div_ceil(whole.max(1));
    format!("{}.{:02} %", share / 100, share % 100)
}
