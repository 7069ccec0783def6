//! The limit of the disk, late data, damage.

use super::*;
use crate::profile::ProfileId;
use crate::store::embedded::memtable::HOUR_MS;
use crate::store::retention::DAY_MS;

/// A profile of `samples` samples, spread over an hour from `hour` hours after the start on.
pub(super) fn hour_of(hour: i64, samples: i64) -> WriteBatch {
    let mut batch = one_profile("api", ProfileId::None, &[(&["main", "leaf"], 1)]);
    let profile = &mut batch.profiles[0];
    profile.time_ms += hour * HOUR_MS;
    let first = profile.samples[0];
    profile.samples = (0..samples)
        .map(|at| {
            let mut sample = first;
            // Pseudo-random, so that it does not compress to nothing.
            sample.time_ms = START_MS + hour * HOUR_MS + (at * 1_103_515_245 + 12_345) % HOUR_MS;
            sample.value = 1 + (at * 69_069) % 1_000_003;
            sample
        })
        .collect();
    batch
}

pub(super) async fn samples_of(store: &EmbeddedStore, hour: i64) -> u64 {
    let mut selection = everything("cpu");
    selection.range.from_ms = START_MS + hour * HOUR_MS;
    selection.range.to_ms = selection.range.from_ms + HOUR_MS;
    let merge = MergeQuery { selection, nodes_max: 10, keep_self_top: 0, leaf: None };
    store.merge(merge).await.unwrap().samples
}

#[tokio::test(flavor = "multi_thread")]
async fn at_the_limit_the_oldest_hour_goes() {
    let dir = tempfile::tempdir().unwrap();
    let options = EmbeddedOptions { data_bytes_max: Some(400_000), ..options(dir.path()) };
    let store = EmbeddedStore::open(options.clone()).unwrap();
    for hour in 0..8 {
        store.append(hour_of(hour, 20_000)).await.unwrap();
        store.flush().await.unwrap();
        assert_eq!(samples_of(&store, hour).await, 20_000, "the newest hour stays");
    }
    let stats = store.stats().await.unwrap();
    assert!(stats.disk_bytes <= 400_000, "{stats:?}");
    assert!(stats.hours_dropped > 0 && stats.segments > 1, "{stats:?}");
    assert_eq!(samples_of(&store, 0).await, 0);
    assert_eq!(stats.segments + stats.hours_dropped, 8);
    drop(store);
    let store = EmbeddedStore::open(options).unwrap();
    assert_eq!(store.stats().await.unwrap().segments, stats.segments);
    assert_eq!(samples_of(&store, 7).await, 20_000);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_that_nothing_fits_in_turns_appends_away() {
    let dir = tempfile::tempdir().unwrap();
    let options = EmbeddedOptions { data_bytes_max: Some(100), ..options(dir.path()) };
    let store = EmbeddedStore::open(options).unwrap();
    store.append(hour_of(0, 100)).await.unwrap();
    store.flush().await.unwrap();
    assert!(matches!(store.append(hour_of(1, 100)).await, Err(StoreError::Busy(_))));
}

#[tokio::test(flavor = "multi_thread")]
async fn late_data_makes_a_further_segment_of_its_hour() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    for (hour, samples) in [(0, 10), (1, 10), (0, 5)] {
        store.append(hour_of(hour, samples)).await.unwrap();
        store.flush().await.unwrap();
    }
    assert_eq!(store.stats().await.unwrap().segments, 3);
    assert_eq!((samples_of(&store, 0).await, samples_of(&store, 1).await), (15, 10));
}

#[tokio::test(flavor = "multi_thread")]
async fn every_damaged_byte_of_a_segment_is_noticed_or_harmless() {
    for hours in [1, 2] {
        every_damaged_byte(hours).await;
    }
}

