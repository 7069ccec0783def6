//! The tables and tries of a project as an append-only file: frames of `length u32, crc32c u32, payload`,
//! each with entries of one kind. The manifest says how long the file is; what follows is of a checkpoint
//! that did not finish and is cut. A changed entry is written again with its id, so the last one counts.

use super::batch::kind_of;
use super::codec::{Malformed, Reader, Writer, press, unpress};
use super::files::Files;
use super::service::Service;
use super::symbols::{Changed, Function, Line, Location, Series, Symbols, TypeEntry};
use crate::limits;
use crate::profile::identity::{DisplayQuality, LineQuality, NameSource, kind_code};
use crate::profile::{MappingDef, SeriesLabels, ValueType};
use crate::query::FunctionInfo;
use crate::store::StoreError;
use proto::BuildId;
use std::path::Path;
use std::sync::Arc;

/// Plain bytes after which a frame ends.
const FRAME_BYTES: usize = 8 << 20;
const HEADER_BYTES: usize = 8;

/// Kinds of frames.
const MAPPINGS: u8 = 1;
const FUNCTIONS: u8 = 2;
const LOCATIONS: u8 = 3;
const TYPES: u8 = 4;
const SERVICES: u8 = 5;
const SERIES: u8 = 6;
const CHANGED_FUNCTIONS: u8 = 7;
const CHANGED_LOCATIONS: u8 = 8;
const NODES: u8 = 9;
/// Locations among those above whose names are of debug files.
const NAMED_BY_FILES: u8 = 10;

/// How much of a project's tables the file holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Written {
    mappings: usize,
    functions: usize,
    locations: usize,
    services: usize,
    series: usize,
    /// Nodes of each service's trie, the root included.
    nodes: Vec<usize>,
    /// Length of the file.
    pub(super) bytes: u64,
}

/// Frames under construction.
#[derive(Default)]
struct Frames {
    bytes: Vec<u8>,
}

impl Frames {
    /// Appends entries as frames of one kind; `prefix` begins each frame.
    fn add<T>(
        &mut self,
        kind: u8,
        prefix: &mut dyn FnMut(&mut Writer, usize),
        entries: &[T],
        write: impl Fn(&mut Writer, &T),
    ) -> std::io::Result<()> {
        let mut at = 0;
        while at < entries.len() {
            let mut body = Writer::default();
            let first = at;
            while at < entries.len() && body.bytes.len() < FRAME_BYTES {
                write(&mut body, &entries[at]);
                at += 1;
            }
            let mut plain = Writer::default();
            plain.byte(kind);
            prefix(&mut plain, first);
            plain.length(at - first);
            plain.raw(&body.bytes);
            let mut payload = Writer::default();
            press(&plain.bytes, &mut payload)?;
            let length = u32::try_from(payload.bytes.len()).map_err(std::io::Error::other)?;
            self.bytes.extend_from_slice(&length.to_le_bytes());
            self.bytes.extend_from_slice(&crc32c::crc32c(&payload.bytes).to_le_bytes());
            self.bytes.extend_from_slice(&payload.bytes);
        }
        Ok(())
    }
}

