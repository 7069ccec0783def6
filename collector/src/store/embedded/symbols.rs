//! What a project knows by name: mappings, functions, locations, types, series, services. Ids are positions
//! in append-only tables, so they stay valid for ever; better names replace the contents of an entry, never
//! its id. Not responsible for files: `symbol_log` writes and reads these tables.

use super::prepared::UNKNOWN;
use super::service::Service;
use crate::limits;
use crate::profile::identity::{
    self, BatchIdentities, DisplayQuality, LineQuality, NameSource, function_identity, module_name,
};
use crate::profile::{FunctionDef, MappingDef, ProfileDef, SeriesLabels, ValueType, WriteBatch};
use crate::query::{FunctionInfo, FunctionNames};
use crate::store::{FileAddress, FileAddresses, StoreError, first_of};
use hashbrown::{HashMap, HashSet};
use proto::FrameKind;
use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

/// A function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Function {
    pub(super) identity: u128,
    pub(super) quality: DisplayQuality,
    pub(super) info: FunctionInfo,
}

/// A location.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Location {
    pub(super) identity: u128,
    pub(super) kind: FrameKind,
    pub(super) mapping: Option<u32>,
    pub(super) address: u64,
    pub(super) quality: LineQuality,
    /// Names that came last and were no better: of the same ones there is nothing to learn.
    pub(super) passed_over: LineQuality,
    /// Innermost first; never empty: a location without names has one stand-in function.
    pub(super) lines: Box<[Line]>,
}

/// A function at a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Line {
    pub(super) function: u32,
    /// 0 if unknown.
    pub(super) line: u32,
}

/// A type of profiles.
#[derive(Debug)]
pub(super) struct TypeEntry {
    pub(super) value_type: ValueType,
    /// Nearly every profile is newer than all before: one that brings nothing else is taken beside readers.
    newest: Mutex<(i64, u64)>,
}

impl TypeEntry {
    /// Start, Unix milliseconds, and period, nanoseconds, of the newest profile.
    pub(super) fn newest(&self) -> (i64, u64) {
        *self.newest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn meet(&self, profile: (i64, u64)) {
        let mut newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        *newest = (*newest).max(profile);
    }
}

/// A series: labels, type, period.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Series {
    pub(super) labels: SeriesLabels,
    /// Index of the type.
    pub(super) type_id: u32,
    /// Nanoseconds, 0 if not said.
    pub(super) period_ns: u64,
    /// Index of the service.
    pub(super) service: u32,
}

/// Entries whose contents changed, by id.
#[derive(Debug, Default)]
pub(super) struct Changed {
    pub(super) functions: BTreeSet<u32>,
    pub(super) locations: BTreeSet<u32>,
}

/// The tables of one project.
#[derive(Debug, Default)]
pub(super) struct Symbols {
    pub(super) mappings: Vec<MappingDef>,
    pub(super) functions: Vec<Function>,
    pub(super) locations: Vec<Location>,
    pub(super) types: Vec<TypeEntry>,
    pub(super) series: Vec<Arc<Series>>,
    pub(super) services: Vec<Arc<Service>>,
    /// Locations whose functions changed since the start, oldest first: the symbol epochs.
    pub(super) renamed: Vec<u32>,
    /// Entries that changed since they were last written to the log.
    pub(super) changed: Changed,
    type_ids: HashMap<ValueType, u32>,
    mapping_ids: HashMap<MappingDef, u32>,
    function_ids: HashMap<u128, u32>,
    location_ids: HashMap<u128, KnownLocation>,
    series_ids: HashMap<Arc<Series>, u32>,
    service_ids: HashMap<Arc<str>, u32>,
    texts: HashSet<Arc<str>>,
}

/// Where a location is, and what its names are: one look into a table that no cache holds tells whether it is known as it
/// is sent.
#[derive(Clone, Copy, Debug)]
struct KnownLocation {
    id: u32,
    /// Hashes of its quality and of the one that was passed over.
    names: [u64; 2],
}

