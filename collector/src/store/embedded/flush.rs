//! From the frozen memtable to files: symbol logs, then segments, then the checkpoint of seen ids, all
//! synced; then the manifest, which makes them count; only then do WAL files go. A crash anywhere before the
//! manifest leaves the WAL in force, and what was written is cut or removed at the next start.

use super::codec::{Reader, Writer};
use super::engine::{Engine, Project, SegmentMap, View};
use super::files;
use super::manifest::{self, Manifest, ProjectFiles, SegmentFile};
use super::memtable::{HOUR_MS, Memtable, ProjectRows, Rows, read_shard};
use super::merged::{Merged, Replaced};
use super::new_segment::NewSegment;
use super::seen::Seen;
use super::segment::{Segment, SegmentWriter, SeriesRows, Span};
use super::symbol_log::{self, Written};
use super::wal;
use crate::profile::{Attribute, ProjectName};
use crate::query::Intervals;
use crate::store::StoreError;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// What to write out: the frozen memtable of the view, and what goes with it.
#[derive(Clone, Debug)]
pub(super) struct Job {
    /// All records of WAL files below are in the frozen memtable or in segments.
    pub(super) wal_floor: u64,
    pub(super) seen: Arc<Seen>,
}

/// The one that writes files other than the WAL.
pub(super) struct Flusher {
    engine: Arc<Engine>,
    manifest: Manifest,
    written: BTreeMap<ProjectName, Written>,
}

impl Flusher {
    /// Reads the folder: manifest, symbols, segments, seen ids; removes what does not belong to it.
    pub(super) fn open(engine: Arc<Engine>) -> Result<(Self, Seen), StoreError> {
        let dir = &engine.dir;
        let manifest = Manifest::read(dir)?;
        let mut written = BTreeMap::new();
        let mut segments = SegmentMap::new();
        for (name, project) in &manifest.projects {
            let path = manifest::symbol_log(dir, name);
            let (symbols, state) = symbol_log::read(&path, project.log_bytes)?;
            engine.restore(Project::with_symbols(name.clone(), symbols));
            written.insert(name.clone(), state);
            let open = |file: &SegmentFile| open_segment(dir, name, file);
            segments
                .insert(name.clone(), project.segments.iter().map(open).collect::<Result<_, _>>()?);
        }
        engine.start_sequence(manifest.next_sequence);
        engine.change_view(|view| {
            view.active.set_clean_to(manifest.wal_clean_to);
            view.deletions = Arc::clone(&manifest.deletions);
            view.segments = Arc::new(segments);
        });
        remove_strangers(&engine, &manifest)?;
        let seen = read_seen(dir, manifest.seen)?;
        let flusher = Self { engine, manifest, written };
        flusher.count_bytes();
        Ok((flusher, seen))
    }

    /// The first WAL file to replay.
    pub(super) fn wal_floor(&self) -> u64 {
        self.manifest.wal_floor
    }

    /// Writes the frozen memtable out. After an error nothing has changed and it may be tried again.
    pub(super) fn flush(&mut self, job: &Job) -> Result<(), StoreError> {
        let mut created = Vec::new();
        let result = self.write_out(job, &mut created);
        if result.is_err() {
            self.remove_unnamed(created);
        }
        result
    }

    /// Removes files of work that failed.
    fn remove_unnamed(&self, created: Vec<PathBuf>) {
        // A manifest that could not be made durable may be in its place all the same: what it names stays.
        if Manifest::read(&self.engine.dir).is_ok_and(|it| it == self.manifest) {
            for path in created {
                // They count for nothing without the manifest; the next start removes what is left.
                drop(self.engine.files.remove(&path));
            }
        }
    }

