//! The HTTP API, the page and the ports that serve them. The only place that writes answers as JSON;
//! `API.md` describes them.

mod columns;
mod deletions;
pub mod error;
mod flame_graph;
pub mod guard;
pub mod listen;
mod locks;
mod losses;
mod opening;
mod page;
mod params;
mod pprof;
mod routes;
pub mod selector;
pub mod serve;
pub mod time;

#[cfg(test)]
mod tests;
#[cfg(test)]
mod waits_tests;

use crate::deletion::Deletions;
use crate::ingest::{self, receiver::Receiver};
use crate::limits;
use crate::metrics::Metrics;
use crate::profile::ProjectName;
use crate::store::ProfileStore;
use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::middleware::from_fn_with_state;
use axum::routing::{delete, get, post};
use error::ApiError;
use http::StatusCode;
use std::sync::Arc;
use tokio::sync::Semaphore;

/// What the routes share.
pub struct App {
    /// The engine.
    pub store: Arc<dyn ProfileStore>,
    /// Takes deletions.
    pub deletions: Arc<Deletions>,
    /// Counters.
    pub metrics: Arc<Metrics>,
    /// The one project there is.
    pub project: ProjectName,
    /// Names that this collector may be called by, lower case, besides those of the loopback.
    pub allowed_hosts: Vec<String>,
    /// One permit per query that may run.
    queries: Semaphore,
}

impl std::fmt::Debug for App {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("App").field("project", &self.project).finish_non_exhaustive()
    }
}

impl App {
    /// Puts the parts together.
    #[must_use]
    pub fn new(
        (store, deletions): (Arc<dyn ProfileStore>, Arc<Deletions>),
        metrics: Arc<Metrics>,
        project: ProjectName,
        allowed_hosts: Vec<String>,
    ) -> Self {
        let allowed_hosts =
            allowed_hosts.into_iter().map(|host| host.to_ascii_lowercase()).collect();
        let queries = Semaphore::new(limits::QUERIES_MAX);
        Self { store, deletions, metrics, project, allowed_hosts, queries }
    }
}

/// Every route of the main port, as metrics name them.
const ROUTES: [&str; 24] = [
    "/api/v1/projects/{project}/meta",
    "/api/v1/projects/{project}/services",
    "/api/v1/projects/{project}/labels",
    "/api/v1/projects/{project}/labels/{name}/values",
    "/api/v1/projects/{project}/series",
    "/api/v1/projects/{project}/flamegraph",
    "/api/v1/projects/{project}/functions",
    "/api/v1/projects/{project}/locks",
    "/api/v1/projects/{project}/profiles",
    "/api/v1/projects/{project}/deletions/{id}",
    "/v1/projects/{project}/profiles",
    "/v1/projects/{project}/deletions/{id}",
    "/healthz",
    "/readyz",
    "/metrics",
    "/",
    "/explore",
    "/locks",
    "/app.js",
    "/app.css",
    "/favicon.svg",
    ingest::http::PATH,
    pprof::PATH,
    pprof::PROJECT_PATH,
];

/// The main port: API, page, OTLP/HTTP, pprof.
pub fn main_router(app: &Arc<App>, receiver: Receiver) -> Router {
    let project = Router::new()
        .route("/meta", get(routes::meta))
        .route("/services", get(routes::services))
        .route("/labels", get(routes::labels))
        .route("/labels/{name}/values", get(routes::label_values))
        .route("/series", get(routes::series))
        .route("/flamegraph", get(flame_graph::flame_graph))
        .route("/functions", get(routes::functions))
        .route("/locks", get(locks::locks));
    let deletions = Router::new()
        .route("/profiles", delete(deletions::delete))
        .route("/deletions/{id}", get(deletions::deletion));
    let guarded = Router::new()
        .nest("/v1/projects/{project}", deletions.clone())
        .nest("/api/v1/projects/{project}", project.merge(deletions))
        .route("/metrics", get(routes::metrics))
        .route("/readyz", get(routes::ready))
        .merge(page::router())
        .with_state(Arc::clone(app))
        .merge(otlp_http_routes(receiver.clone()))
        .merge(pprof_routes(receiver))
        .fallback(async || {
            ApiError::new(StatusCode::NOT_FOUND, "not_found", "there is nothing at this path")
        })
        .method_not_allowed_fallback(async || {
            ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "method", "this path has no such method")
        })
        .layer(from_fn_with_state(Arc::clone(app), guard::guard));
    // Probes of a container platform call by whatever name; the answer says nothing.
    Router::new().route("/healthz", get(async || "ok\n")).merge(guarded)
}

fn otlp_http_routes(receiver: Receiver) -> Router {
    Router::new()
        .route(ingest::http::PATH, post(ingest::http::export))
        .layer(DefaultBodyLimit::disable()) // the receiver has its own
        .with_state(receiver)
}

fn pprof_routes(receiver: Receiver) -> Router {
    Router::new()
        .route(pprof::PATH, post(pprof::push))
        .route(pprof::PROJECT_PATH, post(pprof::push_to_project))
        .layer(DefaultBodyLimit::disable()) // the receiver has its own
        .with_state(receiver)
}

/// The OTLP/HTTP port.
pub fn otlp_http_router(receiver: Receiver) -> Router {
    otlp_http_routes(receiver)
}

/// The OTLP/gRPC port.
pub fn otlp_grpc_router(receiver: Receiver) -> Router {
    Router::new()
        .route(ingest::grpc::PATH, post(ingest::grpc::export))
        .fallback(ingest::grpc::unimplemented)
        .layer(DefaultBodyLimit::disable())
        .with_state(receiver)
}
