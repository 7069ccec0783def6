//! Do the records of the life of processes come, and does the ledger close.

use crate::report::{Report, Verdict};
use crate::{hotplug, unseen};
use agent::address::Pid;
use agent::bpf::{BpfError, ProcessEvent, Record, Sampler, Statistics};
use anyhow::Result;
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// Processes that are started.
const PROCESSES: usize = 20;
/// For so long it is sampled at least.
const DURATION: Duration = Duration::from_millis(300);
/// A thread waits for so long.
const SLEEP: Duration = Duration::from_millis(20);
/// How long their records may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// Processes by what was heard of them.
#[derive(Debug, Default)]
struct Heard {
    fork: BTreeSet<Pid>,
    exec: BTreeSet<Pid>,
    path: BTreeSet<Pid>,
    build_id: BTreeSet<Pid>,
    exit: BTreeSet<Pid>,
    /// Waits whose stack was sent, and ends of such waits.
    waits: usize,
    wait_ends: usize,
    /// Last words of threads.
    thread_ends: usize,
}

impl Heard {
    fn hear(&mut self, record: Record) {
        let event = match record {
            Record::Process(event) => event,
            Record::Wait(_) => return self.waits += 1,
            Record::WaitEnd { .. } => return self.wait_ends += 1,
            Record::ThreadEnd { .. } => return self.thread_ends += 1,
            _ => return,
        };
        match event {
            ProcessEvent::Fork { pid, .. } => drop(self.fork.insert(pid)),
            ProcessEvent::Comm { pid, exec: true, .. } => drop(self.exec.insert(pid)),
            ProcessEvent::Mmap { pid, path, build_id, .. } if path.ends_with(b"/brief") => {
                self.path.insert(pid);
                if build_id.is_some() {
                    self.build_id.insert(pid);
                }
            }
            ProcessEvent::Exit { pid, .. } => drop(self.exit.insert(pid)),
            _ => {}
        }
    }

    fn count(of: &BTreeSet<Pid>, started: &BTreeSet<Pid>) -> usize {
        of.intersection(started).count()
    }
}

/// Starts processes that end at once, and looks for their records.
pub(crate) fn check(report: Report, mut sampler: Sampler, folder: &Path) -> Result<()> {
    let mut heard = Heard::default();
    sampler.start()?;
    let mut started = BTreeSet::new();
    for _ in 0..PROCESSES {
        let mut child = Command::new(folder.join("brief")).arg("no longer").spawn()?;
        started.insert(Pid(child.id()));
        child.wait()?;
    }
    // One thread is sure to wait and to end: the programs need not have waited at all.
    let sleeper = std::thread::spawn(|| std::thread::sleep(SLEEP));
    drop(sleeper.join());
    let begin = Instant::now();
    let all_heard = |heard: &Heard| Heard::count(&heard.exit, &started) == PROCESSES;
    while begin.elapsed() < DURATION || !all_heard(&heard) && begin.elapsed() < PATIENCE {
        sampler.poll(Duration::from_millis(50), &mut |record| heard.hear(record))?;
    }
    unseen::check(report, &mut sampler, &mut |record| heard.hear(record))?;
    hotplug::check(report, &mut sampler, &mut |record| heard.hear(record))?;
    sampler.stop()?;
    sampler.flush(&mut |record| heard.hear(record));
    let kinds = [&heard.fork, &heard.exec, &heard.path, &heard.exit];
    let [fork, exec, path, exit] = kinds.map(|kind| Heard::count(kind, &started));
    let build_id = Heard::count(&heard.build_id, &started);
    let build_ids_missing = sampler.kernel_build_ids() && build_id < PROCESSES;
    let whole = [fork, exec, path, exit].iter().all(|&count| count == PROCESSES);
    report.line(
        "lifecycle",
        Verdict::of(whole && !build_ids_missing),
        &[
            ("started", &PROCESSES),
            ("fork", &fork),
            ("exec", &exec),
            ("path", &path),
            ("build_id", &build_id),
            ("exit", &exit),
        ],
    );
    waits(report, &sampler, &heard)?;
    ledger(report, sampler.statistics());
    Ok(())
}

/// Waits are measured: children were waited for, so there were some; each sum of a thread is one.
fn waits(report: Report, sampler: &Sampler, heard: &Heard) -> Result<()> {
    let mut threads = 0_usize;
    let mut told = 0_u64;
    sampler.threads(&mut |reading| {
        threads += 1;
        told += reading.thread.sums.iter().map(|sums| sums.count).sum::<u64>();
    })?;
    let counters = sampler.statistics()?.waits.unwrap_or_default();
    let refused = sampler.waits_refused().map_or(String::new(), ToString::to_string);
    let Heard { waits, wait_ends, thread_ends, .. } = *heard;
    let passed = [waits, wait_ends, thread_ends, threads].iter().all(|count| *count > 0)
        && told > 0
        && told <= counters.waits
        && counters.negative + counters.absurd + counters.threads_refused == 0;
    report.line(
        "waits",
        Verdict::of(passed && refused.is_empty()),
        &[
            ("switches", &counters.switches),
            ("waits", &counters.waits),
            ("negative", &counters.negative),
            ("stacks", &waits),
            ("ends", &wait_ends),
            ("threads", &threads),
            ("thread_ends", &thread_ends),
            ("refused", &refused),
        ],
    );
    Ok(())
}

/// Every run of the programs is one thing, on each CPU.
fn ledger(report: Report, statistics: Result<Statistics, BpfError>) {
    let statistics = match statistics {
        Ok(statistics) => statistics,
        Err(error) => return report.line("ledger", Verdict::Failed, &[("error", &error)]),
    };
    let closes = statistics.cpus.iter().all(|cpu| {
        let of = &cpu.counters;
        let shipped = of.shipped + of.lost;
        of.runs > 0
            && of.runs == of.idle + of.filtered + shipped
            && of.outcomes.iter().sum::<u64>() == shipped
    });
    let total = statistics.total();
    report.line(
        "ledger",
        Verdict::of(closes && statistics.malformed == 0),
        &[
            ("ticks", &total.ticks_expected),
            ("runs", &total.counters.runs),
            ("asleep", &total.asleep),
            ("missed", &total.missed()),
            ("idle", &total.counters.idle),
            ("shipped", &total.counters.shipped),
            ("lost", &total.counters.lost),
            ("malformed", &statistics.malformed),
        ],
    );
}
