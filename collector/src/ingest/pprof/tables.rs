//! Mappings, functions and locations of a profile into the tables of a batch.

use super::fault::{Fault, cap};
use super::ids::Ids;
use super::texts::Texts;
use super::wire::{Message, Span};
use crate::ingest::addresses::MappedRange;
use crate::limits::LOCATION_LINES_MAX;
use crate::profile::{FunctionDef, LineDef, Lines, LocationDef, MappingDef, Text};
use proto::{BuildId, FrameKind};

/// The tables, in the order of the wire.
pub(super) struct Tables {
    pub(super) mappings: Vec<MappingDef>,
    pub(super) functions: Vec<FunctionDef>,
    pub(super) locations: Vec<LocationDef>,
    /// Positions in `locations`.
    pub(super) location_ids: Ids,
}

/// The position that the next entry of a table gets.
pub(super) fn next_position(len: usize) -> u32 {
    u32::try_from(len).expect("REQUEST_BYTES_MAX keeps every table below 2^32 entries")
}

/// Reads the tables.
pub(super) struct Reading<'a, 'b> {
    pub(super) body: &'a [u8],
    pub(super) texts: &'b mut Texts,
    mappings: Vec<MappingDef>,
    ranges: Vec<MappedRange>,
    mapping_ids: Ids,
    functions: Vec<FunctionDef>,
    /// Position in `functions`; nothing where a function has no name.
    named: Vec<Option<u32>>,
    function_ids: Ids,
}

impl<'a, 'b> Reading<'a, 'b> {
    pub(super) fn new(
        body: &'a [u8],
        texts: &'b mut Texts,
        mappings: &[Span],
        functions: &[Span],
    ) -> Result<Self, Fault> {
        let mut this = Self {
            body,
            texts,
            mappings: Vec::with_capacity(mappings.len()),
            ranges: Vec::with_capacity(mappings.len()),
            mapping_ids: Ids::new("mapping", mappings.len()),
            functions: Vec::with_capacity(functions.len()),
            named: Vec::with_capacity(functions.len()),
            function_ids: Ids::new("function", functions.len()),
        };
        mappings.iter().try_for_each(|&span| this.mapping(span))?;
        functions.iter().try_for_each(|&span| this.function(span))?;
        Ok(this)
    }

    fn mapping(&mut self, span: Span) -> Result<(), Fault> {
        let mut id = 0;
        let mut range = MappedRange::default();
        let (mut filename, mut build_id) = (0, 0);
        let mut message = Message::new(self.body, span);
        while let Some((field, value)) = message.next()? {
            match field {
                1 => id = value.number("mapping.id")?,
                2 => range.memory_start = value.number("mapping.memory_start")?,
                3 => range.memory_limit = value.number("mapping.memory_limit")?,
                4 => range.file_offset = value.number("mapping.file_offset")?,
                5 => filename = value.number("mapping.filename")?,
                6 => build_id = value.number("mapping.build_id")?,
                _ => {}
            }
        }
        let filename = self.texts.shared(filename, "mapping.filename")?;
        // Some writers put other names here than hexadecimal ids; the file's path identifies it then.
        let build_id = BuildId::from_hex(&self.texts.get(build_id, "mapping.build_id")?);
        self.mapping_ids.insert(id, next_position(self.mappings.len()))?;
        self.mappings.push(MappingDef { filename, build_id });
        self.ranges.push(range);
        Ok(())
    }

