//! One suite over every engine: known right answers, and random workloads held against the oracle.

use super::embedded::{Clock, EmbeddedOptions, EmbeddedStore};
use super::memory::MemoryStore;
use super::sample_data::{self, START_MS};
use super::test_answers::{check_same, everything, merged, one_profile};
use super::{Ack, FileAddresses, ProfileStore, StoreError};
use crate::profile::*;
use crate::query::*;
use crate::store::Retention;
use proptest::prelude::*;
use proto::{BuildId, FrameKind};
use std::sync::Arc;

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

fn open(dir: &std::path::Path) -> EmbeddedStore {
    EmbeddedStore::open(EmbeddedOptions {
        data_dir: dir.to_owned(),
        data_bytes_max: None,
        retention: Retention::default(),
        clock: Clock::new(|| START_MS + sample_data::SPAN_MS),
    })
    .unwrap()
}

fn workload() -> impl Strategy<Value = (Vec<WriteBatch>, Vec<Selection>, (usize, usize))> {
    let batches = prop::collection::vec(sample_data::batches(), 1..7);
    let selections = prop::collection::vec(sample_data::selections(), 1..4);
    (batches, selections, (0_usize..30, 0_usize..5))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn the_embedded_engine_answers_like_the_oracle(
        (batches, selections, sizes) in workload(),
        restarts in prop::collection::vec(any::<bool>(), 7),
        flushes in prop::collection::vec(any::<bool>(), 7),
        merges in prop::collection::vec(any::<bool>(), 7),
        deletions in prop::collection::vec(prop::option::of(sample_data::deletions()), 7),
        erasures in prop::collection::vec(any::<bool>(), 7),
        names in prop::collection::vec(prop::option::of(sample_data::names()), 7),
    ) {
        runtime().block_on(async {
            let dir = tempfile::tempdir().unwrap();
            let (mut store, oracle) = (open(dir.path()), MemoryStore::new());
            let batches_count = batches.len();
            for (at, batch) in batches.into_iter().enumerate() {
                let ack = store.append(batch.clone()).await.unwrap();
                assert_eq!(ack, oracle.append(batch).await.unwrap());
                if let Some(names) = &names[at] {
                    store.learn(names.clone()).await.unwrap();
                    oracle.learn(names.clone()).await.unwrap();
                }
                if flushes[at] {
                    store.flush().await.unwrap();
                }
                if let Some(deletion) = &deletions[at] {
                    // Asked for twice, it is one: what came between is new.
                    store.delete(deletion.clone()).await.unwrap();
                    oracle.delete(deletion.clone()).await.unwrap();
                    check_same(&store, &oracle, &selections[..1], sizes).await;
                }
                if merges[at] {
                    store.compact().await.unwrap();
                }
                if erasures[at] && let Some(deletion) = &deletions[at] {
                    store.erase(deletion.id).await.unwrap();
                }
                if restarts[at] {
                    drop(store);
                    store = open(dir.path());
                }
                check_same(&store, &oracle, &selections[..1], sizes).await;
                if let Some(deletion) = &deletions[at / 2] {
                    store.delete(deletion.clone()).await.unwrap();
                }
            }
            check_same(&store, &oracle, &selections, sizes).await;
            for deletion in deletions.into_iter().take(batches_count).flatten() {
                store.erase(deletion.id).await.unwrap();
            }
            check_same(&store, &oracle, &selections, sizes).await;
        });
    }

    #[test]
    fn the_order_of_batches_and_names_changes_no_answer(
        (batches, selections, sizes) in workload(),
        names in prop::collection::vec(sample_data::names(), 0..4),
        seed in any::<u64>(),
    ) {
        runtime().block_on(async {
            let (forward, shuffled) = (MemoryStore::new(), MemoryStore::new());
            // Profiles with one id and different contents: the first wins, so order matters for those.
            let mut batches = batches;
            for profile in batches.iter_mut().flat_map(|batch| &mut batch.profiles) {
                profile.id = ProfileId::None;
            }
            for batch in batches.clone() {
                forward.append(batch).await.unwrap();
            }
            for names in &names {
                forward.learn(names.clone()).await.unwrap();
            }
            let place = |bytes: String| xxhash_rust::xxh3::xxh3_64_with_seed(bytes.as_bytes(), seed);
            batches.sort_by_key(|batch| place(format!("{batch:?}")));
            let mut names = names;
            names.sort_by_key(|names| place(format!("{names:?}")));
            // Before, between and after them.
            let mut names = names.into_iter();
            for (at, batch) in batches.into_iter().enumerate() {
                if (seed >> (at % 64)) & 1 == 1 && let Some(names) = names.next() {
                    shuffled.learn(names).await.unwrap();
                }
                shuffled.append(batch).await.unwrap();
            }
            for names in names {
                shuffled.learn(names).await.unwrap();
            }
            check_same(&shuffled, &forward, &selections, sizes).await;
        });
    }
}

