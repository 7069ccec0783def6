//! The sender against a real gRPC server that fails in every class. The server keeps profiles by their
//! id, as a collector does; nothing may be lost or counted twice.

use super::verdict::{RetryInfo, RpcAny, RpcDuration, RpcStatus};
use super::*;
use crate::aggregate::WindowWriter as _;
use crate::aggregate::fixtures;
use crate::export::otlp::{Encoder, EncoderSettings, HostIdentity};
use crate::export::queue::QueueLimits;
use crate::export::{Export, Exporter};
use crate::metrics::{Metrics, Reason};
use prost::Message as _;
use proto::otlp::collector::profiles_service_server::{ProfilesService, ProfilesServiceServer};
use proto::otlp::collector::{
    ExportProfilesPartialSuccess, ExportProfilesServiceRequest, ExportProfilesServiceResponse,
};
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Mutex;
use std::time::Instant;
use tonic::codec::CompressionEncoding;
use tonic::{Code, Response};

/// What the server does with one request.
#[derive(Clone, Debug)]
enum Answer {
    Store,
    /// Stores and answers too late.
    StoreSlowly(Duration),
    /// Stores and says that it refused one profile.
    Partial,
    Fail(Code),
    /// Fails with `RetryInfo`.
    FailFor(Code, Duration),
}

#[derive(Debug, Default)]
struct Shared {
    script: VecDeque<Answer>,
    /// Observations by profile id.
    stored: BTreeMap<Vec<u8>, usize>,
    calls: Vec<Instant>,
}

#[derive(Clone, Debug, Default)]
struct Server {
    shared: Arc<Mutex<Shared>>,
}

impl Server {
    fn store(&self, request: &ExportProfilesServiceRequest) {
        let mut shared = self.shared.lock().unwrap();
        for resource in &request.resource_profiles {
            for profile in resource.scope_profiles.iter().flat_map(|scope| &scope.profiles) {
                let count = profile.samples.iter().map(|sample| sample.timestamps_unix_nano.len());
                let before = shared.stored.insert(profile.profile_id.clone(), count.sum());
                assert!(before.is_none_or(|before| before == shared.stored[&profile.profile_id]));
            }
        }
    }

    fn stored(&self) -> usize {
        self.shared.lock().unwrap().stored.values().sum()
    }

    fn calls(&self) -> usize {
        self.shared.lock().unwrap().calls.len()
    }
}

#[tonic::async_trait]
impl ProfilesService for Server {
    async fn export(
        &self,
        request: tonic::Request<ExportProfilesServiceRequest>,
    ) -> Result<Response<ExportProfilesServiceResponse>, tonic::Status> {
        let answer = {
            let mut shared = self.shared.lock().unwrap();
            shared.calls.push(Instant::now());
            shared.script.pop_front().unwrap_or(Answer::Store)
        };
        let request = request.into_inner();
        let mut response = ExportProfilesServiceResponse::default();
        match answer {
            Answer::Store => self.store(&request),
            Answer::StoreSlowly(delay) => {
                self.store(&request);
                tokio::time::sleep(delay).await;
            }
            Answer::Partial => {
                self.store(&request);
                response.partial_success = Some(ExportProfilesPartialSuccess {
                    rejected_profiles: 1,
                    error_message: "too old".into(),
                });
            }
            Answer::Fail(code) => return Err(tonic::Status::new(code, "as the script says")),
            Answer::FailFor(code, delay) => {
                let delay = RpcDuration {
                    seconds: i64::try_from(delay.as_secs()).unwrap(),
                    nanos: i32::try_from(delay.subsec_nanos()).unwrap(),
                };
                let info = RetryInfo { retry_delay: Some(delay) };
                let any = RpcAny {
                    type_url: "type.googleapis.com/google.rpc.RetryInfo".into(),
                    value: info.encode_to_vec(),
                };
                let details = RpcStatus { details: vec![any] }.encode_to_vec();
                return Err(tonic::Status::with_details(code, "later", details.into()));
            }
        }
        Ok(Response::new(response))
    }
}

/// Serves on a port of the kernel's choice (0) or a given one.
async fn serve(
    server: &Server,
    port: u16,
    encodings: &[CompressionEncoding],
) -> (SocketAddr, tokio::task::JoinHandle<()>) {
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", port)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut service = ProfilesServiceServer::new(server.clone());
    for &encoding in encodings {
        service = service.accept_compressed(encoding);
    }
    let incoming = futures_util::stream::unfold(listener, |listener| async {
        let accepted = listener.accept().await.map(|(stream, _)| stream);
        Some((accepted, listener))
    });
    let serving = tonic::transport::Server::builder().add_service(service);
    let task = tokio::spawn(async move {
        serving.serve_with_incoming(incoming).await.unwrap();
    });
    (address, task)
}

struct Agent {
    exporter: Exporter,
    export: Export,
    metrics: Metrics,
}

