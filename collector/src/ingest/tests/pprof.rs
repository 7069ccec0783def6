//! pprof over HTTP: each answer, and that it is true of the store.

use super::{Server, compress, now_ms};
use crate::ingest::compression::Coding;
use crate::limits::REQUEST_BYTES_MAX;
use crate::store::ProfileStore as _;
use http_body_util::{BodyExt as _, Full};
use prost::Message as _;
use proto::pprof::{Label, Profile, ProfileBuilder, Sample};
use serde_json::{Value, json};
use std::sync::atomic::Ordering;

const PROJECT: &str = "/api/v1/projects/default";

/// One sample of `main;work`: 7 ns of `cpu`.
fn profile() -> Profile {
    let mut builder = ProfileBuilder::new();
    let cpu = builder.value_type("cpu", "nanoseconds");
    let functions = [builder.function("work", "", ""), builder.function("main", "", "")];
    let locations = functions.map(|function| builder.location(0, 0, vec![(function, 0)]));
    let (key, str) = (builder.string("tenant"), builder.string("a"));
    let label = vec![Label { key, str, num: 0, num_unit: 0 }];
    builder.sample(Sample { location_id: locations.to_vec(), value: vec![7], label });
    let mut profile = builder.finish();
    profile.sample_type = vec![cpu];
    profile.time_nanos = (now_ms() - 5_000) * 1_000_000;
    profile.duration_nanos = 1_000_000_000;
    profile
}

struct Told {
    status: u16,
    retry_after: bool,
    json: Value,
}

impl Server {
    async fn push(&self, path: &str, headers: &[(&str, &str)], body: Vec<u8>) -> Told {
        let main = self.collector.addresses.main;
        let mut request = http::Request::post(format!("http://{main}{path}"));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let response = self.http.request(request.body(Full::from(body)).unwrap()).await.unwrap();
        let (parts, body) = response.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        let retry_after = parts.headers.contains_key("retry-after");
        let json = serde_json::from_slice(&body).unwrap();
        Told { status: parts.status.as_u16(), retry_after, json }
    }