/// What the file does not hold yet, as bytes; and what it holds with them.
pub(super) fn encode(
    symbols: &Symbols,
    changed: &Changed,
    written: &Written,
) -> std::io::Result<(Vec<u8>, Written)> {
    let mut frames = Frames::default();
    let none = &mut |_: &mut Writer, _: usize| {};
    frames.add(MAPPINGS, none, &symbols.mappings[written.mappings..], write_mapping)?;
    frames.add(FUNCTIONS, none, &symbols.functions[written.functions..], write_function)?;
    frames.add(LOCATIONS, none, &symbols.locations[written.locations..], write_location)?;
    frames.add(TYPES, none, &symbols.types, write_type)?;
    frames.add(SERVICES, none, &symbols.services[written.services..], |writer, service| {
        writer.text(&service.name);
    })?;
    frames.add(SERIES, none, &symbols.series[written.series..], |writer, series| {
        write_series(writer, series);
    })?;
    let old = |limit: usize| move |&id: &u32| (id as usize) < limit;
    let functions = changed.functions.iter().copied().filter(old(written.functions));
    frames.add(CHANGED_FUNCTIONS, none, &functions.collect::<Vec<_>>(), |writer, &id| {
        writer.number(id.into());
        write_function(writer, &symbols.functions[id as usize]);
    })?;
    let locations = changed.locations.iter().copied().filter(old(written.locations));
    frames.add(CHANGED_LOCATIONS, none, &locations.collect::<Vec<_>>(), |writer, &id| {
        writer.number(id.into());
        write_location(writer, &symbols.locations[id as usize]);
    })?;
    add_named_by_files(&mut frames, symbols, changed, written)?;
    let mut nodes = Vec::with_capacity(symbols.services.len());
    for (number, service) in symbols.services.iter().enumerate() {
        let trie = service.trie();
        let from = written.nodes.get(number).copied().unwrap_or(1);
        let edges: Vec<(usize, u32, u32)> = (from..trie.len())
            .map(|node| (node, trie.parents()[node], trie.locations()[node]))
            .collect();
        let prefix = &mut |writer: &mut Writer, first: usize| {
            writer.length(number);
            writer.length(from + first);
        };
        frames.add(NODES, prefix, &edges, |writer, &(node, parent, location)| {
            writer.length(node - parent as usize);
            writer.number(location.into());
        })?;
        nodes.push(trie.len());
    }
    let written = Written {
        mappings: symbols.mappings.len(),
        functions: symbols.functions.len(),
        locations: symbols.locations.len(),
        services: symbols.services.len(),
        series: symbols.series.len(),
        nodes,
        bytes: written.bytes + frames.bytes.len() as u64,
    };
    Ok((frames.bytes, written))
}

/// Says of new and changed locations which have names of debug files.
fn add_named_by_files(
    frames: &mut Frames,
    symbols: &Symbols,
    changed: &Changed,
    written: &Written,
) -> std::io::Result<()> {
    let new = (0_u32..).take(symbols.locations.len()).skip(written.locations);
    let changed = changed.locations.iter().copied();
    let changed = changed.filter(|&id| (id as usize) < written.locations);
    let is_by_file =
        |&id: &u32| symbols.locations[id as usize].quality.source == NameSource::DebugFile;
    let ids: Vec<u32> = changed.chain(new).filter(is_by_file).collect();
    let none = &mut |_: &mut Writer, _: usize| {};
    frames.add(NAMED_BY_FILES, none, &ids, |writer, &id| writer.number(id.into()))
}

/// Appends to the file, which held `held` bytes, and makes it durable.
pub(super) fn append(
    files: &dyn Files,
    path: &Path,
    held: u64,
    frames: &[u8],
) -> std::io::Result<()> {
    let mut file = files.open(path, held)?;
    file.append(frames)?;
    file.sync()
}

/// Reads the first `bytes` bytes of the file.
pub(super) fn read(path: &Path, bytes: u64) -> Result<(Symbols, Written), StoreError> {
    let damaged = |detail: &str| StoreError::Damaged {
        path: path.display().to_string(),
        detail: detail.to_owned(),
    };
    let content = std::fs::read(path).map_err(|source| StoreError::io("reading", path, source))?;
    let length = usize::try_from(bytes).unwrap_or(usize::MAX);
    let mut rest =
        content.get(..length).ok_or_else(|| damaged("it is shorter than the manifest says"))?;
    let mut symbols = Symbols::default();
    while !rest.is_empty() {
        let payload = next_frame(&mut rest).map_err(|Malformed(detail)| damaged(detail))?;
        read_frame(payload, &mut symbols).map_err(|Malformed(detail)| damaged(detail))?;
    }
    let written = Written {
        mappings: symbols.mappings.len(),
        functions: symbols.functions.len(),
        locations: symbols.locations.len(),
        services: symbols.services.len(),
        series: symbols.series.len(),
        nodes: symbols.services.iter().map(|service| service.trie().len()).collect(),
        bytes,
    };
    Ok((symbols, written))
}

