//! Writing a segment.

use super::{END_MAGIC, Entry, Footer, MAGIC, PART_ROWS, Part, Section, ServiceSums, Span};
use crate::limits;
use crate::profile::{Attribute, AttributeValue};
use crate::query::Intervals;
use crate::store::embedded::codec::{Writer, press};
use crate::store::embedded::columns::{pack, pack_sorted, pack_wide};
use crate::store::embedded::files::AppendFile;
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

/// Rows of one series in one segment, in any order, as parallel columns.
#[derive(Debug, Default)]
pub(in super::super) struct SeriesRows {
    /// Milliseconds since the start of the segment.
    pub(in super::super) times: Vec<u32>,
    pub(in super::super) nodes: Vec<u32>,
    pub(in super::super) values: Vec<i64>,
    pub(in super::super) sets: Vec<u32>,
}

impl SeriesRows {
    /// The same in order of time; of one time, in the order of before.
    fn by_time(self) -> Self {
        if self.times.is_sorted() {
            return self;
        }
        let mut order: Vec<u64> =
            (0_u64..).zip(&self.times).map(|(at, &time)| u64::from(time) << 32 | at).collect();
        order.sort_unstable();
        let pick = |column: &[u32]| -> Vec<u32> {
            order.iter().map(|&pair| column[low_half(pair) as usize]).collect()
        };
        Self {
            times: order.iter().map(|&pair| high_half(pair)).collect(),
            nodes: pick(&self.nodes),
            sets: pick(&self.sets),
            values: order.iter().map(|&pair| self.values[low_half(pair) as usize]).collect(),
        }
    }
}

/// A segment under construction.
pub(in super::super) struct SegmentWriter {
    file: Box<dyn AppendFile>,
    offset: u64,
    footer: Footer,
    group: Group,
    /// Sums by stack over the series of the group, if they are wanted.
    service: Option<BTreeMap<u32, i128>>,
}

/// The sections of one (type, service).
#[derive(Default)]
struct Group {
    key: (u32, u32),
    entries: Vec<Entry>,
    sums: Writer,
    rows: Writer,
    sets: Writer,
}

impl Group {
    fn bytes(&self) -> usize {
        self.sums.bytes.len() + self.rows.bytes.len() + self.sets.bytes.len()
    }
}

impl SegmentWriter {
    pub(in super::super) fn new(mut file: Box<dyn AppendFile>, span: Span) -> io::Result<Self> {
        file.append(MAGIC)?;
        let offset = MAGIC.len() as u64;
        let service = (span == Span::Day).then(BTreeMap::new);
        let (footer, group) = (Footer::default(), Group::default());
        Ok(Self { file, offset, footer, group, service })
    }

    /// Adds a series; they come in the order (type, service, series).
    pub(in super::super) fn add(
        &mut self,
        (type_id, service, series): (u32, u32, u32),
        rows: SeriesRows,
        dictionary: &[Arc<[Attribute]>],
    ) -> io::Result<()> {
        // A group that is large enough is written in pieces: it need not fit into memory.
        if self.group.key != (type_id, service) {
            self.end_service()?;
        } else if self.group.bytes() > limits::SEGMENT_GROUP_BYTES {
            self.end_group()?;
        }
        self.group.key = (type_id, service);
        let sorted = Sorted::of(rows);
        if let Some(sums) = &mut self.service {
            sorted.add_to(sums);
        }
        let entry = Entry {
            series,
            type_id,
            service,
            stacks: length32(sorted.stacks.len())?,
            sums_section: section(&mut self.group.sums, |writer| {
                sorted.write_sums(writer);
                Ok(())
            })?,
            parts: sorted.write_parts(&mut self.group.rows)?,
            sets_section: section(&mut self.group.sets, |writer| {
                write_sets(&sorted.rows.sets, dictionary, writer)
            })?,
        };
        self.group.entries.push(entry);
        Ok(())
    }

