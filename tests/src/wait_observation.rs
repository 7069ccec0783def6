//! Waits as a test wants to see them: one value for each sample that has one, names in place.

use crate::observation::{Frame, each_profile};
use proto::otlp::common::any_value::Value;
use std::sync::Arc;

/// One sample with a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitObservation {
    /// Type of its profile: `off_cpu`, `lock` and so on.
    pub kind: String,
    /// Unit of its profile.
    pub unit: String,
    /// The value.
    pub value: u64,
    /// `process.pid`.
    pub pid: u32,
    /// `thread.id`.
    pub tid: i64,
    /// `thread.name`.
    pub thread: String,
    /// `off_cpu.reason`; empty if it was not sent.
    pub reason: String,
    /// `lock.kind`; empty if it was not sent.
    pub lock_kind: String,
    /// `lock.address`; empty if it was not sent.
    pub lock_address: String,
    /// `lock.name`; empty if it was not sent.
    pub lock_name: String,
    /// `lock.owner.tid`; 0 if it was not sent.
    pub lock_owner: i64,
    /// First instant of its window, Unix nanoseconds.
    pub window_ns: u64,
    /// Leaf first.
    pub frames: Vec<Arc<Frame>>,
}

impl WaitObservation {
    /// True if a frame of the stack is called so.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.frames.iter().any(|frame| frame.is(name))
    }

    /// True if it is time off the CPU, in nanoseconds.
    #[must_use]
    pub fn is_off_cpu(&self) -> bool {
        self.kind == "off_cpu" && self.unit == "nanoseconds"
    }

    /// True if it stands for waits whose stack was not taken.
    #[must_use]
    pub fn is_not_sampled(&self) -> bool {
        self.frames
            .iter()
            .any(|frame| frame.functions.iter().any(|it| it == "[unwind: not sampled]"))
    }

    /// True if it is time in waits for locks, in nanoseconds.
    #[must_use]
    pub fn is_lock(&self) -> bool {
        self.kind == "lock" && self.unit == "nanoseconds"
    }

    /// The stack for a failure's message, leaf first.
    #[must_use]
    pub fn shown(&self) -> String {
        let names = self.frames.iter().map(|frame| frame.functions.join("+"));
        names.collect::<Vec<_>>().join("<")
    }

    /// True if the stack ends at its root: no marker says that something is missing.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        !self.frames.iter().any(|frame| frame.is_marker())
    }
}

/// Every sample of the requests that has a value.
///
/// # Panics
/// If a request is not OTLP, or an index points nowhere: the agent must never send such.
#[must_use]
pub fn waits(requests: &[Vec<u8>]) -> Vec<WaitObservation> {
    let mut all = Vec::new();
    each_profile(requests, |tables, labels, profile| {
        let kind = profile.sample_type.as_ref().expect("a sample type");
        for sample in &profile.samples {
            let Some(&value) = sample.values.first() else { continue };
            let attribute = |key: &str| tables.attribute(&sample.attribute_indices, key);
            all.push(WaitObservation {
                kind: tables.text(kind.type_strindex).to_owned(),
                unit: tables.text(kind.unit_strindex).to_owned(),
                value: u64::try_from(value).expect("nobody waits backwards"),
                pid: labels.pid,
                tid: number_of(attribute("thread.id")),
                thread: text_of(attribute("thread.name")),
                reason: text_of(attribute("off_cpu.reason")),
                lock_kind: text_of(attribute("lock.kind")),
                lock_address: text_of(attribute("lock.address")),
                lock_name: text_of(attribute("lock.name")),
                lock_owner: number_of(attribute("lock.owner.tid")),
                window_ns: profile.time_unix_nano,
                frames: tables.stack(sample.stack_index),
            });
        }
    });
    all
}

fn number_of(value: Option<Value>) -> i64 {
    match value {
        Some(Value::IntValue(number)) => number,
        _ => 0,
    }
}

fn text_of(value: Option<Value>) -> String {
    match value {
        Some(Value::StringValue(text)) => text,
        _ => String::new(),
    }
}
