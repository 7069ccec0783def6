//! The accounts of a window and of its processes as profile attributes.

use crate::aggregate::{DropReason, Ledger, NamedWindow, ProcessLedger, WaitLedger};
use crate::symbolize::UnnamedReason;
use agent_ebpf::Outcome;
use proto::otlp::{AttributeValue, DictionaryBuilder};

/// Figures that are stated even if they are 0: that a window was observed shows in them.
const ALWAYS: [&str; 4] = ["cpus", "ticks_expected", "runs", "sent"];

/// Indices of the attributes of the window's account.
pub(super) fn of_window(window: &NamedWindow, dictionary: &mut DictionaryBuilder) -> Vec<i32> {
    let Ledger {
        cpus,
        ticks_expected,
        runs,
        asleep,
        idle,
        filtered,
        shipped,
        lost_in_ring,
        carried_in,
        carried_over,
        received,
        unwanted,
        malformed,
        dropped,
        program_run_ns,
        outcomes,
        waits,
    } = &window.ledger;
    let names = window.name_counts();
    let figures = [
        ("cpus", *cpus),
        ("ticks_expected", *ticks_expected),
        ("runs", *runs),
        ("asleep", *asleep),
        ("missed", window.ledger.missed()),
        ("idle", *idle),
        ("filtered", *filtered),
        ("shipped", *shipped),
        ("lost_in_ring", *lost_in_ring),
        ("carried_in", *carried_in),
        ("carried_over", *carried_over),
        ("received", *received),
        ("unwanted", *unwanted),
        ("malformed", *malformed),
        ("dropped", window.ledger.dropped()),
        ("sent", window.observations()),
        ("frames", names.frames),
        ("frames_unnamed", names.unnamed()),
        ("program_run_ns", *program_run_ns),
    ];
    let mut attributes = Attributes { prefix: "vesta.ledger", dictionary, indices: Vec::new() };
    for (name, value) in figures {
        // A figure costs 20 bytes in each request.
        if value > 0 || ALWAYS.contains(&name) {
            attributes.add(name, value);
        }
    }
    attributes.add_waits(waits);
    attributes.add_each("outcome", Outcome::ALL.map(Outcome::name), outcomes);
    attributes.add_each("dropped", DropReason::ALL.map(DropReason::name), dropped);
    attributes.add_each("unnamed", UnnamedReason::ALL.map(UnnamedReason::name), &names.unnamed);
    attributes.indices
}

/// Indices of the attributes of a process's account: only what went wrong.
pub(super) fn of_process(ledger: &ProcessLedger, dictionary: &mut DictionaryBuilder) -> Vec<i32> {
    let ProcessLedger { received: _, outcomes, dropped, frames: _, unnamed } = ledger;
    let mut attributes =
        Attributes { prefix: "vesta.process_ledger", dictionary, indices: Vec::new() };
    let mut stops = *outcomes;
    stops[Outcome::Complete as usize] = 0;
    stops[Outcome::NoUserStack as usize] = 0;
    attributes.add_each("outcome", Outcome::ALL.map(Outcome::name), &stops);
    attributes.add_each("dropped", DropReason::ALL.map(DropReason::name), dropped);
    attributes.add_each("unnamed", UnnamedReason::ALL.map(UnnamedReason::name), unnamed);
    attributes.indices
}

struct Attributes<'a> {
    prefix: &'static str,
    dictionary: &'a mut DictionaryBuilder,
    indices: Vec<i32>,
}

impl Attributes<'_> {
    fn add(&mut self, name: &str, value: u64) {
        let value = AttributeValue::Int(i64::try_from(value).unwrap_or(i64::MAX));
        let key = format!("{}.{name}", self.prefix);
        self.indices.push(self.dictionary.attribute(&key, &value));
    }

    /// The account of waits, what of it is not zero.
    fn add_waits(&mut self, waits: &WaitLedger) {
        let WaitLedger {
            switches,
            ended,
            ns,
            not_sampled_ns,
            dropped_ns,
            stacks,
            stacks_held,
            stacks_lost,
            ends_lost,
            ends_unseen,
            threads_refused,
            unbelievable,
            malformed,
            program_run_ns,
        } = waits;
        for (name, value) in [
            ("switches", switches),
            ("ended", ended),
            ("ns", ns),
            ("not_sampled_ns", not_sampled_ns),
            ("dropped_ns", dropped_ns),
            ("stacks", stacks),
            ("stacks_held", stacks_held),
            ("stacks_lost", stacks_lost),
            ("ends_lost", ends_lost),
            ("ends_unseen", ends_unseen),
            ("threads_refused", threads_refused),
            ("unbelievable", unbelievable),
            ("malformed", malformed),
            ("program_run_ns", program_run_ns),
        ] {
            if *value > 0 {
                self.add(&format!("waits.{name}"), *value);
            }
        }
    }

    /// Figures by reason, those that are not zero.
    fn add_each<const N: usize>(&mut self, what: &str, names: [&str; N], counts: &[u64; N]) {
        for (name, count) in names.iter().zip(counts).filter(|(_, count)| **count > 0) {
            self.add(&format!("{what}.{}", name.replace(' ', "_")), *count);
        }
    }
}
