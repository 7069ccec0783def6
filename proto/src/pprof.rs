//! pprof messages, and a builder that gives equal entries one id. Compression and files are the
//! caller's.

pub use generated::*;

use std::collections::HashMap;
use std::hash::Hash;

#[expect(missing_docs, reason = "generated: the comments are in protos/google/pprof/profile.proto")]
mod generated {
    include!("generated/pprof.rs");
}

#[cfg(test)]
mod tests;

/// Builds a [`Profile`]. Ids are positions in the tables plus one.
#[derive(Debug)]
pub struct ProfileBuilder {
    profile: Profile,
    strings: HashMap<Vec<u8>, i64>,
    functions: HashMap<Function, u64>,
    locations: HashMap<LocationKey, u64>,
}

/// Mapping id, address, lines as (function id, line).
type LocationKey = (u64, u64, Vec<(u64, i64)>);

impl Default for ProfileBuilder {
    fn default() -> Self {
        Self::new()
    }
}

impl ProfileBuilder {
    /// An empty profile whose string table holds the empty string.
    #[must_use]
    pub fn new() -> Self {
        let profile = Profile { string_table: vec![Vec::new()], ..Profile::default() };
        Self {
            profile,
            strings: HashMap::from([(Vec::new(), 0)]),
            functions: HashMap::new(),
            locations: HashMap::new(),
        }
    }

    /// Index of a string.
    pub fn string(&mut self, text: &str) -> i64 {
        if let Some(&index) = self.strings.get(text.as_bytes()) {
            return index;
        }
        let index = i64::try_from(self.profile.string_table.len())
            .expect("a table in memory has fewer than 2^63 entries");
        self.profile.string_table.push(text.as_bytes().to_vec());
        self.strings.insert(text.as_bytes().to_vec(), index);
        index
    }

    /// A value type of two strings.
    pub fn value_type(&mut self, kind: &str, unit: &str) -> ValueType {
        ValueType { r#type: self.string(kind), unit: self.string(unit) }
    }

    /// Adds a mapping and answers its id. Mappings are not compared: the caller knows its files.
    pub fn mapping(&mut self, mapping: Mapping) -> u64 {
        let id = id_behind(self.profile.mapping.len());
        self.profile.mapping.push(Mapping { id, ..mapping });
        id
    }

    /// The mapping with this id, to correct what is only known later (`has_functions` and the like).
    pub fn mapping_mut(&mut self, id: u64) -> Option<&mut Mapping> {
        let position = usize::try_from(id.checked_sub(1)?).ok()?;
        self.profile.mapping.get_mut(position)
    }

    /// Id of a function.
    pub fn function(&mut self, name: &str, system_name: &str, filename: &str) -> u64 {
        let function = Function {
            id: 0,
            name: self.string(name),
            system_name: self.string(system_name),
            filename: self.string(filename),
            start_line: 0,
        };
        let functions = &mut self.profile.function;
        intern(&mut self.functions, function, |function| {
            let id = id_behind(functions.len());
            functions.push(Function { id, ..*function });
            id
        })
    }

    /// Id of a location; `lines` are (function id, line), innermost first; mapping 0 is "none".
    pub fn location(&mut self, mapping: u64, address: u64, lines: Vec<(u64, i64)>) -> u64 {
        let locations = &mut self.profile.location;
        intern(&mut self.locations, (mapping, address, lines), |(mapping, address, lines)| {
            let id = id_behind(locations.len());
            let line = |&(function_id, line)| Line { function_id, line, column: 0 };
            locations.push(Location {
                id,
                mapping_id: *mapping,
                address: *address,
                line: lines.iter().map(line).collect(),
                is_folded: false,
            });
            id
        })
    }

    /// Adds a sample. Samples are not compared.
    pub fn sample(&mut self, sample: Sample) {
        self.profile.sample.push(sample);
    }

    /// The profile.
    #[must_use]
    pub fn finish(self) -> Profile {
        self.profile
    }

    /// The profile under construction, for the fields that are neither tables nor samples.
    pub const fn profile_mut(&mut self) -> &mut Profile {
        &mut self.profile
    }
}

fn intern<K: Hash + Eq>(ids: &mut HashMap<K, u64>, key: K, make: impl FnOnce(&K) -> u64) -> u64 {
    if let Some(&id) = ids.get(&key) {
        return id;
    }
    let id = make(&key);
    ids.insert(key, id);
    id
}

fn id_behind(len: usize) -> u64 {
    len as u64 + 1
}
