//! The set in the embedded engine: how fast it gets there, how large it is, how long answers take.

use crate::batches::Batches;
use crate::data_set::{DataSet, HOUR_MS, Row, START_MS};
use crate::figures::{Report, Times, progress};
use crate::folder::{Folder, bytes_below, forget_pages};
use crate::peer::Peer;
use crate::questions::{self, Merge, Truth};
use anyhow::{Context as _, Result, ensure};
use collector::profile::WriteBatch;
use collector::store::ProfileStore as _;
use collector::store::Retention;
use collector::store::embedded::{Clock, EmbeddedOptions, EmbeddedStore};
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

/// Samples of a batch at most.
const BATCH: usize = 100_000;
/// Samples in the memtable that are worth writing out at the end of an hour; the full set has 595,000 an hour.
const FLUSH: usize = 400_000;
/// Answers of which the best counts.
const RUNS: usize = 5;
/// Answers from cold files of which the median counts.
const COLD_RUNS: usize = 3;

/// The set in a folder, and what is asked of it.
pub(crate) struct Engine<'a> {
    pub(crate) runtime: &'a Runtime,
    pub(crate) set: &'a DataSet,
    pub(crate) truth: &'a Truth,
    pub(crate) folder: &'a Folder,
    pub(crate) report: Report,
}

/// A batch, and whether the memtable is to be written out behind it.
struct Part {
    batch: WriteBatch,
    /// Samples and batches of the set up to its end.
    behind: (usize, u64),
    samples: usize,
    ends: bool,
}

/// How writing went.
#[derive(Default)]
struct Written {
    appended: usize,
    appending: Duration,
    flushing: Duration,
    /// Samples that were written to segments meanwhile.
    flushed: usize,
    /// Samples behind the last flush.
    waiting: usize,
    segments: u64,
}

/// Opens a store in which no hour is over: nothing is merged before it is asked for.
pub(crate) fn open(folder: &Path) -> Result<EmbeddedStore> {
    let options = EmbeddedOptions {
        data_dir: folder.to_owned(),
        data_bytes_max: Some(u64::MAX),
        retention: Retention::default(),
        clock: Clock::new(|| START_MS),
    };
    EmbeddedStore::open(options).with_context(|| format!("open {}", folder.display()))
}

