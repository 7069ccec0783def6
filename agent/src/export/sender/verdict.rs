//! What a gRPC status means for a request: the failure table of the OTLP specification 1.10.

use super::client::Failure;
use prost::Message as _;
use std::time::Duration;
use tonic::Code;

/// What to do with a request that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Send it again, after this time if the receiver said one.
    Again {
        /// From `RetryInfo`.
        after: Option<Duration>,
    },
    /// The receiver does not know something: the compression, or the whole service.
    OtherEncoding,
    /// Sending it again would fail again.
    Refused,
}

pub(super) fn of(failure: &Failure) -> Verdict {
    let Failure { status, answered } = failure;
    if !answered {
        return Verdict::Again { after: None };
    }
    let after = retry_after(status.details());
    match status.code() {
        Code::ResourceExhausted if after.is_none() => Verdict::Refused,
        Code::Cancelled
        | Code::DeadlineExceeded
        | Code::ResourceExhausted
        | Code::Aborted
        | Code::OutOfRange
        | Code::Unavailable
        | Code::DataLoss => Verdict::Again { after },
        Code::Unimplemented => Verdict::OtherEncoding,
        _ => Verdict::Refused,
    }
}

/// The name of a status as the gRPC specification spells it.
pub(super) const fn name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "CANCELLED",
        Code::Unknown => "UNKNOWN",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Aborted => "ABORTED",
        Code::OutOfRange => "OUT_OF_RANGE",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Internal => "INTERNAL",
        Code::Unavailable => "UNAVAILABLE",
        Code::DataLoss => "DATA_LOSS",
        Code::Unauthenticated => "UNAUTHENTICATED",
    }
}

/// The delay of a `google.rpc.RetryInfo` among the details of a status.
fn retry_after(details: &[u8]) -> Option<Duration> {
    let status = RpcStatus::decode(details).ok()?;
    let info = status.details.iter().find(|any| any.type_url.ends_with("/google.rpc.RetryInfo"))?;
    let delay = RetryInfo::decode(info.value.as_slice()).ok()?.retry_delay.unwrap_or_default();
    let seconds = u64::try_from(delay.seconds).ok()?;
    Some(Duration::new(seconds, u32::try_from(delay.nanos).ok()?.min(999_999_999)))
}

/// `google.rpc.Status`, the part that is read.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct RpcStatus {
    #[prost(message, repeated, tag = "3")]
    pub(super) details: Vec<RpcAny>,
}

/// `google.protobuf.Any`.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct RpcAny {
    #[prost(string, tag = "1")]
    pub(super) type_url: String,
    #[prost(bytes = "vec", tag = "2")]
    pub(super) value: Vec<u8>,
}

/// `google.rpc.RetryInfo`.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct RetryInfo {
    #[prost(message, optional, tag = "1")]
    pub(super) retry_delay: Option<RpcDuration>,
}

/// `google.protobuf.Duration`.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub(super) struct RpcDuration {
    #[prost(int64, tag = "1")]
    pub(super) seconds: i64,
    #[prost(int32, tag = "2")]
    pub(super) nanos: i32,
}