/// The chance that other names have the same is 2^-63. The rest of a quality is counted from its contents.
fn hash_of(quality: &LineQuality) -> u64 {
    let contents = u64::try_from(quality.contents >> 64).unwrap_or_default();
    contents & !1 | u64::from(quality.source == NameSource::DebugFile)
}

/// The id of the next entry of a table. Limits are far below 32 bits and checked before.
fn next_id<T>(table: &[T]) -> u32 {
    u32::try_from(table.len()).unwrap_or(u32::MAX)
}

impl Symbols {
    /// Refuses a batch that could bring a table above its limit.
    pub(super) fn check_room(&self, batch: &WriteBatch) -> Result<(), StoreError> {
        let rows = [
            ("mappings", self.mappings.len(), batch.mappings.len(), limits::MAPPINGS_MAX),
            ("functions", self.functions.len(), batch.functions.len(), limits::FUNCTIONS_MAX),
            ("locations", self.locations.len(), batch.locations.len(), limits::LOCATIONS_MAX),
            ("series", self.series.len(), batch.profiles.len(), limits::PROJECT_SERIES_MAX),
            ("services", self.services.len(), self.new_services(batch), limits::SERVICES_MAX),
            ("profile types", self.types.len(), self.new_types(batch), limits::PROFILE_TYPES_MAX),
        ];
        for (what, known, added, max) in rows {
            if known + added > max {
                return Err(StoreError::Limit { what, max: max as u64 });
            }
        }
        Ok(())
    }

    fn new_services(&self, batch: &WriteBatch) -> usize {
        let names = batch.profiles.iter().map(|profile| &profile.labels.service);
        names.filter(|name| !self.service_ids.contains_key(*name)).collect::<HashSet<_>>().len()
    }

    fn new_types(&self, batch: &WriteBatch) -> usize {
        let types = batch.profiles.iter().map(|profile| &profile.sample_type);
        types.filter(|it| !self.type_ids.contains_key(*it)).collect::<HashSet<_>>().len()
    }

    /// The id of a location that is known, if there is nothing to learn from names of this quality.
    pub(super) fn known_location(&self, identity: u128, quality: &LineQuality) -> Option<u32> {
        let known = self.location_ids.get(&identity)?;
        known.names.contains(&hash_of(quality)).then_some(known.id)
    }

    /// Learns the locations of a batch whose ids are not known; fills them in.
    pub(super) fn learn(
        &mut self,
        batch: &WriteBatch,
        identities: &BatchIdentities,
        ids: &mut [u32],
    ) {
        for (at, id) in ids.iter_mut().enumerate().filter(|(_, id)| **id == UNKNOWN) {
            *id = self.learn_location(batch, identities, at);
        }
    }

    fn learn_location(
        &mut self,
        batch: &WriteBatch,
        identities: &BatchIdentities,
        at: usize,
    ) -> u32 {
        let (identity, quality) = (identities.locations[at], identities.qualities[at]);
        if let Some(id) = self.known_location(identity, &quality) {
            return id;
        }
        let known = self.location_ids.get(&identity).map(|known| known.id);
        let location = &batch.locations[at];
        let mapping = location.mapping.map(|mapping| &batch.mappings[mapping as usize]);
        let module = mapping.map_or("", |mapping| module_name(&mapping.filename));
        let mut lines = Vec::with_capacity(location.lines.len());
        for line in &location.lines {
            let function = &batch.functions[line.function as usize];
            if identity::is_named(function) {
                let function = self.learn_function(location.kind, module, function);
                lines.push(Line { function, line: u32::try_from(line.line).unwrap_or(0) });
            }
        }
        if lines.is_empty() {
            let function = self.unnamed(location.kind, module, location.address);
            lines.push(Line { function, line: 0 });
        }
        if let Some(id) = known {
            self.rename(id, quality, mapping, lines);
            return id;
        }
        let mapping = mapping.map(|mapping| self.learn_mapping(mapping));
        self.push_location(Location {
            identity,
            kind: location.kind,
            mapping,
            address: location.address,
            quality,
            passed_over: quality,
            lines: lines.into(),
        })
    }

