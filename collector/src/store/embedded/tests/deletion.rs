//! Deletions: hidden at once, gone from every file, in force across restarts, and never of what came later.

use super::faults::copy;
use super::faulty::{Failure, Faulty};
use super::limits::{find, hour_of, samples_of, segments_on_disk};
use super::*;
use crate::limits;
use crate::profile::ProfileId;
use crate::store::embedded::memtable::HOUR_MS;
use crate::store::embedded::segment::Entry;
use crate::store::retention::DAY_MS;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Command as Process, Stdio};
use std::time::Duration;

/// Of everything before some hours after the start.
fn before(id: u128, hours: f64) -> Deletion {
    #[expect(clippy::cast_possible_truncation, reason = "some hours")]
    let before_ms = START_MS + (hours * HOUR_MS as f64) as i64;
    Deletion { id: DeletionId(id), project: sample_data::project(), service: None, before_ms }
}

/// A store with 100 samples in each of these hours, the last one in the log alone.
async fn with_hours(dir: &Path, hours: &[i64]) -> EmbeddedStore {
    let store = open(dir);
    for (at, &hour) in hours.iter().enumerate() {
        store.append(hour_of(hour, 100)).await.unwrap();
        if at + 1 < hours.len() {
            store.flush().await.unwrap();
        }
    }
    store
}

/// The ids of deletions whose samples may lie in files.
fn pending(store: &EmbeddedStore) -> Vec<u128> {
    let deletions = Arc::clone(&store.engine.view().deletions);
    deletions.pending().map(|one| one.deletion.id.0).collect()
}

/// Samples in the files of segments, hidden or not.
fn samples_on_disk(store: &EmbeddedStore) -> u64 {
    let view = store.engine.view();
    let segments = view.segments.values().flatten();
    segments.flat_map(|it| it.all_entries().unwrap()).map(Entry::samples).sum()
}

/// Bytes of the files of the log.
pub(super) fn log_bytes(dir: &Path) -> u64 {
    let files = std::fs::read_dir(dir.join("wal")).unwrap();
    files.map(|file| file.unwrap().metadata().unwrap().len()).sum()
}

