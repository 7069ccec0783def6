//! Records of the WAL at the start: one thread reads, checks and decodes them, ahead of the one that applies them in their
//! order. Not responsible for what applying means.

use super::batch;
use super::codec::{Malformed, Reader};
use super::deletions::Numbered;
use super::files::Files;
use super::prepared::{self, Prepared};
use super::wal::{self, Replayed};
use crate::limits;
use crate::profile::NewNames;
use crate::store::StoreError;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{SyncSender, sync_channel};

/// Kind of the WAL record of a batch that describes all of its stacks, as the first version wrote it.
const RECORD_BATCH: u8 = 1;
/// Kind of the WAL record of a deletion: of what stands before it in the log and in files.
pub(super) const RECORD_DELETION: u8 = 2;
/// Kind of the WAL record of a batch that refers to known stacks.
pub(super) const RECORD_PREPARED: u8 = 3;
/// Kind of the WAL record of names alone.
pub(super) const RECORD_NAMES: u8 = 4;

/// A record, decoded.
pub(super) enum Record {
    Batch {
        prepared: Box<Prepared>,
        /// Which profiles were dropped when it was written.
        dropped: Vec<bool>,
        /// When that was, Unix milliseconds.
        now_ms: i64,
    },
    Deletion(Box<Numbered>),
    Names(Box<Prepared>),
}

/// What comes next in the log.
pub(super) enum Step {
    Records(Vec<Record>),
    /// All records of the file with this sequence came.
    FileEnd(u64),
}

/// Reads the files and has `apply` take each step. After an error of either the other ends, too.
pub(super) fn run(
    files: &dyn Files,
    paths: &[(u64, PathBuf)],
    mut apply: impl FnMut(Step) -> Result<(), StoreError>,
) -> Result<Replayed, StoreError> {
    let (sender, steps) = sync_channel(1);
    std::thread::scope(|scope| {
        let reader = scope.spawn(move || read(files, paths, &sender));
        // With the receiver, which goes after an error, the other thread's sends end.
        let applied = steps.into_iter().try_for_each(&mut apply);
        let read = reader.join().unwrap_or_else(|_| {
            Err(StoreError::Busy("the thread that reads the log failed".to_owned()))
        });
        applied.and(read)
    })
}

fn read(
    files: &dyn Files,
    paths: &[(u64, PathBuf)],
    steps: &SyncSender<Step>,
) -> Result<Replayed, StoreError> {
    let mut replayed = Replayed::default();
    // The error of whoever applies counts if nobody takes steps any more.
    let gone = || StoreError::Busy("the log is no longer replayed".to_owned());
    for (sequence, path) in paths {
        let (mut records, mut bytes) = (Vec::new(), 0);
        let mut visit = |kind: u8, payload: &[u8]| {
            records.push(decode(kind, payload).map_err(|error| damaged(path, error))?);
            bytes += payload.len();
            if bytes < limits::REPLAY_STEP_BYTES {
                return Ok(());
            }
            bytes = 0;
            steps.send(Step::Records(std::mem::take(&mut records))).ok().ok_or_else(gone)
        };
        wal::replay(files, path, &mut replayed, &mut visit)?;
        steps.send(Step::Records(records)).ok().ok_or_else(gone)?;
        steps.send(Step::FileEnd(*sequence)).ok().ok_or_else(gone)?;
    }
    Ok(replayed)
}

fn damaged(path: &Path, Malformed(detail): Malformed) -> StoreError {
    StoreError::Damaged { path: path.display().to_string(), detail: detail.to_owned() }
}

fn decode(kind: u8, payload: &[u8]) -> Result<Record, Malformed> {
    if kind == RECORD_DELETION {
        let mut reader = Reader::new(payload);
        let one = Numbered::decode(&mut reader)?;
        reader.end()?;
        return Ok(Record::Deletion(Box::new(one)));
    }
    if kind == RECORD_NAMES {
        let names = NewNames::of(batch::decode(payload, 0)?);
        let names = names.ok().ok_or(Malformed("the names break a rule"))?;
        return Ok(Record::Names(Box::new(Prepared::of_names(names))));
    }
    let (now_ms, dropped, encoded) = decode_record(payload)?;
    let (batch, known) = match kind {
        RECORD_BATCH => (batch::decode(encoded, 0)?, Vec::new()),
        RECORD_PREPARED => prepared::decode(encoded)?,
        _ => return Err(Malformed("a record of an unknown kind")),
    };
    if dropped.len() != batch.profiles.len() {
        return Err(Malformed("a record that does not fit its batch"));
    }
    Ok(Record::Batch { prepared: Box::new(Prepared::whole(batch, known)), dropped, now_ms })
}

pub(super) fn decode_record(payload: &[u8]) -> Result<(i64, Vec<bool>, &[u8]), Malformed> {
    let mut reader = Reader::new(payload);
    let now_ms = reader.signed()?;
    let profiles = reader.small()? as usize;
    if profiles > limits::BATCH_PROFILES_MAX {
        return Err(Malformed("too many profiles"));
    }
    let mut dropped = vec![false; profiles];
    for _ in 0..reader.count(1)? {
        let at = reader.small()? as usize;
        *dropped.get_mut(at).ok_or(Malformed("a position is outside the batch"))? = true;
    }
    Ok((now_ms, dropped, reader.rest()))
}
