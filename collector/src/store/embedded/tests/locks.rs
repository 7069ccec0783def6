//! More locks and stacks than an answer tells apart: sums stay exact, and the answer says what is missing.

use super::*;
use crate::profile::{Attribute, AttributeValue, ProfileId, SampleDef, ValueType};
use crate::query::LocksQuery;

/// Waits of 1, 2, 3, ... ns for as many locks, all on stacks of their own.
fn waits(locks: i64) -> WriteBatch {
    let names: Vec<String> = (0..locks).map(|lock| format!("caller_{lock}")).collect();
    let stacks: Vec<[&str; 2]> = names.iter().map(|name| ["main", name]).collect();
    let rows: Vec<(&[&str], i64)> =
        stacks.iter().zip(1..).map(|(stack, value)| (&stack[..], value)).collect();
    let mut batch = one_profile("api", ProfileId::None, &rows);
    let attribute = |lock: &str| {
        let value = AttributeValue::Text(lock.into());
        vec![Attribute { key: "lock.name".into(), value }]
    };
    batch.attribute_sets = names.iter().map(|name| attribute(name)).collect();
    let profile = &mut batch.profiles[0];
    profile.sample_type = ValueType { kind: "lock".into(), unit: "nanoseconds".into() };
    let samples = profile.samples.iter().zip(0..);
    profile.samples =
        samples.map(|(&sample, attributes)| SampleDef { attributes, ..sample }).collect();
    batch
}

#[tokio::test(flavor = "multi_thread")]
async fn beyond_the_limits_sums_are_exact_and_the_rest_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let store = EmbeddedStore::open(options(dir.path())).unwrap();
    store.append(waits(100)).await.unwrap();
    let all = LocksQuery::new(everything("lock"), 1_000, 10);
    let whole = store.locks(all.clone()).await.unwrap();
    assert_eq!((whole.locks, whole.rows.len(), whole.total.wait_ns), (100, 100, 5_050));
    assert_eq!(whole.warnings, [""; 0]);
    assert!(whole.rows.iter().all(|row| row.waiters.len() == 1 && row.others.wait_ns == 0));

    let few = store.locks(LocksQuery { locks_max: 30, ..all.clone() }).await.unwrap();
    assert_eq!((few.locks, few.rows.len(), few.total.wait_ns), (30, 30, 5_050));
    let shown: i64 = few.rows.iter().map(|row| row.figures.wait_ns).sum();
    assert_eq!(shown + few.others.wait_ns, 5_050);
    assert!(few.warnings[0].starts_with("more than 30 locks"), "{:?}", few.warnings);

    let few = store.locks(LocksQuery { stacks_max: 10, ..all }).await.unwrap();
    assert_eq!((few.locks, few.rows.len(), few.total.wait_ns), (100, 100, 5_050));
    let waiters = few.rows.iter().flat_map(|row| &row.waiters);
    let waited: i64 = waiters.map(|waiter| waiter.figures.wait_ns).sum();
    let others: i64 = few.rows.iter().map(|row| row.others.wait_ns).sum();
    assert_eq!((waited + others, few.others.wait_ns), (5_050, 0));
    assert_eq!(few.rows.iter().filter(|row| !row.waiters.is_empty()).count(), 10);
    assert!(few.warnings[0].starts_with("more than 10 stacks"), "{:?}", few.warnings);
}
