//! Reading a segment: the footer once, then by positional reads only the sections that a query needs.

use super::{END_MAGIC, Entry, Footer, MAGIC, Part, Section, ServiceSums, Span, TRAILER_BYTES};
use crate::limits;
use crate::profile::{Attribute, AttributeValue};
use crate::query::TimeRange;
use crate::store::StoreError;
use crate::store::embedded::codec::{Malformed, Reader, unpress};
use crate::store::embedded::columns::{unpack, unpack_sorted, unpack_wide};
use crate::store::embedded::manifest::SegmentFile;
use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

/// A segment. Its file is open only while a query reads it: there are more hours than descriptors. It stays
/// there for as long as a query has the segment, though it was dropped or merged meanwhile.
#[derive(Debug)]
pub(in super::super) struct Segment {
    path: PathBuf,
    open: Mutex<Weak<File>>,
    /// Its file goes with the last who has it.
    is_dropped: AtomicBool,
    /// Start of its hour or day, Unix milliseconds.
    pub(in super::super) start_ms: i64,
    pub(in super::super) span: Span,
    /// Its number: no other has it.
    pub(in super::super) sequence: u64,
    /// First and last millisecond that its profiles cover; reversed if none does.
    reported: (i64, i64),
    /// Number of the last deletion that hides nothing of it.
    pub(in super::super) clean_to: u64,
    length: u64,
    footer: OnceLock<Footer>,
}

/// Takes type, host and span of reported time.
pub(in super::super) type VisitReport<'v> = dyn FnMut(u32, &Arc<str>, (i64, i64)) + 'v;

/// Columns of one series, read from a segment; used again and again.
#[derive(Debug, Default)]
pub(in super::super) struct Buffers {
    pub(in super::super) nodes: Vec<u32>,
    pub(in super::super) values: Vec<i64>,
    pub(in super::super) times: Vec<i64>,
    pub(in super::super) sets: Vec<u32>,
    pub(in super::super) dictionary: Vec<Arc<[Attribute]>>,
    stacks: Vec<u32>,
    scratch: Vec<u32>,
}

impl Segment {
    pub(in super::super) fn open(path: PathBuf, file: &SegmentFile) -> Result<Self, StoreError> {
        let SegmentFile { start_ms, span, sequence, reported, clean_to, .. } = *file;
        let failed = |source| StoreError::io("opening", &path, source);
        let length = std::fs::metadata(&path).map_err(failed)?.len();
        let (open, is_dropped, footer) =
            (Mutex::default(), AtomicBool::new(false), OnceLock::new());
        Ok(Self {
            path,
            open,
            is_dropped,
            start_ms,
            span,
            sequence,
            reported,
            clean_to,
            length,
            footer,
        })
    }

