//! The dictionary of a request: every entry is checked once, and copied into the batch when the first
//! accepted profile refers to it. Entry 0 of a table means "unset"; senders that fill it are understood.

use super::attributes::Strings;
use super::fault::{Fault, cap};
use crate::ingest::addresses::MappedRange;
use crate::limits::{LOCATION_LINES_MAX, SAMPLE_ATTRIBUTES_MAX, STACK_FRAMES_MAX};
use crate::profile::{
    Attribute, AttributeValue, FunctionDef, LineDef, LocationDef, MappingDef, Text, WriteBatch,
};
use hashbrown::HashMap;
use proto::opentelemetry_proto::tonic::profiles::v1development as otlp;
use proto::{BuildId, FrameKind};
use std::sync::Arc;

/// Faults by the position of their entry. Most requests have none.
type Faults = HashMap<usize, Fault>;

/// A checked dictionary.
pub(super) struct Dictionary<'a> {
    tables: &'a otlp::ProfilesDictionary,
    strings: Strings<'a>,
    /// By entry; nothing for the unset entry, for values that are not set, and for faulty ones.
    attributes: Vec<Option<Attribute>>,
    /// By entry of the location table.
    kinds: Vec<FrameKind>,
    attribute_faults: Faults,
    location_faults: Faults,
    stack_faults: Faults,
}

fn at(index: i32, len: usize, field: &'static str, table: &'static str) -> Result<usize, Fault> {
    match usize::try_from(index) {
        Ok(at) if at < len => Ok(at),
        _ => Err(Fault::Index { field, table, index, len }),
    }
}

fn collect(len: usize, check: impl Fn(usize) -> Result<(), Fault>) -> Faults {
    (0..len).filter_map(|entry| check(entry).err().map(|fault| (entry, fault))).collect()
}

fn verdict(faults: &Faults, entry: usize) -> Result<(), Fault> {
    faults.get(&entry).map_or(Ok(()), |fault| Err(fault.clone()))
}

impl<'a> Dictionary<'a> {
    pub(super) fn check(tables: &'a otlp::ProfilesDictionary) -> Self {
        let mut this = Self {
            tables,
            strings: Strings::new(&tables.string_table),
            attributes: Vec::new(),
            kinds: Vec::new(),
            attribute_faults: Faults::new(),
            location_faults: Faults::new(),
            stack_faults: Faults::new(),
        };
        for (entry, attribute) in tables.attribute_table.iter().enumerate() {
            let read = this.read_attribute(attribute);
            let read = read.map_err(|fault| this.attribute_faults.insert(entry, fault));
            this.attributes.push(read.unwrap_or_default());
        }
        let functions = collect(tables.function_table.len(), |entry| this.check_function(entry));
        let mappings = collect(tables.mapping_table.len(), |entry| this.check_mapping(entry));
        this.location_faults = collect(tables.location_table.len(), |entry| {
            this.check_location(entry, &functions, &mappings)
        });
        this.kinds = tables.location_table.iter().map(|location| this.kind(location)).collect();
        this.stack_faults = collect(tables.stack_table.len(), |entry| this.check_stack(entry));
        this
    }

