//! One gRPC call with bytes that are already encoded. No retries. The framing is ours, because tonic
//! compresses with zstd's fastest levels only, and a level more costs a fleet less than its network.

use super::frame::{self, Encoding};
use crate::limits;
use http_body_util::{BodyExt as _, Full, Limited};
use prost::bytes::Bytes;
use proto::otlp::collector::ExportProfilesServiceResponse;
use std::time::Duration;
use tonic::body::Body;
use tonic::codegen::Service as _;
use tonic::codegen::http::header::{CONTENT_TYPE, HeaderValue, TE};
use tonic::codegen::http::{self, StatusCode, uri::Uri};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

const METHOD: &str = "/opentelemetry.proto.collector.profiles.v1development.ProfilesService/Export";

/// How request bodies are compressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Compression {
    /// zstd, or gzip where the receiver does not know it.
    #[default]
    Auto,
    /// zstd only.
    Zstd,
    /// gzip only.
    Gzip,
    /// None.
    None,
}

/// Why a collector's URL cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum EndpointError {
    /// It is no URL of a host.
    #[error("{url:?} is not the URL of a collector; it looks like http://127.0.0.1:4317")]
    Malformed {
        /// What was given.
        url: String,
    },
    /// TLS is not there yet.
    #[error(
        "{url} wants TLS, which this build does not have yet; use http:// to a collector or a proxy \
         on this host or in a network you trust"
    )]
    Tls {
        /// What was given.
        url: String,
    },
}

/// A call that was not acknowledged.
#[derive(Debug)]
pub(super) struct Failure {
    /// What the receiver said, or what went wrong on the way.
    pub(super) status: Status,
    /// False if nobody answered: the request may or may not have arrived.
    pub(super) answered: bool,
}

/// A connection that is made when it is first used, and made again after it broke.
#[derive(Debug)]
pub struct Client {
    channel: Channel,
    ladder: &'static [Encoding],
    step: usize,
    request_wait_max: Duration,
}

impl Client {
    /// A client of the collector at `url`.
    ///
    /// # Errors
    /// See [`EndpointError`].
    pub fn new(url: &str, compression: Compression) -> Result<Self, EndpointError> {
        let endpoint = endpoint(url)?;
        let channel = endpoint
            .connect_timeout(limits::EXPORT_CONNECT_WAIT_MAX)
            .http2_keep_alive_interval(limits::EXPORT_KEEP_ALIVE)
            .keep_alive_timeout(limits::EXPORT_CONNECT_WAIT_MAX)
            .user_agent(concat!("vesta-agent/", env!("CARGO_PKG_VERSION")))
            .map_err(|_invalid| EndpointError::Malformed { url: url.to_owned() })?
            .connect_lazy();
        let ladder: &[_] = match compression {
            Compression::Auto => &[Encoding::Zstd, Encoding::Gzip, Encoding::Identity],
            Compression::Zstd => &[Encoding::Zstd],
            Compression::Gzip => &[Encoding::Gzip],
            Compression::None => &[Encoding::Identity],
        };
        Ok(Self { channel, ladder, step: 0, request_wait_max: limits::EXPORT_REQUEST_WAIT_MAX })
    }

    /// Waits at most so long for an answer.
    #[must_use]
    pub const fn with_request_wait_max(mut self, wait: Duration) -> Self {
        self.request_wait_max = wait;
        self
    }

    /// Takes the next compression; `false` if there is none left.
    pub(super) const fn step_down(&mut self) -> bool {
        let more = self.step + 1 < self.ladder.len();
        if more {
            self.step += 1;
        }
        more
    }

    /// Begins again with the best compression where none worked: it was not the compression.
    pub(super) const fn step_up(&mut self) {
        if self.step + 1 == self.ladder.len() {
            self.step = 0;
        }
    }

