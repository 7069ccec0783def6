//! Deletions and their states, each change together with its line in the audit.

use super::{Meta, MetaError};
use crate::profile::ProjectName;
use crate::store::{Deletion, DeletionId, NotAnId};
use rusqlite::{OptionalExtension as _, Row, Transaction, params};
use std::sync::Arc;

/// How far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeletionState {
    /// It is noted; its samples wait to be removed from the disk.
    Queued,
    /// They are being removed.
    Running,
    /// Nothing of them is left.
    Done,
    /// They could not be removed.
    Failed,
}

impl DeletionState {
    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Running => "running",
            Self::Done => "done",
            Self::Failed => "failed",
        }
    }

    fn of(name: &str) -> Option<Self> {
        [Self::Queued, Self::Running, Self::Done, Self::Failed]
            .into_iter()
            .find(|state| state.name() == name)
    }
}

/// A deletion, and what became of it. Times are Unix milliseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeletionRecord {
    /// What is deleted.
    pub deletion: Deletion,
    /// How far it is.
    pub state: DeletionState,
    /// When it was asked for.
    pub requested_ms: i64,
    /// Since when no answer holds its samples; `None`: it never came into force, or that could not be noted yet.
    pub hidden_ms: Option<i64>,
    /// When it was done, or failed.
    pub finished_ms: Option<i64>,
    /// Why it failed.
    pub error: Option<String>,
}

const COLUMNS: &str =
    "id, project, service, before_ms, state, requested_ms, hidden_ms, finished_ms, error";

impl Meta {
    /// Notes that somebody asked for a deletion.
    pub(crate) fn add_deletion(
        &self,
        deletion: &Deletion,
        actor: &str,
        now_ms: i64,
    ) -> Result<(), MetaError> {
        self.change("noting a deletion", |transaction| {
            let Deletion { id, project, service, before_ms } = deletion;
            transaction.execute(
                "INSERT INTO deletions (id, project, service, before_ms, state, requested_ms) \
                 VALUES (?1, ?2, ?3, ?4, 'queued', ?5)",
                params![id.to_string(), &*project.0, service.as_deref(), before_ms, now_ms],
            )?;
            audit(transaction, now_ms, (actor, "deletion.requested"), deletion, "")
        })
    }

    /// Notes that no answer holds a deletion's samples any more.
    pub(crate) fn deletion_hidden(&self, id: DeletionId, now_ms: i64) -> Result<(), MetaError> {
        self.change("noting that a deletion is in force", |transaction| {
            let sql = "UPDATE deletions SET hidden_ms = ?2 WHERE id = ?1 AND hidden_ms IS NULL";
            transaction.execute(sql, params![id.to_string(), now_ms]).map(drop)
        })
    }

    /// Notes that a deletion's samples are being removed.
    pub(crate) fn deletion_running(&self, id: DeletionId) -> Result<(), MetaError> {
        self.change("noting that a deletion runs", |transaction| {
            let sql = "UPDATE deletions SET state = 'running', finished_ms = NULL, error = NULL \
                       WHERE id = ?1";
            transaction.execute(sql, [id.to_string()]).map(drop)
        })
    }

    /// Notes how a deletion ended.
    pub(crate) fn deletion_finished(
        &self,
        deletion: &Deletion,
        result: &Result<(), String>,
        now_ms: i64,
    ) -> Result<(), MetaError> {
        self.change("noting how a deletion ended", |transaction| {
            let (state, action, error) = match result {
                Ok(()) => ("done", "deletion.done", None),
                Err(error) => ("failed", "deletion.failed", Some(&**error)),
            };
            transaction.execute(
                "UPDATE deletions SET state = ?2, finished_ms = ?3, error = ?4 WHERE id = ?1",
                params![deletion.id.to_string(), state, now_ms, error],
            )?;
            let more = error.unwrap_or_default();
            audit(transaction, now_ms, ("collector", action), deletion, more)
        })
    }

    /// A deletion of a project.
    pub(crate) fn deletion(
        &self,
        project: &ProjectName,
        id: DeletionId,
    ) -> Result<Option<DeletionRecord>, MetaError> {
        let sql = format!("SELECT {COLUMNS} FROM deletions WHERE id = ?1 AND project = ?2");
        let connection = self.lock();
        let found = connection.query_row(&sql, params![id.to_string(), &*project.0], record);
        found.optional().map_err(MetaError::of("reading a deletion"))
    }

    /// Deletions that are not done, the oldest first; not those that failed before they came into force.
    pub(crate) fn open_deletions(&self) -> Result<Vec<DeletionRecord>, MetaError> {
        let sql = format!(
            "SELECT {COLUMNS} FROM deletions WHERE state <> 'done' \
             AND NOT (state = 'failed' AND hidden_ms IS NULL) ORDER BY requested_ms, rowid"
        );
        let connection = self.lock();
        let all = connection.prepare(&sql).and_then(|mut statement| {
            statement.query_map([], record)?.collect::<rusqlite::Result<Vec<_>>>()
        });
        all.map_err(MetaError::of("reading deletions"))
    }

