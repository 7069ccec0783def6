//! Batches in the log that refer to stacks of others.

use super::*;
use crate::profile::ProfileId;
use crate::store::embedded::recall::LOST;
use crate::store::embedded::wal::{self, Replayed};
use crate::store::embedded::{batch, codec, prepared, replay};

/// A place in the payload of the first record of a file.
const IN_FIRST: usize = 40;

/// A profile of the service with one sample of each value, its stack below `main` named by it.
fn profile(leaves: &[(&str, i64)]) -> WriteBatch {
    let stacks: Vec<[&str; 2]> = leaves.iter().map(|(leaf, _)| ["main", leaf]).collect();
    let rows: Vec<(&[&str], i64)> =
        stacks.iter().zip(leaves).map(|(stack, (_, value))| (&stack[..], *value)).collect();
    let mut batch = one_profile("api", ProfileId::None, &rows);
    for location in &mut batch.locations {
        // A name has the same address in every batch.
        let function = &batch.functions[location.lines[0].function as usize];
        location.address = xxhash_rust::xxh3::xxh3_64(function.name.as_bytes());
    }
    batch
}

/// The bytes of the only WAL file of a store that got these batches, one after the other.
async fn log_of(batches: &[WriteBatch]) -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    for batch in batches {
        store.append(batch.clone()).await.unwrap();
    }
    let mut files = std::fs::read_dir(dir.path().join("wal")).unwrap();
    let path = files.next().unwrap().unwrap().path();
    assert!(files.next().is_none());
    std::fs::read(path).unwrap()
}

/// Opens a folder with these WAL files alone.
fn open_logs(dir: &Path, logs: &[&[u8]]) -> EmbeddedStore {
    std::fs::create_dir(dir.join("wal")).unwrap();
    for (sequence, log) in (1..).zip(logs) {
        std::fs::write(dir.join(format!("wal/{sequence:016x}.wal")), log).unwrap();
    }
    open(dir)
}

/// Name and self value of each function that has one.
async fn values(store: &EmbeddedStore) -> Vec<(String, i64)> {
    let functions = store.functions(everything("cpu"), 100).await.unwrap().answer;
    let with_value = functions.into_iter().filter(|row| row.self_value != 0);
    let mut all: Vec<_> =
        with_value.map(|row| (row.function.name.to_string(), row.self_value)).collect();
    all.sort();
    all
}

fn expected(rows: &[(&str, i64)]) -> Vec<(String, i64)> {
    let mut all: Vec<_> = rows.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
    all.sort();
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn a_known_stack_is_not_described_again() {
    let first = profile(&[("leaf", 1), ("other", 2)]);
    let log = log_of(&[first.clone(), profile(&[("leaf", 10), ("new", 30)]), first]).await;
    let dir = tempfile::tempdir().unwrap();
    let store = open_logs(dir.path(), &[&log]);
    let rows = [("leaf", 12), ("other", 4), ("new", 30)];
    assert_eq!(values(&store).await, expected(&rows));
    let mut described: Vec<Vec<String>> = Vec::new();
    let path = dir.path().join("wal/0000000000000001.wal");
    wal::replay(&Disk, &path, &mut Replayed::default(), &mut |_, payload| {
        let (_, _, encoded) = replay::decode_record(payload).unwrap();
        let (batch, _) = prepared::decode(encoded).unwrap();
        described.push(batch.functions.iter().map(|it| it.name.to_string()).collect());
        Ok(())
    })
    .unwrap();
    assert_eq!(described, [vec!["leaf", "main", "other"], vec!["main", "new"], vec![]]);
}

/// The queue of the writer has a limit of bytes: what is known of a batch is held there, what it no longer says is not.
#[tokio::test(flavor = "multi_thread")]
async fn a_prepared_batch_counts_what_it_holds() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let names: Vec<String> = (0..1_000).map(|at| format!("leaf {at}")).collect();
    let leaves: Vec<(&str, i64)> = names.iter().map(|name| (&**name, 1)).collect();
    let mut batch = profile(&leaves);
    let before = prepared_bytes(&Prepared::new(&store.engine, batch.clone()));
    store.append(batch.clone()).await.unwrap();
    batch.profiles[0].samples.truncate(1);
    let alone = Prepared::new(&store.engine, batch.clone());
    assert_eq!((alone.known.len(), alone.found_bytes()), (1, 32));
    batch.profiles[0].samples = profile(&leaves).profiles.remove(0).samples;
    let all = Prepared::new(&store.engine, batch);
    assert_eq!((all.known.len(), all.found_bytes()), (1_000, 32_000));
    // 24 bytes a sample, 256 for the profile, no text.
    assert_eq!(prepared_bytes(&all), 32_000 + 24_000 + 256);
    assert!(before > 2 * prepared_bytes(&all), "{before}");
    let WriteBatch { functions, locations, mappings, stacks, .. } = &all.batch;
    let room = [functions.capacity(), locations.capacity(), mappings.capacity(), stacks.capacity()];
    assert_eq!(
        (room, all.locations.capacity(), all.identities.locations.capacity()),
        ([0; 4], 0, 0)
    );
}

