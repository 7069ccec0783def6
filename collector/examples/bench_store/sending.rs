//! A collector in a process of its own, and requests sent to it over gRPC on loopback, each acknowledged when it is
//! durable; then the collector is killed, and its folder must hold what was acknowledged.

use crate::data_set::{DataSet, PERIOD_NS};
use crate::figures::{Report, Times, progress};
use crate::folder::Folder;
use crate::otlp;
use crate::raw::Raw;
use anyhow::{Context as _, Result, bail, ensure};
use collector::profile::ProjectName;
use collector::query::{MergeQuery, Selection, TimeRange};
use collector::store::ProfileStore as _;
use http::uri::PathAndQuery;
use prost::Message as _;
use proto::otlp::collector::ExportProfilesServiceResponse;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;
use tonic::transport::{Channel, Endpoint};

/// Agents of the large fleet, and those whose load the goal for memory is about.
const AGENTS: usize = 1_000;
const FEW_AGENTS: usize = 100;
/// Ticks of a second in /proc, on every Linux that there is an agent for.
const USER_HZ: f64 = 100.0;
/// Requests under way at once.
const SENDERS: usize = 8;
/// Distinct dense requests; they are sent in turns.
const DENSE: usize = 24;
const PATH: &str = "/opentelemetry.proto.collector.profiles.v1development.ProfilesService/Export";

/// Sends, and measures what that takes.
pub(crate) struct Sending<'a> {
    pub(crate) runtime: &'a Runtime,
    pub(crate) set: &'a DataSet,
    pub(crate) folder: &'a Folder,
    pub(crate) report: Report,
}

/// A running collector.
struct Collector {
    child: Child,
    address: SocketAddr,
}

/// What was sent.
struct Load {
    /// By connection.
    requests: Vec<Arc<Vec<u8>>>,
    samples_each: usize,
    /// How often all of them are sent.
    rounds: usize,
}

/// How it went.
struct Sent {
    took: Duration,
    waits: Times,
    busy: u64,
    cpu_s: f64,
    rss_peak_bytes: u64,
}

