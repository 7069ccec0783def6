//! The command line: what can be asked of `vesta-agent`, with units in every name. Reading only; what a
//! command does is in the binary.

use crate::export::sender::Compression;
use crate::limits;
use clap::{Args, Parser, Subcommand, ValueEnum};
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

#[cfg(test)]
mod tests;

const EXAMPLES: &str = "\
Examples:
  sudo vesta-agent run --collector http://127.0.0.1:4317
      profile this host until stopped
  sudo vesta-agent record -o cpu.pb.gz -- ./program --its-argument
      profile one command; look at it with `go tool pprof -http=: cpu.pb.gz`
  sudo vesta-agent record --duration 30s -o host.folded
      profile the whole host for half a minute
  sudo vesta-agent record --off-cpu -o waits.folded -- ./program
      see where one command waits
  sudo vesta-agent run --collector http://127.0.0.1:4317 --lock-probes off
      the same as the first, without a probe in anybody's code
  sudo vesta-agent doctor
      say what this host allows, and how to allow the rest";

/// Samples every process of this host and sends OTLP Profiles.
#[derive(Debug, Parser)]
#[command(name = "vesta-agent", version, after_help = EXAMPLES, arg_required_else_help = true)]
pub struct CommandLine {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Profile this host and send the profiles to a collector, until stopped.
    Run(RunOptions),
    /// Profile a command, some processes or the host for a while, into a file.
    Record(RecordOptions),
    /// Say what this host allows, what is missing, what that costs and how to grant it.
    Doctor(DoctorOptions),
    /// Part of `record`: waits until it is told to go on, then becomes the command.
    #[command(hide = true)]
    Hold(HoldOptions),
}

/// How samples are taken.
#[derive(Clone, Debug, Args)]
pub struct SamplingOptions {
    /// Samples per second and CPU.
    #[arg(
        long = "frequency",
        value_name = "HZ",
        default_value_t = 19,
        value_parser = clap::value_parser!(u32).range(1..=i64::from(limits::FREQUENCY_HZ_MAX))
    )]
    pub frequency_hz: u32,
    /// Kernel memory for unwind tables; tables that were not used for longest make room for new ones.
    #[arg(
        long,
        value_name = "BYTES",
        default_value_t = limits::UNWIND_TABLE_BYTES_MAX,
        value_parser = clap::value_parser!(u64).range(limits::UNWIND_TABLE_BYTES_MIN..)
    )]
    pub unwind_table_bytes: u64,
    /// Folder that keeps the compiled unwind tables of large files for the next start; `off` for none. It must
    /// be this user's alone.
    #[arg(long, value_name = "DIR|off", default_value = "/var/cache/vesta-agent")]
    pub unwind_table_cache: PathBuf,
    /// Form of the BPF programs; both do the same, `bpf-loop` walks deeper stacks.
    #[arg(long, value_enum, default_value_t)]
    pub form: Form,
    /// Size of the ring buffer between kernel and agent, a power of two of at least 4096
    /// [default: by CPUs and frequency].
    #[arg(long, value_name = "BYTES")]
    pub ring_bytes: Option<u32>,
    /// Locks whose code is probed, where waits are measured: `go` those of Go, `waiting` also where threads begin to wait
    /// for a lock of a C library, `auto` these only where one link of the kernel has all places of a file (Linux 6.12),
    /// `off` none. Probes of C libraries tell what a lock is where no name does, and of waits without a stack; an
    /// uncontended lock costs nothing. They stay away where programs may use shadow stacks.
    #[arg(long, value_enum, default_value_t)]
    pub lock_probes: LockProbes,
    /// Write diagnostics of the BPF programs to the log.
    #[arg(long)]
    pub bpf_log: bool,
    /// Sample also on a kernel that is known to lock up when it is sampled.
    #[arg(long)]
    pub allow_kernel: bool,
}

/// Which code of locks is probed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum LockProbes {
    /// None: waits for locks of Go are not seen, and of C libraries what stacks and futex words tell.
    Off,
    /// Those of Go.
    Go,
    /// Those of Go and of C libraries.
    Waiting,
    /// Those of C libraries only where the kernel has one link for all places of a file (Linux 6.12): elsewhere it takes
    /// each place away by itself, 20 to 75 ms, before the agent ends.
    #[default]
    Auto,
}

/// Form of the BPF programs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Form {
    /// The first that this kernel takes.
    #[default]
    Auto,
    /// One program with the `bpf_loop` helper (Linux 5.17).
    BpfLoop,
    /// A chain of tail calls.
    TailCalls,
}

/// Options of `run`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Example:
  sudo vesta-agent run --collector http://127.0.0.1:4317 --metrics 127.0.0.1:9464")]
