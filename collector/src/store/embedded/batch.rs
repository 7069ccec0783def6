//! A [`WriteBatch`] as bytes: texts once in a table, samples as columns of deltas, all of it zstd level 1.
//! Decoding checks every index and length before use and every limit through [`WriteBatch::check`].

use super::codec::{Malformed, Reader, Writer, press, unpress};
use crate::limits;
use crate::profile::identity::kind_code;
use crate::profile::{
    Attribute, AttributeValue, FunctionDef, LineDef, Lines, LocationDef, MappingDef, ProfileDef,
    ProfileId, ProjectName, SampleDef, SeriesLabels, ValueType, WriteBatch,
};
use hashbrown::HashMap;
use proto::{BuildId, FrameKind};
use std::sync::Arc;

/// The bytes of a batch.
pub(super) fn encode(batch: &WriteBatch) -> std::io::Result<Vec<u8>> {
    let mut texts = Texts::default();
    let mut body = Writer::default();
    let project = texts.number(&batch.project.0);
    body.number(project);
    encode_tables(&mut body, &mut texts, batch);
    body.length(batch.profiles.len());
    for profile in &batch.profiles {
        encode_profile(&mut body, &mut texts, profile);
    }
    let mut whole = Writer::default();
    whole.length(texts.list.len());
    texts.list.iter().for_each(|text| whole.text(text));
    whole.raw(&body.bytes);
    if whole.bytes.len() > limits::WAL_BATCH_BYTES_MAX {
        // What replay refuses must not be acknowledged.
        return Err(std::io::Error::from(std::io::ErrorKind::FileTooLarge));
    }
    let mut framed = Writer::default();
    press(&whole.bytes, &mut framed)?;
    Ok(framed.bytes)
}

/// The batch in the bytes, whose samples may also refer to `known` stacks beside its own.
pub(super) fn decode(bytes: &[u8], known: usize) -> Result<WriteBatch, Malformed> {
    let mut reader = Reader::new(bytes);
    let plain = unpress(&mut reader, limits::WAL_BATCH_BYTES_MAX)?;
    reader.end()?;
    let mut reader = Reader::new(&plain);
    let count = reader.count(1)?;
    let texts = (0..count).map(|_| reader.shared_text()).collect::<Result<Vec<_>, _>>()?;
    let mut decoder = Decoder { reader, texts };
    let batch = decoder.batch()?;
    decoder.reader.end()?;
    batch.check_beside(known).ok().ok_or(Malformed("the batch breaks a rule"))?;
    Ok(batch)
}

/// Distinct texts in order of first use.
#[derive(Default)]
struct Texts<'a> {
    list: Vec<&'a str>,
    numbers: HashMap<&'a str, u64>,
}

impl<'a> Texts<'a> {
    fn number(&mut self, text: &'a str) -> u64 {
        let list = &mut self.list;
        *self.numbers.entry(text).or_insert_with(|| {
            list.push(text);
            list.len() as u64 - 1
        })
    }
}

fn encode_tables<'a>(body: &mut Writer, texts: &mut Texts<'a>, batch: &'a WriteBatch) {
    body.length(batch.mappings.len());
    for mapping in &batch.mappings {
        body.number(texts.number(&mapping.filename));
        body.blob(mapping.build_id.as_ref().map_or(&[], BuildId::as_bytes));
    }
    body.length(batch.functions.len());
    for function in &batch.functions {
        body.number(texts.number(&function.name));
        body.number(texts.number(&function.system_name));
        body.number(texts.number(&function.file));
        body.signed(function.start_line);
    }
    body.length(batch.locations.len());
    for location in &batch.locations {
        body.number(location.mapping.map_or(0, |mapping| u64::from(mapping) + 1));
        body.number(location.address);
        body.number(kind_code(location.kind));
        body.length(location.lines.len());
        for line in &location.lines {
            body.number(line.function.into());
            body.signed(line.line);
        }
    }
    body.length(batch.stacks.len());
    for stack in &batch.stacks {
        body.length(stack.len());
        stack.iter().for_each(|&location| body.number(location.into()));
    }
    body.length(batch.attribute_sets.len());
    for set in &batch.attribute_sets {
        body.length(set.len());
        for attribute in set {
            encode_attribute(body, texts, attribute);
        }
    }
}

