//! The command line of `vesta`. It reads and checks arguments; what they start is elsewhere.

use crate::api::time::parse_duration;
use crate::store::{Retention, RetentionError, TypeRetention};
use clap::{Args, Parser, Subcommand, ValueEnum};
use std::net::SocketAddr;
use std::path::PathBuf;

/// Whole-system continuous profiling: receives, keeps and shows profiles.
#[derive(Debug, Parser)]
#[command(name = "vesta", version, after_help = EXAMPLES)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

const EXAMPLES: &str = "\
Examples:
  sudo vesta local                       profile this host, print a URL with its flame graph
  vesta serve --data-dir /var/lib/vesta  run the collector for agents and OpenTelemetry senders
  vesta top --from now-15m               hottest functions of the last 15 minutes
  vesta flamegraph --service checkout --format folded > checkout.folded
  vesta locks                            contended locks: who waits, who holds
  vesta upload --service shop cpu.pb.gz  store a profile that another tool wrote

Exit codes: 0 done, 1 failed, 2 bad arguments. RUST_LOG sets the log level (error, warn, info, debug).";

/// Commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the collector: OTLP in, API and page out.
    #[command(after_help = "Examples:
  vesta serve --data-dir ./data
  vesta serve --listen 0.0.0.0:4040 --insecure --allowed-host vesta.internal")]
    Serve(ServeArgs),
    /// Profile this host: collector and agent in one go (needs root for the agent).
    #[command(after_help = "Examples:
  sudo vesta local
  sudo vesta local --duration 60s --frequency 97")]
    Local(LocalArgs),
    /// Fetch a flame graph from a collector.
    #[command(after_help = "Examples:
  vesta flamegraph                                   as text, the last hour of everything
  vesta flamegraph --service api --from now-15m
  vesta flamegraph --format folded -o api.folded     root;...;leaf samples
  vesta flamegraph --filter '{host=\"web-1\",\"thread.name\"=~\"tokio.*\"}' --format json")]
    Flamegraph(FlamegraphArgs),
    /// Print the functions that use the most.
    #[command(after_help = "Examples:
  vesta top
  vesta top --service api --from now-15m --limit 50
  vesta top --type off_cpu --filter '{off_cpu.reason=\"io\"}'")]
    Top(TopArgs),
    /// Print the locks that threads waited for longest, with who waits and who holds.
    #[command(after_help = "Examples:
  vesta locks
  vesta locks --service api --from now-15m --callers 10
  vesta locks --filter '{\"lock.kind\"=\"rwlock\"}' --json
  vesta flamegraph --type lock --filter '{\"lock.name\"=\"queue+0x10\"}'   one lock's waits as a tree

A lock in a file's data (symbol+offset) is one row for all processes of its executable; any other is an
address of one process. Waits are added over threads: 2 threads that wait 1 s each are 2 s.")]
    Locks(LocksArgs),
    /// Look after a data folder: what it holds, whether it is sound, fewer and smaller files.
    #[command(subcommand)]
    Store(StoreCommand),
    /// Send profiles of files to a collector: pprof (protobuf), gzip or not.
    #[command(after_help = "Examples:
  vesta upload cpu.pb.gz
  vesta upload --service shop --environment staging heap.pb.gz mutex.pb.gz
  vesta upload --service shop --type mutex mutex.pb.gz
  curl -s localhost:6060/debug/pprof/profile | vesta upload --service shop -

A file is stored whole or not at all; one that was stored before is not stored twice. What is stored is
said on standard error, a line for each file. A profile is kept at the time it was taken: look with
`vesta flamegraph --service shop --from 2026-11-29T00:00:00Z`, or in the page.")]
    Upload(UploadArgs),
}

/// `vesta store`.
#[derive(Clone, Debug, Subcommand)]
pub enum StoreCommand {
    /// Read every file and compare it with its checksums, and sums with the samples that they are of; changes nothing.
    #[command(after_help = "\
A collector may use the folder meanwhile. What is damaged is one line on standard output, and the exit code is 1.")]
    Check(FolderArgs),
    /// Say what the folder holds; changes nothing, and a collector may use it meanwhile.
    Stats(FolderArgs),
    /// Make one segment of all segments of a day; a collector does it by itself an hour after the end of a day.
    #[command(after_help = "\
No collector may use the folder meanwhile. While a day is written it is on the disk twice.")]
    Compact(FolderArgs),
}

