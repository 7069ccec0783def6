//! `vesta`: reads the command line, runs what it asks for, says how it went.
#![forbid(unsafe_code)]

use anyhow::{Context as _, Result, bail};
use clap::Parser as _;
use collector::api::serve::{Collector, ServeOptions};
use collector::client::local::{self, LocalOptions};
use collector::client::{self, ClientError};
use collector::limits::{BLOCKING_THREADS_MAX, DESCRIPTORS_MAX};
use collector::options::{Cli, Command, LocalArgs, ServeArgs, StoreCommand};
use std::io::{IsTerminal as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing_subscriber::EnvFilter;

fn main() -> ExitCode {
    let cli = Cli::parse();
    match run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(&format!("vesta: {}", in_one_line(&error)));
            let usage = error.downcast_ref::<ClientError>().is_some_and(ClientError::is_usage);
            ExitCode::from(if usage { 2 } else { 1 })
        }
    }
}

/// The error and its causes, but for those that an outer one has already told.
fn in_one_line(error: &anyhow::Error) -> String {
    error.chain().fold(String::new(), |told, cause| {
        let cause = cause.to_string();
        match told.contains(&cause) {
            true => told,
            false if told.is_empty() => cause,
            false => format!("{told}: {cause}"),
        }
    })
}

/// Progress goes to standard error, data to standard output.
fn say(line: &str) {
    // Nobody is left to tell if standard error is closed.
    drop(writeln!(std::io::stderr(), "{line}"));
}

/// Settings of glibc's allocator, which reads them from the environment, once: an arena for each CPU, and what has a
/// mebibyte is the system's again when it is freed. Otherwise threads keep what they freed in eight times as many arenas,
/// and large answers, one after the other on different threads, take as much memory as all of them at once (mallopt(3)).
/// None if one of them is there: who set it chose otherwise. The last one is ours alone: where a program has more rights
/// than who starts it, the C library takes its own out, and it would start itself for ever.
fn allocator_settings(is_set: impl Fn(&str) -> bool) -> Option<[(&'static str, String); 3]> {
    const LARGE_BYTES: &str = "1048576";
    let cpus = std::thread::available_parallelism().map_or(1, usize::from).to_string();
    let settings = [
        ("MALLOC_ARENA_MAX", cpus),
        ("MALLOC_MMAP_THRESHOLD_", LARGE_BYTES.to_owned()),
        ("VESTA_ALLOCATOR", "set".to_owned()),
    ];
    (!settings.iter().any(|(name, _)| is_set(name))).then_some(settings)
}

/// Starts this program again, in its place, if its allocator has no settings yet; answers why it could not.
fn settle_allocator() -> Option<std::io::Error> {
    let settings = allocator_settings(|name| std::env::var_os(name).is_some())?;
    Some(match std::env::current_exe() {
        Ok(own) => start_again(&own, settings),
        Err(error) => error,
    })
}

/// Answers only if it cannot; then the process has SIGPIPE as new programs do, which ends them.
fn start_again(own: &Path, settings: [(&str, String); 3]) -> std::io::Error {
    std::process::Command::new(own).args(std::env::args_os().skip(1)).envs(settings).exec()
}

/// For as long as it is kept, a client that hangs up is an error of its connection and ends nothing else.
fn outlive_broken_pipes() -> Result<Signal> {
    signal(SignalKind::pipe()).context("cannot watch for SIGPIPE")
}

fn run(cli: Cli) -> Result<()> {
    let unsettled = match cli.command {
        Command::Serve(_) => settle_allocator(),
        _ => None,
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .max_blocking_threads(BLOCKING_THREADS_MAX)
        .build()
        .context("cannot start threads")?;
    match cli.command {
        Command::Serve(args) => {
            start_log();
            runtime.block_on(serve(args, unsettled))
        }
        Command::Local(args) => {
            become_root()?;
            start_log();
            runtime.block_on(profile_this_host(args))
        }
        Command::Flamegraph(args) => Ok(runtime.block_on(client::flame_graph(&args))?),
        Command::Top(args) => Ok(runtime.block_on(client::top(&args))?),
        Command::Locks(args) => Ok(runtime.block_on(client::locks(&args))?),
        Command::Store(command) => {
            let (StoreCommand::Check(args)
            | StoreCommand::Stats(args)
            | StoreCommand::Compact(args)) = &command;
            let dir = existing_data_dir(args.data_dir.clone())?;
            Ok(runtime.block_on(client::folder::look_after(&command, &dir))?)
        }
        Command::Upload(args) => Ok(runtime.block_on(client::upload(&args))?),
    }
}

fn start_log() {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false)
        .init();
}

/// Three ports of connections are more than the usual soft limit of 1,024. Raising it up to the hard limit needs
/// no right.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    let hard = limit.maximum.unwrap_or(DESCRIPTORS_MAX);
    limit.current = Some(hard.min(DESCRIPTORS_MAX));
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::warn!(%error, "the limit of open files stays as it is");
    }
}

/// Resolves at the first SIGINT or SIGTERM, or when the terminal is closed.
async fn told_to_stop() -> Result<()> {
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot watch for SIGINT")?;
    let mut hang_up = signal(SignalKind::hangup()).context("cannot watch for SIGHUP")?;
    let mut terminate = signal(SignalKind::terminate()).context("cannot watch for SIGTERM")?;
    tokio::select! {
        _ = interrupt.recv() => Ok(()),
        _ = terminate.recv() => Ok(()),
        _ = hang_up.recv() => Ok(()),
    }
}