fn encode_attribute<'a>(body: &mut Writer, texts: &mut Texts<'a>, attribute: &'a Attribute) {
    body.number(texts.number(&attribute.key));
    match &attribute.value {
        AttributeValue::Text(text) => {
            body.byte(0);
            body.number(texts.number(text));
        }
        AttributeValue::Int(number) => {
            body.byte(1);
            body.signed(*number);
        }
        AttributeValue::Bool(truth) => body.byte(2 + u8::from(*truth)),
    }
}

fn encode_profile<'a>(body: &mut Writer, texts: &mut Texts<'a>, profile: &'a ProfileDef) {
    match profile.id {
        ProfileId::None => body.byte(0),
        ProfileId::Agent { boot, sequence } => {
            body.byte(1);
            body.raw(&boot.to_le_bytes());
            body.raw(&sequence.to_le_bytes());
        }
        ProfileId::Foreign(id) => {
            body.byte(2);
            body.raw(&id);
        }
    }
    profile.labels.each().into_iter().for_each(|(_, value)| body.number(texts.number(value)));
    for value_type in [&profile.sample_type, &profile.period_type] {
        body.number(texts.number(&value_type.kind));
        body.number(texts.number(&value_type.unit));
    }
    body.signed(profile.period);
    body.signed(profile.time_ms);
    body.signed(profile.duration_ms);
    body.length(profile.samples.len());
    let (mut time_ms, mut value) = (profile.time_ms, 0_i64);
    for sample in &profile.samples {
        body.number(sample.stack.into());
        body.number(sample.attributes.into());
        body.signed(sample.time_ms.wrapping_sub(time_ms));
        body.signed(sample.value.wrapping_sub(value));
        (time_ms, value) = (sample.time_ms, sample.value);
    }
}

struct Decoder<'a> {
    reader: Reader<'a>,
    texts: Vec<Arc<str>>,
}

