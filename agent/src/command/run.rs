//! `run`: samples the host and sends windows to a collector until it is told to stop.

use super::sampling::{self, Scope};
use agent::export::Exporter;
use agent::export::otlp::{Encoder, EncoderSettings, HostIdentity};
use agent::export::queue::{Queue, QueueLimits};
use agent::export::sender::{Backoff, Client, Sender};
use agent::limits;
use agent::metrics::{Metrics, MetricsServer};
use agent::options::{MetricsAddress, RunOptions};
use anyhow::Context as _;
use std::process::ExitCode;
use std::sync::Arc;
use tokio::signal::unix::{SignalKind, signal};

/// Runs until Ctrl-C, SIGTERM or a failure.
pub(crate) fn run(options: &RunOptions) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(limits::RUNTIME_THREADS)
        .thread_name("export")
        .enable_all()
        .build()
        .context("starting the runtime")?;
    runtime.block_on(run_until_told(options))
}

async fn run_until_told(options: &RunOptions) -> anyhow::Result<ExitCode> {
    let metrics = Metrics::default();
    let client = Client::new(&options.collector, options.compression)?;
    let mut interrupt = signal(SignalKind::interrupt()).context("listening for Ctrl-C")?;
    let mut terminate = signal(SignalKind::terminate()).context("listening for SIGTERM")?;
    serve_metrics(options.metrics, &metrics).await?;
    let host = HostIdentity::read(options.host_name.clone());
    let name = host.name.clone();
    let request_bytes_max = limits::EXPORT_REQUEST_BYTES_MAX;
    let encoder = Encoder::new(EncoderSettings {
        host,
        source_lines: options.source_lines,
        request_bytes_max,
    })
    .context("reading random bytes for this start's identity")?;
    let queue = Arc::new(Queue::new(QueueLimits::default(), metrics.export.clone()));
    let exported = metrics.export.clone();
    let sender = Sender::new(client, Arc::clone(&queue), exported, Backoff::default());
    let (exporter, export) = Exporter::start(encoder, queue, sender, metrics.clone());
    let (ended, end) = tokio::sync::oneshot::channel::<()>();
    let scope = Scope { off_cpu: !options.no_off_cpu, ..Scope::default() };
    let sampling =
        sampling::start(&options.sampling, scope, Box::new(exporter), move || drop(ended))?;
    metrics.watch(sampling.control.clone(), Arc::clone(&sampling.debug_info_put_off));
    tracing::info!(host = name, collector = options.collector, "starting");
    tokio::select! {
        _ = interrupt.recv() => tracing::info!("Ctrl-C: sending the last window"),
        _ = terminate.recv() => tracing::info!("SIGTERM: sending the last window"),
        _ = end => {} // The engine has returned; `finish` says why.
    }
    let finished = tokio::task::spawn_blocking(move || sampling.finish()).await;
    let given_up = export.finish(limits::EXPORT_FINISH_WAIT_MAX).await;
    finished.context("the engine")??;
    if given_up > 0 {
        tracing::warn!(samples = given_up, "the collector did not take the last samples in time");
    }
    Ok(ExitCode::SUCCESS)
}

async fn serve_metrics(address: MetricsAddress, metrics: &Metrics) -> anyhow::Result<()> {
    let MetricsAddress::On(address) = address else { return Ok(()) };
    let server = MetricsServer::bind(address, metrics.clone()).await?;
    tracing::info!("metrics on http://{}/metrics", server.address()?);
    drop(tokio::spawn(server.serve()));
    Ok(())
}
