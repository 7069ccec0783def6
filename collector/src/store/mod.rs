//! Keeps profiles: the boundary that every engine implements, and the embedded engine. Ids of an engine
//! never leak out of it.

#[cfg(test)]
mod conformance;
pub mod embedded;
pub mod memory;
mod retention;
#[cfg(test)]
mod sample_data;
#[cfg(test)]
pub(crate) mod test_answers;

pub use retention::{Retention, RetentionError, TypeRetention};

use crate::limits;
use crate::profile::{BatchError, NewNames, ProjectName, ValueType, WriteBatch};
use crate::query::{
    Coverage, FlameTree, FunctionRow, LabelName, LabelValue, Locks, LocksQuery, MergeQuery,
    Overflow, ProfileTypeRow, Selection, ServiceRow, Timeline, TimelineError, TimelineQuery, Told,
};
use futures_util::future::BoxFuture;
use proto::{BuildId, FrameKind};
use std::collections::BinaryHeap;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher as _, Hasher as _};
use std::sync::Arc;

/// Which deletion: given by whoever asks for it, random.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeletionId(pub u128);

impl DeletionId {
    /// An id that no other deletion has, also not one of a database that was restored from an old copy.
    pub(crate) fn random() -> Self {
        let half = || u128::from(random());
        Self(half() << 64 | half())
    }
}

impl std::fmt::Display for DeletionId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// A text that is not 32 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not an id")]
pub struct NotAnId;

impl std::str::FromStr for DeletionId {
    type Err = NotAnId;

    fn from_str(text: &str) -> Result<Self, NotAnId> {
        // The library's own function takes a sign and fewer digits too.
        let is_id = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let number = u128::from_str_radix(text, 16).ok().filter(|_| is_id);
        number.map(Self).ok_or(NotAnId)
    }
}

/// A random number.
fn random() -> u64 {
    // The standard library seeds its hashers with random numbers of the system.
    RandomState::new().build_hasher().finish()
}

/// Which addresses of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileAddresses {
    /// Whose.
    pub project: ProjectName,
    /// The file.
    pub build_id: BuildId,
    /// What comes behind this address and kind; `None` is from the first on.
    pub after: Option<(u64, FrameKind)>,
    /// How many at most.
    pub limit: usize,
}

/// An address at which samples were taken.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FileAddress {
    /// ELF address.
    pub address: u64,
    /// Who runs the code.
    pub kind: FrameKind,
    /// The file's name, without the folders that it lay in: one file may lie in several.
    pub module: Arc<str>,
}

/// The smallest of them, `limit` and [`limits::UNNAMED_MAX`] at most, in order.
fn first_of<T: Ord>(found: impl Iterator<Item = T>, limit: usize) -> Vec<T> {
    let limit = limit.min(limits::UNNAMED_MAX);
    let mut first = BinaryHeap::new();
    for one in found {
        first.push(one);
        if first.len() > limit {
            first.pop();
        }
    }
    first.into_sorted_vec()
}

/// What is to be deleted: the samples before a time that are stored when it is asked for. What arrives later is new.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deletion {
    /// Its id.
    pub id: DeletionId,
    /// Of which project.
    pub project: ProjectName,
    /// Of which service; `None`: of all, and the reported time of hosts too.
    pub service: Option<Arc<str>>,
    /// The first time that stays, Unix milliseconds.
    pub before_ms: i64,
}

/// What happened to a batch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ack {
    /// Profiles stored now.
    pub stored: u64,
    /// Positions in the batch of profiles that were stored before (same id): acknowledged, not stored
    /// twice.
    pub repeated: Vec<usize>,
}

impl Ack {
    /// Profiles that were stored before.
    #[must_use]
    pub fn duplicates(&self) -> u64 {
        self.repeated.len() as u64
    }
}