    pub(super) fn strings(&self) -> &Strings<'a> {
        &self.strings
    }

    pub(super) fn string(&self, index: i32, field: &'static str) -> Result<&'a str, Fault> {
        self.strings.get(index, field)
    }

    fn read_attribute(
        &self,
        attribute: &otlp::KeyValueAndUnit,
    ) -> Result<Option<Attribute>, Fault> {
        let key = self.strings.name(attribute.key_strindex, "attribute.key_strindex")?;
        self.string(attribute.unit_strindex, "attribute.unit_strindex")?;
        let value = self.strings.value(attribute.value.as_ref())?;
        Ok(value.filter(|_| !key.is_empty()).map(|value| Attribute { key, value }))
    }

    fn check_function(&self, entry: usize) -> Result<(), Fault> {
        let Some(function) = self.tables.function_table.get(entry) else { return Ok(()) };
        self.string(function.name_strindex, "function.name_strindex")?;
        self.string(function.system_name_strindex, "function.system_name_strindex")?;
        self.string(function.filename_strindex, "function.filename_strindex").map(drop)
    }

    fn check_mapping(&self, entry: usize) -> Result<(), Fault> {
        let Some(mapping) = self.tables.mapping_table.get(entry) else { return Ok(()) };
        self.string(mapping.filename_strindex, "mapping.filename_strindex")?;
        self.check_attributes(&mapping.attribute_indices, "mapping.attribute_indices")
    }

    fn check_location(
        &self,
        entry: usize,
        functions: &Faults,
        mappings: &Faults,
    ) -> Result<(), Fault> {
        let Some(location) = self.tables.location_table.get(entry) else { return Ok(()) };
        if location.mapping_index != 0 || !self.tables.mapping_table.is_empty() {
            let len = self.tables.mapping_table.len();
            let mapping =
                at(location.mapping_index, len, "location.mapping_index", "mapping_table")?;
            verdict(mappings, mapping)?;
        }
        cap("the number of lines of a location", location.lines.len(), LOCATION_LINES_MAX)?;
        for line in &location.lines {
            if line.function_index == 0 && self.tables.function_table.is_empty() {
                continue;
            }
            let len = self.tables.function_table.len();
            verdict(
                functions,
                at(line.function_index, len, "line.function_index", "function_table")?,
            )?;
        }
        self.check_attributes(&location.attribute_indices, "location.attribute_indices")
    }

    fn check_stack(&self, entry: usize) -> Result<(), Fault> {
        let Some(stack) = self.tables.stack_table.get(entry) else { return Ok(()) };
        cap("the depth of a stack", stack.location_indices.len(), STACK_FRAMES_MAX)?;
        let len = self.tables.location_table.len();
        stack.location_indices.iter().try_for_each(|&index| {
            let location = at(index, len, "stack.location_indices", "location_table")?;
            verdict(&self.location_faults, location)
        })
    }

    pub(super) fn check_attributes(
        &self,
        indices: &[i32],
        field: &'static str,
    ) -> Result<(), Fault> {
        cap("the number of attributes", indices.len(), SAMPLE_ATTRIBUTES_MAX)?;
        let len = self.tables.attribute_table.len();
        indices.iter().filter(|&&index| index != 0 || len > 0).try_for_each(|&index| {
            verdict(&self.attribute_faults, at(index, len, field, "attribute_table")?)
        })
    }

    /// Checks the stack of a sample.
    pub(super) fn check_stack_index(&self, index: i32) -> Result<(), Fault> {
        let len = self.tables.stack_table.len();
        if index == 0 && len == 0 {
            return Ok(());
        }
        verdict(&self.stack_faults, at(index, len, "sample.stack_index", "stack_table")?)
    }

    /// Frames of a checked stack.
    pub(super) fn depth(&self, index: i32) -> usize {
        let stack = usize::try_from(index).ok().and_then(|at| self.tables.stack_table.get(at));
        stack.map_or(0, |stack| stack.location_indices.len())
    }

    pub(super) fn check_link(&self, index: i32) -> Result<(), Fault> {
        let len = self.tables.link_table.len();
        if index == 0 {
            Ok(())
        } else {
            at(index, len, "sample.link_index", "link_table").map(drop)
        }
    }

    /// The attribute at a checked index; nothing for the unset entry and for values that are not set.
    pub(super) fn attribute(&self, index: i32) -> Option<&Attribute> {
        let entry = usize::try_from(index).ok()?;
        self.attributes.get(entry)?.as_ref()
    }

    /// The text of the named attribute among `indices`.
    fn attribute_text(&self, indices: &[i32], name: &str) -> Option<&str> {
        indices.iter().find_map(|&index| match self.attribute(index)? {
            Attribute { key, value: AttributeValue::Text(text) } if &**key == name => Some(&**text),
            _ => None,
        })
    }

    /// Trace and span of a checked link index, where set.
    pub(super) fn link(&self, index: i32) -> Option<&'a otlp::Link> {
        let entry = usize::try_from(index).ok()?;
        self.tables.link_table.get(entry).filter(|link| link.trace_id.iter().any(|&byte| byte != 0))
    }

    /// True if every frame of the checked stack is kernel code.
    pub(super) fn is_kernel_stack(&self, index: i32) -> bool {
        let stack = usize::try_from(index).ok().and_then(|at| self.tables.stack_table.get(at));
        let is_kernel = |&location: &i32| {
            let kind = usize::try_from(location).ok().and_then(|at| self.kinds.get(at));
            kind == Some(&FrameKind::Kernel)
        };
        stack.is_some_and(|stack| {
            !stack.location_indices.is_empty() && stack.location_indices.iter().all(is_kernel)
        })
    }

    fn kind(&self, location: &otlp::Location) -> FrameKind {
        self.attribute_text(&location.attribute_indices, "profile.frame.type")
            .map_or(FrameKind::Unknown, FrameKind::from_wire)
    }
}

/// Copies of dictionary entries in a batch. Only checked entries are asked for.
pub(super) struct Copies<'a> {
    dictionary: &'a Dictionary<'a>,
    strings: HashMap<i32, Arc<str>>,
    mappings: HashMap<i32, u32>,
    functions: HashMap<i32, u32>,
    locations: HashMap<i32, u32>,
    stacks: HashMap<i32, u32>,
    frames: usize,
}

/// The index that the next entry of a table gets. The limits on a request keep tables far below 2^32.
fn next_index(len: usize) -> u32 {
    u32::try_from(len).expect("REQUEST_BYTES_MAX keeps every table below 2^32 entries")
}

