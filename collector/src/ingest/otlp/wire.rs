//! Looks at the protobuf bytes of a request before they are decoded: bounds what decoding would take, and
//! turns the sample layout of protocol 1.8 and 1.9 into that of 1.10. It decodes no values.
//!
//! Protocol 1.10 renumbered the fields of `Sample` (opentelemetry-proto v1.9.0 and v1.10.0,
//! `profiles.proto`). A decoder of one version reads samples of the other without an error, and empty.
//! Wire types tell them apart: in 1.10 field 3 is a number (link) and field 4 packed (values); before, field
//! 3 was packed (attributes) and field 4 a number (link). All of these tags are one byte, so a
//! request is renumbered in place.

use crate::limits::{DECODED_BYTES_MAX, PROFILES_MAX, WIRE_DEPTH_MAX};
use proto::opentelemetry_proto::tonic as otlp;
use std::mem::size_of;
use std::ops::Range;

/// Why bytes are not a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// A field or a length runs past the end.
    #[error("the message is cut off at byte {0}")]
    Truncated(usize),
    /// A tag or number is longer than 10 bytes.
    #[error("malformed number at byte {0}")]
    Varint(usize),
    /// Field 0, or a wire type that proto3 does not have.
    #[error("malformed field tag at byte {0}")]
    Tag(usize),
    /// Deeper than [`WIRE_DEPTH_MAX`].
    #[error("messages are nested deeper than {WIRE_DEPTH_MAX}")]
    Depth,
    /// Decoding would take more than [`DECODED_BYTES_MAX`].
    #[error(
        "decoding would take more than {DECODED_BYTES_MAX} bytes of memory; send smaller requests"
    )]
    Memory,
    /// More profiles than [`PROFILES_MAX`].
    #[error("more than {PROFILES_MAX} profiles in one request; send smaller requests")]
    Profiles,
}

/// What a look at the bytes found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// Byte ranges of profiles whose samples have the layout of 1.8 or 1.9.
    pub old_profiles: Vec<Range<usize>>,
    /// Profiles that use both layouts: positions in order of the wire, and byte ranges.
    pub mixed_profiles: Vec<(usize, Range<usize>)>,
}

/// Messages that the look walks into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Message {
    Request,
    ResourceProfiles,
    Resource,
    ScopeProfiles,
    Scope,
    Profile,
    Sample,
    Dictionary,
    Mapping,
    Location,
    Line,
    Function,
    Link,
    Attribute,
    Stack,
    KeyValue,
    AnyValue,
    Array,
    KeyValues,
    EntityRef,
    ValueType,
}

/// What a length-delimited field holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Payload {
    Message(Message),
    /// Text or bytes: one allocation.
    Bytes,
    /// Packed numbers of this many bytes in memory; on the wire one byte or more each.
    Packed(usize),
    /// Unknown to the schema: skipped by the decoder.
    Skipped,
}

impl Message {
    fn payload(self, field: u32) -> Payload {
        use Message as M;
        use Payload::{Bytes, Packed, Skipped};
        let message = Payload::Message;
        match (self, field) {
            (M::Request, 1) => message(M::ResourceProfiles),
            (M::Request, 2) => message(M::Dictionary),
            (M::ResourceProfiles, 1) => message(M::Resource),
            (M::ResourceProfiles, 2) => message(M::ScopeProfiles),
            (M::ScopeProfiles, 1) => message(M::Scope),
            (M::ScopeProfiles, 2) => message(M::Profile),
            (M::Resource, 1) | (M::Scope, 3) | (M::KeyValues, 1) => message(M::KeyValue),
            (M::Resource, 3) => message(M::EntityRef),
            (M::Profile, 1 | 5) => message(M::ValueType),
            (M::Profile, 2) => message(M::Sample),
            (M::Dictionary, 1) => message(M::Mapping),
            (M::Dictionary, 2) => message(M::Location),
            (M::Dictionary, 3) => message(M::Function),
            (M::Dictionary, 4) => message(M::Link),
            (M::Dictionary, 6) => message(M::Attribute),
            (M::Dictionary, 7) => message(M::Stack),
            (M::Location, 3) => message(M::Line),
            (M::Attribute | M::KeyValue, 2) | (M::Array, 1) => message(M::AnyValue),
            (M::AnyValue, 5) => message(M::Array),
            (M::AnyValue, 6) => message(M::KeyValues),
            // Packed numbers. In a sample the largest of both layouts is charged.
            (M::Sample, 2..=4) => Packed(size_of::<i64>()),
            (M::Sample, 5) => Packed(1), // fixed64: 8 bytes on the wire and in memory
            (M::Mapping, 5) | (M::Location, 4) | (M::Stack, 1) | (M::Profile, 11) => {
                Packed(size_of::<i32>())
            }
            (M::ResourceProfiles | M::ScopeProfiles, 3)
            | (M::Scope | M::EntityRef | M::Link, 1 | 2)
            | (M::EntityRef, 3 | 4)
            | (M::Profile, 7..=10 | 12)
            | (M::Dictionary, 5)
            | (M::KeyValue, 1)
            | (M::AnyValue, 1 | 7) => Bytes,
            _ => Skipped,
        }
    }

