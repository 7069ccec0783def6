//! Both transports on real sockets: the answers to good, broken, hostile and unlucky requests, and that
//! nothing of a refused one is stored.

mod pprof;

use crate::store::Retention;
use super::compression::Coding;
use super::http::RpcStatus;
use super::testing::{OUTSIDE, profile, request_at};
use crate::api::serve::{Collector, ServeOptions};
use crate::ingest::receiver::now_ms;
use crate::limits::REQUEST_BYTES_MAX;
use crate::query::{self, MergeQuery, Selection, TimelineQuery};
use crate::store::memory::MemoryStore;
use crate::store::{Ack, MakeBatch, ProfileStore, StoreError, StoreFuture, StoreStats};
use bytes::Bytes;
use futures_util::FutureExt as _;
use http_body_util::{BodyExt as _, Full};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use prost::Message as _;
use proto::opentelemetry_proto::tonic::collector::profiles::v1development::profiles_service_client::ProfilesServiceClient;
use proto::opentelemetry_proto::tonic::collector::profiles::v1development::{
    ExportProfilesServiceRequest, ExportProfilesServiceResponse,
};
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tonic::Code;
use tonic::codec::CompressionEncoding;

/// The oracle, which refuses everything while `busy` is set.
#[derive(Debug, Default)]
struct TestStore {
    inner: MemoryStore,
    busy: AtomicBool,
}

impl ProfileStore for TestStore {
    fn append_made(&self, make: MakeBatch) -> StoreFuture<'_, Option<Ack>> {
        match make() {
            Some(_) if self.busy.load(Ordering::Relaxed) => {
                std::future::ready(Err(StoreError::Busy("full".to_owned()))).boxed()
            }
            made => self.inner.append_made(Box::new(|| made)),
        }
    }
    fn delete(&self, deletion: crate::store::Deletion) -> StoreFuture<'_, ()> {
        self.inner.delete(deletion)
    }
    fn erase(&self, id: crate::store::DeletionId) -> StoreFuture<'_, ()> {
        self.inner.erase(id)
    }
    fn learn(&self, names: crate::profile::NewNames) -> StoreFuture<'_, ()> {
        self.inner.learn(names)
    }
    fn unnamed(
        &self,
        file: crate::store::FileAddresses,
    ) -> StoreFuture<'_, Vec<crate::store::FileAddress>> {
        self.inner.unnamed(file)
    }
    fn merge(&self, query: MergeQuery) -> StoreFuture<'_, query::FlameTree> {
        self.inner.merge(query)
    }
    fn functions(
        &self,
        of: Selection,
        limit: usize,
    ) -> StoreFuture<'_, query::Told<Vec<query::FunctionRow>>> {
        self.inner.functions(of, limit)
    }
    fn locks(&self, query: query::LocksQuery) -> StoreFuture<'_, query::Locks> {
        self.inner.locks(query)
    }
    fn timeline(&self, query: TimelineQuery) -> StoreFuture<'_, query::Told<query::Timeline>> {
        self.inner.timeline(query)
    }
    fn services(
        &self,
        of: Selection,
        buckets: usize,
    ) -> StoreFuture<'_, query::Told<Vec<query::ServiceRow>>> {
        self.inner.services(of, buckets)
    }
    fn label_names(&self, of: Selection) -> StoreFuture<'_, query::Told<Vec<query::LabelName>>> {
        self.inner.label_names(of)
    }
    fn label_values(
        &self,
        of: Selection,
        label: String,
        prefix: String,
        limit: usize,
    ) -> StoreFuture<'_, query::Told<Vec<query::LabelValue>>> {
        self.inner.label_values(of, label, prefix, limit)
    }
    fn profile_types(
        &self,
        project: crate::profile::ProjectName,
    ) -> StoreFuture<'_, Vec<query::ProfileTypeRow>> {
        self.inner.profile_types(project)
    }
    fn coverage(&self, of: Selection) -> StoreFuture<'_, query::Told<query::Coverage>> {
        self.inner.coverage(of)
    }
    fn stats(&self) -> StoreFuture<'_, StoreStats> {
        self.inner.stats()
    }
    fn flush(&self) -> StoreFuture<'_, ()> {
        self.inner.flush()
    }
}

