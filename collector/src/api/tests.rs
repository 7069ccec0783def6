//! The main port on real sockets: who may ask, how errors look, and the answers to a known request.

use super::guard::CONTENT_SECURITY_POLICY;
use super::serve::{Collector, ServeOptions};
use crate::ingest::receiver::now_ms;
use crate::ingest::testing::{request_at, tables};
use crate::store::Retention;
use crate::store::memory::MemoryStore;
use bytes::Bytes;
use http::{HeaderMap, Request};
use http_body_util::{BodyExt as _, Full};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use prost::Message as _;
use proto::opentelemetry_proto::tonic::collector::profiles::v1development::ExportProfilesServiceRequest;
use serde_json::{Value, json};
use std::io::Read as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

pub(super) const PROJECT: &str = "/api/v1/projects/default";

pub(super) struct Server {
    collector: Collector,
    client: Client<HttpConnector, Full<Bytes>>,
}

pub(super) struct Answer {
    pub(super) status: u16,
    headers: HeaderMap,
    body: Bytes,
}

impl Answer {
    pub(super) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }
}

impl Server {
    pub(super) async fn start() -> Self {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let options = ServeOptions {
            data_dir: PathBuf::new(),
            data_bytes_max: None,
            retention: Retention::new(86_400_000),
            listen: any,
            otlp_grpc: any,
            otlp_http: any,
            insecure: false,
            other_ports: false,
            allowed_hosts: vec!["Vesta.Internal".to_owned()],
        };
        let collector = Collector::with_store(options, Arc::new(MemoryStore::new())).await.unwrap();
        Self { collector, client: Client::builder(TokioExecutor::new()).build_http() }
    }

    /// With [`request_at`] now stored.
    async fn with_data() -> Self {
        let server = Self::start().await;
        server.feed(&request_at(now_ms())).await;
        server
    }

