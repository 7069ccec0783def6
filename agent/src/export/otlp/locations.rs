//! Locations and mappings of a window as dictionary entries, each made once for a request.

use crate::address::ElfAddr;
use crate::aggregate::{Code, Location, LocationIndex, NamedWindow, StackIndex};
use crate::elf::SourceLine;
use crate::limits;
use crate::normalize::MappedFile;
use proto::FrameKind;
use proto::otlp::profiles::Mapping;
use proto::otlp::{AttributeValue, DictionaryBuilder, attribute};

/// Where provisional native names come from: the files of this host. A receiver with a better source
/// may replace them.
const SYMBOL_SOURCE_HOST: &str = "host";

/// Bytes a location takes besides its strings, at most: the location, its mapping with three build ids,
/// attributes, and 5 bytes for each reference.
const LOCATION_BYTES_MAX: usize = 512;
/// Bytes a line takes besides its strings, at most.
const LINE_BYTES_MAX: usize = 64;

/// How much is said of a location that has names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Detail {
    /// Nothing: its names would not fit into a request.
    Addresses,
    /// Functions; files and lines where they do not come from debug information, which the receiver may
    /// have too.
    Functions,
    /// All.
    Lines,
}

/// Dictionary indices of one window's locations and stacks within one request.
#[derive(Debug)]
pub(super) struct LocationIndices {
    source_lines: bool,
    locations: Vec<Option<i32>>,
    stacks: Vec<Option<i32>>,
}

impl LocationIndices {
    /// With `source_lines`, native functions keep the files and lines that this host knows.
    pub(super) fn new(window: &NamedWindow, source_lines: bool) -> Self {
        Self {
            source_lines,
            locations: vec![None; window.locations.len()],
            stacks: vec![None; window.stacks.len()],
        }
    }

    /// Index of a location; `names` as for [`Self::stack`].
    pub(super) fn location(
        &mut self,
        window: &NamedWindow,
        index: LocationIndex,
        names: bool,
        dictionary: &mut DictionaryBuilder,
    ) -> i32 {
        let detail = match (names, self.source_lines) {
            (false, _) => Detail::Addresses,
            (true, false) => Detail::Functions,
            (true, true) => Detail::Lines,
        };
        *self.locations[index.0 as usize]
            .get_or_insert_with(|| add_location(window, window.location(index), detail, dictionary))
    }

    /// Index of a stack; `names` is false where names would not fit into any request.
    pub(super) fn stack(
        &mut self,
        window: &NamedWindow,
        index: StackIndex,
        names: bool,
        dictionary: &mut DictionaryBuilder,
    ) -> i32 {
        if let Some(known) = self.stacks[index.0 as usize] {
            return known;
        }
        let locations: Vec<i32> = window
            .stack(index)
            .iter()
            .map(|location| self.location(window, *location, names, dictionary))
            .collect();
        let stack = dictionary.stack(&locations);
        self.stacks[index.0 as usize] = Some(stack);
        stack
    }
}

/// An upper bound of the bytes that each location adds to a request.
pub(super) fn location_bytes_max(window: &NamedWindow) -> Vec<usize> {
    let line_bytes = |line: &SourceLine| {
        let SourceLine { function, system_name: _, file, line: _ } = line;
        [function, file]
            .into_iter()
            .map(|text| text.len().min(limits::EXPORT_STRING_BYTES_MAX))
            .fold(LINE_BYTES_MAX, usize::saturating_add)
    };
    let bytes = |location: &Location| {
        let path = match location.code {
            Code::Native { file, .. } | Code::Unplaced { file, .. } => {
                window.files[file as usize].path.len()
            }
            _ => 0,
        };
        let lines: usize = location.lines.iter().map(line_bytes).sum();
        LOCATION_BYTES_MAX + path.min(limits::EXPORT_STRING_BYTES_MAX) + lines
    };
    window.locations.iter().map(bytes).collect()
}