fn agent(address: SocketAddr, compression: Compression, limits: QueueLimits) -> Agent {
    let metrics = Metrics::default();
    let queue = Arc::new(Queue::new(limits, metrics.export.clone()));
    let client = Client::new(&format!("http://{address}"), compression).unwrap();
    let client = client.with_request_wait_max(Duration::from_millis(300));
    let backoff = Backoff { first: Duration::from_millis(20), max: Duration::from_millis(80) };
    let sender = Sender::new(client, Arc::clone(&queue), metrics.export.clone(), backoff);
    let host = HostIdentity { name: "box".into(), id: None };
    let encoder =
        Encoder::new(EncoderSettings { host, source_lines: false, request_bytes_max: 100_000 })
            .unwrap();
    let (exporter, export) = Exporter::start(encoder, queue, sender, metrics.clone());
    Agent { exporter, export, metrics }
}

impl Agent {
    async fn finish(self) -> (Metrics, u64) {
        let given_up = self.export.finish(Duration::from_secs(20)).await;
        (self.metrics, given_up)
    }
}

fn dropped(metrics: &Metrics, reason: &'static str) -> u64 {
    metrics.export.observations_dropped.get_or_create(&Reason { reason }).get()
}

fn requests(metrics: &Metrics, status: &'static str) -> u64 {
    metrics.export.requests.get_or_create(&Status { status }).get()
}

const ZSTD: &[CompressionEncoding] = &[CompressionEncoding::Zstd];

/// Sends three windows through a server with this script.
async fn send(script: Vec<Answer>) -> (Server, Metrics) {
    let server = Server::default();
    server.shared.lock().unwrap().script = script.into();
    let (address, task) = serve(&server, 0, ZSTD).await;
    let mut agent = agent(address, Compression::Auto, QueueLimits::default());
    for _ in 0..3 {
        agent.exporter.write(fixtures::named(&fixtures::samples(400, 5)));
    }
    let (metrics, given_up) = agent.finish().await;
    task.abort();
    assert_eq!(given_up, 0);
    assert_eq!(metrics.export.queue_bytes.get(), 0);
    (server, metrics)
}

#[tokio::test]
async fn what_can_be_sent_again_is_neither_lost_nor_doubled() {
    use Answer::{Fail, FailFor, Partial, StoreSlowly};
    let slow = StoreSlowly(Duration::from_millis(800));
    let classes = [
        vec![],
        vec![Fail(Code::Unavailable); 4],
        vec![Fail(Code::Aborted), Fail(Code::Cancelled), Fail(Code::DataLoss)],
        vec![Fail(Code::DeadlineExceeded), Fail(Code::OutOfRange)],
        vec![FailFor(Code::ResourceExhausted, Duration::from_millis(30)); 2],
        vec![slow.clone(), Fail(Code::Unavailable), slow],
        vec![Partial],
    ];
    for script in classes {
        let failures = script.iter().filter(|answer| !matches!(answer, Partial)).count();
        let (server, metrics) = send(script.clone()).await;
        assert_eq!(server.stored(), 1_200, "{script:?}");
        assert_eq!(metrics.export.observations.get(), 1_200, "{script:?}");
        assert_eq!(metrics.export.retries.get(), failures as u64, "{script:?}");
    }
}

#[tokio::test]
async fn what_is_refused_is_dropped_and_counted() {
    for code in [Code::InvalidArgument, Code::ResourceExhausted, Code::PermissionDenied] {
        let (server, metrics) = send(vec![Answer::Store, Answer::Fail(code)]).await;
        let dropped = dropped(&metrics, "refused by the collector");
        assert!(dropped > 0, "{code:?}");
        assert_eq!(server.stored() as u64 + dropped, 1_200, "{code:?}");
        assert_eq!(requests(&metrics, verdict::name(code)), 1, "{code:?}");
        assert_eq!(metrics.export.retries.get(), 0, "{code:?}");
    }
}

#[tokio::test]
async fn refused_profiles_are_counted() {
    let (_, metrics) = send(vec![Answer::Partial, Answer::Partial]).await;
    assert_eq!(metrics.export.profiles_rejected.get(), 2);
}

#[tokio::test]
async fn the_wait_that_a_receiver_asks_for_is_kept() {
    let wait = Duration::from_millis(400);
    let server = Server::default();
    server.shared.lock().unwrap().script = [Answer::FailFor(Code::Unavailable, wait)].into();
    let (address, task) = serve(&server, 0, ZSTD).await;
    let mut agent = agent(address, Compression::Auto, QueueLimits::default());
    agent.exporter.write(fixtures::named(&fixtures::samples(400, 5)));
    while server.stored() < 400 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    task.abort();
    let shared = server.shared.lock().unwrap();
    // The back-off of this sender is at most 80 ms: the wait is the receiver's.
    assert!(shared.calls[1] - shared.calls[0] >= wait);
}

