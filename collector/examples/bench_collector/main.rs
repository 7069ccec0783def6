//! Measures the collector from OTLP bytes to durable samples, and merges over what it stored:
//! `cargo run --release -p collector --example bench_collector -- --json`. The set is generated from a
//! stated seed; `generate` says how. One line a figure: `{"figure","value","unit"}`.

mod generate;
mod otlp;

use anyhow::{Context as _, Result, ensure};
use clap::Parser;
use collector::ingest::compression::Coding;
use collector::ingest::receiver::{HeldBody, Receiver};
use collector::metrics::Metrics;
use collector::profile::ProjectName;
use collector::query::{MatchOp, Matcher, MergeQuery, Selection, TimeRange, TimelineQuery};
use collector::store::ProfileStore;
use collector::store::embedded::{Clock, EmbeddedOptions, EmbeddedStore};
use generate::{Set, Shape};
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Requests that are under way at once, as of eight senders.
const SENDERS: usize = 8;
/// Requests generated before their sending is timed.
const BLOCK: usize = 64;
/// Runs of a query; the best counts.
const RUNS: usize = 7;
const HOUR_MS: i64 = 3_600_000;

/// Measures ingest and queries of the collector.
#[derive(Debug, Parser)]
struct Options {
    /// One JSON object a line instead of a table.
    #[arg(long)]
    json: bool,
    /// Samples in the set.
    #[arg(long, default_value_t = 4_000_000)]
    samples: usize,
    /// Services.
    #[arg(long, default_value_t = 20)]
    services: usize,
    /// Distinct stacks, roughly.
    #[arg(long, default_value_t = 100_000)]
    stacks: usize,
    /// Hosts.
    #[arg(long, default_value_t = 10)]
    hosts: usize,
    /// Whole hours before now that the samples spread over.
    #[arg(long, default_value_t = 4)]
    hours: u32,
    /// Seed of the set.
    #[arg(long, default_value_t = 42)]
    seed: u64,
    /// An empty folder for the data; a temporary one if absent.
    #[arg(long)]
    dir: Option<PathBuf>,
}

/// Prints figures.
struct Report {
    json: bool,
}

impl Report {
    fn say(&self, figure: &str, value: f64, unit: &str) -> Result<()> {
        let mut out = std::io::stdout().lock();
        if self.json {
            let line = serde_json::json!({ "figure": figure, "value": value, "unit": unit });
            writeln!(out, "{line}")?;
        } else {
            writeln!(out, "{figure:<34} {value:>14.3} {unit}")?;
        }
        Ok(())
    }
}

fn main() -> Result<()> {
    let options = Options::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(run(&options))
}

async fn run(options: &Options) -> Result<()> {
    let temporary = std::env::temp_dir().join(format!("vesta-bench-{}", std::process::id()));
    let dir = options.dir.clone().unwrap_or_else(|| temporary.clone());
    let result = measure(options, &dir).await;
    if options.dir.is_none() {
        std::fs::remove_dir_all(&temporary).context("removing the data of the measurement")?;
    }
    result
}

async fn measure(options: &Options, dir: &std::path::Path) -> Result<()> {
    let report = Report { json: options.json };
    let now_ms = Clock::system().now_ms();
    let end_ms = now_ms - now_ms.rem_euclid(HOUR_MS);
    let shape = Shape {
        samples: options.samples,
        services: options.services,
        stacks: options.stacks,
        hosts: options.hosts,
        start_ms: end_ms - i64::from(options.hours) * HOUR_MS,
        end_ms,
    };
    let mut set = Set::new(shape, options.seed);
    report.say("set_samples", float(options.samples), "samples")?;
    report.say("set_stacks", float(set.stacks()), "stacks")?;
    let open = || {
        EmbeddedStore::open(EmbeddedOptions {
            data_dir: dir.to_owned(),
            data_bytes_max: Some(u64::MAX),
            retention_ms: None,
            clock: Clock::system(),
        })
    };
    let store: Arc<dyn ProfileStore> = Arc::new(open()?);
    ingest(&store, &mut set, &report).await?;
    let stored = store.stats().await?.samples_stored;
    ensure!(stored == options.samples as u64, "{stored} samples stored of {}", options.samples);
    let started = Instant::now();
    store.flush().await?;
    let seconds = started.elapsed().as_secs_f64();
    let stats = store.stats().await?;
    report.say("flush_at_the_end", seconds * 1e3, "ms")?;
    report.say("bytes_per_sample", per(stats.disk_bytes, stored), "bytes")?;
    drop(store);
    let started = Instant::now();
    let store = open()?;
    report.say("open", started.elapsed().as_secs_f64() * 1e3, "ms")?;
    queries(&store, shape, &set, &report).await
}

