//! What Vesta costs, measured on this host: `cargo xtask bench` calls it. Not a test: it prints figures and
//! judges none.
#![expect(clippy::panic, reason = "a measurement that cannot be made fails by panicking")]

mod agent;
mod backends;
mod collector;
mod figures;
mod load;
mod observer;
mod waiting;

use crate::load::Kind;
use clap::{Args, Parser, Subcommand};
use std::path::PathBuf;

/// Measures what Vesta costs on this host.
#[derive(Debug, Parser)]
#[command(
    bin_name = "cargo xtask bench",
    after_help = "\
Examples:
  cargo xtask bench agent
  cargo xtask bench agent --loads loaded,idle --off-cpu with
  cargo xtask bench agent --frequency 97 --seconds 60 --json
  cargo xtask bench agent --beside /opt/profiler/ebpf-profiler
  cargo xtask bench collector --seconds 20
  VESTA_PROFILE_SET=data cargo xtask bench backends --json"
)]
struct Cli {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// CPU with BPF time, memory with maps, bytes on the wire, start-up, under several loads (needs root).
    Agent(AgentArgs),
    /// Durable samples per second over OTLP/gRPC, latency of merges, bytes per sample.
    Collector(CollectorArgs),
    /// A set of pprof files pushed over HTTP, and questions about it: rows a second, beside inflating alone.
    Backends(BackendsArgs),
    /// What measuring off-CPU time costs a workload that switches 20,000 times a second (needs root).
    Waiting(WaitingArgs),
    /// Keeps a CPU busy: a load of `agent`.
    #[command(hide = true)]
    Busy {
        /// For so long.
        seconds: u64,
    },
}

#[derive(Clone, Debug, Args)]
struct AgentArgs {
    /// What the host does meanwhile; the names of figures end with it, the loaded host has the plain ones.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [
        Kind::Loaded, Kind::Idle, Kind::Short, Kind::Debug, Kind::Storm, Kind::NineMillion,
        Kind::Spinners, Kind::Execs, Kind::Mappings, Kind::Million, Kind::New,
    ])]
    loads: Vec<Kind>,
    /// Whether the agent measures off-CPU time and lock waits meanwhile; the names of figures end with `_waiting`
    /// where it does.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [OffCpu::Without, OffCpu::With])]
    off_cpu: Vec<OffCpu>,
    /// Length of each measured part; fifteen seconds before it warm up.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Samples per second and CPU.
    #[arg(long, default_value_t = 19)]
    frequency: u32,
    /// One JSON object a line: `{"figure","value","unit"}`, and `peer` and `ratio` beside another.
    #[arg(long)]
    json: bool,
    /// Measure this executable of another OTLP agent in the same way, under the same load, beside Vesta without off-CPU time.
    #[arg(long, value_name = "PROFILER")]
    beside: Option<PathBuf>,
    /// How the other agent is called; {address} and {hz} are filled in
    /// [default: as the OpenTelemetry eBPF profiler wants it].
    #[arg(long, value_name = "ARGUMENT", allow_hyphen_values = true)]
    beside_argument: Vec<String>,
}

/// Whether an agent measures waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum OffCpu {
    /// Samples of the clock alone (`--no-off-cpu`).
    Without,
    /// As `run` does unless told otherwise.
    With,
}

impl OffCpu {
    /// What ends the names of its figures.
    const fn suffix(self) -> &'static str {
        match self {
            Self::Without => "",
            Self::With => "_waiting",
        }
    }
}

#[derive(Clone, Copy, Debug, Args)]
struct CollectorArgs {
    /// How long samples are sent.
    #[arg(long, default_value_t = 20)]
    seconds: u64,
    /// Connections that send at once.
    #[arg(long, default_value_t = 4)]
    senders: usize,
    /// One JSON object a line: `{"figure","value","unit"}`.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Debug, Args)]
struct BackendsArgs {
    /// The folder with `manifest.tsv` and the files that it names.
    #[arg(long, value_name = "DIR", env = "VESTA_PROFILE_SET")]
    set: PathBuf,
    /// Connections that send at once.
    #[arg(long, default_value_t = 8)]
    senders: usize,
    /// One JSON object a line: `{"figure","value","unit"}`.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, Args)]
struct WaitingArgs {
    /// How often both sides are measured, in turns.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// One JSON object a line: `{"figure","value","unit"}`.
    #[arg(long)]
    json: bool,
}

fn main() {
    match Cli::parse().what {
        What::Agent(args) => agent::measure(&args),
        What::Collector(args) => collector::measure(args),
        What::Backends(args) => backends::measure(&args),
        What::Waiting(args) => waiting::measure(&args),
        What::Busy { seconds } => load::be_busy(seconds),
    }
}