/// Both engines, the embedded one on a folder of its own.
async fn with_engines<F: AsyncFn(&dyn ProfileStore)>(test: F) {
    test(&MemoryStore::new()).await;
    let dir = tempfile::tempdir().unwrap();
    test(&open(dir.path())).await;
}

/// `depth name total/self`, one node a line.
fn tree_lines(tree: &FlameTree) -> Vec<String> {
    let line = |node: usize| {
        let function = &tree.functions[tree.node_function[node] as usize];
        let (total, own) = (tree.node_total[node], tree.node_self[node]);
        let mark = if tree.node_inlined[node] { " inlined" } else { "" };
        format!(
            "{}{} {total}/{own}{mark}",
            " ".repeat(tree.node_depth[node] as usize),
            function.name
        )
    };
    (0..tree.node_total.len()).map(line).collect()
}

#[tokio::test]
async fn a_known_profile_gives_known_answers() {
    with_engines(async |store| {
        let seconds = 1_000_000_000;
        let rows: [(&[&str], i64); 4] = [
            (&["main", "work", "leaf"], 5 * seconds),
            (&["main", "work", "work", "leaf"], 3 * seconds),
            (&["main", "idle"], 2 * seconds),
            (&[], seconds),
        ];
        let ack = store.append(one_profile("api", ProfileId::None, &rows)).await.unwrap();
        assert_eq!(ack, Ack { stored: 1, repeated: vec![] });
        let tree = merged(store).await.unwrap();
        let lines = [
            "total 11000000000/1000000000",
            " main 10000000000/0",
            "  work 8000000000/0",
            "   leaf 5000000000/5000000000",
            "   work 3000000000/0",
            "    leaf 3000000000/3000000000",
            "  idle 2000000000/2000000000",
        ];
        assert_eq!(tree_lines(&tree), lines);
        assert_eq!((tree.samples, tree.period_ns, &*tree.unit), (4, 10_000_000, "nanoseconds"));
        let rows = store.functions(everything("cpu"), 10).await.unwrap().answer;
        let row = |row: &FunctionRow| (row.function.name.to_string(), row.self_value, row.total);
        let expected = [
            ("leaf", 8 * seconds, 8 * seconds),
            ("idle", 2 * seconds, 2 * seconds),
            ("main", 0, 10 * seconds),
            ("work", 0, 8 * seconds),
        ];
        let expected = expected.map(|(name, own, total)| (name.to_owned(), own, total));
        assert_eq!(rows.iter().map(row).collect::<Vec<_>>(), expected);
        let coverage = store.coverage(everything("cpu")).await.unwrap().answer;
        assert_eq!(coverage, Coverage { hosts: 1, host_ms: 10_000, cores: 1.1 });
    })
    .await;
}

#[tokio::test]
async fn a_profile_with_an_id_is_stored_once() {
    with_engines(async |store| {
        let rows: [(&[&str], i64); 1] = [(&["main"], 7)];
        let id = |sequence| ProfileId::Agent { boot: 1, sequence };
        let mut batch = one_profile("api", id(0), &rows);
        batch.profiles.push(batch.profiles[0].clone());
        let acks = [(batch.clone(), 1, vec![1]), (batch, 0, vec![0, 1])];
        for (batch, stored, repeated) in acks {
            assert_eq!(store.append(batch).await.unwrap(), Ack { stored, repeated });
        }
        store.append(one_profile("api", id(1), &rows)).await.unwrap();
        store.append(one_profile("api", ProfileId::Foreign([1; 16]), &rows)).await.unwrap();
        store.append(one_profile("api", ProfileId::Foreign([1; 16]), &rows)).await.unwrap();
        store.append(one_profile("api", ProfileId::None, &rows)).await.unwrap();
        store.append(one_profile("api", ProfileId::None, &rows)).await.unwrap();
        assert_eq!(merged(store).await.unwrap().node_total[0], 7 * 5);
    })
    .await;
}

