//! `DELETE /profiles` and `GET /deletions/{id}`: deletes what is stored before a time, and says how far it is.

use super::App;
use super::error::ApiError;
use super::guard::PeerAddress;
use super::params::Params;
use super::routes::{Pairs, json, project};
use crate::deletion::DeletionError;
use crate::limits::FUTURE_MS_MAX;
use crate::store::{DeletionId, NotAnId};
use axum::Extension;
use axum::extract::{Path, State};
use axum::response::Response;
use http::{HeaderValue, StatusCode, header};
use serde_json::json as value;
use std::sync::Arc;

/// Says what `before` takes.
const BEFORE_HINT: &str =
    "say which samples go: before=2026-11-29T20:00:00Z deletes all whose time is earlier";

const SERVICE_HINT: &str = "name one service; without `service` the samples of all services go";

pub(super) async fn delete(
    State(app): State<Arc<App>>,
    Path(name): Path<String>,
    peer: Option<Extension<PeerAddress>>,
    pairs: Pairs,
) -> Result<Response, ApiError> {
    let params = Params::new(pairs.0, &["before", "service"])?;
    let project = project(&app, &name)?;
    let before_ms = before(&params)?;
    let service = match params.text("service") {
        Some(_) => {
            let name = params.name("service", "");
            Some(Arc::from(name.map_err(|error| error.hint(SERVICE_HINT))?))
        }
        None => None,
    };
    let actor = peer.map_or_else(|| "unknown".to_owned(), |Extension(peer)| peer.0.to_string());
    let id = app.deletions.request((project, service), before_ms, actor).await.map_err(error)?;
    let mut response = json(&value!({"deletion_id": id.to_string()}))?;
    *response.status_mut() = StatusCode::ACCEPTED;
    let place = format!("/api/v1/projects/{name}/deletions/{id}");
    if let Ok(place) = HeaderValue::from_str(&place) {
        response.headers_mut().insert(header::LOCATION, place);
    }
    Ok(response)
}

/// The time before which samples go. What deletes is read strictly: no default, no `now`, no bare number.
fn before(params: &Params) -> Result<i64, ApiError> {
    let Some(text) = params.text("before") else {
        return Err(ApiError::parameter("`before` is missing").hint(BEFORE_HINT));
    };
    let wrong = |detail: &str| {
        let shown: String = text.chars().take(64).collect();
        Err(ApiError::parameter(format!("`before`: `{shown}` {detail}")).hint(BEFORE_HINT))
    };
    let Ok(time) = text.parse::<jiff::Timestamp>() else {
        return wrong("is not an RFC 3339 time");
    };
    let before_ms = time.as_millisecond();
    if before_ms > params.now_ms.saturating_add(FUTURE_MS_MAX) {
        return wrong("is later than any sample can be");
    }
    // A time within a millisecond: what is stored has whole ones, and none of an earlier time may stay.
    Ok(before_ms + i64::from(time.subsec_nanosecond() % 1_000_000 > 0))
}

pub(super) async fn deletion(
    State(app): State<Arc<App>>,
    Path((name, id)): Path<(String, String)>,
    pairs: Pairs,
) -> Result<Response, ApiError> {
    Params::new(pairs.0, &[])?;
    let project = project(&app, &name)?;
    let known = match id.parse::<DeletionId>() {
        Ok(id) => app.deletions.record(project, id).await.map_err(error)?,
        Err(NotAnId) => None,
    };
    let Some(record) = known else {
        let shown: String = id.chars().take(64).collect();
        let text = format!("there is no deletion `{shown}` in this project");
        return Err(ApiError::new(StatusCode::NOT_FOUND, "no_deletion", text)
            .hint("the id is the `deletion_id` that DELETE …/profiles answered"));
    };
    json(&value!({
        "deletion_id": record.deletion.id.to_string(),
        "project": &*record.deletion.project.0,
        "service": record.deletion.service.as_deref(),
        "before": record.deletion.before_ms,
        "state": record.state.name(),
        "requested": record.requested_ms,
        "hidden": record.hidden_ms,
        "finished": record.finished_ms,
        // Which file it was is for the log.
        "error": record.error.map(|_| "samples could not be removed from the disk; the collector's log says more"),
    }))
}

fn error(error: DeletionError) -> ApiError {
    match error {
        DeletionError::Store(error) => error.into(),
        DeletionError::Meta(_) | DeletionError::Stopped(_) => {
            tracing::error!(%error, "a deletion failed");
            let text = "the deletion could not be noted; the collector's log says more";
            ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "meta", text)
                .hint("nothing is deleted unless GET …/deletions/{id} says so; try again in a few seconds")
        }
    }
}
