//! What a forked process has of its parent's tables, on the kernel of this machine, as root.

use super::programs::CHILDREN;
use super::run::{BOTH_FORMS, GENERATION, PLAIN, assert_ledger_closes, cannot_run, load, options};
use super::target::{TableLoader, Target};
use crate::address::{AbsAddr, Generation, Pid};
use crate::bpf::{MappingUnwind, Options, Record, Sampler, Tables, WalkMapping};
use crate::clock::{MonotonicNs, monotonic_now};
use agent_ebpf::Outcome;
use agent_ebpf::limits::REUSE_DELAY_NS;
use std::collections::{BTreeMap, HashSet};
use std::time::{Duration, Instant};

/// Seconds that children are forked for, each of them 4 ms of CPU time.
const SECONDS: u64 = 3;
/// Samples of children, but for those in their exit, whose stack is whole.
const COMPLETE_SHARE_MIN: f64 = 0.99;

/// What a run of [`CHILDREN`] brought.
#[derive(Debug, Default)]
struct Family {
    outcomes: BTreeMap<Outcome, u32>,
    children: HashSet<Pid>,
    inherited: u32,
}

/// Runs for a while as an agent does: takes records in, hands layouts on, publishes the parent again and again.
fn watch(sampler: &mut Sampler, tables: &mut Tables, target: &Target, republish: bool) -> Family {
    let mappings = TableLoader::default().mappings(tables, target.pid());
    let extra = |round: u64| WalkMapping {
        start: AbsAddr(0x1_0000 + round * 0x1000),
        end: AbsAddr(0x1_1000 + round * 0x1000),
        bias: 0,
        unwind: MappingUnwind::Pending,
    };
    let mut family = Family::default();
    let mut handed = Vec::new();
    let end = Instant::now() + Duration::from_secs(SECONDS);
    let mut round = 0;
    sampler.start().unwrap();
    while Instant::now() < end {
        round += 1;
        sampler.poll(Duration::from_millis(10), &mut |record| handed.push(record)).unwrap();
        for record in handed.drain(..) {
            match record {
                Record::Inherited { pid, entry, .. } => {
                    family.inherited += 1;
                    tables.inherit(pid, entry);
                }
                Record::Sample(sample) if sample.pid != target.pid() => {
                    family.children.insert(sample.pid);
                    // In the kernel, at its end: its memory is gone.
                    let gone = !sample.kernel.is_empty()
                        && matches!(
                            sample.outcome,
                            Outcome::StackUnreadable | Outcome::NoUserStack
                        );
                    if !gone {
                        *family.outcomes.entry(sample.outcome).or_default() += 1;
                    }
                }
                Record::Process(crate::bpf::ProcessEvent::Exit { pid, .. }) => {
                    tables.remove_process(pid).unwrap();
                }
                _ => {}
            }
        }
        tables.records_known_until(sampler.complete_until());
        if republish {
            // Another layout each time: the one before goes while children have it.
            let more: Vec<_> = mappings.iter().copied().chain([extra(round % 50)]).collect();
            let generation = Generation(u32::try_from(100 + round).unwrap());
            tables.set_process(target.pid(), generation, &more).unwrap();
        }
    }
    sampler.stop().unwrap();
    family
}

#[test]
fn children_are_walked_by_their_parents_tables_whatever_becomes_of_the_parent() {
    if cannot_run() {
        return;
    }
    // Nothing is bound when it is first called: the walk does not follow that.
    let target = Target::compile_and_run(CHILDREN, &[PLAIN[0], PLAIN[1], "-Wl,-z,now"]);
    for form in BOTH_FORMS {
        for republish in [false, true] {
            let (mut sampler, mut tables) = load(&options(form, target.pid()), &target);
            let family = watch(&mut sampler, &mut tables, &target, republish);
            let statistics = sampler.statistics().unwrap();
            assert_ledger_closes(&statistics);
            eprintln!(
                "{form:?}, republish {republish}: {:?} of {} children, {:?}",
                family.outcomes,
                family.children.len(),
                tables.sizes()
            );
            let all: u32 = family.outcomes.values().sum();
            let complete = family.outcomes.get(&Outcome::Complete).copied().unwrap_or(0);
            let share = f64::from(complete) / f64::from(all);
            assert!(family.children.len() > 50, "{} children", family.children.len());
            assert!(share >= COMPLETE_SHARE_MIN, "{share} of {all} are complete");
            let counters = statistics.total().counters;
            // A fork that meets the parent's entry while it is replaced gives the child none: about 1 us of the
            // 10 ms between two layouts.
            let missed_max = if republish { counters.inherited / 20 } else { 0 };
            assert!(counters.inherited_missed <= missed_max, "{counters:?}");
            let noted = counters.inherited + counters.inherited_missed;
            assert!(u64::from(family.inherited) <= noted, "{counters:?}");
            // The parent, children of the last moment, and of each of them a layout.
            assert!(tables.entries() < 20, "{} entries are left", tables.entries());
            let sizes = tables.sizes();
            assert!(sizes.layouts < 100, "{sizes:?}");
        }
    }
}

#[test]
fn a_layout_stays_until_nobody_can_have_it() {
    if cannot_run() {
        return;
    }
    let (_sampler, mut tables) = Sampler::load(&Options::default()).unwrap();
    let mapping = WalkMapping {
        start: AbsAddr(0x40_0000),
        end: AbsAddr(0x50_0000),
        bias: 0,
        unwind: MappingUnwind::Pending,
    };
    let [parent, child, late] = [1, 2, 3].map(|number| Pid(u32::MAX - number));
    tables.set_process(parent, GENERATION, &[mapping]).unwrap();
    let entry = tables.entry(parent).unwrap();
    assert_eq!(entry.generation, GENERATION.0);
    tables.remove_process(parent).unwrap();
    let left = monotonic_now();
    let after = |ns: u64| MonotonicNs(left.0 + ns);
    tables.records_known_until(left);
    assert_eq!(tables.sizes().layouts, 1, "a child of that moment is told of later");
    assert!(tables.inherit(child, entry), "the layout is there");
    assert!(!tables.inherit(child, entry), "it has one");
    tables.records_known_until(after(10 * REUSE_DELAY_NS));
    assert_eq!(tables.sizes().layouts, 1, "the child has it");
    tables.remove_process(child).unwrap();
    let long_after = monotonic_now().plus(REUSE_DELAY_NS);
    tables.records_known_until(long_after);
    assert_eq!((tables.sizes().layouts, tables.sizes().pages), (0, 0));
    assert!(!tables.inherit(late, entry), "the pages may be another's");
    assert_eq!(tables.sizes().processes, 0);
}