    fn write_out(&mut self, job: &Job, created: &mut Vec<PathBuf>) -> Result<(), StoreError> {
        let frozen = self.engine.view().frozen.clone().unwrap_or_default();
        let mut next = self.manifest.clone();
        let mut added = SegmentMap::new();
        for name in frozen.project_names() {
            let (Some(project), Some(rows)) = (self.engine.project(&name), frozen.project(&name))
            else {
                continue;
            };
            let files = next.projects.entry(name.clone()).or_default();
            files.log_bytes = self.write_symbols(&project)?;
            let mut segments = Vec::new();
            for hour in hours(&rows) {
                let file = self.write_segment(&name, (&rows, frozen.clean_to()), hour, created)?;
                segments.push(open_segment(&self.engine.dir, &name, &file)?);
                files.segments.push(file);
            }
            added.insert(name, segments);
        }
        let old_seen = self.manifest.seen;
        next.seen = self.engine.next_sequence();
        let seen_path = manifest::seen_path(&self.engine.dir, next.seen);
        created.push(seen_path.clone());
        write_seen(&self.engine, &seen_path, &job.seen)?;
        next.wal_floor = job.wal_floor;
        next.wal_clean_to = frozen.clean_to();
        self.commit(next)?;
        created.clear();
        self.engine.change_view(|view| {
            view.frozen = None;
            add_segments(view, added);
        });
        self.remove_old(old_seen);
        self.count_bytes();
        Ok(())
    }

    /// Removes WAL files and the checkpoint that the manifest no longer needs. A failure costs only space
    /// until the next start, which removes them.
    fn remove_old(&self, old_seen: u64) {
        let Engine { files, dir, .. } = &*self.engine;
        let removed = wal::Wal::remove_below(&**files, &dir.join("wal"), self.manifest.wal_floor)
            .and_then(|()| match old_seen {
                0 => Ok(()),
                sequence => files.remove(&manifest::seen_path(dir, sequence)),
            });
        if let Err(error) = removed {
            tracing::warn!(%error, "cannot remove files that are no longer needed");
        }
    }

    fn write_symbols(&mut self, project: &Project) -> Result<u64, StoreError> {
        let Engine { files, dir, .. } = &*self.engine;
        let path = manifest::symbol_log(dir, &project.name);
        let folder = manifest::project_dir(dir, &project.name);
        let failed = |error| StoreError::io("writing", &path, error);
        files::create_dir(&**files, &folder).map_err(failed)?;
        let state = self.written.entry(project.name.clone()).or_default();
        let mut changed = std::mem::take(&mut project.symbols_mut().changed);
        // The symbols are free again before the disk is waited for: appends need them.
        let encoded = symbol_log::encode(&project.symbols(), &changed, state);
        let written = encoded.and_then(|(frames, written)| {
            symbol_log::append(&**files, &path, state.bytes, &frames)?;
            files.sync_dir(&folder).map(|()| written)
        });
        if written.is_err() {
            let mut symbols = project.symbols_mut();
            symbols.changed.functions.append(&mut changed.functions);
            symbols.changed.locations.append(&mut changed.locations);
        }
        let written = written.map_err(failed)?;
        let bytes = written.bytes;
        *state = written;
        Ok(bytes)
    }

    fn write_segment(
        &self,
        name: &ProjectName,
        (rows, clean_to): (&ProjectRows, u64),
        hour: i64,
        created: &mut Vec<PathBuf>,
    ) -> Result<SegmentFile, StoreError> {
        let new = NewSegment::of(&self.engine, name, (hour * HOUR_MS, Span::Hour), clean_to);
        created.extend(new.paths());
        let mut writer = new.create()?;
        let types = self.engine.project(name).map(|project| {
            let symbols = project.symbols();
            symbols.series.iter().map(|series| series.type_id).collect::<Vec<u32>>()
        });
        let added = add_rows(&mut writer, rows, hour, &types.unwrap_or_default());
        added.map_err(|error| new.failed(error))?;
        let reports = rows.reports();
        let mine: Vec<(u32, &Arc<str>, &Intervals)> = reports
            .iter()
            .filter(|((start, _, _), _)| *start == hour)
            .map(|((_, type_id, host), intervals)| (*type_id, host, intervals))
            .collect();
        new.finish(writer, &mine)
    }

