//! What an agent costs while the host works: one busy process of each kind of workload, and short processes
//! that come and go.

use crate::AgentArgs;
use crate::figures::{Figure, print};
use crate::observer::{BpfStatistics, Reading, host_ticks, new_map_bytes};
use rustix::process::Signal;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use tests::agent::{AgentOptions, command};
use tests::observation::{Observation, observations};
use tests::workload::{self, Language};
use tests::{Running, Sink, eventually, kernel, need, profiles::now_ns, seed};

/// Between start and measurement: tables are loaded, names are known.
const WARM_UP: Duration = Duration::from_secs(10);

/// How the OpenTelemetry eBPF profiler is called.
const PEER_ARGUMENTS: [&str; 7] = [
    "-collection-agent",
    "{address}",
    "-disable-tls",
    "-samples-per-second",
    "{hz}",
    "-reporter-interval",
    "5s",
];

pub(crate) fn measure(args: &AgentArgs) {
    if !need::bpf() {
        return;
    }
    let length = WARM_UP * 3 + Duration::from_secs(args.seconds);
    let sink = Sink::start();
    let load = Load::start(length);
    let options = AgentOptions::at(args.frequency);
    let mut own = one(command(&sink.url(), &options), &sink, args);
    own.figures.extend(rows_per_second(&own.said));
    drop(load);
    let peer = args.beside.as_deref().map(|profiler| {
        let sink = Sink::start();
        let _load = Load::start(length);
        one(peer_command(profiler, &sink, args), &sink, args).figures
    });
    print(&own.figures, &peer.unwrap_or_default(), args.json);
}

struct Measured {
    figures: Vec<Figure>,
    said: String,
}

/// Starts an agent, lets it warm up, and reads what it used.
fn one(command: Command, sink: &Sink, args: &AgentArgs) -> Measured {
    let _statistics = BpfStatistics::on();
    let maps = kernel::bpf_maps();
    let start = Instant::now();
    let start_ns = now_ns();
    let mut agent = Running::start(command);
    eventually("the first request arrives", Duration::from_secs(90), || {
        assert!(agent.is_running(), "the agent ended: {}{}", agent.stdout(), agent.stderr());
        if sink.requests().is_empty() { Err("none yet".to_owned()) } else { Ok(()) }
    });
    std::thread::sleep(WARM_UP);
    let (before, ticks_before, from_ns) = (Reading::of(agent.pid()), host_ticks(), now_ns());
    let bytes_before: usize = sink.requests().iter().map(Vec::len).sum();
    let window = Instant::now();
    std::thread::sleep(Duration::from_secs(args.seconds));
    let (after, ticks, to_ns) = (Reading::of(agent.pid()), host_ticks(), now_ns());
    let seconds = window.elapsed().as_secs_f64();
    let map_bytes = new_map_bytes(&maps);
    let bytes: usize = sink.requests().iter().map(Vec::len).sum::<usize>() - bytes_before;
    std::thread::sleep(Duration::from_secs(7)); // the report of the window's last samples
    agent.signal(Signal::INT);
    agent.wait(Duration::from_secs(30));
    let all = observations(&sink.requests());
    let first_ns = all.iter().map(|it| it.time_ns).min().unwrap_or(start_ns);
    let samples: Vec<&Observation> =
        all.iter().filter(|it| (from_ns..to_ns).contains(&it.time_ns)).collect();
    let frames: usize =
        samples.iter().map(|it| it.frames.iter().filter(|f| !f.is_marker()).count()).sum();
    let (bpf_ns, runs) = after.bpf_since(&before);
    let cpu_ns = after.cpu_ns.saturating_sub(before.cpu_ns);
    let busy = number(ticks.0 - ticks_before.0) / number(ticks.1 - ticks_before.1);
    let figures = vec![
        Figure::new("cpu_agent", number(cpu_ns) / 1e9 / seconds, "CPUs"),
        Figure::new("cpu_bpf", number(bpf_ns) / 1e9 / seconds, "CPUs"),
        Figure::new("cpu_all", number(cpu_ns + bpf_ns) / 1e9 / seconds, "CPUs"),
        Figure::new("rss", number(after.rss_bytes), "bytes"),
        Figure::new("maps", number(map_bytes), "bytes"),
        Figure::new("memory_all", number(after.rss_bytes + map_bytes), "bytes"),
        Figure::new("samples_per_second", size(samples.len()) / seconds, "samples/s"),
        Figure::new("frames_per_sample", size(frames) / size(samples.len().max(1)), "frames"),
        Figure::new("bpf_ns_per_run", number(bpf_ns) / number(runs.max(1)), "ns"),
        Figure::new("bpf_ns_per_sample", number(bpf_ns) / size(samples.len().max(1)), "ns"),
        Figure::new("bpf_ns_per_frame", number(bpf_ns) / size(frames.max(1)), "ns"),
        Figure::new("bytes_per_second", size(bytes) / seconds, "bytes/s"),
        Figure::new("first_sample", number(first_ns.saturating_sub(start_ns)) / 1e9, "s"),
        Figure::new("host_busy", busy, "share"),
    ];
    let _ = start;
    Measured { figures, said: agent.stdout() + &agent.stderr() }
}

/// The agent says how many rows it compiled for the processes that existed, and in what time.
fn rows_per_second(said: &str) -> Option<Figure> {
    let line = said.lines().find(|line| line.contains("processes are known"))?;
    let number = |key: &str| -> Option<f64> {
        let rest = line.split(key).nth(1)?;
        rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
    };
    let (rows, ms) = (number("rows=")?, number("taken_ms=")?);
    Some(Figure::new("unwind_rows_per_second", rows / ms * 1000.0, "rows/s"))
}

fn peer_command(profiler: &Path, sink: &Sink, args: &AgentArgs) -> Command {
    let given: Vec<&str> = match &args.beside_argument[..] {
        [] => PEER_ARGUMENTS.to_vec(),
        given => given.iter().map(String::as_str).collect(),
    };
    // It wants tracefs; mounted where only it sees it.
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation=private", "sh", "-c"]);
    command.arg("mount -t tracefs none /sys/kernel/tracing; exec \"$@\"").arg("sh").arg(profiler);
    let fill = |argument: &str| {
        argument
            .replace("{address}", &sink.address().to_string())
            .replace("{hz}", &args.frequency.to_string())
    };
    command.args(given.into_iter().map(fill));
    command
}

/// The same work for every agent.
struct Load {
    _busy: Vec<Running>,
    _short: Option<Running>,
}

impl Load {
    fn start(length: Duration) -> Self {
        let languages = [Language::C, Language::Cpp, Language::Rust, Language::Go];
        let programs = languages.iter().filter_map(|language| language.split());
        let start =
            |program: std::path::PathBuf| workload::start_split(&program, length.as_secs(), seed());
        let busy = programs.map(start).collect();
        let short = workload::c("brief", &[]).map(|brief| {
            let mut shell = Command::new("sh");
            shell.arg("-c").arg("while :; do \"$0\" 20 30; sleep 0.2; done").arg(brief);
            Running::start(shell)
        });
        Self { _busy: busy, _short: short }
    }
}

fn size(count: usize) -> f64 {
    number(count as u64)
}

#[expect(clippy::cast_precision_loss, reason = "figures have a few digits")]
fn number(count: u64) -> f64 {
    count as f64
}
