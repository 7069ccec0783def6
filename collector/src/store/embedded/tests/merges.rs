//! Segments that become one: which, when, and what may happen meanwhile.

use super::faults::copy;
use super::faulty::{Failure, Faulty};
use super::limits::{find, hour_of, samples_of, segments_on_disk};
use super::*;
use crate::limits;
use crate::store::embedded::flush::Flusher;
use crate::store::embedded::memtable::HOUR_MS;
use crate::store::embedded::merged::{Due, Replaced, When};
use crate::store::embedded::segment::{Buffers, Span};
use crate::store::retention::DAY_MS;
use hashbrown::HashSet;
use std::sync::atomic::AtomicBool;

/// A store with segments of these hours after the start, 19:00 of a day.
async fn with_hours(dir: &Path, hours: impl IntoIterator<Item = i64>) -> EmbeddedStore {
    let store = open(dir);
    for hour in hours {
        store.append(hour_of(hour, 100)).await.unwrap();
        store.flush().await.unwrap();
    }
    store
}

#[tokio::test(flavor = "multi_thread")]
async fn a_day_becomes_one_segment_and_its_minutes_stay_apart() {
    let dir = tempfile::tempdir().unwrap();
    // More rows than a part has, so that an hour of the day is read without the rest.
    let hours = [5, 6, 7, 28];
    let store = open(dir.path());
    for hour in hours {
        let mut batch = hour_of(hour, 6_000);
        let mut other = hour_of(hour, 50).profiles.remove(0);
        other.labels.host = "another".into();
        batch.profiles.push(other);
        store.append(batch).await.unwrap();
        store.flush().await.unwrap();
    }
    let right = merged(&store).await;
    let before = store.stats().await.unwrap();
    assert_eq!(store.compact().await.unwrap(), 4);
    let after = store.stats().await.unwrap();
    assert_eq!((before.segments, after.segments, after.segments_merged), (4, 1, 4));
    assert!(after.disk_bytes < before.disk_bytes, "{before:?} {after:?}");
    assert_eq!(segments_on_disk(dir.path()), 1, "the inputs are gone");
    for hour in 4..30 {
        let samples = if hours.contains(&hour) { 6_050 } else { 0 };
        assert_eq!(samples_of(&store, hour).await, samples, "hour {hour}");
    }
    assert_eq!(merged(&store).await, right);
    drop(store);
    let store = open(dir.path());
    assert_eq!(merged(&store).await, right);
    // The whole day comes from the sums over both series.
    let view = store.engine.view();
    let segment = view.segments.values().flatten().next().unwrap();
    let entry = &segment.all_entries().unwrap()[0];
    let (type_id, service) = entry.group();
    let mut buffers = Buffers::default();
    assert!(segment.read_service(type_id, service, &mut buffers).unwrap());
    assert_eq!(buffers.values.iter().sum::<i64>(), right.node_total[0]);
    assert!(!segment.read_service(type_id, service + 1, &mut buffers).unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_series_that_is_too_large_at_once_stands_there_several_times() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let rows = limits::MERGE_ROWS_MAX / 2 + 1_000;
    for hour in 5..7 {
        store.append(hour_of(hour, i64::try_from(rows).unwrap())).await.unwrap();
        store.flush().await.unwrap();
    }
    let right = merged(&store).await;
    assert_eq!(store.compact().await.unwrap(), 2);
    assert_eq!(merged(&store).await, right);
    assert_eq!(samples_of(&store, 6).await, rows as u64);
}

/// The flame graph of all days.
async fn merged(store: &EmbeddedStore) -> FlameTree {
    let mut selection = everything("cpu");
    selection.range.to_ms = START_MS + 400 * DAY_MS;
    let merge = MergeQuery { selection, nodes_max: 100, keep_self_top: 0, leaf: None };
    let tree = store.merge(merge).await.unwrap();
    assert!(tree.samples > 0 && tree.warnings.is_empty(), "{tree:?}");
    tree
}

/// What is due at a time, in hours after the start: how many inputs, of which span.
fn due(store: &EmbeddedStore, hours: f64) -> Option<(usize, Span)> {
    #[expect(clippy::cast_possible_truncation, reason = "some hours")]
    let now_ms = START_MS + (hours * HOUR_MS as f64) as i64;
    let due = Due::next(&store.engine.view(), When::At(now_ms), &HashSet::new());
    due.map(|due| (due.inputs.len(), due.span))
}

#[tokio::test(flavor = "multi_thread")]
async fn hours_and_days_are_merged_when_they_are_over() {
    let dir = tempfile::tempdir().unwrap();
    // The day begins with hour 5 and ends with hour 28.
    let store = with_hours(dir.path(), [5, 6, 6, 6]).await;
    assert_eq!(due(&store, 29.9), None, "three segments of an hour are few");
    store.append(hour_of(6, 1)).await.unwrap();
    store.flush().await.unwrap();
    assert_eq!((due(&store, 7.3), due(&store, 7.4)), (None, Some((4, Span::Hour))));
    assert_eq!(due(&store, 29.9), Some((4, Span::Hour)));
    assert_eq!(due(&store, 30.0), Some((5, Span::Day)), "not its hours first");
    store.compact().await.unwrap();
    assert_eq!(due(&store, 100.0), None);
    // Late segments wait for company.
    for late in 0..8 {
        assert_eq!(due(&store, 100.0), None, "{late}");
        let hour = if late < 4 { 7 } else { 8 + late };
        store.append(hour_of(hour, 1)).await.unwrap();
        store.flush().await.unwrap();
        if late == 3 {
            assert_eq!(due(&store, 100.0), Some((4, Span::Hour)));
            break;
        }
    }
    for hour in 10..17 {
        store.append(hour_of(hour, 1)).await.unwrap();
        store.flush().await.unwrap();
    }
    assert_eq!(due(&store, 100.0), Some((12, Span::Day)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_input_is_not_merged_and_other_days_are() {
    let dir = tempfile::tempdir().unwrap();
    let store = with_hours(dir.path(), [5]).await;
    let damaged = find(dir.path(), "seg");
    for hour in [6, 30, 31] {
        store.append(hour_of(hour, 100)).await.unwrap();
        store.flush().await.unwrap();
    }
    let right = std::fs::read(&damaged).unwrap();
    let mut wrong = right.clone();
    wrong[20] ^= 1;
    std::fs::write(&damaged, wrong).unwrap();
    assert!(matches!(store.compact().await, Err(StoreError::Damaged { .. })));
    let stats = store.stats().await.unwrap();
    assert_eq!((stats.segments, stats.merges_failed, stats.segments_merged), (3, 1, 2));
    assert_eq!(segments_on_disk(dir.path()), 3, "nothing half-made is left");
    assert_eq!(store.compact().await.unwrap(), 0, "not tried again and again");
    // What a repair brings back is all there.
    std::fs::write(&damaged, right).unwrap();
    drop(store);
    let store = open(dir.path());
    assert_eq!(store.compact().await.unwrap(), 2);
    assert_eq!(merged(&store).await.samples, 400);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_leaves_the_inputs_in_their_place() {
    let (dir, files) = (tempfile::tempdir().unwrap(), Faulty::default());
    let store = EmbeddedStore::open_with(options(dir.path()), Arc::new(files.clone())).unwrap();
    for hour in [5, 6] {
        store.append(hour_of(hour, 100)).await.unwrap();
        store.flush().await.unwrap();
    }
    files.fail_after(0, 1, Failure::Full);
    assert!(matches!(store.compact().await, Err(StoreError::Busy(_))));
    assert_eq!(segments_on_disk(dir.path()), 2);
    assert_eq!(merged(&store).await.samples, 200);
}

/// Whatever of a merge fails: nothing is left that the manifest does not name, and nothing is gone that it names.
#[tokio::test(flavor = "multi_thread")]
async fn a_merge_that_fails_leaves_the_files_that_count() {
    for failure in [Failure::Full, Failure::Sync, Failure::Folder] {
        for operations in 0.. {
            let (dir, files) = (tempfile::tempdir().unwrap(), Faulty::default());
            let store =
                EmbeddedStore::open_with(options(dir.path()), Arc::new(files.clone())).unwrap();
            for hour in [5, 6] {
                store.append(hour_of(hour, 100)).await.unwrap();
                store.flush().await.unwrap();
            }
            files.fail_after(operations, 1, failure);
            if store.compact().await.is_ok() {
                // The file itself and the manifest, at least.
                assert!(operations >= 2, "{failure:?} {operations}");
                break;
            }
            let on_disk = segments_on_disk(dir.path());
            let found = tempfile::tempdir().unwrap();
            copy(dir.path(), found.path());
            let found = open(found.path());
            assert_eq!(merged(&found).await.samples, 200, "{failure:?} {operations}");
            // The sync of the folder failed when the new manifest was in its place: the inputs are still read.
            let is_new = found.stats().await.unwrap().segments == 1;
            assert_eq!(on_disk, if is_new { 3 } else { 2 }, "{failure:?} {operations}");
            assert!(!is_new || failure == Failure::Folder, "{failure:?} {operations}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_dropped_meanwhile_does_not_come_back() {
    let dir = tempfile::tempdir().unwrap();
    drop(with_hours(dir.path(), [5, 6]).await);
    let keep = Keep { data_bytes_max: u64::MAX, retention: Retention::new(DAY_MS) };
    let now_ms = Arc::new(std::sync::atomic::AtomicI64::new(START_MS));
    let clock = Arc::clone(&now_ms);
    let clock = Clock::new(move || clock.load(Ordering::Relaxed));
    let engine = Arc::new(Engine::new(Arc::new(Disk), dir.path().to_owned(), keep, clock));
    let (mut flusher, _) = Flusher::open(Arc::clone(&engine)).unwrap();
    let due = Due::next(&engine.view(), When::Now, &HashSet::new()).unwrap();
    let merged = due.merge(&engine, &AtomicBool::new(false)).unwrap();
    now_ms.store(START_MS + 10 * DAY_MS, Ordering::Relaxed);
    flusher.retain().unwrap();
    assert_eq!(flusher.replace(&merged).unwrap(), Replaced::Outdated);
    drop(due);
    assert_eq!(engine.view().segments.values().map(Vec::len).sum::<usize>(), 0);
    assert_eq!(segments_on_disk(dir.path()), 0);
    // Who stops a merge has nothing left of it either.
    let store = with_hours(dir.path(), [300, 301]).await;
    let due = Due::next(&store.engine.view(), When::Now, &HashSet::new()).unwrap();
    let stopped = due.merge(&store.engine, &AtomicBool::new(true));
    assert!(matches!(stopped, Err(StoreError::Abandoned)));
    assert_eq!(segments_on_disk(dir.path()), 2);
}
