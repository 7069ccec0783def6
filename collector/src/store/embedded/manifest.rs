//! What belongs to the store, in one small file that is replaced whole: segments, lengths of symbol logs,
//! the checkpoint of seen ids, and the first WAL file whose records are not in segments. What a folder holds
//! beyond the manifest is of work that did not finish, and is removed at the start.

use super::codec::{Malformed, Reader, Writer};
use super::files::{self, Files};
use super::segment::Span;
use crate::limits;
use crate::profile::ProjectName;
use crate::store::StoreError;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// First bytes: a name and the version of the format.
const MAGIC: &[u8; 8] = b"VSTMAN\x00\x02";
const FILE_NAME: &str = "MANIFEST";

/// The contents.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Manifest {
    /// WAL files below it are not needed.
    pub(super) wal_floor: u64,
    /// Number of the next segment or checkpoint.
    pub(super) next_sequence: u64,
    /// Number of the checkpoint of seen ids; 0 if there is none.
    pub(super) seen: u64,
    pub(super) projects: BTreeMap<ProjectName, ProjectFiles>,
}

/// The files of a project.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ProjectFiles {
    /// Length of the symbol log.
    pub(super) log_bytes: u64,
    pub(super) segments: Vec<SegmentFile>,
}

/// A segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SegmentFile {
    /// Start of its hour or day, Unix milliseconds.
    pub(super) start_ms: i64,
    pub(super) span: Span,
    pub(super) sequence: u64,
    pub(super) bytes: u64,
    /// First and last millisecond that its profiles cover; reversed if none does.
    pub(super) reported: (i64, i64),
}

impl SegmentFile {
    /// Where it lies.
    pub(super) fn path(&self, dir: &Path, project: &ProjectName) -> PathBuf {
        segment_path(dir, project, (self.start_ms, self.span), self.sequence)
    }
}

impl Manifest {
    /// Reads the manifest of a folder; an absent one is that of a new store.
    pub(super) fn read(dir: &Path) -> Result<Self, StoreError> {
        let path = dir.join(FILE_NAME);
        let bytes = match std::fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Ok(Self { wal_floor: 1, next_sequence: 1, ..Self::default() });
            }
            Err(error) => return Err(StoreError::io("reading", &path, error)),
        };
        Self::decode(&bytes).map_err(|Malformed(detail)| StoreError::Damaged {
            path: path.display().to_string(),
            detail: detail.to_owned(),
        })
    }

    /// Replaces the manifest of a folder.
    pub(super) fn write(&self, files: &dyn Files, dir: &Path) -> Result<(), StoreError> {
        let path = dir.join(FILE_NAME);
        let written = files::write_whole(files, &path, &self.encode());
        written.map_err(|error| StoreError::io("writing", &path, error))
    }

    fn encode(&self) -> Vec<u8> {
        let mut body = Writer::default();
        body.number(self.wal_floor);
        body.number(self.next_sequence);
        body.number(self.seen);
        body.length(self.projects.len());
        for (name, project) in &self.projects {
            body.text(&name.0);
            body.number(project.log_bytes);
            body.length(project.segments.len());
            for segment in &project.segments {
                body.signed(segment.start_ms);
                body.byte(u8::from(segment.span == Span::Day));
                body.number(segment.sequence);
                body.number(segment.bytes);
                body.signed(segment.reported.0);
                body.signed(segment.reported.1);
            }
        }
        let mut whole = Writer::default();
        whole.raw(MAGIC);
        whole.raw(&crc32c::crc32c(&body.bytes).to_le_bytes());
        whole.raw(&body.bytes);
        whole.bytes
    }

    fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(bytes);
        if bytes.len() > limits::MANIFEST_BYTES_MAX || reader.raw(MAGIC.len())? != MAGIC {
            return Err(Malformed("it does not begin like a manifest of this version"));
        }
        let checksum = reader.raw(4)?;
        if crc32c::crc32c(reader.rest()).to_le_bytes() != *checksum {
            return Err(Malformed("its checksum is wrong"));
        }
        let mut manifest = Self {
            wal_floor: reader.number()?,
            next_sequence: reader.number()?,
            seen: reader.number()?,
            projects: BTreeMap::new(),
        };
        for _ in 0..reader.count(3)? {
            let name = ProjectName(reader.shared_text()?);
            let log_bytes = reader.number()?;
            let count = reader.count(6)?;
            let segment = |_| {
                Ok(SegmentFile {
                    start_ms: reader.signed()?,
                    span: match reader.byte()? {
                        0 => Span::Hour,
                        1 => Span::Day,
                        _ => return Err(Malformed("a segment is neither of an hour nor of a day")),
                    },
                    sequence: reader.number()?,
                    bytes: reader.number()?,
                    reported: (reader.signed()?, reader.signed()?),
                })
            };
            let segments = (0..count).map(segment).collect::<Result<_, _>>()?;
            manifest.projects.insert(name, ProjectFiles { log_bytes, segments });
        }
        reader.end()?;
        Ok(manifest)
    }
}

/// The folder of a project; its name keeps letters, digits, `_` and `-`, the rest is percent-encoded.
pub(super) fn project_dir(dir: &Path, project: &ProjectName) -> PathBuf {
    let mut name = String::new();
    for byte in project.0.bytes() {
        if byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-' {
            name.push(char::from(byte));
        } else {
            name.push_str(&format!("%{byte:02X}"));
        }
    }
    dir.join("projects").join(name)
}

/// The symbol log of a project.
pub(super) fn symbol_log(dir: &Path, project: &ProjectName) -> PathBuf {
    project_dir(dir, project).join("symbols.log")
}

/// The file of a segment: a folder for the day, the hour if it is of one, and the sequence in the name.
pub(super) fn segment_path(
    dir: &Path,
    project: &ProjectName,
    (start_ms, span): (i64, Span),
    sequence: u64,
) -> PathBuf {
    let time = jiff::Timestamp::from_millisecond(start_ms).unwrap_or_default();
    let day = time.strftime("%Y-%m-%d").to_string();
    let name = match span {
        Span::Hour => format!("h{}-{sequence:08x}.seg", time.strftime("%H")),
        Span::Day => format!("day-{sequence:08x}.seg"),
    };
    project_dir(dir, project).join(day).join(name)
}

/// The checkpoint of seen ids.
pub(super) fn seen_path(dir: &Path, sequence: u64) -> PathBuf {
    dir.join(format!("seen-{sequence:08x}"))
}
