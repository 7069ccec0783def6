//! Deletion over HTTP against the real collector. Goals: the answer 202 means that no query shows the samples any more,
//! whatever happens then; what was not meant stays; a deletion that was answered is seen through after kill -9, and what
//! comes later is new. Method: services whose number of samples is known, deleted, counted, with the collector killed right
//! after its answer, again and again.

use serde_json::Value;
use std::time::{Duration, SystemTime};
use tests::profiles::{Client, Sender, request};
use tests::{Collector, http, need, seed};

const ROUNDS: u64 = 12;

fn send(collector: &Collector, service: &'static str, sequence: u64, samples: usize) {
    let mut id = [0; 16];
    id[..8].copy_from_slice(&0x5678_u64.to_be_bytes());
    id[8..].copy_from_slice(&sequence.to_be_bytes());
    let window = request(Sender { service, scope: "vesta-agent" }, id, samples);
    let mut client = Client::connect(collector.otlp_grpc()).expect("the collector listens");
    assert_eq!(client.send(&window).expect("an answer"), 0, "rejected");
}

/// Samples of a service that queries see.
fn samples(collector: &Collector, service: &str) -> u64 {
    let filter = format!("{{service=\"{service}\"}}");
    let query = [("from", "now-1h"), ("to", "now+1m"), ("filter", &*filter)];
    let graph = collector.api("flamegraph", &query);
    graph["samples"].as_u64().expect("a number of samples")
}

/// Some seconds from now, as RFC 3339.
fn soon() -> String {
    let time = SystemTime::now() + Duration::from_secs(5);
    jiff::Timestamp::try_from(time).expect("a time of today").to_string()
}

fn delete(collector: &Collector, path: &str) -> http::Response {
    http::request(collector.address(), "DELETE", path, &[], &[]).expect("an answer")
}

fn json(response: &http::Response) -> Value {
    serde_json::from_slice(&response.body).expect("JSON")
}

/// The id of a deletion that was taken.
fn taken(response: &http::Response) -> String {
    assert_eq!(response.status, 202, "{}", response.text());
    json(response)["deletion_id"].as_str().expect("an id").to_owned()
}

/// Waits until a deletion is over; what it says then.
fn outcome(collector: &Collector, id: &str) -> Value {
    for _ in 0..200 {
        let state = collector.api(&format!("deletions/{id}"), &[]);
        match state["state"].as_str() {
            Some("queued" | "running") => std::thread::sleep(Duration::from_millis(50)),
            _ => return state,
        }
    }
    panic!("deletion {id} is not over after 10 s")
}

#[test]
fn a_service_goes_and_another_stays() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut collector = Collector::start_on(folder.path(), &[]);
    send(&collector, "gone", 1, 7);
    send(&collector, "stays", 2, 5);
    let alias = format!("/v1/projects/default/profiles?service=gone&before={}", soon());
    let answer = delete(&collector, &alias);
    let id = taken(&answer);
    let place = format!("/api/v1/projects/default/deletions/{id}");
    assert!(answer.head.to_lowercase().contains(&format!("location: {place}")), "{}", answer.head);
    assert_eq!((samples(&collector, "gone"), samples(&collector, "stays")), (0, 5));
    collector.kill();
    drop(collector);
    let collector = Collector::start_on(folder.path(), &[]);
    assert_eq!((samples(&collector, "gone"), samples(&collector, "stays")), (0, 5));
    let state = outcome(&collector, &id);
    assert_eq!((&state["state"], &state["service"]), (&"done".into(), &"gone".into()), "{state}");
    assert!(state["hidden"].as_u64() >= state["requested"].as_u64(), "{state}");
    assert!(state["finished"].as_u64() >= state["hidden"].as_u64(), "{state}");
    let of_alias = http::get(collector.address(), &place.replacen("/api", "", 1)).expect("answer");
    assert_eq!(json(&of_alias), state);
    // A window that is sent again was stored before; one that is new is new.
    send(&collector, "gone", 1, 7);
    assert_eq!(samples(&collector, "gone"), 0, "what was deleted does not come back");
    send(&collector, "gone", 3, 4);
    assert_eq!(samples(&collector, "gone"), 4);
    collector.stop();
    let collector = Collector::start_on(folder.path(), &[]);
    assert_eq!((samples(&collector, "gone"), samples(&collector, "stays")), (4, 5));
}