impl Drop for Collector {
    fn drop(&mut self) {
        // It may have ended by itself, which whoever sends to it has found out.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

impl Sending<'_> {
    pub(crate) fn measure(&self, samples: usize) -> Result<()> {
        let now_ns = now_ns();
        progress("sending dense requests");
        let dense = |number| Arc::new(otlp::dense(self.set, number, now_ns));
        let requests: Vec<_> = (0..DENSE).map(dense).collect();
        let bytes: usize = requests.iter().map(|request| request.len()).sum();
        let rounds = samples.div_ceil(DENSE * otlp::DENSE_SAMPLES);
        let load = Load { requests, samples_each: otlp::DENSE_SAMPLES, rounds };
        let sent = self.send(&load)?;
        let rate = load.samples() / sent.took.as_secs_f64();
        self.report.say("otlp_to_durable_samples_per_s", rate, "samples/s")?;
        let each = crate::float(bytes) / crate::float(DENSE * otlp::DENSE_SAMPLES);
        self.report.say("otlp_bytes_per_sample", each, "bytes")?;
        self.report.say("otlp_ack_p99", sent.waits.quantile(99), "ms")?;

        progress("sending windows of agents");
        let window = |host| Arc::new(otlp::window(self.set, host, now_ns));
        let requests: Vec<_> = (0..AGENTS).map(window).collect();
        let few = requests[..FEW_AGENTS].to_vec();
        let rounds = samples.div_ceil(AGENTS * otlp::WINDOW_SAMPLES);
        let load = Load { requests, samples_each: otlp::WINDOW_SAMPLES, rounds };
        let sent = self.send(&load)?;
        let rate = load.samples() / sent.took.as_secs_f64();
        self.report.say("agents_to_durable_samples_per_s", rate, "samples/s")?;
        let windows = crate::float(load.requests.len() * load.rounds);
        let agents = windows * crate::precise(otlp::WINDOW_MS) / 1e3 / sent.cpu_s;
        self.report.say("agents_per_core", agents, "agents")?;
        self.report.say("agents_ack_p99", sent.waits.quantile(99), "ms")?;
        self.report.say("agents_busy_answers", crate::precise(sent.busy), "answers")?;
        self.report.say("rss_1000_agents_mib", mib(sent.rss_peak_bytes), "MiB")?;

        progress("sending windows of a hundred agents");
        let rounds = samples.div_ceil(FEW_AGENTS * otlp::WINDOW_SAMPLES);
        let load = Load { requests: few, samples_each: otlp::WINDOW_SAMPLES, rounds };
        let sent = self.send(&load)?;
        self.report.say("rss_100_agents_mib", mib(sent.rss_peak_bytes), "MiB")
    }

    /// Sends everything to a new collector as fast as it takes it.
    fn send(&self, load: &Load) -> Result<Sent> {
        let path = self.folder.collector()?;
        let collector = Collector::start(&path)?;
        let cpu_before_s = cpu_s(&collector.child)?;
        let start = Instant::now();
        let (waits, busy) = self.runtime.block_on(send_all(collector.address, load))?;
        let took = start.elapsed();
        let cpu_s = cpu_s(&collector.child)? - cpu_before_s;
        let rss_peak_bytes = rss_peak_bytes(&collector.child)?;
        drop(collector);
        self.check(&path, load)?;
        Ok(Sent { took, waits: Times::new(waits), busy, cpu_s, rss_peak_bytes })
    }

    /// All that was acknowledged is in the folder of a collector that was killed.
    fn check(&self, path: &Path, load: &Load) -> Result<()> {
        let store = crate::engine::open(path)?;
        let selection = Selection {
            project: ProjectName(crate::PROJECT.into()),
            profile_type: "cpu".to_owned(),
            range: TimeRange { from_ms: 0, to_ms: i64::MAX },
            matchers: Vec::new(),
        };
        let query = MergeQuery { selection, nodes_max: 1, keep_self_top: 0, leaf: None };
        let answer = self.runtime.block_on(store.merge(query))?;
        let samples = load.requests.len() * load.rounds * load.samples_each;
        let total = answer.node_total.first().copied().unwrap_or(0);
        let stored = answer.samples;
        ensure!(stored == samples as u64, "{stored} samples are durable of {samples}");
        ensure!(i64::try_from(samples)? * PERIOD_NS == total, "the total is {total}");
        Ok(())
    }
}

impl Load {
    fn samples(&self) -> f64 {
        crate::float(self.requests.len() * self.rounds * self.samples_each)
    }
}

/// Sends by several senders; a request goes over the connection of its agent.
async fn send_all(address: SocketAddr, load: &Load) -> Result<(Vec<f64>, u64)> {
    let mut channels = Vec::new();
    for _ in &load.requests {
        channels.push(Endpoint::from_shared(format!("http://{address}"))?.connect().await?);
    }
    let (channels, next) = (Arc::new(channels), Arc::new(AtomicUsize::new(0)));
    let busy = Arc::new(AtomicU64::new(0));
    let (requests, count) = (Arc::new(load.requests.clone()), load.requests.len() * load.rounds);
    let mut senders = tokio::task::JoinSet::new();
    for _ in 0..SENDERS {
        let (channels, next, busy) = (Arc::clone(&channels), Arc::clone(&next), Arc::clone(&busy));
        let requests = Arc::clone(&requests);
        senders.spawn(async move {
            let mut waits = Vec::new();
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= count {
                    return anyhow::Ok(waits);
                }
                let at = number % requests.len();
                let start = Instant::now();
                while !export(&channels[at], &requests[at]).await? {
                    busy.fetch_add(1, Ordering::Relaxed);
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                waits.push(start.elapsed().as_secs_f64() * 1e3);
            }
        });
    }
    let mut waits = Vec::new();
    while let Some(sender) = senders.join_next().await {
        waits.append(&mut sender??);
    }
    Ok((waits, busy.load(Ordering::Relaxed)))
}

/// Sends a request; false if it is to be sent again later.
async fn export(channel: &Channel, request: &[u8]) -> Result<bool> {
    let mut grpc = tonic::client::Grpc::new(channel.clone());
    grpc.ready().await?;
    let path = PathAndQuery::from_static(PATH);
    match grpc.unary(tonic::Request::new(request.to_vec()), path, Raw).await {
        Ok(answer) => {
            let answer = ExportProfilesServiceResponse::decode(&answer.into_inner()[..])?;
            let rejected = answer.partial_success.map_or(0, |partial| partial.rejected_profiles);
            ensure!(rejected == 0, "{rejected} profiles were rejected");
            Ok(true)
        }
        Err(status) if status.code() == tonic::Code::Unavailable => Ok(false),
        Err(status) => Err(status.into()),
    }
}

impl Collector {
    fn start(path: &Path) -> Result<Self> {
        let [page, grpc, http] = [free_address()?, free_address()?, free_address()?];
        let vesta = vesta()?;
        let child = Command::new(&vesta)
            .arg("serve")
            .arg("--data-dir")
            .arg(path)
            .args(["--listen", &page.to_string(), "--otlp-grpc", &grpc.to_string()])
            .args(["--otlp-http", &http.to_string(), "--data-bytes-max", "1T"])
            .env("RUST_LOG", "warn")
            .stdin(Stdio::null())
            .spawn()
            .with_context(|| format!("start {}", vesta.display()))?;
        let collector = Self { child, address: grpc };
        for _ in 0..200 {
            if TcpStream::connect(grpc).is_ok() {
                return Ok(collector);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        bail!("the collector does not listen after 10 s");
    }
}

fn free_address() -> Result<SocketAddr> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?)
}

/// `vesta` where this program was built, one folder above the examples.
fn vesta() -> Result<PathBuf> {
    let own = std::env::current_exe()?;
    let folder = own.parent().and_then(Path::parent).context("this program lies in a folder")?;
    Ok(folder.join("vesta"))
}

fn now_ns() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |now| u64::try_from(now.as_nanos()).unwrap_or(0))
}

/// Time on a CPU of all threads that a process has and had.
fn cpu_s(child: &Child) -> Result<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.id()))?;
    let (_, fields) = stat.rsplit_once(") ").context("a line of /proc/PID/stat")?;
    let ticks = fields.split(' ').skip(11).take(2).map(str::parse::<u64>);
    let ticks = ticks.sum::<Result<u64, _>>()?;
    Ok(crate::precise(ticks) / USER_HZ)
}

fn rss_peak_bytes(child: &Child) -> Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id()))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")).context("VmHWM")?;
    Ok(kib.trim().parse::<u64>()? << 10)
}

fn mib(bytes: u64) -> f64 {
    crate::precise(bytes) / 1_048_576.0
}
