//! OTLP Profiles to the domain model. A profile is taken whole or refused whole with its reason; bytes that
//! are no request at all are an error. It does no I/O and knows no transport.
//!
//! Understood: the layout of protocol 1.10 and 1.11, and that of 1.8 and 1.9 (see [`wire`]).

mod account;
mod attributes;
mod convert;
mod dictionary;
mod fault;
mod resource;
mod sizes;
pub mod wire;

#[cfg(test)]
mod tests;

pub use account::sums;
pub use fault::Fault;

use crate::limits::{FUTURE_MS_MAX, REASONS_SHOWN_MAX};
use crate::profile::{ProjectName, WriteBatch};
use crate::query::TimeRange;
use crate::store::Retention;
use prost::Message as _;
use proto::opentelemetry_proto::tonic::collector::profiles::v1development::ExportProfilesServiceRequest;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use wire::WireError;

/// The scope name by which Vesta's own agent is known.
pub const AGENT_SCOPE: &str = "vesta-agent";

/// What the receiver knows besides the bytes.
#[derive(Clone, Debug)]
pub struct Reception {
    /// Where the profiles belong.
    pub project: ProjectName,
    /// The receiver's clock, Unix milliseconds.
    pub now_ms: i64,
    /// What is older is refused.
    pub retention: Retention,
}

impl Reception {
    /// The times that are accepted of a type: what is taken is kept for a while, and clocks differ a little.
    pub(in crate::ingest) fn accepted_of(&self, kind: &str) -> TimeRange {
        let from_ms = self.retention.taken_from_ms(kind, self.now_ms).max(0);
        TimeRange { from_ms, to_ms: self.now_ms + FUTURE_MS_MAX }
    }
}

/// Why bytes are not a request: nothing of them is stored.
#[derive(Debug, thiserror::Error)]
pub enum Undecodable {
    /// Malformed on the level of fields, or too large to decode.
    #[error("not an OTLP profiles request: {0}")]
    Wire(#[from] WireError),
    /// A field has the wrong type, or text is not UTF-8.
    #[error("not an OTLP profiles request: {0}")]
    Fields(#[from] prost::DecodeError),
}

impl Undecodable {
    /// True if the request is well-formed as far as it was read, but too large.
    #[must_use]
    pub const fn is_too_large(&self) -> bool {
        matches!(self, Self::Wire(WireError::Memory | WireError::Profiles))
    }
}

/// Profiles that are not stored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rejections {
    /// How many.
    pub profiles: u64,
    /// How many by reason (the value of a metric label).
    pub by_reason: BTreeMap<&'static str, u64>,
    /// The first distinct texts, at most [`REASONS_SHOWN_MAX`], each with the position of its profile.
    pub shown: Vec<(usize, String)>,
}

impl Rejections {
    fn add(&mut self, profile: usize, fault: &Fault) {
        self.profiles += 1;
        *self.by_reason.entry(fault.reason()).or_default() += 1;
        let text = fault.to_string();
        if self.shown.len() < REASONS_SHOWN_MAX
            && !self.shown.iter().any(|(_, shown)| *shown == text)
        {
            self.shown.push((profile, text));
        }
    }

    /// The text for `partial_success.error_message`; empty if nothing was refused.
    #[must_use]
    pub fn message(&self) -> String {
        if self.profiles == 0 {
            return String::new();
        }
        let reasons: Vec<_> =
            self.shown.iter().map(|(profile, text)| format!("profile {profile}: {text}")).collect();
        format!("{} not stored; {}", plural(self.profiles), reasons.join("; "))
    }
}

fn plural(profiles: u64) -> String {
    if profiles == 1 { "1 profile was".to_owned() } else { format!("{profiles} profiles were") }
}

/// A request, read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    /// What is to be stored.
    pub batch: WriteBatch,
    /// What is not.
    pub rejections: Rejections,
    /// Profiles that came in the layout of protocol 1.8 or 1.9.
    pub old_layout: u64,
    /// Attribute values that were cut because they were too long.
    pub truncated: u64,
    /// What Vesta's agents say became of their samples.
    pub accounts: Vec<Account>,
}

/// An agent's account of a window, as it stands on a profile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    /// Position in the batch of that profile: stored before, it was counted before.
    pub profile: usize,
    /// Whose.
    pub host: Arc<str>,
    /// Figures by name.
    pub figures: Vec<(Arc<str>, u64)>,
}

/// Accounts of windows (`vesta.ledger.<name>` of a profile): sums by host and name.
pub type Ledger = BTreeMap<(Arc<str>, Arc<str>), u64>;

/// Reads a request.
///
/// # Errors
/// The bytes are not an `ExportProfilesServiceRequest`, or decoding them would exceed a limit.
pub fn receive(bytes: &[u8], reception: &Reception) -> Result<Received, Undecodable> {
    let findings = wire::look(bytes)?;
    let mut bytes = Cow::Borrowed(bytes);
    if !findings.old_profiles.is_empty() || !findings.mixed_profiles.is_empty() {
        wire::renumber(bytes.to_mut(), &findings)?;
    }
    let request = ExportProfilesServiceRequest::decode(&*bytes)?;
    let mut received = convert::convert(&request, &findings.mixed_profiles, reception);
    received.old_layout = u64::try_from(findings.old_profiles.len()).unwrap_or(u64::MAX);
    Ok(received)
}
