//! Segments: the samples of one project and one hour or day, immutable. A file is a header, sections, and a
//! footer that says where they lie, each with its own checksum, so that a query reads only what it needs and damage
//! costs one section. Series stand in the order (type, service, series), very large ones several times; of each (type,
//! service) first all sums by stack, then all rows, then all attribute sets: a question about a service is one read.
//!
//! Per series: **sums** are its distinct stacks in ascending order with the sum of each (the pre-aggregate);
//! **rows** are times, indices into these stacks, values, in parts of some thousand rows that can be read alone: a
//! question about minutes does not read a day; **sets** are its distinct attribute sets and the index of each row.
//! Per (type, service) of a day: the **sums** over all of its series, for questions that tell no labels apart.

mod read;
mod write;

pub(super) use read::{Buffers, Runs, Segment};
pub(super) use write::{SegmentWriter, SeriesRows};

use super::codec::{Malformed, Reader, Writer};
use super::memtable::HOUR_MS;
use crate::limits;
use crate::store::retention::DAY_MS;
use std::ops::Range;

/// First bytes: a name and the version of the format.
const MAGIC: &[u8; 8] = b"VSTSEG\x00\x02";
/// Last bytes, behind length and checksum of the footer.
const END_MAGIC: &[u8; 8] = b"VSTSEGE\x01";
/// Bytes behind the footer: its length, its checksum, the end's name.
const TRAILER_BYTES: usize = 16;

/// Bytes of the smallest part, entry and service of a footer.
const PART_BYTES_MIN: usize = 9;
const ENTRY_BYTES_MIN: usize = 17 + PART_BYTES_MIN;
const SERVICE_BYTES_MIN: usize = 9;
/// Rows of a part: 10 us to read, and its entry in the footer costs less than 0.05 bits a row.
const PART_ROWS: usize = 4_096;

/// How much time a segment holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Span {
    /// What a memtable becomes.
    Hour,
    /// What segments of one day are merged to.
    Day,
}

impl Span {
    /// Its length, milliseconds.
    pub(super) fn ms(self) -> i64 {
        match self {
            Self::Hour => HOUR_MS,
            Self::Day => DAY_MS,
        }
    }

    /// The start of the hour or day that a time lies in, Unix milliseconds.
    pub(super) fn start_of(self, time_ms: i64) -> i64 {
        time_ms.div_euclid(self.ms()).saturating_mul(self.ms())
    }
}

/// Where a section lies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Section {
    offset: u64,
    length: u32,
    checksum: u32,
}

/// Consecutive rows of a series.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Part {
    rows: u32,
    /// Milliseconds since the start of the segment.
    first_ms: u32,
    last_ms: u32,
    section: Section,
}

/// A series in a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    /// Number of the series in the project.
    pub(super) series: u32,
    pub(super) type_id: u32,
    pub(super) service: u32,
    stacks: u32,
    /// Length 0 if a sum leaves 64 bits: the rows are used then.
    sums_section: Section,
    sets_section: Section,
    /// The rows by time; never none.
    parts: Vec<Part>,
}

/// The sums over all series of a type and a service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ServiceSums {
    type_id: u32,
    service: u32,
    stacks: u32,
    section: Section,
}

/// What a segment holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Footer {
    entries: Vec<Entry>,
    /// In the order of the entries; none in a segment of an hour, and none for a single series.
    services: Vec<ServiceSums>,
    reports_section: Section,
}

impl Entry {
    /// Type and service.
    pub(super) fn group(&self) -> (u32, u32) {
        (self.type_id, self.service)
    }

    /// Its rows by time, in parts, each with its place in the columns of the series.
    pub(super) fn parts(&self) -> impl Iterator<Item = (Range<usize>, &Part)> {
        let mut behind = 0;
        self.parts.iter().map(move |part| {
            let first = behind;
            behind += part.rows();
            (first..behind, part)
        })
    }

    /// Observations of the series.
    pub(super) fn samples(&self) -> u64 {
        self.parts.iter().map(|part| u64::from(part.rows)).sum()
    }
}