    fn change(
        &self,
        what: &'static str,
        change: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<()>,
    ) -> Result<(), MetaError> {
        let mut connection = self.lock();
        let changed = connection.transaction().and_then(|transaction| {
            change(&transaction)?;
            transaction.commit()
        });
        changed.map_err(MetaError::of(what))
    }
}

fn audit(
    transaction: &Transaction<'_>,
    at_ms: i64,
    (actor, action): (&str, &str),
    deletion: &Deletion,
    more: &str,
) -> rusqlite::Result<()> {
    let Deletion { id, project, service, before_ms } = deletion;
    let of = service.as_deref().map_or_else(String::new, |name| format!(" of service {name:?}"));
    let before = jiff::Timestamp::from_millisecond(*before_ms).unwrap_or_default();
    let colon = if more.is_empty() { "" } else { ": " };
    let detail = format!("deletion {id}: samples{of} before {before}{colon}{more}");
    transaction
        .execute(
            "INSERT INTO audit (at_ms, actor, action, project, detail) VALUES (?1, ?2, ?3, ?4, ?5)",
            params![at_ms, actor, action, &*project.0, detail],
        )
        .map(drop)
}

fn record(row: &Row<'_>) -> rusqlite::Result<DeletionRecord> {
    let wrong = |column, detail: &str| {
        let kind = rusqlite::types::Type::Text;
        rusqlite::Error::FromSqlConversionFailure(column, kind, detail.to_owned().into())
    };
    let id: String = row.get(0)?;
    let id = id.parse().map_err(|error: NotAnId| wrong(0, &error.to_string()))?;
    let project: String = row.get(1)?;
    let service: Option<String> = row.get(2)?;
    let state: String = row.get(4)?;
    Ok(DeletionRecord {
        deletion: Deletion {
            id,
            project: ProjectName(project.into()),
            service: service.map(Arc::from),
            before_ms: row.get(3)?,
        },
        state: DeletionState::of(&state).ok_or_else(|| wrong(4, "not a state"))?,
        requested_ms: row.get(5)?,
        hidden_ms: row.get(6)?,
        finished_ms: row.get(7)?,
        error: row.get(8)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn deletion(id: u128, service: Option<&str>) -> Deletion {
        let project = ProjectName("default".into());
        Deletion {
            id: DeletionId(id),
            project,
            service: service.map(Arc::from),
            before_ms: 86_400_000,
        }
    }

    fn audited(meta: &Meta) -> Vec<(String, String, String)> {
        let connection = meta.lock();
        let mut statement =
            connection.prepare("SELECT actor, action, detail FROM audit ORDER BY id").unwrap();
        let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)));
        rows.unwrap().collect::<rusqlite::Result<_>>().unwrap()
    }

    #[test]
    fn every_step_of_a_deletion_is_noted_and_audited() {
        let dir = tempfile::tempdir().unwrap();
        let meta = Meta::open(dir.path()).unwrap();
        let (one, two, three) = (deletion(1, None), deletion(2, Some("a\"b")), deletion(3, None));
        meta.add_deletion(&one, "127.0.0.1:5", 10).unwrap();
        meta.add_deletion(&two, "[::1]:6", 10).unwrap();
        meta.add_deletion(&three, "[::1]:6", 11).unwrap();
        assert!(meta.add_deletion(&one, "twice", 12).is_err());
        meta.deletion_hidden(one.id, 12).unwrap();
        meta.deletion_hidden(two.id, 13).unwrap();
        meta.deletion_hidden(two.id, 99).unwrap();
        meta.deletion_running(one.id).unwrap();
        meta.deletion_finished(&one, &Ok(()), 20).unwrap();
        meta.deletion_finished(&two, &Err("a file is damaged".to_owned()), 21).unwrap();
        meta.deletion_finished(&three, &Err("the disk is full".to_owned()), 22).unwrap();
        drop(meta);
        let meta = Meta::open(dir.path()).unwrap();
        let found = meta.deletion(&two.project, two.id).unwrap().unwrap();
        let expected = DeletionRecord {
            deletion: two.clone(),
            state: DeletionState::Failed,
            requested_ms: 10,
            hidden_ms: Some(13),
            finished_ms: Some(21),
            error: Some("a file is damaged".to_owned()),
        };
        assert_eq!(found, expected);
        assert_eq!(meta.open_deletions().unwrap(), [expected], "the others need nothing more");
        assert_eq!(meta.deletion(&ProjectName("other".into()), two.id).unwrap(), None);
        let rows = audited(&meta);
        let shown: Vec<_> = rows.iter().map(|(actor, action, _)| (&**actor, &**action)).collect();
        let requested = "deletion.requested";
        let right = [
            ("127.0.0.1:5", requested),
            ("[::1]:6", requested),
            ("[::1]:6", requested),
            ("collector", "deletion.done"),
            ("collector", "deletion.failed"),
            ("collector", "deletion.failed"),
        ];
        assert_eq!(shown, right);
        let id = "0".repeat(31);
        let detail = format!(
            "deletion {id}2: samples of service \"a\\\"b\" before 1970-01-02T00:00:00Z: a file is damaged"
        );
        assert_eq!(rows[4].2, detail);
    }
}
