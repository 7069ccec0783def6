//! Off-CPU time and lock waits from a request to every answer that speaks of them.

use super::tests::{PROJECT, Server, encode, nodes};
use crate::ingest::receiver::now_ms;
use crate::ingest::testing::text;
use crate::ingest::testing::waits::{Wait, int, waits_at};
use proto::opentelemetry_proto::tonic::common::v1::{
    AnyValue, ArrayValue, any_value::Value as Any,
};
use serde_json::{Value, json};

const MS: i64 = 1_000_000;
const FUTEX: [&str; 3] = ["k:futex_wait", "__lll_lock_wait", "pthread_mutex_lock"];
const WAIT: (&str, &str) = ("lock", "nanoseconds");
const COUNT: (&str, &str) = ("lock_contentions", "count");
const HELD: (&str, &str) = ("lock_holders", "count");
const OFF_CPU: (&str, &str) = ("off_cpu", "nanoseconds");
const OFF_CPU_COUNT: (&str, &str) = ("off_cpu", "count");

fn queue() -> Vec<(&'static str, AnyValue)> {
    vec![
        ("lock.kind", text("mutex")),
        ("lock.address", text("0x55550010")),
        ("lock.name", text("queue+0x10")),
    ]
}

fn heap(address: &'static str) -> Vec<(&'static str, AnyValue)> {
    vec![("lock.kind", text("rwlock")), ("lock.address", text(address))]
}

/// `shop` runs twice and waits for one static lock, and each process for locks on its heap.
fn shop() -> Vec<Wait<'static>> {
    let push: &'static [&str] = &[FUTEX[0], FUTEX[1], FUTEX[2], "push", "serve", "main"];
    let pop: &'static [&str] = &[FUTEX[0], FUTEX[1], FUTEX[2], "pop", "main"];
    let none: &'static [&str] = &[];
    let row = |sample_type, pid, value, stack, attributes| Wait {
        sample_type,
        process: ("/usr/bin/shop", pid),
        value,
        stack,
        attributes,
    };
    vec![
        row(WAIT, 1, 300 * MS, push, queue()),
        row(WAIT, 2, 200 * MS, push, queue()),
        row(WAIT, 2, 100 * MS, pop, queue()),
        row(WAIT, 2, 50 * MS, none, queue()),
        row(COUNT, 1, 3, push, queue()),
        row(COUNT, 2, 2, push, queue()),
        row(COUNT, 2, 1, pop, queue()),
        row(HELD, 1, 7, &["compress", "serve", "main"], queue()),
        row(HELD, 2, 2, &["k:nanosleep", "flush", "main"], queue()),
        // One address in two processes is two locks.
        row(WAIT, 1, 40 * MS, pop, heap("0x7f001000")),
        row(WAIT, 2, 60 * MS, pop, heap("0x7f001000")),
        row(COUNT, 2, 4, pop, heap("0x7f001000")),
    ]
}