impl ServiceSums {
    fn group(&self) -> (u32, u32) {
        (self.type_id, self.service)
    }

    fn encode(&self, writer: &mut Writer) {
        let numbers = [self.type_id, self.service, self.stacks];
        numbers.into_iter().for_each(|number| writer.number(number.into()));
        self.section.encode(writer);
    }

    fn decode(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let (type_id, service, stacks) = (reader.small()?, reader.small()?, reader.small()?);
        Ok(Self { type_id, service, stacks, section: Section::decode(reader)? })
    }
}

impl Part {
    /// Its rows.
    pub(super) fn rows(&self) -> usize {
        self.rows as usize
    }

    fn encode(&self, writer: &mut Writer) {
        writer.number(self.rows.into());
        writer.number(self.first_ms.into());
        writer.number(self.last_ms.wrapping_sub(self.first_ms).into());
        self.section.encode(writer);
    }

    fn decode(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let (rows, first_ms) = (reader.small()?, reader.small()?);
        let last_ms = first_ms.checked_add(reader.small()?);
        let last_ms = last_ms.ok_or(Malformed("a part of rows is too long"))?;
        Ok(Self { rows, first_ms, last_ms, section: Section::decode(reader)? })
    }
}

impl Section {
    fn encode(&self, writer: &mut Writer) {
        writer.number(self.offset);
        writer.number(self.length.into());
        writer.raw(&self.checksum.to_le_bytes());
    }

    fn decode(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let (offset, length) = (reader.number()?, reader.small()?);
        let mut checksum = [0; 4];
        checksum.copy_from_slice(reader.raw(4)?);
        Ok(Self { offset, length, checksum: u32::from_le_bytes(checksum) })
    }
}

impl Footer {
    fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        writer.length(self.entries.len());
        for entry in &self.entries {
            let numbers = [entry.series, entry.type_id, entry.service, entry.stacks];
            numbers.into_iter().for_each(|number| writer.number(number.into()));
            for section in [entry.sums_section, entry.sets_section] {
                section.encode(&mut writer);
            }
            writer.length(entry.parts.len());
            entry.parts.iter().for_each(|part| part.encode(&mut writer));
        }
        writer.length(self.services.len());
        self.services.iter().for_each(|sums| sums.encode(&mut writer));
        self.reports_section.encode(&mut writer);
        writer.bytes
    }

    fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(bytes);
        let count = reader.count(ENTRY_BYTES_MIN)?;
        let mut entries = Vec::with_capacity(count);
        for _ in 0..count {
            let entry = Entry {
                series: reader.small()?,
                type_id: reader.small()?,
                service: reader.small()?,
                stacks: reader.small()?,
                sums_section: Section::decode(&mut reader)?,
                sets_section: Section::decode(&mut reader)?,
                parts: (0..reader.count(PART_BYTES_MIN)?)
                    .map(|_| Part::decode(&mut reader))
                    .collect::<Result<_, _>>()?,
            };
            if entry.parts.is_empty() || entry.samples() > limits::SEGMENT_ROWS_MAX as u64 {
                return Err(Malformed("a series has no rows, or too many"));
            }
            if !entry.parts.is_sorted_by(|a, b| a.last_ms <= b.first_ms) {
                return Err(Malformed("the rows of a series are not sorted"));
            }
            entries.push(entry);
        }
        let key = |entry: &Entry| (entry.type_id, entry.service, entry.series);
        if !entries.is_sorted_by_key(key) {
            return Err(Malformed("the series are not sorted"));
        }
        let services = (0..reader.count(SERVICE_BYTES_MIN)?)
            .map(|_| ServiceSums::decode(&mut reader))
            .collect::<Result<Vec<_>, _>>()?;
        if !services.is_sorted_by_key(ServiceSums::group) {
            return Err(Malformed("the services are not sorted"));
        }
        let reports_section = Section::decode(&mut reader)?;
        reader.end()?;
        Ok(Self { entries, services, reports_section })
    }
}
