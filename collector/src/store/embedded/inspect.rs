//! Looks at a data folder without changing it, also while a collector uses it: what it holds, and whether every byte
//! says what it should. Not responsible for repair.

use super::manifest::{self, Manifest, SegmentFile};
use super::segment::{Buffers, Entry, Runs, Segment, Span};
use super::{flush, symbol_log, wal};
use crate::limits;
use crate::profile::ProjectName;
use crate::query::TimeRange;
use crate::store::StoreError;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// What a folder holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FolderStats {
    /// By name.
    pub projects: Vec<ProjectStats>,
    /// Bytes of the log: what no segment holds yet.
    pub wal_bytes: u64,
    /// Deletions whose samples are hidden, and may still lie in files.
    pub deletions_pending: u64,
}

/// What a folder holds of a project.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProjectStats {
    /// Its name.
    pub name: String,
    /// Segments of an hour, and their bytes.
    pub hours: (u64, u64),
    /// Segments of a day, and their bytes.
    pub days: (u64, u64),
    /// Bytes of names and stacks.
    pub symbol_bytes: u64,
    /// Samples in segments.
    pub samples: u64,
    /// Start of the first and end of the last hour or day, Unix milliseconds; nothing without segments.
    pub range: Option<(i64, i64)>,
    /// Segments that cannot be read: `check` says why.
    pub unreadable: u64,
}

/// What a check found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Checked {
    /// Files read.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// What is wrong.
    pub damages: Vec<Damage>,
    /// Bytes behind the last intact record of a log file: a write that was cut, or is under way. The next start cuts them.
    pub torn_bytes: u64,
}

/// Something that does not say what it should.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The file.
    pub path: PathBuf,
    /// What is wrong with it.
    pub detail: String,
}

/// A file to check.
enum Work {
    Segment(ProjectName, SegmentFile),
    Symbols(ProjectName, u64),
    Seen(u64),
    Log(u64),
}

/// True if there is a store in the folder.
#[must_use]
pub fn is_store(dir: &Path) -> bool {
    dir.join("wal").is_dir()
}

/// Counts what a folder holds.
///
/// # Errors
/// The manifest cannot be read.
pub fn stats(dir: &Path) -> Result<FolderStats, StoreError> {
    let manifest = Manifest::read(dir)?;
    let mut stats = FolderStats {
        wal_bytes: wal::bytes(&dir.join("wal")),
        deletions_pending: manifest.deletions.pending().count() as u64,
        ..FolderStats::default()
    };
    for (name, files) in &manifest.projects {
        let mut project = ProjectStats {
            name: name.0.to_string(),
            symbol_bytes: files.log_bytes,
            ..ProjectStats::default()
        };
        for file in &files.segments {
            let kind = match file.span {
                Span::Hour => &mut project.hours,
                Span::Day => &mut project.days,
            };
            *kind = (kind.0 + 1, kind.1 + file.bytes);
            let (start_ms, end_ms) = (file.start_ms, file.start_ms + file.span.ms());
            let (first_ms, last_ms) = project.range.unwrap_or((start_ms, end_ms));
            project.range = Some((first_ms.min(start_ms), last_ms.max(end_ms)));
            let samples = Segment::open(file.path(dir, name), file)
                .and_then(|it| Ok(it.all_entries()?.iter().map(Entry::samples).sum::<u64>()));
            match samples {
                Ok(samples) => project.samples += samples,
                // A collector may have merged it meanwhile: then it counts where it is now.
                Err(_) if !is_current(dir, name, file)? => {}
                Err(_) => project.unreadable += 1,
            }
        }
        stats.projects.push(project);
    }
    Ok(stats)
}

/// Reads every file and compares it with its checksums, and sums with the rows that they are of. `progress` gets the
/// bytes read so far and those of all files.
///
/// # Errors
/// The manifest cannot be read: nothing else has a meaning then.
pub fn check(dir: &Path, progress: &mut dyn FnMut(u64, u64)) -> Result<Checked, StoreError> {
    let manifest = Manifest::read(dir)?;
    let mut work = Vec::new();
    for (name, files) in &manifest.projects {
        work.push(Work::Symbols(name.clone(), files.log_bytes));
        work.extend(files.segments.iter().map(|&file| Work::Segment(name.clone(), file)));
    }
    if manifest.seen != 0 {
        work.push(Work::Seen(manifest.seen));
    }
    let log = wal::sequences(&dir.join("wal"))?;
    work.extend(log.into_iter().filter(|&it| it >= manifest.wal_floor).map(Work::Log));
    let length = |work: &Work| std::fs::metadata(work.path(dir)).map_or(0, |it| it.len());
    let total: u64 = work.iter().map(length).sum();
    let mut checked = Checked::default();
    for item in &work {
        let bytes = length(item);
        let mut damages = Vec::new();
        item.check(dir, &mut checked.torn_bytes, &mut damages);
        if damages.is_empty() || item.is_current(dir)? {
            checked.files += 1;
            checked.bytes += bytes;
            let path = item.path(dir);
            let damage = |detail| Damage { path: path.clone(), detail };
            checked.damages.extend(damages.into_iter().map(damage));
        }
        progress(checked.bytes, total);
    }
    Ok(checked)
}

