//! The write-ahead log: files of records `length u32, crc32c u32, kind u8, payload`, little endian; the
//! checksum covers the file's salt, kind and payload. Written means synced: a record is acknowledged only after fdatasync.
//! Not responsible for what a payload says.

use super::files::{AppendFile, Files};
use crate::limits;
use crate::store::{StoreError, random};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// First bytes of every file: a name and the version of the format; the salt follows.
const MAGIC: &[u8; 8] = b"VSTWAL\x00\x02";
/// The first version: no salt.
const MAGIC_UNSALTED: &[u8; 8] = b"VSTWAL\x00\x01";
/// Bytes of a record before its kind.
const HEADER_BYTES: usize = 8;
const ENDING: &str = "wal";

/// The log's writing end.
pub(super) struct Wal {
    files: Arc<dyn Files>,
    dir: PathBuf,
    sequence: u64,
    length: u64,
    salt: Salt,
    /// Absent after a failure: the next write starts a new file.
    file: Option<Box<dyn AppendFile>>,
}

/// A random number in every checksum of a file: what a client sends is part of records, and must not be
/// taken for one when the next record is searched behind a damaged one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Salt([u8; 8]);

impl Salt {
    fn random() -> Self {
        Self(random().to_le_bytes())
    }
}

/// The checksum of a record's kind and payload.
fn checksum(salt: Option<Salt>, parts: [&[u8]; 2]) -> u32 {
    let salt = salt.map_or(0, |Salt(bytes)| crc32c::crc32c(&bytes));
    parts.into_iter().fold(salt, crc32c::crc32c_append)
}

impl Wal {
    /// Writes to a new file of this sequence from the first record on. The folder must exist.
    pub(super) fn new(files: Arc<dyn Files>, dir: PathBuf, sequence: u64) -> Self {
        Self { files, dir, sequence, length: 0, salt: Salt::random(), file: None }
    }

    /// Appends the bytes of one record, to be written by this log.
    ///
    /// # Errors
    /// It is too large.
    pub(super) fn frame(
        &self,
        kind: u8,
        payload: &[u8],
        into: &mut Vec<u8>,
    ) -> Result<(), StoreError> {
        let length = u32::try_from(payload.len() + 1).unwrap_or(u32::MAX);
        if length as usize > limits::WAL_RECORD_BYTES_MAX {
            let max = limits::WAL_RECORD_BYTES_MAX as u64;
            return Err(StoreError::Limit { what: "bytes of a WAL record", max });
        }
        let checksum = checksum(Some(self.salt), [&[kind], payload]);
        into.extend_from_slice(&length.to_le_bytes());
        into.extend_from_slice(&checksum.to_le_bytes());
        into.push(kind);
        into.extend_from_slice(payload);
        Ok(())
    }

    /// Sequence of the file that the next record goes to.
    pub(super) fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Appends framed records and syncs. After an error nothing of them is there, or the file was given
    /// up: after a failed sync its pages may be lost while later syncs succeed, so it is never synced again.
    pub(super) fn write(&mut self, records: &[u8]) -> io::Result<()> {
        if self.length >= limits::WAL_FILE_BYTES_MAX {
            self.rotate();
        }
        if self.file.is_none() {
            self.start_file()?;
        }
        let Some(file) = self.file.as_mut() else {
            return Err(io::Error::other("the WAL has no file"));
        };
        let result = file.append(records).and_then(|()| file.sync());
        if result.is_ok() {
            self.length += records.len() as u64;
            return Ok(());
        }
        let cut = file.truncate(self.length).and_then(|()| file.sync());
        if let Err(error) = cut {
            tracing::error!(%error, path = %self.path(self.sequence).display(), "cannot cut the WAL");
        }
        self.rotate();
        result
    }

    /// The next record goes to a new file.
    pub(super) fn rotate(&mut self) {
        if self.file.take().is_some() {
            self.sequence += 1;
        }
        self.length = 0;
    }

