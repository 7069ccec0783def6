//! OTLP/gRPC: the unary method `ProfilesService/Export`. The framing (one flag byte, four bytes of
//! length, the message) is read here and not by a generated service, so that the body counts against the
//! memory of all bodies while it arrives, is decompressed in its turn, and reaches the look at the wire
//! before any of it is decoded. Codes and headers are tonic's.

use super::compression::Coding;
use super::http::response_message;
use super::receiver::{HeldBody, Receiver, Refused};
use crate::limits::REQUEST_BYTES_MAX;
use crate::metrics::Transport;
use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use bytes::{BufMut as _, Bytes, BytesMut};
use http::header::{CONTENT_TYPE, ORIGIN};
use http::{HeaderMap, HeaderValue, Request, StatusCode};
use http_body_util::StreamBody;
use hyper::body::Frame;
use prost::Message as _;
use tonic::{Code, Status};

/// The route.
pub const PATH: &str =
    "/opentelemetry.proto.collector.profiles.v1development.ProfilesService/Export";

const CONTENT_TYPE_GRPC: HeaderValue = HeaderValue::from_static("application/grpc");
const PREFIX_BYTES: usize = 5;

/// Takes one call.
pub async fn export(State(receiver): State<Receiver>, request: Request<Body>) -> Response {
    let (parts, body) = request.into_parts();
    if !is_grpc(&parts.headers) {
        let text = "gRPC calls have the content type application/grpc";
        return (StatusCode::UNSUPPORTED_MEDIA_TYPE, text).into_response();
    }
    if parts.headers.contains_key(ORIGIN) {
        // Only browsers send it: a page that was rebound to this address must not write profiles.
        return Status::permission_denied("requests of web pages are refused").into_http();
    }
    let mut bytes = 0;
    let outcome = match receiver.read(body, REQUEST_BYTES_MAX + PREFIX_BYTES).await {
        Ok(body) => {
            bytes = body.bytes.len();
            match unframe(body, &parts.headers) {
                Ok((message, coding)) => receiver.store(message, coding).await,
                Err(status) => {
                    receiver.metrics().ingest_request(Transport::Grpc, "malformed", bytes);
                    return status.into_http();
                }
            }
        }
        Err(refused) => Err(refused),
    };
    receiver.count(Transport::Grpc, bytes, &outcome);
    match outcome {
        Ok(rejections) => success(&response_message(&rejections).encode_to_vec()),
        Err(refused) => status_of(&refused).into_http(),
    }
}

/// Any method that is not served.
pub async fn unimplemented() -> Response {
    Status::unimplemented("only ProfilesService/Export is served here").into_http()
}

fn is_grpc(headers: &HeaderMap) -> bool {
    let value = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    value.is_some_and(|value| {
        value == "application/grpc" || value.starts_with("application/grpc+proto")
    })
}

/// The one message of a unary call, and its coding.
fn unframe(body: HeldBody, headers: &HeaderMap) -> Result<(HeldBody, Coding), Status> {
    let bytes = &body.bytes;
    let Some((prefix, message)) = bytes.split_first_chunk::<PREFIX_BYTES>() else {
        return Err(Status::invalid_argument("the call carries no message"));
    };
    let [flag, length @ ..] = *prefix;
    let length = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX);
    if length != message.len() {
        return Err(Status::invalid_argument(format!(
            "the message is said to have {length} bytes, {} arrived",
            message.len()
        )));
    }
    let coding = match flag {
        0 => Coding::Identity,
        1 => {
            let named = headers.get("grpc-encoding").and_then(|value| value.to_str().ok());
            match named.and_then(Coding::from_header) {
                Some(coding) if coding != Coding::Identity => coding,
                _ => {
                    return Err(Status::unimplemented(
                        "grpc-encoding must be gzip, zstd or deflate where a message is compressed",
                    ));
                }
            }
        }
        other => {
            return Err(Status::invalid_argument(format!(
                "the compression flag is {other}, not 0 or 1"
            )));
        }
    };
    let message = bytes.slice(PREFIX_BYTES..);
    Ok((body.with_bytes(message), coding))
}

/// Retryable or not as the OTLP specification lists codes: without `RetryInfo`, `RESOURCE_EXHAUSTED` and
/// `INVALID_ARGUMENT` are final, `UNAVAILABLE` is tried again.
fn status_of(refused: &Refused) -> Status {
    let code = match refused {
        Refused::TooLarge(_) => Code::ResourceExhausted,
        Refused::Malformed(_) | Refused::Pprof(_) => Code::InvalidArgument,
        Refused::Unread(_) => Code::DeadlineExceeded,
        Refused::Busy(_) | Refused::Failed(_) => Code::Unavailable,
    };
    Status::new(code, refused.to_string())
}

fn success(message: &[u8]) -> Response {
    let mut framed = BytesMut::with_capacity(PREFIX_BYTES + message.len());
    framed.put_u8(0);
    framed.put_u32(u32::try_from(message.len()).unwrap_or(u32::MAX));
    framed.put_slice(message);
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from_static("0"));
    let frames: [Result<Frame<Bytes>, std::convert::Infallible>; 2] =
        [Ok(Frame::data(framed.freeze())), Ok(Frame::trailers(trailers))];
    let body = StreamBody::new(futures_util::stream::iter(frames));
    let mut response = Response::new(Body::new(body));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, CONTENT_TYPE_GRPC);
    headers.insert("grpc-accept-encoding", HeaderValue::from_static("identity,gzip,zstd,deflate"));
    response
}