/// True if the manifest of now names a segment.
fn is_current(dir: &Path, name: &ProjectName, file: &SegmentFile) -> Result<bool, StoreError> {
    let manifest = Manifest::read(dir)?;
    let files = manifest.projects.get(name);
    Ok(files.is_some_and(|files| files.segments.contains(file)))
}

impl Work {
    fn path(&self, dir: &Path) -> PathBuf {
        match self {
            Self::Segment(name, file) => file.path(dir, name),
            Self::Symbols(name, _) => manifest::symbol_log(dir, name),
            Self::Seen(sequence) => manifest::seen_path(dir, *sequence),
            Self::Log(sequence) => wal::path(&dir.join("wal"), *sequence),
        }
    }

    /// False if a collector needs the file no more: then it may be gone.
    fn is_current(&self, dir: &Path) -> Result<bool, StoreError> {
        let manifest = Manifest::read(dir)?;
        Ok(match self {
            Self::Segment(name, file) => is_current(dir, name, file)?,
            Self::Symbols(..) => true,
            Self::Seen(sequence) => manifest.seen == *sequence,
            Self::Log(sequence) => *sequence >= manifest.wal_floor,
        })
    }

    fn check(&self, dir: &Path, torn_bytes: &mut u64, damages: &mut Vec<String>) {
        let path = self.path(dir);
        let result = match self {
            Self::Segment(_, file) => {
                Segment::open(path, file).and_then(|segment| check_segment(&segment, file, damages))
            }
            Self::Symbols(_, bytes) => symbol_log::read(&path, *bytes).map(drop),
            Self::Seen(sequence) => flush::read_seen(dir, *sequence).map(drop),
            Self::Log(_) => wal::check(&path).map(|(torn, damaged)| {
                *torn_bytes += torn;
                if damaged > 0 {
                    damages.push(format!("{damaged} records are damaged"));
                }
            }),
        };
        damages.extend(result.err().map(detail));
    }
}

fn detail(error: StoreError) -> String {
    match error {
        StoreError::Damaged { detail, .. } => detail,
        other => other.to_string(),
    }
}

fn check_segment(
    segment: &Segment,
    file: &SegmentFile,
    damages: &mut Vec<String>,
) -> Result<(), StoreError> {
    // Open for all of its sections.
    let held = segment.hold()?;
    let length = held.metadata().map_or(0, |it| it.len());
    if length != file.bytes {
        damages.push(format!("it has {length} bytes, the manifest says {}", file.bytes));
    }
    damages.extend(segment.check_magic().err().map(detail));
    let entries = segment.all_entries()?;
    let mut services: BTreeMap<(u32, u32), BTreeMap<u32, i128>> = BTreeMap::new();
    for run in entries.chunk_by(|a, b| a.group() == b.group()) {
        let mut runs = Runs::over(run, true, limits::MERGE_READ_BYTES_MAX);
        for entry in run {
            let sums = services.entry(entry.group()).or_default();
            if let Err(error) = check_entry(segment, entry, &mut runs, sums) {
                damages.push(format!("series {}: {}", entry.series, detail(error)));
            }
        }
    }
    let mut buffers = Buffers::default();
    for ((type_id, service), rows) in services {
        match segment.read_service(type_id, service, &mut buffers) {
            Ok(false) => {}
            Ok(true) if damages.is_empty() && !is_sum(&buffers, &rows) => {
                damages.push(format!("the sums of service {service} are not those of its rows"));
            }
            Ok(true) => {}
            Err(error) => damages.push(format!("service {service}: {}", detail(error))),
        }
    }
    let always = TimeRange { from_ms: i64::MIN, to_ms: i64::MAX };
    if let Err(error) = segment.reports(always, &mut |_, _, _| {}) {
        damages.push(format!("reported times: {}", detail(error)));
    }
    Ok(())
}

/// Reads all of a series; adds its rows by stack to those of its service.
fn check_entry(
    segment: &Segment,
    entry: &Entry,
    runs: &mut Runs,
    service: &mut BTreeMap<u32, i128>,
) -> Result<(), StoreError> {
    let (mut sums, mut buffers) = (Buffers::default(), Buffers::default());
    let has_sums = segment.read_sums(entry, runs, &mut sums)?;
    segment.read_stacks(entry, runs, &mut buffers)?;
    segment.read_sets(entry, runs, &mut buffers)?;
    let mut rows: BTreeMap<u32, i128> = BTreeMap::new();
    for (_, part) in entry.parts() {
        segment.read_part(part, runs, &mut buffers)?;
        for (&node, &value) in buffers.nodes.iter().zip(&buffers.values) {
            *rows.entry(node).or_default() += i128::from(value);
        }
    }
    if has_sums && !is_sum(&sums, &rows) {
        return Err(segment.damaged("its sums are not those of its rows"));
    }
    for (node, value) in rows {
        *service.entry(node).or_default() += value;
    }
    Ok(())
}

fn is_sum(sums: &Buffers, rows: &BTreeMap<u32, i128>) -> bool {
    let known = sums.nodes.iter().zip(&sums.values).map(|(&node, &sum)| (node, i128::from(sum)));
    known.eq(rows.iter().map(|(&node, &sum)| (node, sum)))
}