    /// Puts a merged segment in the place of those that it was made of. If one of them was dropped meanwhile, its
    /// rows must not come back: then the new file goes, and nothing else changes.
    pub(super) fn replace(&mut self, merged: &Merged) -> Result<Replaced, StoreError> {
        let Merged { project: name, file, inputs } = merged;
        let mut next = self.manifest.clone();
        let files = next.projects.entry(name.clone()).or_default();
        let found = files.segments.iter().filter(|file| inputs.contains(&file.sequence)).count();
        if found != inputs.len() {
            let Some(file) = file else { return Ok(Replaced::Outdated) };
            let path = file.path(&self.engine.dir, name);
            let removed = self.engine.files.remove(&path);
            removed.map_err(|error| StoreError::io("removing", &path, error))?;
            return Ok(Replaced::Outdated);
        }
        files.segments.retain(|file| !inputs.contains(&file.sequence));
        files.segments.extend(file);
        let segment = file.as_ref().map(|file| open_segment(&self.engine.dir, name, file));
        let committed = segment.transpose().and_then(|segment| self.commit(next).map(|()| segment));
        if committed.is_err() {
            let created = file.iter().map(|file| file.path(&self.engine.dir, name));
            self.remove_unnamed(created.collect());
        }
        let segment = committed?;
        self.engine.change_view(|view| {
            let mut segments = SegmentMap::clone(&view.segments);
            let list = segments.entry(name.clone()).or_default();
            take_out(list, |segment| inputs.contains(&segment.sequence));
            list.extend(segment);
            view.segments = Arc::new(segments);
        });
        self.count_bytes();
        Ok(Replaced::Done)
    }

    /// Notes that no file holds rows of some deletions.
    pub(super) fn mark_erased(&mut self, numbers: &BTreeSet<u64>) -> Result<(), StoreError> {
        let mark = |view: &mut View| Arc::make_mut(&mut view.deletions).mark_erased(numbers);
        self.engine.change_view(mark);
        self.commit(self.manifest.clone())
    }

    /// Makes a manifest the one that counts.
    fn commit(&mut self, mut next: Manifest) -> Result<(), StoreError> {
        next.next_sequence = self.engine.sequence_so_far();
        next.deletions = Arc::clone(&self.engine.view().deletions);
        next.write(&*self.engine.files, &self.engine.dir)?;
        self.manifest = next;
        Ok(())
    }

    /// Drops the days that are too old, then the oldest hours until the folder is within its limit.
    pub(super) fn retain(&mut self) -> Result<(), StoreError> {
        let kept_from_ms = self.engine.kept_from_ms();
        if self.oldest_ms().is_some_and(|oldest_ms| oldest_ms < kept_from_ms) {
            let gone = self.drop_segments(|start_ms| start_ms < kept_from_ms)?;
            let kept_from = jiff::Timestamp::from_millisecond(kept_from_ms).unwrap_or_default();
            tracing::info!(%kept_from, hours = gone, "dropped what is older than is kept");
            self.engine.counters.hours_expired.fetch_add(gone, Ordering::Relaxed);
        }
        let max = self.engine.data_bytes_max;
        while self.engine.disk_bytes() > max {
            let Some(oldest_ms) = self.oldest_ms() else { break };
            let gone = self.drop_segments(|start_ms| start_ms == oldest_ms)?;
            let from = jiff::Timestamp::from_millisecond(oldest_ms).unwrap_or_default();
            tracing::warn!(%from, hours = gone, max, "dropped what is oldest: the disk limit");
            self.engine.counters.hours_dropped.fetch_add(gone, Ordering::Relaxed);
        }
        let is_full = self.engine.disk_bytes() > max;
        if is_full && !self.engine.is_full.load(Ordering::Relaxed) {
            tracing::error!(max, "the data folder is full and holds no hour that could go");
        }
        self.engine.is_full.store(is_full, Ordering::Relaxed);
        Ok(())
    }

    fn oldest_ms(&self) -> Option<i64> {
        let segments = self.manifest.projects.values().flat_map(|project| &project.segments);
        segments.map(|segment| segment.start_ms).min()
    }

    /// Drops the segments with some starts; answers how many hours they held.
    fn drop_segments(&mut self, is_gone: impl Fn(i64) -> bool) -> Result<u64, StoreError> {
        let mut next = self.manifest.clone();
        let mut hours: BTreeSet<i64> = BTreeSet::new();
        for project in next.projects.values_mut() {
            for file in project.segments.iter().filter(|file| is_gone(file.start_ms)) {
                let first = file.start_ms.div_euclid(HOUR_MS);
                hours.extend(first..first + file.span.ms() / HOUR_MS);
            }
            project.segments.retain(|file| !is_gone(file.start_ms));
        }
        self.commit(next)?;
        self.engine.change_view(|view| {
            let mut segments = SegmentMap::clone(&view.segments);
            let lists = segments.values_mut();
            lists.for_each(|list| take_out(list, |segment| is_gone(segment.start_ms)));
            view.segments = Arc::new(segments);
        });
        self.count_bytes();
        Ok(hours.len() as u64)
    }

