//! Lost power, full disks and failing syncs.

use super::faulty::{Failure, Faulty};
use super::*;
use crate::profile::ProfileId;
use proptest::prelude::*;

fn open_with(dir: &Path, files: &Faulty) -> Result<EmbeddedStore, StoreError> {
    EmbeddedStore::open_with(options(dir), Arc::new(files.clone()))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// The power goes at any operation of any workload: what was acknowledged is there, nothing is twice,
    /// and what was not acknowledged is there whole or not at all.
    #[test]
    fn a_power_cut_loses_nothing_acknowledged(
        batches in prop::collection::vec(
            (
                (sample_data::batches(), prop::option::of(sample_data::names())),
                any::<bool>(),
                prop::option::of(sample_data::deletions()),
            ),
            1..8,
        ),
        selection in sample_data::selections(),
        cuts in prop::collection::vec(1_u64..60, 1..4),
    ) {
        runtime().block_on(async {
            let dir = tempfile::tempdir().unwrap();
            let (files, oracle) = (Faulty::default(), MemoryStore::new());
            let mut cuts = cuts.into_iter();
            let mut store = open_with(dir.path(), &files).unwrap();
            files.cut_after(cuts.next().unwrap());
            for ((batch, names), flush, deletion) in batches {
                if let Some(names) = names {
                    // Learnt before its acknowledgement is lost, or twice, they are the same.
                    while store.learn(names.clone()).await.is_err() {
                        drop(store);
                        files.power_on();
                        store = open_with(dir.path(), &files).unwrap();
                        if let Some(cut) = cuts.next() {
                            files.cut_after(cut);
                        }
                    }
                    oracle.learn(names).await.unwrap();
                }
                loop {
                    let acknowledged = store.append(batch.clone()).await.is_ok();
                    if acknowledged && flush {
                        // Both may fail with the power; the WAL or the inputs still have everything.
                        drop(store.flush().await);
                        drop(store.compact().await);
                    }
                    if acknowledged {
                        oracle.append(batch.clone()).await.unwrap();
                    }
                    if !files.is_cut() {
                        assert!(acknowledged);
                        break;
                    }
                    drop(store);
                    files.power_on();
                    store = open_with(dir.path(), &files).unwrap();
                    check_all_or_nothing(&store, &oracle, &batch, acknowledged, &selection).await;
                    if let Some(cut) = cuts.next() {
                        files.cut_after(cut);
                    }
                    if acknowledged {
                        break;
                    }
                    // What the log kept without an acknowledgement is found again by its id only.
                    if batch.profiles.iter().any(|profile| profile.id == ProfileId::None) {
                        return;
                    }
                }
                let Some(deletion) = deletion else { continue };
                // Asked for until it is acknowledged, as it is after a restart.
                loop {
                    let acknowledged = store.delete(deletion.clone()).await.is_ok();
                    if acknowledged {
                        oracle.delete(deletion.clone()).await.unwrap();
                        // May fail with the power; what is hidden stays hidden.
                        drop(store.erase(deletion.id).await);
                    }
                    if files.is_cut() {
                        drop(store);
                        files.power_on();
                        store = open_with(dir.path(), &files).unwrap();
                        if let Some(cut) = cuts.next() {
                            files.cut_after(cut);
                        }
                    } else {
                        assert!(acknowledged);
                    }
                    if acknowledged {
                        check_same(&store, &oracle, std::slice::from_ref(&selection), (20, 5)).await;
                        break;
                    }
                }
            }
            check_same(&store, &oracle, &[selection], (20, 5)).await;
        });
    }
}

/// Without an acknowledgement the batch may be there, but only whole.
async fn check_all_or_nothing(
    store: &EmbeddedStore,
    oracle: &MemoryStore,
    batch: &WriteBatch,
    acknowledged: bool,
    selection: &Selection,
) {
    let count = |batch: &WriteBatch| batch.sample_count() as u64;
    let (ours, theirs) = (total_samples(store).await, total_samples(oracle).await);
    let is_nothing = ours == theirs;
    assert!(is_nothing || !acknowledged && ours <= theirs + count(batch), "{ours} of {theirs}");
    if is_nothing {
        check_same(store, oracle, std::slice::from_ref(selection), (20, 5)).await;
    }
}