fn next_frame<'a>(rest: &mut &'a [u8]) -> Result<&'a [u8], Malformed> {
    let mut header = Reader::new(rest);
    let mut word = || -> Result<u32, Malformed> {
        let bytes = header.raw(4)?;
        Ok(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    };
    let (length, checksum) = (word()? as usize, word()?);
    let end = HEADER_BYTES + length;
    let payload = rest.get(HEADER_BYTES..end).ok_or(Malformed("a frame ends early"))?;
    if crc32c::crc32c(payload) != checksum {
        return Err(Malformed("the checksum of a frame is wrong"));
    }
    *rest = &rest[end..];
    Ok(payload)
}

fn read_frame(payload: &[u8], symbols: &mut Symbols) -> Result<(), Malformed> {
    let mut framed = Reader::new(payload);
    let plain = unpress(&mut framed, limits::SYMBOL_FRAME_BYTES_MAX)?;
    framed.end()?;
    let reader = &mut Reader::new(&plain);
    let kind = reader.byte()?;
    if kind == NODES {
        read_nodes(reader, symbols)?;
        return reader.end();
    }
    for _ in 0..reader.count(1)? {
        match kind {
            MAPPINGS => {
                let filename = symbols.text(reader.text()?);
                let build_id = BuildId::new(reader.blob()?);
                symbols.push_mapping(MappingDef { filename, build_id });
            }
            FUNCTIONS => {
                let function = read_function(reader, symbols)?;
                symbols.push_function(function);
            }
            LOCATIONS => {
                let location = read_location(reader, symbols)?;
                symbols.push_location(location);
            }
            TYPES => read_type(reader, symbols)?,
            SERVICES => {
                let name = symbols.text(reader.text()?);
                symbols.push_service(Service::new(name));
            }
            SERIES => {
                let series = read_series(reader, symbols)?;
                symbols.push_series(series);
            }
            CHANGED_FUNCTIONS => {
                let id = below(reader.small()?, symbols.functions.len())?;
                let function = read_function(reader, symbols)?;
                symbols.functions[id as usize] = function;
            }
            CHANGED_LOCATIONS => {
                let id = below(reader.small()?, symbols.locations.len())?;
                let location = read_location(reader, symbols)?;
                symbols.replace_location(id, location);
            }
            NAMED_BY_FILES => {
                let id = below(reader.small()?, symbols.locations.len())?;
                symbols.mark_named_by_file(id);
            }
            _ => return Err(Malformed("a frame of an unknown kind")),
        }
    }
    reader.end()
}

fn read_nodes(reader: &mut Reader<'_>, symbols: &Symbols) -> Result<(), Malformed> {
    let service = below(reader.small()?, symbols.services.len())?;
    let mut trie = symbols.services[service as usize].trie_mut();
    if reader.number()? != trie.len() as u64 {
        return Err(Malformed("nodes of a trie are missing"));
    }
    for _ in 0..reader.count(2)? {
        let back = reader.small()? as usize;
        let parent = trie.len().checked_sub(back).and_then(|parent| u32::try_from(parent).ok());
        let location = below(reader.small()?, symbols.locations.len())?;
        if !parent.is_some_and(|parent| trie.restore(parent, location)) {
            return Err(Malformed("a node stands before its parent"));
        }
    }
    Ok(())
}

/// An index that is inside its table.
fn below(index: u32, length: usize) -> Result<u32, Malformed> {
    if (index as usize) < length {
        Ok(index)
    } else {
        Err(Malformed("an index is outside its table"))
    }
}

fn write_mapping(writer: &mut Writer, mapping: &MappingDef) {
    writer.text(&mapping.filename);
    writer.blob(mapping.build_id.as_ref().map_or(&[], BuildId::as_bytes));
}

fn write_function(writer: &mut Writer, function: &Function) {
    let Function { identity, quality, info } = function;
    writer.wide(*identity);
    writer.byte(u8::from(quality.has_file) | u8::from(quality.has_line) << 1);
    writer.wide(quality.contents);
    writer.text(&info.name);
    writer.text(&info.file);
    writer.signed(info.line);
    writer.number(kind_code(info.kind));
    writer.text(&info.module);
    writer.byte(u8::from(info.named));
}