#[test]
fn a_deletion_that_was_answered_is_seen_through() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut collector = Collector::start_on(folder.path(), &[]);
    let mut state = seed() | 1;
    need::figure(&format!("seed {state}"));
    send(&collector, "stays", 0, 5);
    let mut ids = Vec::new();
    for round in 0..ROUNDS {
        send(&collector, "gone", 1 + round, 3);
        assert_eq!(samples(&collector, "gone"), 3, "round {round}");
        let path = format!(
            "/api/v1/projects/default/profiles?before={}&service=gone",
            http::encode(&soon())
        );
        ids.push(taken(&delete(&collector, &path)));
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        std::thread::sleep(Duration::from_micros((state >> 33) % 60_000));
        collector.kill();
        drop(collector);
        collector = Collector::start_on(folder.path(), &[]);
        assert_eq!((samples(&collector, "gone"), samples(&collector, "stays")), (0, 5), "{round}");
    }
    for id in ids {
        let state = outcome(&collector, &id);
        assert_eq!(state["state"], "done", "{state}");
    }
    assert_eq!(samples(&collector, "stays"), 5);
}

#[test]
fn what_deletes_is_read_strictly() {
    let collector = Collector::start();
    send(&collector, "stays", 1, 5);
    let profiles = "/api/v1/projects/default/profiles";
    let wrong = [
        (profiles.to_owned(), 400, "`before` is missing"),
        (format!("{profiles}?before="), 400, "RFC 3339"),
        (format!("{profiles}?before=now"), 400, "RFC 3339"),
        (format!("{profiles}?before=1795980000000"), 400, "RFC 3339"),
        (format!("{profiles}?before=2026-11-29"), 400, "RFC 3339"),
        (format!("{profiles}?before=2199-01-01T00:00:00Z"), 400, "later than any sample"),
        (format!("{profiles}?before={0}&before={0}", soon()), 400, "given twice"),
        (format!("{profiles}?before={}&servce=stays", soon()), 400, "unknown parameter `servce`"),
        (format!("{profiles}?before={}&service=", soon()), 400, "`service` must have"),
        (format!("/api/v1/projects/other/profiles?before={}", soon()), 404, "no project `other`"),
        (format!("{profiles}/pprof?before={}", soon()), 405, "no such method"),
    ];
    for (path, status, says) in wrong {
        let answer = delete(&collector, &path);
        assert_eq!(answer.status, status, "{path}: {}", answer.text());
        let error = &json(&answer)["error"];
        let message = error["message"].as_str().expect("a message");
        assert!(message.contains(says), "{path}: {message}");
        if status == 400 {
            let hint = error["hint"].as_str().unwrap_or_default();
            assert!(!hint.is_empty() || says == "given twice", "{path}");
        }
    }
    let foreign = [("Origin", "https://elsewhere.example")];
    let path = format!("{profiles}?before={}", soon());
    let answer = http::request(collector.address(), "DELETE", &path, &foreign, &[]);
    assert_eq!(answer.expect("an answer").status, 403, "a page of another site deletes nothing");
    for id in ["1", "nonsense", &"0".repeat(32)] {
        let answer = collector.ask(&format!("deletions/{id}"), &[]);
        assert_eq!(answer.status, 404, "{id}: {}", answer.text());
        assert_eq!(json(&answer)["error"]["code"], "no_deletion");
    }
    assert_eq!(samples(&collector, "stays"), 5);
}
