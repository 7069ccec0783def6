//! The naive engine: everything in memory, every answer by walking every sample. It is the oracle that the
//! embedded engine is held against, and a store for tests of other modules. It keeps nothing on disk, knows
//! no retention and remembers ids for ever.

mod locks;
mod names;
mod scan;

use super::{
    Ack, Deletion, DeletionId, FileAddress, FileAddresses, MakeBatch, ProfileStore, StoreError,
    StoreFuture, StoreStats,
};
use crate::profile::{
    Attribute, NewNames, ProfileId, ProjectName, SeriesLabels, ValueType, WriteBatch,
    identity::BatchIdentities,
};
use crate::query::{
    Buckets, Coverage, FlameTree, FunctionRow, LabelName, LabelValue, Locks, LocksQuery,
    MergeQuery, ProfileTypeRow, Selection, ServiceRow, Timeline, TimelineQuery, Told,
};
use hashbrown::{HashMap, HashSet};
use names::Names;
use std::collections::BTreeMap;
use std::future::ready;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The engine.
#[derive(Debug, Default)]
pub struct MemoryStore {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    projects: BTreeMap<ProjectName, Project>,
    seen: HashSet<(ProjectName, ProfileId)>,
    deletions: HashSet<DeletionId>,
    stats: StoreStats,
}

#[derive(Debug, Default)]
struct Project {
    names: Names,
    profiles: Vec<Profile>,
}

/// One stored profile.
#[derive(Debug)]
struct Profile {
    labels: SeriesLabels,
    sample_type: ValueType,
    /// Nanoseconds, 0 if not said.
    period_ns: u64,
    start_ms: i64,
    /// The time that its host reported by it; empty where that was deleted.
    reported: (i64, i64),
    samples: Vec<Sample>,
}

#[derive(Debug)]
struct Sample {
    time_ms: i64,
    value: i64,
    attributes: Arc<[Attribute]>,
    /// Identities of locations, leaf first.
    stack: Arc<[u128]>,
    /// It is in no answer. Its names stay known: other samples have them.
    is_deleted: bool,
}

impl MemoryStore {
    /// An empty store.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell<T: Default>(
        &self,
        project: &ProjectName,
        question: impl FnOnce(&Project) -> Result<T, StoreError>,
    ) -> Result<Told<T>, StoreError> {
        self.ask(project, question).map(Told::whole)
    }

    fn ask<T: Default>(
        &self,
        project: &ProjectName,
        question: impl FnOnce(&Project) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        self.lock().projects.get(project).map_or_else(|| Ok(T::default()), question)
    }
}

impl Inner {
    fn append(&mut self, batch: &WriteBatch) -> Result<Ack, StoreError> {
        batch.check()?;
        let mut ack = Ack::default();
        let identities = BatchIdentities::of(batch);
        let stacks: Vec<Arc<[u128]>> = batch
            .stacks
            .iter()
            .map(|stack| stack.iter().map(|&at| identities.locations[at as usize]).collect())
            .collect();
        let attributes: Vec<Arc<[Attribute]>> =
            batch.attribute_sets.iter().map(|set| set.as_slice().into()).collect();
        let project = self.projects.entry(batch.project.clone()).or_default();
        for (at, profile) in batch.profiles.iter().enumerate() {
            let is_new = profile.id == ProfileId::None
                || self.seen.insert((batch.project.clone(), profile.id));
            if !is_new {
                ack.repeated.push(at);
                continue;
            }
            ack.stored += 1;
            self.stats.samples_stored += profile.samples.len() as u64;
            project.profiles.push(Profile {
                labels: profile.labels.clone(),
                sample_type: profile.sample_type.clone(),
                period_ns: profile.period_ns(),
                start_ms: profile.time_ms,
                reported: (profile.time_ms, profile.time_ms + profile.duration_ms),
                samples: profile
                    .samples
                    .iter()
                    .map(|sample| Sample {
                        time_ms: sample.time_ms,
                        value: sample.value,
                        attributes: Arc::clone(&attributes[sample.attributes as usize]),
                        stack: Arc::clone(&stacks[sample.stack as usize]),
                        is_deleted: false,
                    })
                    .collect(),
            });
        }
        if ack.stored > 0 {
            project.names.learn(batch, &identities);
        }
        self.stats.profiles_stored += ack.stored;
        self.stats.profiles_duplicate += ack.duplicates();
        Ok(ack)
    }