fn read_function(reader: &mut Reader<'_>, symbols: &mut Symbols) -> Result<Function, Malformed> {
    let identity = reader.wide()?;
    let flags = reader.byte()?;
    let quality = DisplayQuality {
        has_file: flags & 1 != 0,
        has_line: flags & 2 != 0,
        contents: reader.wide()?,
    };
    let info = FunctionInfo {
        name: symbols.text(reader.text()?),
        file: symbols.text(reader.text()?),
        line: reader.signed()?,
        kind: kind_of(reader.number()?)?,
        module: symbols.text(reader.text()?),
        named: reader.byte()? != 0,
    };
    Ok(Function { identity, quality, info })
}

fn write_location(writer: &mut Writer, location: &Location) {
    writer.wide(location.identity);
    writer.number(kind_code(location.kind));
    writer.number(location.mapping.map_or(0, |mapping| u64::from(mapping) + 1));
    writer.number(location.address);
    let LineQuality { source: _, named, with_file, with_line, contents } = location.quality;
    [named, with_file, with_line].into_iter().for_each(|count| writer.number(count.into()));
    writer.wide(contents);
    writer.length(location.lines.len());
    for line in &location.lines {
        writer.number(line.function.into());
        writer.number(line.line.into());
    }
}

fn read_location(reader: &mut Reader<'_>, symbols: &Symbols) -> Result<Location, Malformed> {
    let (identity, kind) = (reader.wide()?, kind_of(reader.number()?)?);
    let mapping = match reader.small()?.checked_sub(1) {
        Some(mapping) => Some(below(mapping, symbols.mappings.len())?),
        None => None,
    };
    let address = reader.number()?;
    let quality = LineQuality {
        source: NameSource::Sender,
        named: reader.small()?,
        with_file: reader.small()?,
        with_line: reader.small()?,
        contents: reader.wide()?,
    };
    let mut lines = Vec::new();
    for _ in 0..reader.count(2)? {
        let function = below(reader.small()?, symbols.functions.len())?;
        lines.push(Line { function, line: reader.small()? });
    }
    if lines.is_empty() {
        return Err(Malformed("a location without functions"));
    }
    let (passed_over, lines) = (quality, lines.into());
    Ok(Location { identity, kind, mapping, address, quality, passed_over, lines })
}

fn write_type(writer: &mut Writer, entry: &TypeEntry) {
    writer.text(&entry.value_type.kind);
    writer.text(&entry.value_type.unit);
    let (time_ms, period_ns) = entry.newest();
    writer.signed(time_ms);
    writer.number(period_ns);
}

/// Types are few: each checkpoint writes all of them, with what is newest.
fn read_type(reader: &mut Reader<'_>, symbols: &mut Symbols) -> Result<(), Malformed> {
    let value_type =
        ValueType { kind: symbols.text(reader.text()?), unit: symbols.text(reader.text()?) };
    let newest = (reader.signed()?, reader.number()?);
    symbols.newest_type(value_type, newest);
    Ok(())
}

fn write_series(writer: &mut Writer, series: &Series) {
    series.labels.each().into_iter().for_each(|(_, value)| writer.text(value));
    writer.number(series.type_id.into());
    writer.number(series.period_ns);
}

fn read_series(reader: &mut Reader<'_>, symbols: &mut Symbols) -> Result<Series, Malformed> {
    let mut text = || -> Result<Arc<str>, Malformed> { Ok(symbols.text(reader.text()?)) };
    let labels = SeriesLabels {
        service: text()?,
        host: text()?,
        container: text()?,
        pod: text()?,
        executable: text()?,
    };
    let type_id = below(reader.small()?, symbols.types.len())?;
    let period_ns = reader.number()?;
    let service = symbols.service(&labels.service).ok_or(Malformed("a series without service"))?;
    Ok(Series { labels, type_id, period_ns, service })
}