/// What a transport said, in terms of both.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Answer {
    code: Code,
    /// 200 unless it is an HTTP answer.
    status: u16,
    message: String,
    rejected: i64,
    retry_after: bool,
}

struct Server {
    collector: Collector,
    store: Arc<TestStore>,
    http: Client<HttpConnector, Full<Bytes>>,
    grpc: Client<HttpConnector, Full<Bytes>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Via {
    Http,
    MainPort,
    Grpc,
}

const EVERY_WAY: [Via; 3] = [Via::Http, Via::MainPort, Via::Grpc];

impl Server {
    async fn start() -> Self {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let store = Arc::new(TestStore::default());
        let options = ServeOptions {
            data_dir: PathBuf::new(),
            data_bytes_max: None,
            retention: Retention::new(30 * 86_400_000),
            listen: any,
            otlp_grpc: any,
            otlp_http: any,
            insecure: false,
            other_ports: false,
            allowed_hosts: Vec::new(),
        };
        let shared: Arc<dyn ProfileStore> = Arc::<TestStore>::clone(&store);
        let collector = Collector::with_store(options, shared).await.unwrap();
        let client = || Client::builder(TokioExecutor::new());
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        Self {
            collector,
            store,
            http: client().build(connector.clone()),
            grpc: client().http2_only(true).build(connector),
        }
    }

    async fn stored(&self) -> (u64, u64) {
        let stats = self.store.stats().await.unwrap();
        (stats.profiles_stored, stats.samples_stored)
    }

    /// Sends a body as it is; `coding` only names it.
    async fn send(&self, via: Via, coding: Coding, body: Vec<u8>) -> Answer {
        match via {
            Via::Grpc => {
                let mut framed = vec![u8::from(coding != Coding::Identity)];
                framed.extend(u32::try_from(body.len()).unwrap().to_be_bytes());
                framed.extend(body);
                self.call(coding, framed).await
            }
            Via::Http | Via::MainPort => {
                let headers = [
                    ("content-type", "application/x-protobuf"),
                    ("content-encoding", name(coding)),
                ];
                self.post(via, &headers, body).await
            }
        }
    }

    async fn post(&self, via: Via, headers: &[(&str, &str)], body: Vec<u8>) -> Answer {
        let addresses = self.collector.addresses;
        let port = if via == Via::Http { addresses.otlp_http } else { addresses.main };
        let mut request = http::Request::post(format!("http://{port}{}", super::http::PATH));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let response = self.http.request(request.body(Full::from(body)).unwrap()).await.unwrap();
        let (parts, body) = response.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        let is_json = parts.headers["content-type"] == "application/json";
        let mut answer = Answer {
            code: Code::Ok,
            status: parts.status.as_u16(),
            message: String::new(),
            rejected: 0,
            retry_after: parts.headers.contains_key("retry-after"),
        };
        if parts.status.is_success() {
            let response = ExportProfilesServiceResponse::decode(body).unwrap();
            if let Some(partial) = response.partial_success {
                (answer.rejected, answer.message) =
                    (partial.rejected_profiles, partial.error_message);
            }
        } else if is_json {
            let json: serde_json::Value = serde_json::from_slice(&body).unwrap();
            let code = json["code"].as_i64().unwrap();
            answer.code = Code::from(i32::try_from(code).unwrap());
            json["message"].as_str().unwrap().clone_into(&mut answer.message);
        } else {
            let status = RpcStatus::decode(body).unwrap();
            (answer.code, answer.message) = (Code::from(status.code), status.message);
        }
        answer
    }

