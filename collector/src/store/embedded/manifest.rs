//! What belongs to the store, in one small file that is replaced whole: segments, lengths of symbol logs,
//! the checkpoint of seen ids, and the first WAL file whose records are not in segments. What a folder holds
//! beyond the manifest is of work that did not finish, and is removed at the start.

use super::codec::{Malformed, Reader, Writer};
use super::deletions::Deletions;
use super::files::{self, Files};
use super::segment::Span;
use crate::limits;
use crate::profile::ProjectName;
use crate::store::StoreError;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// First bytes: a name and the version of the format.
const MAGIC: &[u8; 8] = b"VSTMAN\x00\x03";
/// The version before: it knew no deletions.
const MAGIC_BEFORE: &[u8; 8] = b"VSTMAN\x00\x02";
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
    /// Deletions up to this number came before all records from `wal_floor` on.
    pub(super) wal_clean_to: u64,
    pub(super) deletions: Arc<Deletions>,
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
    /// Number of the last deletion that hides nothing of it.
    pub(super) clean_to: u64,
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
        body.number(self.wal_clean_to);
        self.deletions.encode(&mut body);
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
                body.number(segment.clean_to);
            }
        }
        let mut whole = Writer::default();
        whole.raw(MAGIC);
        whole.raw(&checksum(MAGIC, &body.bytes).to_le_bytes());
        whole.raw(&body.bytes);
        whole.bytes
    }

    fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(bytes);
        let magic = reader.raw(MAGIC.len())?;
        let knows_deletions = magic == MAGIC;
        if bytes.len() > limits::MANIFEST_BYTES_MAX || !knows_deletions && magic != MAGIC_BEFORE {
            return Err(Malformed("it does not begin like a manifest of this version"));
        }
        let found = reader.raw(4)?;
        if checksum(magic, reader.rest()).to_le_bytes() != *found {
            return Err(Malformed("its checksum is wrong"));
        }
        let mut manifest = Self {
            wal_floor: reader.number()?,
            next_sequence: reader.number()?,
            seen: reader.number()?,
            wal_clean_to: if knows_deletions { reader.number()? } else { 0 },
            deletions: Arc::default(),
            projects: BTreeMap::new(),
        };
        if knows_deletions {
            manifest.deletions = Arc::new(Deletions::decode(&mut reader)?);
        }
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
                    clean_to: if knows_deletions { reader.number()? } else { 0 },
                })
            };
            let segments = (0..count).map(segment).collect::<Result<_, _>>()?;
            manifest.projects.insert(name, ProjectFiles { log_bytes, segments });
        }
        reader.end()?;
        Ok(manifest)
    }
}

/// The checksum of a body; it covers the version, too, since there are two that differ in a bit.
fn checksum(magic: &[u8], body: &[u8]) -> u32 {
    let of_version = if magic == MAGIC_BEFORE { 0 } else { crc32c::crc32c(magic) };
    crc32c::crc32c_append(of_version, body)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::embedded::deletions::Numbered;
    use crate::store::{Deletion, DeletionId};

    fn manifest() -> Manifest {
        let segment = SegmentFile {
            start_ms: 86_400_000,
            span: Span::Day,
            sequence: 5,
            bytes: 77,
            reported: (86_400_001, 86_400_002),
            clean_to: 0,
        };
        let project = ProjectFiles { log_bytes: 9, segments: vec![segment] };
        Manifest {
            wal_floor: 3,
            next_sequence: 6,
            seen: 2,
            projects: [(ProjectName("p".into()), project)].into(),
            ..Manifest::default()
        }
    }

    /// A file that is no whole manifest, or whose checksum is wrong, is none.
    #[test]
    fn a_manifest_comes_back_whole_or_not_at_all() {
        let mut manifest = manifest();
        let (project, service) = (ProjectName("p".into()), Some("api".into()));
        let deletion = Deletion { id: DeletionId(7), project, service, before_ms: -1 };
        let one = Numbered { number: 4, deletion, is_erased: true };
        Arc::make_mut(&mut manifest.deletions).add(one);
        manifest.wal_clean_to = 4;
        manifest.projects.values_mut().for_each(|project| project.segments[0].clean_to = 3);
        let bytes = manifest.encode();
        assert_eq!(Manifest::decode(&bytes).unwrap(), manifest);
        for at in 0..bytes.len() {
            let mut wrong = bytes.clone();
            wrong[at] ^= 1;
            assert!(Manifest::decode(&wrong).is_err(), "byte {at}");
            assert!(Manifest::decode(&bytes[..at]).is_err(), "{at} bytes");
        }
    }

    #[test]
    fn the_version_before_is_read() {
        let mut body = Writer::default();
        [3, 6, 2, 1].into_iter().for_each(|number| body.number(number));
        body.text("p");
        body.number(9);
        body.number(1);
        body.signed(86_400_000);
        body.byte(1);
        body.number(5);
        body.number(77);
        body.signed(86_400_001);
        body.signed(86_400_002);
        let checksum = crc32c::crc32c(&body.bytes).to_le_bytes();
        let bytes = [&MAGIC_BEFORE[..], &checksum, &body.bytes].concat();
        assert_eq!(Manifest::decode(&bytes).unwrap(), manifest());
    }
}