/// Of the segment of an hour, or of a day that was merged of several.
async fn every_damaged_byte(hours: i64) {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    for hour in 0..hours {
        let mut batch = hour_of(hour, 300);
        batch.profiles.extend(one_profile("db", ProfileId::None, &[(&["main"], 3)]).profiles);
        store.append(batch).await.unwrap();
        store.flush().await.unwrap();
    }
    store.compact().await.unwrap();
    assert_eq!(segments_on_disk(dir.path()), 1);
    let right = merged(&store).await.unwrap();
    drop(store);
    let segment = find(dir.path(), "seg");
    let bytes = std::fs::read(&segment).unwrap();
    for at in (0..bytes.len()).step_by(7) {
        let mut wrong = bytes.clone();
        wrong[at] ^= 0x10;
        std::fs::write(&segment, &wrong).unwrap();
        let store = open(dir.path());
        let answer = merged(&store).await.unwrap();
        if answer.warnings.is_empty() {
            assert_eq!(answer, right, "byte {at}");
        } else {
            assert!(answer.samples <= right.samples, "byte {at}");
            assert!(answer.warnings[0].contains(".seg"), "{:?}", answer.warnings);
            assert!(!answer.warnings[0].contains('/'), "{:?}", answer.warnings);
        }
        others_say_what_they_leave_out(&store, &right, at).await;
    }
}

/// Every other answer is the right one too, or says that it is not.
async fn others_say_what_they_leave_out(store: &EmbeddedStore, right: &FlameTree, at: usize) {
    let cpu = || everything("cpu");
    let total = i128::from(right.node_total[0]);
    let timeline = TimelineQuery {
        selection: cpu(),
        by: Some("process.pid".to_owned()),
        step_ms: 60_000,
        series_max: 10,
    };
    let sums = |line: &Timeline| line.series.iter().flat_map(|(_, sums)| sums).sum::<i64>();
    let line = store.timeline(timeline).await.unwrap();
    assert!(i128::from(sums(&line.answer)) == total || !line.warnings.is_empty(), "byte {at}");
    let services = store.services(cpu(), 3).await.unwrap();
    let sum: i64 = services.answer.iter().map(|row| row.total).sum();
    assert!(i128::from(sum) == total || !services.warnings.is_empty(), "byte {at}");
    let functions = store.functions(cpu(), 10).await.unwrap();
    let sum: i64 = functions.answer.iter().map(|row| row.self_value).sum();
    assert!(i128::from(sum) == total || !functions.warnings.is_empty(), "byte {at}");
    let values = store.label_values(cpu(), "service".into(), String::new(), 9).await.unwrap();
    let samples: u64 = values.answer.iter().map(|row| row.samples).sum();
    assert!(samples == right.samples || !values.warnings.is_empty(), "byte {at}");
    let names = store.label_names(cpu()).await.unwrap();
    assert!(names.answer.len() >= 2 || !names.warnings.is_empty(), "byte {at}: {names:?}");
    let coverage = store.coverage(cpu()).await.unwrap();
    assert!(coverage.answer.hosts == 1 || !coverage.warnings.is_empty(), "byte {at}");
}

#[tokio::test(flavor = "multi_thread")]
async fn damaged_manifests_and_symbol_logs_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    store.append(hour_of(0, 10)).await.unwrap();
    drop(store);
    for file in [dir.path().join("MANIFEST"), find(dir.path(), "log")] {
        let bytes = std::fs::read(&file).unwrap();
        for at in (0..bytes.len()).step_by(5) {
            let mut wrong = bytes.clone();
            wrong[at] ^= 0x10;
            std::fs::write(&file, &wrong).unwrap();
            match EmbeddedStore::open(options(dir.path())) {
                Err(StoreError::Damaged { path, .. }) => {
                    assert_eq!(path, file.display().to_string());
                }
                result => panic!("byte {at} of {}: {result:?}", file.display()),
            }
        }
        std::fs::write(&file, &bytes).unwrap();
    }
    assert_eq!(samples_of(&open(dir.path()), 0).await, 10);
}