/// Which folder.
#[derive(Clone, Debug, Args)]
pub struct FolderArgs {
    /// Where profiles are kept [default: the user's state folder, as root `/var/lib/vesta`].
    #[arg(long, value_name = "DIR", env = "VESTA_DATA_DIR")]
    pub data_dir: Option<PathBuf>,
}

/// `vesta serve`.
#[derive(Clone, Debug, Args)]
pub struct ServeArgs {
    /// Where profiles are kept [default: the user's state folder, as root `/var/lib/vesta`].
    #[arg(long, value_name = "DIR", env = "VESTA_DATA_DIR")]
    pub data_dir: Option<PathBuf>,
    /// Page, API and OTLP/HTTP.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:4040")]
    pub listen: SocketAddr,
    /// OTLP/gRPC.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:4317")]
    pub otlp_grpc: SocketAddr,
    /// OTLP/HTTP.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:4318")]
    pub otlp_http: SocketAddr,
    /// Listen on other than loopback addresses without keys: whoever reaches the port reads everything.
    #[arg(long)]
    pub insecure: bool,
    /// A name by which browsers may call this collector, besides localhost; may be repeated.
    #[arg(long, value_name = "NAME")]
    pub allowed_host: Vec<String>,
    #[command(flatten)]
    #[expect(missing_docs, reason = "clap would show it as the command's text")]
    pub keep: KeepArgs,
}

/// How much is kept.
#[derive(Clone, Debug, Args)]
pub struct KeepArgs {
    /// Most bytes of profiles on disk (units K M G T); beyond, the oldest hour goes
    /// [default: 10G, or a tenth of the disk if that is less].
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    pub data_bytes_max: Option<u64>,
    /// Profiles older than this are refused, and removed by whole days (UTC).
    #[arg(long, value_name = "DURATION", default_value = "400d", value_parser = duration_ms)]
    pub retention: i64,
    /// Profiles of this type (in all its units) go earlier than the others, for example `off_cpu=7d`; may be given for
    /// several types.
    #[arg(long, value_name = "TYPE=DURATION", value_parser = type_retention)]
    pub retention_of: Vec<TypeRetention>,
}

impl KeepArgs {
    /// How long profiles are kept.
    ///
    /// # Errors
    /// If a type is named twice, or not kept for less.
    pub fn retention(&self) -> Result<Retention, RetentionError> {
        let all = Retention::new(self.retention);
        self.retention_of.iter().cloned().try_fold(all, Retention::with_type)
    }
}

/// `vesta local`.
#[derive(Clone, Debug, Args)]
pub struct LocalArgs {
    /// Stop after this time, for example 30s or 10m [default: until Ctrl-C].
    #[arg(long, value_name = "DURATION", value_parser = duration_ms)]
    pub duration: Option<i64>,
    /// Samples per second and CPU.
    #[arg(long, value_name = "HZ", default_value_t = 19, value_parser = clap::value_parser!(u32).range(1..=999))]
    pub frequency: u32,
    /// Where profiles are kept [default: the user's state folder, as root `/var/lib/vesta`].
    #[arg(long, value_name = "DIR", env = "VESTA_DATA_DIR")]
    pub data_dir: Option<PathBuf>,
    /// The agent's executable [default: vesta-agent beside vesta, then on PATH].
    #[arg(long, value_name = "FILE")]
    pub agent: Option<PathBuf>,
    #[command(flatten)]
    #[expect(missing_docs, reason = "clap would show it as the command's text")]
    pub keep: KeepArgs,
}

/// Which collector a client command talks to.
#[derive(Clone, Debug, Args)]
pub struct CollectorArgs {
    /// The collector.
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:4040", env = "VESTA_URL")]
    pub url: String,
    /// Project.
    #[arg(long, default_value = "default")]
    pub project: String,
}