    /// Bytes that one message takes in its parent's vector.
    fn bytes(self) -> usize {
        use otlp::profiles::v1development as profiles;
        match self {
            Self::Request => 0,
            Self::ResourceProfiles => size_of::<profiles::ResourceProfiles>(),
            Self::Resource => size_of::<otlp::resource::v1::Resource>(),
            Self::ScopeProfiles => size_of::<profiles::ScopeProfiles>(),
            Self::Scope => size_of::<otlp::common::v1::InstrumentationScope>(),
            Self::Profile => size_of::<profiles::Profile>(),
            Self::Sample => size_of::<profiles::Sample>(),
            Self::Dictionary => size_of::<profiles::ProfilesDictionary>(),
            Self::Mapping => size_of::<profiles::Mapping>(),
            Self::Location => size_of::<profiles::Location>(),
            Self::Line => size_of::<profiles::Line>(),
            Self::Function => size_of::<profiles::Function>(),
            Self::Link => size_of::<profiles::Link>(),
            Self::Attribute => size_of::<profiles::KeyValueAndUnit>(),
            Self::Stack => size_of::<profiles::Stack>(),
            Self::KeyValue => size_of::<otlp::common::v1::KeyValue>(),
            Self::AnyValue => size_of::<otlp::common::v1::AnyValue>(),
            Self::Array => size_of::<otlp::common::v1::ArrayValue>(),
            Self::KeyValues => size_of::<otlp::common::v1::KeyValueList>(),
            Self::EntityRef => size_of::<otlp::common::v1::EntityRef>(),
            Self::ValueType => size_of::<profiles::ValueType>(),
        }
    }
}

/// A field of `Profile` that no version of the protocol uses: decoders skip it.
const UNUSED_FIELD: u32 = 15;

const WIRE_VARINT: u8 = 0;
const WIRE_FIXED64: u8 = 1;
const WIRE_BYTES: u8 = 2;
const WIRE_FIXED32: u8 = 5;

/// One field as it lies on the wire.
struct Field {
    tag_at: usize,
    number: u32,
    wire_type: u8,
    /// The payload of a length-delimited field, else the bytes of the number.
    value: Range<usize>,
}

fn varint(bytes: &[u8], at: &mut usize, end: usize) -> Result<u64, WireError> {
    let start = *at;
    let mut value = 0u64;
    for shift in (0..70).step_by(7) {
        let byte = match bytes.get(*at) {
            Some(&byte) if *at < end => byte,
            _ => return Err(WireError::Truncated(*at)),
        };
        *at += 1;
        if shift == 63 && byte > 1 {
            return Err(WireError::Varint(start));
        }
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(WireError::Varint(start))
}

/// The next field of a message that ends at `end`, or nothing at its end.
fn next_field(bytes: &[u8], at: &mut usize, end: usize) -> Result<Option<Field>, WireError> {
    if *at >= end {
        return Ok(None);
    }
    let tag_at = *at;
    let tag = varint(bytes, at, end)?;
    let number = u32::try_from(tag >> 3).map_err(|_large| WireError::Tag(tag_at))?;
    let wire_type = u8::try_from(tag & 7).map_err(|_large| WireError::Tag(tag_at))?;
    if number == 0 {
        return Err(WireError::Tag(tag_at));
    }
    let value_at = *at;
    let value = match wire_type {
        WIRE_VARINT => {
            varint(bytes, at, end)?;
            value_at..*at
        }
        WIRE_FIXED64 => value_at..value_at.saturating_add(8),
        WIRE_FIXED32 => value_at..value_at.saturating_add(4),
        WIRE_BYTES => {
            let length = varint(bytes, at, end)?;
            let length =
                usize::try_from(length).map_err(|_large| WireError::Truncated(value_at))?;
            *at..at.saturating_add(length)
        }
        _ => return Err(WireError::Tag(tag_at)),
    };
    if value.end > end {
        return Err(WireError::Truncated(end));
    }
    *at = value.end;
    Ok(Some(Field { tag_at, number, wire_type, value }))
}

/// Which layout the samples of one profile show.
#[derive(Clone, Copy, Debug, Default)]
struct Evidence {
    old: bool,
    new: bool,
    /// A sample with field 2 alone: values of the old layout, or an invalid sample of the new one.
    bare: bool,
    /// A profile message of 1.8: `profile_id` and what follows one number higher.
    old_profile: bool,
}

struct Look<'a> {
    bytes: &'a [u8],
    charged: usize,
    profiles: Vec<(Range<usize>, Evidence)>,
}

