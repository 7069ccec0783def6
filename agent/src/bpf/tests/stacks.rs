//! Copies of the stack and rules of the innermost frame, on the kernel of this machine, as root.

use super::programs::{DEEP, REGISTER_RULES, THREADS};
use super::run::{
    BOTH_FORMS, PLAIN, WANTED, cannot_run, load, next_generation, options, outcomes, run,
};
use super::run::{assert_ledger_closes, samples};
use super::target::{TableLoader, Target};
use crate::address::AbsAddr;
use crate::bpf::{FormChoice, MappingUnwind, RawSample, Sampler};
use agent_ebpf::limits::{PAGE_BYTES, STACK_BURST, STACK_BYTES_MAX, STACK_INTERVAL_NS_MIN};
use agent_ebpf::walk::Registers;
use agent_ebpf::{Outcome, RuleKind, UnwindRule};
use std::os::unix::fs::FileExt as _;

/// The stack of a process: start and end of its mapping.
fn stack_of(target: &Target) -> (u64, u64) {
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", target.pid().0)).unwrap();
    let line = maps.lines().find(|line| line.ends_with("[stack]")).expect("a stack");
    let (start, rest) = line.split_once('-').unwrap();
    let (end, _) = rest.split_once(' ').unwrap();
    let number = |text| u64::from_str_radix(text, 16).unwrap();
    (number(start), number(end))
}

#[test]
fn a_sample_without_tables_takes_its_stack_along() {
    if cannot_run() {
        return;
    }
    let target = Target::compile_and_run(DEEP, &PLAIN);
    let (_, top) = stack_of(&target);
    for form in BOTH_FORMS {
        let (mut sampler, mut tables) = load(&options(form, target.pid()), &target);
        tables.remove_process(target.pid()).unwrap();
        let begun = std::time::Instant::now();
        let (records, statistics) = run(&mut sampler, target.pid(), WANTED);
        let seconds = begun.elapsed().as_secs_f64();
        assert_ledger_closes(&statistics);
        let samples = samples(records, target.pid());
        let copies: Vec<_> = samples.iter().filter_map(|sample| sample.stack.as_ref()).collect();
        let total = statistics.total().counters;
        assert_eq!(total.stacks, copies.len() as u64, "{total:?}");
        assert_eq!(total.stacks + total.stacks_held, total.shipped, "{total:?}");
        // Two CPUs: a burst each, then a copy in each interval.
        let most = 2.0 * (STACK_BURST as f64 + seconds * 1e9 / STACK_INTERVAL_NS_MIN as f64);
        assert!(
            !copies.is_empty() && (copies.len() as f64) < most,
            "{} in {seconds} s",
            copies.len()
        );
        for sample in samples.iter().filter(|sample| sample.stack.is_some()) {
            check_copy(sample, top);
        }
    }
}

/// The copy is that of the leaf, in whole pages from the stack pointer on, at most up to the limit and the
/// top. It ends earlier where a page was never touched: such lie between `main` and the arguments.
fn check_copy(sample: &RawSample, top: u64) {
    let copy = sample.stack.as_ref().expect("it has one");
    assert_eq!(copy.ip, sample.user[0].address);
    assert!(copy.exact);
    let page = PAGE_BYTES as u64;
    let end = copy.sp.0 + copy.bytes.len() as u64;
    let whole = (copy.sp.0 / page * page) + STACK_BYTES_MAX as u64;
    assert!(end.is_multiple_of(page) && end <= whole.min(top), "{end:x}, top {top:x}");
}

#[test]
fn a_copy_holds_the_return_addresses_of_the_walk() {
    if cannot_run() {
        return;
    }
    let target = Target::compile_and_run(DEEP, &PLAIN);
    let loaded = Sampler::load(&options(FormChoice::Auto, target.pid()));
    let (mut sampler, mut tables) = loaded.unwrap();
    let mut mappings = TableLoader::default().mappings(&mut tables, target.pid());
    // The program is known, the C library is not yet: walks stop in its start-up code or in qsort.
    let program = mappings.iter().map(|mapping| mapping.start).min().unwrap();
    for mapping in mappings.iter_mut().filter(|mapping| mapping.start.0 > program.0 + (1 << 24)) {
        mapping.unwind = MappingUnwind::Pending;
    }
    tables.set_process(target.pid(), next_generation(), &mappings).unwrap();
    let (records, _) = run(&mut sampler, target.pid(), WANTED);
    let samples = samples(records, target.pid());
    assert_eq!(outcomes(&samples).into_keys().collect::<Vec<_>>(), [Outcome::TablePending]);
    let copied = samples.iter().filter(|sample| sample.stack.is_some());
    let mut callers = 0;
    for sample in copied {
        let (copy, last) = (sample.stack.as_ref().unwrap(), sample.user.last().unwrap());
        assert_eq!((copy.ip, copy.exact), (last.address, last.exact));
        if sample.user.len() > 1 {
            callers += 1;
            assert!(!last.exact, "the walk stopped at a caller");
        }
    }
    assert!(callers > 0);
}

