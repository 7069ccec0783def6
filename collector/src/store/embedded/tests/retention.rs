//! Types that are kept for less time than others.

use super::limits::hour_of;
use super::*;
use crate::store::TypeRetention;
use crate::store::embedded::memtable::HOUR_MS;
use crate::store::retention::DAY_MS;
use std::sync::atomic::AtomicI64;

const SAMPLES: i64 = 1_000;

/// A profile of an hour after the start, 19:00 of a day, of this type.
fn typed(hour: i64, kind: &str) -> WriteBatch {
    let mut batch = hour_of(hour, SAMPLES);
    batch.profiles[0].sample_type.kind = kind.into();
    batch
}

async fn samples(store: &EmbeddedStore, kind: &str, hours: std::ops::Range<i64>) -> u64 {
    let mut selection = everything(kind);
    selection.range.from_ms = START_MS + hours.start * HOUR_MS;
    selection.range.to_ms = START_MS + hours.end * HOUR_MS;
    let merge = MergeQuery { selection, nodes_max: 10, keep_self_top: 0, leaf: None };
    let answer = store.merge(merge).await.unwrap();
    assert!(answer.warnings.is_empty(), "{:?}", answer.warnings);
    answer.samples
}

#[tokio::test(flavor = "multi_thread")]
async fn a_type_goes_before_the_others_and_leaves_their_days_alone() {
    let dir = tempfile::tempdir().unwrap();
    let now_ms = Arc::new(AtomicI64::new(START_MS + 31 * HOUR_MS));
    let shared = Arc::clone(&now_ms);
    let clock = Clock::new(move || shared.load(Ordering::Relaxed));
    let short = TypeRetention { kind: "off_cpu".into(), kept_ms: DAY_MS };
    let keep = EmbeddedOptions {
        retention: Retention::new(10 * DAY_MS).with_type(short).unwrap(),
        clock: clock.clone(),
        ..options(dir.path())
    };
    let store = EmbeddedStore::open(keep).unwrap();
    // Days begin with hours 5 and 29.
    for hour in [0, 5, 28, 29] {
        for kind in ["cpu", "off_cpu"] {
            store.append(typed(hour, kind)).await.unwrap();
        }
        store.flush().await.unwrap();
    }
    // At hour 31, what is of the day of a day before is kept.
    let each = SAMPLES.unsigned_abs();
    assert_eq!(samples(&store, "off_cpu", 0..40).await, 3 * each);
    assert_eq!(samples(&store, "cpu", 0..40).await, 4 * each);
    now_ms.store(START_MS + 53 * HOUR_MS, Ordering::Relaxed);
    assert_eq!(samples(&store, "off_cpu", 0..29).await, 0, "hidden at once");
    assert_eq!(samples(&store, "off_cpu", 0..40).await, each);
    // As large as it is without the days' types: to merge the days alone changes little.
    let all_bytes = store.stats().await.unwrap().disk_bytes;
    store.compact().await.unwrap();
    assert_eq!(samples(&store, "off_cpu", 0..40).await, each);
    assert_eq!(samples(&store, "cpu", 0..40).await, 4 * each);
    let bytes = store.stats().await.unwrap().disk_bytes;
    assert!(3 * bytes < 2 * all_bytes, "{bytes} of {all_bytes}, three of whose eight hours went");
    store.compact().await.unwrap();
    assert_eq!(store.stats().await.unwrap().disk_bytes, bytes, "nothing is left to go");
    drop(store);
    // Nothing hides it here: it is gone from the disk.
    let keep = EmbeddedOptions { clock, ..options(dir.path()) };
    let store = EmbeddedStore::open(keep).unwrap();
    assert_eq!(samples(&store, "off_cpu", 0..40).await, each);
    assert_eq!(samples(&store, "cpu", 0..40).await, 4 * each);
    let stats = store.stats().await.unwrap();
    assert_eq!((stats.segments, stats.merges_failed), (3, 0), "{stats:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hidden_day_is_not_watched_either() {
    let dir = tempfile::tempdir().unwrap();
    let short = TypeRetention { kind: "cpu".into(), kept_ms: DAY_MS };
    let keep = EmbeddedOptions {
        retention: Retention::new(10 * DAY_MS).with_type(short).unwrap(),
        clock: Clock::new(|| START_MS + 31 * HOUR_MS),
        ..options(dir.path())
    };
    let store = EmbeddedStore::open(keep).unwrap();
    // A window of 10 s, half of it before the first day that is kept.
    let mut batch = typed(5, "cpu");
    batch.profiles[0].time_ms = START_MS + 5 * HOUR_MS - 5_000;
    store.append(batch).await.unwrap();
    let mut selection = everything("cpu");
    selection.range.to_ms = START_MS + 40 * HOUR_MS;
    for is_flushed in [false, true] {
        if is_flushed {
            store.flush().await.unwrap();
            store.compact().await.unwrap();
        }
        let coverage = store.coverage(selection.clone()).await.unwrap().answer;
        assert_eq!((coverage.hosts, coverage.host_ms), (1, 5_000));
    }
    // All of it is hidden.
    selection.range.to_ms = START_MS + 5 * HOUR_MS;
    let coverage = store.coverage(selection).await.unwrap().answer;
    assert_eq!((coverage.hosts, coverage.host_ms), (0, 0));
}