    /// Takes better names for a location that is known.
    fn rename(
        &mut self,
        id: u32,
        quality: LineQuality,
        mapping: Option<&MappingDef>,
        lines: Vec<Line>,
    ) {
        let known = &mut self.locations[id as usize];
        if quality <= known.quality {
            known.passed_over = quality;
            self.note_location(id);
            return;
        }
        let mapping = mapping.map(|mapping| self.learn_mapping(mapping));
        let location = &mut self.locations[id as usize];
        let same = location.lines.iter().map(|line| line.function);
        if !same.eq(lines.iter().map(|line| line.function)) {
            self.renamed.push(id);
        }
        location.passed_over = std::mem::replace(&mut location.quality, quality);
        location.mapping = mapping;
        location.lines = lines.into();
        self.note_location(id);
        self.changed.locations.insert(id);
    }

    fn learn_function(&mut self, kind: FrameKind, module: &str, function: &FunctionDef) -> u32 {
        let identity = function_identity(kind, module, function);
        let quality = identity::display_quality(function);
        if let Some(&id) = self.function_ids.get(&identity)
            && quality <= self.functions[id as usize].quality
        {
            return id;
        }
        let info = FunctionInfo {
            name: self.text(&identity::shown_name(function)),
            file: self.text(&function.file),
            line: function.start_line,
            kind,
            module: self.text(module),
            named: true,
        };
        self.show(Function { identity, quality, info })
    }

    fn unnamed(&mut self, kind: FrameKind, module: &str, address: u64) -> u32 {
        let name = identity::unnamed_name(module, address);
        let identity = identity::unnamed_identity(kind, module, &name);
        let info = FunctionInfo {
            name: name.into(),
            file: self.text(""),
            line: 0,
            kind,
            module: self.text(module),
            named: false,
        };
        self.show(Function { identity, quality: DisplayQuality::default(), info })
    }

    /// Adds a function, or replaces what is shown of it by something better.
    fn show(&mut self, function: Function) -> u32 {
        if let Some(&id) = self.function_ids.get(&function.identity) {
            let known = &mut self.functions[id as usize];
            if function.quality > known.quality {
                *known = function;
                self.changed.functions.insert(id);
            }
            return id;
        }
        self.push_function(function)
    }

    fn learn_mapping(&mut self, mapping: &MappingDef) -> u32 {
        match self.mapping_ids.get(mapping) {
            Some(&id) => id,
            None => self.push_mapping(mapping.clone()),
        }
    }

    /// The series of a profile, if there is nothing to learn from it but its time.
    pub(super) fn known_series(&self, profile: &ProfileDef) -> Option<u32> {
        let &type_id = self.type_ids.get(&profile.sample_type)?;
        let &service = self.service_ids.get(&profile.labels.service)?;
        let (labels, period_ns) = (profile.labels.clone(), profile.period_ns());
        self.types[type_id as usize].meet((profile.time_ms, period_ns));
        let series = Series { labels, type_id, period_ns, service };
        self.series_ids.get(&series).copied()
    }

    /// The series of a profile; makes it, its type and its service if they are new.
    pub(super) fn learn_series(&mut self, profile: &ProfileDef) -> u32 {
        let type_id = self.learn_type(profile);
        let service = match self.service_ids.get(&profile.labels.service) {
            Some(&service) => service,
            None => self.push_service(Service::new(Arc::clone(&profile.labels.service))),
        };
        let labels = profile.labels.clone();
        let series = Series { labels, type_id, period_ns: profile.period_ns(), service };
        match self.series_ids.get(&series) {
            Some(&id) => id,
            None => self.push_series(series),
        }
    }

    fn learn_type(&mut self, profile: &ProfileDef) -> u32 {
        let newest = (profile.time_ms, profile.period_ns());
        self.newest_type(profile.sample_type.clone(), newest)
    }

