//! A deletion from the request to the last byte on the disk: noted and audited first, then hidden, then answered; its
//! samples are removed in the background, one deletion after the other, also after a restart. Not responsible for how
//! samples are hidden and removed: the store does that.

use crate::ingest::receiver::now_ms;
use crate::meta::{DeletionRecord, DeletionState, Meta, MetaError};
use crate::profile::ProjectName;
use crate::store::{Deletion, DeletionId, ProfileStore, StoreError};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Mutex, Notify, watch};

/// Pause before a deletion is tried again that found the store busy.
const BUSY_PAUSE: Duration = Duration::from_secs(5);
/// Pause before one is tried again that failed: somebody has to repair something first.
const FAILED_PAUSE: Duration = Duration::from_secs(3_600);

/// Why a deletion did not come into force, or cannot be shown.
#[derive(Debug, thiserror::Error)]
pub enum DeletionError {
    /// It could not be noted or read.
    #[error(transparent)]
    Meta(#[from] MetaError),
    /// The store did not take it.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Its task ended without an answer.
    #[error("a deletion stopped: {0}")]
    Stopped(String),
}

/// Takes deletions and sees them through.
pub struct Deletions {
    meta: Meta,
    store: Arc<dyn ProfileStore>,
    /// Held from the note of a deletion until it is in force or failed.
    turn: Mutex<()>,
    wake: Notify,
}

impl std::fmt::Debug for Deletions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Deletions").field("meta", &self.meta).finish_non_exhaustive()
    }
}

impl Deletions {
    /// Nothing runs until [`Self::run`].
    #[must_use]
    pub fn new(meta: Meta, store: Arc<dyn ProfileStore>) -> Arc<Self> {
        Arc::new(Self { meta, store, turn: Mutex::default(), wake: Notify::new() })
    }

    /// Puts deletions into force that were noted before a crash and not more. Before new samples come: these are not
    /// theirs. One that the store does not take is noted as failed: nobody was told that it is in force.
    ///
    /// # Errors
    /// The notes cannot be read.
    pub async fn resume(&self) -> Result<(), DeletionError> {
        for record in self.meta.run(Meta::open_deletions).await? {
            let Err(error) = self.put_into_force(&record.deletion).await else { continue };
            let id = record.deletion.id;
            tracing::error!(%error, %id, "a deletion of before the start is not in force");
            if let Err(error) = self.finish(record.deletion, Err(error.to_string())).await {
                tracing::error!(%error, %id, "that cannot be noted");
            }
        }
        Ok(())
    }

    /// Deletes what is stored of a project, or a service of it, before a time. When it answers, the deletion is noted,
    /// audited and in force.
    ///
    /// # Errors
    /// It could not be noted, or the store did not take it: then it is noted as failed.
    pub async fn request(
        self: &Arc<Self>,
        (project, service): (ProjectName, Option<Arc<str>>),
        before_ms: i64,
        actor: String,
    ) -> Result<DeletionId, DeletionError> {
        let this = Arc::clone(self);
        let deletion = Deletion { id: DeletionId::random(), project, service, before_ms };
        // A client that hangs up must not leave half of it behind.
        let task = tokio::spawn(async move { this.take(deletion, actor).await });
        task.await.unwrap_or_else(|error| Err(DeletionError::Stopped(error.to_string())))
    }

    async fn take(&self, deletion: Deletion, actor: String) -> Result<DeletionId, DeletionError> {
        let _turn = self.turn.lock().await;
        let noted = deletion.clone();
        self.meta.run(move |meta| meta.add_deletion(&noted, &actor, now_ms())).await?;
        let id = deletion.id;
        let Err(error) = self.put_into_force(&deletion).await else {
            self.wake.notify_one();
            return Ok(id);
        };
        self.finish(deletion, Err(error.to_string())).await?;
        Err(error.into())
    }

    /// An error if the store does not take it. If that it did cannot be noted, it stays queued: whoever removes its
    /// samples notes it first.
    async fn put_into_force(&self, deletion: &Deletion) -> Result<(), StoreError> {
        match self.hide(deletion).await {
            Ok(()) => Ok(()),
            Err(DeletionError::Store(error)) => Err(error),
            Err(error) => {
                tracing::warn!(%error, id = %deletion.id, "a deletion is in force, and that is noted later");
                Ok(())
            }
        }
    }

    async fn hide(&self, deletion: &Deletion) -> Result<(), DeletionError> {
        self.store.delete(deletion.clone()).await?;
        let id = deletion.id;
        Ok(self.meta.run(move |meta| meta.deletion_hidden(id, now_ms())).await?)
    }

