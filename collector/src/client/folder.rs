//! `vesta store`: looks after a data folder without a collector, or beside one.

use super::{ClientError, bar};
use crate::ingest::times::rfc3339;
use crate::meta::{self, Meta, MetaError};
use crate::options::StoreCommand;
use crate::store::ProfileStore as _;
use crate::store::Retention;
use crate::store::embedded::inspect::{self, Damage, FolderStats, ProjectStats};
use crate::store::embedded::{Clock, EmbeddedOptions, EmbeddedStore};
use std::collections::BTreeSet;
use std::io::Write as _;
use std::path::Path;
use std::time::Duration;

pub use crate::store::embedded::inspect::is_store;

/// How often the progress of a compaction is shown.
const LOOK: Duration = Duration::from_millis(200);

/// Runs a command on a folder.
///
/// # Errors
/// See [`ClientError`].
pub async fn look_after(command: &StoreCommand, dir: &Path) -> Result<(), ClientError> {
    match command {
        StoreCommand::Check(_) => check(dir),
        StoreCommand::Stats(_) => tell(&stats_lines(&inspect::stats(dir)?)),
        StoreCommand::Compact(_) => compact(dir).await,
    }
}

fn check(dir: &Path) -> Result<(), ClientError> {
    let bar = bar(Some(0), "{bar:30} {bytes}/{total_bytes} {eta}");
    let mut progress = |done, total| {
        bar.set_length(total);
        bar.set_position(done);
    };
    let mut checked = inspect::check(dir, &mut progress)?;
    bar.finish_and_clear();
    let database = dir.join(meta::FILE_NAME);
    if database.exists() {
        checked.files += 1;
        let wrong = Meta::check(dir).unwrap_or_else(|error| vec![detail(error)]);
        let damage = |detail| Damage { path: database.clone(), detail };
        checked.damages.extend(wrong.into_iter().map(damage));
    }
    let line = |damage: &Damage| format!("{}: {}", damage.path.display(), damage.detail);
    tell(&checked.damages.iter().map(line).collect::<Vec<_>>())?;
    let (files, bytes) = (checked.files, checked.bytes);
    let damaged: BTreeSet<&Path> = checked.damages.iter().map(|it| &*it.path).collect();
    if !damaged.is_empty() {
        return Err(ClientError::Damaged { damaged: damaged.len(), files });
    }
    let torn = match checked.torn_bytes {
        0 => String::new(),
        bytes => format!(", {bytes} bytes of a write that was cut or is under way"),
    };
    tell(&[format!("{files} files, {bytes} bytes: no damage{torn}")])
}

/// What is wrong with a database that cannot be read; which it is, is said beside it.
fn detail(error: MetaError) -> String {
    match error {
        MetaError::Database { source, .. } => source.to_string(),
        other => other.to_string(),
    }
}

async fn compact(dir: &Path) -> Result<(), ClientError> {
    // Nothing may go but what is twice: how much is kept is the collector's to say.
    let options = EmbeddedOptions {
        data_dir: dir.to_owned(),
        data_bytes_max: Some(u64::MAX),
        retention: Retention::default(),
        clock: Clock::system(),
    };
    let bar = bar(None, "{spinner} {elapsed} {msg}");
    bar.set_message("reading the log");
    let opened = tokio::task::spawn_blocking(move || EmbeddedStore::open(options)).await;
    let store = opened.map_err(|error| ClientError::Stopped(error.to_string()))??;
    store.flush().await?;
    let before = store.stats().await?;
    let mut compacted = store.compact();
    let merged = loop {
        if let Ok(merged) = tokio::time::timeout(LOOK, &mut compacted).await {
            break merged?;
        }
        let segments = store.stats().await?.segments;
        bar.set_message(format!("{segments} of {} segments are left", before.segments));
        bar.tick();
    };
    let after = store.stats().await?;
    bar.finish_and_clear();
    tell(&[format!(
        "{merged} segments merged: {} segments, {} bytes; before {} segments, {} bytes",
        after.segments, after.disk_bytes, before.segments, before.disk_bytes
    )])
}

fn stats_lines(stats: &FolderStats) -> Vec<String> {
    let mut lines = Vec::new();
    for project in &stats.projects {
        let ProjectStats { name, hours, days, symbol_bytes, samples, range, unreadable } = project;
        lines.push(format!("project {name}"));
        let mut row = |name: &str, value: String| lines.push(format!("  {name:<18} {value}"));
        if let Some((first_ms, last_ms)) = *range {
            row("from", rfc3339(first_ms));
            row("to", rfc3339(last_ms));
        }
        row("samples", samples.to_string());
        row("hour segments", format!("{} ({} bytes)", hours.0, hours.1));
        row("day segments", format!("{} ({} bytes)", days.0, days.1));
        row("names and stacks", format!("{symbol_bytes} bytes"));
        if *unreadable > 0 {
            row("unreadable", format!("{unreadable} segments: see `vesta store check`"));
        }
    }
    lines.push(format!("{:<20} {} bytes, not counted above", "log", stats.wal_bytes));
    lines.push(format!("{:<20} {}", "deletions pending", stats.deletions_pending));
    lines
}

/// Writes data to standard output.
fn tell(lines: &[String]) -> Result<(), ClientError> {
    let mut out = std::io::stdout().lock();
    let written = lines.iter().try_for_each(|line| writeln!(out, "{line}"));
    written.map_err(|source| ClientError::Write { path: "-".to_owned(), source })
}