/// Walks through a request.
///
/// # Errors
/// The bytes are no protobuf message, or exceed a limit.
pub fn look(bytes: &[u8]) -> Result<Findings, WireError> {
    let mut look = Look { bytes, charged: 0, profiles: Vec::new() };
    look.walk(Message::Request, 0..bytes.len(), 0)?;
    let any_old = look.profiles.iter().any(|(_, seen)| seen.old);
    let any_new = look.profiles.iter().any(|(_, seen)| seen.new);
    let mut findings = Findings::default();
    for (at, (range, seen)) in look.profiles.into_iter().enumerate() {
        // One encoder wrote the whole request: a profile without evidence follows the others, and a
        // bare one that nothing contradicts is old, because in the new layout it would be empty.
        let old = seen.old || (!seen.new && !any_new && (any_old || seen.bare));
        if seen.old && seen.new {
            findings.mixed_profiles.push((at, range));
        } else if old || seen.old_profile {
            findings.old_profiles.push(range);
        }
    }
    Ok(findings)
}

impl Look<'_> {
    fn charge(&mut self, bytes: usize) -> Result<(), WireError> {
        self.charged = self.charged.saturating_add(bytes);
        if self.charged > DECODED_BYTES_MAX { Err(WireError::Memory) } else { Ok(()) }
    }

    fn walk(
        &mut self,
        message: Message,
        range: Range<usize>,
        depth: usize,
    ) -> Result<(), WireError> {
        if depth > WIRE_DEPTH_MAX {
            return Err(WireError::Depth);
        }
        if message == Message::Profile {
            if self.profiles.len() >= PROFILES_MAX {
                return Err(WireError::Profiles);
            }
            self.profiles.push((range.clone(), Evidence::default()));
        }
        let mut at = range.start;
        let mut sample = SampleShape::default();
        while let Some(field) = next_field(self.bytes, &mut at, range.end)? {
            match message {
                Message::Sample => sample.see(self.bytes, &field),
                Message::Profile => self.see_profile_field(&field),
                _ => {}
            }
            self.enter(message, &field, depth)?;
        }
        if message == Message::Sample
            && let Some((_, evidence)) = self.profiles.last_mut()
        {
            sample.judge(evidence);
        }
        Ok(())
    }

    fn enter(&mut self, message: Message, field: &Field, depth: usize) -> Result<(), WireError> {
        if field.wire_type != WIRE_BYTES {
            // A number of a repeated field that is not packed: 8 bytes at most.
            return self.charge(size_of::<u64>());
        }
        match message.payload(field.number) {
            // Vectors double, so up to twice the room is taken.
            Payload::Message(inner) => {
                self.charge(2 * inner.bytes())?;
                self.walk(inner, field.value.clone(), depth + 1)
            }
            Payload::Bytes => self.charge(2 * size_of::<String>() + field.value.len()),
            Payload::Packed(width) => self.charge(width * field.value.len()),
            Payload::Skipped => Ok(()),
        }
    }

    fn see_profile_field(&mut self, field: &Field) {
        let moved =
            matches!((field.number, field.wire_type), (7 | 9, WIRE_VARINT) | (8, WIRE_BYTES));
        if moved && let Some((_, evidence)) = self.profiles.last_mut() {
            evidence.old_profile = true;
        }
    }
}

