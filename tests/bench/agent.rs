//! What an agent costs, under each load, without and with off-CPU time: CPU with the time of its BPF programs, peak
//! memory with their maps, bytes on the wire, and how long it takes to the first sample.

use crate::figures::{Figure, print};
use crate::load::{Kind, Load};
use crate::observer::{BpfStatistics, Reading, host_ticks, new_map_bytes};
use crate::{AgentArgs, OffCpu};
use rustix::process::Signal;
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use tests::agent::{AgentOptions, command};
use tests::metrics::{self, Metrics};
use tests::observation::{Observation, observations};
use tests::{Running, Sink, eventually, kernel, need, profiles::now_ns};

/// Between start and measurement: tables are loaded, names are known.
const WARM_UP: Duration = Duration::from_secs(15);
/// Between the load's start and the agent's.
const SETTLE: Duration = Duration::from_secs(3);

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
    for (kind, off_cpu) in
        args.loads.iter().flat_map(|kind| args.off_cpu.iter().map(move |it| (*kind, *it)))
    {
        let length = WARM_UP * 4 + Duration::from_secs(args.seconds);
        let run = Run { kind, off_cpu, args };
        let own = {
            let sink = Sink::start();
            let load = Load::start(kind, length);
            let metrics = Metrics::somewhere();
            let mut arguments = metrics.arguments();
            if off_cpu == OffCpu::Without {
                arguments.push("--no-off-cpu".to_owned());
            }
            let options = AgentOptions { arguments, ..AgentOptions::at(args.frequency) };
            run.of(command(&sink.url(), &options), &sink, &load, Some(metrics))
        };
        let peer = args.beside.as_deref().filter(|_| off_cpu == OffCpu::Without).map(|profiler| {
            let sink = Sink::start();
            let load = Load::start(kind, length);
            run.of(peer_command(profiler, &sink, args), &sink, &load, None)
        });
        print(&own, &peer.unwrap_or_default(), args.json);
    }
}

/// One agent under one load.
#[derive(Clone, Copy)]
struct Run<'a> {
    kind: Kind,
    off_cpu: OffCpu,
    args: &'a AgentArgs,
}

impl Run<'_> {
    fn named(self, name: &str) -> String {
        format!("{name}{}{}", self.kind.suffix(), self.off_cpu.suffix())
    }

    /// Starts an agent, lets it warm up, and reads what it used.
    fn of(
        self,
        command: Command,
        sink: &Sink,
        load: &Load,
        metrics: Option<Metrics>,
    ) -> Vec<Figure> {
        std::thread::sleep(SETTLE); // the load runs
        let _statistics = BpfStatistics::on();
        let maps = kernel::bpf_maps();
        let start_ns = now_ns();
        let mut agent = Running::start(command);
        eventually("the first request arrives", Duration::from_secs(180), || {
            assert!(agent.is_running(), "the agent ended: {}{}", agent.stdout(), agent.stderr());
            if sink.requests().is_empty() { Err("none yet".to_owned()) } else { Ok(()) }
        });
        let measured = (self.kind != Kind::Spinners).then(|| {
            std::thread::sleep(WARM_UP);
            let count = load.count();
            let length = Duration::from_secs(self.args.seconds);
            let measured = Measured::over(length, &agent, sink, &maps, metrics.as_ref());
            (measured, load.count() - count)
        });
        std::thread::sleep(Duration::from_secs(7)); // the report of the last samples
        let at_end = metrics.map(|metrics| metrics.read());
        agent.signal(Signal::INT);
        agent.wait(Duration::from_secs(60));
        let all = observations(&sink.requests());
        let first_ns = all.iter().map(|it| it.time_ns).min().unwrap_or(start_ns);
        let named = |name: &str| self.named(name);
        let start_s = number(first_ns.saturating_sub(start_ns)) / 1e9;
        let mut figures = vec![Figure::new(named("start_to_first_sample_s"), start_s, "s")];
        if let Some((measured, count)) = measured {
            if let Some(cost) = self.kind.cost() {
                figures.push(Figure::new(
                    named(cost),
                    measured.spent_us() / size(count.max(1)),
                    "us",
                ));
                let rate = size(count) / measured.seconds();
                let name = cost.replace("_us", "s_per_second");
                figures.push(Figure::new(named(&name), rate, "1/s"));
            }
            figures.extend(measured.figures(&all, named));
        }
        figures.extend(at_end.iter().flat_map(|metrics| table_waits(metrics, named)));
        let said = agent.stdout() + &agent.stderr();
        let rows = rows_per_second(&said);
        figures.extend(rows.map(|it| Figure::new(named("unwind_rows_per_second"), it, "rows/s")));
        figures
    }
}

/// How long samples waited for the tables of files, and for those of large ones.
fn table_waits(metrics: &metrics::Reading, named: impl Fn(&str) -> String) -> Vec<Figure> {
    let mut figures = Vec::new();
    for (name, of_name) in [("table_wait", "table_wait"), ("table_wait_1m", "table_wait_large")] {
        let of = |what| metrics.get(&format!("{of_name}_seconds_{what}"));
        if of("count") == 0.0 {
            continue;
        }
        let p99 = metrics.quantile(&format!("{of_name}_seconds"), 0.99);
        let mut figure = |end, value, unit| {
            figures.push(Figure::new(named(&format!("{name}{end}")), value, unit));
        };
        figure("_s", of("sum") / of("count"), "s");
        figure("_p99_s", p99.min(of("longest")), "s");
        figure("_longest_s", of("longest"), "s");
        figure("_count", of("count"), "");
    }
    for name in ["table_waits_overdue", "table_waits_abandoned"] {
        figures.push(Figure::new(named(name), metrics.get(&format!("{name}_total")), ""));
    }
    figures
}

