//! The filter of processes, on the kernel of this machine, as root.

use super::programs::CHILDREN;
use super::run::{BOTH_FORMS, PLAIN, assert_ledger_closes, cannot_run, options, run};
use super::target::Target;
use crate::address::Pid;
use crate::bpf::{Record, Sampler};
use std::collections::HashSet;

/// CPU time of the children that a process has waited for, seconds (`proc_pid_stat(5)`, fields 16 and 17).
fn seconds_of_children(pid: Pid) -> f64 {
    let text = std::fs::read_to_string(format!("/proc/{}/stat", pid.0)).unwrap();
    let fields: Vec<&str> = text.rsplit_once(')').unwrap().1.split_ascii_whitespace().collect();
    let ticks = |field: usize| fields[field].parse::<f64>().unwrap();
    (ticks(13) + ticks(14)) / rustix::param::clock_ticks_per_second() as f64
}

#[test]
fn children_are_sampled_from_their_first_instruction_and_leave_the_filter_when_they_end() {
    if cannot_run() {
        return;
    }
    let target = Target::compile_and_run(CHILDREN, &PLAIN);
    for form in BOTH_FORMS {
        let options = options(form, target.pid());
        let (mut sampler, _tables) = Sampler::load(&options).unwrap();
        let before = seconds_of_children(target.pid());
        // The parent itself hardly runs: ten of its samples are hundreds of its children's.
        let (records, statistics) = run(&mut sampler, target.pid(), 10);
        let seconds = seconds_of_children(target.pid()) - before;
        assert_ledger_closes(&statistics);
        let mut children = HashSet::new();
        let mut samples = 0.0;
        for record in records {
            if let Record::Sample(sample) = record
                && sample.pid != target.pid()
            {
                children.insert(sample.pid);
                samples += 1.0;
            }
        }
        // A child lives for two ticks, so that one which a reader had to add would never be seen.
        let ran = statistics.total();
        let kept = ran.counters.runs as f64 / ran.ticks_expected as f64;
        let expected = seconds * f64::from(options.frequency_hz) * kept;
        // What a child does in its exit, after its time went to the parent, is sampled and not in the account:
        // up to 30 % of such short lives were measured. None of what is in the account may be missing.
        let tolerance = 5.5 * expected.sqrt() + 0.1 * expected + 10.0;
        let range = expected - tolerance..2.0 * expected + tolerance;
        assert!(range.contains(&samples), "{samples} of {expected}, not in {range:?}");
        assert!(children.len() > 20, "{} children", children.len());
        assert!(sampler.included() < 200, "{} in the filter", sampler.included());
        assert_eq!(ran.counters.children_missed, 0);
        eprintln!("{form:?}: {samples} samples of {expected:.0}, {} children", children.len());
    }
}