    /// Removes the files below `floor`: all of their records are elsewhere now.
    pub(super) fn remove_below(files: &dyn Files, dir: &Path, floor: u64) -> io::Result<()> {
        for (sequence, path) in list_all(dir)? {
            if sequence < floor {
                files.remove(&path)?;
            }
        }
        files.sync_dir(dir)
    }

    fn start_file(&mut self) -> io::Result<()> {
        let path = self.path(self.sequence);
        // A file that could not be started earlier holds no record.
        self.files.remove(&path)?;
        let mut file = self.files.create(&path)?;
        let header = [*MAGIC, self.salt.0].concat();
        file.append(&header)?;
        file.sync()?;
        self.files.sync_dir(&self.dir)?;
        self.length = header.len() as u64;
        self.file = Some(file);
        Ok(())
    }

    fn path(&self, sequence: u64) -> PathBuf {
        path(&self.dir, sequence)
    }
}

/// The file of a sequence.
pub(super) fn path(dir: &Path, sequence: u64) -> PathBuf {
    dir.join(format!("{sequence:016x}.{ENDING}"))
}

/// The sequences of all files, oldest first.
pub(super) fn sequences(dir: &Path) -> Result<Vec<u64>, StoreError> {
    let all = list_all(dir).map_err(|source| StoreError::io("reading", dir, source))?;
    Ok(all.into_iter().map(|(sequence, _)| sequence).collect())
}

/// What a replay met.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Replayed {
    /// Records given to the visitor.
    pub(super) records: u64,
    /// Bytes cut off the tails of files.
    pub(super) torn_bytes: u64,
    /// Records whose checksum is wrong although intact ones follow.
    pub(super) damaged: u64,
}

/// Takes the kind and the payload of each record.
pub(super) type Visit<'v> = dyn FnMut(u8, &[u8]) -> Result<(), StoreError> + 'v;

/// Reads all records of a file, in order, and cuts its torn tail.
pub(super) fn replay(
    files: &dyn Files,
    path: &Path,
    report: &mut Replayed,
    visit: &mut Visit<'_>,
) -> Result<(), StoreError> {
    let failed = |source| StoreError::io("reading", path, source);
    let bytes = fs::read(path).map_err(failed)?;
    let intact = replay_file(path, &bytes, report, visit)?;
    if intact < bytes.len() {
        report.torn_bytes += (bytes.len() - intact) as u64;
        tracing::warn!(path = %path.display(), intact, length = bytes.len(), "cut a torn WAL tail");
        let cut = files.open(path, intact as u64).and_then(|mut file| file.sync());
        cut.map_err(failed)?;
    }
    Ok(())
}

/// Sequence and path of every file from `floor` on, oldest first; removes those below.
pub(super) fn list(
    files: &dyn Files,
    dir: &Path,
    floor: u64,
) -> Result<Vec<(u64, PathBuf)>, StoreError> {
    let mut all = list_all(dir).map_err(|source| StoreError::io("reading", dir, source))?;
    let needed = all.split_off(all.partition_point(|&(sequence, _)| sequence < floor));
    for (_, path) in all {
        files.remove(&path).map_err(|source| StoreError::io("removing", &path, source))?;
    }
    Ok(needed)
}

/// Reads a file and changes nothing; answers the bytes behind its last intact record, and how many before it are damaged.
pub(super) fn check(path: &Path) -> Result<(u64, u64), StoreError> {
    let bytes = fs::read(path).map_err(|source| StoreError::io("reading", path, source))?;
    let mut report = Replayed::default();
    let intact = replay_file(path, &bytes, &mut report, &mut |_, _| Ok(()))?;
    Ok(((bytes.len() - intact) as u64, report.damaged))
}