async fn fed(rows: &[Wait<'_>]) -> Server {
    let server = Server::start().await;
    server.feed(&waits_at(now_ms(), rows)).await;
    server
}

#[tokio::test(flavor = "multi_thread")]
async fn locks_are_told_apart_and_added_up() {
    let server = fed(&shop()).await;
    let locks = server.json("/locks").await;
    let total = json!({"wait_ns": 750 * MS, "contentions": 10, "holder_samples": 9});
    assert_eq!((&locks["total"], &locks["locks"]), (&total, &json!(3)));
    // 750 ms in the 5 s that the host was watched.
    assert_eq!(locks["coverage"]["host_ms"], 5_000);
    let figures = |row: &Value| {
        let shown =
            ["lock", "place", "kind", "pid", "wait_ns", "contentions", "mean_ns", "threads"];
        shown.map(|name| row[name].to_string()).join(" ")
    };
    let rows: Vec<String> = locks["rows"].as_array().unwrap().iter().map(figures).collect();
    let expected = [
        r#""queue+0x10" "static" "mutex" "" 650000000 6 108333333 0.13"#,
        r#""0x7f001000" "address" "rwlock" "2" 60000000 4 15000000 0.012"#,
        r#""0x7f001000" "address" "rwlock" "1" 40000000 0 null 0.008"#,
    ];
    assert_eq!(rows, expected);

    let row = &locks["rows"][0];
    assert_eq!((&row["service"], &row["services"]), (&json!("shop"), &json!(1)));
    let waiters: Vec<_> = row["waiters"].as_array().unwrap().iter().collect();
    assert_eq!(waiters.len(), 2);
    assert_eq!((&waiters[0]["name"], &waiters[0]["wait_ns"]), (&json!("push"), &json!(500 * MS)));
    assert_eq!(waiters[0]["contentions"], 5);
    assert_eq!(waiters[0]["stack"], json!(["push", "serve", "main"]));
    assert_eq!((&waiters[1]["name"], &waiters[1]["wait_ns"]), (&json!("pop"), &json!(100 * MS)));
    let holders = row["holders"].as_array().unwrap();
    let holder = |at: usize| (holders[at]["name"].clone(), holders[at]["samples"].clone());
    assert_eq!([holder(0), holder(1)], [(json!("compress"), json!(7)), (json!("flush"), json!(2))]);
    // The wait without a stack is in the lock's sum, and of no caller.
    let rest = json!({"wait_ns": 50 * MS, "contentions": 0, "holder_samples": 0});
    assert_eq!(row["other_callers"], rest);

    let first = server.json("/locks?limit=1&callers=1").await;
    let others = json!({"locks": 2, "wait_ns": 100 * MS, "contentions": 4, "holder_samples": 0});
    assert_eq!(first["others"], others);
    let rest = json!({"wait_ns": 150 * MS, "contentions": 1, "holder_samples": 2});
    assert_eq!(first["rows"][0]["other_callers"], rest);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_filter_of_a_lock_chooses_its_samples() {
    let mut rows = shop();
    // Values that want to break out of their quotes.
    let evil = r#"a"b\c"} or {x="
	é"#;
    for (pid, name) in [(3, evil), (4, "\u{202e}}\\")] {
        rows.push(Wait {
            sample_type: WAIT,
            process: ("/usr/bin/sh\"op", pid),
            value: pid * MS,
            stack: &["main"],
            attributes: vec![("lock.name", text(name))],
        });
    }
    let server = fed(&rows).await;
    let locks = server.json("/locks").await;
    let rows = locks["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 5);
    for row in rows {
        let filter = row["filter"].as_str().unwrap();
        let path = format!("/flamegraph?type=lock&filter={}", encode(filter));
        assert_eq!(server.json(&path).await["total"], row["wait_ns"], "{filter}");
        let path = format!("/locks?filter={}", encode(filter));
        assert_eq!(server.json(&path).await["locks"], 1, "{filter}");
    }
    let filter = encode(r#"{"lock.kind"="rwlock","process.pid"="2"}"#);
    assert_eq!(server.json(&format!("/locks?filter={filter}")).await["total"]["wait_ns"], 60 * MS);
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_attributes_break_no_answer() {
    let array =
        AnyValue { value: Some(Any::ArrayValue(ArrayValue { values: vec![text("x"), int(1)] })) };
    let bytes = AnyValue { value: Some(Any::BytesValue(vec![0xff; 100])) };
    let double = AnyValue { value: Some(Any::DoubleValue(f64::NAN)) };
    let unset = AnyValue { value: None };
    let long = "\u{1f525}".repeat(5_000);
    let values =
        [text(""), text("not hex"), text(&long), int(i64::MIN), array, bytes, double, unset];
    let keys = ["lock.address", "lock.name", "lock.kind", "off_cpu.reason", "lock.owner.tid"];
    let mut rows = shop();
    for value in &values {
        for key in keys {
            for sample_type in [WAIT, COUNT, HELD, OFF_CPU] {
                rows.push(Wait {
                    sample_type,
                    process: ("/usr/bin/evil", 9),
                    value: 1,
                    stack: &["main"],
                    attributes: vec![(key, value.clone())],
                });
            }
        }
    }
    let server = fed(&rows).await;
    let evil = i64::try_from(values.len() * keys.len()).unwrap();
    for limit in [1, 1_000] {
        let locks = server.json(&format!("/locks?limit={limit}")).await;
        assert_eq!(locks["total"]["wait_ns"], 750 * MS + evil);
        let shown = locks["rows"].as_array().unwrap();
        let sum: i64 = shown.iter().map(|row| row["wait_ns"].as_i64().unwrap()).sum();
        assert_eq!(sum + locks["others"]["wait_ns"].as_i64().unwrap(), 750 * MS + evil);
        assert_eq!(shown[0]["lock"], "queue+0x10");
        for row in shown {
            let kind = row["kind"].as_str().unwrap();
            assert!(["mutex", "rwlock", "unknown"].contains(&kind), "{row}");
        }
    }
    assert_eq!(server.json("/flamegraph?type=off_cpu").await["total"], evil);
    server.json("/series?type=off_cpu&by=off_cpu.reason").await;
    server.json("/labels?type=lock").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn questions_about_locks_that_make_no_sense_are_refused() {
    let server = Server::start().await;
    let rows = [
        ("type=cpu", "`type` must be `lock`"),
        ("limit=0", "`limit` must be a number from 1 to 1000"),
        ("callers=101", "`callers` must be a number from 0 to 100"),
        ("lock=x", "unknown parameter `lock`"),
        ("filter=%7B", "filter, at byte 1"),
        ("from=now&to=now-1h", "`from` must be before `to`"),
    ];
    for (query, message) in rows {
        let answer = server.get(&format!("{PROJECT}/locks?{query}")).await;
        assert_eq!(answer.status, 400, "{query}");
        let text = answer.json()["error"]["message"].as_str().unwrap().to_owned();
        assert!(text.contains(message), "{query}: {text}");
    }
    let nothing = server.json("/locks").await;
    assert_eq!((&nothing["rows"], &nothing["locks"]), (&json!([]), &json!(0)));
}

/// Time blocked in `io` and `sleep`, with how often.
fn blocked() -> Vec<Wait<'static>> {
    let row = |sample_type, value, leaf: &'static [&str], reason| Wait {
        sample_type,
        process: ("/usr/bin/shop", 1),
        value,
        stack: leaf,
        attributes: vec![("off_cpu.reason", text(reason)), ("thread.name", text("worker"))],
    };
    let read: &'static [&str] = &["k:io_schedule", "read", "load", "main"];
    let sleep: &'static [&str] = &["k:hrtimer_nanosleep", "nanosleep", "main"];
    vec![
        row(OFF_CPU, 2_000 * MS, read, "io"),
        row(OFF_CPU, 3_000 * MS, sleep, "sleep"),
        row(OFF_CPU_COUNT, 20, read, "io"),
        row(OFF_CPU_COUNT, 3, sleep, "sleep"),
        row(("off_cpu_preempted", "nanoseconds"), 5 * MS, sleep, "preempted"),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn off_cpu_time_is_an_average_of_waiting_threads() {
    let server = fed(&blocked()).await;
    let meta = server.json("/meta").await;
    let types: Vec<_> = meta["profile_types"].as_array().unwrap().iter().collect();
    let row = |row: &&Value| {
        let text = |name: &str| row[name].as_str().unwrap().to_owned();
        (text("id"), text("unit"), text("label"))
    };
    let types: Vec<_> = types.iter().map(row).collect();
    let owned = |(id, unit, label): (&str, &str, &str)| (id.into(), unit.into(), label.into());
    let expected = [
        ("off_cpu", "nanoseconds", "Off-CPU time"),
        ("off_cpu:count", "count", "Off-CPU waits, counted"),
        ("off_cpu_preempted", "nanoseconds", "Preempted time"),
    ];
    assert_eq!(types, expected.map(owned));
    // The plain name is time, not how often.
    let graph = server.json("/flamegraph?type=off_cpu").await;
    assert_eq!((&graph["unit"], &graph["total"]), (&json!("nanoseconds"), &json!(5_000 * MS)));
    assert_eq!(graph["coverage"]["cores"], 1.0);
    assert_eq!(server.json("/flamegraph?type=off_cpu:nanoseconds").await["total"], 5_000 * MS);
    assert_eq!(server.json("/flamegraph?type=off_cpu:count").await["total"], 23);
    // Preempted time is watched as long as the rest is.
    let preempted = server.json("/flamegraph?type=off_cpu_preempted").await;
    assert_eq!(preempted["coverage"]["cores"], 0.001);
    assert_eq!(server.json("/functions?type=off_cpu").await["rows"][0]["self"], 3_000 * MS);

    let series =
        server.json("/series?type=off_cpu&by=off_cpu.reason&from=now-10m&to=now&step=600000").await;
    assert_eq!(series["value_unit"], "threads");
    let line = |at: usize| (&series["series"][at]["labels"], &series["series"][at]["values"]);
    assert_eq!(line(0), (&json!({"off_cpu.reason": "sleep"}), &json!([0.6])));
    assert_eq!(line(1), (&json!({"off_cpu.reason": "io"}), &json!([0.4])));
    let filter = encode(r#"{"off_cpu.reason"="io"}"#);
    let io = server.json(&format!("/flamegraph?type=off_cpu&filter={filter}")).await;
    assert_eq!(io["total"], 2_000 * MS);
    let values = server.json("/labels/off_cpu.reason/values?type=off_cpu").await;
    assert_eq!(values["values"].as_array().unwrap().len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_label_can_be_the_innermost_frame() {
    let server = fed(&blocked()).await;
    let graph = server.json("/flamegraph?type=off_cpu&leaf=off_cpu.reason").await;
    let node = |depth, name: &str, total, own| (depth, name.to_owned(), total, own);
    let expected = [
        node(0, "total", 5_000 * MS, 0),
        node(1, "main", 5_000 * MS, 0),
        node(2, "nanosleep", 3_000 * MS, 0),
        node(3, "hrtimer_nanosleep", 3_000 * MS, 0),
        node(4, "sleep", 3_000 * MS, 3_000 * MS),
        node(2, "load", 2_000 * MS, 0),
        node(3, "read", 2_000 * MS, 0),
        node(4, "io_schedule", 2_000 * MS, 0),
        node(5, "io", 2_000 * MS, 2_000 * MS),
    ];
    assert_eq!(nodes(&graph), expected);
    let last = graph["nodes"]["func"][8].as_u64().unwrap();
    let last = usize::try_from(last).unwrap();
    assert_eq!(graph["functions"]["kind"][last], "abort-marker");
    let module = graph["functions"]["module"][last].as_u64().unwrap();
    assert_eq!(graph["strings"][usize::try_from(module).unwrap()], "off_cpu.reason");
    // Of a label of the series, and one that no sample has.
    let graph = server.json("/flamegraph?type=off_cpu&leaf=host.name").await;
    assert_eq!(nodes(&graph)[4].1, "h1");
    let graph = server.json("/flamegraph?type=off_cpu&leaf=nothing").await;
    assert_eq!(nodes(&graph)[4].1, "no nothing");
}