#[derive(Default)]
struct SampleShape {
    old: bool,
    new: bool,
    /// Numbers in field 2: values of the old layout, attributes of the new.
    second: usize,
    timestamps: usize,
}

impl SampleShape {
    fn see(&mut self, bytes: &[u8], field: &Field) {
        match (field.number, field.wire_type) {
            (3, WIRE_BYTES) | (4, WIRE_VARINT) => self.old = true,
            (3, WIRE_VARINT) | (4, WIRE_BYTES) => self.new = true,
            (2, WIRE_BYTES) => {
                let packed = bytes.get(field.value.clone()).unwrap_or_default();
                self.second += packed.iter().filter(|&&byte| byte & 0x80 == 0).count();
            }
            (2, _) => self.second += 1,
            (5, WIRE_BYTES) => self.timestamps += field.value.len() / size_of::<u64>(),
            (5, _) => self.timestamps += 1,
            _ => {}
        }
    }

    /// True where field 2 cannot be values, because there are more or fewer than timestamps.
    fn is_uneven(&self) -> bool {
        self.second > 0 && self.timestamps > 0 && self.second != self.timestamps
    }

    fn judge(&self, evidence: &mut Evidence) {
        let decided = self.old || self.new;
        evidence.old |= self.old;
        evidence.new |= self.new || (!decided && self.is_uneven());
        evidence.bare |= !decided && self.second > 0 && self.timestamps == 0;
    }
}

/// Makes everything readable in the layout of 1.10: renumbers the fields of old profiles in place, and
/// hides the samples of mixed ones, which else would make the whole request undecodable.
///
/// # Errors
/// None for findings of [`look`] in the same bytes.
pub fn renumber(bytes: &mut [u8], findings: &Findings) -> Result<(), WireError> {
    for range in &findings.old_profiles {
        renumber_profile(bytes, range.clone())?;
    }
    for (_, range) in &findings.mixed_profiles {
        let mut at = range.start;
        while let Some(field) = next_field(bytes, &mut at, range.end)? {
            if field.number == 2 {
                set_number(bytes, field.tag_at, UNUSED_FIELD);
            }
        }
    }
    Ok(())
}

fn renumber_profile(bytes: &mut [u8], range: Range<usize>) -> Result<(), WireError> {
    let mut fields = Vec::new();
    let mut at = range.start;
    while let Some(field) = next_field(bytes, &mut at, range.end)? {
        fields.push(field);
    }
    let is_1_8 = fields.iter().any(|field| {
        matches!((field.number, field.wire_type), (7 | 9, WIRE_VARINT) | (8, WIRE_BYTES))
    });
    let mut old_samples = SampleShape::default();
    for field in fields.iter().filter(|field| field.number == 2 && field.wire_type == WIRE_BYTES) {
        let mut at = field.value.start;
        while let Some(inner) = next_field(bytes, &mut at, field.value.end)? {
            old_samples.see(bytes, &inner);
        }
    }
    for field in fields {
        match field.number {
            2 if field.wire_type == WIRE_BYTES && !old_samples.new => {
                renumber_sample(bytes, field.value)?;
            }
            // Protocol 1.8 had `comment_strindices` in 7.
            7 if is_1_8 => set_number(bytes, field.tag_at, UNUSED_FIELD),
            8..=12 if is_1_8 => set_number(bytes, field.tag_at, field.number - 1),
            _ => {}
        }
    }
    Ok(())
}

fn renumber_sample(bytes: &mut [u8], range: Range<usize>) -> Result<(), WireError> {
    let mut at = range.start;
    while let Some(field) = next_field(bytes, &mut at, range.end)? {
        let number = match field.number {
            2 => 4,
            3 => 2,
            4 => 3,
            _ => continue,
        };
        set_number(bytes, field.tag_at, number);
    }
    Ok(())
}

/// Field numbers up to 15 lie in the first byte of a tag, whatever padding follows.
fn set_number(bytes: &mut [u8], tag_at: usize, number: u32) {
    if let Some(byte) = bytes.get_mut(tag_at) {
        let number = u8::try_from(number & 0x0f).unwrap_or_default();
        *byte = (*byte & 0x87) | (number << 3);
    }
}

#[cfg(test)]
mod tests;
