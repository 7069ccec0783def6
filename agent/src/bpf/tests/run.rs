//! How the live tests load a sampler and run it. Each test has a sampler of its own.

use super::target::{TableLoader, Target};
use crate::address::{Generation, Pid};
use crate::bpf::{FormChoice, Options, RawSample, Record, Sampler, Statistics, Tables};
use agent_ebpf::Outcome;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

pub(super) const BOTH_FORMS: [FormChoice; 2] = [FormChoice::BpfLoop, FormChoice::TailCalls];
pub(super) const PLAIN: [&str; 2] = ["-O2", "-fomit-frame-pointer"];
pub(super) const GENERATION: Generation = Generation(7);

/// One that nothing was published as before.
pub(super) fn next_generation() -> Generation {
    static NEXT: AtomicU32 = AtomicU32::new(GENERATION.0 + 1);
    Generation(NEXT.fetch_add(1, Ordering::Relaxed))
}

/// True, after saying why, if live tests cannot run here.
pub(super) fn cannot_run() -> bool {
    if crate::bpf::object::OBJECT.is_none() {
        eprintln!("skipped: built without BPF programs (VESTA_BPF_OBJECT=none)");
        return true;
    }
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: loading BPF programs needs root");
        return true;
    }
    false
}

pub(super) fn options(form: FormChoice, pid: Pid) -> Options {
    Options { frequency_hz: 499, form, pid_filter: Some(vec![pid]), ..Options::default() }
}

/// A sampler of one process whose tables are loaded, not started.
pub(super) fn load(options: &Options, target: &Target) -> (Sampler, Tables) {
    let loaded = Sampler::load(options);
    let (sampler, mut tables) = loaded.unwrap_or_else(|error| panic!("{options:?}: {error}"));
    TableLoader::default().load(&mut tables, target.pid(), GENERATION);
    (sampler, tables)
}

/// Samples that a test wants of its process, and how long it waits for them: two CPUs are shared with
/// whatever else runs.
pub(super) const WANTED: usize = 200;
pub(super) const PATIENCE: Duration = Duration::from_secs(20);

/// Runs until `wanted` samples of `pid` have come, and takes everything out.
pub(super) fn run(sampler: &mut Sampler, pid: Pid, wanted: usize) -> (Vec<Record>, Statistics) {
    let mut records = Vec::new();
    let mut seen = 0;
    let mut keep = |record| {
        seen += usize::from(matches!(&record, Record::Sample(sample) if sample.pid == pid));
        records.push(record);
        seen
    };
    sampler.start().unwrap();
    let end = Instant::now() + PATIENCE;
    let mut so_far = 0;
    while so_far < wanted && Instant::now() < end {
        sampler.poll(Duration::from_millis(20), &mut |record| so_far = keep(record)).unwrap();
    }
    sampler.stop().unwrap();
    sampler.flush(&mut |record| so_far = keep(record));
    assert!(so_far >= wanted, "{so_far} samples in {PATIENCE:?}: {:?}", sampler.statistics());
    (records, sampler.statistics().unwrap())
}

pub(super) fn samples(records: Vec<Record>, pid: Pid) -> Vec<RawSample> {
    let samples = records.into_iter().filter_map(|record| match record {
        Record::Sample(sample) => Some(sample),
        _ => None,
    });
    samples.filter(|sample| sample.pid == pid).collect()
}

pub(super) fn outcomes(samples: &[RawSample]) -> BTreeMap<Outcome, usize> {
    let mut outcomes = BTreeMap::new();
    for sample in samples {
        *outcomes.entry(sample.outcome).or_insert(0) += 1;
    }
    outcomes
}

/// Every run of the programs became exactly one thing.
pub(super) fn assert_ledger_closes(statistics: &Statistics) {
    for cpu in &statistics.cpus {
        let counters = &cpu.counters;
        let explained = counters.idle + counters.shipped + counters.lost + counters.filtered;
        assert_eq!(counters.runs, explained, "{cpu:?}");
        assert_eq!(
            counters.outcomes.iter().sum::<u64>(),
            counters.shipped + counters.lost,
            "{cpu:?}"
        );
    }
    assert_eq!(statistics.malformed, 0);
}

pub(super) fn samples_of(
    target: &Target,
    options: &Options,
) -> (Vec<RawSample>, Statistics, Sampler) {
    let (mut sampler, _tables) = load(options, target);
    let (records, statistics) = run(&mut sampler, target.pid(), WANTED);
    assert_ledger_closes(&statistics);
    (samples(records, target.pid()), statistics, sampler)
}