    /// Ends the file and makes it durable; answers its length. The folder is not synced.
    pub(in super::super) fn finish(
        mut self,
        reports: &[(u32, &Arc<str>, &Intervals)],
    ) -> io::Result<u64> {
        self.end_service()?;
        let mut writer = Writer::default();
        let mut reports_section = section(&mut writer, |writer| {
            write_reports(reports, writer);
            Ok(())
        })?;
        reports_section.offset = self.offset;
        self.footer.reports_section = reports_section;
        self.append(&writer.bytes)?;
        let footer = self.footer.encode();
        if footer.len() > limits::SEGMENT_FOOTER_BYTES_MAX {
            return Err(io::Error::other("a segment has too many series"));
        }
        let mut trailer = length32(footer.len())?.to_le_bytes().to_vec();
        trailer.extend_from_slice(&crc32c::crc32c(&footer).to_le_bytes());
        trailer.extend_from_slice(END_MAGIC);
        self.append(&footer)?;
        self.append(&trailer)?;
        self.file.sync()?;
        Ok(self.offset)
    }

    /// Ends the group, and writes the sums over its series if they are more than those of one.
    fn end_service(&mut self) -> io::Result<()> {
        let (type_id, service) = self.group.key;
        self.end_group()?;
        let Some(sums) = self.service.as_mut().map(std::mem::take) else { return Ok(()) };
        let mut last = self.footer.entries.iter().rev().map(Entry::group);
        let has_several =
            last.next() == Some((type_id, service)) && last.next() == Some((type_id, service));
        let values: Option<Vec<i64>> = sums.values().map(|&sum| i64::try_from(sum).ok()).collect();
        let Some(values) = values.filter(|_| has_several) else { return Ok(()) };
        let stacks: Vec<u32> = sums.into_keys().collect();
        let mut writer = Writer::default();
        let mut section = section(&mut writer, |writer| {
            pack_sorted(&stacks, writer);
            pack_wide(&values, writer);
            Ok(())
        })?;
        section.offset = self.offset;
        let stacks = length32(stacks.len())?;
        self.footer.services.push(ServiceSums { type_id, service, stacks, section });
        self.append(&writer.bytes)
    }

    fn end_group(&mut self) -> io::Result<()> {
        let Group { entries, sums, rows, sets, .. } = std::mem::take(&mut self.group);
        let sums_start = self.offset;
        let rows_start = sums_start + sums.bytes.len() as u64;
        let sets_start = rows_start + rows.bytes.len() as u64;
        self.footer.entries.extend(entries.into_iter().map(|mut entry| {
            entry.sums_section.offset += sums_start;
            entry.parts.iter_mut().for_each(|part| part.section.offset += rows_start);
            entry.sets_section.offset += sets_start;
            entry
        }));
        [sums, rows, sets].iter().try_for_each(|writer| self.append(&writer.bytes))
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.append(bytes)?;
        self.offset += bytes.len() as u64;
        Ok(())
    }
}

/// Rows by time, with the distinct stacks and their sums.
struct Sorted {
    rows: SeriesRows,
    stacks: Vec<u32>,
    /// Index into `stacks` of each row.
    indices: Vec<u32>,
    /// Absent if one leaves 64 bits.
    sums: Option<Vec<i64>>,
}

impl Sorted {
    fn of(rows: SeriesRows) -> Self {
        let rows = rows.by_time();
        let mut by_node: Vec<u64> =
            (0_u64..).zip(&rows.nodes).map(|(at, &node)| u64::from(node) << 32 | at).collect();
        by_node.sort_unstable();
        let mut stacks: Vec<u32> = Vec::new();
        let mut sums: Vec<i128> = Vec::new();
        let mut indices = vec![0; rows.nodes.len()];
        for pair in by_node {
            let (node, at) = (high_half(pair), low_half(pair) as usize);
            if stacks.last() != Some(&node) {
                stacks.push(node);
                sums.push(0);
            }
            let index = stacks.len() - 1;
            sums[index] += i128::from(rows.values[at]);
            indices[at] = u32::try_from(index).unwrap_or(u32::MAX);
        }
        let sums = sums.into_iter().map(|sum| i64::try_from(sum).ok()).collect();
        Self { rows, stacks, indices, sums }
    }

