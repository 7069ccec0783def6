//! What the collector remembers besides profiles: who asked for what (the audit), and deletions with their state. An
//! `SQLite` database of one file; every change is durable when its call returns. Not responsible for samples: what is
//! hidden of these, and since when, is the store's to know.

mod deletions;
mod migrations;

pub use deletions::{DeletionRecord, DeletionState};

use rusqlite::Connection;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Its file in the data folder.
pub const FILE_NAME: &str = "meta.sqlite";

/// Why it failed.
#[derive(Debug, thiserror::Error)]
pub enum MetaError {
    /// The database refused.
    #[error("{what}: {source}")]
    Database {
        /// What was being done.
        what: String,
        /// The cause.
        source: rusqlite::Error,
    },
    /// A later version of the collector wrote it.
    #[error(
        "{path} has version {found}, this collector knows versions up to {known}: \
         start the version that wrote it, or a later one"
    )]
    TooNew {
        /// The file.
        path: String,
        /// Its version.
        found: u32,
        /// The last one that is known.
        known: u32,
    },
    /// A task ended without an answer.
    #[error("a task of the database stopped: {0}")]
    Stopped(String),
}

impl MetaError {
    fn of(what: &'static str) -> impl Fn(rusqlite::Error) -> Self {
        move |source| Self::Database { what: what.to_owned(), source }
    }
}

/// The database. Copies share it.
#[derive(Clone, Debug)]
pub struct Meta {
    connection: Arc<Mutex<Connection>>,
}

impl Meta {
    /// Opens the database of a data folder; makes it, or brings it to the version of today.
    ///
    /// # Errors
    /// The file cannot be read or written, is no database, or is of a later version.
    pub fn open(data_dir: &Path) -> Result<Self, MetaError> {
        let path = data_dir.join(FILE_NAME);
        let connection = Connection::open(&path).map_err(|source| MetaError::Database {
            what: format!("opening {}", path.display()),
            source,
        })?;
        Self::with(connection, &path)
    }

    /// What is wrong with the database of a data folder; nothing if there is none. It changes nothing, and may be asked
    /// while a collector uses it.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn check(data_dir: &Path) -> Result<Vec<String>, MetaError> {
        let path = data_dir.join(FILE_NAME);
        if !path.exists() {
            return Ok(Vec::new());
        }
        let failed =
            |source| MetaError::Database { what: format!("reading {}", path.display()), source };
        let flags = rusqlite::OpenFlags::SQLITE_OPEN_READ_ONLY;
        let connection = Connection::open_with_flags(&path, flags).map_err(failed)?;
        let all = connection.prepare("PRAGMA integrity_check").and_then(|mut statement| {
            let rows = statement.query_map([], |row| row.get::<_, String>(0))?;
            rows.collect::<rusqlite::Result<Vec<_>>>()
        });
        let all = all.map_err(failed)?;
        Ok(all.into_iter().filter(|line| line != "ok").collect())
    }

    /// A database that ends with the process.
    ///
    /// # Errors
    /// Memory is short.
    pub fn in_memory() -> Result<Self, MetaError> {
        let connection =
            Connection::open_in_memory().map_err(MetaError::of("opening a database"))?;
        Self::with(connection, &PathBuf::from("a database in memory"))
    }

    fn with(mut connection: Connection, path: &Path) -> Result<Self, MetaError> {
        let prepared = migrations::prepare(&connection);
        prepared.map_err(|source| MetaError::Database {
            what: format!("preparing {}", path.display()),
            source,
        })?;
        migrations::migrate(&mut connection, path)?;
        Ok(Self { connection: Arc::new(Mutex::new(connection)) })
    }

    fn lock(&self) -> MutexGuard<'_, Connection> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs work on the database, on a thread that may block.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Self) -> Result<T, MetaError> + Send + 'static,
    ) -> Result<T, MetaError> {
        let meta = self.clone();
        let joined = tokio::task::spawn_blocking(move || work(&meta)).await;
        joined.unwrap_or_else(|error| Err(MetaError::Stopped(error.to_string())))
    }
}