/// Sends the set as OTLP requests and times from bytes to acknowledgement.
async fn ingest(store: &Arc<dyn ProfileStore>, set: &mut Set, report: &Report) -> Result<()> {
    let project = ProjectName("default".into());
    let retention_ms = 30 * 24 * HOUR_MS;
    let metrics = Arc::new(Metrics::default());
    let receiver = Receiver::new(Arc::clone(store), metrics, project, retention_ms);
    let (mut wall, mut samples, mut bytes, mut requests) = (Duration::ZERO, 0, 0, 0_usize);
    let mut waits = Vec::new();
    loop {
        let mut block = Vec::new();
        while block.len() < BLOCK
            && let Some(window) = set.next_window()
        {
            samples += window.samples();
            block.push(otlp::encode(set, &window));
        }
        if block.is_empty() {
            break;
        }
        requests += block.len();
        bytes += block.iter().map(bytes::Bytes::len).sum::<usize>();
        let started = Instant::now();
        waits.append(&mut send(&receiver, block).await?);
        wall += started.elapsed();
    }
    waits.sort_unstable();
    let seconds = wall.as_secs_f64();
    report.say("otlp_to_durable_samples_per_s", float(samples) / seconds, "samples/s")?;
    report.say("otlp_to_durable_bytes_per_s", float(bytes) / seconds, "bytes/s")?;
    report.say("otlp_samples_per_request", float(samples) / float(requests), "samples")?;
    let p99 = waits[(waits.len() * 99 / 100).min(waits.len() - 1)];
    report.say("ack_p50", waits[waits.len() / 2].as_secs_f64() * 1e3, "ms")?;
    report.say("ack_p99", p99.as_secs_f64() * 1e3, "ms")
}

async fn send(receiver: &Receiver, block: Vec<bytes::Bytes>) -> Result<Vec<Duration>> {
    let queue = Arc::new(std::sync::Mutex::new(block));
    let mut senders = tokio::task::JoinSet::new();
    for _ in 0..SENDERS {
        let (queue, receiver) = (Arc::clone(&queue), receiver.clone());
        senders.spawn(async move {
            let mut waits = Vec::new();
            loop {
                let next = queue.lock().ok().and_then(|mut queue| queue.pop());
                let Some(bytes) = next else { break };
                let started = Instant::now();
                let body = receiver.read(http_body_util::Full::new(bytes), usize::MAX).await?;
                let body: HeldBody = body;
                let rejected = receiver.store(body, Coding::Identity).await?;
                ensure!(rejected.profiles == 0, "refused: {}", rejected.message());
                waits.push(started.elapsed());
            }
            Ok(waits)
        });
    }
    let mut waits = Vec::new();
    while let Some(sender) = senders.join_next().await {
        waits.append(&mut sender??);
    }
    Ok(waits)
}

async fn queries(store: &EmbeddedStore, shape: Shape, set: &Set, report: &Report) -> Result<()> {
    let all = TimeRange { from_ms: shape.start_ms, to_ms: shape.end_ms };
    let hour = TimeRange { from_ms: shape.end_ms - HOUR_MS, ..all };
    let half = TimeRange { from_ms: shape.end_ms - HOUR_MS / 2, ..all };
    let first = equal("service", set.service_name(0));
    let host = equal("host", "host-0");
    let merges = [
        ("merge_service_1h", hour, vec![first.clone()]),
        ("merge_service_30min", half, vec![first.clone()]),
        ("merge_service_all", all, vec![first.clone()]),
        ("merge_service_host_all", all, vec![first.clone(), host]),
        ("merge_fleet_1h", hour, vec![]),
        ("merge_fleet_all", all, vec![]),
    ];
    for (figure, range, matchers) in merges {
        let selection = selection(range, matchers);
        let query = MergeQuery { selection, nodes_max: 20_000, keep_self_top: 200, leaf: None };
        let (mut best, mut cold) = (f64::MAX, None);
        let mut samples = 0;
        for _ in 0..RUNS {
            let started = Instant::now();
            samples = store.merge(query.clone()).await?.samples;
            let took = started.elapsed().as_secs_f64() * 1e3;
            cold.get_or_insert(took);
            best = best.min(took);
        }
        report.say(figure, best, "ms")?;
        report.say(&format!("{figure}_first"), cold.unwrap_or(best), "ms")?;
        report.say(&format!("{figure}_samples"), precise(samples), "samples")?;
    }
    let query = TimelineQuery {
        selection: selection(all, vec![first.clone()]),
        by: Some("host".to_owned()),
        step_ms: 60_000,
        series_max: 8,
    };
    let timeline = best_of(async || store.timeline(query.clone()).await.map(drop)).await?;
    report.say("timeline_service_by_host_all", timeline, "ms")?;
    let wanted = selection(all, vec![first]);
    let functions = best_of(async || store.functions(wanted.clone(), 500).await.map(drop)).await?;
    report.say("functions_service_all", functions, "ms")?;
    let wanted = selection(all, vec![]);
    let services = best_of(async || store.services(wanted.clone(), 48).await.map(drop)).await?;
    report.say("services_all", services, "ms")
}

async fn best_of<E: std::error::Error + Send + Sync + 'static>(
    question: impl AsyncFn() -> Result<(), E>,
) -> Result<f64> {
    let mut best = f64::MAX;
    for _ in 0..RUNS {
        let started = Instant::now();
        question().await?;
        best = best.min(started.elapsed().as_secs_f64() * 1e3);
    }
    Ok(best)
}

fn selection(range: TimeRange, matchers: Vec<Matcher>) -> Selection {
    let (project, profile_type) = (ProjectName("default".into()), "cpu".to_owned());
    Selection { project, profile_type, range, matchers }
}

fn equal(name: &str, value: &str) -> Matcher {
    Matcher { name: name.to_owned(), op: MatchOp::Equal(value.to_owned()) }
}

fn per(part: u64, whole: u64) -> f64 {
    precise(part) / precise(whole.max(1))
}

fn float(count: usize) -> f64 {
    precise(count as u64)
}

#[expect(clippy::cast_precision_loss, reason = "figures are shown with a few digits")]
fn precise(count: u64) -> f64 {
    count as f64
}
