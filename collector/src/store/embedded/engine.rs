//! The state that writer and queries share, and how a durable batch enters it.

use super::deletions::{Deletions, Numbered};
use super::files::Files;
use super::memtable::{HOUR_MS, Memtable, ProjectRows, write_shard};
use super::prepared::{KnownStack, Places, Prepared, UNKNOWN};
use super::segment::Segment;
use super::symbols::Symbols;
use super::trie::stack_hash;
use crate::limits;
use crate::profile::identity::BatchIdentities;
use crate::profile::{Attribute, ProfileDef, ProjectName, WriteBatch};
use crate::store::{Deletion, Retention, StoreError};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Tells the time, Unix milliseconds.
#[derive(Clone)]
pub struct Clock(Arc<dyn Fn() -> i64 + Send + Sync>);

impl Clock {
    /// A clock that calls `now`, which answers Unix milliseconds.
    pub fn new(now: impl Fn() -> i64 + Send + Sync + 'static) -> Self {
        Self(Arc::new(now))
    }

    /// The clock of the system.
    #[must_use]
    pub fn system() -> Self {
        Self::new(|| {
            let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
            since.map_or(0, |since| i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
        })
    }

    /// Unix milliseconds.
    #[must_use]
    pub fn now_ms(&self) -> i64 {
        (self.0)()
    }
}

impl std::fmt::Debug for Clock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Clock({})", self.now_ms())
    }
}

/// How much is kept.
#[derive(Clone, Debug)]
pub(super) struct Keep {
    /// Bytes of the data folder.
    pub(super) data_bytes_max: u64,
    /// Age.
    pub(super) retention: Retention,
}

/// Shared state.
#[derive(Debug)]
pub(super) struct Engine {
    pub(super) files: Arc<dyn Files>,
    pub(super) dir: PathBuf,
    pub(super) data_bytes_max: u64,
    retention: Retention,
    pub(super) clock: Clock,
    projects: RwLock<BTreeMap<ProjectName, Arc<Project>>>,
    view: RwLock<Arc<View>>,
    /// Number of the next segment or checkpoint.
    sequence: AtomicU64,
    pub(super) counters: Arc<Counters>,
    /// The folder is above its limit and nothing can be dropped.
    pub(super) is_full: AtomicBool,
}

/// A project.
#[derive(Debug)]
pub(super) struct Project {
    pub(super) name: ProjectName,
    symbols: RwLock<Symbols>,
}

/// Where samples are: a query keeps the view that it began with, so a freeze or a dropped hour never shows
/// it a sample twice or half.
#[derive(Clone, Debug, Default)]
pub(super) struct View {
    pub(super) active: Arc<Memtable>,
    /// Being written to segments.
    pub(super) frozen: Option<Arc<Memtable>>,
    pub(super) segments: Arc<SegmentMap>,
    /// What is hidden of all of these.
    pub(super) deletions: Arc<Deletions>,
}

/// The segments of each project.
pub(super) type SegmentMap = BTreeMap<ProjectName, Vec<Arc<Segment>>>;

/// Counts since the start.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) samples_stored: AtomicU64,
    pub(super) profiles_stored: AtomicU64,
    pub(super) profiles_duplicate: AtomicU64,
    pub(super) hours_dropped: AtomicU64,
    pub(super) hours_expired: AtomicU64,
    pub(super) wal_bytes: AtomicU64,
    /// Bytes of all files but the WAL's.
    pub(super) file_bytes: AtomicU64,
    /// Sections that a query had to leave out.
    pub(super) sections_damaged: AtomicU64,
    /// Segments that were merged into larger ones.
    pub(super) segments_merged: AtomicU64,
    /// Merges that failed.
    pub(super) merges_failed: AtomicU64,
}

impl Project {
    pub(super) fn new(name: ProjectName) -> Self {
        Self { name, symbols: RwLock::default() }
    }

    pub(super) fn with_symbols(name: ProjectName, symbols: Symbols) -> Self {
        Self { name, symbols: RwLock::new(symbols) }
    }