    fn function(&mut self, span: Span) -> Result<(), Fault> {
        let (mut id, mut name, mut system_name, mut file, mut start_line) = (0, 0, 0, 0, 0);
        let mut message = Message::new(self.body, span);
        while let Some((field, value)) = message.next()? {
            match field {
                1 => id = value.number("function.id")?,
                2 => name = value.number("function.name")?,
                3 => system_name = value.number("function.system_name")?,
                4 => file = value.number("function.filename")?,
                5 => start_line = value.signed("function.start_line")?,
                _ => {}
            }
        }
        let mut function = FunctionDef {
            name: self.texts.get(name, "function.name")?,
            system_name: self.texts.get(system_name, "function.system_name")?,
            file: self.texts.get(file, "function.filename")?,
            start_line: start_line.max(0),
        };
        if function.name.is_empty() {
            function.name = function.system_name.clone();
        }
        if function.name == function.system_name {
            function.system_name = Text::default();
        }
        self.function_ids.insert(id, next_position(self.named.len()))?;
        let is_named = !function.name.is_empty();
        self.named.push(is_named.then(|| next_position(self.functions.len())));
        if is_named {
            self.functions.push(function);
        }
        Ok(())
    }

    /// Reads the locations, which name the others.
    pub(super) fn locations(mut self, spans: &[Span]) -> Result<Tables, Fault> {
        let mut locations = Vec::with_capacity(spans.len());
        let mut location_ids = Ids::new("location", spans.len());
        for &span in spans {
            let (id, location) = self.location(span)?;
            location_ids.insert(id, next_position(locations.len()))?;
            locations.push(location);
        }
        let Self { mappings, functions, .. } = self;
        Ok(Tables { mappings, functions, locations, location_ids })
    }

    fn location(&mut self, span: Span) -> Result<(u64, LocationDef), Fault> {
        let (mut id, mut mapping_id, mut address) = (0, 0, 0);
        let mut lines = Lines::default();
        let mut line_count = 0;
        let mut message = Message::new(self.body, span);
        while let Some((field, value)) = message.next()? {
            match field {
                1 => id = value.number("location.id")?,
                2 => mapping_id = value.number("location.mapping_id")?,
                3 => address = value.number("location.address")?,
                4 => {
                    line_count += 1;
                    cap("the number of lines of a location", line_count, LOCATION_LINES_MAX)?;
                    if let Some(line) = self.line(value.span("location.line")?)? {
                        lines.push(line);
                    }
                }
                _ => {}
            }
        }
        // Mapping 0 is legal: no file backs the location.
        let mapping = match mapping_id {
            0 => None,
            id => Some(self.mapping_ids.get(id, "location.mapping_id")?),
        };
        let kind = self.kind(mapping, &lines);
        if let Some(range) = mapping.and_then(|at| self.ranges.get(at as usize)) {
            address = range.normalize(address, kind);
        }
        Ok((id, LocationDef { mapping, address, kind, lines }))
    }

    /// Nothing for a line without any name: it says no more than the location's address. Function 0 is legal.
    fn line(&self, span: Span) -> Result<Option<LineDef>, Fault> {
        let (mut function_id, mut line) = (0, 0);
        let mut message = Message::new(self.body, span);
        while let Some((field, value)) = message.next()? {
            match field {
                1 => function_id = value.number("line.function_id")?,
                2 => line = value.signed("line.line")?,
                _ => {}
            }
        }
        if function_id == 0 {
            return Ok(None);
        }
        let at = self.function_ids.get(function_id, "line.function_id")?;
        let function = self.named.get(at as usize).copied().flatten();
        Ok(function.map(|function| LineDef { function, line: line.max(0) }))
    }

    /// pprof does not say who runs a frame; told are kernel code, by its mapping (`[kernel.kallsyms]`,
    /// `[kernel]`), and what stands for missing frames in files of Vesta's agent (`[truncated]`).
    fn kind(&self, mapping: Option<u32>, lines: &[LineDef]) -> FrameKind {
        if let Some(mapping) = mapping.and_then(|at| self.mappings.get(at as usize)) {
            let is_kernel = mapping.filename.starts_with("[kernel");
            return if is_kernel { FrameKind::Kernel } else { FrameKind::Unknown };
        }
        let only = match lines {
            [line] => self.functions.get(line.function as usize),
            _ => None,
        };
        let is_marker = only.is_some_and(|it| it.name.starts_with('[') && it.name.ends_with(']'));
        if is_marker { FrameKind::Marker } else { FrameKind::Unknown }
    }
}
