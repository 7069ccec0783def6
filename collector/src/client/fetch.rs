//! Asks a collector over HTTP.

use super::ClientError;
use crate::limits::{ANSWER_BYTES_MAX, ANSWER_MS_MAX};
use bytes::Bytes;
use http::{Method, Request, Uri};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use serde::Deserialize;
use std::time::Duration;

/// The error object of the API.
#[derive(Deserialize)]
struct ErrorAnswer {
    error: ErrorDetail,
}

#[derive(Deserialize)]
struct ErrorDetail {
    message: String,
    #[serde(default)]
    hint: String,
}

/// A URL of the collector at `base`: `path` below the project's API, with parameters.
///
/// # Errors
/// `base` is no `http` URL.
pub(super) fn url(
    base: &str,
    project: &str,
    path: &str,
    query: &[(&str, &str)],
) -> Result<Uri, ClientError> {
    let wrong = || ClientError::Url(base.to_owned());
    let base = base.trim_end_matches('/');
    if !base.starts_with("http://") {
        return Err(wrong());
    }
    let query: Vec<_> =
        query.iter().map(|(name, value)| format!("{name}={}", encode(value))).collect();
    let mut text = format!("{base}/api/v1/projects/{}/{path}", encode(project));
    if !query.is_empty() {
        text += "?";
        text += &query.join("&");
    }
    text.parse().map_err(|_invalid| wrong())
}

/// Percent-encodes everything but unreserved characters (RFC 3986, section 2.3).
pub(super) fn encode(text: &str) -> String {
    text.bytes()
        .map(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                char::from(byte).to_string()
            }
            other => format!("%{other:02X}"),
        })
        .collect()
}

/// Fetches one answer.
///
/// # Errors
/// The collector cannot be reached, does not answer in time, or answers with an error.
pub(super) async fn fetch(url: Uri) -> Result<Bytes, ClientError> {
    send(url, None).await
}

/// Posts a body, or asks without one.
///
/// # Errors
/// The collector cannot be reached, does not answer in time, or answers with an error.
pub(super) async fn send(url: Uri, body: Option<Bytes>) -> Result<Bytes, ClientError> {
    let unreachable = |cause: String| ClientError::Unreachable { url: url.to_string(), cause };
    let method = if body.is_some() { Method::POST } else { Method::GET };
    let request = Request::builder().method(method).uri(url.clone());
    let request = request.body(Full::new(body.unwrap_or_default()));
    let request = request.map_err(|error| unreachable(error.to_string()))?;
    let exchange = async {
        let response = Client::builder(TokioExecutor::new()).build_http().request(request).await;
        let response = response.map_err(|error| unreachable(reason(&error)))?;
        let status = response.status();
        let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await;
        let body = body.map_err(|error| unreachable(error.to_string()))?.to_bytes();
        Ok::<_, ClientError>((status, body))
    };
    let time = Duration::from_millis(ANSWER_MS_MAX);
    let (status, body) = match tokio::time::timeout(time, exchange).await {
        Ok(outcome) => outcome?,
        Err(_) => return Err(unreachable(format!("no answer within {} s", time.as_secs()))),
    };
    if status.is_success() {
        return Ok(body);
    }
    let (message, hint) = match serde_json::from_slice::<ErrorAnswer>(&body) {
        Ok(ErrorAnswer { error }) => (error.message, error.hint),
        Err(_) => (format!("it answered {status}"), String::new()),
    };
    Err(ClientError::Refused { status: status.as_u16(), message, hint })
}

/// The innermost cause: "connection refused" rather than "client error".
fn reason(error: &dyn std::error::Error) -> String {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}
