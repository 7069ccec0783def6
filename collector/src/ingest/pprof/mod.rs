//! A pprof profile to the domain model: taken whole, or refused whole with its reason. It does no I/O and
//! knows no transport.
//!
//! One walk over the top level finds where messages and texts lie ([`sections`]); then each message is read
//! once, in the order in which they refer to each other, right into the tables of a batch. No message becomes
//! an object of its own.

mod fault;
mod ids;
mod samples;
mod sections;
mod tables;
mod texts;
mod wire;

#[cfg(test)]
mod tests;

pub use fault::{Fault, Severity};

use crate::ingest::fitting::fitting;
use crate::ingest::otlp::Reception;
use crate::ingest::times::{NS_PER_MS, YEAR_1971_NS, outside};
use crate::ingest::units;
use crate::limits::{LABEL_BYTES_MAX, PROFILE_DURATION_MS_MAX};
use crate::profile::identity::module_name;
use crate::profile::{
    Attribute, AttributeValue, MappingDef, ProfileDef, ProfileId, SeriesLabels, ValueType,
    WriteBatch,
};
use crate::query::TimeRange;
use fault::cap;
use sections::Sections;
use std::sync::Arc;
use texts::Texts;
use wire::{Message, Span};
use xxhash_rust::xxh3::Xxh3;

/// What a sender says beside the profile.
#[derive(Clone, Debug, Default)]
pub struct Push {
    /// Labels of the series; what is empty is taken from the profile.
    pub labels: SeriesLabels,
    /// The sample type to show first.
    pub profile_type: Option<Arc<str>>,
    /// Of every sample, unless it has a label of the same name.
    pub attributes: Vec<Attribute>,
}

/// One sample type of a profile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Measured {
    /// As it is stored.
    pub value_type: ValueType,
    /// Rows.
    pub samples: usize,
    /// The sum of their values.
    pub total: i64,
}

/// A profile, read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    /// What is to be stored: one profile for each type.
    pub batch: WriteBatch,
    /// Its types.
    pub types: Vec<Measured>,
    /// The one to show first: the named one, else the profile's last.
    pub view: usize,
    /// Texts that were not UTF-8.
    pub replaced: u64,
    /// Values of labels that were cut because they were too long.
    pub truncated: u64,
}

/// The attribute of what a sender named a profile that is no sample type of it: Go's `mutex` and `block` have
/// the same types.
pub const NAMED_TYPE: &str = "profile.type";

/// Reads a profile, which is not compressed any more.
///
/// # Errors
/// See [`Fault`].
pub fn receive(body: &[u8], push: &Push, reception: &Reception) -> Result<Received, Fault> {
    if body.is_empty() {
        return Err(Fault::Empty);
    }
    let sections = Sections::find(body)?;
    if sections.sample_types.is_empty() {
        return Err(Fault::NoSampleType);
    }
    let mut texts = Texts::read(body, &sections.texts)?;
    let head = Head::read(body, &sections, &mut texts, push, reception)?;
    let reading = tables::Reading::new(body, &mut texts, &sections.mappings, &sections.functions)?;
    let tables = reading.locations(&sections.locations)?;
    let common = samples::Common {
        time_ms: head.time_ms,
        factors: &head.factors,
        attributes: &head.attributes,
    };
    let reading = samples::Reading::new(body, &mut texts, &tables.location_ids, &common);
    let mut samples = reading.read(&sections.samples)?;
    let labels = labels(&push.labels, &tables.mappings);
    let identity = head.has_own_time.then(|| identity(body, push));
    let mut types = Vec::with_capacity(head.types.len());
    let mut profiles = Vec::with_capacity(head.types.len());
    for (position, value_type) in head.types.iter().enumerate() {
        let total = samples.total(position).ok_or_else(|| Fault::Overflow {
            kind: value_type.kind.to_string(),
            unit: value_type.unit.to_string(),
        })?;
        let rows = samples.rows.get_mut(position).map(std::mem::take).unwrap_or_default();
        let value_type = value_type.clone();
        types.push(Measured { value_type: value_type.clone(), samples: rows.len(), total });
        profiles.push(ProfileDef {
            id: identity.as_ref().map_or(ProfileId::None, |identity| of_type(identity, position)),
            labels: labels.clone(),
            sample_type: value_type,
            period_type: head.period_type.clone(),
            period: sections.period,
            time_ms: head.time_ms,
            duration_ms: head.duration_ms,
            samples: rows,
        });
    }
    let batch = WriteBatch {
        project: reception.project.clone(),
        mappings: tables.mappings,
        functions: tables.functions,
        locations: tables.locations,
        stacks: samples.stacks,
        attribute_sets: samples.attribute_sets,
        profiles,
    };
    let Texts { replaced, truncated, .. } = texts;
    Ok(Received { batch, types, view: head.view, replaced, truncated })
}

/// What a profile says of all its samples.
struct Head {
    /// As stored.
    types: Vec<ValueType>,
    factors: Vec<i64>,
    view: usize,
    period_type: ValueType,
    attributes: Vec<Attribute>,
    time_ms: i64,
    duration_ms: i64,
    /// False if the time is that of receipt.
    has_own_time: bool,
}