impl Engine<'_> {
    /// Writes the set where it is not there yet, and asks all questions of it and of the peer.
    pub(crate) fn measure(&self, peer: &mut Option<Peer>) -> Result<()> {
        let path = self.folder.store();
        if self.folder.written()?.0 < self.set.samples {
            self.write(&path)?;
        }
        let start = Instant::now();
        let store = open(&path)?;
        self.report.say("open", start.elapsed().as_secs_f64() * 1e3, "ms")?;
        if self.folder.is_merged() {
            progress("its days are merged already: no questions to segments of hours");
        } else {
            self.ask(&store, peer.as_mut(), true)?;
            self.merge_days(&store)?;
            self.folder.mark_merged()?;
        }
        let bytes = crate::precise(bytes_below(&path)?) / crate::float(self.set.samples);
        let peer_bytes = peer.as_mut().map(Peer::bytes_per_row).transpose()?;
        self.report.beside("bytes_per_sample", bytes, "bytes", peer_bytes)?;
        self.ask(&store, peer.as_mut(), false)
    }

    /// Appends the set in order of time, and has its hours written to segments. It goes on where it ended: what is in
    /// segments without a mark is appended again, and known by its ids.
    fn write(&self, path: &Path) -> Result<()> {
        let (set, from) = (self.set, self.folder.written()?);
        progress(&format!("writing {} samples behind the first {}", set.samples - from.0, from.0));
        let store = open(path)?;
        let stats = || self.runtime.block_on(store.stats());
        let replayed = stats()?.samples_stored;
        let (sender, parts): (SyncSender<Part>, Receiver<Part>) = sync_channel(2);
        let written = std::thread::scope(|scope| {
            scope.spawn(move || make_parts(set, from, &sender));
            let mut written = Written::default();
            for part in parts {
                self.take(&store, part, &mut written)?;
            }
            anyhow::Ok(written)
        })?;
        let Written { appended, appending, flushing, flushed, .. } = written;
        let stored = stats()?.samples_stored - replayed;
        ensure!(stored == appended as u64, "{stored} samples stored of {appended}");
        let rate = |samples: usize, took: Duration| crate::float(samples) / took.as_secs_f64();
        let say = |figure, value| self.report.say(figure, value, "samples/s");
        say("append_samples_per_s", rate(appended, appending))?;
        if flushed > 0 {
            say("segment_write_samples_per_s", rate(flushed, flushing))?;
        }
        Ok(())
    }

    fn take(&self, store: &EmbeddedStore, part: Part, written: &mut Written) -> Result<()> {
        let Part { batch, behind, samples, ends } = part;
        let start = Instant::now();
        let ack = self.runtime.block_on(store.append(batch))?;
        if ack.repeated.is_empty() {
            written.appending += start.elapsed();
            written.appended += samples;
            written.waiting += samples;
        }
        if ends {
            let before = self.runtime.block_on(store.stats())?.segments;
            let start = Instant::now();
            self.runtime.block_on(store.flush())?;
            // Where the log grew too long (while all stacks are new) some of it was written before.
            if before == written.segments {
                written.flushing += start.elapsed();
                written.flushed += written.waiting;
            }
            self.folder.mark_written(behind.0, behind.1)?;
            written.waiting = 0;
            written.segments = self.runtime.block_on(store.stats())?.segments;
        }
        Ok(())
    }

    fn merge_days(&self, store: &EmbeddedStore) -> Result<()> {
        progress("merging days");
        let start = Instant::now();
        let merged = self.runtime.block_on(store.compact())?;
        let rate = crate::float(self.set.samples) / start.elapsed().as_secs_f64();
        ensure!(merged > 0, "nothing was merged");
        self.report.say("day_merge_samples_per_s", rate, "samples/s")
    }

    /// Asks: of the hour while its segments are those of hours, then everything.
    fn ask(&self, store: &EmbeddedStore, mut peer: Option<&mut Peer>, hours: bool) -> Result<()> {
        for merge in &self.truth.merges {
            let of_hour = merge.question.is_of_hour();
            if of_hour || !hours {
                let mut figure = merge.question.figure.to_owned();
                // An hour long ago lies in the segment of its day.
                figure.push_str(if of_hour && !hours { "_of_day" } else { "" });
                let peer =
                    peer.as_deref_mut().map(|peer| peer.merge(merge, self.set)).transpose()?;
                self.time(&figure, peer, || self.merge(store, merge))?;
            }
        }
        if hours {
            return Ok(());
        }
        let peer = peer.map(|peer| peer.timeline(self.set)).transpose()?;
        let query = questions::timeline(self.set);
        self.time("timeline_7d", peer, || {
            let start = Instant::now();
            let told = self.runtime.block_on(store.timeline(query.clone()))?;
            let took = start.elapsed();
            ensure!(told.warnings.is_empty(), "timeline_7d: {:?}", told.warnings);
            self.truth.check_timeline(&told.answer).map(|()| took)
        })
    }

    /// How long a merge takes, if its answer is right.
    fn merge(&self, store: &EmbeddedStore, merge: &Merge) -> Result<Duration> {
        let query = merge.question.merge(self.set);
        let start = Instant::now();
        let answer = self.runtime.block_on(store.merge(query))?;
        let took = start.elapsed();
        merge.check(self.set, &answer).map(|()| took)
    }

    fn time(
        &self,
        figure: &str,
        peer: Option<f64>,
        ask: impl Fn() -> Result<Duration>,
    ) -> Result<()> {
        ask()?; // what is derived from symbols is there now
        let times = |runs: usize, before: &dyn Fn() -> Result<()>| {
            let run = |_| before().and_then(|()| Ok(ask()?.as_secs_f64() * 1e3));
            anyhow::Ok(Times::new((0..runs).map(run).collect::<Result<_>>()?))
        };
        let warm = times(RUNS, &|| Ok(()))?;
        self.report.beside(figure, warm.best(), "ms", peer)?;
        self.report.say(&format!("{figure}_median"), warm.quantile(50), "ms")?;
        let cold = times(COLD_RUNS, &|| forget_pages(&self.folder.store()))?;
        self.report.say(&format!("{figure}_cold"), cold.quantile(50), "ms")
    }
}

/// The set in batches behind so many samples and batches; ends early if nobody takes them.
fn make_parts(set: &DataSet, (samples, mut batch): (usize, u64), parts: &SyncSender<Part>) {
    let mut batches = Batches::new(set);
    let mut rows: Vec<Row> = Vec::with_capacity(BATCH);
    let (mut behind, mut waiting) = (samples, 0);
    let mut all = set.rows().skip(samples).peekable();
    while let Some(row) = all.next() {
        let hour = row.time_ms.div_euclid(HOUR_MS);
        rows.push(row);
        let next = all.peek().map(|next| next.time_ms.div_euclid(HOUR_MS));
        let is_hour_over = next != Some(hour);
        if !is_hour_over && rows.len() < BATCH {
            continue;
        }
        let samples = rows.len();
        behind += samples;
        waiting += samples;
        batch += 1;
        let ends = is_hour_over && waiting >= FLUSH || next.is_none();
        waiting = if ends { 0 } else { waiting };
        let whole = batches.batch(std::mem::take(&mut rows), batch);
        if parts.send(Part { batch: whole, behind: (behind, batch), samples, ends }).is_err() {
            return;
        }
    }
}