/// What was read at both ends of the measured part.
struct Measured {
    before: Reading,
    after: Reading,
    from_ns: u64,
    to_ns: u64,
    map_bytes: u64,
    wire_bytes: u64,
    host_busy: f64,
    /// What the agent said of itself, before and after.
    said: Option<[metrics::Reading; 2]>,
}

impl Measured {
    fn over(
        length: Duration,
        agent: &Running,
        sink: &Sink,
        maps: &BTreeSet<u32>,
        metrics: Option<&Metrics>,
    ) -> Self {
        let said_before = metrics.map(Metrics::read);
        let (before, ticks_before, from_ns) = (Reading::of(agent.pid()), host_ticks(), now_ns());
        let wire_before = sink.wire_bytes();
        std::thread::sleep(length);
        let (after, ticks, to_ns) = (Reading::of(agent.pid()), host_ticks(), now_ns());
        let host_busy =
            number(ticks.0 - ticks_before.0) / number((ticks.1 - ticks_before.1).max(1));
        let (map_bytes, wire_bytes) = (new_map_bytes(maps), sink.wire_bytes() - wire_before);
        let said = said_before.zip(metrics.map(Metrics::read)).map(<[_; 2]>::from);
        Self { before, after, from_ns, to_ns, map_bytes, wire_bytes, host_busy, said }
    }

    fn seconds(&self) -> f64 {
        number(self.to_ns - self.from_ns) / 1e9
    }

    /// CPU time of the agent with its BPF programs.
    fn spent_us(&self) -> f64 {
        let bpf_ns = self.after.bpf_since(&self.before).ns;
        number(self.after.cpu_ns.saturating_sub(self.before.cpu_ns) + bpf_ns) / 1e3
    }

    fn figures(&self, all: &[Observation], named: impl Fn(&str) -> String) -> Vec<Figure> {
        let during = self.from_ns..self.to_ns;
        let samples: Vec<&Observation> =
            all.iter().filter(|it| during.contains(&it.time_ns)).collect();
        let frames: usize =
            samples.iter().map(|it| it.frames.iter().filter(|f| !f.is_marker()).count()).sum();
        let bpf = self.after.bpf_since(&self.before);
        let bpf_ns = bpf.ns;
        let cpu_ns = self.after.cpu_ns.saturating_sub(self.before.cpu_ns);
        let seconds = self.seconds();
        let percent = |ns: u64| number(ns) / 1e7 / seconds;
        let mib = |bytes: u64| number(bytes) / 1_048_576.0;
        let count = size(samples.len().max(1));
        let figure = |name: &str, value, unit| Figure::new(named(name), value, unit);
        let mut figures = vec![
            figure("agent_cpu_percent_of_one_cpu", percent(cpu_ns + bpf_ns), "%"),
            figure("agent_user_percent_of_one_cpu", percent(cpu_ns), "%"),
            figure("bpf_percent_of_one_cpu", percent(bpf_ns), "%"),
            figure(
                "bpf_us_per_run",
                number(bpf.clock_ns) / 1e3 / number(bpf.clock_runs.max(1)),
                "us",
            ),
            figure("bpf_ns_per_frame", number(bpf.clock_ns) / size(frames.max(1)), "ns"),
            figure(
                "agent_memory_with_maps_mib",
                mib(self.after.rss_peak_bytes + self.map_bytes),
                "MiB",
            ),
            figure("agent_rss_mib", mib(self.after.rss_bytes), "MiB"),
            figure("bpf_maps_mib", mib(self.map_bytes), "MiB"),
            figure("wire_bytes_per_sample", number(self.wire_bytes) / count, "bytes"),
            figure("wire_bytes_per_second", number(self.wire_bytes) / seconds, "bytes/s"),
            figure("samples_per_second", size(samples.len()) / seconds, "samples/s"),
            figure("frames_per_sample", size(frames) / count, "frames"),
            figure("host_busy", self.host_busy, "share"),
        ];
        figures.extend(self.said.iter().flat_map(|said| {
            self.switches(said).map(|(name, value, unit)| figure(name, value, unit))
        }));
        figures
    }

    /// Of the switches of CPUs between threads, where they are watched.
    fn switches(
        &self,
        [before, after]: &[metrics::Reading; 2],
    ) -> impl Iterator<Item = (&'static str, f64, &'static str)> {
        let of = |name: &str| {
            let name = format!("{name}_total");
            after.get(&name) - before.get(&name)
        };
        let (switches, stacks) = (of("switches"), of("wait_stacks"));
        let bpf = self.after.bpf_since(&self.before);
        let ns = number(bpf.ns - bpf.clock_ns);
        let watched = switches > 0.0;
        [
            ("switches_per_second", switches / self.seconds(), "1/s"),
            ("bpf_ns_per_switch", ns / switches.max(1.0), "ns"),
            ("wait_stacks_per_second", stacks / self.seconds(), "1/s"),
        ]
        .into_iter()
        .filter(move |_| watched)
    }
}

/// The agent says how many rows it compiled for the processes that existed, and in what time.
fn rows_per_second(said: &str) -> Option<f64> {
    let line = said.lines().find(|line| line.contains("processes are known"))?;
    let number = |key: &str| -> Option<f64> {
        let rest = line.split(key).nth(1)?;
        rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
    };
    let (rows, ms) = (number("rows=")?, number("taken_ms=")?);
    Some(rows / ms * 1000.0)
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

fn size(count: usize) -> f64 {
    number(count as u64)
}

#[expect(clippy::cast_precision_loss, reason = "figures have a few digits")]
fn number(count: u64) -> f64 {
    count as f64
}
