//! Writes a dictionary: equal entries get one index, entry 0 of every table is the zero value.

use super::common::{AnyValue, any_value};
use super::profiles::{
    Function, KeyValueAndUnit, Line, Link, Location, Mapping, ProfilesDictionary, Stack,
};
use std::collections::HashMap;
use std::hash::Hash;

/// Bytes that each repeated entry costs besides its own: the tag and a length of up to 2^28.
const ENTRY_OVERHEAD_BYTES: usize = 5;

/// The value of an attribute in the dictionary.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum AttributeValue<'a> {
    /// Text.
    Text(&'a str),
    /// A number.
    Int(i64),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum OwnedValue {
    Text(String),
    Int(i64),
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct LocationKey {
    mapping: i32,
    address: u64,
    lines: Vec<(i32, i64)>,
    attributes: Vec<i32>,
}

/// Builds one [`ProfilesDictionary`]. Indices are valid for the request that it is finished into.
#[derive(Debug)]
pub struct DictionaryBuilder {
    tables: ProfilesDictionary,
    strings: HashMap<String, i32>,
    attributes: HashMap<(i32, OwnedValue), i32>,
    mappings: HashMap<Mapping, i32>,
    functions: HashMap<Function, i32>,
    locations: HashMap<LocationKey, i32>,
    stacks: HashMap<Vec<i32>, i32>,
    links: HashMap<Link, i32>,
    encoded_bytes_max: usize,
}

impl Default for DictionaryBuilder {
    fn default() -> Self {
        Self::new()
    }
}

impl DictionaryBuilder {
    /// A dictionary whose tables hold their zero entry only.
    #[must_use]
    pub fn new() -> Self {
        let tables = ProfilesDictionary {
            mapping_table: vec![Mapping::default()],
            location_table: vec![Location::default()],
            function_table: vec![Function::default()],
            link_table: vec![Link::default()],
            string_table: vec![String::new()],
            attribute_table: vec![KeyValueAndUnit::default()],
            stack_table: vec![Stack::default()],
        };
        Self {
            encoded_bytes_max: 7 * ENTRY_OVERHEAD_BYTES,
            tables,
            strings: HashMap::from([(String::new(), 0)]),
            attributes: HashMap::new(),
            mappings: HashMap::from([(Mapping::default(), 0)]),
            functions: HashMap::from([(Function::default(), 0)]),
            locations: HashMap::new(),
            stacks: HashMap::from([(Vec::new(), 0)]),
            links: HashMap::from([(Link::default(), 0)]),
        }
    }

    /// An upper bound of the encoded size in bytes.
    #[must_use]
    pub const fn encoded_bytes_max(&self) -> usize {
        self.encoded_bytes_max
    }

    /// Index of a string.
    pub fn string(&mut self, text: &str) -> i32 {
        if let Some(&index) = self.strings.get(text) {
            return index;
        }
        self.encoded_bytes_max += text.len() + ENTRY_OVERHEAD_BYTES;
        let index = next_index(self.tables.string_table.len());
        self.strings.insert(text.to_owned(), index);
        self.tables.string_table.push(text.to_owned());
        index
    }

    /// Index of an attribute without a unit.
    pub fn attribute(&mut self, key: &str, value: &AttributeValue<'_>) -> i32 {
        let key_strindex = self.string(key);
        let owned = match value {
            AttributeValue::Text(text) => OwnedValue::Text((*text).to_owned()),
            AttributeValue::Int(number) => OwnedValue::Int(*number),
        };
        let Self { attributes, tables, encoded_bytes_max, .. } = self;
        insert(attributes, (key_strindex, owned), encoded_bytes_max, |(_, owned)| {
            let value = match owned {
                OwnedValue::Text(text) => any_value::Value::StringValue(text.clone()),
                OwnedValue::Int(number) => any_value::Value::IntValue(*number),
            };
            let value = Some(AnyValue { value: Some(value) });
            push(
                &mut tables.attribute_table,
                KeyValueAndUnit { key_strindex, value, unit_strindex: 0 },
            )
        })
    }

    /// Index of a mapping.
    pub fn mapping(&mut self, mapping: Mapping) -> i32 {
        let Self { mappings, tables, encoded_bytes_max, .. } = self;
        insert(mappings, mapping, encoded_bytes_max, |mapping| {
            push(&mut tables.mapping_table, mapping.clone())
        })
    }

    /// Index of a function by its strings; `start_line` 0 is "unknown".
    pub fn function(
        &mut self,
        name: &str,
        system_name: &str,
        filename: &str,
        start_line: i64,
    ) -> i32 {
        let function = Function {
            name_strindex: self.string(name),
            system_name_strindex: self.string(system_name),
            filename_strindex: self.string(filename),
            start_line,
        };
        let Self { functions, tables, encoded_bytes_max, .. } = self;
        insert(functions, function, encoded_bytes_max, |function| {
            push(&mut tables.function_table, *function)
        })
    }

    /// Index of a location. `lines` are (function index, line), innermost first.
    pub fn location(
        &mut self,
        mapping: i32,
        address: u64,
        lines: &[(i32, i64)],
        attributes: &[i32],
    ) -> i32 {
        let key = LocationKey {
            mapping,
            address,
            lines: lines.to_vec(),
            attributes: attributes.to_vec(),
        };
        let Self { locations, tables, encoded_bytes_max, .. } = self;
        insert(locations, key, encoded_bytes_max, |key| {
            let line = |&(function_index, line)| Line { function_index, line, column: 0 };
            let location = Location {
                mapping_index: key.mapping,
                address: key.address,
                lines: key.lines.iter().map(line).collect(),
                attribute_indices: key.attributes.clone(),
            };
            push(&mut tables.location_table, location)
        })
    }

    /// Index of a stack of location indices, leaf first.
    pub fn stack(&mut self, locations: &[i32]) -> i32 {
        if let Some(&index) = self.stacks.get(locations) {
            return index;
        }
        let Self { stacks, tables, encoded_bytes_max, .. } = self;
        insert(stacks, locations.to_vec(), encoded_bytes_max, |locations| {
            push(&mut tables.stack_table, Stack { location_indices: locations.clone() })
        })
    }

    /// Index of a link to a span.
    pub fn link(&mut self, trace_id: [u8; 16], span_id: [u8; 8]) -> i32 {
        let link = Link { trace_id: trace_id.to_vec(), span_id: span_id.to_vec() };
        let Self { links, tables, encoded_bytes_max, .. } = self;
        insert(links, link, encoded_bytes_max, |link| push(&mut tables.link_table, link.clone()))
    }

    /// The dictionary.
    #[must_use]
    pub fn finish(self) -> ProfilesDictionary {
        self.tables
    }
}

/// The index of `key`, made by `make` if it is new. `make` answers (index, encoded bytes).
fn insert<K: Hash + Eq>(
    indices: &mut HashMap<K, i32>,
    key: K,
    encoded_bytes_max: &mut usize,
    make: impl FnOnce(&K) -> (i32, usize),
) -> i32 {
    if let Some(&index) = indices.get(&key) {
        return index;
    }
    let (index, bytes) = make(&key);
    *encoded_bytes_max += bytes;
    indices.insert(key, index);
    index
}

fn push<M: prost::Message>(table: &mut Vec<M>, entry: M) -> (i32, usize) {
    let bytes = entry.encoded_len() + ENTRY_OVERHEAD_BYTES;
    let index = next_index(table.len());
    table.push(entry);
    (index, bytes)
}

fn next_index(len: usize) -> i32 {
    // Each entry takes more than one byte: 2^31 of them fit neither in memory nor in a request.
    i32::try_from(len).expect("a table of 2^31 entries is larger than any request")
}