/// The one file with this ending.
pub(super) fn find(dir: &Path, ending: &str) -> PathBuf {
    let mut pending = vec![dir.to_owned()];
    while let Some(folder) = pending.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                pending.push(path);
            } else if path.extension().is_some_and(|found| found == ending) {
                return path;
            }
        }
    }
    panic!("no file ends in {ending}")
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_too_old_goes_by_whole_days() {
    let dir = tempfile::tempdir().unwrap();
    // Samples of hours 0 to 72 from 19:00 on; the fourth midnight is 77 hours later.
    let at = |hours: i64| START_MS + hours * HOUR_MS;
    let now_ms = Arc::new(std::sync::atomic::AtomicI64::new(at(73)));
    let clock = Arc::clone(&now_ms);
    let clock = Clock::new(move || clock.load(Ordering::Relaxed));
    let keep =
        EmbeddedOptions { retention: Retention::new(2 * DAY_MS), clock, ..options(dir.path()) };
    let store =
        EmbeddedStore::open(EmbeddedOptions { retention: Retention::default(), ..keep.clone() });
    let store = store.unwrap();
    for hour in [0, 4, 5, 28, 29, 72] {
        store.append(hour_of(hour, 5)).await.unwrap();
    }
    store.flush().await.unwrap();
    assert_eq!(store.stats().await.unwrap().segments, 6);
    drop(store);
    // Two days before are in the first whole day, which begins with hour 5.
    let store = EmbeddedStore::open(keep.clone()).unwrap();
    let left = async |store: &EmbeddedStore| {
        let stats = store.stats().await.unwrap();
        (stats.segments, stats.hours_expired)
    };
    assert_eq!(left(&store).await, (4, 2));
    assert_eq!((samples_of(&store, 4).await, samples_of(&store, 5).await), (0, 5));
    // A day ends while nothing arrives.
    now_ms.store(at(77) - 1, Ordering::Relaxed);
    tokio::time::sleep(std::time::Duration::from_millis(1_200)).await;
    assert_eq!(left(&store).await, (4, 2));
    now_ms.store(at(77), Ordering::Relaxed);
    let mut looks = 50;
    while left(&store).await != (2, 4) && looks > 0 {
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
        looks -= 1;
    }
    assert_eq!(left(&store).await, (2, 4));
    assert_eq!((samples_of(&store, 28).await, samples_of(&store, 29).await), (0, 5));
    // And what is written after that stays.
    store.append(hour_of(73, 5)).await.unwrap();
    store.flush().await.unwrap();
    assert_eq!((left(&store).await, samples_of(&store, 73).await), ((3, 4), 5));
    drop(store);
    assert_eq!(left(&EmbeddedStore::open(keep).unwrap()).await, (3, 0));
}

/// Descriptors of this process that lead to segments below `dir`.
fn open_segments(dir: &Path) -> usize {
    let links = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let targets = links.filter_map(|link| std::fs::read_link(link.path()).ok());
    targets.filter(|path| path.starts_with(dir) && path.to_string_lossy().contains(".seg")).count()
}

