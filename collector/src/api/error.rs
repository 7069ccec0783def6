//! Errors of the API: a status, a code that programs can rely on, a message, and what to do about it. The
//! middleware in [`super::guard`] writes the body, because only it knows the request's id.

use crate::store::StoreError;
use axum::response::{IntoResponse, Response};
use http::StatusCode;

/// An error that a client sees.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    /// HTTP status.
    pub status: StatusCode,
    /// Stable, `snake_case`.
    pub code: &'static str,
    /// One sentence.
    pub message: String,
    /// What to do; may be empty.
    pub hint: String,
}

impl ApiError {
    /// An error without a hint.
    pub fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self { status, code, message: message.into(), hint: String::new() }
    }

    /// A parameter that is wrong.
    pub fn parameter(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "bad_parameter", message)
    }

    /// A fault of the collector.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", message)
    }

    /// Too much at once; answered with `Retry-After`.
    pub fn busy(message: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "busy", message)
            .hint("try again in a few seconds")
    }

    /// A project that does not exist.
    #[must_use]
    pub fn no_project(name: &str) -> Self {
        let shown: String = name.chars().take(100).collect();
        Self::new(StatusCode::NOT_FOUND, "no_project", format!("there is no project `{shown}`"))
            .hint("the project of a local collector is `default`")
    }

    /// Adds a hint.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = hint.into();
        self
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = self.status.into_response();
        response.extensions_mut().insert(self);
        response
    }
}

impl From<StoreError> for ApiError {
    fn from(error: StoreError) -> Self {
        let message = error.to_string();
        match error {
            StoreError::Busy(_) | StoreError::Abandoned => {
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "busy", message)
                    .hint("try again in a few seconds")
            }
            StoreError::Limit { .. } => {
                Self::new(StatusCode::UNPROCESSABLE_ENTITY, "limit", message)
                    .hint("choose a shorter range or a narrower filter")
            }
            StoreError::Invalid(_) => Self::new(StatusCode::BAD_REQUEST, "invalid", message),
            StoreError::Overflow(_) => {
                Self::new(StatusCode::UNPROCESSABLE_ENTITY, "overflow", message)
                    .hint("choose a shorter range or a narrower filter")
            }
            // What failed where is for the log; paths of the server are none of a client's business.
            StoreError::Io { .. } | StoreError::Damaged { .. } => {
                tracing::error!("query failed: {message}");
                let text = "the store failed; the collector's log says more";
                Self::new(StatusCode::INTERNAL_SERVER_ERROR, "store", text)
            }
        }
    }
}
