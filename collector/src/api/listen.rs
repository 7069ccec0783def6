//! Accepts connections of one port and serves them, HTTP/1.1 and HTTP/2 without TLS, within limits on
//! connections, headers and streams, until told to stop.

use super::guard::{LocalAddress, PeerAddress};
use super::opening::Opening;
use crate::limits;
use crate::metrics::Metrics;
use axum::Router;
use axum::body::Body;
use http::Request;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::GracefulShutdown;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tower::ServiceExt as _;

/// One port.
#[derive(Debug)]
pub struct Port {
    /// Name in metrics and logs.
    pub name: &'static str,
    /// Bound.
    pub listener: TcpListener,
    /// What it serves.
    pub router: Router,
}

/// Pause after a failed accept: file descriptors are short, and come back only with time.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

fn builder() -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(Duration::from_millis(limits::HEADER_READ_MS_MAX))
        .max_buf_size(64 << 10);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(limits::HTTP2_STREAMS_MAX)
        .max_header_list_size(u32::try_from(limits::HEADER_BYTES_MAX).unwrap_or(u32::MAX))
        .keep_alive_interval(Duration::from_millis(limits::HTTP2_PING_MS))
        .keep_alive_timeout(Duration::from_millis(limits::HTTP2_PING_WAIT_MS));
    builder
}

/// Serves a port until `stop` is true, then lets open requests finish.
pub async fn serve(port: Port, metrics: Arc<Metrics>, mut stop: watch::Receiver<bool>) {
    let Port { name, listener, router } = port;
    let slots = Arc::new(Semaphore::new(limits::CONNECTIONS_MAX));
    let graceful = GracefulShutdown::new();
    let builder = builder();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stop.wait_for(|&stop| stop) => break,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!("{name}: cannot accept a connection: {error}");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let Ok(slot) = Arc::clone(&slots).try_acquire_owned() else {
            metrics.connection_refused(name);
            continue;
        };
        connect(&builder, stream, router.clone(), &graceful, Open::new(name, &metrics, slot));
    }
    drop(listener);
    let time = Duration::from_millis(limits::SHUTDOWN_MS_MAX);
    if tokio::time::timeout(time, graceful.shutdown()).await.is_err() {
        tracing::warn!(
            "{name}: closed connections that were still open after {} s",
            time.as_secs()
        );
    }
}

/// An open connection: counted, and one slot.
struct Open {
    name: &'static str,
    metrics: Arc<Metrics>,
    _slot: OwnedSemaphorePermit,
}

impl Open {
    fn new(name: &'static str, metrics: &Arc<Metrics>, slot: OwnedSemaphorePermit) -> Self {
        metrics.connection(name, 1);
        Self { name, metrics: Arc::clone(metrics), _slot: slot }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.metrics.connection(self.name, -1);
    }
}

fn connect(
    builder: &Builder<TokioExecutor>,
    stream: TcpStream,
    router: Router,
    graceful: &GracefulShutdown,
    open: Open,
) {
    let local = stream.local_addr().ok().map(LocalAddress);
    let peer = stream.peer_addr().ok().map(PeerAddress);
    // Small answers would else wait for the delayed acknowledgement of the peer.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!("cannot set TCP_NODELAY: {error}");
    }
    let service = hyper::service::service_fn(move |mut request: Request<hyper::body::Incoming>| {
        if let Some(local) = local {
            request.extensions_mut().insert(local);
        }
        if let Some(peer) = peer {
            request.extensions_mut().insert(peer);
        }
        router.clone().oneshot(request.map(Body::new))
    });
    // hyper's timers begin when it knows the version; until then a silent peer would hold its slot.
    let opening = Opening::new(stream, Duration::from_millis(limits::HEADER_READ_MS_MAX));
    let connection = builder.serve_connection(TokioIo::new(opening), service);
    let connection = graceful.watch(connection.into_owned());
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!("{}: connection ended: {error}", open.name);
        }
        drop(open);
    });
}
