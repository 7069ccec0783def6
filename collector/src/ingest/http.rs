//! OTLP/HTTP: `POST /v1development/profiles`, protobuf. Answers follow the OTLP specification: the
//! response message on success, `google.rpc.Status` in the request's encoding on failure.

use super::compression::{Coding, UNKNOWN_CODING};
use super::otlp::Rejections;
use super::receiver::{Receiver, Refused};
use crate::limits::REQUEST_BYTES_MAX;
use crate::metrics::Transport;
use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use http::header::{CONTENT_TYPE, ORIGIN, RETRY_AFTER};
use http::{HeaderMap, HeaderValue, Request, StatusCode};
use prost::Message;
use proto::opentelemetry_proto::tonic::collector::profiles::v1development::{
    ExportProfilesPartialSuccess, ExportProfilesServiceResponse,
};

/// The route.
pub const PATH: &str = "/v1development/profiles";

/// `google.rpc.Status`, without details.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct RpcStatus {
    /// A `google.rpc.Code`.
    #[prost(int32, tag = "1")]
    pub code: i32,
    /// For the sender's operator.
    #[prost(string, tag = "2")]
    pub message: String,
}

/// The encoding of a request, and so of its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Encoding {
    Protobuf,
    Json,
}

impl Encoding {
    const fn content_type(self) -> &'static str {
        match self {
            Self::Protobuf => "application/x-protobuf",
            Self::Json => "application/json",
        }
    }

    fn from_headers(headers: &HeaderMap) -> Option<Self> {
        let value = headers.get(CONTENT_TYPE)?.to_str().ok()?;
        let essence = value.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        match essence.as_str() {
            "application/x-protobuf" | "application/protobuf" => Some(Self::Protobuf),
            "application/json" => Some(Self::Json),
            _ => None,
        }
    }
}

/// Takes one request.
pub async fn export(State(receiver): State<Receiver>, request: Request<Body>) -> Response {
    let (parts, body) = request.into_parts();
    let (encoding, coding) = match negotiate(&parts.headers) {
        Ok(both) => both,
        Err((encoding, status, text)) => {
            receiver.metrics().ingest_request(Transport::Http, "unsupported", 0);
            return failure(encoding, status, text);
        }
    };
    let mut bytes = 0;
    let outcome = match receiver.read(body, REQUEST_BYTES_MAX).await {
        Ok(body) => {
            bytes = body.bytes.len();
            receiver.store(body, coding).await
        }
        Err(refused) => Err(refused),
    };
    receiver.count(Transport::Http, bytes, &outcome);
    match outcome {
        Ok(rejections) => success(encoding, &rejections),
        Err(refused) => failure(encoding, status_of(&refused), refused.to_string()),
    }
}

type Unsupported = (Encoding, StatusCode, String);

fn negotiate(headers: &HeaderMap) -> Result<(Encoding, Coding), Unsupported> {
    let refuse = |encoding, status, text: &str| Err((encoding, status, text.to_owned()));
    // Browsers name the origin of every POST; no page has a reason to send profiles here.
    if headers.contains_key(ORIGIN) {
        return refuse(Encoding::Json, StatusCode::FORBIDDEN, "requests of web pages are refused");
    }
    let encoding = match Encoding::from_headers(headers) {
        Some(Encoding::Protobuf) => Encoding::Protobuf,
        Some(Encoding::Json) => {
            let text = "OTLP in JSON is not supported; send application/x-protobuf";
            return refuse(Encoding::Json, StatusCode::UNSUPPORTED_MEDIA_TYPE, text);
        }
        None => {
            let text = "the content type must be application/x-protobuf";
            return refuse(Encoding::Protobuf, StatusCode::UNSUPPORTED_MEDIA_TYPE, text);
        }
    };
    match Coding::from_headers(headers) {
        Some(coding) => Ok((encoding, coding)),
        None => refuse(encoding, StatusCode::UNSUPPORTED_MEDIA_TYPE, UNKNOWN_CODING),
    }
}

fn status_of(refused: &Refused) -> StatusCode {
    match refused {
        Refused::TooLarge(_) => StatusCode::PAYLOAD_TOO_LARGE,
        Refused::Malformed(_) | Refused::Pprof(_) => StatusCode::BAD_REQUEST,
        Refused::Unread(_) => StatusCode::REQUEST_TIMEOUT,
        Refused::Busy(_) | Refused::Failed(_) => StatusCode::SERVICE_UNAVAILABLE,
    }
}

/// The response message: empty, or with what was refused.
pub(super) fn response_message(rejections: &Rejections) -> ExportProfilesServiceResponse {
    let partial_success = (rejections.profiles > 0).then(|| ExportProfilesPartialSuccess {
        rejected_profiles: i64::try_from(rejections.profiles).unwrap_or(i64::MAX),
        error_message: rejections.message(),
    });
    ExportProfilesServiceResponse { partial_success }
}

fn success(encoding: Encoding, rejections: &Rejections) -> Response {
    answer(encoding, StatusCode::OK, response_message(rejections).encode_to_vec())
}

fn failure(encoding: Encoding, status: StatusCode, message: String) -> Response {
    let code = match status {
        StatusCode::BAD_REQUEST | StatusCode::UNSUPPORTED_MEDIA_TYPE => {
            tonic::Code::InvalidArgument
        }
        StatusCode::FORBIDDEN => tonic::Code::PermissionDenied,
        StatusCode::PAYLOAD_TOO_LARGE => tonic::Code::ResourceExhausted,
        StatusCode::REQUEST_TIMEOUT => tonic::Code::DeadlineExceeded,
        StatusCode::SERVICE_UNAVAILABLE => tonic::Code::Unavailable,
        _ => tonic::Code::Internal,
    };
    let code = i32::from(code);
    let body = match encoding {
        Encoding::Protobuf => RpcStatus { code, message }.encode_to_vec(),
        Encoding::Json => {
            serde_json::json!({"code": code, "message": message}).to_string().into_bytes()
        }
    };
    let mut response = answer(encoding, status, body);
    if status == StatusCode::SERVICE_UNAVAILABLE {
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("5"));
    }
    response
}

fn answer(encoding: Encoding, status: StatusCode, body: Vec<u8>) -> Response {
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = status;
    let content_type = HeaderValue::from_static(encoding.content_type());
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    response
}