#[tokio::test]
async fn sums_beyond_64_bits_are_refused_and_those_that_return_are_not() {
    with_engines(async |store| {
        let rows = |value| [([].as_slice(), value), (["main"].as_slice(), value)];
        store.append(one_profile("api", ProfileId::None, &rows(i64::MAX))).await.unwrap();
        assert!(matches!(merged(store).await, Err(StoreError::Overflow(_))));
        assert!(matches!(store.services(everything("cpu"), 2).await, Err(StoreError::Overflow(_))));
        store.append(one_profile("api", ProfileId::None, &rows(-i64::MAX))).await.unwrap();
        store.append(one_profile("api", ProfileId::None, &rows(-3))).await.unwrap();
        assert_eq!(tree_lines(&merged(store).await.unwrap()), ["total -6/-3", " main -3/-3"]);
    })
    .await;
}

#[tokio::test]
async fn better_names_replace_worse_ones_and_totals_stay() {
    with_engines(async |store| {
        let rows: [(&[&str], i64); 1] = [(&["main", "leaf"], 7)];
        let named = one_profile("api", ProfileId::None, &rows);
        let mut unnamed = named.clone();
        unnamed.locations.iter_mut().for_each(|location| location.lines = Lines::default());
        store.append(unnamed).await.unwrap();
        let lines = ["total 7/0", " app+0x1001 7/0", "  app+0x1000 7/7"];
        assert_eq!(tree_lines(&merged(store).await.unwrap()), lines);
        store.append(named.clone()).await.unwrap();
        let lines = ["total 14/0", " main 14/0", "  leaf 14/14"];
        assert_eq!(tree_lines(&merged(store).await.unwrap()), lines);
        let mut inlined = named.clone();
        inlined.functions.push(FunctionDef { name: "tiny".into(), ..named.functions[0].clone() });
        let lines = &mut inlined.locations[0].lines;
        *lines = std::iter::once(LineDef { function: 2, line: 9 })
            .chain(lines.iter().copied())
            .collect();
        store.append(inlined).await.unwrap();
        store.append(named).await.unwrap();
        let lines = ["total 28/0", " main 28/0", "  leaf 28/0", "   tiny 28/28 inlined"];
        assert_eq!(tree_lines(&merged(store).await.unwrap()), lines);
    })
    .await;
}

/// Names with three inlined functions for the leaf's address in the file with this build id.
fn inlined_names(build_id: u8) -> NewNames {
    let function = |name: &str| FunctionDef {
        name: name.into(),
        system_name: "".into(),
        file: "deep.c".into(),
        start_line: 3,
    };
    let mut lines = Lines::default();
    (0..4).for_each(|function| lines.push(LineDef { function, line: 7 }));
    NewNames::new(
        sample_data::project(),
        vec![file(build_id)],
        ["innermost", "inner", "middle", "leaf"].map(function).to_vec(),
        vec![LocationDef { mapping: Some(0), address: 0x1000, kind: FrameKind::Native, lines }],
    )
    .unwrap()
}

fn file(build_id: u8) -> MappingDef {
    MappingDef { filename: "/bin/app".into(), build_id: BuildId::new(&[build_id; 20]) }
}