    fn delete(&mut self, deletion: &Deletion) {
        let Deletion { id, project, service, before_ms } = deletion;
        if !self.deletions.insert(*id) {
            return;
        }
        let profiles = self.projects.get_mut(project).into_iter();
        for profile in profiles.flat_map(|project| &mut project.profiles) {
            if service.as_ref().is_some_and(|name| *name != profile.labels.service) {
                continue;
            }
            let samples = profile.samples.iter_mut();
            samples
                .filter(|sample| sample.time_ms < *before_ms)
                .for_each(|sample| sample.is_deleted = true);
            if service.is_none() {
                let (start_ms, end_ms) = profile.reported;
                profile.reported = (start_ms.max(*before_ms), end_ms.max(*before_ms));
            }
        }
    }
}

impl ProfileStore for MemoryStore {
    fn append_made(&self, make: MakeBatch) -> StoreFuture<'_, Option<Ack>> {
        Box::pin(ready(make().map(|batch| self.lock().append(&batch)).transpose()))
    }

    fn delete(&self, deletion: Deletion) -> StoreFuture<'_, ()> {
        self.lock().delete(&deletion);
        Box::pin(ready(Ok(())))
    }

    fn erase(&self, _id: DeletionId) -> StoreFuture<'_, ()> {
        Box::pin(ready(Ok(())))
    }

    fn learn(&self, names: NewNames) -> StoreFuture<'_, ()> {
        let mut inner = self.lock();
        let project = inner.projects.entry(names.batch().project.clone()).or_default();
        project.names.learn(names.batch(), &names.identities());
        Box::pin(ready(Ok(())))
    }

    fn unnamed(&self, file: FileAddresses) -> StoreFuture<'_, Vec<FileAddress>> {
        Box::pin(ready(self.ask(&file.project, |project| Ok(project.names.unnamed_of(&file)))))
    }

    fn merge(&self, query: MergeQuery) -> StoreFuture<'_, FlameTree> {
        let inner = self.lock();
        let none = Project::default();
        let project = inner.projects.get(&query.selection.project).unwrap_or(&none);
        Box::pin(ready(project.merge(&query)))
    }

    fn functions(
        &self,
        selection: Selection,
        limit: usize,
    ) -> StoreFuture<'_, Told<Vec<FunctionRow>>> {
        let answer = self.tell(&selection.project, |project| project.functions(&selection, limit));
        Box::pin(ready(answer))
    }

    fn locks(&self, query: LocksQuery) -> StoreFuture<'_, Locks> {
        let answer = self.ask(&query.selection.project, |project| project.locks(&query));
        Box::pin(ready(answer))
    }

    fn timeline(&self, query: TimelineQuery) -> StoreFuture<'_, Told<Timeline>> {
        let inner = self.lock();
        let none = Project::default();
        let project = inner.projects.get(&query.selection.project).unwrap_or(&none);
        Box::pin(ready(project.timeline(&query).map(Told::whole)))
    }

    fn services(
        &self,
        selection: Selection,
        trend_buckets: usize,
    ) -> StoreFuture<'_, Told<Vec<ServiceRow>>> {
        let answer = self.tell(&selection.project, |project| {
            let buckets = Buckets::by_count(selection.range, trend_buckets)?;
            project.services(&selection, buckets)
        });
        Box::pin(ready(answer))
    }

    fn label_names(&self, selection: Selection) -> StoreFuture<'_, Told<Vec<LabelName>>> {
        let answer = self.tell(&selection.project, |project| Ok(project.label_names(&selection)));
        Box::pin(ready(answer))
    }

    fn label_values(
        &self,
        selection: Selection,
        label: String,
        prefix: String,
        limit: usize,
    ) -> StoreFuture<'_, Told<Vec<LabelValue>>> {
        let answer = self.tell(&selection.project, |project| {
            Ok(project.label_values(&selection, &label, &prefix, limit))
        });
        Box::pin(ready(answer))
    }

    fn profile_types(&self, project: ProjectName) -> StoreFuture<'_, Vec<ProfileTypeRow>> {
        Box::pin(ready(self.ask(&project, |project| Ok(project.types()))))
    }

    fn coverage(&self, selection: Selection) -> StoreFuture<'_, Told<Coverage>> {
        let answer = self.tell(&selection.project, |project| Ok(project.coverage(&selection)));
        Box::pin(ready(answer))
    }

    fn stats(&self) -> StoreFuture<'_, StoreStats> {
        Box::pin(ready(Ok(self.lock().stats)))
    }

    fn flush(&self) -> StoreFuture<'_, ()> {
        Box::pin(ready(Ok(())))
    }
}

impl Project {
    fn types(&self) -> Vec<ProfileTypeRow> {
        let mut newest: HashMap<&ValueType, (i64, u64)> = HashMap::new();
        for profile in &self.profiles {
            let candidate = (profile.start_ms, profile.period_ns);
            let best = newest.entry(&profile.sample_type).or_insert(candidate);
            *best = candidate.max(*best);
        }
        super::type_rows(newest.into_iter().map(|(kind, (_, period_ns))| (kind.clone(), period_ns)))
    }
}