impl<'a> Copies<'a> {
    pub(super) fn new(dictionary: &'a Dictionary<'a>) -> Self {
        Self {
            dictionary,
            strings: HashMap::new(),
            mappings: HashMap::new(),
            functions: HashMap::new(),
            locations: HashMap::new(),
            stacks: HashMap::new(),
            frames: 0,
        }
    }

    pub(super) fn text(&mut self, index: i32) -> Arc<str> {
        let dictionary = self.dictionary;
        let text = self
            .strings
            .entry(index)
            .or_insert_with(|| Arc::from(dictionary.string(index, "string").unwrap_or_default()));
        Arc::clone(text)
    }

    /// True if the batch has this stack.
    pub(super) fn has_stack(&self, index: i32) -> bool {
        self.stacks.contains_key(&index)
    }

    /// Frames of all stacks in the batch.
    pub(super) const fn frames(&self) -> usize {
        self.frames
    }

    pub(super) fn stack(&mut self, batch: &mut WriteBatch, index: i32) -> u32 {
        if let Some(&copy) = self.stacks.get(&index) {
            return copy;
        }
        let tables = self.dictionary.tables;
        let stack = usize::try_from(index).ok().and_then(|at| tables.stack_table.get(at));
        let indices = stack.map_or(&[][..], |stack| &stack.location_indices);
        self.frames += indices.len();
        let frames = indices.iter().map(|&location| self.location(batch, location)).collect();
        let copy = next_index(batch.stacks.len());
        batch.stacks.push(frames);
        self.stacks.insert(index, copy);
        copy
    }

    fn location(&mut self, batch: &mut WriteBatch, index: i32) -> u32 {
        if let Some(&copy) = self.locations.get(&index) {
            return copy;
        }
        let unset = otlp::Location::default();
        let tables = self.dictionary.tables;
        let location = usize::try_from(index)
            .ok()
            .and_then(|at| tables.location_table.get(at))
            .unwrap_or(&unset);
        let mapping = self.mapping(batch, location.mapping_index);
        let kind = self.dictionary.kind(location);
        let lines = location.lines.iter().filter_map(|line| self.line(batch, line)).collect();
        let address = self.normalize(location, kind);
        let copy = next_index(batch.locations.len());
        batch.locations.push(LocationDef { mapping, address, kind, lines });
        self.locations.insert(index, copy);
        copy
    }

    fn normalize(&self, location: &otlp::Location, kind: FrameKind) -> u64 {
        let mappings = &self.dictionary.tables.mapping_table;
        let mapping = usize::try_from(location.mapping_index).ok().and_then(|at| mappings.get(at));
        let range = mapping.map_or_else(MappedRange::default, |mapping| MappedRange {
            memory_start: mapping.memory_start,
            memory_limit: mapping.memory_limit,
            file_offset: mapping.file_offset,
        });
        range.normalize(location.address, kind)
    }

    fn mapping(&mut self, batch: &mut WriteBatch, index: i32) -> Option<u32> {
        if let Some(&copy) = self.mappings.get(&index) {
            return Some(copy);
        }
        let tables = self.dictionary.tables;
        let mapping = usize::try_from(index).ok().and_then(|at| tables.mapping_table.get(at))?;
        if index == 0 && *mapping == otlp::Mapping::default() {
            return None;
        }
        let build_id = ["process.executable.build_id.gnu", "process.executable.build_id.htlhash"]
            .into_iter()
            .find_map(|name| {
                let hex = self.dictionary.attribute_text(&mapping.attribute_indices, name)?;
                BuildId::from_hex(hex)
            });
        let filename = self.text(mapping.filename_strindex);
        let copy = next_index(batch.mappings.len());
        batch.mappings.push(MappingDef { filename, build_id });
        self.mappings.insert(index, copy);
        Some(copy)
    }

    /// Nothing for a line without any name: it says no more than the location's address.
    fn line(&mut self, batch: &mut WriteBatch, line: &otlp::Line) -> Option<LineDef> {
        let function = self.function(batch, line.function_index)?;
        Some(LineDef { function, line: line.line.max(0) })
    }

    fn function(&mut self, batch: &mut WriteBatch, index: i32) -> Option<u32> {
        if let Some(&copy) = self.functions.get(&index) {
            return Some(copy);
        }
        let tables = self.dictionary.tables;
        let function = usize::try_from(index).ok().and_then(|at| tables.function_table.get(at))?;
        let system_name = self.text(function.system_name_strindex);
        let mut name = self.text(function.name_strindex);
        if name.is_empty() {
            name = Arc::clone(&system_name);
        }
        if name.is_empty() {
            return None;
        }
        let system_name =
            if system_name == name { Text::default() } else { Text::from(system_name) };
        let file = self.text(function.filename_strindex).into();
        let start_line = function.start_line.max(0);
        let copy = next_index(batch.functions.len());
        batch.functions.push(FunctionDef { name: name.into(), system_name, file, start_line });
        self.functions.insert(index, copy);
        Some(copy)
    }
}
