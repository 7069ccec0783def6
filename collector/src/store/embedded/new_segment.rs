//! The file of a segment from its first byte to the moment when it is there, complete and durable, under its
//! name. Not responsible for what counts: that is the manifest's.

use super::engine::Engine;
use super::files;
use super::manifest::{self, SegmentFile};
use super::segment::{SegmentWriter, Span};
use crate::profile::ProjectName;
use crate::query::Intervals;
use crate::store::StoreError;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Time that hosts reported, by type and host.
pub(super) type Reported<'a> = [(u32, &'a Arc<str>, &'a Intervals)];

/// A segment that is being written.
#[derive(Debug)]
pub(super) struct NewSegment<'e> {
    engine: &'e Engine,
    /// Start of its hour or day.
    start_ms: i64,
    span: Span,
    /// Number of the last deletion that hides nothing of it.
    clean_to: u64,
    sequence: u64,
    path: PathBuf,
    /// The name until the file is complete.
    temporary: PathBuf,
}

impl<'e> NewSegment<'e> {
    /// Gives it a name; nothing is written yet.
    pub(super) fn of(
        engine: &'e Engine,
        project: &ProjectName,
        (start_ms, span): (i64, Span),
        clean_to: u64,
    ) -> Self {
        let sequence = engine.next_sequence();
        let path = manifest::segment_path(&engine.dir, project, (start_ms, span), sequence);
        let temporary = path.with_extension("tmp");
        Self { engine, start_ms, span, clean_to, sequence, path, temporary }
    }

    /// What it may leave behind if it fails.
    pub(super) fn paths(&self) -> [PathBuf; 2] {
        [self.temporary.clone(), self.path.clone()]
    }

    /// Makes the file.
    pub(super) fn create(&self) -> Result<SegmentWriter, StoreError> {
        let files = &*self.engine.files;
        let made = files::create_dir(files, self.folder())
            .and_then(|()| files.remove(&self.temporary))
            .and_then(|()| SegmentWriter::new(files.create(&self.temporary)?, self.span));
        made.map_err(|error| self.failed(error))
    }

    /// Ends the file and makes it durable under its name.
    pub(super) fn finish(
        &self,
        writer: SegmentWriter,
        reports: &Reported<'_>,
    ) -> Result<SegmentFile, StoreError> {
        let files = &*self.engine.files;
        let finished = writer.finish(reports).and_then(|bytes| {
            files.rename(&self.temporary, &self.path)?;
            files.sync_dir(self.folder())?;
            Ok(bytes)
        });
        let bytes = finished.map_err(|error| self.failed(error))?;
        let spans = || reports.iter().flat_map(|(_, _, intervals)| intervals.spans());
        let first = spans().map(|&(start_ms, _)| start_ms).min();
        let last = spans().map(|&(_, end_ms)| end_ms - 1).max();
        let reported = first.zip(last).unwrap_or((i64::MAX, i64::MIN));
        let Self { start_ms, span, sequence, clean_to, .. } = *self;
        Ok(SegmentFile { start_ms, span, sequence, bytes, reported, clean_to })
    }

    /// An error of this file.
    pub(super) fn failed(&self, error: std::io::Error) -> StoreError {
        StoreError::io("writing", &self.path, error)
    }

    fn folder(&self) -> &Path {
        self.path.parent().unwrap_or(&self.engine.dir)
    }
}