/// Why the store refused or failed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Nothing of the batch was stored; the sender may try again after a pause.
    #[error("the store is busy: {0}")]
    Busy(String),
    /// The batch breaks a rule of the domain model; nothing of it was stored and trying again is no use.
    #[error("the batch is not valid: {0}")]
    Invalid(#[from] BatchError),
    /// The query asks for more than a named limit.
    #[error("{what} exceeds the limit of {max}")]
    Limit {
        /// Which limit.
        what: &'static str,
        /// Its value.
        max: u64,
    },
    /// A file operation failed; nothing of the batch was acknowledged.
    #[error("{what}: {source}")]
    Io {
        /// What was being done, with the path.
        what: String,
        /// The cause.
        source: std::io::Error,
    },
    /// A stored file is damaged.
    #[error("damaged file {path}: {detail}")]
    Damaged {
        /// Which file.
        path: String,
        /// What is wrong.
        detail: String,
    },
    /// Whoever asked does not wait for the answer any more.
    #[error("nobody waits for the answer")]
    Abandoned,
    /// A sum left the range of 64 bits.
    #[error("the total of {0} exceeds 64 bits")]
    Overflow(&'static str),
}

impl StoreError {
    /// An I/O error with what was being done; a full disk is a reason to try again later.
    fn io(what: &str, path: &std::path::Path, source: std::io::Error) -> Self {
        use std::io::ErrorKind;
        match source.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
                Self::Busy(format!("{what} {}: {source}", path.display()))
            }
            _ => Self::Io { what: format!("{what} {}", path.display()), source },
        }
    }
}

impl From<Overflow> for StoreError {
    fn from(Overflow(what): Overflow) -> Self {
        Self::Overflow(what)
    }
}

impl From<TimelineError> for StoreError {
    fn from(error: TimelineError) -> Self {
        let max = |value: usize| value as u64;
        match error {
            TimelineError::Buckets => {
                Self::Limit { what: "buckets", max: max(limits::TIMELINE_BUCKETS_MAX) }
            }
            TimelineError::Cells => {
                Self::Limit { what: "cells of a time line", max: max(limits::TIMELINE_CELLS_MAX) }
            }
            TimelineError::Overflow(overflow) => overflow.into(),
        }
    }
}

/// Makes a batch, which may take long; nothing if there is none to store.
pub type MakeBatch = Box<dyn FnOnce() -> Option<WriteBatch> + Send>;

/// The answer of a store operation.
pub type StoreFuture<'a, T> = BoxFuture<'a, Result<T, StoreError>>;

/// The engine boundary. Every answer is computed from data whose append was acknowledged before the
/// call (and possibly later data).
pub trait ProfileStore: Send + Sync {
    /// Makes a batch on a thread that may block, and stores it. Resolves only when it is durable. A profile with an id seen
    /// before is not stored twice.
    fn append_made(&self, make: MakeBatch) -> StoreFuture<'_, Option<Ack>>;
    /// The same with a batch that is there.
    fn append(&self, batch: WriteBatch) -> StoreFuture<'_, Ack> {
        let appended = self.append_made(Box::new(|| Some(batch)));
        Box::pin(async { Ok(appended.await?.unwrap_or_default()) })
    }
    /// Resolves when no later answer holds a sample of the deletion, also after a crash. The same id twice is one
    /// deletion.
    fn delete(&self, deletion: Deletion) -> StoreFuture<'_, ()>;
    /// Resolves when the samples of a deletion, and all sums over them, are gone from the disk.
    fn erase(&self, id: DeletionId) -> StoreFuture<'_, ()>;
    /// Resolves when the names are durable and in every later answer, also of what was stored before: a symbol epoch.
    /// Values stay as they are. Addresses that no sample has met yet are learnt too, and take places of the limit of
    /// locations: only names of [`Self::unnamed`] addresses should be given.
    fn learn(&self, names: NewNames) -> StoreFuture<'_, ()>;
    /// Addresses of a file that no debug file has named, by address, [`limits::UNNAMED_MAX`] at most. One that its file has
    /// no name for stays among them.
    fn unnamed(&self, file: FileAddresses) -> StoreFuture<'_, Vec<FileAddress>>;
    /// Merges a selection into a tree of functions.
    fn merge(&self, query: MergeQuery) -> StoreFuture<'_, FlameTree>;
    /// Self and total by function, largest self first.
    fn functions(
        &self,
        selection: Selection,
        limit: usize,
    ) -> StoreFuture<'_, Told<Vec<FunctionRow>>>;
    /// Lock waits by lock, with who waits and who holds.
    fn locks(&self, query: LocksQuery) -> StoreFuture<'_, Locks>;
    /// Sums per step, by label.
    fn timeline(&self, query: TimelineQuery) -> StoreFuture<'_, Told<Timeline>>;
    /// One row per service.
    fn services(
        &self,
        selection: Selection,
        trend_buckets: usize,
    ) -> StoreFuture<'_, Told<Vec<ServiceRow>>>;
    /// Label names with the number of distinct values.
    fn label_names(&self, selection: Selection) -> StoreFuture<'_, Told<Vec<LabelName>>>;
    /// Values of one label that begin with `prefix`, with sample counts, most first.
    fn label_values(
        &self,
        selection: Selection,
        label: String,
        prefix: String,
        limit: usize,
    ) -> StoreFuture<'_, Told<Vec<LabelValue>>>;
    /// Profile types that exist in the project.
    fn profile_types(&self, project: ProjectName) -> StoreFuture<'_, Vec<ProfileTypeRow>>;
    /// How much of the range hosts reported: the denominator of cores.
    fn coverage(&self, selection: Selection) -> StoreFuture<'_, Told<Coverage>>;
    /// Figures for `/metrics` and the page.
    fn stats(&self) -> StoreFuture<'_, StoreStats>;
    /// Writes everything out; used at shutdown and by tests.
    fn flush(&self) -> StoreFuture<'_, ()>;
}

