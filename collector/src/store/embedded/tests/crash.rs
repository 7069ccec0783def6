//! kill -9 of a process that appends: what it said to be acknowledged is there, once. The child is this test
//! executable again, with a folder in its environment.

use super::*;
use crate::profile::ProfileId;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Command as Process, Stdio};
use std::time::Duration;

const CHILD_DIR: &str = "VESTA_TEST_CRASH_DIR";
const RUNS: u64 = 5;

/// One sequence is one profile with one sample of value 1.
fn batch(sequence: u64) -> WriteBatch {
    let id = ProfileId::Agent { boot: 77, sequence };
    one_profile("api", id, &[(&["main", "leaf"], 1)])
}

/// The child: appends until it is killed; does nothing in an ordinary test run.
#[test]
fn child() {
    let Ok(dir) = std::env::var(CHILD_DIR) else { return };
    runtime().block_on(async {
        let store = Arc::new(open(Path::new(&dir)));
        let first = store.stats().await.unwrap();
        assert_eq!(first.profiles_duplicate, 0);
        let mut tasks = tokio::task::JoinSet::new();
        for writer in 0..4 {
            let store = Arc::clone(&store);
            tasks.spawn(async move {
                // Sequences of earlier runs are sent again, as a spool does after a crash.
                for sequence in (writer..).step_by(4) {
                    store.append(batch(sequence)).await.unwrap();
                    writeln!(std::io::stdout(), "acknowledged {sequence}").unwrap();
                    if sequence % 400 == 0 {
                        store.flush().await.unwrap();
                        store.compact().await.unwrap();
                    }
                }
            });
        }
        tasks.join_all().await;
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_acknowledged_is_lost_and_nothing_is_twice() {
    let dir = tempfile::tempdir().unwrap();
    let mut acknowledged = std::collections::BTreeSet::new();
    for run in 0..RUNS {
        let mut child = Process::new(std::env::current_exe().unwrap())
            .args(["--exact", "store::embedded::tests::crash::child", "--nocapture"])
            .env(CHILD_DIR, dir.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let reader = std::thread::spawn(move || {
            let numbers = lines.map_while(Result::ok).filter_map(|line| {
                let number = line.strip_prefix("acknowledged ")?.to_owned();
                number.parse::<u64>().ok()
            });
            numbers.collect::<Vec<u64>>()
        });
        tokio::time::sleep(Duration::from_millis(300 + 170 * run)).await;
        child.kill().unwrap();
        child.wait().unwrap();
        acknowledged.extend(reader.join().unwrap());
        let store = open(dir.path());
        let sum = u64::try_from(merged(&store).await.unwrap().node_total[0]).unwrap();
        // At most the four that were under way may be there beyond what was acknowledged.
        let count = acknowledged.len() as u64;
        assert!(
            (count..=count + 4 * (run + 1)).contains(&sum),
            "{sum} stored, {count} acknowledged"
        );
        for &sequence in acknowledged.iter().rev().take(50) {
            let ack = store.append(batch(sequence)).await.unwrap();
            assert_eq!(ack, Ack { stored: 0, repeated: vec![0] }, "sequence {sequence}");
        }
    }
    assert!(acknowledged.len() > 20, "the child wrote only {}", acknowledged.len());
}