impl Head {
    fn read(
        body: &[u8],
        sections: &Sections,
        texts: &mut Texts,
        push: &Push,
        reception: &Reception,
    ) -> Result<Self, Fault> {
        let sent = sections.sample_types.iter().map(|&span| value_type(body, span, texts));
        let sent = sent.collect::<Result<Vec<_>, _>>()?;
        if sent.iter().any(|sent| sent.kind.is_empty()) {
            return Err(Fault::NoSampleType);
        }
        let default = texts.shared(sections.default_type, "default_sample_type")?;
        let named = push.profile_type.as_ref();
        let find = |name: &Arc<str>| sent.iter().position(|sent| sent.kind == *name);
        let of_sender = named.and_then(find);
        let view = of_sender.or_else(|| find(&default)).unwrap_or(sent.len() - 1);
        let mut attributes = push.attributes.clone();
        if let (Some(name), None) = (named, of_sender) {
            let value = AttributeValue::Text(Arc::clone(name));
            attributes.push(Attribute { key: Arc::from(NAMED_TYPE), value });
        }
        let period_type = value_type(body, sections.period_type, texts)?;
        let (types, factors) = stored(sent, &period_type, sections.period)?;
        let (time_ms, duration_ms, has_own_time) = times(sections, &types, reception)?;
        Ok(Self {
            types,
            factors,
            view,
            period_type,
            attributes,
            time_ms,
            duration_ms,
            has_own_time,
        })
    }
}

fn value_type(body: &[u8], span: Span, texts: &mut Texts) -> Result<ValueType, Fault> {
    let (mut kind, mut unit) = (0, 0);
    let mut message = Message::new(body, span);
    while let Some((field, value)) = message.next()? {
        match field {
            1 => kind = value.number("value_type.type")?,
            2 => unit = value.number("value_type.unit")?,
            _ => {}
        }
    }
    let kind = texts.shared(kind, "value_type.type")?;
    let unit = texts.shared(unit, "value_type.unit")?;
    cap("the name of a type, in bytes,", kind.len().max(unit.len()), LABEL_BYTES_MAX)?;
    Ok(ValueType { kind, unit })
}

/// Types by the unit rules, with what their values are multiplied by. Counts become CPU time only where
/// nothing else of the profile is CPU time, and only the first of them.
fn stored(
    sent: Vec<ValueType>,
    period_type: &ValueType,
    period: i64,
) -> Result<(Vec<ValueType>, Vec<i64>), Fault> {
    let mut has_cpu = sent.iter().any(units::is_cpu_nanoseconds);
    let (mut types, mut factors): (Vec<ValueType>, Vec<i64>) = (Vec::new(), Vec::new());
    for sent in sent {
        let units::Stored { sample_type, factor } =
            units::stored(sent, period_type, period, has_cpu);
        has_cpu = has_cpu || units::is_cpu_nanoseconds(&sample_type);
        if types.contains(&sample_type) {
            let ValueType { kind, unit } = sample_type;
            return Err(Fault::RepeatedType { kind: kind.to_string(), unit: unit.to_string() });
        }
        types.push(sample_type);
        factors.push(factor);
    }
    Ok((types, factors))
}

/// Start and length in milliseconds, and whether the profile says when it was taken; else it ended now.
fn times(
    sections: &Sections,
    types: &[ValueType],
    reception: &Reception,
) -> Result<(i64, i64, bool), Fault> {
    let ms = |ns: i64| ns.div_euclid(NS_PER_MS.cast_signed());
    let duration_ms = ms(sections.duration_nanos);
    if sections.duration_nanos < 0 {
        return Err(Fault::Duration);
    }
    let size = |ms: i64| usize::try_from(ms).unwrap_or(usize::MAX);
    let max = size(PROFILE_DURATION_MS_MAX);
    cap("duration_nanos, in milliseconds,", size(duration_ms), max)?;
    if (0..YEAR_1971_NS.cast_signed()).contains(&sections.time_nanos) {
        return Ok((reception.now_ms - duration_ms, duration_ms, false));
    }
    let time_ms = ms(sections.time_nanos);
    let end_ms = time_ms.saturating_add(duration_ms);
    // Whole or not at all: what one of its types is too old for is refused.
    for accepted in types.iter().map(|it| reception.accepted_of(&it.kind)) {
        check_time("time_nanos", time_ms, accepted)?;
        check_time("time_nanos + duration_nanos", end_ms, accepted)?;
    }
    Ok((time_ms, duration_ms, true))
}

fn check_time(field: &'static str, time_ms: i64, accepted: TimeRange) -> Result<(), Fault> {
    let Some([time, from, to]) = outside(time_ms, accepted) else { return Ok(()) };
    Err(Fault::Time { field, time, from, to })
}

/// The sender's labels. The first mapping is the program itself, by the format's own rule.
fn labels(said: &SeriesLabels, mappings: &[MappingDef]) -> SeriesLabels {
    let mut labels = said.clone();
    let program = mappings.first().map(|mapping| module_name(&mapping.filename));
    if let Some(program) = program.filter(|name| !name.is_empty() && !name.starts_with('[')) {
        labels.executable = Arc::from(fitting(program));
    }
    if labels.service.is_empty() {
        labels.service = Arc::clone(&labels.executable);
    }
    if labels.service.is_empty() {
        labels.service = Arc::from("unknown_service");
    }
    labels
}

/// pprof has no ids: a profile that comes again is one whose bytes, time among them, and labels are equal.
fn identity(body: &[u8], push: &Push) -> Xxh3 {
    let mut hash = Xxh3::new();
    let mut text = |text: &str| {
        hash.update(&text.len().to_le_bytes());
        hash.update(text.as_bytes());
    };
    push.labels.each().into_iter().for_each(|(_, label)| text(label));
    text(push.profile_type.as_deref().unwrap_or_default());
    for attribute in &push.attributes {
        text(&attribute.key);
        text(&attribute.value.text());
    }
    hash.update(body);
    hash
}

fn of_type(identity: &Xxh3, position: usize) -> ProfileId {
    let mut hash = identity.clone();
    hash.update(&position.to_le_bytes());
    ProfileId::Foreign(hash.digest128().to_le_bytes())
}
