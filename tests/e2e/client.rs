//! The commands that ask a collector give what its API gives.

use prost::Message as _;
use proto::pprof::{ProfileBuilder, Sample};
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tests::profiles::{Client, PERIOD_NS, Sender, request};
use tests::{Collector, Running, binary, waits};

const SAMPLES: usize = 23;

#[test]
fn top_and_flamegraph() {
    let collector = Collector::start();
    let sent = request(Sender { service: "shop", scope: "test" }, [5; 16], SAMPLES);
    let mut client = Client::connect(collector.otlp_grpc()).expect("it listens");
    assert_eq!(client.send(&sent).expect("accepted"), 0);
    let folded = ask(&collector, &["flamegraph", "--service", "shop", "--format", "folded"]);
    assert_eq!(folded.trim(), format!("main;work {SAMPLES}"));
    let json = ask(&collector, &["flamegraph", "--format", "json"]);
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(json["total"], i64::try_from(SAMPLES).expect("small") * PERIOD_NS);
    let top = ask(&collector, &["top", "--service", "shop"]);
    let row = top.lines().find(|line| line.contains("work")).expect("the leaf is a row");
    assert!(row.contains("100"), "all of the time is its own: {row}");
    let nothing = ask(&collector, &["flamegraph", "--service", "other", "--format", "folded"]);
    assert_eq!(nothing.trim(), "");
}

#[test]
fn locks_and_off_cpu_time() {
    let collector = Collector::start();
    let mut client = Client::connect(collector.otlp_grpc()).expect("it listens");
    assert_eq!(client.send(&waits::request()).expect("accepted"), 0);
    let table = ask(&collector, &["locks", "--service", waits::SERVICE]);
    let lines: Vec<&str> = table.lines().collect();
    assert!(lines[0].starts_with("900.00 s of waiting in 4500 contentions of 2 locks"), "{table}");
    assert!(lines[2].contains("200.00 ms mutex    queue+0x10 [wait-shop]"), "{table}");
    assert!(lines[3].ends_with("waits 100.00%  push_order < serve < main"), "{table}");
    assert!(lines[4].ends_with("holds 100.00%  compress_orders"), "{table}");
    assert!(lines[5].contains("0x7f0000001000 [wait-shop, pid 4711 on test-host]"), "{table}");
    let json = ask(&collector, &["locks", "--json", "--limit", "1"]);
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(json["rows"][0]["wait_ns"], waits::LOCK_WAIT_NS);
    assert_eq!(json["others"]["locks"], 1);
    let filter = json["rows"][0]["filter"].as_str().expect("a filter");
    let folded = ask(
        &collector,
        &["flamegraph", "--type", "lock", "--filter", filter, "--format", "folded"],
    );
    let stack = "main;serve;push_order;pthread_mutex_lock;__lll_lock_wait";
    assert_eq!(folded.trim(), format!("{stack} {}", waits::LOCK_WAIT_NS));
    let top = ask(&collector, &["top", "--type", "off_cpu", "--service", waits::SERVICE]);
    assert!(top.starts_with("off_cpu: 2400.00 s in 2 samples"), "{top}");
    assert!(top.contains("threads on average"), "{top}");
}

#[test]
fn upload() {
    let collector = Collector::start();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = |name: &str| folder.path().join(name).display().to_string();
    std::fs::write(path("good.pb"), pprof(7)).expect("a file");
    std::fs::write(path("other.pb"), pprof(9)).expect("a file");
    std::fs::write(path("broken.pb"), b"no profile").expect("a file");
    let run = |files: &[&str]| {
        let mut command = Command::new(binary::program("vesta"));
        command.args(["upload", "--url", &format!("http://{}", collector.address())]);
        command.args(["--service", "shop"]).args(files.iter().map(|file| path(file)));
        let mut process = Running::start(command);
        let status = process.wait(Duration::from_secs(20));
        (status.code(), process.stderr())
    };
    let (code, said) = run(&["good.pb", "broken.pb", "other.pb"]);
    assert_eq!(code, Some(1), "{said}");
    assert!(
        said.contains("good.pb: shop at ") && said.contains("cpu 7 nanoseconds in 1 samples"),
        "{said}"
    );
    assert!(
        said.contains("broken.pb: not stored: the collector refused: not a pprof profile"),
        "{said}"
    );
    assert!(said.contains("1 of 3 files were not stored"), "{said}");
    let (code, said) = run(&["good.pb"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("was stored before"), "{said}");
    assert_eq!(run(&["absent.pb"]).0, Some(1));
    let folded = ask(&collector, &["flamegraph", "--service", "shop", "--format", "json"]);
    let json: serde_json::Value = serde_json::from_str(&folded).expect("JSON");
    assert_eq!((&json["total"], &json["samples"]), (&16.into(), &2.into()));
}

/// One sample of `work`.
fn pprof(value: i64) -> Vec<u8> {
    let mut builder = ProfileBuilder::new();
    let cpu = builder.value_type("cpu", "nanoseconds");
    let function = builder.function("work", "", "");
    let location_id = vec![builder.location(0, 0, vec![(function, 0)])];
    builder.sample(Sample { location_id, value: vec![value], label: Vec::new() });
    let mut profile = builder.finish();
    profile.sample_type = vec![cpu];
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    profile.time_nanos = i64::try_from(since.as_nanos()).expect("before 2262");
    profile.encode_to_vec()
}

#[test]
fn a_collector_that_is_not_there_is_named() {
    let mut command = Command::new(binary::program("vesta"));
    command.args(["top", "--url", "http://127.0.0.1:1"]);
    let mut process = Running::start(command);
    let status = process.wait(Duration::from_secs(20));
    assert_eq!(status.code(), Some(1));
    assert!(process.stderr().contains("127.0.0.1:1"), "{}", process.stderr());
}

fn ask(collector: &Collector, arguments: &[&str]) -> String {
    let mut command = Command::new(binary::program("vesta"));
    command.args(arguments).args(["--url", &format!("http://{}", collector.address())]);
    command.args(["--to", "now+1m"]);
    Running::start(command).finish(Duration::from_secs(20))
}