    pub(super) fn symbols(&self) -> RwLockReadGuard<'_, Symbols> {
        self.symbols.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn symbols_mut(&self) -> RwLockWriteGuard<'_, Symbols> {
        self.symbols.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// The name of a service.
    pub(super) fn service_name(&self, number: u32) -> Arc<str> {
        let symbols = self.symbols();
        symbols.services.get(number as usize).map_or_else(|| "".into(), |it| Arc::clone(&it.name))
    }
}

impl Engine {
    pub(super) fn new(
        files: Arc<dyn Files>,
        dir: PathBuf,
        Keep { data_bytes_max, retention }: Keep,
        clock: Clock,
    ) -> Self {
        Self {
            files,
            dir,
            data_bytes_max,
            retention,
            clock,
            projects: RwLock::default(),
            view: RwLock::default(),
            sequence: AtomicU64::new(1),
            counters: Arc::default(),
            is_full: AtomicBool::new(false),
        }
    }

    /// The first time of which something is kept, Unix milliseconds: retention goes by whole days.
    pub(super) fn kept_from_ms(&self) -> i64 {
        self.retention.kept_from_ms(self.clock.now_ms())
    }

    /// The first time that is kept of a type, Unix milliseconds.
    pub(super) fn type_kept_from_ms(&self, kind: &str) -> i64 {
        self.retention.type_kept_from_ms(kind, self.clock.now_ms())
    }

    /// The same of each type of a project, by its number.
    pub(super) fn types_kept_from_ms(&self, project: &Project) -> Vec<i64> {
        let symbols = project.symbols();
        let kinds = symbols.types.iter().map(|entry| &entry.value_type.kind);
        kinds.map(|kind| self.type_kept_from_ms(kind)).collect()
    }

    /// True if some types go before the others.
    pub(super) fn has_short_types(&self) -> bool {
        self.retention.has_types()
    }

    /// A number for a new segment or checkpoint.
    pub(super) fn next_sequence(&self) -> u64 {
        self.sequence.fetch_add(1, Ordering::Relaxed)
    }

    /// No number from here on was given to a file.
    pub(super) fn sequence_so_far(&self) -> u64 {
        self.sequence.load(Ordering::Relaxed)
    }

    /// Numbers begin here.
    pub(super) fn start_sequence(&self, next: u64) {
        self.sequence.store(next, Ordering::Relaxed);
    }

