//! The HTTP side of the metrics: `GET /metrics` on a loopback address, nothing else.

use super::Metrics;
use crate::limits;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HOST};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use prometheus_client::registry::Registry;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

/// Why metrics cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// Whoever reads the metrics learns what runs here: only this host may.
    #[error("metrics are served on loopback only, not on {address}")]
    NotLoopback {
        /// The address that was asked for.
        address: SocketAddr,
    },
    /// The address cannot be taken.
    #[error("cannot listen for metrics on {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: std::io::Error,
    },
}

/// A listener that is open.
#[derive(Debug)]
pub struct MetricsServer {
    listener: TcpListener,
    metrics: Metrics,
}

impl MetricsServer {
    /// Listens on `address`.
    ///
    /// # Errors
    /// See [`ServeError`].
    pub async fn bind(address: SocketAddr, metrics: Metrics) -> Result<Self, ServeError> {
        if !address.ip().is_loopback() {
            return Err(ServeError::NotLoopback { address });
        }
        let listener = TcpListener::bind(address).await;
        let listener = listener.map_err(|source| ServeError::Listen { address, source })?;
        Ok(Self { listener, metrics })
    }

    /// The address, with the port that the kernel chose for port 0.
    ///
    /// # Errors
    /// If the kernel does not tell.
    pub fn address(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until the task is dropped.
    pub async fn serve(self) {
        let registry = Arc::new(self.metrics.registry());
        let slots = Arc::new(Semaphore::new(limits::METRICS_CONNECTIONS_MAX));
        loop {
            let Ok(slot) = Arc::clone(&slots).acquire_owned().await else { return };
            let stream = match self.listener.accept().await {
                Ok((stream, _)) => stream,
                Err(error) => {
                    // Out of descriptors, or a connection that was reset before it was accepted.
                    tracing::debug!(%error, "accepting a metrics connection failed");
                    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
                    continue;
                }
            };
            let (registry, metrics) = (Arc::clone(&registry), self.metrics.clone());
            tokio::spawn(async move {
                let service = service_fn(|request| {
                    let answer = answer(&request, &registry, &metrics);
                    async move { Ok::<_, std::convert::Infallible>(answer) }
                });
                let connection = hyper::server::conn::http1::Builder::new()
                    .timer(TokioTimer::new())
                    .header_read_timeout(limits::METRICS_HEADER_WAIT_MAX)
                    .serve_connection(TokioIo::new(stream), service);
                if let Err(error) = connection.await {
                    tracing::debug!(%error, "a metrics connection failed");
                }
                drop(slot);
            });
        }
    }
}

fn answer(
    request: &Request<Incoming>,
    registry: &Registry,
    metrics: &Metrics,
) -> Response<Full<Bytes>> {
    let text = |status, text: &'static str| {
        let mut response = Response::new(Full::new(Bytes::from_static(text.as_bytes())));
        *response.status_mut() = status;
        response
    };
    if !host_is_loopback(request) {
        return text(
            StatusCode::FORBIDDEN,
            "ask for a loopback address by its number or localhost\n",
        );
    }
    match (request.method(), request.uri().path()) {
        (&Method::GET, "/metrics") => {}
        (&Method::GET, _) => return text(StatusCode::NOT_FOUND, "metrics are at /metrics\n"),
        _ => return text(StatusCode::METHOD_NOT_ALLOWED, "only GET\n"),
    }
    metrics.read_process();
    let mut body = String::new();
    if prometheus_client::encoding::text::encode(&mut body, registry).is_err() {
        return text(StatusCode::INTERNAL_SERVER_ERROR, "encoding failed\n");
    }
    let mut response = Response::new(Full::new(Bytes::from(body)));
    let openmetrics = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    response
        .headers_mut()
        .insert(CONTENT_TYPE, hyper::header::HeaderValue::from_static(openmetrics));
    response
}

/// A page of another site may have its name point to 127.0.0.1 (DNS rebinding); its requests carry that
/// name.
fn host_is_loopback(request: &Request<Incoming>) -> bool {
    let Some(host) = request.headers().get(HOST).and_then(|host| host.to_str().ok()) else {
        return false;
    };
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let name = name.trim_start_matches('[').trim_end_matches(']');
    name == "localhost" || name.parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback())
}