    async fn get_json(&self, path: &str) -> Value {
        let uri = format!("http://{}{path}", self.collector.addresses.main);
        let answer = self.http.get(uri.parse().unwrap()).await.unwrap();
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        serde_json::from_slice(&body).unwrap()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_profile_is_stored_however_it_is_wrapped() {
    let server = Server::start().await;
    let gzip = |bytes: &[u8]| compress(Coding::Gzip, bytes);
    let path = "/profiles/pprof?service=shop";
    for (stored, coding) in ["identity", "gzip", "zstd", "deflate"].into_iter().enumerate() {
        let mut profile = profile();
        profile.time_nanos += i64::try_from(stored).unwrap();
        let plain = profile.encode_to_vec();
        let (once, twice) = (gzip(&plain), gzip(&gzip(&plain)));
        for (at, layers) in [plain, once, twice].into_iter().enumerate() {
            let body = match coding {
                "gzip" => gzip(&layers),
                "zstd" => compress(Coding::Zstd, &layers),
                "deflate" => compress(Coding::Deflate, &layers),
                _ => layers,
            };
            let told = server.push(path, &[("content-encoding", coding)], body).await;
            // gzip in gzip in gzip is one too many for the receiver's own look, but named it is one less.
            assert_eq!(told.status, 202, "{coding} {at}: {}", told.json);
            assert_eq!(told.json["repeated"], at > 0, "{coding} {at}");
        }
        let stored = u64::try_from(stored).unwrap() + 1;
        assert_eq!(server.stored().await, (stored, stored));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_sender_says_can_be_asked_for() {
    let server = Server::start().await;
    let mut pushed = profile();
    pushed.sample[0].value[0] = -7;
    let path = format!(
        "{PROJECT}/profiles/pprof?service=shop&host=h1&pod=p1&container=c1&type=mutex&environment=test\
         &transaction=buy&trace_id=abc&version="
    );
    let told = server.push(&path, &[], pushed.encode_to_vec()).await;
    let from = pushed.time_nanos / 1_000_000;
    let expected = json!({
        "service": "shop", "from": from, "to": from + 1_000, "type": "cpu", "repeated": false,
        "types": [{"type": "cpu", "unit": "nanoseconds", "samples": 1, "total": -7}],
    });
    assert_eq!((told.status, told.json), (202, expected));
    let filter = "%7Bservice%3D%22shop%22%2Chost%3D%22h1%22%2Cpod%3D%22p1%22%2Ccontainer%3D%22c1%22%2C\
        profile.type%3D%22mutex%22%2Cdeployment.environment.name%3D%22test%22%2C\
        transaction.name%3D%22buy%22%2Ctrace_id%3D%22abc%22%2Ctenant%3D%22a%22%7D";
    let graph = server.get_json(&format!("{PROJECT}/flamegraph?filter={filter}")).await;
    assert_eq!((&graph["total"], &graph["samples"]), (&json!(-7), &json!(1)), "{graph}");
    let labels = server.get_json(&format!("{PROJECT}/labels")).await;
    let names: Vec<&str> = labels["labels"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|label| label["name"].as_str())
        .collect();
    assert!(names.contains(&"tenant") && !names.contains(&"service.version"), "{names:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_refused_is_not_stored() {
    type Row<'a> = (u16, &'a str, &'a str, &'a [(&'a str, &'a str)], Vec<u8>);
    let good = profile().encode_to_vec();
    let changed = |change: fn(&mut Profile)| {
        let mut profile = profile();
        change(&mut profile);
        profile.encode_to_vec()
    };
    let path = "/profiles/pprof?service=shop";
    let long = format!("/profiles/pprof?service={}", "x".repeat(4_097));
    let bomb = compress(Coding::Gzip, &vec![0; REQUEST_BYTES_MAX + 1]);
    let rows: [Row<'_>; 15] = [
        (400, "empty", path, &[], Vec::new()),
        (400, "undecodable", path, &[], vec![0xff; 99]),
        (400, "undecodable", path, &[], vec![0x1f, 0x8b, 0]),
        (400, "undecodable", path, &[("content-encoding", "gzip")], good.clone()),
        (400, "index", path, &[], changed(|it| it.sample[0].location_id[0] = 9)),
        (413, "limit", path, &[], bomb.clone()),
        (413, "limit", path, &[], compress(Coding::Gzip, &bomb)),
        (413, "limit", path, &[], vec![0; REQUEST_BYTES_MAX + 1]),
        (422, "time", path, &[], changed(|it| it.time_nanos -= 31 * 86_400_000_000_000)),
        (422, "overflow", path, &[], changed(|it| it.sample[0].value[0] = i64::MIN)),
        (400, "bad_parameter", "/profiles/pprof?svc=shop", &[], good.clone()),
        (400, "bad_parameter", &long, &[], good.clone()),
        (404, "no_project", "/api/v1/projects/other/profiles/pprof", &[], good.clone()),
        (415, "coding", path, &[("content-encoding", "br")], good.clone()),
        (403, "origin", path, &[("origin", "http://evil.example")], good.clone()),
    ];
    let server = Server::start().await;
    for (status, code, path, headers, body) in rows {
        let told = server.push(path, headers, body).await;
        assert_eq!(told.json["error"]["code"], code, "{}", told.json);
        assert_eq!((told.status, told.retry_after), (status, false), "{code}");
    }
    assert_eq!(server.stored().await, (0, 0));
    server.store.busy.store(true, Ordering::Relaxed);
    let told = server.push(path, &[], good.clone()).await;
    assert_eq!((told.status, told.retry_after), (503, true), "{}", told.json);
    server.store.busy.store(false, Ordering::Relaxed);
    assert_eq!(server.push(path, &[], good).await.json["repeated"], false, "nothing was stored");
    assert_eq!(server.store.stats().await.unwrap().profiles_stored, 1);
    let text = metrics(&server).await;
    for line in [
        "vesta_profiles_rejected_total{reason=\"limit\"} 3\n",
        "vesta_profiles_rejected_total{reason=\"undecodable\"} 3\n",
        "vesta_ingest_requests_total{transport=\"pprof\",status=\"ok\"} 1\n",
        "vesta_ingest_requests_total{transport=\"pprof\",status=\"unstorable\"} 2\n",
        "vesta_ingest_requests_total{transport=\"pprof\",status=\"busy\"} 1\n",
        "vesta_http_requests_total{route=\"/profiles/pprof\",status=\"202\"} 1\n",
    ] {
        assert!(text.contains(line), "{line}{text}");
    }
}

async fn metrics(server: &Server) -> String {
    let uri = format!("http://{}/metrics", server.collector.addresses.main);
    let text = server.http.get(uri.parse().unwrap()).await.unwrap();
    let text = text.into_body().collect().await.unwrap().to_bytes();
    String::from_utf8(text.to_vec()).unwrap()
}