    /// Stores a request.
    pub(super) async fn feed(&self, request: &ExportProfilesServiceRequest) {
        let request = Request::post(self.url(crate::ingest::http::PATH))
            .header("content-type", "application/x-protobuf")
            .body(Full::from(request.encode_to_vec()));
        let answer = self.send(request.unwrap()).await;
        assert_eq!((answer.status, answer.body.len()), (200, 0), "refused");
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.collector.addresses.main)
    }

    async fn send(&self, request: Request<Full<Bytes>>) -> Answer {
        let (parts, body) = self.client.request(request).await.unwrap().into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        Answer { status: parts.status.as_u16(), headers: parts.headers, body }
    }

    async fn get_with(&self, path: &str, headers: &[(&str, &str)]) -> Answer {
        let mut request = Request::get(self.url(path));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        self.send(request.body(Full::default()).unwrap()).await
    }

    pub(super) async fn get(&self, path: &str) -> Answer {
        self.get_with(path, &[]).await
    }

    pub(super) async fn json(&self, path: &str) -> Value {
        let answer = self.get(&format!("{PROJECT}{path}")).await;
        assert_eq!(answer.status, 200, "{path}: {:?}", answer.body);
        answer.json()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn only_known_hosts_are_answered() {
    let server = Server::start().await;
    let port = server.collector.addresses.main.port();
    let own = format!("127.0.0.1:{port}");
    let rows: [(&str, u16); 17] = [
        (&own, 200),
        ("localhost", 200),
        ("localhost:4040", 200),
        ("LocalHost:1", 200),
        ("localhost.", 200),
        ("127.0.0.1", 200),
        ("[::1]:4040", 200),
        ("vesta.internal", 200),
        ("VESTA.internal:80", 200),
        ("evil.example", 421),
        ("evil.example:4040", 421),
        ("localhost.evil.example", 421),
        ("evil.localhost", 421),
        ("127.0.0.1.nip.example", 421),
        ("10.0.0.1", 421),
        ("127.0.0.2", 421),
        ("0.0.0.0", 421),
    ];
    for (host, status) in rows {
        for path in ["/", "/metrics", "/readyz", &format!("{PROJECT}/meta")] {
            let answer = server.get_with(path, &[("host", host)]).await;
            assert_eq!(answer.status, status, "{host} {path}");
        }
        assert_eq!(server.get_with("/healthz", &[("host", host)]).await.status, 200);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_another_site_makes_are_refused() {
    let server = Server::start().await;
    let own = format!("http://{}", server.collector.addresses.main);
    let (site, mode, dest) = ("sec-fetch-site", "sec-fetch-mode", "sec-fetch-dest");
    let navigate = [(site, "cross-site"), (mode, "navigate"), (dest, "document")];
    let framed = [(site, "cross-site"), (mode, "navigate"), (dest, "iframe")];
    let meta = format!("{PROJECT}/meta");
    type Row<'a> = (&'a str, &'a [(&'a str, &'a str)], u16);
    let rows: [Row<'_>; 13] = [
        (&meta, &[], 200),
        (&meta, &[("origin", &own)], 200),
        (&meta, &[("origin", "http://evil.example")], 403),
        (&meta, &[("origin", "null")], 403),
        (&meta, &[("origin", "http://127.0.0.1:1")], 403),
        (&meta, &[(site, "same-origin")], 200),
        (&meta, &[(site, "none")], 200),
        (&meta, &[(site, "same-site")], 403),
        (&meta, &[(site, "cross-site")], 403),
        (&meta, &navigate, 403),
        ("/explore", &navigate, 200),
        ("/explore", &framed, 403),
        ("/app.js", &[(site, "cross-site"), (mode, "no-cors"), (dest, "script")], 403),
    ];
    for (path, headers, status) in rows {
        assert_eq!(server.get_with(path, headers).await.status, status, "{path} {headers:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_answer_carries_the_security_headers() {
    let server = Server::start().await;
    for path in ["/", "/app.js", "/metrics", "/nothing", &format!("{PROJECT}/meta?x=1")] {
        let answer = server.get(path).await;
        assert_eq!(answer.header("content-security-policy"), CONTENT_SECURITY_POLICY, "{path}");
        assert_eq!(answer.header("x-content-type-options"), "nosniff", "{path}");
        assert_eq!(answer.header("referrer-policy"), "no-referrer", "{path}");
        assert_eq!(answer.header("cross-origin-opener-policy"), "same-origin", "{path}");
        assert!(answer.headers.contains_key("permissions-policy"), "{path}");
        assert!(!answer.headers.contains_key("access-control-allow-origin"), "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_is_revalidated_and_its_files_are_not() {
    let server = Server::start().await;
    let page = server.get("/explore?q=x").await;
    assert_eq!((page.status, page.header("cache-control")), (200, "no-cache"));
    let etag = page.header("etag");
    let again = server.get_with("/", &[("if-none-match", etag)]).await;
    assert_eq!((again.status, again.body.len()), (304, 0));
    let script = server.get_with("/app.js?v=1", &[("accept-encoding", "gzip")]).await;
    assert!(script.header("cache-control").contains("immutable"));
    assert_eq!(script.header("content-encoding"), "gzip");
    assert_eq!(script.header("content-type"), "text/javascript; charset=utf-8");
}

/// Path below the project, status, code, part of the message.
const ERRORS: [(&str, u16, &str, &str); 14] = [
    ("/nothing", 404, "not_found", "there is nothing at this path"),
    ("/flamegraph?form=now-1h", 400, "bad_parameter", "unknown parameter `form`"),
    ("/flamegraph?from=now&from=now", 400, "bad_parameter", "`from` is given twice"),
    ("/flamegraph?from=yesterday", 400, "bad_parameter", "`yesterday` is not a time"),
    ("/flamegraph?from=now&to=now-1h", 400, "bad_parameter", "`from` must be before `to`"),
    ("/flamegraph?from=5&to=5", 400, "bad_parameter", "`from` must be before `to`"),
    ("/flamegraph?max_nodes=0", 400, "bad_parameter", "a number from 1 to 1000000"),
    ("/flamegraph?max_nodes=x", 400, "bad_parameter", "`max_nodes` must be"),
    ("/flamegraph?type=", 400, "bad_parameter", "`type` must have 1 to"),
    ("/flamegraph?filter=%7Bservice", 400, "bad_parameter", "at byte 8: expected = !="),
    ("/flamegraph?filter=%FF", 400, "bad_parameter", "at byte 0: expected a label name"),
    ("/series?step=1", 400, "bad_parameter", "`step` gives more than 2000 buckets"),
    ("/series?limit=51", 400, "bad_parameter", "`limit` must be"),
    ("/labels/x/values?limit=0", 400, "bad_parameter", "`limit` must be"),
];

#[tokio::test(flavor = "multi_thread")]
async fn errors_have_one_form() {
    let server = Server::start().await;
    let other = server.get("/api/v1/projects/other/meta").await;
    assert_eq!((other.status, &other.json()["error"]["code"]), (404, &json!("no_project")));
    for (path, status, code, message) in ERRORS {
        let path = &format!("{PROJECT}{path}");
        let answer = server.get_with(path, &[("x-request-id", "abc-1")]).await;
        let error = &answer.json()["error"];
        assert_eq!((answer.status, error["code"].as_str().unwrap()), (status, code), "{path}");
        assert!(error["message"].as_str().unwrap().contains(message), "{path}: {error}");
        assert!(error["hint"].is_string(), "{path}");
        assert_eq!(error["request_id"], "abc-1");
        assert_eq!(answer.header("x-request-id"), "abc-1");
        assert_eq!(answer.header("content-type"), "application/json");
    }
    let post = Request::post(server.url(&format!("{PROJECT}/meta"))).body(Full::default());
    let answer = server.send(post.unwrap()).await;
    assert_eq!((answer.status, answer.json()["error"]["code"].clone()), (405, json!("method")));
    let hostile = server.get_with("/nothing", &[("x-request-id", "<script>")]).await;
    assert!(!hostile.header("x-request-id").contains('<'));
}

/// Strings of the flame graph by node: depth, name, total, self.
pub(super) fn nodes(graph: &Value) -> Vec<(u64, String, i64, i64)> {
    let nodes = &graph["nodes"];
    let count = nodes["func"].as_array().unwrap().len();
    let at = |name: &str, node: usize| nodes[name][node].as_i64().unwrap();
    (0..count)
        .map(|node| {
            let function = usize::try_from(at("func", node)).unwrap();
            let name = graph["functions"]["name"][function].as_u64().unwrap();
            let name = graph["strings"][usize::try_from(name).unwrap()].as_str().unwrap();
            let depth = nodes["depth"][node].as_u64().unwrap();
            (depth, name.to_owned(), at("total", node), at("self", node))
        })
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_known_request_is_answered_as_it_is() {
    let server = Server::with_data().await;
    let graph = server.json("/flamegraph").await;
    let node = |depth, name: &str, total, own| (depth, name.to_owned(), total, own);
    let expected = [
        node(0, "total", 50_000_000, 0),
        node(1, "main", 50_000_000, 20_000_000),
        node(2, "hot", 30_000_000, 30_000_000),
    ];
    assert_eq!(nodes(&graph), expected);
    assert_eq!(graph["type"], "cpu");
    assert_eq!(graph["unit"], "nanoseconds");
    assert_eq!((&graph["total"], &graph["samples"]), (&json!(50_000_000), &json!(5)));
    assert_eq!(graph["period_ns"], 10_000_000);
    assert_eq!(graph["hidden"], json!({"nodes": 0, "total": 0}));
    assert_eq!(graph["functions"]["kind"][1], "native");
    assert_eq!(graph["coverage"]["hosts"], 1);
    assert_eq!(graph["coverage"]["host_ms"], 5_000);
    assert_eq!(graph["coverage"]["cores"], 0.01);

    let functions = server.json("/functions?limit=1").await;
    assert_eq!(functions["rows"].as_array().unwrap().len(), 1);
    let hot = &functions["rows"][0];
    assert_eq!((&hot["name"], &hot["self"]), (&json!("hot"), &json!(30_000_000)));
    assert_eq!((&hot["module"], &hot["file"]), (&json!("app"), &json!("main.c")));
    assert_eq!((&functions["total"], &functions["samples"]), (&json!(50_000_000), &json!(5)));

    let services = server.json("/services").await;
    let row = &services["rows"][0];
    assert_eq!((&row["service"], &row["samples"]), (&json!("app"), &json!(5)));
    assert_eq!(
        (&row["cores"], &row["share"], &row["hosts"]),
        (&json!(0.01), &json!(1.0), &json!(1))
    );
    assert_eq!(row["trend"].as_array().unwrap().len(), 48);
    assert_eq!(services["total_cores"], 0.01);

    let labels = server.json("/labels").await;
    let names: Vec<_> = labels["labels"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| it["name"].as_str().unwrap())
        .collect();
    for name in ["service", "host", "process.pid", "thread.name"] {
        assert!(names.contains(&name), "{name} in {names:?}");
    }
    let values = server.json("/labels/thread.name/values?prefix=w").await;
    let expected = json!({"values": [{"value": "worker", "samples": 5}], "warnings": []});
    assert_eq!(values, expected);
    let values = server.json("/labels/service.name/values").await;
    assert_eq!(values["values"][0]["value"], "app");

    let meta = server.json("/meta").await;
    assert_eq!(meta["profile_types"][0]["id"], "cpu");
    assert_eq!(meta["auth"]["required"], false);
}

#[tokio::test(flavor = "multi_thread")]
async fn filters_choose_samples() {
    let server = Server::with_data().await;
    let rows = [
        (r#"{service="app"}"#, 50_000_000),
        (r#"{service="other"}"#, 0),
        (r#"{service!="app"}"#, 0),
        (r#"{"process.pid"="42","thread.name"=~"w.*"}"#, 50_000_000),
        (r#"{service=~"ap"}"#, 0),
        (r#"{pod=""}"#, 50_000_000),
    ];
    for (filter, total) in rows {
        let graph = server.json(&format!("/flamegraph?filter={}", encode(filter))).await;
        assert_eq!(graph["total"], total, "{filter}");
    }
    assert_eq!(server.json("/flamegraph?type=off_cpu").await["total"], 0);
    assert_eq!(server.json("/flamegraph?from=now-2h&to=now-1h").await["total"], 0);
}

pub(super) fn encode(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_time_line_shows_the_cores_of_the_time_that_was_reported() {
    let server = Server::with_data().await;
    // The host reported 5 s of the ten minutes: its 50 ms of CPU time are 0.01 cores, however wide a
    // bucket is.
    for query in ["", "&by=host", "&by=thread.name", "&by=service&limit=1"] {
        let path = format!("/series?from=now-10m&to=now&step=600000{query}");
        let series = server.json(&path).await;
        assert_eq!(series["value_unit"], "cores");
        let values = series["series"][0]["values"].as_array().unwrap();
        let cores: Vec<f64> = values.iter().map(|cores| cores.as_f64().unwrap()).collect();
        assert!(matches!(cores[..], [cores] if (cores - 0.01).abs() < 1e-9), "{query}: {series}");
        if query == "&by=host" {
            assert_eq!(series["series"][0]["labels"], json!({"host": "h1"}));
        }
    }
    let fine = server.json("/series?from=now-10m&to=now&step=1000").await;
    let values = fine["series"][0]["values"].as_array().unwrap();
    assert_eq!(values.len(), 600);
    let reported = values.iter().filter(|cores| cores.as_f64().unwrap() > 0.0).count();
    assert!((1..=6).contains(&reported), "{reported} of 600 buckets hold 5 s: {fine}");
    let services = server.json("/services?from=now-10m&to=now").await;
    let trend = services["rows"][0]["trend"].as_array().unwrap();
    let peak = trend.iter().map(|cores| cores.as_f64().unwrap()).fold(0.0, f64::max);
    assert!(peak >= 0.01 - 1e-9, "{services}");
}

#[tokio::test(flavor = "multi_thread")]
async fn long_answers_are_compressed_when_asked() {
    let server = Server::start().await;
    let mut request = request_at(now_ms());
    let texts = &mut tables(&mut request).string_table;
    let name = texts.iter_mut().find(|text| **text == "hot").unwrap();
    *name = name.repeat(1_000);
    server.feed(&request).await;
    let to_ms = now_ms() - 1;
    let from_ms = to_ms - 600_000;
    for path in ["series?step=1000&", "flamegraph?"] {
        let path = format!("{PROJECT}/{path}from={from_ms}&to={to_ms}");
        let plain = server.get(&path).await;
        assert_eq!((plain.status, plain.header("content-encoding")), (200, ""), "{path}");
        let small = server.get_with(&path, &[("accept-encoding", "br, gzip")]).await;
        assert_eq!(small.header("content-encoding"), "gzip", "{path}");
        assert!(small.body.len() < plain.body.len() / 2, "{path}");
        let mut text = Vec::new();
        flate2::read::GzDecoder::new(&*small.body).read_to_end(&mut text).unwrap();
        assert_eq!(text, plain.body, "{path}");
    }
    let metrics = server.get_with("/metrics", &[("accept-encoding", "gzip")]).await;
    // OpenMetrics is no `text/` type and small; scrapers take it as it is.
    assert_eq!(metrics.header("content-encoding"), "");
}

#[tokio::test(flavor = "multi_thread")]
async fn only_loopback_without_insecure() {
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let open = SocketAddr::from(([0, 0, 0, 0], 0));
    for (listen, otlp_grpc, otlp_http) in [(open, any, any), (any, open, any), (any, any, open)] {
        let options = ServeOptions {
            data_dir: PathBuf::new(),
            data_bytes_max: None,
            retention: Retention::new(1),
            listen,
            otlp_grpc,
            otlp_http,
            insecure: false,
            other_ports: false,
            allowed_hosts: Vec::new(),
        };
        let refused = Collector::with_store(options.clone(), Arc::new(MemoryStore::new())).await;
        assert!(refused.unwrap_err().to_string().contains("--insecure"));
        let options = ServeOptions { insecure: true, ..options };
        Collector::with_store(options, Arc::new(MemoryStore::new())).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_taken_port_is_an_error_or_replaced() {
    let first = Server::start().await;
    let taken = first.collector.addresses.main;
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let options = ServeOptions {
        data_dir: PathBuf::new(),
        data_bytes_max: None,
        retention: Retention::new(1),
        listen: taken,
        otlp_grpc: any,
        otlp_http: any,
        insecure: false,
        other_ports: false,
        allowed_hosts: Vec::new(),
    };
    let refused = Collector::with_store(options.clone(), Arc::new(MemoryStore::new())).await;
    let text = refused.unwrap_err().to_string();
    assert!(text.contains("something else listens there"), "{text}");
    let options = ServeOptions { other_ports: true, ..options };
    let second = Collector::with_store(options, Arc::new(MemoryStore::new())).await.unwrap();
    assert_ne!(second.addresses.main.port(), taken.port());
}