impl Decoder<'_> {
    fn text(&mut self) -> Result<Arc<str>, Malformed> {
        let index = self.reader.small()? as usize;
        self.texts.get(index).cloned().ok_or(Malformed("a text is outside its table"))
    }

    fn list<T>(
        &mut self,
        entry_bytes_min: usize,
        entry: impl Fn(&mut Self) -> Result<T, Malformed>,
    ) -> Result<Vec<T>, Malformed> {
        let count = self.reader.count(entry_bytes_min)?;
        (0..count).map(|_| entry(self)).collect()
    }

    fn batch(&mut self) -> Result<WriteBatch, Malformed> {
        Ok(WriteBatch {
            project: ProjectName(self.text()?),
            mappings: self.list(2, Self::mapping)?,
            functions: self.list(4, Self::function)?,
            locations: self.list(4, Self::location)?,
            stacks: self.list(1, |own| own.list(1, |own| own.reader.small()))?,
            attribute_sets: self.list(1, |own| own.list(2, Self::attribute))?,
            profiles: self.list(14, Self::profile)?,
        })
    }

    fn mapping(&mut self) -> Result<MappingDef, Malformed> {
        Ok(MappingDef { filename: self.text()?, build_id: BuildId::new(self.reader.blob()?) })
    }

    fn function(&mut self) -> Result<FunctionDef, Malformed> {
        Ok(FunctionDef {
            name: self.text()?.into(),
            system_name: self.text()?.into(),
            file: self.text()?.into(),
            start_line: self.reader.signed()?,
        })
    }

    fn location(&mut self) -> Result<LocationDef, Malformed> {
        Ok(LocationDef {
            mapping: self.reader.small()?.checked_sub(1),
            address: self.reader.number()?,
            kind: kind_of(self.reader.number()?)?,
            lines: self.lines()?,
        })
    }

    fn lines(&mut self) -> Result<Lines, Malformed> {
        let count = self.reader.count(2)?;
        let mut line =
            || Ok(LineDef { function: self.reader.small()?, line: self.reader.signed()? });
        (0..count).map(|_| line()).collect()
    }

    fn attribute(&mut self) -> Result<Attribute, Malformed> {
        let key = self.text()?;
        let value = match self.reader.byte()? {
            0 => AttributeValue::Text(self.text()?),
            1 => AttributeValue::Int(self.reader.signed()?),
            2 => AttributeValue::Bool(false),
            3 => AttributeValue::Bool(true),
            _ => return Err(Malformed("an attribute has an unknown type")),
        };
        Ok(Attribute { key, value })
    }

    fn profile(&mut self) -> Result<ProfileDef, Malformed> {
        let id = self.profile_id()?;
        let labels = SeriesLabels {
            service: self.text()?,
            host: self.text()?,
            container: self.text()?,
            pod: self.text()?,
            executable: self.text()?,
        };
        let sample_type = ValueType { kind: self.text()?, unit: self.text()? };
        let period_type = ValueType { kind: self.text()?, unit: self.text()? };
        let period = self.reader.signed()?;
        let time_ms = self.reader.signed()?;
        let duration_ms = self.reader.signed()?;
        let count = self.reader.count(4)?;
        let mut samples = Vec::with_capacity(count);
        let (mut last_ms, mut value) = (time_ms, 0_i64);
        for _ in 0..count {
            let (stack, attributes) = (self.reader.small()?, self.reader.small()?);
            last_ms = last_ms.wrapping_add(self.reader.signed()?);
            value = value.wrapping_add(self.reader.signed()?);
            samples.push(SampleDef { stack, attributes, time_ms: last_ms, value });
        }
        Ok(ProfileDef {
            id,
            labels,
            sample_type,
            period_type,
            period,
            time_ms,
            duration_ms,
            samples,
        })
    }

    fn profile_id(&mut self) -> Result<ProfileId, Malformed> {
        match self.reader.byte()? {
            0 => Ok(ProfileId::None),
            1 => {
                let wide = self.reader.wide()?;
                let low = wide & u128::from(u64::MAX);
                let half = |half| u64::try_from(half).ok().ok_or(Malformed("an id is too wide"));
                Ok(ProfileId::Agent { boot: half(low)?, sequence: half(wide >> 64)? })
            }
            2 => Ok(ProfileId::Foreign(self.reader.wide()?.to_le_bytes())),
            _ => Err(Malformed("an id has an unknown type")),
        }
    }
}

/// The kind with this stored number.
pub(super) fn kind_of(code: u64) -> Result<FrameKind, Malformed> {
    let index = usize::try_from(code).unwrap_or(usize::MAX);
    FrameKind::ALL.get(index).copied().ok_or(Malformed("an unknown kind of frame"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::sample_data;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn a_batch_survives(batch in sample_data::batches()) {
            let bytes = encode(&batch).unwrap();
            prop_assert_eq!(decode(&bytes, 0), Ok(batch));
        }

        #[test]
        fn damaged_bytes_are_refused_or_valid(batch in sample_data::batches(), at in any::<prop::sample::Index>(),
                                              byte in any::<u8>()) {
            let plain = encode(&batch).unwrap();
            let mut bytes = plain.clone();
            let at = at.index(bytes.len());
            bytes[at] = byte;
            if let Ok(batch) = decode(&bytes, 0) {
                prop_assert_eq!(batch.check(), Ok(()));
            }
            prop_assert!(decode(&plain[..at], 0).is_err());
        }
    }
}