    async fn finish(
        &self,
        deletion: Deletion,
        result: Result<(), String>,
    ) -> Result<(), DeletionError> {
        let finish = move |meta: &Meta| meta.deletion_finished(&deletion, &result, now_ms());
        Ok(self.meta.run(finish).await?)
    }

    /// What became of a deletion.
    ///
    /// # Errors
    /// The notes cannot be read.
    pub async fn record(
        &self,
        project: ProjectName,
        id: DeletionId,
    ) -> Result<Option<DeletionRecord>, DeletionError> {
        Ok(self.meta.run(move |meta| meta.deletion(&project, id)).await?)
    }

    /// Removes the samples of deletions from the disk until told to stop.
    pub async fn run(self: Arc<Self>, mut stop: watch::Receiver<bool>) {
        tokio::select! {
            () = self.work() => {}
            _ = stop.wait_for(|&stop| stop) => {}
        }
    }

    async fn work(&self) {
        // At the start all are tried, later those that failed only now and then.
        let mut with_failed = true;
        loop {
            let pause = match self.erase_all(with_failed).await {
                Ok(()) => FAILED_PAUSE,
                Err(error) => {
                    tracing::warn!(%error, "deletions wait");
                    BUSY_PAUSE
                }
            };
            let woken = tokio::time::timeout(pause, self.wake.notified()).await;
            with_failed = woken.is_err() && pause == FAILED_PAUSE;
        }
    }

    /// Sees all through that are not done; an error is one that time alone may mend.
    async fn erase_all(&self, with_failed: bool) -> Result<(), DeletionError> {
        for record in self.meta.run(Meta::open_deletions).await? {
            // One that was just asked for is in force, or failed, before it is looked at.
            drop(self.turn.lock().await);
            let project = record.deletion.project.clone();
            let Some(record) = self.record(project, record.deletion.id).await? else { continue };
            let is_failed = record.state == DeletionState::Failed;
            if is_failed && (!with_failed || record.hidden_ms.is_none()) {
                continue;
            }
            self.erase(record.deletion).await?;
        }
        Ok(())
    }

    async fn erase(&self, deletion: Deletion) -> Result<(), DeletionError> {
        let id = deletion.id;
        self.hide(&deletion).await?;
        self.meta.run(move |meta| meta.deletion_running(id)).await?;
        let result = match self.store.erase(id).await {
            Ok(()) => Ok(()),
            Err(error @ (StoreError::Busy(_) | StoreError::Abandoned)) => return Err(error.into()),
            Err(error) => {
                tracing::error!(%error, %id, "what was deleted stays hidden on the disk");
                Err(error.to_string())
            }
        };
        self.finish(deletion, result).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::meta::FILE_NAME;
    use crate::store::memory::MemoryStore;

    #[tokio::test(flavor = "multi_thread")]
    async fn what_is_in_force_is_seen_through_though_that_could_not_be_noted() {
        let dir = tempfile::tempdir().unwrap();
        let deletions =
            Deletions::new(Meta::open(dir.path()).unwrap(), Arc::new(MemoryStore::new()));
        let database = rusqlite::Connection::open(dir.path().join(FILE_NAME)).unwrap();
        let refuse = "CREATE TRIGGER refused BEFORE UPDATE OF hidden_ms ON deletions \
                      BEGIN SELECT RAISE(ABORT, 'the disk is full'); END";
        database.execute_batch(refuse).unwrap();
        let project = ProjectName("default".into());
        let requested = deletions.request((project.clone(), None), 5, "somebody".to_owned()).await;
        let id = requested.unwrap();
        let record = async || deletions.record(project.clone(), id).await.unwrap().unwrap();
        for _ in 0..2 {
            let DeletionRecord { state, hidden_ms, error, .. } = record().await;
            assert_eq!((state, hidden_ms, error), (DeletionState::Queued, None, None));
            // As after a restart.
            deletions.resume().await.unwrap();
        }
        database.execute_batch("DROP TRIGGER refused").unwrap();
        let (stop, stopped) = watch::channel(false);
        let worker = tokio::spawn(Arc::clone(&deletions).run(stopped));
        let mut rounds = 0..200;
        while record().await.state != DeletionState::Done {
            assert!(rounds.next().is_some(), "{:?}", record().await);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert!(record().await.hidden_ms.is_some());
        stop.send(true).unwrap();
        worker.await.unwrap();
    }
}
