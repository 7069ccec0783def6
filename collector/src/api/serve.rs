//! Starts and stops a whole collector: opens the store, binds the ports, serves them, flushes at the end.

use super::listen::{self, Port};
use super::{App, main_router, otlp_grpc_router, otlp_http_router};
use crate::deletion::{DeletionError, Deletions};
use crate::ingest::receiver::Receiver;
use crate::limits::PORTS_TRIED_MAX;
use crate::meta::{Meta, MetaError};
use crate::metrics::Metrics;
use crate::profile::ProjectName;
use crate::store::Retention;
use crate::store::embedded::{Clock, EmbeddedOptions, EmbeddedStore};
use crate::store::{ProfileStore, StoreError};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// The one project there is.
pub const PROJECT: &str = "default";

/// What to serve, and where.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    /// Where profiles are kept.
    pub data_dir: PathBuf,
    /// Most bytes there; the store's own default if absent.
    pub data_bytes_max: Option<u64>,
    /// Older profiles are refused, or removed by whole days.
    pub retention: Retention,
    /// Page, API, OTLP/HTTP.
    pub listen: SocketAddr,
    /// OTLP/gRPC.
    pub otlp_grpc: SocketAddr,
    /// OTLP/HTTP.
    pub otlp_http: SocketAddr,
    /// Other than loopback addresses are allowed.
    pub insecure: bool,
    /// A taken port is replaced by a free one.
    pub other_ports: bool,
    /// Names that browsers may use.
    pub allowed_hosts: Vec<String>,
}

/// Why a collector does not start or stop well.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// Everybody who reaches the port could read.
    #[error(
        "{0} is not a loopback address, and there are no keys yet: whoever reaches it reads all profiles; \
         listen on 127.0.0.1, or add --insecure if the network is trusted"
    )]
    Insecure(SocketAddr),
    /// A port cannot be bound.
    #[error("cannot listen on {address} for {name}: {source}; {hint}")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// What for.
        name: &'static str,
        /// The cause.
        source: std::io::Error,
        /// What to do.
        hint: &'static str,
    },
    /// Opening the store stopped without an answer.
    #[error("opening the store stopped: {0}")]
    Opening(String),
    /// The store cannot be opened or flushed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The database of what else is kept cannot be opened.
    #[error(transparent)]
    Meta(#[from] MetaError),
    /// Deletions of before a crash cannot be read.
    #[error("deletions that were asked for earlier cannot be read: {0}")]
    Deletions(#[from] DeletionError),
}

/// Where a running collector listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addresses {
    /// Page, API, OTLP/HTTP.
    pub main: SocketAddr,
    /// OTLP/gRPC.
    pub otlp_grpc: SocketAddr,
    /// OTLP/HTTP.
    pub otlp_http: SocketAddr,
}

/// A running collector.
pub struct Collector {
    /// Where it listens.
    pub addresses: Addresses,
    store: Arc<dyn ProfileStore>,
    stop: watch::Sender<bool>,
    /// The ports, and what removes deleted samples.
    tasks: JoinSet<()>,
}

impl std::fmt::Debug for Collector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Collector").field("addresses", &self.addresses).finish_non_exhaustive()
    }
}

/// The bound ports.
struct Bound {
    main: TcpListener,
    otlp_grpc: TcpListener,
    otlp_http: TcpListener,
    addresses: Addresses,
}

impl Bound {
    async fn new(options: &ServeOptions) -> Result<Self, ServeError> {
        let (main, main_at) = bind("page and API", options.listen, options).await?;
        let (otlp_grpc, otlp_grpc_at) = bind("OTLP/gRPC", options.otlp_grpc, options).await?;
        let (otlp_http, otlp_http_at) = bind("OTLP/HTTP", options.otlp_http, options).await?;
        let addresses =
            Addresses { main: main_at, otlp_grpc: otlp_grpc_at, otlp_http: otlp_http_at };
        Ok(Self { main, otlp_grpc, otlp_http, addresses })
    }
}

