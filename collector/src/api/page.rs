//! The page.
use super::App;
use axum::Router;
use axum::response::Html;
use axum::routing::get;
use std::sync::Arc;

pub(super) fn router() -> Router<Arc<App>> {
    let page = get(async || {
        Html(
            "<!doctype html><title>Vesta</title><p>This build has no page; the API is at /api/v1.\n",
        )
    });
    Router::new().route("/", page.clone()).route("/explore", page)
}
