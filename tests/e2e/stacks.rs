//! One workload for each kind of binary, layout and moment that stacks must survive. Goal: every stack is complete,
//! under its true callers and their true names. Method: a chain of calls spins at its leaf for a second of CPU time
//! and prints what every stack of it must look like, from what the machine wrote on its stack
//! (tests/workloads/stacks/chain.h); the agent samples a batch of such programs at 997 Hz into a sink. Tolerance:
//! 99.5 % of the stacks, unless a case says otherwise, and no wrong name at all. How deep Linux perf or gdb find the
//! same stacks stands beside it. Each run writes the table target/e2e/stacks/stacks.md; with `VESTA_BLESS` set,
//! README.md gets it too.

mod build;
mod case;
mod foreign;
mod judge;
mod kinds;
mod opinion;
mod place;
mod run;
mod table;

use foreign::FOREIGN;
use kinds::{DEEP, DEEP_BY_TAIL_CALLS, FRAMES, LINKS, MOMENTS, PLACES, TABLES};
use run::{check, check_with};

#[test]
fn linked_in_every_way() {
    check(&LINKS);
}

#[test]
fn from_every_table() {
    check(&TABLES);
}

#[test]
fn frames_of_every_shape() {
    check(&FRAMES);
}

#[test]
fn deep_with_loops() {
    check_with(&DEEP, &["--form", "bpf-loop"]);
}

#[test]
fn deep_with_tail_calls() {
    check_with(&DEEP_BY_TAIL_CALLS, &["--form", "tail-calls"]);
}

#[test]
fn interrupted_at_any_moment() {
    check(&MOMENTS);
}

#[test]
fn wherever_the_file_lies() {
    check(&PLACES);
}

#[test]
fn programs_of_others() {
    foreign::check(&FOREIGN);
}

#[test]
fn readme_has_every_row() {
    table::check_readme();
}
