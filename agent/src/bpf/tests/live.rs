//! The programs on the kernel of this machine, as root.

use super::target::{TableLoader, Target};
use crate::address::Generation;
use crate::bpf::{FormChoice, Options, RawSample, Record, Sampler, Statistics, Tables};
use agent_ebpf::Outcome;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Why a live test cannot run here; it says so.
fn cannot_run() -> bool {
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

const BOTH_FORMS: [FormChoice; 2] = [FormChoice::BpfLoop, FormChoice::TailCalls];

fn load(form: FormChoice) -> (Sampler, Tables) {
    let options = Options { frequency_hz: 199, form, ..Options::default() };
    Sampler::load(&options).unwrap_or_else(|error| panic!("{form:?}: {error}"))
}

fn collect(sampler: &mut Sampler, time: Duration) -> (Vec<RawSample>, Statistics) {
    let mut samples = Vec::new();
    let mut keep = |record| {
        if let Record::Sample(sample) = record {
            samples.push(sample);
        }
    };
    let end = Instant::now() + time;
    while Instant::now() < end {
        sampler.poll(Duration::from_millis(50), &mut keep).unwrap();
    }
    sampler.stop().unwrap();
    sampler.flush(&mut keep);
    (samples, sampler.statistics().unwrap())
}

const DEEP: &str = r#"
#include <alloca.h>
#include <stdlib.h>
#include <string.h>
volatile unsigned long sink;
static __attribute__((noinline)) void burn(int n) { for (int i = 0; i < n; i++) sink += i * i; }
static __attribute__((noinline)) int compare(const void *a, const void *b) {
    burn(40);
    return *(const int *)a - *(const int *)b;
}
static __attribute__((noinline)) int deep(int n, char *p) {
    char *more = alloca(n * 8 + 16);
    memset(more, n, n * 8 + 16);
    if (n == 0) {
        int values[64];
        for (int i = 0; i < 64; i++) values[i] = (i * 37) % 64;
        qsort(values, 64, sizeof(int), compare);
        burn(1000);
        return values[3] + more[0];
    }
    return deep(n - 1, more) + more[n] + (p ? p[0] : 0);
}
int main(void) { for (;;) sink += deep(20, 0); }
"#;

#[test]
fn c_without_frame_pointers_unwinds_to_its_start_in_both_forms() {
    if cannot_run() {
        return;
    }
    let target = Target::compile_and_run(DEEP, &["-O2", "-fomit-frame-pointer"]);
    std::thread::sleep(Duration::from_millis(100));
    for form in BOTH_FORMS {
        let (mut sampler, mut tables) = load(form);
        TableLoader::default().load(&mut tables, target.pid(), Generation(7));
        sampler.start().unwrap();
        let (samples, statistics) = collect(&mut sampler, Duration::from_secs(2));
        let mine: Vec<_> = samples.iter().filter(|sample| sample.pid == target.pid()).collect();
        let mut outcomes = BTreeMap::new();
        for sample in &mine {
            *outcomes.entry(sample.outcome).or_insert(0) += 1;
        }
        let depth = mine.iter().map(|s| s.user.len()).sum::<usize>() / mine.len().max(1);
        eprintln!(
            "{form:?}: {} samples, depth {depth}, {outcomes:?}, {:?}",
            mine.len(),
            statistics.total()
        );
        eprintln!("{:?} map bytes {}", tables.sizes(), sampler.map_bytes());
        assert!(mine.len() > 50);
        assert_eq!(outcomes.keys().collect::<Vec<_>>(), [&Outcome::Complete]);
        assert!(mine.iter().all(|sample| sample.generation == Generation(7)));
    }
}