    fn count_bytes(&self) {
        let project = |project: &ProjectFiles| {
            project.log_bytes + project.segments.iter().map(|segment| segment.bytes).sum::<u64>()
        };
        let files: u64 = self.manifest.projects.values().map(project).sum();
        let seen = manifest::seen_path(&self.engine.dir, self.manifest.seen);
        let seen = std::fs::metadata(seen).map_or(0, |metadata| metadata.len());
        self.engine.counters.file_bytes.store(files + seen, Ordering::Relaxed);
        let wal_bytes = wal::bytes(&self.engine.dir.join("wal"));
        self.engine.counters.wal_bytes.store(wal_bytes, Ordering::Relaxed);
    }
}

fn open_segment(
    dir: &Path,
    name: &ProjectName,
    file: &SegmentFile,
) -> Result<Arc<Segment>, StoreError> {
    Ok(Arc::new(Segment::open(file.path(dir, name), file)?))
}

/// Takes segments out of a list. Their files go when nobody reads them any more.
fn take_out(list: &mut Vec<Arc<Segment>>, is_gone: impl Fn(&Segment) -> bool) {
    list.iter().filter(|segment| is_gone(segment)).for_each(|it| it.remove_when_unused());
    list.retain(|segment| !is_gone(segment));
}

fn add_segments(view: &mut View, added: SegmentMap) {
    let mut segments = SegmentMap::clone(&view.segments);
    for (name, mut list) in added {
        segments.entry(name).or_default().append(&mut list);
    }
    view.segments = Arc::new(segments);
}

/// The hours that rows or reports of a project lie in.
fn hours(rows: &ProjectRows) -> BTreeSet<i64> {
    let mut hours: BTreeSet<i64> = rows.reports().keys().map(|&(hour, _, _)| hour).collect();
    for (_, shard) in rows.shards() {
        for rows in read_shard(&shard).values() {
            let (first, last) =
                (rows.first_ms.div_euclid(HOUR_MS), rows.last_ms.div_euclid(HOUR_MS));
            if first == last {
                hours.insert(first);
            } else {
                hours.extend(rows.times.iter().map(|time_ms| time_ms.div_euclid(HOUR_MS)));
            }
        }
    }
    hours
}

/// Adds the rows of one hour in the order (type, service, series).
fn add_rows(
    writer: &mut SegmentWriter,
    rows: &ProjectRows,
    hour: i64,
    types: &[u32],
) -> std::io::Result<()> {
    let shards = rows.shards();
    let mut order: BTreeMap<(u32, u32, u32), usize> = BTreeMap::new();
    for (position, (service, shard)) in shards.iter().enumerate() {
        for &series in read_shard(shard).keys() {
            let type_id = types.get(series as usize).copied().unwrap_or(u32::MAX);
            order.insert((type_id, *service, series), position);
        }
    }
    for (key, position) in order {
        let shard = read_shard(&shards[position].1);
        let Some(rows) = shard.get(&key.2) else { continue };
        let (columns, dictionary) = rows_of_hour(rows, hour);
        if !columns.times.is_empty() {
            writer.add(key, columns, dictionary)?;
        }
    }
    Ok(())
}

fn rows_of_hour(rows: &Rows, hour: i64) -> (SeriesRows, &[Arc<[Attribute]>]) {
    let start_ms = hour * HOUR_MS;
    let offset = |time_ms: i64| u32::try_from(time_ms - start_ms).unwrap_or(0);
    if [rows.first_ms, rows.last_ms].map(|time_ms| time_ms.div_euclid(HOUR_MS)) == [hour; 2] {
        let columns = SeriesRows {
            times: rows.times.iter().map(|&time_ms| offset(time_ms)).collect(),
            nodes: rows.nodes.clone(),
            values: rows.values.clone(),
            sets: rows.sets.clone(),
        };
        return (columns, &rows.dictionary);
    }
    let mut columns = SeriesRows::default();
    for (at, &time_ms) in rows.times.iter().enumerate() {
        if (start_ms..start_ms + HOUR_MS).contains(&time_ms) {
            columns.times.push(offset(time_ms));
            columns.nodes.push(rows.nodes[at]);
            columns.values.push(rows.values[at]);
            columns.sets.push(rows.sets[at]);
        }
    }
    (columns, &rows.dictionary)
}

