//! The tables of mappings as the walker sees them, on the kernel of this machine, as root.

use super::programs::DEEP;
use super::run::{PLAIN, cannot_run, load, next_generation, options, outcomes, run, samples};
use super::target::{TableLoader, Target};
use crate::address::{AbsAddr, Generation, Pid};
use crate::bpf::{FormChoice, MappingUnwind, Options, Sampler, WalkMapping};
use crate::clock::monotonic_now;
use agent_ebpf::limits::REUSE_DELAY_NS;
use agent_ebpf::{Outcome, RuleKind, UnwindRule};

/// A mapping of all user space.
fn everywhere(unwind: MappingUnwind) -> WalkMapping {
    WalkMapping { start: AbsAddr(4096), end: AbsAddr(1 << 47), bias: 0, unwind }
}

#[test]
fn what_a_mapping_says_decides_how_the_walk_ends() {
    if cannot_run() {
        return;
    }
    let target = Target::compile_and_run(DEEP, &PLAIN);
    let (mut sampler, mut tables) = load(&options(FormChoice::Auto, target.pid()), &target);
    let rule = |kind| everywhere(MappingUnwind::Rule(UnwindRule::plain(kind)));
    let rows = [
        (vec![], Outcome::MappingUnknown),
        (vec![everywhere(MappingUnwind::Pending)], Outcome::TablePending),
        (vec![rule(RuleKind::End)], Outcome::Complete),
        (vec![rule(RuleKind::Unsupported)], Outcome::RuleUnsupported),
    ];
    for (mappings, expected) in rows {
        let before = sampler.statistics().unwrap().total().counters.notes;
        assert_eq!(tables.set_process(target.pid(), next_generation(), &mappings).unwrap(), 0);
        let (records, statistics) = run(&mut sampler, target.pid(), 20);
        let notes = statistics.total().counters.notes - before;
        // A missing table is told of too: if it was removed, it is made again.
        let wanted = matches!(expected, Outcome::MappingUnknown | Outcome::TablePending);
        assert_eq!(notes > 0, wanted, "{expected:?}");
        let samples = samples(records, target.pid());
        assert_eq!(outcomes(&samples).into_keys().collect::<Vec<_>>(), [expected]);
        assert!(samples.iter().all(|sample| sample.user.len() == 1));
    }
}

#[test]
fn more_mappings_than_a_page_holds_are_found() {
    if cannot_run() {
        return;
    }
    let target = Target::compile_and_run(DEEP, &PLAIN);
    let loaded = Sampler::load(&options(FormChoice::Auto, target.pid()));
    let (mut sampler, mut tables) = loaded.unwrap();
    let real = TableLoader::default().mappings(&mut tables, target.pid());
    let small = |n: u64, base: u64| WalkMapping {
        start: AbsAddr(base + n * 8192),
        end: AbsAddr(base + n * 8192 + 4096),
        bias: 0,
        unwind: MappingUnwind::Pending,
    };
    // Small mappings below the program, the real ones, and small ones above.
    for before in [0_u64, 1, 62, 63, 64, 65, 1000, 8000] {
        let mut mappings: Vec<_> = (0..before).map(|n| small(n, 65536)).collect();
        mappings.extend(&real);
        mappings.extend((0..70).map(|n| small(n, 0x7fff_ffff_f000)));
        let left_out = tables.set_process(target.pid(), next_generation(), &mappings).unwrap();
        assert_eq!(left_out, 0);
        let (records, _) = run(&mut sampler, target.pid(), 20);
        let samples = samples(records, target.pid());
        assert_eq!(
            outcomes(&samples).into_keys().collect::<Vec<_>>(),
            [Outcome::Complete],
            "{before}"
        );
    }
}

#[test]
fn processes_with_equal_layouts_share_it_and_a_removed_table_stays_while_it_is_used() {
    if cannot_run() {
        return;
    }
    let (_sampler, mut tables) = Sampler::load(&Options::default()).unwrap();
    let rules = vec![
        UnwindRule { offset: 8, ..UnwindRule::plain(RuleKind::RspOffset) },
        UnwindRule::plain(RuleKind::NoInfo),
    ];
    let rows = crate::unwind::RowTable::new(0x1000, rules, [(0, 0), (16, 1)]).unwrap();
    let table = tables.insert(&rows).unwrap();
    let mapping = WalkMapping {
        start: AbsAddr(0x40_0000),
        end: AbsAddr(0x50_0000),
        bias: 0x40_0000,
        unwind: MappingUnwind::Table(table),
    };
    let (first, second) = (Pid(u32::MAX - 1), Pid(u32::MAX - 2));
    for (pid, generation) in [(first, 1), (second, 2), (first, 3)] {
        tables.set_process(pid, Generation(generation), &[mapping]).unwrap();
    }
    let sizes = tables.sizes();
    assert_eq!(
        (sizes.layouts, sizes.pages, sizes.processes, sizes.tables, sizes.rules),
        (1, 1, 2, 1, 2)
    );
    tables.remove(table);
    tables.remove_process(first).unwrap();
    assert_eq!(tables.sizes().tables, 1, "the second process still uses it");
    let refused = tables.set_process(
        first,
        Generation(4),
        &[WalkMapping { end: AbsAddr(0x60_0000), ..mapping }],
    );
    assert!(refused.is_err(), "a removed table is not given out again");
    tables.remove_process(second).unwrap();
    tables.remove_process(second).unwrap(); // twice is no error: exec may have been first
    tables.records_known_until(monotonic_now().plus(REUSE_DELAY_NS));
    let sizes = tables.sizes();
    assert_eq!(
        (sizes.layouts, sizes.pages, sizes.processes, sizes.tables, sizes.rules),
        (0, 0, 0, 0, 1)
    );
    assert_eq!((sizes.chunks, sizes.slabs), (0, 2), "slabs stay for the next");
}
