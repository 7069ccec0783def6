//! What the agent says of itself: every counter in one place, written as `OpenMetrics` text on a loopback
//! address. Not the account of a window, which travels with the window, nor those of its processes: pids
//! come and go without bound, and a label that leaves a list of the worst ten is no counter any more. Which
//! process lost what is in the attributes of its profiles (`export::otlp`).

use crate::aggregate::{DropReason, NamedWindow};
use crate::engine::Control;
use crate::symbolize::UnnamedReason;
use agent_ebpf::Outcome;
use engine::EngineFigures;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

mod engine;
mod server;
mod waits;

pub use server::{MetricsServer, ServeError};

#[cfg(test)]
mod tests;

/// Why something is not there.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Reason {
    /// A word from a fixed list.
    pub reason: &'static str,
}

/// How something ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Status {
    /// A gRPC status name, or an outcome of the walk.
    pub status: &'static str,
}

/// Counters of the way to the collector. Cheap to clone: clones count into the same numbers.
#[derive(Clone, Debug, Default)]
pub struct ExportMetrics {
    /// Requests that were answered or failed, by gRPC status.
    pub requests: Family<Status, Counter>,
    /// Requests sent again.
    pub retries: Counter,
    /// Uncompressed bytes of acknowledged requests.
    pub bytes: Counter,
    /// Observations that were acknowledged.
    pub observations: Counter,
    /// Observations that were given up, by reason.
    pub observations_dropped: Family<Reason, Counter>,
    /// Profiles that the receiver refused out of an accepted request.
    pub profiles_rejected: Counter,
    /// Uncompressed bytes that wait.
    pub queue_bytes: Gauge,
    /// Requests that wait.
    pub queue_requests: Gauge,
}

/// Everything the agent counts.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    /// The way to the collector.
    pub export: ExportMetrics,
    windows: Counter,
    samples: Counter,
    samples_lost: Family<Reason, Counter>,
    samples_filtered: Counter,
    outcomes: Family<Status, Counter>,
    frames: Counter,
    frames_unnamed: Family<Reason, Counter>,
    naming_late: Counter,
    naming_panics: Counter,
    naming_silent: Counter,
    ledger_gaps: Counter,
    ticks_expected: Counter,
    ticks_missed: Counter,
    ticks_asleep: Counter,
    runs: Counter,
    runs_idle: Counter,
    program_ns: Counter,
    engine: EngineFigures,
    resident_bytes: Gauge,
    cpu_ns: Gauge,
}

impl Metrics {
    /// Adds one window.
    pub fn count_window(&self, window: &NamedWindow) {
        let ledger = &window.ledger;
        self.windows.inc();
        self.samples.inc_by(window.observations());
        let lost = |reason, count| {
            self.samples_lost.get_or_create(&Reason { reason }).inc_by(count);
        };
        lost("ring buffer full", ledger.lost_in_ring);
        lost("not decodable", ledger.malformed);
        for (reason, count) in DropReason::ALL.into_iter().zip(ledger.dropped) {
            lost(reason.label(), count);
        }
        let names = window.name_counts();
        self.frames.inc_by(names.frames);
        for (reason, count) in UnnamedReason::ALL.into_iter().zip(names.unnamed) {
            self.frames_unnamed.get_or_create(&Reason { reason: reason.name() }).inc_by(count);
        }
        self.naming_late.inc_by(window.naming.late);
        self.naming_panics.inc_by(window.naming.panics);
        self.naming_silent.inc_by(window.naming.silent);
        if let Err(gap) = ledger.check(window.observations()) {
            self.ledger_gaps.inc();
            tracing::error!(%gap, "a sample is unaccounted for: a defect");
        }
        self.samples_filtered.inc_by(ledger.filtered.saturating_add(ledger.unwanted));
        self.ticks_expected.inc_by(ledger.ticks_expected);
        self.ticks_missed.inc_by(ledger.missed());
        self.ticks_asleep.inc_by(ledger.asleep);
        self.runs.inc_by(ledger.runs);
        self.runs_idle.inc_by(ledger.idle);
        self.program_ns.inc_by(ledger.program_run_ns.saturating_add(ledger.waits.program_run_ns));
        for (outcome, count) in Outcome::ALL.into_iter().zip(ledger.outcomes) {
            self.outcomes.get_or_create(&Status { status: outcome.name() }).inc_by(count);
        }
    }