/// Which samples a client command asks for.
#[derive(Clone, Debug, Args)]
pub struct QueryArgs {
    #[command(flatten)]
    #[expect(missing_docs, reason = "clap would show it as the command's text")]
    pub collector: CollectorArgs,
    /// Only this service.
    #[arg(long)]
    pub service: Option<String>,
    /// Only this host.
    #[arg(long)]
    pub host: Option<String>,
    /// Start: Unix milliseconds, RFC 3339, or relative (now-1h).
    #[arg(long, value_name = "TIME", default_value = "now-1h")]
    pub from: String,
    /// End, exclusive.
    #[arg(long, value_name = "TIME", default_value = "now")]
    pub to: String,
    /// Selector, for example '{pod=~"web-.*"}'.
    #[arg(long, value_name = "SELECTOR", default_value = "")]
    pub filter: String,
    /// File to write to; - is standard output.
    #[arg(short, long, value_name = "FILE", default_value = "-")]
    pub output: PathBuf,
}

/// `vesta flamegraph`.
#[derive(Clone, Debug, Args)]
pub struct FlamegraphArgs {
    #[command(flatten)]
    #[expect(missing_docs, reason = "clap would show it as the command's text")]
    pub query: QueryArgs,
    /// Profile type, for example cpu, `off_cpu` (time that threads were blocked), lock (waits for locks).
    #[arg(long = "type", value_name = "TYPE", default_value = "cpu")]
    pub profile_type: String,
    /// text: a tree; folded: one line per stack; json: the API's answer.
    #[arg(long, value_enum, default_value_t = GraphFormat::Text)]
    pub format: GraphFormat,
    /// Most nodes to fetch; the rest is summed up as hidden.
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub max_nodes: u32,
    /// In text, leave out what is below this share of the total, in percent.
    #[arg(long, value_name = "PERCENT", default_value_t = 0.5)]
    pub min_share: f64,
}

/// How a flame graph is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum GraphFormat {
    /// An indented tree.
    Text,
    /// `root;...;leaf samples`.
    Folded,
    /// The API's answer.
    Json,
}

/// `vesta top`.
#[derive(Clone, Debug, Args)]
pub struct TopArgs {
    #[command(flatten)]
    #[expect(missing_docs, reason = "clap would show it as the command's text")]
    pub query: QueryArgs,
    /// Profile type, for example cpu, `off_cpu` (time that threads were blocked), lock (waits for locks).
    #[arg(long = "type", value_name = "TYPE", default_value = "cpu")]
    pub profile_type: String,
    /// Rows.
    #[arg(long, value_name = "N", default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub limit: u32,
    /// text: a table; json: the API's answer.
    #[arg(long, value_enum, default_value_t = TableFormat::Text)]
    pub format: TableFormat,
}

/// `vesta locks`.
#[derive(Clone, Debug, Args)]
pub struct LocksArgs {
    #[command(flatten)]
    #[expect(missing_docs, reason = "clap would show it as the command's text")]
    pub query: QueryArgs,
    /// Locks shown at most; the rest is one line.
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub limit: u32,
    /// Waiters and holders shown of each lock.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(0..=100))]
    pub callers: u32,
    /// text: a table; json: the API's answer.
    #[arg(long, value_enum, default_value_t = TableFormat::Text)]
    pub format: TableFormat,
    /// The same as --format json.
    #[arg(long, conflicts_with = "format")]
    pub json: bool,
}

/// `vesta upload`.
#[derive(Clone, Debug, Args)]
pub struct UploadArgs {
    /// Profiles; - is standard input.
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    #[command(flatten)]
    #[expect(missing_docs, reason = "clap would show it as the command's text")]
    pub collector: CollectorArgs,
    /// The service that was profiled [default: the executable's name].
    #[arg(long)]
    pub service: Option<String>,
    /// Its host.
    #[arg(long)]
    pub host: Option<String>,
    /// Its container.
    #[arg(long)]
    pub container: Option<String>,
    /// Its pod.
    #[arg(long)]
    pub pod: Option<String>,
    /// The sample type to show first, or what the profile is: mutex, block, heap [default: the profile's last].
    #[arg(long = "type", value_name = "TYPE")]
    pub profile_type: Option<String>,
    /// Where it ran, for example production.
    #[arg(long)]
    pub environment: Option<String>,
    /// Version of the service.
    #[arg(long, value_name = "VERSION")]
    pub service_version: Option<String>,
    /// The transaction that was profiled.
    #[arg(long)]
    pub transaction: Option<String>,
    /// The trace that it belongs to.
    #[arg(long)]
    pub trace_id: Option<String>,
}