/// Visits the records of one file; answers the length up to which it is intact.
fn replay_file(
    path: &Path,
    bytes: &[u8],
    report: &mut Replayed,
    visit: &mut Visit<'_>,
) -> Result<usize, StoreError> {
    let Some(magic) = bytes.first_chunk() else { return Ok(0) };
    let salt = bytes[magic.len()..].first_chunk().copied().map(Salt);
    let (salt, mut at) = match (magic, salt) {
        (MAGIC, Some(Salt(salt))) => (Some(Salt(salt)), magic.len() + salt.len()),
        (MAGIC, None) => return Ok(0),
        (MAGIC_UNSALTED, _) => (None, magic.len()),
        _ => {
            let detail = "it does not begin like a WAL file of a known version".to_owned();
            return Err(StoreError::Damaged { path: path.display().to_string(), detail });
        }
    };
    let records = Records { bytes, salt };
    while at < bytes.len() {
        if let Some((kind, payload)) = records.at(at) {
            visit(kind, payload)?;
            report.records += 1;
            at += HEADER_BYTES + 1 + payload.len();
            continue;
        }
        // A torn write ends the file. A wrong record before intact ones is damage: only it is lost.
        match records.resume(at) {
            Some(next) => {
                tracing::error!(path = %path.display(), offset = at, "a WAL record is damaged, skipped");
                report.damaged += 1;
                at = next;
            }
            None => return Ok(at),
        }
    }
    Ok(at)
}

/// The bytes of a file that hold records.
#[derive(Clone, Copy)]
struct Records<'a> {
    bytes: &'a [u8],
    salt: Option<Salt>,
}

impl<'a> Records<'a> {
    /// Kind and payload of the intact record that begins here.
    fn at(self, at: usize) -> Option<(u8, &'a [u8])> {
        let end = self.next(at)?;
        let known = u32::from_le_bytes(self.bytes.get(at + 4..at + 8)?.try_into().ok()?);
        let (kind, payload) = self.bytes.get(at + HEADER_BYTES..end)?.split_first()?;
        (checksum(self.salt, [&[*kind], payload]) == known).then_some((*kind, payload))
    }

    /// Where the record that begins here ends by its length.
    fn next(self, at: usize) -> Option<usize> {
        let length = u32::from_le_bytes(self.bytes.get(at..at + 4)?.try_into().ok()?) as usize;
        (1..=limits::WAL_RECORD_BYTES_MAX)
            .contains(&length)
            .then_some(at + HEADER_BYTES + length)
            .filter(|&end| end <= self.bytes.len())
    }

    /// Where the next intact record begins behind a wrong one: where its length says, else, because the
    /// length itself may be damaged, wherever one is found. Without a salt nothing is searched for.
    fn resume(self, at: usize) -> Option<usize> {
        let is_intact = |&next: &usize| self.at(next).is_some();
        if let Some(next) = self.next(at).filter(is_intact) {
            return Some(next);
        }
        self.salt?;
        let mut budget = limits::WAL_RESUME_BYTES_MAX;
        let candidates =
            (at + 1..self.bytes.len()).filter_map(|at| Some((at, self.next(at)? - at)));
        let affordable = candidates.map_while(|(at, length)| {
            budget = budget.checked_sub(length as u64)?;
            Some(at)
        });
        affordable.into_iter().find(is_intact)
    }
}

/// Sequence and path of every file, oldest first.
fn list_all(dir: &Path) -> io::Result<Vec<(u64, PathBuf)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        let is_wal = path.extension().is_some_and(|ending| ending == ENDING);
        let stem = path.file_stem().and_then(|stem| stem.to_str());
        if let Some(sequence) = stem.and_then(|stem| u64::from_str_radix(stem, 16).ok())
            && is_wal
        {
            found.push((sequence, path));
        }
    }
    found.sort();
    Ok(found)
}

/// Bytes of all files.
pub(super) fn bytes(dir: &Path) -> u64 {
    let lengths = list_all(dir).unwrap_or_default().into_iter();
    lengths.filter_map(|(_, path)| fs::metadata(path).ok()).map(|metadata| metadata.len()).sum()
}