/// A stack may be known to one service and new to the next, whose profiles stand between those of the first.
#[tokio::test(flavor = "multi_thread")]
async fn services_take_turns_in_a_batch() {
    let dir = tempfile::tempdir().unwrap();
    let (store, oracle) = (open(dir.path()), MemoryStore::new());
    let mut mixed = profile(&[("leaf", 10), ("new", 30)]);
    for service in ["db", "api", "web", "db", "api"] {
        let mut other = mixed.profiles[0].clone();
        other.labels.service = service.into();
        other.samples.iter_mut().for_each(|sample| sample.value += 1);
        mixed.profiles.push(other);
    }
    let mut of_db = profile(&[("new", 2)]);
    of_db.profiles[0].labels.service = "db".into();
    for batch in [profile(&[("leaf", 1), ("other", 2)]), of_db, mixed.clone(), mixed] {
        store.append(batch.clone()).await.unwrap();
        oracle.append(batch).await.unwrap();
    }
    check_same(&store, &oracle, &[everything("cpu")], (20, 5)).await;
    drop(store);
    check_same(&open(dir.path()), &oracle, &[everything("cpu")], (20, 5)).await;
}

/// A batch that was never acknowledged may stand in the log all the same, and takes numbers that others had.
#[tokio::test(flavor = "multi_thread")]
async fn nodes_that_others_took_change_no_answer() {
    let strange = log_of(&[profile(&[("strange", 5), ("stranger", 6)])]).await;
    let log =
        log_of(&[profile(&[("leaf", 1), ("other", 2)]), profile(&[("other", 10), ("leaf", 20)])])
            .await;
    let dir = tempfile::tempdir().unwrap();
    let store = open_logs(dir.path(), &[&strange, &log]);
    let rows = [("leaf", 21), ("other", 12), ("strange", 5), ("stranger", 6)];
    assert_eq!(values(&store).await, expected(&rows));
}

/// Where the record that describes a stack is damaged, others that refer to it lose its name, and no value.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_damaged_record_described_keeps_its_values() {
    let batches = [
        profile(&[("leaf", 1)]),
        profile(&[("leaf", 10), ("other", 20)]),
        profile(&[("other", 5)]),
    ];
    let log = log_of(&batches).await;
    let mut wrong = log.clone();
    wrong[IN_FIRST] ^= 1;
    let dir = tempfile::tempdir().unwrap();
    let store = open_logs(dir.path(), &[&wrong]);
    assert_eq!(values(&store).await, expected(&[(LOST, 10), ("other", 25)]));
    store.append(batches[0].clone()).await.unwrap();
    store.flush().await.unwrap();
    drop(store);
    let store = open(dir.path());
    assert_eq!(values(&store).await, expected(&[(LOST, 10), ("leaf", 1), ("other", 25)]));
}

#[tokio::test(flavor = "multi_thread")]
async fn records_that_describe_all_of_their_stacks_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let mut log = Wal::new(Arc::new(Disk), dir.path().to_owned(), 1);
    let mut records = Vec::new();
    for batch in [profile(&[("leaf", 1)]), profile(&[("leaf", 10), ("other", 20)])] {
        let mut payload = codec::Writer::default();
        payload.signed(START_MS);
        payload.length(batch.profiles.len());
        payload.length(0); // none was dropped
        payload.raw(&batch::encode(&batch).unwrap());
        log.frame(1, &payload.bytes, &mut records).unwrap();
    }
    log.write(&records).unwrap();
    let bytes = std::fs::read(dir.path().join("0000000000000001.wal")).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let store = open_logs(dir.path(), &[&bytes]);
    assert_eq!(values(&store).await, expected(&[("leaf", 11), ("other", 20)]));
}
