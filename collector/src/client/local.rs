//! `vesta local`: a collector and an agent for this host, until Ctrl-C.

use crate::api::serve::{Collector, ServeError, ServeOptions};
use crate::limits::AGENT_STOP_MS_MAX;
use crate::store::Retention;
use rustix::process::{Pid, Signal, kill_process};
use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};

/// File name of the agent.
const AGENT: &str = "vesta-agent";

/// What to run.
#[derive(Clone, Debug)]
pub struct LocalOptions {
    /// Stop after this time; until told if absent.
    pub duration: Option<Duration>,
    /// Samples per second and CPU.
    pub frequency: u32,
    /// The agent's executable.
    pub agent: PathBuf,
    /// Where profiles are kept.
    pub data_dir: PathBuf,
    /// Most bytes there; the store's own default if absent.
    pub data_bytes_max: Option<u64>,
    /// Older profiles are refused, or removed by whole days.
    pub retention: Retention,
}

/// Why it does not run.
#[derive(Debug, thiserror::Error)]
pub enum LocalError {
    /// No agent.
    #[error(
        "cannot find {AGENT}: it is neither beside {beside} nor on PATH; build it with `cargo xtask build`, \
         or name it with --agent FILE"
    )]
    NoAgent {
        /// Where it was looked for first.
        beside: String,
    },
    /// It cannot be started.
    #[error("cannot start {path}: {source}")]
    Start {
        /// The agent.
        path: String,
        /// The cause.
        source: std::io::Error,
    },
    /// It ended by itself.
    #[error("the agent ended ({0}); its last lines above say why")]
    AgentEnded(ExitStatus),
    /// The collector does not start or stop.
    #[error(transparent)]
    Collector(#[from] ServeError),
}

/// Finds the agent: the named file, else beside this executable, else on PATH.
///
/// # Errors
/// There is none.
pub fn find_agent(named: Option<PathBuf>) -> Result<PathBuf, LocalError> {
    if let Some(named) = named {
        return Ok(named);
    }
    let own = std::env::current_exe().unwrap_or_default();
    let beside = own.with_file_name(AGENT);
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let on_path = std::env::split_paths(&paths).map(|folder| folder.join(AGENT));
    let found = std::iter::once(beside).chain(on_path).find(|path| path.is_file());
    found.ok_or_else(|| LocalError::NoAgent { beside: own.display().to_string() })
}

/// Runs until `stop` resolves, the duration is over, or the agent ends by itself. `say` gets lines for
/// the person who started it; the first is the URL.
///
/// # Errors
/// See [`LocalError`].
pub async fn run(
    options: LocalOptions,
    stop: impl Future<Output = ()>,
    mut say: impl FnMut(&str),
) -> Result<(), LocalError> {
    let loopback = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let collector = Collector::start(ServeOptions {
        data_dir: options.data_dir.clone(),
        data_bytes_max: options.data_bytes_max,
        retention: options.retention.clone(),
        listen: loopback(4040),
        otlp_grpc: loopback(4317),
        otlp_http: loopback(4318),
        insecure: false,
        other_ports: true,
        allowed_hosts: Vec::new(),
    })
    .await?;
    let addresses = collector.addresses;
    let mut agent = start_agent(&options, &format!("http://{}", addresses.otlp_grpc))?;
    let base = format!("http://{}", addresses.main);
    say(&format!("Flame graph: {}", super::page_url(&base, "")));
    say(&format!("Profiles are kept in {}", options.data_dir.display()));
    if options.duration.is_none() {
        say("Ctrl-C stops");
    }
    let over = async {
        match options.duration {
            Some(duration) => tokio::time::sleep(duration).await,
            None => std::future::pending().await,
        }
    };
    let ended = tokio::select! {
        status = agent.wait() => Some(status),
        () = stop => None,
        () = over => None,
    };
    if ended.is_none() {
        say("Stopping: waiting for the agent's last window");
        stop_agent(&mut agent).await;
    }
    collector.stop().await?;
    match ended {
        Some(Ok(status)) => Err(LocalError::AgentEnded(status)),
        Some(Err(source)) => {
            Err(LocalError::Start { path: options.agent.display().to_string(), source })
        }
        None => {
            say(&format!("Done; profiles are kept in {}", options.data_dir.display()));
            Ok(())
        }
    }
}

fn start_agent(options: &LocalOptions, collector: &str) -> Result<Child, LocalError> {
    let path: &Path = &options.agent;
    let mut command = Command::new(path);
    command
        .args(["run", "--collector", collector, "--frequency", &options.frequency.to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        // Ctrl-C on the terminal must not reach it before the collector has said what comes now.
        .process_group(0)
        .kill_on_drop(true);
    let mut agent = command
        .spawn()
        .map_err(|source| LocalError::Start { path: path.display().to_string(), source })?;
    if let Some(stderr) = agent.stderr.take() {
        let mut lines = BufReader::new(stderr).lines();
        tokio::spawn(async move {
            while let Ok(Some(line)) = lines.next_line().await {
                // Its lines have their own time and level.
                if writeln!(std::io::stderr(), "agent: {line}").is_err() {
                    break;
                }
            }
        });
    }
    Ok(agent)
}

/// Lets the agent send what it has; kills it if that takes too long.
async fn stop_agent(agent: &mut Child) {
    let pid = agent.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
    if let Some(pid) = pid
        && let Err(error) = kill_process(pid, Signal::TERM)
    {
        tracing::warn!("cannot stop the agent: {error}");
    }
    let time = Duration::from_millis(AGENT_STOP_MS_MAX);
    match tokio::time::timeout(time, agent.wait()).await {
        Ok(Ok(status)) if status.success() => {}
        Ok(Ok(status)) => tracing::warn!("the agent ended with {status}"),
        Ok(Err(error)) => tracing::warn!("cannot wait for the agent: {error}"),
        Err(_) => {
            tracing::warn!("the agent did not stop within {} s and is killed", time.as_secs());
            if let Err(error) = agent.kill().await {
                tracing::warn!("cannot kill the agent: {error}");
            }
        }
    }
}
