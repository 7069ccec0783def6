//! Broken pprof profiles. Goal and method as for OTLP, with another unit: the request is one profile, which is
//! stored whole or refused whole. What existing back ends take with success and lose is among the cases.

use flate2::Compression;
use flate2::write::GzEncoder;
use prost::Message as _;
use proto::pprof::{Profile, ProfileBuilder, Sample};
use std::io::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};
use tests::http::{Response, request};
use tests::{Collector, need, seed};

const PATH: &str = "/profiles/pprof?service=shop";

/// Value of the one sample of a good profile.
const VALUE: i64 = 7;

/// Memory that the collector may take at any time of this test, MiB: two bodies that are being decompressed take up
/// to twice 64 MiB each.
const PEAK_RSS_MIB_MAX: u64 = 400;

fn now_ns() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    i64::try_from(since.as_nanos()).expect("before 2262")
}

/// One sample of two frames: `cpu`/`nanoseconds` and `alloc`/`bytes`.
fn profile() -> Profile {
    let mut builder = ProfileBuilder::new();
    let types = [builder.value_type("cpu", "nanoseconds"), builder.value_type("alloc", "bytes")];
    let functions = [builder.function("work", "", "w.c"), builder.function("main", "", "m.c")];
    let location_id =
        functions.map(|function| builder.location(0, 0, vec![(function, 1)])).to_vec();
    builder.sample(Sample { location_id, value: vec![VALUE; 2], label: Vec::new() });
    let mut profile = builder.finish();
    profile.sample_type = types.to_vec();
    profile.time_nanos = now_ns() - 1_000_000_000;
    profile
}

fn changed(change: fn(&mut Profile)) -> Vec<u8> {
    let mut profile = profile();
    change(&mut profile);
    profile.encode_to_vec()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut to = GzEncoder::new(Vec::new(), Compression::fast());
    to.write_all(bytes).expect("memory");
    to.finish().expect("memory")
}

/// 1 GiB of zeros in about 1 MiB: gzip files behind each other are one.
fn bomb() -> Vec<u8> {
    gzip(&vec![0; 1 << 20]).repeat(1 << 10)
}

/// Name, body, status, code.
fn cases() -> Vec<(&'static str, Vec<u8>, u16, &'static str)> {
    let whole = profile().encode_to_vec();
    let zipped = gzip(&whole);
    vec![
        ("nothing", Vec::new(), 400, "empty"),
        ("nothing, compressed", gzip(&[]), 400, "empty"),
        ("text", b"heap profile: 3: 4 [5: 6] @ heap/1".to_vec(), 400, "undecodable"),
        ("random bytes", vec![0xa7; 300], 400, "undecodable"),
        ("cut off", whole[..whole.len() - 5].to_vec(), 400, "undecodable"),
        ("cut off, compressed", zipped[..zipped.len() - 9].to_vec(), 400, "undecodable"),
        ("gzip in gzip in gzip", gzip(&gzip(&zipped)), 400, "undecodable"),
        ("bomb", bomb(), 413, "limit"),
        ("bomb in gzip", gzip(&bomb()), 413, "limit"),
        ("65 MiB", vec![0; 65 << 20], 413, "limit"),
        ("20 million empty messages", [0x12, 0].repeat(20_000_000), 413, "limit"),
        ("no type", changed(|it| it.sample_type.clear()), 400, "sample_type"),
        ("location id", changed(|it| it.sample[0].location_id[0] = 99), 400, "index"),
        ("location id 0", changed(|it| it.sample[0].location_id[0] = 0), 400, "index"),
        ("function id", changed(|it| it.location[0].line[0].function_id = 99), 400, "index"),
        ("mapping id", changed(|it| it.location[0].mapping_id = 99), 400, "index"),
        ("text index", changed(|it| it.function[0].name = 99), 400, "index"),
        ("two locations of one id", changed(|it| it.location[1].id = 1), 400, "index"),
        ("one value, two types", changed(|it| it.sample[0].value.truncate(1)), 400, "lengths"),
        ("the year 2126", changed(|it| it.time_nanos = 4_923_072_000 * 1_000_000_000), 422, "time"),
        ("before 1970", changed(|it| it.time_nanos = -5_000_000_000), 422, "time"),
        ("sum beyond 64 bits", changed(two_largest), 422, "overflow"),
    ]
}

fn two_largest(profile: &mut Profile) {
    let mut sample = profile.sample[0].clone();
    sample.value[1] = i64::MAX;
    profile.sample = vec![sample.clone(), sample];
}

