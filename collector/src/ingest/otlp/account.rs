//! The agent's account of a window, which travels in attributes of a profile: summed by host for the
//! metrics, and what tells how much was lost stored beside the samples, as a profile of a type of its own
//! whose functions are the figures. So it is durable, kept once and forgotten as they are.

use super::dictionary::Dictionary;
use super::{Account, Ledger};
use crate::limits::LEDGER_NAME_BYTES_MAX;
use crate::profile::{AttributeValue, ProfileDef, ProfileId, SampleDef, ValueType, WriteBatch};
use crate::query::LEDGER_TYPE;
use std::sync::Arc;
use xxhash_rust::xxh3::xxh3_128;

/// The agent's account of a window: figures of that profile, no attributes of samples.
pub(super) const PREFIX: &str = "vesta.ledger.";
/// The same of one process; its sums are in the other.
pub(super) const PROCESS_PREFIX: &str = "vesta.process_ledger.";
/// Figures that are no amounts that windows add to.
const NO_SUMS: [&str; 3] = ["cpus", "carried_in", "carried_over"];

/// Figures by name, as the attributes state them.
pub(super) fn figures(dictionary: &Dictionary<'_>, indices: &[i32]) -> Vec<(Arc<str>, u64)> {
    let attributes = indices.iter().filter_map(|&index| dictionary.attribute(index));
    let figure = |attribute: &crate::profile::Attribute| {
        let name = attribute.key.strip_prefix(PREFIX).filter(|name| is_plain(name))?;
        let AttributeValue::Int(value) = attribute.value else { return None };
        Some((Arc::from(name), u64::try_from(value).unwrap_or_default()))
    };
    attributes.filter_map(figure).collect()
}

fn is_plain(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    !NO_SUMS.contains(&name) && name.len() <= LEDGER_NAME_BYTES_MAX && name.bytes().all(plain)
}

/// The sums of accounts, but for those on profiles at these positions (ascending).
#[must_use]
pub fn sums(accounts: &[Account], repeated: &[usize]) -> Ledger {
    let mut ledger = Ledger::new();
    for Account { profile, host, figures } in accounts {
        if repeated.binary_search(profile).is_ok() {
            continue;
        }
        for (name, value) in figures {
            let sum = ledger.entry((Arc::clone(host), Arc::clone(name))).or_default();
            *sum = sum.saturating_add(*value);
        }
    }
    ledger
}

/// What says how much arrived and how much did not.
fn is_kept(name: &str) -> bool {
    ["sent", "missed", "lost_in_ring", "malformed"].contains(&name) || name.starts_with("dropped.")
}

/// The profile of the figures of `window`, if it has some. `attributes` is the empty set.
pub(super) fn profile(
    batch: &mut WriteBatch,
    window: &ProfileDef,
    figures: &[(Arc<str>, u64)],
    attributes: u32,
) -> Option<ProfileDef> {
    let kept = figures.iter().filter(|(name, value)| *value > 0 && is_kept(name));
    let samples: Vec<SampleDef> = kept
        .map(|(name, value)| SampleDef {
            stack: batch.add_marker(name),
            attributes,
            time_ms: window.time_ms,
            value: i64::try_from(*value).unwrap_or(i64::MAX),
        })
        .collect();
    let text = |text: &str| Arc::<str>::from(text);
    (!samples.is_empty()).then(|| ProfileDef {
        id: own_id(window.id),
        labels: window.labels.clone(),
        sample_type: ValueType { kind: text(LEDGER_TYPE), unit: text("count") },
        period_type: ValueType { kind: text(""), unit: text("") },
        period: 0,
        time_ms: window.time_ms,
        duration_ms: window.duration_ms,
        samples,
    })
}

/// An id beside the window's: a request that comes twice is stored once.
fn own_id(window: ProfileId) -> ProfileId {
    match window {
        ProfileId::Agent { boot, sequence } => {
            let mut bytes = LEDGER_TYPE.as_bytes().to_vec();
            bytes.extend_from_slice(&boot.to_le_bytes());
            bytes.extend_from_slice(&sequence.to_le_bytes());
            ProfileId::Foreign(xxh3_128(&bytes).to_le_bytes())
        }
        ProfileId::Foreign(_) | ProfileId::None => ProfileId::None,
    }
}