impl UploadArgs {
    /// The parameters of the request.
    #[must_use]
    pub const fn parameters(&self) -> [(&'static str, &Option<String>); 9] {
        [
            ("service", &self.service),
            ("host", &self.host),
            ("container", &self.container),
            ("pod", &self.pod),
            ("type", &self.profile_type),
            ("environment", &self.environment),
            ("version", &self.service_version),
            ("transaction", &self.transaction),
            ("trace_id", &self.trace_id),
        ]
    }
}

/// How a table is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TableFormat {
    /// Columns.
    Text,
    /// The API's answer.
    Json,
}

fn duration_ms(text: &str) -> Result<i64, String> {
    match parse_duration(text) {
        Ok(ms) if ms > 0 => Ok(ms),
        Ok(_) => Err("must be longer than 0".to_owned()),
        Err(detail) => Err(detail.to_owned()),
    }
}

/// A type and how long it is kept: `off_cpu=7d`.
fn type_retention(text: &str) -> Result<TypeRetention, String> {
    let (kind, kept) = text.split_once('=').ok_or("expected TYPE=DURATION, such as off_cpu=7d")?;
    if kind.is_empty() || kind.len() > crate::limits::LABEL_BYTES_MAX {
        return Err("the type has no name, or a too long one".to_owned());
    }
    Ok(TypeRetention { kind: kind.into(), kept_ms: duration_ms(kept)? })
}

/// A number with an optional binary unit: `10G`, `512MiB`, `1000`.
fn bytes(text: &str) -> Result<u64, String> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let number: u64 =
        number.parse().map_err(|_invalid| "expected a number such as 10G".to_owned())?;
    let unit = unit.trim_end_matches("iB").trim_end_matches('B');
    let shift = match unit {
        "" => 0,
        "K" | "k" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        _ => return Err("the unit must be one of K M G T".to_owned()),
    };
    number.checked_mul(1 << shift).filter(|&bytes| bytes > 0).ok_or("out of range".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn types_that_are_kept_for_less_time() {
        let hour = 3_600_000;
        let kept = |kind: &str, kept_ms| Ok(TypeRetention { kind: kind.into(), kept_ms });
        let rows = [
            ("off_cpu=7d", kept("off_cpu", 7 * 24 * hour)),
            ("lock=12h", kept("lock", 12 * hour)),
            ("off_cpu", Err("expected TYPE=DURATION, such as off_cpu=7d".to_owned())),
            ("=7d", Err("the type has no name, or a too long one".to_owned())),
            ("cpu=0s", Err("must be longer than 0".to_owned())),
        ];
        for (text, expected) in rows {
            assert_eq!(type_retention(text), expected, "{text}");
        }
        let of = |arguments: &[&str]| {
            let Command::Serve(args) =
                Cli::try_parse_from([&["vesta", "serve"], arguments].concat()).unwrap().command
            else {
                panic!("another command")
            };
            args.keep.retention()
        };
        assert_eq!(of(&[]), Ok(Retention::new(400 * 24 * hour)));
        assert!(of(&["--retention-of", "lock=7d", "--retention-of", "off_cpu=7d"]).is_ok());
        let twice = of(&["--retention-of", "lock=7d", "--retention-of", "lock=8d"]);
        assert_eq!(twice, Err(RetentionError::Twice("lock".into())));
        let longer = of(&["--retention", "7d", "--retention-of", "lock=8d"]);
        assert_eq!(longer, Err(RetentionError::Longer("lock".into())));
    }

    #[test]
    fn byte_counts() {
        let rows: &[(&str, Result<u64, &str>)] = &[
            ("1000", Ok(1_000)),
            ("10G", Ok(10 << 30)),
            ("512MiB", Ok(512 << 20)),
            ("2TB", Ok(2 << 40)),
            ("0", Err("out of range")),
            ("G", Err("expected a number such as 10G")),
            ("5X", Err("the unit must be one of K M G T")),
            ("99999999999T", Err("out of range")),
        ];
        for (text, expected) in rows {
            assert_eq!(bytes(text), expected.map_err(str::to_owned), "{text}");
        }
    }
}