    /// Shows what this engine counts from now on, and how often debug information was put off.
    pub fn watch(&self, control: Control, debug_info_put_off: Arc<AtomicU64>) {
        self.engine.watch(control, debug_info_put_off);
    }

    /// Reads what the kernel knows of this process.
    pub fn read_process(&self) {
        if let Some(bytes) = resident_bytes() {
            self.resident_bytes.set(bytes);
        }
        let cpu = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        self.cpu_ns.set(cpu.tv_sec.saturating_mul(1_000_000_000).saturating_add(cpu.tv_nsec));
    }

    /// A registry with every metric under its name.
    #[must_use]
    pub fn registry(&self) -> Registry {
        let mut root = Registry::with_prefix("vesta_agent");
        self.register_sampling(&mut root);
        self.register_export(&mut root);
        root.register_collector(Box::new(self.engine.clone()));
        root.register_with_unit(
            "resident",
            "Resident memory of the process",
            Unit::Bytes,
            self.resident_bytes.clone(),
        );
        let help = "CPU time of the process, without its BPF programs";
        root.register("process_cpu_nanoseconds", help, self.cpu_ns.clone());
        root
    }

    fn register_sampling(&self, root: &mut Registry) {
        root.register("windows", "Windows sealed", self.windows.clone());
        root.register("samples", "Samples in windows", self.samples.clone());
        root.register(
            "samples_lost",
            "Samples that were taken and lost",
            self.samples_lost.clone(),
        );
        let help = "Program runs of processes that were not asked for";
        root.register("samples_filtered", help, self.samples_filtered.clone());
        root.register("outcomes", "How walks of user stacks ended", self.outcomes.clone());
        root.register("frames", "Frames of code in samples", self.frames.clone());
        let help = "Frames without a name";
        root.register("frames_unnamed", help, self.frames_unnamed.clone());
        let help =
            "Files and processes without names, because others took the time of their window";
        root.register("naming_late", help, self.naming_late.clone());
        let help = "Files and kernel addresses that made what names them panic";
        root.register("naming_panics", help, self.naming_panics.clone());
        let help = "Files without names, because they did not answer";
        root.register("naming_silent", help, self.naming_silent.clone());
        let help = "Windows whose account does not close: each is a defect";
        root.register("ledger_gaps", help, self.ledger_gaps.clone());
        root.register(
            "ticks_expected",
            "Clock ticks that had to fire",
            self.ticks_expected.clone(),
        );
        let help = "Clock ticks for which the kernel ran no program though the CPU worked";
        root.register("ticks_missed", help, self.ticks_missed.clone());
        let help = "Clock ticks that came due while their CPU slept, and did not wake it";
        root.register("ticks_asleep", help, self.ticks_asleep.clone());
        root.register("program_runs", "Runs of the sampling program", self.runs.clone());
        let help = "Runs of the sampling program that met the idle task";
        root.register("program_runs_idle", help, self.runs_idle.clone());
        let help = "CPU time of the BPF programs";
        root.register("program_nanoseconds", help, self.program_ns.clone());
    }

    fn register_export(&self, root: &mut Registry) {
        let export = &self.export;
        root.register("export_requests", "Export requests by gRPC status", export.requests.clone());
        root.register("export_retries", "Export requests sent again", export.retries.clone());
        let help = "Uncompressed bytes acknowledged";
        root.register_with_unit("export_sent", help, Unit::Bytes, export.bytes.clone());
        let help = "Samples acknowledged by the receiver";
        root.register("export_samples", help, export.observations.clone());
        let help = "Samples given up on the way to the receiver";
        root.register("export_samples_dropped", help, export.observations_dropped.clone());
        let help = "Profiles that the receiver refused within accepted requests";
        root.register("export_profiles_rejected", help, export.profiles_rejected.clone());
        let help = "Uncompressed bytes that wait for the receiver";
        root.register_with_unit("export_queue", help, Unit::Bytes, export.queue_bytes.clone());
        let help = "Requests that wait for the receiver";
        root.register("export_queue_requests", help, export.queue_requests.clone());
    }
}

/// The second field of `/proc/self/statm` in bytes.
fn resident_bytes() -> Option<i64> {
    let statm = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: i64 = statm.split_whitespace().nth(1)?.parse().ok()?;
    pages.checked_mul(i64::try_from(rustix::param::page_size()).ok()?)
}
