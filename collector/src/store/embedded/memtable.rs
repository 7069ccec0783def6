//! Acknowledged samples that no segment holds yet, queryable at once. Sharded by service: an append waits
//! only for queries of the services that it writes.

use crate::profile::{Attribute, AttributeValue, ProjectName};
use crate::query::Intervals;
use hashbrown::HashMap;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Milliseconds of an hour, the length of a segment.
pub(super) const HOUR_MS: i64 = 3_600_000;

/// Rough memory of one row in its columns.
const ROW_BYTES: u64 = 24;

/// The rows of all projects since the last freeze.
#[derive(Debug, Default)]
pub(super) struct Memtable {
    projects: RwLock<BTreeMap<ProjectName, Arc<ProjectRows>>>,
    bytes: AtomicU64,
    age: Mutex<Age>,
    /// Number of the last deletion that took its rows out, or came before them.
    clean_to: AtomicU64,
}

#[derive(Clone, Copy, Debug)]
struct Age {
    /// When the first row came, Unix milliseconds.
    since_ms: i64,
    /// Earliest hour of a row or profile.
    first_hour: i64,
}

impl Default for Age {
    fn default() -> Self {
        Self { since_ms: i64::MAX, first_hour: i64::MAX }
    }
}

/// Reported time: by the hour in which profiles start, by type and host.
pub(super) type Reports = BTreeMap<(i64, u32, Arc<str>), Intervals>;

/// The rows of one project.
#[derive(Debug, Default)]
pub(super) struct ProjectRows {
    shards: RwLock<BTreeMap<u32, Arc<RwLock<Shard>>>>,
    reports: Mutex<Reports>,
}

/// The rows of one service, by series.
pub(super) type Shard = BTreeMap<u32, Rows>;

/// The rows of one series, as columns in order of arrival.
#[derive(Debug)]
pub(super) struct Rows {
    pub(super) times: Vec<i64>,
    pub(super) nodes: Vec<u32>,
    pub(super) values: Vec<i64>,
    pub(super) sets: Vec<u32>,
    /// Distinct attribute sets; `sets` are its indices.
    pub(super) dictionary: Vec<Arc<[Attribute]>>,
    set_ids: HashMap<Arc<[Attribute]>, u32>,
    pub(super) first_ms: i64,
    pub(super) last_ms: i64,
}

impl Default for Rows {
    fn default() -> Self {
        Self {
            times: vec![],
            nodes: vec![],
            values: vec![],
            sets: vec![],
            dictionary: vec![],
            set_ids: HashMap::new(),
            first_ms: i64::MAX,
            last_ms: i64::MIN,
        }
    }
}

impl Memtable {
    /// Memory of the rows, roughly, bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// No rows yet; deletions up to a number came before them.
    pub(super) fn clean_to_from(clean_to: u64) -> Self {
        Self { clean_to: AtomicU64::new(clean_to), ..Self::default() }
    }

    /// The number of the last deletion that hides nothing of it.
    pub(super) fn clean_to(&self) -> u64 {
        self.clean_to.load(Ordering::Acquire)
    }

    pub(super) fn set_clean_to(&self, number: u64) {
        self.clean_to.store(number, Ordering::Release);
    }

    /// Rows went.
    pub(super) fn uncount(&self, rows: u64) {
        self.bytes.fetch_sub(rows * ROW_BYTES, Ordering::Relaxed);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.projects.read().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    pub(super) fn project(&self, name: &ProjectName) -> Option<Arc<ProjectRows>> {
        self.projects.read().unwrap_or_else(PoisonError::into_inner).get(name).cloned()
    }

    pub(super) fn project_or_new(&self, name: &ProjectName) -> Arc<ProjectRows> {
        let mut projects = self.projects.write().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(projects.entry(name.clone()).or_default())
    }

    pub(super) fn project_names(&self) -> Vec<ProjectName> {
        self.projects.read().unwrap_or_else(PoisonError::into_inner).keys().cloned().collect()
    }

    /// Counts rows that came: their bytes, their earliest hour, and when.
    pub(super) fn count(&self, bytes: u64, hour: i64, now_ms: i64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        let mut age = self.age.lock().unwrap_or_else(PoisonError::into_inner);
        age.since_ms = age.since_ms.min(now_ms);
        age.first_hour = age.first_hour.min(hour);
    }

    /// When its first row came, Unix milliseconds, and the earliest hour of its rows.
    pub(super) fn age(&self) -> (i64, i64) {
        let age = self.age.lock().unwrap_or_else(PoisonError::into_inner);
        (age.since_ms, age.first_hour)
    }
}

impl ProjectRows {
    /// All shards, by number of the service.
    pub(super) fn shards(&self) -> Vec<(u32, Arc<RwLock<Shard>>)> {
        let shards = self.shards.read().unwrap_or_else(PoisonError::into_inner);
        shards.iter().map(|(&service, shard)| (service, Arc::clone(shard))).collect()
    }

    pub(super) fn shard_or_new(&self, service: u32) -> Arc<RwLock<Shard>> {
        let mut shards = self.shards.write().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(shards.entry(service).or_default())
    }

    pub(super) fn reports(&self) -> MutexGuard<'_, Reports> {
        self.reports.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(super) fn read_shard(shard: &RwLock<Shard>) -> RwLockReadGuard<'_, Shard> {
    shard.read().unwrap_or_else(PoisonError::into_inner)
}

pub(super) fn write_shard(shard: &RwLock<Shard>) -> RwLockWriteGuard<'_, Shard> {
    shard.write().unwrap_or_else(PoisonError::into_inner)
}

impl Rows {
    /// The index of an attribute set, and the memory that it took.
    pub(super) fn set(&mut self, set: &Arc<[Attribute]>) -> (u32, u64) {
        if let Some(&id) = self.set_ids.get(set) {
            return (id, 0);
        }
        let id = u32::try_from(self.dictionary.len()).unwrap_or(u32::MAX);
        self.dictionary.push(Arc::clone(set));
        self.set_ids.insert(Arc::clone(set), id);
        let text = |attribute: &Attribute| match &attribute.value {
            AttributeValue::Text(text) => text.len(),
            AttributeValue::Int(_) | AttributeValue::Bool(_) => 0,
        };
        let texts: usize = set.iter().map(|attribute| text(attribute) + attribute.key.len()).sum();
        // 64 bytes hold the entries of a set and each of its attributes.
        (id, 64 * (set.len() as u64 + 1) + texts as u64)
    }

    /// Adds a row; answers its memory.
    pub(super) fn push(&mut self, time_ms: i64, node: u32, value: i64, set: u32) -> u64 {
        self.times.push(time_ms);
        self.nodes.push(node);
        self.values.push(value);
        self.sets.push(set);
        self.first_ms = self.first_ms.min(time_ms);
        self.last_ms = self.last_ms.max(time_ms);
        ROW_BYTES
    }
}