    async fn call(&self, coding: Coding, framed: Vec<u8>) -> Answer {
        let uri = format!("http://{}{}", self.collector.addresses.otlp_grpc, super::grpc::PATH);
        let request = http::Request::post(uri)
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .header("grpc-encoding", name(coding));
        let request = request.body(Full::from(framed)).unwrap();
        let response = self.grpc.request(request).await.unwrap();
        let (parts, body) = response.into_parts();
        assert_eq!(parts.status, 200, "gRPC says failures in its own status");
        let body = body.collect().await.unwrap();
        let trailers = body.trailers().cloned().unwrap_or_default();
        let status = tonic::Status::from_header_map(&trailers)
            .or_else(|| tonic::Status::from_header_map(&parts.headers))
            .unwrap();
        let mut answer = Answer {
            code: status.code(),
            status: 200,
            message: status.message().to_owned(),
            rejected: 0,
            retry_after: false,
        };
        let body = body.to_bytes();
        if status.code() == Code::Ok {
            let response = ExportProfilesServiceResponse::decode(body.slice(5..)).unwrap();
            if let Some(partial) = response.partial_success {
                (answer.rejected, answer.message) =
                    (partial.rejected_profiles, partial.error_message);
            }
        }
        answer
    }
}

fn name(coding: Coding) -> &'static str {
    match coding {
        Coding::Identity => "identity",
        Coding::Gzip => "gzip",
        Coding::Zstd => "zstd",
        Coding::Deflate => "deflate",
    }
}

fn compress(coding: Coding, body: &[u8]) -> Vec<u8> {
    let level = flate2::Compression::fast();
    match coding {
        Coding::Identity => body.to_vec(),
        Coding::Gzip => {
            let mut to = flate2::write::GzEncoder::new(Vec::new(), level);
            to.write_all(body).unwrap();
            to.finish().unwrap()
        }
        Coding::Deflate => {
            let mut to = flate2::write::ZlibEncoder::new(Vec::new(), level);
            to.write_all(body).unwrap();
            to.finish().unwrap()
        }
        Coding::Zstd => zstd::encode_all(body, 1).unwrap(),
    }
}

fn good() -> ExportProfilesServiceRequest {
    request_at(now_ms())
}

const fn is_ok(answer: &Answer) -> bool {
    matches!(answer.code, Code::Ok) && answer.status == 200
}

#[tokio::test(flavor = "multi_thread")]
async fn good_requests_are_stored_in_every_coding() {
    let server = Server::start().await;
    let mut sent = 0;
    for via in EVERY_WAY {
        for coding in [Coding::Identity, Coding::Gzip, Coding::Zstd, Coding::Deflate] {
            let body = compress(coding, &good().encode_to_vec());
            let answer = server.send(via, coding, body).await;
            assert!(is_ok(&answer) && answer.rejected == 0, "{via:?} {coding:?}: {answer:?}");
            sent += 1;
            assert_eq!(server.stored().await, (sent, 5 * sent));
        }
    }
}