pub(super) fn segments_on_disk(dir: &Path) -> usize {
    let mut folders = vec![dir.to_owned()];
    let mut found = 0;
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|ending| ending == "seg") {
                found += 1;
            }
        }
    }
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn hours_on_disk_are_no_open_files_and_a_dropped_one_stays_while_it_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let store = EmbeddedStore::open(options(dir.path())).unwrap();
    for hour in 0..3 {
        store.append(hour_of(hour, 5)).await.unwrap();
    }
    store.flush().await.unwrap();
    assert_eq!((samples_of(&store, 1).await, open_segments(dir.path())), (5, 0));
    drop(store);
    let store = EmbeddedStore::open(options(dir.path())).unwrap();
    assert_eq!((segments_on_disk(dir.path()), open_segments(dir.path())), (3, 0));
    // A query keeps its view, whatever goes meanwhile.
    let view = store.engine.view();
    drop(store);
    let clock = Clock::new(|| START_MS + 100 * DAY_MS);
    let keep = EmbeddedOptions { retention: Retention::new(DAY_MS), clock, ..options(dir.path()) };
    let other = EmbeddedStore::open(keep).unwrap();
    let kept = other.engine.view();
    assert_eq!(kept.segments.values().map(Vec::len).sum::<usize>(), 0);
    assert_eq!(segments_on_disk(dir.path()), 0);
    let gone = view.segments.values().flatten().next().unwrap();
    assert!(matches!(gone.hold(), Err(StoreError::Damaged { .. })), "left out and said");

    let dir = tempfile::tempdir().unwrap();
    let now_ms = Arc::new(std::sync::atomic::AtomicI64::new(START_MS + 3 * HOUR_MS));
    let clock = Arc::clone(&now_ms);
    let clock = Clock::new(move || clock.load(Ordering::Relaxed));
    let keep = EmbeddedOptions { retention: Retention::new(DAY_MS), clock, ..options(dir.path()) };
    let store = EmbeddedStore::open(keep).unwrap();
    store.append(hour_of(0, 5)).await.unwrap();
    store.flush().await.unwrap();
    let view = store.engine.view();
    now_ms.store(START_MS + 100 * DAY_MS, Ordering::Relaxed);
    store.append(hour_of(100 * 24, 5)).await.unwrap();
    store.flush().await.unwrap();
    assert_eq!(samples_of(&store, 0).await, 0);
    assert_eq!(segments_on_disk(dir.path()), 2);
    assert!(view.segments.values().flatten().next().unwrap().hold().is_ok());
    drop(view);
    assert_eq!(segments_on_disk(dir.path()), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_hour_that_is_over_becomes_a_segment_by_itself() {
    let dir = tempfile::tempdir().unwrap();
    let now_ms = Arc::new(std::sync::atomic::AtomicI64::new(START_MS + 1_000));
    let clock = Arc::clone(&now_ms);
    let clock = Clock::new(move || clock.load(Ordering::Relaxed));
    let store = EmbeddedStore::open(EmbeddedOptions { clock, ..options(dir.path()) }).unwrap();
    store.append(hour_of(0, 10)).await.unwrap();
    let wait = std::time::Duration::from_millis(1_200);
    now_ms.store(START_MS + HOUR_MS + 500_000, Ordering::Relaxed);
    tokio::time::sleep(wait).await;
    assert_eq!(store.stats().await.unwrap().segments, 0, "late rows are waited for");
    now_ms.store(START_MS + HOUR_MS + 600_000, Ordering::Relaxed);
    let mut left = 50;
    while store.stats().await.unwrap().segments == 0 && left > 0 {
        tokio::time::sleep(wait / 6).await;
        left -= 1;
    }
    let stats = store.stats().await.unwrap();
    assert_eq!((stats.segments, stats.wal_bytes), (1, 0), "and its log is gone");
    assert_eq!(samples_of(&store, 0).await, 10);
}

/// As many new services and types as one batch has are counted, in a new project too.
#[tokio::test(flavor = "multi_thread")]
async fn a_batch_cannot_bring_more_services_or_types_than_there_is_room_for() {
    use crate::limits::{PROFILE_TYPES_MAX, SERVICES_MAX};
    type Rename = fn(&mut crate::profile::ProfileDef, usize);
    let rows: [(&str, usize, Rename); 2] = [
        ("services", SERVICES_MAX, |profile, at| profile.labels.service = at.to_string().into()),
        ("profile types", PROFILE_TYPES_MAX, |profile, at| {
            profile.sample_type.kind = at.to_string().into();
        }),
    ];
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    for (what, max, rename) in rows {
        let mut batch = one_profile("api", ProfileId::None, &[(&["main"], 1)]);
        let profile = batch.profiles.remove(0);
        batch.profiles = vec![profile; max + 1];
        for (at, profile) in batch.profiles.iter_mut().enumerate() {
            rename(profile, at);
        }
        let refused = store.append(batch.clone()).await;
        assert!(matches!(refused, Err(StoreError::Limit { what: which, .. }) if which == what));
        batch.profiles.truncate(max - 2);
        store.append(batch).await.unwrap();
    }
}

/// A query whose asker is gone ends at its next step.
#[tokio::test(flavor = "multi_thread")]
async fn a_query_ends_when_nobody_waits_for_it() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    store.append(hour_of(0, 100)).await.unwrap();
    let merge =
        MergeQuery { selection: everything("cpu"), nodes_max: 10, keep_self_top: 0, leaf: None };
    let (started, begun) = tokio::sync::oneshot::channel();
    let (ended, end) = tokio::sync::oneshot::channel();
    let question = store.ask(move |engine, asker| {
        started.send(()).unwrap();
        let outcome = loop {
            match engine.merge(&merge, asker) {
                Ok(_) => std::thread::yield_now(),
                Err(error) => break error,
            }
        };
        ended.send(outcome).unwrap();
        Ok(())
    });
    tokio::select! {
        _ = question => panic!("it goes on until it is left"),
        begun = begun => begun.unwrap(),
    }
    assert!(matches!(end.await.unwrap(), StoreError::Abandoned));
}
