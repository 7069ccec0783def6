//! The gRPC call with bytes that are already encoded. One call, no retries.

use crate::limits;
use prost::Message as _;
use prost::bytes::{Buf as _, BufMut as _, Bytes};
use proto::otlp::collector::ExportProfilesServiceResponse;
use std::time::Duration;
use tonic::Status;
use tonic::client::Grpc;
use tonic::codec::{
    BufferSettings, Codec, CompressionEncoding, DecodeBuf, Decoder, EncodeBuf, Encoder,
};
use tonic::codegen::http::uri::{PathAndQuery, Uri};
use tonic::transport::{Channel, Endpoint};

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

/// A connection that is made when it is first used, and made again after it broke.
#[derive(Debug)]
pub struct Client {
    grpc: Grpc<Channel>,
    ladder: &'static [Option<CompressionEncoding>],
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
        const ZSTD: Option<CompressionEncoding> = Some(CompressionEncoding::Zstd);
        const GZIP: Option<CompressionEncoding> = Some(CompressionEncoding::Gzip);
        let grpc = Grpc::new(channel)
            .accept_compressed(CompressionEncoding::Zstd)
            .accept_compressed(CompressionEncoding::Gzip);
        let ladder: &[_] = match compression {
            Compression::Auto => &[ZSTD, GZIP, None],
            Compression::Zstd => &[ZSTD],
            Compression::Gzip => &[GZIP],
            Compression::None => &[None],
        };
        Ok(Self { grpc, ladder, step: 0, request_wait_max: limits::EXPORT_REQUEST_WAIT_MAX })
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
    ) -> Result<ExportProfilesServiceResponse, Status> {
        let mut grpc = self.grpc.clone();
        if let Some(encoding) = self.ladder[self.step] {
            grpc = grpc.send_compressed(encoding);
        }
        let call = async {
            grpc.ready().await.map_err(|error| Status::from_error(error.into()))?;
            let path = PathAndQuery::from_static(METHOD);
            grpc.unary(tonic::Request::new(bytes), path, ExportCodec).await
        };
        match tokio::time::timeout(self.request_wait_max, call).await {
            Ok(answer) => answer.map(tonic::Response::into_inner),
            Err(_) => Err(Status::deadline_exceeded("no answer in time")),
        }
    }
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

/// Bytes out, a message in.
#[derive(Clone, Copy, Debug)]
struct ExportCodec;

impl Codec for ExportCodec {
    type Encode = Bytes;
    type Decode = ExportProfilesServiceResponse;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for ExportCodec {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, bytes: Bytes, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put(bytes);
        Ok(())
    }

    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::default()
    }
}

impl Decoder for ExportCodec {
    type Item = ExportProfilesServiceResponse;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Self::Item>, Status> {
        let bytes = buffer.copy_to_bytes(buffer.remaining());
        let response = ExportProfilesServiceResponse::decode(bytes);
        response.map(Some).map_err(|error| Status::internal(error.to_string()))
    }
}
