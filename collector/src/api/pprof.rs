//! `POST /profiles/pprof`: takes one pprof profile, whole or not at all.

use super::error::ApiError;
use super::params::Params;
use super::routes::{Pairs, json};
use crate::ingest::compression::{Coding, UNKNOWN_CODING};
use crate::ingest::pprof::{Push, Severity};
use crate::ingest::receiver::{Pushed, Receiver, Refused};
use crate::limits::{LABEL_BYTES_MAX, REQUEST_BYTES_MAX};
use crate::profile::{Attribute, AttributeValue, SeriesLabels};
use axum::body::Body;
use axum::extract::{Path, State};
use axum::response::Response;
use http::{HeaderMap, Request, StatusCode};
use serde_json::{Value, json as value};
use std::sync::Arc;

/// The route that clients in the field know.
pub(super) const PATH: &str = "/profiles/pprof";

/// The same below a project.
pub(super) const PROJECT_PATH: &str = "/api/v1/projects/{project}/profiles/pprof";

/// Parameters that become attributes of every sample, and their names there (OpenTelemetry's).
const ATTRIBUTES: [(&str, &str); 4] = [
    ("environment", "deployment.environment.name"),
    ("transaction", "transaction.name"),
    ("trace_id", "trace_id"),
    ("version", "service.version"),
];

const TRY_AGAIN: &str = "nothing of it is stored; try again in a few seconds";

/// Parameters that become labels.
const LABELS: [&str; 4] = ["service", "host", "container", "pod"];

/// Takes a profile for the one project there is.
pub(super) async fn push(
    State(receiver): State<Receiver>,
    Pairs(pairs): Pairs,
    request: Request<Body>,
) -> Result<Response, ApiError> {
    take(&receiver, pairs, request).await
}

/// Takes a profile for the project of the path.
pub(super) async fn push_to_project(
    State(receiver): State<Receiver>,
    Path(project): Path<String>,
    Pairs(pairs): Pairs,
    request: Request<Body>,
) -> Result<Response, ApiError> {
    if !receiver.has_project(&project) {
        return Err(ApiError::no_project(&project));
    }
    take(&receiver, pairs, request).await
}

async fn take(
    receiver: &Receiver,
    pairs: Vec<(String, String)>,
    request: Request<Body>,
) -> Result<Response, ApiError> {
    let (parts, body) = request.into_parts();
    let (push, coding) = match read(pairs, &parts.headers) {
        Ok(both) => both,
        Err(error) => {
            receiver.metrics().ingest_request(crate::metrics::Transport::Pprof, "unsupported", 0);
            return Err(error);
        }
    };
    let mut bytes = 0;
    let outcome = match receiver.read(body, REQUEST_BYTES_MAX).await {
        Ok(body) => {
            bytes = body.bytes.len();
            receiver.push(body, coding, push).await
        }
        Err(refused) => Err(refused),
    };
    receiver.count_push(bytes, &outcome);
    let mut response = json(&answer(&outcome.map_err(error)?))?;
    *response.status_mut() = StatusCode::ACCEPTED;
    Ok(response)
}

fn read(pairs: Vec<(String, String)>, headers: &HeaderMap) -> Result<(Push, Coding), ApiError> {
    let attributes = ATTRIBUTES.map(|(parameter, _)| parameter);
    let known: Vec<&str> = LABELS.into_iter().chain(["type"]).chain(attributes).collect();
    let params = Params::new(pairs, &known)?;
    // An empty value is the same as none: clients fill in what they have.
    let text = |name: &str| -> Result<Option<Arc<str>>, ApiError> {
        let text = params.text(name).filter(|text| !text.is_empty());
        match text.filter(|text| text.len() > LABEL_BYTES_MAX) {
            Some(_) => {
                let message = format!("`{name}` has more than {LABEL_BYTES_MAX} bytes");
                Err(ApiError::parameter(message))
            }
            None => Ok(text.map(Arc::from)),
        }
    };
    let label = |name: &str| text(name).map(Option::unwrap_or_default);
    let mut push = Push {
        labels: SeriesLabels {
            service: label("service")?,
            host: label("host")?,
            container: label("container")?,
            pod: label("pod")?,
            executable: Arc::default(),
        },
        profile_type: text("type")?,
        attributes: Vec::new(),
    };
    for (parameter, key) in ATTRIBUTES {
        if let Some(text) = text(parameter)? {
            let value = AttributeValue::Text(text);
            push.attributes.push(Attribute { key: Arc::from(key), value });
        }
    }
    Ok((push, coding(headers)?))
}

fn coding(headers: &HeaderMap) -> Result<Coding, ApiError> {
    Coding::from_headers(headers).ok_or_else(|| {
        ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "coding", UNKNOWN_CODING)
            .hint("a body that is gzip is understood without a content encoding")
    })
}

/// What was stored, so that a sender can compare.
fn answer(pushed: &Pushed) -> Value {
    let Pushed { service, time_ms, duration_ms, types, view, is_repeated } = pushed;
    let shown = types.get(*view).map(|it| &*it.value_type.kind);
    let types: Vec<Value> = types
        .iter()
        .map(|it| {
            let (kind, unit) = (&*it.value_type.kind, &*it.value_type.unit);
            value!({"type": kind, "unit": unit, "samples": it.samples, "total": it.total})
        })
        .collect();
    value!({
        "service": &**service, "from": time_ms, "to": time_ms + duration_ms, "type": shown, "types": types,
        "repeated": is_repeated,
    })
}

fn error(refused: Refused) -> ApiError {
    let message = refused.to_string();
    let with = |status, code| ApiError::new(status, code, message.clone());
    match refused {
        Refused::Pprof(fault) => {
            let status = match fault.severity() {
                Severity::Malformed => StatusCode::BAD_REQUEST,
                Severity::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
                Severity::Unstorable => StatusCode::UNPROCESSABLE_ENTITY,
            };
            with(status, fault.reason()).hint("nothing of it is stored")
        }
        Refused::TooLarge(_) => with(StatusCode::PAYLOAD_TOO_LARGE, "limit"),
        Refused::Malformed(_) => with(StatusCode::BAD_REQUEST, "undecodable"),
        Refused::Unread(_) => with(StatusCode::REQUEST_TIMEOUT, "unread"),
        Refused::Busy(_) => with(StatusCode::SERVICE_UNAVAILABLE, "busy").hint(TRY_AGAIN),
        // What failed where is for the log; paths of the server are none of a client's business.
        Refused::Failed(_) => {
            tracing::error!("a profile was not stored: {message}");
            let text = "the store failed; the collector's log says more";
            ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "store", text).hint(TRY_AGAIN)
        }
    }
}
