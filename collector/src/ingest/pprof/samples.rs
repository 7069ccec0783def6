//! Samples of a profile: stacks, attribute sets and values. Nothing is made for a sample but its rows; what
//! many samples share is there once.

use super::fault::{Fault, cap};
use super::ids::Ids;
use super::tables::next_position;
use super::texts::Texts;
use super::wire::{Message, Span};
use crate::limits::{
    LABEL_BYTES_MAX, OBSERVATIONS_MAX, REQUEST_FRAMES_MAX, REQUEST_SETS_BYTES_MAX,
    SAMPLE_ATTRIBUTES_MAX, STACK_FRAMES_MAX,
};
use crate::profile::{Attribute, AttributeValue, SampleDef};
use hashbrown::{DefaultHashBuilder, HashMap, HashTable};
use std::hash::BuildHasher as _;

/// A label as the wire has it: indices of texts, or a number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Label {
    key: u64,
    text: u64,
    number: i64,
    unit: u64,
}

/// What every sample has in common.
pub(super) struct Common<'a> {
    pub(super) time_ms: i64,
    /// What the values of each type are multiplied by.
    pub(super) factors: &'a [i64],
    /// Attributes of every sample, unless a label of the same name says otherwise.
    pub(super) attributes: &'a [Attribute],
}

/// Samples, read.
#[derive(Debug, Default)]
pub(super) struct Samples {
    pub(super) stacks: Vec<Vec<u32>>,
    pub(super) attribute_sets: Vec<Vec<Attribute>>,
    /// By type.
    pub(super) rows: Vec<Vec<SampleDef>>,
    /// Sums by type of what values are without their sign.
    magnitudes: Vec<u128>,
}

impl Samples {
    /// The sum of a type's values. Nothing if that, or the sum of some of them, leaves 64 bits.
    pub(super) fn total(&self, position: usize) -> Option<i64> {
        i64::try_from(*self.magnitudes.get(position)?).ok()?;
        Some(self.rows.get(position)?.iter().map(|row| row.value).sum())
    }
}

/// Reads samples.
pub(super) struct Reading<'a, 'b> {
    body: &'a [u8],
    texts: &'b mut Texts,
    locations: &'b Ids,
    common: &'b Common<'b>,
    samples: Samples,
    known_stacks: HashTable<u32>,
    hasher: DefaultHashBuilder,
    frames: usize,
    known_sets: HashMap<Vec<Label>, u32>,
    sets_bytes: usize,
    // Of the sample at hand.
    stack: Vec<u32>,
    values: Vec<i64>,
    labels: Vec<Label>,
}

impl<'a, 'b> Reading<'a, 'b> {
    pub(super) fn new(
        body: &'a [u8],
        texts: &'b mut Texts,
        locations: &'b Ids,
        common: &'b Common<'b>,
    ) -> Self {
        Self {
            body,
            texts,
            locations,
            common,
            samples: Samples::default(),
            known_stacks: HashTable::new(),
            hasher: DefaultHashBuilder::default(),
            frames: 0,
            known_sets: HashMap::new(),
            sets_bytes: 0,
            stack: Vec::new(),
            values: Vec::new(),
            labels: Vec::new(),
        }
    }

    pub(super) fn read(mut self, spans: &[Span]) -> Result<Samples, Fault> {
        let types = self.common.factors.len();
        let all = spans.len().saturating_mul(types);
        cap("the number of values in the profile", all, OBSERVATIONS_MAX)?;
        self.samples.rows = (0..types).map(|_| Vec::with_capacity(spans.len())).collect();
        self.samples.magnitudes = vec![0; types];
        for (position, &span) in spans.iter().enumerate() {
            self.message(span)?;
            if self.values.len() != types {
                let values = self.values.len();
                return Err(Fault::Lengths { sample: position, values, types });
            }
            let stack = self.stack()?;
            let attributes = self.attributes(position)?;
            self.push(stack, attributes);
        }
        Ok(self.samples)
    }