    /// The number of a type, which is made if it is new; its newest profile is the later of both.
    pub(super) fn newest_type(&mut self, value_type: ValueType, newest: (i64, u64)) -> u32 {
        if let Some(&id) = self.type_ids.get(&value_type) {
            self.types[id as usize].meet(newest);
            return id;
        }
        let id = next_id(&self.types);
        self.type_ids.insert(value_type.clone(), id);
        self.types.push(TypeEntry { value_type, newest: Mutex::new(newest) });
        id
    }

    /// Addresses of a file that no debug file has named.
    pub(super) fn unnamed_of(&self, file: &FileAddresses) -> Vec<FileAddress> {
        let found = self.locations.iter().filter_map(|location| {
            let mapping = location.mapping?;
            let is_wanted = location.quality.source == NameSource::Sender
                && identity::has_stable_addresses(location.kind)
                && file.after.is_none_or(|after| (location.address, location.kind) > after)
                && self.mappings[mapping as usize].build_id.as_ref() == Some(&file.build_id);
            is_wanted.then_some((location.address, location.kind, mapping))
        });
        let first = first_of(found, file.limit).into_iter();
        let told = first.map(|(address, kind, mapping)| {
            let module = module_name(&self.mappings[mapping as usize].filename).into();
            FileAddress { address, kind, module }
        });
        told.collect()
    }

    /// The number of a service that is known.
    pub(super) fn service(&self, name: &str) -> Option<u32> {
        self.service_ids.get(name).copied()
    }

    /// One copy of equal texts.
    pub(super) fn text(&mut self, text: &str) -> Arc<str> {
        Arc::clone(self.texts.get_or_insert_with(text, |text| Arc::from(text)))
    }

    pub(super) fn push_mapping(&mut self, mapping: MappingDef) -> u32 {
        let id = next_id(&self.mappings);
        self.mapping_ids.insert(mapping.clone(), id);
        self.mappings.push(mapping);
        id
    }

    pub(super) fn push_function(&mut self, function: Function) -> u32 {
        let id = next_id(&self.functions);
        self.function_ids.insert(function.identity, id);
        self.functions.push(function);
        id
    }

    pub(super) fn push_location(&mut self, location: Location) -> u32 {
        let id = next_id(&self.locations);
        self.locations.push(location);
        self.note_location(id);
        id
    }

    /// Takes another description of a location that is there.
    pub(super) fn replace_location(&mut self, id: u32, location: Location) {
        self.locations[id as usize] = location;
        self.note_location(id);
    }

    /// Says that a debug file gave the names of a location.
    pub(super) fn mark_named_by_file(&mut self, id: u32) {
        self.locations[id as usize].quality.source = NameSource::DebugFile;
        self.note_location(id);
    }

    fn note_location(&mut self, id: u32) {
        let location = &self.locations[id as usize];
        let names = [&location.quality, &location.passed_over].map(hash_of);
        let known = KnownLocation { id, names };
        self.location_ids.insert(location.identity, known);
    }

    pub(super) fn push_service(&mut self, service: Service) -> u32 {
        let id = next_id(&self.services);
        self.service_ids.insert(Arc::clone(&service.name), id);
        self.services.push(Arc::new(service));
        id
    }

    pub(super) fn push_series(&mut self, series: Series) -> u32 {
        let id = next_id(&self.series);
        let series = Arc::new(series);
        self.series_ids.insert(Arc::clone(&series), id);
        self.series.push(series);
        id
    }
}

impl FunctionNames for Symbols {
    fn info(&self, function: u32) -> FunctionInfo {
        self.functions[function as usize].info.clone()
    }

    fn identity(&self, function: u32) -> u128 {
        self.functions[function as usize].identity
    }

    fn is_marker(&self, function: u32) -> bool {
        self.functions[function as usize].info.kind == FrameKind::Marker
    }

    /// Without copies of what is compared: a large tree has a million pairs of equal siblings.
    fn compare(&self, a: u32, b: u32) -> Ordering {
        let [a, b] = [a, b].map(|function| &self.functions[function as usize]);
        (&a.info, a.identity).cmp(&(&b.info, b.identity))
    }
}