    /// Adds the sums of the stacks to those of others.
    fn add_to(&self, sums: &mut BTreeMap<u32, i128>) {
        let mut add = |stack: u32, value: i64| *sums.entry(stack).or_default() += i128::from(value);
        match &self.sums {
            Some(mine) => self.stacks.iter().zip(mine).for_each(|(&stack, &sum)| add(stack, sum)),
            None => {
                let rows = self.indices.iter().zip(&self.rows.values);
                rows.for_each(|(&at, &value)| add(self.stacks[at as usize], value));
            }
        }
    }

    fn write_sums(&self, writer: &mut Writer) {
        pack_sorted(&self.stacks, writer);
        match &self.sums {
            Some(sums) => {
                writer.byte(1);
                pack_wide(sums, writer);
            }
            None => writer.byte(0),
        }
    }

    fn write_parts(&self, writer: &mut Writer) -> io::Result<Vec<Part>> {
        let SeriesRows { times, values, .. } = &self.rows;
        let columns = times.chunks(PART_ROWS).zip(values.chunks(PART_ROWS));
        let columns = columns.zip(self.indices.chunks(PART_ROWS));
        let part = |((times, values), indices): ((&[u32], &[i64]), &[u32])| {
            let section = section(writer, |writer| {
                pack_sorted(times, writer);
                pack(indices, writer);
                pack_wide(values, writer);
                Ok(())
            })?;
            let (first_ms, last_ms) = (times[0], times[times.len() - 1]);
            Ok(Part { rows: length32(times.len())?, first_ms, last_ms, section })
        };
        columns.map(part).collect()
    }
}

fn high_half(pair: u64) -> u32 {
    u32::try_from(pair >> 32).unwrap_or(u32::MAX)
}

fn low_half(pair: u64) -> u32 {
    u32::try_from(pair & u64::from(u32::MAX)).unwrap_or(u32::MAX)
}

/// Distinct sets in use, then the index of each row.
fn write_sets(
    sets: &[u32],
    dictionary: &[Arc<[Attribute]>],
    writer: &mut Writer,
) -> io::Result<()> {
    // One more than the number of each set in use, in the order of the dictionary.
    let mut numbers = vec![0_u32; dictionary.len()];
    sets.iter().for_each(|&set| numbers[set as usize] = 1);
    let used = || dictionary.iter().zip(&numbers).filter(|(_, used)| **used > 0);
    let mut plain = Writer::default();
    plain.length(used().count());
    for (attributes, _) in used() {
        plain.length(attributes.len());
        for attribute in attributes.iter() {
            plain.text(&attribute.key);
            match &attribute.value {
                AttributeValue::Text(text) => {
                    plain.byte(0);
                    plain.text(text);
                }
                AttributeValue::Int(value) => {
                    plain.byte(1);
                    plain.signed(*value);
                }
                AttributeValue::Bool(value) => plain.byte(2 + u8::from(*value)),
            }
        }
    }
    press(&plain.bytes, writer)?;
    (1..).zip(numbers.iter_mut().filter(|used| **used > 0)).for_each(|(next, used)| *used = next);
    let indices: Vec<u32> = sets.iter().map(|&set| numbers[set as usize] - 1).collect();
    pack(&indices, writer);
    Ok(())
}

fn write_reports(reports: &[(u32, &Arc<str>, &Intervals)], writer: &mut Writer) {
    writer.length(reports.len());
    for (type_id, host, intervals) in reports {
        writer.number((*type_id).into());
        writer.text(host);
        writer.length(intervals.spans().len());
        let mut last = 0;
        for &(start_ms, end_ms) in intervals.spans() {
            writer.signed(start_ms - last);
            writer.signed(end_ms - start_ms);
            last = end_ms;
        }
    }
}

/// Appends a section to a buffer; its offset is that in the buffer.
fn section(
    writer: &mut Writer,
    write: impl FnOnce(&mut Writer) -> io::Result<()>,
) -> io::Result<Section> {
    let start = writer.bytes.len();
    write(writer)?;
    let bytes = &writer.bytes[start..];
    Ok(Section {
        offset: start as u64,
        length: length32(bytes.len())?,
        checksum: crc32c::crc32c(bytes),
    })
}

fn length32(length: usize) -> io::Result<u32> {
    u32::try_from(length).map_err(io::Error::other)
}