#[test]
fn the_innermost_frame_may_be_found_by_any_register() {
    if cannot_run() {
        return;
    }
    let rule = |kind, addend| UnwindRule { addend, ..UnwindRule::plain(kind) };
    let rows = [
        ("-DRETURN_REGISTER", rule(RuleKind::ReturnRegister, 5)), // rdi
        ("-DLEAF_REGISTER", rule(RuleKind::LeafRegister, 10)),    // r10
    ];
    for (flag, rule) in rows {
        let flags = ["-O2", "-no-pie", "-Wl,--section-start=.hot=0x10000000", flag];
        let target = Target::compile_and_run(REGISTER_RULES, &flags);
        for form in BOTH_FORMS {
            let (mut sampler, mut tables) = Sampler::load(&options(form, target.pid())).unwrap();
            let mut mappings = TableLoader::default().mappings(&mut tables, target.pid());
            let hot = mappings.iter_mut().find(|mapping| mapping.start == AbsAddr(0x1000_0000));
            hot.expect("a mapping of its own").unwind = MappingUnwind::Rule(rule);
            tables.set_process(target.pid(), next_generation(), &mappings).unwrap();
            let (records, _) = run(&mut sampler, target.pid(), WANTED);
            let samples = samples(records, target.pid());
            let seen = outcomes(&samples);
            // An instruction or two at either end of the function are not as the rule says.
            let whole = seen.get(&Outcome::Complete).copied().unwrap_or(0);
            assert!(whole + 2 >= samples.len(), "{flag} {form:?}: {seen:?}");
            let complete = samples.iter().filter(|sample| sample.outcome == Outcome::Complete);
            // The hot function, main, its two callers in the C library and _start.
            assert!(complete.into_iter().all(|sample| sample.user.len() == 5), "{flag}");
        }
        // The same rule in a caller's frame says nothing: its registers are gone.
        let (mut sampler, mut tables) =
            Sampler::load(&options(FormChoice::Auto, target.pid())).unwrap();
        let mut mappings = TableLoader::default().mappings(&mut tables, target.pid());
        for mapping in &mut mappings {
            mapping.unwind = MappingUnwind::Rule(rule);
        }
        tables.set_process(target.pid(), next_generation(), &mappings).unwrap();
        let (records, _) = run(&mut sampler, target.pid(), 20);
        let samples = samples(records, target.pid());
        let second = samples.iter().filter(|sample| sample.user.len() == 2);
        assert!(second.clone().count() + 2 >= samples.len());
        assert!(second.into_iter().all(|sample| sample.outcome == Outcome::RuleUnsupported));
    }
}

/// What the walk in user space then needs of the innermost frame (`unwind::walk`).
#[test]
fn a_copy_has_the_registers_of_the_innermost_frame() {
    if cannot_run() {
        return;
    }
    let rdi = 5;
    let flags = ["-O2", "-no-pie", "-Wl,--section-start=.hot=0x10000000", "-DRETURN_REGISTER"];
    let target = Target::compile_and_run(REGISTER_RULES, &flags);
    let (mut sampler, mut tables) =
        Sampler::load(&options(FormChoice::Auto, target.pid())).unwrap();
    let mut mappings = TableLoader::default().mappings(&mut tables, target.pid());
    let program = mappings.iter().map(|mapping| mapping.start).min().unwrap();
    let hot = mappings.iter_mut().find(|mapping| mapping.start == AbsAddr(0x1000_0000));
    hot.expect("a mapping of its own").unwind = MappingUnwind::Pending;
    tables.set_process(target.pid(), next_generation(), &mappings).unwrap();
    let (records, _) = run(&mut sampler, target.pid(), WANTED);
    let samples = samples(records, target.pid());
    let copies: Vec<_> = samples.iter().filter_map(|sample| sample.stack.as_ref()).collect();
    let in_main = |address: u64| (program.0..program.0 + 0x1_0000).contains(&address);
    let known = copies.iter().filter(|copy| {
        let own = (copy.general[Registers::SP], copy.general[Registers::BP]);
        assert!(copy.innermost && own == (copy.sp.0, copy.bp), "{:x?}", copy.general);
        in_main(copy.general[rdi])
    });
    let known = known.count();
    // An instruction at either end of the function has it on the stack.
    assert!(!copies.is_empty() && known + 2 >= copies.len(), "{known} of {}", copies.len());
}

/// Behind the system call in `clone`, the new thread has nothing on its stack that is a frame.
#[test]
fn a_thread_that_begins_has_one_frame() {
    if cannot_run() {
        return;
    }
    // mov $435,%eax; syscall, of `clone3`
    const CALL: [u8; 7] = [0xb8, 0xb3, 1, 0, 0, 0x0f, 0x05];
    let target = Target::compile_and_run(THREADS, &["-O2", "-pthread"]);
    let memory = std::fs::File::open(format!("/proc/{}/mem", target.pid().0)).unwrap();
    let behind_call = |address: u64| {
        let mut before = [0; CALL.len()];
        let read = memory.read_exact_at(&mut before, address - CALL.len() as u64);
        read.is_ok() && before == CALL
    };
    let (mut sampler, _tables) = load(&options(FormChoice::Auto, target.pid()), &target);
    let (records, _) = run(&mut sampler, target.pid(), 5 * WANTED);
    let samples = samples(records, target.pid());
    let begins = |sample: &&RawSample| {
        sample.tid.0 != sample.pid.0
            && sample.user.first().is_some_and(|frame| behind_call(frame.address.0))
    };
    let begun: Vec<_> = samples.iter().filter(begins).collect();
    eprintln!("{} of {}: {:?}", begun.len(), samples.len(), outcomes(&samples));
    assert!(!begun.is_empty(), "{} samples", samples.len());
    for sample in begun {
        assert_eq!((sample.outcome, sample.user.len()), (Outcome::Complete, 1), "{sample:?}");
    }
}
