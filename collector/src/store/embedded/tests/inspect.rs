//! What a check of a folder finds, and what it leaves alone.

use super::deletion::log_bytes;
use super::limits::{find, hour_of};
use super::*;
use crate::store::embedded::inspect::{self, Checked};

fn check(dir: &Path) -> Result<Checked, StoreError> {
    inspect::check(dir, &mut |_, _| {})
}

/// Hours in segments, of which two days are merged, and one in the log.
async fn fill(dir: &Path) -> EmbeddedStore {
    let store = open(dir);
    for hour in [5, 6, 7, 30, 31] {
        let mut batch = hour_of(hour, 300);
        let mut other = batch.profiles[0].clone();
        other.labels.host = "another".into();
        batch.profiles.push(other);
        store.append(batch).await.unwrap();
        store.flush().await.unwrap();
    }
    store.compact().await.unwrap();
    for hour in [60, 61] {
        store.append(hour_of(hour, 50)).await.unwrap();
        store.flush().await.unwrap();
    }
    store.append(hour_of(62, 20)).await.unwrap();
    store.append(hour_of(63, 20)).await.unwrap();
    store
}

/// All files and their contents.
fn contents(dir: &Path) -> std::collections::BTreeMap<PathBuf, Vec<u8>> {
    let mut found = std::collections::BTreeMap::new();
    let mut folders = vec![dir.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let bytes = std::fs::read(&path).unwrap();
                found.insert(path, bytes);
            }
        }
    }
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn every_wrong_bit_of_every_kind_of_file_is_found_and_named() {
    let dir = tempfile::tempdir().unwrap();
    let store = fill(dir.path()).await;
    let before = contents(dir.path());
    let checked = check(dir.path()).unwrap();
    assert_eq!((checked.damages.len(), checked.torn_bytes), (0, 0), "{checked:?}");
    // Four segments, symbols, seen ids, the log; the manifest and the lock are not counted.
    assert_eq!(checked.files, 7);
    assert_eq!(contents(dir.path()), before, "nothing is changed");
    let mut state = 7_u64;
    for ending in ["seg", "log", "wal"] {
        let path = find(dir.path(), ending);
        let right = std::fs::read(&path).unwrap();
        for _ in 0..60 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let bit = usize::try_from(state >> 33).unwrap() % (right.len() * 8);
            // The salt of a log is in all of its checksums.
            let bit = if ending == "wal" { bit.max(16 * 8) } else { bit };
            let mut wrong = right.clone();
            wrong[bit / 8] ^= 1 << (bit % 8);
            std::fs::write(&path, &wrong).unwrap();
            let checked = check(dir.path()).unwrap();
            let named = checked.damages.iter().all(|damage| damage.path == path);
            // The last record of a log looks like one that was being written.
            let found = !checked.damages.is_empty() || ending == "wal" && checked.torn_bytes > 0;
            assert!(found && named, "bit {bit} of {}: {checked:?}", path.display());
        }
        std::fs::write(&path, &right).unwrap();
    }
    std::fs::remove_file(find(dir.path(), "seg")).unwrap();
    let checked = check(dir.path()).unwrap();
    assert_eq!(checked.damages.len(), 1, "{checked:?}");
    let manifest = dir.path().join("MANIFEST");
    let mut bytes = std::fs::read(&manifest).unwrap();
    bytes[20] ^= 1;
    std::fs::write(&manifest, bytes).unwrap();
    assert!(matches!(check(dir.path()), Err(StoreError::Damaged { .. })));
    drop(store);
}

#[tokio::test(flavor = "multi_thread")]
async fn figures_of_a_folder() {
    let dir = tempfile::tempdir().unwrap();
    let store = fill(dir.path()).await;
    let stats = inspect::stats(dir.path()).unwrap();
    let [project] = &stats.projects[..] else { panic!("{stats:?}") };
    assert_eq!((project.hours.0, project.days.0, project.unreadable), (2, 2, 0));
    assert_eq!(project.samples, 5 * 600 + 100);
    assert_eq!(stats.wal_bytes, log_bytes(dir.path()));
    let day_ms = 24 * 3_600_000;
    let first_ms = (START_MS + 5 * 3_600_000) / day_ms * day_ms;
    assert_eq!(project.range, Some((first_ms, START_MS + 62 * 3_600_000)));
    assert_eq!(stats.deletions_pending, 0);
    drop(store);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_in_use_is_sound_at_every_moment() {
    let dir = tempfile::tempdir().unwrap();
    let store = Arc::new(fill(dir.path()).await);
    let writing = Arc::clone(&store);
    let writer = tokio::spawn(async move {
        for round in 0..50 {
            writing.append(hour_of(round % 40, 30)).await.unwrap();
            writing.flush().await.unwrap();
            if round % 7 == 6 {
                writing.compact().await.unwrap();
            }
        }
    });
    let mut checks = 0;
    while !writer.is_finished() {
        let path = dir.path().to_owned();
        let checked = tokio::task::spawn_blocking(move || {
            assert_eq!(inspect::stats(&path).unwrap().projects[0].unreadable, 0);
            check(&path).unwrap()
        });
        let checked = checked.await.unwrap();
        assert!(checked.damages.is_empty(), "{checked:?}");
        checks += 1;
    }
    writer.await.unwrap();
    assert!(checks > 2, "{checks} checks");
}