    /// The open file: while somebody has it, others get the same.
    pub(in super::super) fn hold(&self) -> Result<Arc<File>, StoreError> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = open.upgrade() {
            return Ok(file);
        }
        let file = File::open(&self.path).map_err(|source| match source.kind() {
            ErrorKind::NotFound => self.damaged("the file is gone"),
            _ => StoreError::io("opening", &self.path, source),
        })?;
        let file = Arc::new(file);
        *open = Arc::downgrade(&file);
        Ok(file)
    }

    /// Has the file removed when nobody has the segment any more.
    pub(in super::super) fn remove_when_unused(&self) {
        self.is_dropped.store(true, Ordering::Relaxed);
    }

    /// The series of a type and a service.
    pub(in super::super) fn entries(
        &self,
        type_id: u32,
        service: u32,
    ) -> Result<&[Entry], StoreError> {
        let entries = &self.footer()?.entries;
        let key = |entry: &Entry| (entry.type_id, entry.service);
        let first = entries.partition_point(|entry| key(entry) < (type_id, service));
        let count = entries[first..].partition_point(|entry| key(entry) == (type_id, service));
        Ok(&entries[first..first + count])
    }

    /// All series, in their order.
    pub(in super::super) fn all_entries(&self) -> Result<&[Entry], StoreError> {
        Ok(&self.footer()?.entries)
    }

    /// Reads stacks and sums over all series of a type and a service; false if there are none.
    pub(in super::super) fn read_service(
        &self,
        type_id: u32,
        service: u32,
        buffers: &mut Buffers,
    ) -> Result<bool, StoreError> {
        let services = &self.footer()?.services;
        let found = services.binary_search_by_key(&(type_id, service), ServiceSums::group);
        let Some(sums) = found.ok().map(|at| services[at]) else { return Ok(false) };
        let mut run = Run::default();
        let bytes = self.section(sums.section, &mut run)?;
        self.checked(bytes.and_then(|bytes| {
            let (mut reader, count) = (Reader::new(bytes), sums.stacks as usize);
            unpack_sorted(&mut reader, count, &mut buffers.nodes)?;
            unpack_wide(&mut reader, count, &mut buffers.values, &mut buffers.scratch)?;
            reader.end()?;
            Ok(true)
        }))
    }

    /// The first millisecond of reported time; the end of time if there is none.
    pub(in super::super) fn reported_from_ms(&self) -> i64 {
        self.reported.0
    }

    /// First and last millisecond that the segment may hold rows of.
    pub(in super::super) fn bounds(&self) -> (i64, i64) {
        (self.start_ms, self.start_ms + self.span.ms() - 1)
    }

    /// First and last time of a series, Unix milliseconds.
    pub(in super::super) fn times_of(&self, entry: &Entry) -> (i64, i64) {
        let (first, last) = (entry.parts.first(), entry.parts.last());
        let first_ms = first.map_or(0, |part| part.first_ms);
        let last_ms = last.map_or(0, |part| part.last_ms);
        (self.start_ms + i64::from(first_ms), self.start_ms + i64::from(last_ms))
    }

    /// First and last time of a part, Unix milliseconds.
    pub(in super::super) fn times_of_part(&self, part: &Part) -> (i64, i64) {
        (self.start_ms + i64::from(part.first_ms), self.start_ms + i64::from(part.last_ms))
    }

    /// Reads stacks and sums of a series; false if it has no sums.
    pub(in super::super) fn read_sums(
        &self,
        entry: &Entry,
        runs: &mut Runs,
        buffers: &mut Buffers,
    ) -> Result<bool, StoreError> {
        let bytes = self.section(entry.sums_section, &mut runs.sums)?;
        self.checked(bytes.and_then(|bytes| {
            let mut reader = Reader::new(bytes);
            unpack_sorted(&mut reader, entry.stacks as usize, &mut buffers.nodes)?;
            if reader.byte()? == 0 {
                return Ok(false);
            }
            let count = entry.stacks as usize;
            unpack_wide(&mut reader, count, &mut buffers.values, &mut buffers.scratch)?;
            reader.end()?;
            Ok(true)
        }))
    }

    /// Reads the stacks of a series, which its rows refer to.
    pub(in super::super) fn read_stacks(
        &self,
        entry: &Entry,
        runs: &mut Runs,
        buffers: &mut Buffers,
    ) -> Result<(), StoreError> {
        let sums = self.section(entry.sums_section, &mut runs.sums)?;
        self.checked(sums.and_then(|bytes| {
            let stacks = &mut buffers.stacks;
            unpack_sorted(&mut Reader::new(bytes), entry.stacks as usize, stacks)
        }))
    }

    /// Reads a part of the rows of a series whose stacks were read.
    pub(in super::super) fn read_part(
        &self,
        part: &Part,
        runs: &mut Runs,
        buffers: &mut Buffers,
    ) -> Result<(), StoreError> {
        let rows = self.section(part.section, &mut runs.rows)?;
        let count = part.rows();
        self.checked(rows.and_then(|bytes| {
            let mut reader = Reader::new(bytes);
            let Buffers { nodes, values, times, stacks, scratch, .. } = buffers;
            unpack_sorted(&mut reader, count, scratch)?;
            times.clear();
            times.extend(scratch.iter().map(|&offset| self.start_ms + i64::from(offset)));
            unpack(&mut reader, count, nodes)?;
            for node in nodes.iter_mut() {
                let stack = stacks.get(*node as usize);
                *node = *stack.ok_or(Malformed("a stack is outside its table"))?;
            }
            unpack_wide(&mut reader, count, values, scratch)?;
            reader.end()
        }))
    }

    /// Reads the attribute sets of a series.
    pub(in super::super) fn read_sets(
        &self,
        entry: &Entry,
        runs: &mut Runs,
        buffers: &mut Buffers,
    ) -> Result<(), StoreError> {
        let bytes = self.section(entry.sets_section, &mut runs.sets)?;
        self.checked(bytes.and_then(|bytes| {
            let mut reader = Reader::new(bytes);
            read_dictionary(&mut reader, &mut buffers.dictionary)?;
            let rows = usize::try_from(entry.samples()).unwrap_or(usize::MAX);
            unpack(&mut reader, rows, &mut buffers.sets)?;
            let known = buffers.dictionary.len();
            if buffers.sets.iter().any(|&set| set as usize >= known) {
                return Err(Malformed("an attribute set is outside its table"));
            }
            reader.end()
        }))
    }

    /// True if there is such an entry. For looks at all that is kept: they leave nothing in memory.
    pub(in super::super) fn has_entry(
        &self,
        is_it: impl FnMut(&Entry) -> bool,
    ) -> Result<bool, StoreError> {
        if let Some(footer) = self.footer.get() {
            return Ok(footer.entries.iter().any(is_it));
        }
        Ok(self.read_footer()?.entries.iter().any(is_it))
    }

    /// Visits type, host and span of the reported time that touches the range.
    pub(in super::super) fn reports(
        &self,
        range: TimeRange,
        visit: &mut VisitReport<'_>,
    ) -> Result<(), StoreError> {
        if !range.touches(self.reported.0, self.reported.1) {
            return Ok(());
        }
        let footer = self.footer()?;
        let mut run = Run::default();
        let bytes = self.section(footer.reports_section, &mut run)?;
        self.checked(bytes.and_then(|bytes| {
            let mut reader = Reader::new(bytes);
            for _ in 0..reader.count(3)? {
                let (type_id, host) = (reader.small()?, reader.shared_text()?);
                let mut last = 0_i64;
                for _ in 0..reader.count(2)? {
                    let too_long = || Malformed("a span of time is too long");
                    let start_ms = last.checked_add(reader.signed()?).ok_or_else(too_long)?;
                    last = start_ms.checked_add(reader.signed()?).ok_or_else(too_long)?;
                    visit(type_id, &host, (start_ms, last));
                }
            }
            reader.end()
        }))
    }

    /// Compares the first bytes, which no query needs.
    pub(in super::super) fn check_magic(&self) -> Result<(), StoreError> {
        let mut found = [0; MAGIC.len()];
        self.read_exact(&mut found, 0)?;
        let is_segment = found == *MAGIC;
        is_segment.then_some(()).ok_or_else(|| self.damaged("it does not begin like a segment"))
    }

    fn footer(&self) -> Result<&Footer, StoreError> {
        if let Some(footer) = self.footer.get() {
            return Ok(footer);
        }
        let footer = self.read_footer()?;
        Ok(self.footer.get_or_init(|| footer))
    }

    fn read_footer(&self) -> Result<Footer, StoreError> {
        let trailer_at = self
            .length
            .checked_sub(TRAILER_BYTES as u64)
            .ok_or_else(|| self.damaged("it is shorter than its trailer"))?;
        let mut trailer = [0; TRAILER_BYTES];
        self.read_exact(&mut trailer, trailer_at)?;
        let word = |at: usize| {
            u32::from_le_bytes([trailer[at], trailer[at + 1], trailer[at + 2], trailer[at + 3]])
        };
        let (length, checksum) = (word(0) as usize, word(4));
        let start = trailer_at.checked_sub(length as u64);
        let start = start
            .filter(|_| trailer[8..] == *END_MAGIC && length <= limits::SEGMENT_FOOTER_BYTES_MAX);
        let start = start.ok_or_else(|| self.damaged("its trailer is not one"))?;
        let mut bytes = vec![0; length];
        self.read_exact(&mut bytes, start)?;
        if crc32c::crc32c(&bytes) != checksum {
            return Err(self.damaged("the checksum of its footer is wrong"));
        }
        Footer::decode(&bytes).map_err(|Malformed(detail)| self.damaged(detail))
    }

    /// The bytes of a section: from the run if it holds them, else from the file.
    fn section<'r>(
        &self,
        section: Section,
        run: &'r mut Run,
    ) -> Result<Result<&'r [u8], Malformed>, StoreError> {
        let (offset, length) = (section.offset, section.length as usize);
        let end = offset.saturating_add(length as u64);
        if end > self.length {
            return Ok(Err(Malformed("a section lies behind the end")));
        }
        if offset < run.offset || end > run.offset + run.bytes.len() as u64 {
            // What follows is wanted next: the sections of one service lie side by side.
            let ahead = offset.saturating_add(run.ahead_max);
            let behind = run.wanted_end.min(ahead).min(self.length).max(end);
            let length = usize::try_from(behind - offset);
            run.bytes.resize(length.unwrap_or(0), 0);
            run.offset = offset;
            self.read_exact(&mut run.bytes, offset)?;
        }
        let at = usize::try_from(offset - run.offset).unwrap_or(usize::MAX);
        let bytes = &run.bytes[at..at + length];
        if crc32c::crc32c(bytes) != section.checksum {
            return Ok(Err(Malformed("the checksum of a section is wrong")));
        }
        Ok(Ok(bytes))
    }

    fn read_exact(&self, bytes: &mut [u8], offset: u64) -> Result<(), StoreError> {
        let read = self.hold()?.read_exact_at(bytes, offset);
        read.map_err(|source| StoreError::io("reading", &self.path, source))
    }

    fn checked<T>(&self, result: Result<T, Malformed>) -> Result<T, StoreError> {
        result.map_err(|Malformed(detail)| self.damaged(detail))
    }

    pub(in super::super) fn damaged(&self, detail: &str) -> StoreError {
        StoreError::Damaged { path: self.path.display().to_string(), detail: detail.to_owned() }
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        if self.is_dropped.load(Ordering::Relaxed)
            && let Err(error) = std::fs::remove_file(&self.path)
        {
            // The next start removes what the manifest does not name.
            tracing::warn!(%error, path = %self.path.display(), "cannot remove a segment");
        }
    }
}

