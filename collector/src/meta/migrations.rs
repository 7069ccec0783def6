//! The tables, as steps from one version to the next. A step that was released never changes.

use super::MetaError;
use rusqlite::Connection;
use std::path::Path;

/// How long a writer waits for another one: somebody may look into the file with a tool.
const BUSY_WAIT: std::time::Duration = std::time::Duration::from_secs(10);

/// The first leads to version 1, and so on. Times are Unix milliseconds.
const STEPS: [&str; 1] = ["
    CREATE TABLE audit (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        at_ms INTEGER NOT NULL,
        -- Who: the address of a request, or 'collector'.
        actor TEXT NOT NULL,
        -- What: 'deletion.requested', 'deletion.done', 'deletion.failed'.
        action TEXT NOT NULL,
        project TEXT NOT NULL,
        -- What exactly, for a person.
        detail TEXT NOT NULL
    ) STRICT;
    CREATE TABLE deletions (
        -- 32 hexadecimal digits.
        id TEXT PRIMARY KEY,
        project TEXT NOT NULL,
        -- Absent: all services.
        service TEXT,
        before_ms INTEGER NOT NULL,
        state TEXT NOT NULL CHECK (state IN ('queued', 'running', 'done', 'failed')),
        requested_ms INTEGER NOT NULL,
        -- When no answer held it any more; absent: it never came into force.
        hidden_ms INTEGER,
        finished_ms INTEGER,
        error TEXT
    ) STRICT;
    CREATE INDEX deletions_open ON deletions (requested_ms) WHERE state <> 'done';
"];

/// Sets what holds for a connection.
pub(super) fn prepare(connection: &Connection) -> rusqlite::Result<()> {
    connection.busy_timeout(BUSY_WAIT)?;
    // Readers do not wait for writers.
    connection.pragma_update(None, "journal_mode", "WAL")?;
    // Of what it says, a power cut takes nothing back.
    connection.pragma_update(None, "synchronous", "FULL")?;
    connection.pragma_update(None, "foreign_keys", true)
}

/// Brings the tables to the version of today.
pub(super) fn migrate(connection: &mut Connection, path: &Path) -> Result<(), MetaError> {
    let failed = |source| MetaError::Database {
        what: format!("bringing {} to the version of today", path.display()),
        source,
    };
    let version = |connection: &Connection| {
        connection.pragma_query_value(None, "user_version", |row| row.get::<_, u32>(0))
    };
    let found = version(connection).map_err(failed)?;
    let known = u32::try_from(STEPS.len()).unwrap_or(u32::MAX);
    if found > known {
        return Err(MetaError::TooNew { path: path.display().to_string(), found, known });
    }
    for (version, sql) in (1_u32..).zip(STEPS).filter(|&(version, _)| version > found) {
        // A step is there whole or not at all.
        let transaction = connection.transaction().map_err(failed)?;
        transaction.execute_batch(sql).map_err(failed)?;
        transaction.pragma_update(None, "user_version", version).map_err(failed)?;
        transaction.commit().map_err(failed)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::meta::{FILE_NAME, Meta};

    #[test]
    fn a_new_file_gets_all_steps_and_opens_again() {
        let dir = tempfile::tempdir().unwrap();
        for _ in 0..2 {
            let meta = Meta::open(dir.path()).unwrap();
            let connection = meta.lock();
            let number = |name: &str| {
                connection.pragma_query_value(None, name, |row| row.get::<_, i64>(0)).unwrap()
            };
            assert_eq!(number("user_version"), 1);
            assert_eq!(number("synchronous"), 2, "FULL");
            let mode: String =
                connection.pragma_query_value(None, "journal_mode", |row| row.get(0)).unwrap();
            assert_eq!(mode, "wal");
        }
    }

    #[test]
    fn a_later_version_and_another_file_are_refused_with_what_to_do() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILE_NAME);
        let connection = Connection::open(&path).unwrap();
        connection.pragma_update(None, "user_version", 99).unwrap();
        drop(connection);
        let error = Meta::open(dir.path()).unwrap_err().to_string();
        assert!(error.contains("has version 99") && error.contains("start the version"), "{error}");
        std::fs::write(&path, [b'x'; 4_096]).unwrap();
        let error = Meta::open(dir.path()).unwrap_err().to_string();
        assert!(error.contains(FILE_NAME) && error.contains("not a database"), "{error}");
    }
}