#[tokio::test]
async fn names_of_a_file_change_old_answers_and_no_total() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = open(dir.path());
    let rows: [(&[&str], i64); 2] = [(&["main", "leaf"], 7), (&["main"], 4)];
    let mut batch = one_profile("api", ProfileId::None, &rows);
    batch.mappings = vec![file(1)];
    // What a sender says in more lines is worth less all the same.
    let more = FunctionDef { name: "wrong".into(), ..batch.functions[0].clone() };
    batch.functions.push(more);
    (0..5).for_each(|_| batch.locations[0].lines.push(LineDef { function: 2, line: 1 }));
    store.append(batch.clone()).await.unwrap();
    store.flush().await.unwrap();
    let named = [
        "total 11/0",
        " main 11/4",
        "  leaf 7/0",
        "   middle 7/0 inlined",
        "    inner 7/0 inlined",
        "     innermost 7/7 inlined",
    ];
    let before = tree_lines(&merged(&store).await.unwrap());
    assert_eq!(before[0], named[0]);
    assert_ne!(before, named);
    let unnamed = async |store: &EmbeddedStore| {
        let (project, build_id) = (sample_data::project(), BuildId::new(&[1; 20]).unwrap());
        let addresses = FileAddresses { project, build_id, after: None, limit: 9 };
        let found = store.unnamed(addresses).await.unwrap();
        found.into_iter().map(|it| it.address).collect::<Vec<_>>()
    };
    assert_eq!(unnamed(&store).await, [0x1000, 0x1001]);
    store.learn(inlined_names(2)).await.unwrap();
    assert_eq!(tree_lines(&merged(&store).await.unwrap()), before, "another file's");
    store.learn(inlined_names(1)).await.unwrap();
    assert_eq!(unnamed(&store).await, [0x1001]);
    for is_flushed in [false, true] {
        assert_eq!(tree_lines(&merged(&store).await.unwrap()), named);
        if is_flushed {
            store.flush().await.unwrap();
        }
        drop(store);
        store = open(dir.path());
    }
    // The same sender's names come again, and change nothing.
    store.append(batch).await.unwrap();
    let twice = named.map(|line| line.replace("11", "22").replace('7', "14").replace("/4", "/8"));
    assert_eq!(tree_lines(&merged(&store).await.unwrap()), twice);
}

#[test]
fn names_that_no_file_can_give_are_refused() {
    let location =
        |mapping, address, kind| LocationDef { mapping, address, kind, lines: Lines::default() };
    let nameless = MappingDef { build_id: None, ..file(1) };
    for (mapping, location) in [
        (file(1), location(Some(1), 0x1000, FrameKind::Native)),
        (file(1), location(None, 0x1000, FrameKind::Native)),
        (file(1), location(Some(0), 0, FrameKind::Native)),
        (file(1), location(Some(0), 0x1000, FrameKind::Python)),
        (nameless, location(Some(0), 0x1000, FrameKind::Native)),
    ] {
        let new = NewNames::new(sample_data::project(), vec![mapping], vec![], vec![location]);
        assert!(new.is_err(), "{new:?}");
    }
}

#[tokio::test]
async fn a_batch_that_points_outside_its_tables_is_refused_whole() {
    with_engines(async |store| {
        let rows: [(&[&str], i64); 1] = [(&["main"], 7)];
        let mut batch = one_profile("api", ProfileId::None, &rows);
        let outside = SampleDef { stack: 9, ..batch.profiles[0].samples[0] };
        batch.profiles[0].samples.push(outside);
        assert!(matches!(store.append(batch).await, Err(StoreError::Invalid(_))));
        assert_eq!(merged(store).await.unwrap().node_total, [0]);
    })
    .await;
}

#[tokio::test]
async fn a_data_folder_belongs_to_one_store() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let options = EmbeddedOptions {
        data_dir: dir.path().to_owned(),
        data_bytes_max: None,
        retention: Retention::default(),
        clock: Clock::system(),
    };
    assert!(matches!(EmbeddedStore::open(options), Err(StoreError::Io { .. })));
    drop(store);
    open(dir.path());
}

#[tokio::test]
async fn concurrent_appends_are_all_there_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let store = Arc::new(open(dir.path()));
    let mut tasks = tokio::task::JoinSet::new();
    for sequence in 0..200 {
        let store = Arc::clone(&store);
        tasks.spawn(async move {
            let id = ProfileId::Agent { boot: 5, sequence };
            store.append(one_profile("api", id, &[(&["main"], 1)])).await.unwrap().stored
        });
    }
    assert_eq!(tasks.join_all().await.into_iter().sum::<u64>(), 200);
    drop(store);
    assert_eq!(merged(&open(dir.path())).await.unwrap().node_total[0], 200);
}
