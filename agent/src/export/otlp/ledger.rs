//! The account of a window as profile attributes.

use crate::aggregate::{Ledger, NamedWindow};
use agent_ebpf::Outcome;
use proto::otlp::{AttributeValue, DictionaryBuilder};

/// Indices of the ledger's attributes.
pub(super) fn attributes(window: &NamedWindow, dictionary: &mut DictionaryBuilder) -> Vec<i32> {
    let Ledger {
        cpus,
        ticks_expected,
        runs,
        idle,
        filtered,
        shipped,
        lost_in_ring,
        received,
        unwanted,
        dropped,
        program_run_ns,
        outcomes,
    } = window.ledger.clone();
    let mut add = |name: &str, value: u64| {
        let value = AttributeValue::Int(i64::try_from(value).unwrap_or(i64::MAX));
        dictionary.attribute(&format!("vesta.ledger.{name}"), &value)
    };
    let mut indices: Vec<i32> = [
        ("cpus", cpus),
        ("ticks_expected", ticks_expected),
        ("runs", runs),
        ("missed", window.ledger.missed()),
        ("idle", idle),
        ("filtered", filtered),
        ("shipped", shipped),
        ("lost_in_ring", lost_in_ring),
        ("received", received),
        ("unwanted", unwanted),
        ("dropped", dropped),
        ("sent", window.observations()),
        ("program_run_ns", program_run_ns),
    ]
    .into_iter()
    .map(|(name, value)| add(name, value))
    .collect();
    for (outcome, count) in Outcome::ALL.into_iter().zip(outcomes) {
        if count > 0 {
            indices.push(add(&format!("outcome.{}", outcome.name().replace(' ', "_")), count));
        }
    }
    indices
}
