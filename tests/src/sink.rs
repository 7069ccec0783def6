//! An OTLP/gRPC receiver that keeps every request as it was before compression and decodes nothing: what a
//! test reads is what the agent wrote.

use crate::raw::Raw;
use http_body_util::BodyExt as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use tonic::body::Body;
use tonic::codegen::{BoxFuture, CompressionEncoding, Service, http};
use tonic::{Request, Response, Status};

/// What an OTLP receiver accepts by default; an agent must stay below it.
pub const REQUEST_BYTES_MAX: usize = 4 << 20;

/// The receiver; it ends with its value.
#[derive(Debug)]
pub struct Sink {
    address: SocketAddr,
    requests: Requests,
    wire_bytes: Arc<AtomicU64>,
    stop: Option<tokio::sync::oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

/// Each request after gRPC's own framing and decompression.
type Requests = Arc<Mutex<Vec<Vec<u8>>>>;

impl Sink {
    /// Listens on a free loopback port.
    ///
    /// # Panics
    /// If it cannot.
    #[must_use]
    pub fn start() -> Self {
        let requests = Requests::default();
        let wire_bytes = Arc::<AtomicU64>::default();
        let service =
            Receive { requests: Arc::clone(&requests), wire_bytes: Arc::clone(&wire_bytes) };
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let (listening, address) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(async {
                let incoming =
                    tonic::transport::server::TcpIncoming::bind(([127, 0, 0, 1], 0).into());
                let incoming = incoming.expect("loopback has free ports");
                listening.send(incoming.local_addr().expect("an address")).expect("the test waits");
                let server = tonic::transport::Server::builder().add_service(service);
                let stopped = async { stopped.await.unwrap_or_default() };
                server.serve_with_incoming_shutdown(incoming, stopped).await.expect("a server");
            });
        });
        let address = address.recv().expect("the server listens");
        Self { address, requests, wire_bytes, stop: Some(stop), thread: Some(thread) }
    }

    /// `http://127.0.0.1:PORT`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Host and port.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Every request so far.
    #[must_use]
    pub fn requests(&self) -> Vec<Vec<u8>> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Bytes of the requests so far as they were sent: compressed, with gRPC's framing, without HTTP's.
    #[must_use]
    pub fn wire_bytes(&self) -> u64 {
        self.wire_bytes.load(Ordering::Relaxed)
    }

    /// Writes every request so far into files of `folder` and gives their names.
    ///
    /// # Panics
    /// If the folder cannot be written.
    #[must_use]
    pub fn save(&self, folder: &Path) -> Vec<PathBuf> {
        let write = |(index, request): (usize, &Vec<u8>)| {
            let file = folder.join(format!("{index:05}.otlp"));
            std::fs::write(&file, request).expect("a temporary folder can be written");
            file
        };
        self.requests().iter().enumerate().map(write).collect()
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap_or_default();
        }
    }
}

/// The one method of the profiles service.
#[derive(Clone, Debug)]
struct Receive {
    requests: Requests,
    wire_bytes: Arc<AtomicU64>,
}

impl tonic::server::NamedService for Receive {
    const NAME: &'static str =
        "opentelemetry.proto.collector.profiles.v1development.ProfilesService";
}

impl Service<http::Request<Body>> for Receive {
    type Response = http::Response<Body>;
    type Error = std::convert::Infallible;
    type Future = BoxFuture<Self::Response, Self::Error>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let mut grpc = tonic::server::Grpc::new(Raw)
            .apply_max_message_size_config(Some(REQUEST_BYTES_MAX), None)
            .accept_compressed(CompressionEncoding::Gzip)
            .accept_compressed(CompressionEncoding::Zstd);
        let keep = Keep(Arc::clone(&self.requests));
        let wire_bytes = Arc::clone(&self.wire_bytes);
        let request = request.map(|body| {
            Body::new(body.map_frame(move |frame| {
                let bytes = frame.data_ref().map_or(0, |data| data.len() as u64);
                wire_bytes.fetch_add(bytes, Ordering::Relaxed);
                frame
            }))
        });
        Box::pin(async move { Ok(grpc.unary(keep, request).await) })
    }
}

/// Keeps a request and answers that everything was accepted.
struct Keep(Requests);

impl tonic::server::UnaryService<Vec<u8>> for Keep {
    type Response = Vec<u8>;
    type Future = BoxFuture<Response<Vec<u8>>, Status>;

    fn call(&mut self, request: Request<Vec<u8>>) -> Self::Future {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(request.into_inner());
        Box::pin(async { Ok(Response::new(Vec::new())) })
    }
}