    pub(super) fn view(&self) -> Arc<View> {
        Arc::clone(&self.view.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Replaces the view by a changed copy.
    pub(super) fn change_view(&self, change: impl FnOnce(&mut View)) {
        let mut view = self.view.write().unwrap_or_else(PoisonError::into_inner);
        let mut next = (**view).clone();
        change(&mut next);
        *view = Arc::new(next);
    }

    pub(super) fn project(&self, name: &ProjectName) -> Option<Arc<Project>> {
        self.projects.read().unwrap_or_else(PoisonError::into_inner).get(name).cloned()
    }

    /// Adds a project that was read from its files.
    pub(super) fn restore(&self, project: Project) {
        let mut projects = self.projects.write().unwrap_or_else(PoisonError::into_inner);
        projects.insert(project.name.clone(), Arc::new(project));
    }

    fn project_or_new(&self, name: &ProjectName) -> Arc<Project> {
        let mut projects = self.projects.write().unwrap_or_else(PoisonError::into_inner);
        let new = || Arc::new(Project::new(name.clone()));
        Arc::clone(projects.entry(name.clone()).or_insert_with(new))
    }

    /// Refuses a batch that does not fit: nothing may fail once it is in the WAL.
    pub(super) fn check_room(&self, batch: &WriteBatch) -> Result<(), StoreError> {
        if self.is_full.load(Ordering::Relaxed) {
            let max = self.data_bytes_max;
            return Err(StoreError::Busy(format!(
                "the data folder is at its limit of {max} bytes"
            )));
        }
        let view = self.view();
        let bytes = view.active.bytes() + view.frozen.as_ref().map_or(0, |rows| rows.bytes());
        if bytes > limits::MEMTABLE_BYTES_MAX {
            return Err(StoreError::Busy("segments are being written".to_owned()));
        }
        let Some(project) = self.project(&batch.project) else {
            let count = self.projects.read().unwrap_or_else(PoisonError::into_inner).len();
            let max = limits::PROJECTS_MAX;
            let what = "projects";
            return if count < max {
                Symbols::default().check_room(batch)
            } else {
                Err(StoreError::Limit { what, max: max as u64 })
            };
        };
        let symbols = project.symbols();
        symbols.check_room(batch)?;
        let frames: usize = batch.stacks.iter().map(Vec::len).sum();
        let nodes = symbols.services.iter().map(|service| service.trie().len()).max();
        if nodes.unwrap_or(0) + frames > limits::TRIE_NODES_MAX {
            let max = limits::TRIE_NODES_MAX as u64;
            return Err(StoreError::Limit { what: "stacks of a service", max });
        }
        Ok(())
    }

    /// Hides what a durable deletion takes, then takes it out of the memtable. Only the writer calls it, so that no row
    /// comes meanwhile.
    pub(super) fn hide(&self, one: Numbered) {
        self.change_view(|view| Arc::make_mut(&mut view.deletions).add(one.clone()));
        let Deletion { project, service, .. } = &one.deletion;
        let service =
            service.as_ref().and_then(|name| self.project(project)?.symbols().service(name));
        self.view().active.forget(&one, service);
    }

    /// Learns durable names. Only the writer calls it.
    pub(super) fn name(&self, prepared: &mut Prepared) {
        let Prepared { batch, identities, locations, .. } = prepared;
        self.project_or_new(&batch.project).symbols_mut().learn(batch, identities, locations);
        // Without rows, but the tables of its projects are written out with a memtable.
        let memtable = Arc::clone(&self.view().active);
        memtable.project_or_new(&batch.project);
        let now_ms = self.clock.now_ms();
        memtable.count(0, now_ms.div_euclid(HOUR_MS), now_ms);
    }

    /// Adds a durable batch; `dropped[i]` tells that profile i was a duplicate. Only the writer calls it.
    pub(super) fn apply(&self, prepared: &mut Prepared, dropped: &[bool]) {
        let now_ms = self.clock.now_ms();
        let Prepared { batch, identities, locations, known } = prepared;
        let mut stored: Vec<&ProfileDef> = batch
            .profiles
            .iter()
            .zip(dropped)
            .filter_map(|(profile, &dropped)| (!dropped).then_some(profile))
            .collect();
        if stored.is_empty() {
            return;
        }
        stored.sort_by(|a, b| a.labels.service.cmp(&b.labels.service));
        let project = self.project_or_new(&batch.project);
        let memtable = Arc::clone(&self.view().active);
        let rows = memtable.project_or_new(&batch.project);
        let series = learn(&project, batch, identities, locations, &stored);
        let sets = batch.attribute_sets.iter().map(|set| set.as_slice().into()).collect();
        let mut arrival = Arrival {
            batch,
            project: &project,
            identities,
            locations,
            known,
            sets,
            nodes: Places::new(batch.stacks.len()),
        };
        for (profile, series) in stored.into_iter().zip(series) {
            let hour = profile.samples.iter().map(|sample| sample.time_ms).min();
            let hour = hour.unwrap_or(profile.time_ms).min(profile.time_ms).div_euclid(HOUR_MS);
            memtable.count(arrival.add(profile, series, &rows), hour, now_ms);
            let samples = profile.samples.len() as u64;
            self.counters.samples_stored.fetch_add(samples, Ordering::Relaxed);
            self.counters.profiles_stored.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Learns what is new in a batch: its locations, whose ids are filled in, and the series of its profiles.
/// What is all known is read, beside queries and other readers.
fn learn(
    project: &Project,
    batch: &WriteBatch,
    identities: &BatchIdentities,
    locations: &mut [u32],
    stored: &[&ProfileDef],
) -> Vec<u32> {
    if !locations.contains(&UNKNOWN) {
        let symbols = project.symbols();
        let known = stored.iter().map(|profile| symbols.known_series(profile));
        if let Some(series) = known.collect() {
            return series;
        }
    }
    let mut symbols = project.symbols_mut();
    symbols.learn(batch, identities, locations);
    stored.iter().map(|profile| symbols.learn_series(profile)).collect()
}

/// A batch on its way into the memtable.
struct Arrival<'a> {
    batch: &'a WriteBatch,
    project: &'a Project,
    identities: &'a BatchIdentities,
    /// Ids of the batch's locations.
    locations: &'a [u32],
    known: &'a [KnownStack],
    sets: Vec<Arc<[Attribute]>>,
    /// Node of each stack of the batch.
    nodes: Places,
}

impl Arrival<'_> {
    fn add(&mut self, profile: &ProfileDef, series_id: u32, rows: &ProjectRows) -> u64 {
        let (service, series) = {
            let symbols = self.project.symbols();
            let series = Arc::clone(&symbols.series[series_id as usize]);
            (Arc::clone(&symbols.services[series.service as usize]), series)
        };
        let hour = profile.time_ms.div_euclid(HOUR_MS);
        let host = Arc::clone(&profile.labels.host);
        let end_ms = profile.time_ms + profile.duration_ms;
        let key = (hour, series.type_id, host);
        rows.reports().entry(key).or_default().add(profile.time_ms, end_ms);
        self.nodes.turn_to(Some(series.service));
        let (mut ids, mut bytes) = (Vec::new(), Vec::new());
        let mut trie = None;
        for stack in profile.samples.iter().map(|sample| sample.stack as usize) {
            if self.nodes.of.get(stack) == Some(&UNKNOWN) {
                let frames = &self.batch.stacks[stack];
                ids.clear();
                ids.extend(frames.iter().map(|&at| self.locations[at as usize]));
                let hash = stack_hash(frames, &self.identities.locations, &mut bytes);
                let trie = trie.get_or_insert_with(|| service.trie_mut());
                self.nodes.set(stack, trie.intern(hash, &ids));
            }
        }
        drop(trie);
        let shard = rows.shard_or_new(series.service);
        let mut shard = write_shard(&shard);
        let columns = shard.entry(series_id).or_default();
        let mut set_of = BTreeMap::new();
        let mut bytes = 0;
        for sample in &profile.samples {
            let set = *set_of.entry(sample.attributes).or_insert_with(|| {
                let (set, set_bytes) = columns.set(&self.sets[sample.attributes as usize]);
                bytes += set_bytes;
                set
            });
            let stack = sample.stack as usize;
            let node = self.nodes.of.get(stack).copied();
            let node = node.unwrap_or_else(|| self.known[stack - self.nodes.of.len()].node);
            bytes += columns.push(sample.time_ms, node, sample.value, set);
        }
        bytes
    }
}

impl Engine {
    /// Bytes of the data folder.
    pub(super) fn disk_bytes(&self) -> u64 {
        let Counters { wal_bytes, file_bytes, .. } = &*self.counters;
        wal_bytes.load(Ordering::Relaxed) + file_bytes.load(Ordering::Relaxed)
    }

    pub(super) fn stats(&self) -> crate::store::StoreStats {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let wal_bytes = count(&self.counters.wal_bytes);
        let segments: usize = self.view().segments.values().map(Vec::len).sum();
        crate::store::StoreStats {
            disk_bytes: self.disk_bytes(),
            disk_bytes_max: self.data_bytes_max,
            samples_stored: count(&self.counters.samples_stored),
            profiles_stored: count(&self.counters.profiles_stored),
            profiles_duplicate: count(&self.counters.profiles_duplicate),
            segments: segments as u64,
            hours_dropped: count(&self.counters.hours_dropped),
            hours_expired: count(&self.counters.hours_expired),
            wal_bytes,
            sections_damaged: count(&self.counters.sections_damaged),
            segments_merged: count(&self.counters.segments_merged),
            merges_failed: count(&self.counters.merges_failed),
        }
    }
}