/// Figures of a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreStats {
    /// Bytes on disk.
    pub disk_bytes: u64,
    /// Limit of bytes on disk.
    pub disk_bytes_max: u64,
    /// Samples stored since start.
    pub samples_stored: u64,
    /// Profiles stored since start.
    pub profiles_stored: u64,
    /// Profiles that were duplicates since start.
    pub profiles_duplicate: u64,
    /// Segments on disk.
    pub segments: u64,
    /// Hours dropped because of the disk limit, since start.
    pub hours_dropped: u64,
    /// Hours dropped because they are older than is kept, since start.
    pub hours_expired: u64,
    /// Bytes in the WAL.
    pub wal_bytes: u64,
    /// Damaged sections that queries had to leave out, since start.
    pub sections_damaged: u64,
    /// Segments that were merged into larger ones, since start.
    pub segments_merged: u64,
    /// Merges of segments that failed, since start: the segments stay as they are.
    pub merges_failed: u64,
}

/// The rows of [`ProfileStore::profile_types`] from distinct types and their newest period. The plain name is
/// the type that it means in a question; the same name in other units is told apart by these.
fn type_rows(types: impl Iterator<Item = (ValueType, u64)>) -> Vec<ProfileTypeRow> {
    let mut types: Vec<(ValueType, u64)> = types.collect();
    types.sort_by(|(a, _), (b, _)| (&a.kind, a.first_unit()).cmp(&(&b.kind, b.first_unit())));
    let row = |at: usize| {
        let (known, period_ns) = &types[at];
        let is_first = at == 0 || types[at - 1].0.kind != known.kind;
        ProfileTypeRow {
            id: if is_first {
                known.kind.to_string()
            } else {
                format!("{}:{}", known.kind, known.unit)
            },
            unit: known.unit.to_string(),
            period_ns: *period_ns,
        }
    };
    (0..types.len()).map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_read_as_it_is_written() {
        for id in [DeletionId(0), DeletionId(0xab), DeletionId(u128::MAX), DeletionId::random()] {
            assert_eq!(id.to_string().parse(), Ok(id));
            assert_eq!(id.to_string().to_uppercase().parse(), Ok(id));
        }
        let digits = "0".repeat(31);
        let wrong = ["", "00", "g", "\u{e4}"].map(|end| format!("{digits}{end}"));
        let signed = format!("+{digits}");
        for text in wrong.iter().map(|text| &**text).chain([&*signed, "", "1"]) {
            assert_eq!(text.parse::<DeletionId>(), Err(NotAnId), "{text}");
        }
    }
}