    /// Sends one encoded request.
    pub(super) async fn export(
        &self,
        bytes: Bytes,
    ) -> Result<ExportProfilesServiceResponse, Failure> {
        let local = |status| Failure { status, answered: false };
        let encoding = self.ladder[self.step];
        // Milliseconds of work: not on a thread that others wait for.
        let framed = tokio::task::spawn_blocking(move || frame::pack(&bytes, encoding)).await;
        let framed = match framed {
            Ok(Ok(framed)) => framed,
            Ok(Err(error)) => return Err(local(Status::internal(error.to_string()))),
            Err(error) => return Err(local(Status::internal(error.to_string()))),
        };
        let mut channel = self.channel.clone();
        let call = async {
            let broken = |error: tonic::transport::Error| local(Status::from_error(error.into()));
            std::future::poll_fn(|context| channel.poll_ready(context)).await.map_err(broken)?;
            let response = channel.call(request(framed, encoding)).await.map_err(broken)?;
            answer(response).await
        };
        match tokio::time::timeout(self.request_wait_max, call).await {
            Ok(answer) => answer,
            Err(_) => Err(local(Status::deadline_exceeded("no answer in time"))),
        }
    }
}

fn request(framed: Bytes, encoding: Encoding) -> http::Request<Body> {
    let mut request = http::Request::new(Body::new(Full::new(framed)));
    *request.method_mut() = http::Method::POST;
    *request.uri_mut() = Uri::from_static(METHOD);
    let headers = request.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    headers.insert(TE, HeaderValue::from_static("trailers"));
    headers.insert("grpc-encoding", HeaderValue::from_static(encoding.name()));
    headers.insert("grpc-accept-encoding", HeaderValue::from_static("identity"));
    request
}

/// Reads an answer: the status stands in the trailers, or in the header where there is no message.
async fn answer(response: http::Response<Body>) -> Result<ExportProfilesServiceResponse, Failure> {
    let answered = |status| Failure { status, answered: true };
    let (head, body) = response.into_parts();
    match Status::from_header_map(&head.headers) {
        Some(status) if status.code() != Code::Ok => return Err(answered(status)),
        None if head.status != StatusCode::OK => return Err(answered(of_http(head.status))),
        _ => {}
    }
    let body = Limited::new(body, limits::EXPORT_ANSWER_BYTES_MAX).collect().await;
    let body =
        body.map_err(|error| Failure { status: Status::from_error(error), answered: false })?;
    match body.trailers().or(Some(&head.headers)).and_then(Status::from_header_map) {
        Some(status) if status.code() == Code::Ok => {}
        Some(status) => return Err(answered(status)),
        None => {
            let status = Status::unavailable("the answer ended without a status");
            return Err(Failure { status, answered: false });
        }
    }
    frame::unpack(&body.to_bytes()).map_err(|error| answered(Status::internal(error.to_string())))
}

/// What an answer that is no gRPC means: the table of gRPC's `http-grpc-status-mapping.md`.
fn of_http(status: StatusCode) -> Status {
    let code = match status.as_u16() {
        400 => Code::Internal,
        401 => Code::Unauthenticated,
        403 => Code::PermissionDenied,
        404 => Code::Unimplemented,
        429 | 502..=504 => Code::Unavailable,
        _ => Code::Unknown,
    };
    Status::new(code, format!("HTTP {status}, which no gRPC server says"))
}

fn endpoint(url: &str) -> Result<Endpoint, EndpointError> {
    let malformed = || EndpointError::Malformed { url: url.to_owned() };
    let uri: Uri = url.parse().map_err(|_invalid| malformed())?;
    match uri.scheme_str() {
        Some("http") => {}
        Some("https") => return Err(EndpointError::Tls { url: url.to_owned() }),
        _ => return Err(malformed()),
    }
    if uri.host().is_none_or(str::is_empty) || !matches!(uri.path(), "" | "/") {
        return Err(malformed());
    }
    Ok(Endpoint::from(uri))
}