fn write_seen(engine: &Engine, path: &Path, seen: &Seen) -> Result<(), StoreError> {
    let mut body = Writer::default();
    seen.encode(&mut body);
    let mut bytes = crc32c::crc32c(&body.bytes).to_le_bytes().to_vec();
    bytes.extend_from_slice(&body.bytes);
    let written = files::write_whole(&*engine.files, path, &bytes);
    written.map_err(|error| StoreError::io("writing", path, error))
}

pub(super) fn read_seen(dir: &Path, sequence: u64) -> Result<Seen, StoreError> {
    if sequence == 0 {
        return Ok(Seen::default());
    }
    let path = manifest::seen_path(dir, sequence);
    let bytes = std::fs::read(&path).map_err(|error| StoreError::io("reading", &path, error))?;
    let damaged = |detail: &str| StoreError::Damaged {
        path: path.display().to_string(),
        detail: detail.to_owned(),
    };
    let (checksum, body) =
        bytes.split_first_chunk::<4>().ok_or_else(|| damaged("it is too short"))?;
    if crc32c::crc32c(body).to_le_bytes() != *checksum {
        return Err(damaged("its checksum is wrong"));
    }
    Seen::decode(&mut Reader::new(body)).map_err(|error| damaged(error.0))
}

/// A half-written manifest, or a checkpoint of what was seen.
fn is_ours_at_the_top(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or("");
    let sequence = name.strip_prefix("seen-").map(|rest| rest.strip_suffix(".tmp").unwrap_or(rest));
    let is_seen = sequence
        .is_some_and(|hex| hex.len() >= 8 && hex.bytes().all(|byte| byte.is_ascii_hexdigit()));
    name == "MANIFEST.tmp" || is_seen
}

/// Removes files of work that did not finish: segments, checkpoints and half-written files that the manifest
/// does not name.
fn remove_strangers(engine: &Engine, manifest: &Manifest) -> Result<(), StoreError> {
    let dir = &engine.dir;
    let mut known: BTreeSet<PathBuf> = BTreeSet::new();
    known.insert(manifest::seen_path(dir, manifest.seen));
    for (name, project) in &manifest.projects {
        known.extend(project.segments.iter().map(|file| file.path(dir, name)));
    }
    let mut pending = vec![dir.join("projects")];
    // The folder itself may hold files of others: only names that nobody else gives are looked at there.
    let mut found = list(dir)?;
    found.retain(|path| path.is_file() && is_ours_at_the_top(path));
    while let Some(folder) = pending.pop() {
        for path in list(&folder)? {
            if path.is_dir() { pending.push(path) } else { found.push(path) }
        }
    }
    let is_ours = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or("");
        name.ends_with(".seg") || name.ends_with(".tmp")
    };
    let ours = |path: &PathBuf| is_ours_at_the_top(path) || is_ours(path);
    for path in found.into_iter().filter(|path| ours(path) && !known.contains(path)) {
        tracing::info!(path = %path.display(), "removed a file of work that did not finish");
        let removed = engine.files.remove(&path);
        removed.map_err(|error| StoreError::io("removing", &path, error))?;
    }
    Ok(())
}

/// The paths in a folder; none if it does not exist.
fn list(folder: &Path) -> Result<Vec<PathBuf>, StoreError> {
    let failed = |error| StoreError::io("reading", folder, error);
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed(error)),
    };
    entries.map(|entry| Ok(entry.map_err(failed)?.path())).collect()
}

/// True if a memtable should become segments: it is large, or the hour of its oldest row is over.
pub(super) fn is_due(memtable: &Memtable, now_ms: i64, wal_bytes: u64, limit: FreezeLimit) -> bool {
    if memtable.is_empty() {
        return false;
    }
    let (since_ms, first_hour) = memtable.age();
    let hour_over = (first_hour + 1) * HOUR_MS + limit.grace_ms <= now_ms;
    let aged = now_ms.saturating_sub(since_ms) >= limit.grace_ms;
    let old = now_ms.saturating_sub(since_ms) >= HOUR_MS + limit.grace_ms;
    memtable.bytes() >= limit.memtable_bytes
        || wal_bytes >= limit.wal_bytes
        || aged && hour_over
        || old
}

/// When a memtable becomes segments.
#[derive(Clone, Copy, Debug)]
pub(super) struct FreezeLimit {
    pub(super) memtable_bytes: u64,
    pub(super) wal_bytes: u64,
    /// How long after the end of an hour its late rows are waited for.
    pub(super) grace_ms: i64,
}