impl Collector {
    /// Binds the ports, opens the store, serves it. Requests that come while the store opens wait.
    ///
    /// # Errors
    /// The store cannot be opened or a port cannot be bound.
    pub async fn start(options: ServeOptions) -> Result<Self, ServeError> {
        let bound = Bound::new(&options).await?;
        let embedded = EmbeddedOptions {
            data_dir: options.data_dir.clone(),
            data_bytes_max: options.data_bytes_max,
            retention: options.retention.clone(),
            clock: Clock::system(),
        };
        // Replaying the log reads files. The store comes first: it has the lock of the folder.
        let open = move || {
            let dir = embedded.data_dir.clone();
            let store = EmbeddedStore::open(embedded)?;
            Ok::<_, ServeError>((store, Meta::open(&dir)?))
        };
        let opened = tokio::task::spawn_blocking(open).await;
        let (store, meta) = opened.map_err(|error| ServeError::Opening(error.to_string()))??;
        Self::serve(bound, options, Arc::new(store), meta).await
    }

    /// Serves a store. What else is to be kept ends with the process.
    ///
    /// # Errors
    /// A port cannot be bound.
    pub async fn with_store(
        options: ServeOptions,
        store: Arc<dyn ProfileStore>,
    ) -> Result<Self, ServeError> {
        let bound = Bound::new(&options).await?;
        Self::serve(bound, options, store, Meta::in_memory()?).await
    }

    async fn serve(
        bound: Bound,
        options: ServeOptions,
        store: Arc<dyn ProfileStore>,
        meta: Meta,
    ) -> Result<Self, ServeError> {
        let deletions = Deletions::new(meta, Arc::clone(&store));
        deletions.resume().await?;
        let project = ProjectName(Arc::from(PROJECT));
        let metrics = Arc::new(Metrics::default());
        let receiver = Receiver::new(
            Arc::clone(&store),
            Arc::clone(&metrics),
            project.clone(),
            options.retention,
        );
        let app = App::new(
            (Arc::clone(&store), Arc::clone(&deletions)),
            Arc::clone(&metrics),
            project,
            options.allowed_hosts,
        );
        let (stop, stopped) = watch::channel(false);
        let mut tasks = JoinSet::new();
        let routers = [
            ("main", bound.main, main_router(&Arc::new(app), receiver.clone())),
            ("otlp_grpc", bound.otlp_grpc, otlp_grpc_router(receiver.clone())),
            ("otlp_http", bound.otlp_http, otlp_http_router(receiver)),
        ];
        for (name, listener, router) in routers {
            let port = Port { name, listener, router };
            tasks.spawn(listen::serve(port, Arc::clone(&metrics), stopped.clone()));
        }
        tasks.spawn(deletions.run(stopped));
        Ok(Self { addresses: bound.addresses, store, stop, tasks })
    }

    /// Lets open requests finish, then writes everything out.
    ///
    /// # Errors
    /// The store cannot be flushed; what was acknowledged is durable all the same.
    pub async fn stop(mut self) -> Result<(), ServeError> {
        self.stop.send_replace(true);
        while let Some(task) = self.tasks.join_next().await {
            if let Err(error) = task {
                tracing::error!("a port or a deletion ended badly: {error}");
            }
        }
        Ok(self.store.flush().await?)
    }
}

async fn bind(
    name: &'static str,
    wanted: SocketAddr,
    options: &ServeOptions,
) -> Result<(TcpListener, SocketAddr), ServeError> {
    if !wanted.ip().is_loopback() && !options.insecure {
        return Err(ServeError::Insecure(wanted));
    }
    let mut address = wanted;
    let mut tried = 0;
    loop {
        let error = match TcpListener::bind(address).await {
            Ok(listener) => {
                let bound = listener.local_addr().unwrap_or(address);
                if bound.port() != wanted.port() && wanted.port() != 0 {
                    tracing::info!("port {} is taken; {name} listens on {bound}", wanted.port());
                }
                return Ok((listener, bound));
            }
            Err(error) => error,
        };
        let taken = error.kind() == std::io::ErrorKind::AddrInUse;
        if !taken || !options.other_ports || tried > PORTS_TRIED_MAX {
            let hint = if taken {
                "something else listens there: stop it, or choose another port"
            } else {
                "choose an address of this host and a port that you may use"
            };
            return Err(ServeError::Bind { address: wanted, name, source: error, hint });
        }
        tried += 1;
        // After the neighbours, whatever the system has free.
        let neighbour = wanted.port().checked_add(tried).filter(|_| tried < PORTS_TRIED_MAX);
        address.set_port(neighbour.unwrap_or(0));
    }
}