/// Observations of all types.
async fn total_samples(store: &dyn ProfileStore) -> u64 {
    let mut sum = 0;
    for row in store.profile_types(sample_data::project()).await.unwrap() {
        let mut selection = everything(&row.id);
        selection.range.to_ms = START_MS + sample_data::SPAN_MS;
        let rows = store.services(selection, 1).await.unwrap().answer;
        sum += rows.iter().map(|row| row.samples).sum::<u64>();
    }
    sum
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_is_busy_and_nothing_of_the_batch_is_stored() {
    let (dir, files) = (tempfile::tempdir().unwrap(), Faulty::default());
    let store = open_with(dir.path(), &files).unwrap();
    let batch = |value| one_profile("api", ProfileId::None, &[(&["main"], value)]);
    store.append(batch(1)).await.unwrap();
    files.fail_after(0, 3, Failure::Full);
    for value in [10, 100] {
        assert!(matches!(store.append(batch(value)).await, Err(StoreError::Busy(_))));
    }
    files.fail_after(0, 0, Failure::Full);
    store.append(batch(1_000)).await.unwrap();
    assert_eq!(merged(&store).await.unwrap().node_total[0], 1_001);
    drop(store);
    let store = open_with(dir.path(), &files).unwrap();
    assert_eq!(merged(&store).await.unwrap().node_total[0], 1_001);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_sync_fails_the_batch_and_the_next_one_goes_to_a_new_file() {
    let (dir, files) = (tempfile::tempdir().unwrap(), Faulty::default());
    let store = open_with(dir.path(), &files).unwrap();
    let batch = |value| one_profile("api", ProfileId::None, &[(&["main"], value)]);
    store.append(batch(1)).await.unwrap();
    files.fail_after(0, 1, Failure::Sync);
    assert!(matches!(store.append(batch(10)).await, Err(StoreError::Io { .. })));
    store.append(batch(100)).await.unwrap();
    assert_eq!(merged(&store).await.unwrap().node_total[0], 101);
    drop(store);
    let store = open_with(dir.path(), &files).unwrap();
    assert_eq!(merged(&store).await.unwrap().node_total[0], 101);
}

#[tokio::test(flavor = "multi_thread")]
async fn segments_that_cannot_be_written_leave_everything_in_the_log() {
    let (dir, files) = (tempfile::tempdir().unwrap(), Faulty::default());
    let store = open_with(dir.path(), &files).unwrap();
    store.append(one_profile("api", ProfileId::None, &[(&["main"], 5)])).await.unwrap();
    files.fail_after(0, 2, Failure::Full);
    assert!(matches!(store.flush().await, Err(StoreError::Busy(_))));
    assert_eq!(merged(&store).await.unwrap().node_total[0], 5);
    files.fail_after(0, 0, Failure::Full);
    store.append(one_profile("api", ProfileId::None, &[(&["main"], 2)])).await.unwrap();
    store.flush().await.unwrap();
    assert_eq!(store.stats().await.unwrap().segments, 2);
    assert_eq!(merged(&store).await.unwrap().node_total[0], 7);
    drop(store);
    let store = open_with(dir.path(), &files).unwrap();
    assert_eq!(merged(&store).await.unwrap().node_total[0], 7);
}

/// The process dies after the sync of a folder failed, whichever: what lies in the data folder then is a store with all
/// that was acknowledged.
#[tokio::test(flavor = "multi_thread")]
async fn a_folder_that_cannot_be_synced_leaves_a_store_that_opens() {
    let mut failed = 0;
    for syncs in 0..12 {
        let (dir, files) = (tempfile::tempdir().unwrap(), Faulty::default());
        let store = open_with(dir.path(), &files).unwrap();
        store.append(one_profile("api", ProfileId::None, &[(&["main"], 5)])).await.unwrap();
        files.fail_after(syncs, 1, Failure::Folder);
        failed += u64::from(store.flush().await.is_err());
        let found = tempfile::tempdir().unwrap();
        copy(dir.path(), found.path());
        let found = open(found.path());
        assert_eq!(merged(&found).await.unwrap().node_total[0], 5, "after {syncs} syncs");
    }
    assert!(failed >= 4, "{failed} flushes met the failure");
}

/// Copies the files of a folder.
pub(super) fn copy(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        if entry.path().is_dir() {
            std::fs::create_dir(&to).unwrap();
            copy(&entry.path(), &to);
        } else {
            std::fs::copy(entry.path(), to).unwrap();
        }
    }
}