    fn message(&mut self, span: Span) -> Result<(), Fault> {
        let Self { body, locations, stack, values, labels, .. } = self;
        stack.clear();
        values.clear();
        labels.clear();
        let types = self.common.factors.len();
        let mut message = Message::new(body, span);
        while let Some((field, value)) = message.next()? {
            match field {
                1 => value.numbers(body, "sample.location_id", |id| {
                    stack.push(locations.get(id, "sample.location_id")?);
                    cap("the depth of a stack", stack.len(), STACK_FRAMES_MAX)
                })?,
                2 => value.numbers(body, "sample.value", |value| {
                    // One too many is enough to see that there are too many.
                    if values.len() <= types {
                        values.push(value.cast_signed());
                    }
                    Ok(())
                })?,
                3 => {
                    labels.push(label(body, value.span("sample.label")?)?);
                    cap("the number of labels of a sample", labels.len(), SAMPLE_ATTRIBUTES_MAX)?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// The position of the stack at hand.
    fn stack(&mut self) -> Result<u32, Fault> {
        let Self { samples: Samples { stacks, .. }, hasher, .. } = self;
        let hash = hasher.hash_one(&*self.stack);
        let of = |&at: &u32| stacks.get(at as usize).map_or(&[][..], |stack| stack);
        if let Some(&known) = self.known_stacks.find(hash, |at| of(at) == self.stack) {
            return Ok(known);
        }
        self.frames += self.stack.len();
        cap("the frames of all stacks", self.frames, REQUEST_FRAMES_MAX)?;
        let new = next_position(stacks.len());
        stacks.push(self.stack.clone());
        let of = |&at: &u32| stacks.get(at as usize).map_or(&[][..], |stack| stack);
        self.known_stacks.insert_unique(hash, new, |at| hasher.hash_one(of(at)));
        Ok(new)
    }

    /// The position of the attribute set of the labels at hand.
    fn attributes(&mut self, sample: usize) -> Result<u32, Fault> {
        self.labels.sort_unstable();
        if let Some(&known) = self.known_sets.get(&*self.labels) {
            return Ok(known);
        }
        let labels = std::mem::take(&mut self.labels);
        let set = self.set(sample, &labels)?;
        self.sets_bytes += set.iter().map(Attribute::bytes).sum::<usize>();
        self.sets_bytes += size_of_val(&*labels);
        cap("the labels of all samples, in bytes,", self.sets_bytes, REQUEST_SETS_BYTES_MAX)?;
        let new = next_position(self.samples.attribute_sets.len());
        self.samples.attribute_sets.push(set);
        self.known_sets.insert(labels, new);
        Ok(new)
    }

    fn set(&mut self, sample: usize, labels: &[Label]) -> Result<Vec<Attribute>, Fault> {
        let mut set: Vec<Attribute> = Vec::with_capacity(labels.len());
        for label in labels {
            let key = self.texts.shared(label.key, "label.key")?;
            cap("the name of a label, in bytes,", key.len(), LABEL_BYTES_MAX)?;
            self.texts.get(label.unit, "label.num_unit")?;
            let text = self.texts.label(label.text, "label.str")?;
            let value = match label {
                _ if key.is_empty() => return Err(Fault::Label { sample }),
                Label { text: 1.., .. } => AttributeValue::Text(text),
                // Neither text nor number: the same as no label.
                Label { number: 0, unit: 0, .. } => continue,
                Label { number, .. } => AttributeValue::Int(*number),
            };
            match set.iter_mut().find(|known| known.key == key) {
                Some(known) => known.value = joined(self.texts, &known.value, &value),
                None => set.push(Attribute { key, value }),
            }
        }
        for attribute in self.common.attributes {
            if !set.iter().any(|label| label.key == attribute.key) {
                set.push(attribute.clone());
            }
        }
        cap("the number of attributes of a sample", set.len(), SAMPLE_ATTRIBUTES_MAX)?;
        set.sort_by(|a, b| a.key.cmp(&b.key));
        Ok(set)
    }

    /// Adds the values at hand.
    fn push(&mut self, stack: u32, attributes: u32) {
        let Samples { rows, magnitudes, .. } = &mut self.samples;
        let factors = self.common.factors;
        let of_type = rows.iter_mut().zip(magnitudes).zip(factors).zip(&self.values);
        for (((rows, magnitude), &factor), &value) in of_type {
            // A product beyond 64 bits is beyond them as a magnitude too, and refused.
            let product = u128::from(value.unsigned_abs()) * u128::from(factor.unsigned_abs());
            *magnitude = magnitude.saturating_add(product);
            let (time_ms, value) = (self.common.time_ms, value.saturating_mul(factor));
            rows.push(SampleDef { stack, attributes, time_ms, value });
        }
    }
}

fn label(body: &[u8], span: Span) -> Result<Label, Fault> {
    let mut label = Label::default();
    let mut message = Message::new(body, span);
    while let Some((field, value)) = message.next()? {
        match field {
            1 => label.key = value.number("label.key")?,
            2 => label.text = value.number("label.str")?,
            3 => label.number = value.signed("label.num")?,
            4 => label.unit = value.number("label.num_unit")?,
            _ => {}
        }
    }
    Ok(label)
}

/// Several values of one name, which pprof permits: one text, cut where it is longer than one may be.
fn joined(texts: &mut Texts, first: &AttributeValue, second: &AttributeValue) -> AttributeValue {
    let text = format!("{},{}", first.text(), second.text());
    AttributeValue::Text(texts.cut(&text))
}
