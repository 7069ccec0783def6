//! What the oracle knows of locations and functions: the best names seen.

use crate::profile::identity::{
    self, BatchIdentities, DisplayQuality, LineQuality, NameSource, function_identity, module_name,
};
use crate::profile::{LocationDef, MappingDef, WriteBatch};
use crate::query::{FunctionInfo, FunctionNames};
use crate::store::{FileAddress, FileAddresses, first_of};
use hashbrown::HashMap;
use proto::FrameKind;
use std::sync::Arc;

#[derive(Debug, Default)]
pub(super) struct Names {
    locations: HashMap<u128, Location>,
    functions: HashMap<u128, (DisplayQuality, FunctionInfo)>,
}

#[derive(Debug)]
struct Location {
    quality: LineQuality,
    mapping: Option<MappingDef>,
    address: u64,
    kind: FrameKind,
    /// Identities of functions, innermost first; never empty.
    functions: Vec<u128>,
}

impl Names {
    pub(super) fn learn(&mut self, batch: &WriteBatch, identities: &BatchIdentities) {
        for (at, location) in batch.locations.iter().enumerate() {
            let module = location
                .mapping
                .map_or("", |mapping| module_name(&batch.mappings[mapping as usize].filename));
            let mut functions = Vec::new();
            for line in &location.lines {
                let function = &batch.functions[line.function as usize];
                if !identity::is_named(function) {
                    continue;
                }
                let id = function_identity(location.kind, module, function);
                functions.push(id);
                let info = FunctionInfo {
                    name: identity::shown_name(function).into(),
                    file: Arc::from(&*function.file),
                    line: function.start_line,
                    kind: location.kind,
                    module: module.into(),
                    named: true,
                };
                self.show(id, identity::display_quality(function), info);
            }
            if functions.is_empty() {
                let name = identity::unnamed_name(module, location.address);
                functions.push(self.unnamed(location.kind, module, &name));
            }
            let (id, quality) = (identities.locations[at], identities.qualities[at]);
            if self.locations.get(&id).is_none_or(|known| quality > known.quality) {
                let mapping = location.mapping.map(|at| batch.mappings[at as usize].clone());
                let &LocationDef { address, kind, .. } = location;
                let learnt = Location { quality, mapping, address, kind, functions };
                self.locations.insert(id, learnt);
            }
        }
    }

    /// Addresses of a file that no debug file has named.
    pub(super) fn unnamed_of(&self, file: &FileAddresses) -> Vec<FileAddress> {
        let found = self.locations.values().filter_map(|location| {
            let &Location { address, kind, quality, ref mapping, .. } = location;
            let mapping = mapping.as_ref()?;
            let is_wanted = mapping.build_id.as_ref() == Some(&file.build_id)
                && file.after.is_none_or(|after| (address, kind) > after)
                && identity::has_stable_addresses(kind)
                && quality.source == NameSource::Sender;
            let module = module_name(&mapping.filename).into();
            is_wanted.then_some(FileAddress { address, kind, module })
        });
        first_of(found, file.limit)
    }

    /// Functions of a location, innermost first.
    pub(super) fn functions(&self, location: u128) -> &[u128] {
        self.locations.get(&location).map_or(&[], |known| &known.functions)
    }

    /// Functions of a stack, leaf first.
    pub(super) fn of_stack(&self, stack: &[u128]) -> Vec<u128> {
        stack.iter().flat_map(|&location| self.functions(location)).copied().collect()
    }

    /// What is known of a function.
    pub(super) fn info(&self, function: u128) -> &FunctionInfo {
        &self.functions[&function].1
    }

    pub(super) fn is_named(&self, function: u128) -> bool {
        self.functions.get(&function).is_some_and(|(_, info)| info.named)
    }

    fn unnamed(&mut self, kind: FrameKind, module: &str, name: &str) -> u128 {
        let id = identity::unnamed_identity(kind, module, name);
        let info = FunctionInfo {
            name: name.into(),
            file: "".into(),
            line: 0,
            kind,
            module: module.into(),
            named: false,
        };
        self.show(id, DisplayQuality::default(), info);
        id
    }

    fn show(&mut self, id: u128, quality: DisplayQuality, info: FunctionInfo) {
        let known = self.functions.entry(id).or_insert_with(|| (quality, info.clone()));
        if quality > known.0 {
            *known = (quality, info);
        }
    }
}

/// Functions numbered for one answer.
pub(super) struct Numbered<'a> {
    pub(super) names: &'a Names,
    pub(super) identities: Vec<u128>,
}

impl FunctionNames for Numbered<'_> {
    fn info(&self, function: u32) -> FunctionInfo {
        self.names.info(self.identity(function)).clone()
    }

    fn identity(&self, function: u32) -> u128 {
        self.identities[function as usize]
    }
}