/// Samples of an hour of [`hour_of`] from a part of it on.
fn samples_from(part: f64) -> u64 {
    let first = START_MS + 5 * HOUR_MS;
    #[expect(clippy::cast_possible_truncation, reason = "a part of an hour")]
    let from_ms = first + (part * HOUR_MS as f64) as i64;
    let samples = &hour_of(5, 100).profiles[0].samples;
    samples.iter().filter(|sample| sample.time_ms >= from_ms).count() as u64
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_deleted_is_in_no_answer_at_once_and_later_in_no_file() {
    let dir = tempfile::tempdir().unwrap();
    let store = with_hours(dir.path(), &[5, 6, 7, 8]).await;
    let left = samples_from(0.5);
    assert!(left > 20 && left < 80, "{left}");
    store.delete(before(1, 6.5)).await.unwrap();
    let shown = [(5, 0), (6, left), (7, 100), (8, 100)];
    for (hour, samples) in shown {
        assert_eq!(samples_of(&store, hour).await, samples, "hour {hour}");
    }
    assert_eq!((segments_on_disk(dir.path()), samples_on_disk(&store)), (3, 300), "hidden alone");
    let log = log_bytes(dir.path());
    store.erase(DeletionId(1)).await.unwrap();
    // The first hour is gone, the second was written anew, and the log went to a segment.
    assert_eq!((segments_on_disk(dir.path()), samples_on_disk(&store)), (3, 200 + left));
    assert!(log > 0 && log_bytes(dir.path()) == 0, "the log held the rows, too");
    drop(store);
    let store = open(dir.path());
    for (hour, samples) in shown {
        assert_eq!(samples_of(&store, hour).await, samples, "hour {hour} after a restart");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_between_the_answer_and_the_erasure_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = with_hours(dir.path(), &[5, 6]).await;
    store.delete(before(1, 6.5)).await.unwrap();
    let left = samples_from(0.5);
    for _ in 0..3 {
        assert_eq!((samples_of(&store, 5).await, samples_of(&store, 6).await), (0, left));
        drop(store);
        store = open(dir.path());
    }
    // What comes now is new, whatever its time.
    store.append(hour_of(5, 10)).await.unwrap();
    store.delete(before(1, 6.5)).await.unwrap();
    assert_eq!((samples_of(&store, 5).await, samples_of(&store, 6).await), (10, left));
    drop(store);
    store = open(dir.path());
    assert_eq!((samples_of(&store, 5).await, samples_of(&store, 6).await), (10, left));
    store.erase(DeletionId(1)).await.unwrap();
    assert_eq!(samples_on_disk(&store), 10 + left);
    store.delete(before(1, 6.5)).await.unwrap();
    store.erase(DeletionId(1)).await.unwrap();
    assert_eq!(samples_of(&store, 5).await, 10, "asked for again, it is the same deletion");
    store.delete(before(2, 6.5)).await.unwrap();
    assert_eq!(samples_of(&store, 5).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_day_loses_one_service_and_keeps_the_others() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    for hour in [5, 6, 7] {
        let mut batch = hour_of(hour, 100);
        let mut other = batch.profiles[0].clone();
        other.labels.service = "db".into();
        batch.profiles.push(other);
        store.append(batch).await.unwrap();
        store.flush().await.unwrap();
    }
    assert_eq!(store.compact().await.unwrap(), 3);
    let deletion = Deletion { service: Some("db".into()), ..before(1, 6.5) };
    store.delete(deletion).await.unwrap();
    let left = samples_from(0.5);
    let mut selection = everything("cpu");
    selection.range.to_ms = START_MS + 10 * DAY_MS;
    let coverage = store.coverage(selection.clone()).await.unwrap();
    assert_eq!(coverage.answer.host_ms, 30_000, "the host was watched all the same");
    for erased in [false, true] {
        if erased {
            store.erase(DeletionId(1)).await.unwrap();
            assert_eq!(samples_on_disk(&store), 300 + left + 100);
        }
        let rows = store.services(selection.clone(), 2).await.unwrap().answer;
        let mut rows: Vec<_> = rows.into_iter().map(|row| (row.service, row.samples)).collect();
        rows.sort();
        assert_eq!(rows, [("api".to_owned(), 300), ("db".to_owned(), left + 100)]);
    }
    store.delete(before(2, 8.0)).await.unwrap();
    assert_eq!(store.coverage(selection).await.unwrap().answer.host_ms, 0);
    store.erase(DeletionId(2)).await.unwrap();
    assert_eq!(segments_on_disk(dir.path()), 0, "a segment of which nothing is left goes");
}

/// Rows that wait to be written when a deletion comes are written whole, and hidden in their segment.
#[tokio::test(flavor = "multi_thread")]
async fn rows_that_wait_to_be_written_are_taken_and_later_ones_are_not() {
    let (dir, files) = (tempfile::tempdir().unwrap(), Faulty::default());
    let store = EmbeddedStore::open_with(options(dir.path()), Arc::new(files.clone())).unwrap();
    store.append(hour_of(5, 100)).await.unwrap();
    files.fail_after(0, 2, Failure::Full);
    assert!(matches!(store.flush().await, Err(StoreError::Busy(_))));
    assert!(store.engine.view().frozen.is_some(), "they wait");
    files.fail_after(0, 0, Failure::Full);
    store.delete(before(1, 5.5)).await.unwrap();
    let left = samples_from(0.5);
    assert_eq!(samples_of(&store, 5).await, left);
    store.append(hour_of(5, 10)).await.unwrap();
    store.flush().await.unwrap();
    assert_eq!((samples_of(&store, 5).await, samples_on_disk(&store)), (left + 10, 110));
    drop(store);
    let store = open(dir.path());
    assert_eq!(samples_of(&store, 5).await, left + 10);
    store.erase(DeletionId(1)).await.unwrap();
    assert_eq!((samples_of(&store, 5).await, samples_on_disk(&store)), (left + 10, left + 10));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_segment_stays_hidden_until_it_can_be_read() {
    let dir = tempfile::tempdir().unwrap();
    let store = with_hours(dir.path(), &[5, 5]).await;
    store.flush().await.unwrap();
    let path = find(dir.path(), "seg");
    let right = std::fs::read(&path).unwrap();
    store.delete(before(1, 5.5)).await.unwrap();
    let mut wrong = right.clone();
    wrong[20] ^= 1;
    std::fs::write(&path, wrong).unwrap();
    let erased = store.erase(DeletionId(1)).await;
    assert!(matches!(erased, Err(StoreError::Damaged { .. })), "{erased:?}");
    std::fs::write(&path, right).unwrap();
    let left = samples_from(0.5);
    assert_eq!((samples_of(&store, 5).await, samples_on_disk(&store)), (2 * left, 100 + left));
    store.erase(DeletionId(1)).await.unwrap();
    assert_eq!(samples_on_disk(&store), 2 * left, "tried again when it can be read");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_erased_stays_so_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let store = with_hours(dir.path(), &[5, 6]).await;
    store.flush().await.unwrap();
    store.delete(before(1, 5.5)).await.unwrap();
    store.erase(DeletionId(1)).await.unwrap();
    assert!(log_bytes(dir.path()) > 0, "no row came after it: it stays in the log");
    drop(store);
    let store = open(dir.path());
    assert_eq!(pending(&store), []);
    let left = samples_from(0.5);
    assert_eq!((samples_of(&store, 5).await, samples_on_disk(&store)), (left, left + 100));
}

/// A deletion that failed is in the log all the same, and the process dies: the one after it is in force.
#[tokio::test(flavor = "multi_thread")]
async fn a_deletion_that_failed_is_never_in_the_place_of_another() {
    let (dir, files) = (tempfile::tempdir().unwrap(), Faulty::default());
    let store = EmbeddedStore::open_with(options(dir.path()), Arc::new(files.clone())).unwrap();
    store.append(hour_of(5, 100)).await.unwrap();
    store.flush().await.unwrap();
    store.append(hour_of(6, 100)).await.unwrap();
    files.fail_after(0, 2, Failure::Uncut);
    assert!(matches!(store.delete(before(1, 5.5)).await, Err(StoreError::Io { .. })));
    assert_eq!((samples_of(&store, 5).await, samples_of(&store, 6).await), (100, 100));
    store.delete(before(2, 6.5)).await.unwrap();
    let shown = (0, samples_from(0.5));
    assert_eq!((samples_of(&store, 5).await, samples_of(&store, 6).await), shown);
    let found = tempfile::tempdir().unwrap();
    copy(dir.path(), found.path());
    let found = open(found.path());
    assert_eq!((samples_of(&found, 5).await, samples_of(&found, 6).await), shown);
    assert_eq!(pending(&found), [1, 2], "its record was found");
    let deletions = Arc::clone(&found.engine.view().deletions);
    let numbers: Vec<u64> = deletions.pending().map(|one| one.number).collect();
    assert_eq!(numbers, [1, 2]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_segment_holds_up_only_deletions_of_its_rows() {
    let dir = tempfile::tempdir().unwrap();
    let store = with_hours(dir.path(), &[5]).await;
    store.flush().await.unwrap();
    let path = find(dir.path(), "seg");
    store.append(hour_of(6, 100)).await.unwrap();
    store.flush().await.unwrap();
    let of_db = Deletion { service: Some("db".into()), ..before(2, 7.0) };
    let of_api = Deletion { service: Some("api".into()), ..before(4, 5.75) };
    for deletion in [before(1, 5.5), of_db, before(3, 4.0), of_api] {
        store.delete(deletion).await.unwrap();
    }
    let right = std::fs::read(&path).unwrap();
    let mut wrong = right.clone();
    wrong[20] ^= 1;
    std::fs::write(&path, wrong).unwrap();
    store.erase(DeletionId(3)).await.unwrap();
    assert_eq!(pending(&store), [1, 4], "the damaged segment has rows of these alone");
    for id in [1, 4] {
        let erased = store.erase(DeletionId(id)).await;
        assert!(matches!(erased, Err(StoreError::Damaged { .. })), "{erased:?}");
    }
    assert_eq!((pending(&store), samples_on_disk(&store)), (vec![1, 4], 200));
    std::fs::write(&path, right).unwrap();
    store.erase(DeletionId(4)).await.unwrap();
    let left = samples_from(0.75) + 100;
    assert_eq!((pending(&store), samples_on_disk(&store)), (vec![], left));
}

#[tokio::test(flavor = "multi_thread")]
async fn deletions_under_way_are_bounded() {
    let dir = tempfile::tempdir().unwrap();
    let store = with_hours(dir.path(), &[5]).await;
    let max = limits::DELETIONS_PENDING_MAX as u128;
    for id in 0..max {
        store.delete(before(id, 1.0)).await.unwrap();
    }
    assert!(matches!(store.delete(before(max, 1.0)).await, Err(StoreError::Busy(_))));
    store.delete(before(0, 1.0)).await.unwrap();
    store.erase(DeletionId(max - 1)).await.unwrap();
    store.delete(before(max, 1.0)).await.unwrap();
    assert_eq!(samples_of(&store, 5).await, 100);
}

const CHILD_DIR: &str = "VESTA_TEST_DELETION_DIR";
const RUNS: u64 = 6;
/// Profiles between two deletions.
const STEP: u64 = 25;

/// The profile of a sequence lies that many milliseconds after the start; its one sample has value 1.
fn numbered(sequence: u64) -> WriteBatch {
    let mut batch = one_profile("api", ProfileId::Agent { boot: 7, sequence }, &[(&["main"], 1)]);
    batch.profiles[0].samples[0].time_ms = START_MS + i64::try_from(sequence).unwrap();
    batch
}

/// Of all profiles below a sequence.
fn below(sequence: u64) -> Deletion {
    let before_ms = START_MS + i64::try_from(sequence).unwrap();
    Deletion { before_ms, ..before(sequence.into(), 0.0) }
}

/// The child: appends and deletes until it is killed; does nothing in an ordinary test run.
#[test]
fn child() {
    let Ok(dir) = std::env::var(CHILD_DIR) else { return };
    runtime().block_on(async {
        let store = Arc::new(open(Path::new(&dir)));
        let first = store.stats().await.unwrap().profiles_duplicate;
        assert_eq!(first, 0);
        for sequence in 0.. {
            // Sequences of earlier runs are known, and what was deleted of them does not come back.
            store.append(numbered(sequence)).await.unwrap();
            writeln!(std::io::stdout(), "appended {sequence}").unwrap();
            if sequence % STEP == STEP - 1 {
                let deletion = below(sequence - STEP / 2);
                store.delete(deletion.clone()).await.unwrap();
                writeln!(std::io::stdout(), "deleted {}", sequence - STEP / 2).unwrap();
                if sequence % (4 * STEP) == STEP - 1 {
                    let store = Arc::clone(&store);
                    tokio::spawn(async move { store.erase(deletion.id).await.unwrap() });
                } else if sequence % (4 * STEP) == 2 * STEP - 1 {
                    store.flush().await.unwrap();
                    store.compact().await.unwrap();
                }
            }
        }
    });
}

/// The numbers that the child said behind a word.
fn said(lines: &[String], word: &str) -> Vec<u64> {
    let number = |line: &String| line.strip_prefix(word)?.trim().parse().ok();
    lines.iter().filter_map(number).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn kill_9_brings_nothing_back_and_takes_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let (mut appended, mut deleted) = (0, 0);
    for run in 0..RUNS {
        let mut child = Process::new(std::env::current_exe().unwrap())
            .args(["--exact", "store::embedded::tests::deletion::child", "--nocapture"])
            .env(CHILD_DIR, dir.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let reader =
            std::thread::spawn(move || lines.map_while(Result::ok).collect::<Vec<String>>());
        tokio::time::sleep(Duration::from_millis(250 + 130 * run)).await;
        child.kill().unwrap();
        child.wait().unwrap();
        let lines = reader.join().unwrap();
        appended = appended.max(said(&lines, "appended ").into_iter().max().map_or(0, |at| at + 1));
        deleted = deleted.max(said(&lines, "deleted ").into_iter().max().unwrap_or(0));
        let store = open(dir.path());
        let mut selection = everything("cpu");
        selection.range.to_ms = START_MS + sample_data::SPAN_MS;
        let count = async |from: u64, to: u64| {
            let mut selection = selection.clone();
            selection.range.from_ms = START_MS + i64::try_from(from).unwrap();
            selection.range.to_ms = START_MS + i64::try_from(to).unwrap();
            let merge = MergeQuery { selection, nodes_max: 10, keep_self_top: 0, leaf: None };
            store.merge(merge).await.unwrap().samples
        };
        assert_eq!(count(0, deleted).await, 0, "run {run}: deleted below {deleted}");
        // One deletion more may have come into force without its answer.
        let next = if deleted == 0 { STEP - 1 - STEP / 2 } else { deleted + STEP };
        let is_next = count(deleted, next.min(appended)).await == 0;
        let from = if is_next { next } else { deleted };
        let (found, all) = (count(from, appended).await, appended.saturating_sub(from));
        assert_eq!(found, all, "run {run}: {from}..{appended}");
        let ahead = count(appended, appended + 1_000).await;
        assert!(ahead <= 1, "run {run}: {ahead} more than were acknowledged");
    }
    assert!(appended > 4 * STEP && deleted > STEP, "{appended} appended, below {deleted} deleted");
}