pub struct RunOptions {
    /// Where profiles go: OTLP over gRPC.
    #[arg(long, value_name = "URL", env = "VESTA_COLLECTOR")]
    pub collector: String,
    /// How samples are taken.
    #[command(flatten)]
    pub sampling: SamplingOptions,
    /// Do not measure the time that threads spend off their CPU.
    #[arg(long)]
    pub no_off_cpu: bool,
    /// Send source files and lines of native code too, where its file has debug information: a ninth more
    /// bytes.
    #[arg(long)]
    pub source_lines: bool,
    /// Compression of what is sent.
    #[arg(long, value_enum, default_value_t)]
    pub compression: Compression,
    /// Name of this host, instead of the kernel's.
    #[arg(long, value_name = "NAME", env = "VESTA_HOST_NAME")]
    pub host_name: Option<String>,
    /// Serve the agent's own metrics on this loopback address; `off` for none.
    #[arg(long, value_name = "IP:PORT|off", default_value = "off", value_parser = metrics_address)]
    pub metrics: MetricsAddress,
}

/// Where metrics are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricsAddress {
    /// Nowhere.
    Off,
    /// On this address.
    On(SocketAddr),
}

/// Options of `record`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
The ending of FILE picks the format: .pb.gz (pprof), .folded (one stack a line), .otlp.

Examples:
  sudo vesta-agent record -o cpu.pb.gz -- ./program
  sudo vesta-agent record --pid 1234 --duration 30s --frequency 99 -o cpu.pb.gz
  sudo vesta-agent record --duration 5s --format folded -o - | sort -n")]
pub struct RecordOptions {
    /// How long: `500ms`, `10s`, `5m`, `1h`. Without a command 10s; with one, until it ends.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub duration: Option<Duration>,
    /// How samples are taken.
    #[command(flatten)]
    pub sampling: SamplingOptions,
    /// Record also where threads wait: in .pb.gz and .otlp beside the CPU time, in .folded instead of it, in
    /// microseconds.
    #[arg(long)]
    pub off_cpu: bool,
    /// Only this process and what it starts; can be given more than once.
    #[arg(long = "pid", value_name = "PID", conflicts_with = "command")]
    pub pids: Vec<u32>,
    /// The file to write, `-` for the standard output.
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
    /// Format of the file, whatever its ending.
    #[arg(long, value_enum)]
    pub format: Option<Format>,
    /// Name of this host, instead of the kernel's (in .otlp).
    #[arg(long, value_name = "NAME", env = "VESTA_HOST_NAME")]
    pub host_name: Option<String>,
    /// The command to run and profile, with its arguments.
    #[arg(last = true, value_name = "CMD")]
    pub command: Vec<OsString>,
}

/// Format of a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// A gzip-compressed pprof profile.
    Pprof,
    /// One line for each stack: `comm;root;…;leaf count`.
    Folded,
    /// One OTLP `ExportProfilesServiceRequest` as protobuf.
    Otlp,
}

impl Format {
    /// The format that the ending of a file's name asks for.
    #[must_use]
    pub fn of_path(path: &std::path::Path) -> Option<Self> {
        let name = path.file_name()?.to_str()?;
        let ends = |ending: &str| name.len() > ending.len() && name.ends_with(ending);
        if ends(".pb.gz") || ends(".pprof") {
            Some(Self::Pprof)
        } else if ends(".folded") || ends(".collapsed") {
            Some(Self::Folded)
        } else {
            ends(".otlp").then_some(Self::Otlp)
        }
    }
}

/// Options of `doctor`.
#[derive(Clone, Debug, Args)]
pub struct DoctorOptions {
    /// How samples would be taken.
    #[command(flatten)]
    pub sampling: SamplingOptions,
}

/// Options of `hold`.
#[derive(Clone, Debug, Args)]
pub struct HoldOptions {
    /// The descriptor to wait on.
    #[arg(long)]
    pub descriptor: i32,
    /// The command.
    #[arg(last = true, required = true)]
    pub command: Vec<OsString>,
}

fn metrics_address(text: &str) -> Result<MetricsAddress, String> {
    if text == "off" {
        return Ok(MetricsAddress::Off);
    }
    let address: SocketAddr = text
        .parse()
        .map_err(|_invalid| "not an address; it looks like 127.0.0.1:9464, or off".to_owned())?;
    if !address.ip().is_loopback() {
        return Err("metrics are served on loopback only, like 127.0.0.1:9464".to_owned());
    }
    Ok(MetricsAddress::On(address))
}

/// Reads `500ms`, `10s`, `5m`, `1h`; more than nothing, up to `limits::RECORD_DURATION_MAX`.
fn duration(text: &str) -> Result<Duration, String> {
    let malformed = || "not a time; it looks like 500ms, 10s, 5m or 1h".to_owned();
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().map_err(|_invalid| malformed())?;
    let unit_ms = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return Err(malformed()),
    };
    let duration = Duration::from_millis(number.checked_mul(unit_ms).ok_or_else(malformed)?);
    let max = limits::RECORD_DURATION_MAX;
    if duration.is_zero() || duration > max {
        return Err(format!("more than 0 and at most {} h", max.as_secs() / 3600));
    }
    Ok(duration)
}
