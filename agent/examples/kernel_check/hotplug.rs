//! Is a CPU that goes offline and comes back sampled again, and does its account go on.

use crate::report::{Report, Verdict};
use agent::bpf::{Record, Sampler};
use anyhow::Result;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

/// Takes the second CPU away and gives it back; the first one may have no such file.
const SWITCH: &str = "/sys/devices/system/cpu/cpu1/online";
const CPU: u32 = 1;
/// For so long it is away.
const AWAY: Duration = Duration::from_millis(200);
/// Runs that say that it is sampled again.
const RUNS: u64 = 20;
/// How long these may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// Runs and ticks of that CPU.
fn account(sampler: &Sampler) -> Result<(u64, u64)> {
    let statistics = sampler.statistics()?;
    let cpu = statistics.cpus.iter().find(|it| it.cpu == CPU).copied().unwrap_or_default();
    Ok((cpu.counters.runs, cpu.ticks_expected))
}

/// Takes a CPU away from a running sampler. Its records are handed on.
pub(crate) fn check(
    report: Report,
    sampler: &mut Sampler,
    each: &mut dyn FnMut(Record),
) -> Result<()> {
    if !Path::new(SWITCH).exists() {
        report.line("hotplug", Verdict::Absent, &[("missing", &SWITCH)]);
        return Ok(());
    }
    sampler.follow_cpus();
    fs::write(SWITCH, "0")?;
    std::thread::sleep(AWAY);
    sampler.follow_cpus();
    let (runs_before, ticks_before) = account(sampler)?;
    fs::write(SWITCH, "1")?;
    let begin = Instant::now();
    let (mut runs, mut ticks) = (runs_before, ticks_before);
    while runs < runs_before + RUNS && begin.elapsed() < PATIENCE {
        sampler.poll(Duration::from_millis(50), &mut |record| each(record))?;
        sampler.follow_cpus();
        (runs, ticks) = account(sampler)?;
    }
    let again = runs >= runs_before + RUNS && ticks >= ticks_before + RUNS;
    let not_sampled = sampler.statistics()?.cpus_not_sampled;
    report.line(
        "hotplug",
        Verdict::of(again && not_sampled == 0),
        &[
            ("runs", &(runs - runs_before)),
            ("ticks", &ticks.saturating_sub(ticks_before)),
            ("after_ms", &begin.elapsed().as_millis()),
            ("not_sampled", &not_sampled),
        ],
    );
    Ok(())
}