fn add_location(
    window: &NamedWindow,
    location: &Location,
    detail: Detail,
    dictionary: &mut DictionaryBuilder,
) -> i32 {
    let kind = location.kind(&window.files);
    let mut attributes =
        vec![dictionary.attribute(attribute::FRAME_TYPE, &AttributeValue::Text(kind.as_str()))];
    let (mapping, address) = match location.code {
        Code::Native { file, address } => {
            let mapping = mapping(&window.files[file as usize], address.0, dictionary);
            (dictionary.mapping(mapping), address.0)
        }
        // A file offset is no address of the ELF file: sent as one, it would be named wrongly.
        Code::Unplaced { file, .. } => {
            let mapping = mapping(&window.files[file as usize], u64::MAX, dictionary);
            (dictionary.mapping(mapping), 0)
        }
        Code::Kernel { .. } => (named_mapping(location, dictionary), 0),
        Code::Anonymous { .. } | Code::Marker(_) => (0, 0),
    };
    let lines: Vec<(i32, i64)> = match location.stand_in(&window.files) {
        Some(text) if location.lines.is_empty() => vec![(dictionary.function(&text, "", "", 0), 0)],
        _ if detail == Detail::Addresses => Vec::new(),
        _ => {
            let lines = kind != FrameKind::Native || detail == Detail::Lines;
            location.lines.iter().map(|line| add_line(line, lines, dictionary)).collect()
        }
    };
    if matches!(location.code, Code::Native { .. })
        && !location.lines.is_empty()
        && detail != Detail::Addresses
    {
        let value = AttributeValue::Text(SYMBOL_SOURCE_HOST);
        attributes.push(dictionary.attribute(attribute::SYMBOL_SOURCE, &value));
    }
    dictionary.location(mapping, address, &lines, &attributes)
}

/// Only the name as it is shown: linkage names would be a quarter of the whole request (measured: 27 % of
/// what zstd leaves while a compiler runs), and these names are provisional anyway.
///
/// Files and lines of native code are a ninth of a request; a receiver that has the debug file knows them
/// anyway.
fn add_line(line: &SourceLine, lines: bool, dictionary: &mut DictionaryBuilder) -> (i32, i64) {
    let SourceLine { function, system_name: _, file, line } = line;
    let (file, line) = if lines { (cut(file), *line) } else { ("", 0) };
    let function = dictionary.function(cut(function), "", file, 0);
    (function, i64::from(line))
}

/// A kernel mapping has a name and nothing else.
fn named_mapping(location: &Location, dictionary: &mut DictionaryBuilder) -> i32 {
    let filename_strindex = dictionary.string(location.kernel_mapping().unwrap_or("[kernel]"));
    dictionary.mapping(Mapping { filename_strindex, ..Mapping::default() })
}

/// The mapping of the executable segment that holds `address`, in addresses of the ELF file: a receiver
/// that subtracts `memory_start` and adds `file_offset`, and one that does not, both get it right.
fn mapping(file: &MappedFile, address: u64, dictionary: &mut DictionaryBuilder) -> Mapping {
    let mut mapping =
        Mapping { filename_strindex: dictionary.string(cut(&file.path)), ..Mapping::default() };
    if let Some(segment) = file.segment_of(ElfAddr(address)) {
        mapping.memory_start = segment.address.0;
        mapping.memory_limit = segment.address.0.saturating_add(segment.size);
        mapping.file_offset = segment.file_offset.0;
    }
    let facts = file.facts.as_ref();
    let mut add = |key, value: Option<String>| {
        if let Some(value) = value {
            let index = dictionary.attribute(key, &AttributeValue::Text(cut(&value)));
            mapping.attribute_indices.push(index);
        }
    };
    add(attribute::BUILD_ID_GNU, file.gnu_build_id().map(ToString::to_string));
    add(attribute::BUILD_ID_GO, facts.and_then(|facts| facts.go_build_id.clone()));
    add(attribute::BUILD_ID_HTLHASH, facts.map(|facts| facts.htlhash.to_string()));
    mapping
}

/// The text up to the limit, cut between characters.
pub(super) fn cut(text: &str) -> &str {
    match text.len() {
        0..=limits::EXPORT_STRING_BYTES_MAX => text,
        _ => &text[..text.floor_char_boundary(limits::EXPORT_STRING_BYTES_MAX)],
    }
}