fn post(collector: &Collector, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Response {
    request(collector.address(), "POST", path, headers, body).expect("an answer")
}

fn check(name: &str, answer: &Response, status: u16, code: &str) {
    assert_eq!(answer.status, status, "{name}: {}", answer.text());
    let json: serde_json::Value = serde_json::from_slice(&answer.body).expect("JSON");
    assert_eq!(json["error"]["code"], code, "{name}: {json}");
    assert_ne!(json["error"]["message"], "", "{name} says why");
}

fn total(collector: &Collector, kind: &str) -> serde_json::Value {
    let graph =
        collector.api("flamegraph", &[("from", "now-1h"), ("to", "now+1m"), ("type", kind)]);
    graph["total"].clone()
}

#[test]
fn every_kind_of_pprof() {
    let mut collector = Collector::start();
    let cases = cases();
    for (name, body, status, code) in &cases {
        check(name, &post(&collector, PATH, &[], body), *status, code);
        let label = format!("vesta_profiles_rejected_total{{reason=\"{code}\"}}");
        let metrics = tests::http::get(collector.address(), "/metrics").expect("metrics").text();
        assert!(metrics.contains(&label), "{name} is counted as {code}");
    }
    other_requests(&collector);
    noise(&collector);
    assert_eq!(total(&collector, "cpu"), 0, "nothing of all that is stored");
    assert_eq!(total(&collector, "alloc"), 0);
    let peak = peak_rss_mib(&mut collector);
    assert!(peak <= PEAK_RSS_MIB_MAX, "{peak} MiB at most");
    need::figure(&format!("{} kinds, {peak} MiB at most", cases.len()));
    // A good one, every way it may be wrapped; the same again is the same.
    let good = profile().encode_to_vec();
    for body in [good.clone(), gzip(&good), gzip(&gzip(&good))] {
        let answer = post(&collector, PATH, &[], &body);
        assert_eq!(answer.status, 202, "{}", answer.text());
    }
    let coded = post(&collector, PATH, &[("Content-Encoding", "gzip")], &gzip(&gzip(&good)));
    assert_eq!(coded.status, 202, "{}", coded.text());
    assert_eq!(
        (total(&collector, "cpu"), total(&collector, "alloc")),
        (VALUE.into(), VALUE.into())
    );
    signs(&collector);
    let said = collector.stop();
    assert!(!said.contains("panicked"), "{said}");
}

/// Parameters, projects, codings and web pages.
fn other_requests(collector: &Collector) {
    let good = profile().encode_to_vec();
    type Row<'a> = (&'a str, &'a [(&'a str, &'a str)], u16, &'a str);
    let rows: [Row<'_>; 5] = [
        ("/profiles/pprof?sevice=shop", &[], 400, "bad_parameter"),
        ("/profiles/pprof?type=a&type=b", &[], 400, "bad_parameter"),
        ("/api/v1/projects/other/profiles/pprof", &[], 404, "no_project"),
        (PATH, &[("Content-Encoding", "br")], 415, "coding"),
        (PATH, &[("Origin", "http://evil.example")], 403, "origin"),
    ];
    for (path, headers, status, code) in rows {
        check(path, &post(collector, path, headers, &good), status, code);
    }
}

/// Good profiles with noise in them, of a time that is not accepted: whatever the answer is, the collector lives.
fn noise(collector: &Collector) {
    let mut state = seed() | 1;
    need::figure(&format!("noise from seed {state}"));
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        usize::try_from(state >> 1).expect("63 bits")
    };
    let good = changed(|it| it.time_nanos = 4_923_072_000 * 1_000_000_000);
    for _ in 0..300 {
        let mut body = good.clone();
        for _ in 0..=random() % 6 {
            let at = random() % body.len();
            body[at] = random().to_le_bytes()[0];
        }
        let status = post(collector, "/profiles/pprof?service=noise", &[], &body).status;
        assert!([202, 400, 413, 422].contains(&status), "noise: {status}");
    }
    // What noise turned into a profile without a time of its own is stored, as it should be.
    let graph = collector.api(
        "flamegraph",
        &[("from", "now-1h"), ("to", "now+1m"), ("type", "cpu"), ("filter", "{service=\"noise\"}")],
    );
    need::figure(&format!("stored of the noise: {}", graph["samples"]));
}

/// Zero and negative values are values.
fn signs(collector: &Collector) {
    let body = changed(|it| {
        it.sample[0].value = vec![0, -3];
        it.sample.push(Sample { value: vec![-1, 0], ..it.sample[0].clone() });
    });
    let answer = post(collector, "/profiles/pprof?service=signs", &[], &body);
    assert_eq!(answer.status, 202, "{}", answer.text());
    for (kind, total) in [("cpu", -1), ("alloc", -3)] {
        let query = [("from", "now-1h"), ("to", "now+1m"), ("type", kind)];
        let graph = collector
            .api("flamegraph", &[&query[..], &[("filter", "{service=\"signs\"}")]].concat());
        assert_eq!((&graph["total"], &graph["samples"]), (&total.into(), &2.into()), "{graph}");
    }
}

fn peak_rss_mib(collector: &mut Collector) -> u64 {
    let pid = collector.process().pid();
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = peak.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    kib.expect("the kernel says it") / 1024
}