/// `unsettled` is why the program could not start itself again.
async fn serve(args: ServeArgs, unsettled: Option<std::io::Error>) -> Result<()> {
    let _kept = unsettled.is_some().then(outlive_broken_pipes).transpose()?;
    if let Some(error) = unsettled {
        tracing::warn!(%error, "goes on with more memory: it cannot start itself again");
    }
    let data_dir = data_dir(args.data_dir)?;
    let options = ServeOptions {
        data_bytes_max: args.keep.data_bytes_max,
        data_dir: data_dir.clone(),
        retention: args.keep.retention()?,
        listen: args.listen,
        otlp_grpc: args.otlp_grpc,
        otlp_http: args.otlp_http,
        insecure: args.insecure,
        other_ports: false,
        allowed_hosts: args.allowed_host,
    };
    raise_descriptor_limit();
    let collector = Collector::start(options).await?;
    let addresses = collector.addresses;
    tracing::info!("page and API: http://{}", addresses.main);
    tracing::info!("OTLP: grpc://{}, http://{}", addresses.otlp_grpc, addresses.otlp_http);
    tracing::info!("profiles are kept in {}", data_dir.display());
    if args.insecure {
        tracing::warn!("--insecure: whoever reaches these addresses reads and writes all profiles");
    }
    told_to_stop().await?;
    tracing::info!("stopping");
    collector.stop().await?;
    Ok(())
}

async fn profile_this_host(args: LocalArgs) -> Result<()> {
    raise_descriptor_limit();
    let data_dir = data_dir(args.data_dir)?;
    let options = LocalOptions {
        duration: args.duration.map(|ms| Duration::from_millis(ms.unsigned_abs())),
        frequency: args.frequency,
        agent: local::find_agent(args.agent)?,
        data_bytes_max: args.keep.data_bytes_max,
        data_dir,
        retention: args.keep.retention()?,
    };
    let stop = async {
        if let Err(error) = told_to_stop().await {
            tracing::error!("{error:#}");
        }
    };
    Ok(local::run(options, stop, say).await?)
}

/// The agent needs root. A person at a terminal is asked by sudo, everybody else told what to type.
fn become_root() -> Result<()> {
    if rustix::process::geteuid().is_root() {
        return Ok(());
    }
    let own = std::env::current_exe().context("cannot find my own executable")?;
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    let shown: Vec<_> = arguments.iter().map(|argument| argument.to_string_lossy()).collect();
    let line = format!("sudo {} {}", own.display(), shown.join(" "));
    if !std::io::stdin().is_terminal() {
        bail!("profiling a whole host needs root; run: {line}");
    }
    say(&format!("profiling a whole host needs root: {line}"));
    let error = std::process::Command::new("sudo").arg(own).args(arguments).exec();
    Err(error).with_context(|| format!("cannot run sudo; as root, run: {line}"))
}

/// Where profiles are kept: as told, as root below /var/lib, else below the user's state folder.
fn data_dir(named: Option<PathBuf>) -> Result<PathBuf> {
    let folder = data_dir_name(named)?;
    std::fs::create_dir_all(&folder)
        .with_context(|| format!("cannot make the folder {}", folder.display()))?;
    folder.canonicalize().with_context(|| format!("cannot open the folder {}", folder.display()))
}

/// The same, of a store that must be there.
fn existing_data_dir(named: Option<PathBuf>) -> Result<PathBuf> {
    let folder = data_dir_name(named)?;
    if !client::folder::is_store(&folder) {
        bail!("there is no store in {}; name its folder with --data-dir", folder.display());
    }
    Ok(folder)
}

fn data_dir_name(named: Option<PathBuf>) -> Result<PathBuf> {
    Ok(match named {
        Some(named) => named,
        None if rustix::process::geteuid().is_root() => PathBuf::from("/var/lib/vesta"),
        None => {
            let state = std::env::var_os("XDG_STATE_HOME").map(PathBuf::from);
            let home = std::env::var_os("HOME").map(|home| Path::new(&home).join(".local/state"));
            let state = state.filter(|path| path.is_absolute()).or(home);
            state.context("HOME is not set; name a folder with --data-dir")?.join("vesta")
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::{Signal, getpid, kill_process};
    use std::os::unix::process::ExitStatusExt as _;

    const CHILD: &str = "VESTA_TEST_EXEC_FAILS";

    /// The child: cannot start itself again, then writes to somebody who hung up; does nothing in an ordinary test run.
    #[test]
    fn child() {
        let Ok(how) = std::env::var(CHILD) else { return };
        let settings = allocator_settings(|_| false).unwrap();
        let error = start_again(Path::new("/nowhere/vesta"), settings);
        assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let _kept = (how == "mended").then(|| outlive_broken_pipes().unwrap());
            kill_process(getpid(), Signal::PIPE).unwrap();
        });
    }

    #[test]
    fn a_failed_start_leaves_a_collector_that_outlives_its_clients() {
        let ended = |how: &str| {
            let mut child = std::process::Command::new(std::env::current_exe().unwrap());
            child.args(["--exact", "tests::child"]).env(CHILD, how).output().unwrap()
        };
        assert_eq!(ended("as it is").status.signal(), Some(Signal::PIPE.as_raw()), "the danger");
        let mended = ended("mended");
        let said = String::from_utf8_lossy(&mended.stdout).into_owned();
        assert!(mended.status.success() && said.contains("1 passed"), "{said}");
    }

    /// The C library takes its own names out of the environment of a program with more rights.
    #[test]
    fn it_starts_itself_again_once() {
        let settings = allocator_settings(|_| false).unwrap();
        for (name, _) in &settings {
            assert_eq!(allocator_settings(|it| it == *name), None, "{name}");
        }
        let ours = settings.iter().filter(|(name, _)| !name.starts_with("MALLOC_"));
        assert_eq!(ours.count(), 1);
    }
}