/// The client that OpenTelemetry's own exporter is made of.
#[tokio::test(flavor = "multi_thread")]
async fn the_official_client_understands_the_answers() {
    let server = Server::start().await;
    let url = format!("http://{}", server.collector.addresses.otlp_grpc);
    for coding in [None, Some(CompressionEncoding::Gzip), Some(CompressionEncoding::Zstd)] {
        let mut client = ProfilesServiceClient::connect(url.clone()).await.unwrap();
        if let Some(coding) = coding {
            client = client.send_compressed(coding).accept_compressed(coding);
        }
        let response = client.export(good()).await.unwrap().into_inner();
        assert_eq!(response, ExportProfilesServiceResponse::default());
        let mut broken = good();
        profile(&mut broken).samples[0].stack_index = 9;
        let partial = client.export(broken).await.unwrap().into_inner().partial_success.unwrap();
        assert_eq!(partial.rejected_profiles, 1);
        assert!(
            partial.error_message.contains("sample.stack_index 9"),
            "{}",
            partial.error_message
        );
    }
    assert_eq!(server.stored().await.0, 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_cut_off_at_any_byte_stores_nothing() {
    let server = Server::start().await;
    let whole = good().encode_to_vec();
    for via in [Via::Http, Via::Grpc] {
        let mut undecodable = 0;
        for cut in 0..whole.len() {
            let answer = server.send(via, Coding::Identity, whole[..cut].to_vec()).await;
            // A message that is cut between two fields is a message: of nothing, or without tables.
            if is_ok(&answer) {
                assert!(cut == 0 || answer.rejected == 1, "{via:?} at {cut}: {answer:?}");
            } else {
                undecodable += 1;
                let status = if via == Via::Http { 400 } else { 200 };
                let expected = (Code::InvalidArgument, status);
                assert_eq!((answer.code, answer.status), expected, "at {cut}: {answer:?}");
            }
        }
        assert!(undecodable > whole.len() * 9 / 10, "{via:?}: {undecodable} of {}", whole.len());
        assert_eq!(server.stored().await, (0, 0));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn indices_outside_their_table_are_said_to_the_sender() {
    let server = Server::start().await;
    for (field, breakage) in OUTSIDE {
        for via in EVERY_WAY {
            let mut request = good();
            breakage(&mut request);
            let answer = server.send(via, Coding::Identity, request.encode_to_vec()).await;
            assert!(is_ok(&answer) && answer.rejected == 1, "{via:?} {field}: {answer:?}");
            assert!(answer.message.starts_with("1 profile was not stored"), "{}", answer.message);
        }
    }
    assert_eq!(server.stored().await, (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn empty_requests_are_fine() {
    let server = Server::start().await;
    for via in EVERY_WAY {
        let answer = server.send(via, Coding::Identity, Vec::new()).await;
        assert!(is_ok(&answer) && answer.rejected == 0, "{via:?}: {answer:?}");
    }
    assert_eq!(server.stored().await, (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_above_64_mib_are_refused_compressed_or_not() {
    let server = Server::start().await;
    let large = vec![0u8; REQUEST_BYTES_MAX + (1 << 20)];
    for via in EVERY_WAY {
        for coding in [Coding::Identity, Coding::Gzip, Coding::Zstd, Coding::Deflate] {
            let answer = server.send(via, coding, compress(coding, &large)).await;
            let status = if via == Via::Grpc { 200 } else { 413 };
            let expected = (Code::ResourceExhausted, status);
            assert_eq!((answer.code, answer.status), expected, "{via:?} {coding:?}: {answer:?}");
        }
    }
    assert_eq!(server.stored().await, (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_that_are_no_requests_are_refused() {
    let server = Server::start().await;
    let text: &[u8] = b"<html>not found</html>";
    let rows = [
        (Coding::Identity, text.to_vec()),
        (Coding::Gzip, text.to_vec()),
        (Coding::Zstd, text.to_vec()),
        (Coding::Deflate, text.to_vec()),
        (Coding::Gzip, compress(Coding::Gzip, text)),
        (Coding::Gzip, compress(Coding::Gzip, &good().encode_to_vec())[..40].to_vec()),
        // A string that is not UTF-8 in the string table.
        (Coding::Identity, vec![0x12, 0x04, 0x2a, 0x02, 0xff, 0xfe]),
    ];
    for (coding, body) in rows {
        for via in EVERY_WAY {
            let answer = server.send(via, coding, body.clone()).await;
            assert_eq!(answer.code, Code::InvalidArgument, "{via:?} {coding:?}: {answer:?}");
            assert_eq!(answer.status, if via == Via::Grpc { 200 } else { 400 });
        }
    }
    assert_eq!(server.stored().await, (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_busy_is_tried_again() {
    let server = Server::start().await;
    server.store.busy.store(true, Ordering::Relaxed);
    for via in EVERY_WAY {
        let answer = server.send(via, Coding::Identity, good().encode_to_vec()).await;
        assert_eq!(answer.code, Code::Unavailable, "{via:?}: {answer:?}");
        if via != Via::Grpc {
            assert_eq!((answer.status, answer.retry_after), (503, true));
        }
    }
    assert_eq!(server.stored().await, (0, 0));
    server.store.busy.store(false, Ordering::Relaxed);
    assert!(is_ok(&server.send(Via::Grpc, Coding::Identity, good().encode_to_vec()).await));
}

#[tokio::test(flavor = "multi_thread")]
async fn content_types_and_codings_that_are_not_understood() {
    type Row<'a> = (u16, &'a str, &'a [(&'a str, &'a str)]);
    let protobuf = ("content-type", "application/x-protobuf");
    let rows: [Row<'_>; 7] = [
        (200, "", &[("content-type", "application/x-protobuf; charset=utf-8")]),
        (415, "content type must be", &[]),
        (415, "content type must be", &[("content-type", "text/plain")]),
        (415, "OTLP in JSON is not supported", &[("content-type", "application/json")]),
        (415, "content encoding must be", &[protobuf, ("content-encoding", "br")]),
        (415, "content encoding must be", &[protobuf, ("content-encoding", "gzip, zstd")]),
        (403, "web pages are refused", &[protobuf, ("origin", "http://evil.example")]),
    ];
    let server = Server::start().await;
    for (status, message, headers) in rows {
        let answer = server.post(Via::Http, headers, good().encode_to_vec()).await;
        assert_eq!(answer.status, status, "{headers:?}: {answer:?}");
        assert!(answer.message.contains(message), "{}", answer.message);
    }
    assert_eq!(server.stored().await.0, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn grpc_frames() {
    let message = good().encode_to_vec();
    let length = u32::try_from(message.len()).unwrap().to_be_bytes();
    let frame = |flag: u8, length: [u8; 4]| [&[flag], &length[..], &message].concat();
    let rows = [
        (Code::Ok, Coding::Identity, frame(0, length)),
        (Code::InvalidArgument, Coding::Identity, Vec::new()),
        (Code::InvalidArgument, Coding::Identity, frame(2, length)),
        (Code::InvalidArgument, Coding::Identity, frame(0, [0xff; 4])),
        (Code::InvalidArgument, Coding::Identity, frame(0, [0; 4])),
        (Code::InvalidArgument, Coding::Identity, [frame(0, length), frame(0, length)].concat()),
        (Code::Unimplemented, Coding::Identity, frame(1, length)),
        (Code::InvalidArgument, Coding::Gzip, frame(1, length)),
    ];
    let server = Server::start().await;
    for (code, coding, framed) in rows {
        let answer = server.call(coding, framed).await;
        assert_eq!(answer.code, code, "{coding:?}: {answer:?}");
    }
    assert_eq!(server.stored().await.0, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_are_counted_by_transport_and_outcome() {
    let server = Server::start().await;
    let mut broken = good();
    profile(&mut broken).samples[0].stack_index = 9;
    for via in [Via::Http, Via::Grpc] {
        for body in [good().encode_to_vec(), broken.encode_to_vec(), vec![0xff]] {
            server.send(via, Coding::Identity, body).await;
        }
    }
    let uri = format!("http://{}/metrics", server.collector.addresses.main);
    let text = server.http.get(uri.parse().unwrap()).await.unwrap();
    let text = text.into_body().collect().await.unwrap().to_bytes();
    let text = String::from_utf8(text.to_vec()).unwrap();
    for transport in ["grpc", "http"] {
        for status in ["ok", "partial", "malformed"] {
            let line = format!(
                "vesta_ingest_requests_total{{transport=\"{transport}\",status=\"{status}\"}} 1\n"
            );
            assert!(text.contains(&line), "{line}{text}");
        }
    }
    assert!(text.contains("vesta_profiles_rejected_total{reason=\"index\"} 2\n"), "{text}");
    assert!(text.contains("vesta_profiles_stored_total 2\n"), "{text}");
    assert!(text.ends_with("# EOF\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_collector_has_answered_what_it_took() {
    let server = Server::start().await;
    assert!(is_ok(&server.send(Via::Grpc, Coding::Identity, good().encode_to_vec()).await));
    server.collector.stop().await.unwrap();
    assert_eq!(server.store.stats().await.unwrap().profiles_stored, 1);
}