/// Bytes read ahead, of each kind of section.
#[derive(Debug, Default)]
pub(in super::super) struct Runs {
    sums: Run,
    rows: Run,
    sets: Run,
}

#[derive(Debug, Default)]
struct Run {
    offset: u64,
    bytes: Vec<u8>,
    /// Up to where sections are wanted.
    wanted_end: u64,
    /// Bytes that are read at once.
    ahead_max: u64,
}

impl Runs {
    /// Runs over neighbouring series that are all wanted, with all of their rows or some.
    pub(in super::super) fn over(entries: &[Entry], all_rows: bool, ahead_max: usize) -> Self {
        let until = |section: Option<Section>| {
            let last = section.unwrap_or_default();
            let wanted_end = last.offset.saturating_add(last.length.into());
            Run { wanted_end, ahead_max: ahead_max as u64, ..Run::default() }
        };
        let last = entries.last();
        let last_part = last.and_then(|entry| entry.parts.last()).filter(|_| all_rows);
        Self {
            sums: until(last.map(|entry| entry.sums_section)),
            rows: until(last_part.map(|part| part.section)),
            sets: until(last.map(|entry| entry.sets_section)),
        }
    }
}

fn read_dictionary(
    reader: &mut Reader<'_>,
    dictionary: &mut Vec<Arc<[Attribute]>>,
) -> Result<(), Malformed> {
    dictionary.clear();
    let plain = unpress(reader, limits::SEGMENT_DICTIONARY_BYTES_MAX)?;
    let mut reader = Reader::new(&plain);
    for _ in 0..reader.count(1)? {
        dictionary.push(read_set(&mut reader)?);
    }
    reader.end()
}

fn read_set(reader: &mut Reader<'_>) -> Result<Arc<[Attribute]>, Malformed> {
    let count = reader.count(2)?;
    let mut attributes = Vec::with_capacity(count);
    for _ in 0..count {
        let key = reader.shared_text()?;
        let value = match reader.byte()? {
            0 => AttributeValue::Text(reader.shared_text()?),
            1 => AttributeValue::Int(reader.signed()?),
            2 => AttributeValue::Bool(false),
            3 => AttributeValue::Bool(true),
            _ => return Err(Malformed("an attribute has an unknown type")),
        };
        attributes.push(Attribute { key, value });
    }
    Ok(attributes.into())
}