#[tokio::test]
async fn compression_steps_down_to_what_the_receiver_knows() {
    let gzip: &[CompressionEncoding] = &[CompressionEncoding::Gzip];
    for (known, refusals) in [(ZSTD, 0), (gzip, 1), (&[][..], 2)] {
        let server = Server::default();
        let (address, task) = serve(&server, 0, known).await;
        let mut agent = agent(address, Compression::Auto, QueueLimits::default());
        agent.exporter.write(fixtures::named(&fixtures::samples(400, 5)));
        let (metrics, _) = agent.finish().await;
        task.abort();
        assert_eq!(server.stored(), 400, "{known:?}");
        assert_eq!(requests(&metrics, "UNIMPLEMENTED"), refusals, "{known:?}");
    }
}

#[tokio::test]
async fn a_receiver_without_the_service_is_no_reason_to_keep_anything() {
    let (server, metrics) = send(vec![Answer::Fail(Code::Unimplemented); 100]).await;
    assert_eq!(server.stored(), 0);
    assert_eq!(dropped(&metrics, "refused by the collector"), 1_200);
}

#[tokio::test]
async fn a_receiver_that_is_away_gets_everything_when_it_comes() {
    let server = Server::default();
    let (address, task) = serve(&server, 0, ZSTD).await;
    let mut agent = agent(address, Compression::Auto, QueueLimits::default());
    agent.exporter.write(fixtures::named(&fixtures::samples(400, 5)));
    while server.stored() < 400 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    task.abort(); // The connection breaks.
    assert!(task.await.is_err());
    agent.exporter.write(fixtures::named(&fixtures::samples(400, 5)));
    tokio::time::sleep(Duration::from_millis(200)).await;
    let (_, task) = serve(&server, address.port(), ZSTD).await;
    agent.exporter.write(fixtures::named(&fixtures::samples(400, 5)));
    let (_, given_up) = agent.finish().await;
    task.abort();
    assert_eq!((server.stored(), given_up), (1_200, 0));
    assert!(server.calls() >= 3);
}

#[tokio::test]
async fn a_full_queue_drops_the_oldest_and_says_so() {
    // Nobody listens there: the port was given back.
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let limits = QueueLimits { bytes_max: 150_000, ..QueueLimits::default() };
    let mut agent = agent(address, Compression::Auto, limits);
    for _ in 0..10 {
        agent.exporter.write(fixtures::named(&fixtures::samples(400, 5)));
    }
    let full = dropped(&agent.metrics, "queue full");
    assert!(full > 0);
    assert!(agent.metrics.export.queue_bytes.get() <= 150_000);
    let given_up = agent.export.finish(Duration::from_millis(200)).await;
    assert_eq!(full + given_up, 4_000);
    assert_eq!(dropped(&agent.metrics, "the agent ended"), given_up);
}

#[tokio::test]
async fn requests_that_are_too_old_go() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let limits = QueueLimits { age_max: Duration::from_millis(50), ..QueueLimits::default() };
    let mut agent = agent(address, Compression::Auto, limits);
    agent.exporter.write(fixtures::named(&fixtures::samples(400, 5)));
    let (metrics, given_up) = agent.finish().await;
    assert_eq!((dropped(&metrics, "too old"), given_up), (400, 0));
}

#[test]
fn urls_are_checked_before_anything_starts() {
    let error = |url| Client::new(url, Compression::Auto).map(drop).unwrap_err().to_string();
    assert!(error("https://collector:4317").contains("wants TLS"));
    for url in ["collector:4317", "", "http://", "ftp://a", "http://a:4317/v1/profiles"] {
        assert!(error(url).contains("looks like http://127.0.0.1:4317"), "{url}");
    }
}

#[test]
fn answers_are_read_with_suspicion() {
    use super::frame::{FrameError, unpack};
    assert!(unpack(&[]).unwrap().partial_success.is_none());
    assert!(unpack(&[0, 0, 0, 0, 0]).unwrap().partial_success.is_none());
    assert!(matches!(unpack(&[0, 0, 0]), Err(FrameError::Truncated)));
    assert!(matches!(unpack(&[0, 0xff, 0xff, 0xff, 0xff, 1]), Err(FrameError::Truncated)));
    assert!(matches!(unpack(&[1, 0, 0, 0, 0]), Err(FrameError::Compressed)));
    assert!(matches!(unpack(&[0, 0, 0, 0, 1, 0xff]), Err(FrameError::Malformed(_))));
}

/// A server that hangs up in the middle of a request costs no samples.
#[tokio::test]
async fn who_hangs_up_is_asked_again() {
    use tokio::io::AsyncReadExt as _;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let task = tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut bytes = [0; 64];
            assert!(stream.read(&mut bytes).await.unwrap() > 0);
        }
    });
    let mut agent = agent(address, Compression::Auto, QueueLimits::default());
    agent.exporter.write(fixtures::named(&fixtures::samples(400, 5)));
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(agent.metrics.export.retries.get() > 0);
    assert_eq!(dropped(&agent.metrics, "refused by the collector"), 0);
    let given_up = agent.export.finish(Duration::from_millis(100)).await;
    task.abort();
    assert_eq!(given_up, 400);
}
