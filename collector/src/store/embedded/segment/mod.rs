//! Segments: the samples of one project and one hour, immutable. A file is a header, sections, and a footer
//! that says where they lie, each with its own checksum, so that a query reads only what it needs and damage
//! costs one section. Series stand in the order (type, service, series); of each (type, service) first all
//! sums by stack, then all rows, then all attribute sets: a question about a service is one read.
//!
//! Per series: **sums** are its distinct stacks in ascending order with the sum of each (the pre-aggregate);
//! **rows** are times, indices into these stacks, values; **sets** are its distinct attribute sets and the
//! index of each row.

mod read;
mod write;

pub(super) use read::{Buffers, Runs, Segment};
pub(super) use write::{SegmentWriter, SeriesRows};

use super::codec::{Malformed, Reader, Writer};

/// First bytes: a name and the version of the format.
const MAGIC: &[u8; 8] = b"VSTSEG\x00\x01";
/// Last bytes, behind length and checksum of the footer.
const END_MAGIC: &[u8; 8] = b"VSTSEGE\x01";
/// Bytes behind the footer: its length, its checksum, the end's name.
const TRAILER_BYTES: usize = 16;

/// Where a section lies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Section {
    offset: u64,
    length: u32,
    checksum: u32,
}

/// A series in a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    /// Number of the series in the project.
    pub(super) series: u32,
    pub(super) type_id: u32,
    pub(super) service: u32,
    rows: u32,
    stacks: u32,
    /// Milliseconds since the start of the hour.
    first_ms: u32,
    last_ms: u32,
    /// Length 0 if a sum leaves 64 bits: the rows are used then.
    sums_section: Section,
    rows_section: Section,
    sets_section: Section,
}

/// What a segment holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Footer {
    entries: Vec<Entry>,
    reports_section: Section,
}

impl Entry {
    /// Observations of the series.
    pub(super) fn samples(&self) -> u64 {
        self.rows.into()
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
            let numbers = [
                entry.series,
                entry.type_id,
                entry.service,
                entry.rows,
                entry.stacks,
                entry.first_ms,
                entry.last_ms,
            ];
            numbers.into_iter().for_each(|number| writer.number(number.into()));
            for section in [entry.sums_section, entry.rows_section, entry.sets_section] {
                section.encode(&mut writer);
            }
        }
        self.reports_section.encode(&mut writer);
        writer.bytes
    }

    fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(bytes);
        let count = reader.count(25)?;
        let mut entries = Vec::with_capacity(count);
        for _ in 0..count {
            entries.push(Entry {
                series: reader.small()?,
                type_id: reader.small()?,
                service: reader.small()?,
                rows: reader.small()?,
                stacks: reader.small()?,
                first_ms: reader.small()?,
                last_ms: reader.small()?,
                sums_section: Section::decode(&mut reader)?,
                rows_section: Section::decode(&mut reader)?,
                sets_section: Section::decode(&mut reader)?,
            });
        }
        let key = |entry: &Entry| (entry.type_id, entry.service, entry.series);
        if !entries.is_sorted_by_key(key) {
            return Err(Malformed("the series are not sorted"));
        }
        let reports_section = Section::decode(&mut reader)?;
        reader.end()?;
        Ok(Self { entries, reports_section })
    }
}
