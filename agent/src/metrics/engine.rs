//! What the engine counted, as metrics: read when somebody asks, from [`Control::counts`].

use super::waits;
use crate::engine::{Control, EngineCounts};
use crate::process::publish::{WAIT_BUCKETS_NS, WaitCounts};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// One figure: its name, what it says, and where it stands.
pub(super) type Figure = (&'static str, &'static str, fn(&EngineCounts) -> u64);

/// Figures that go up and down.
const NOW: [Figure; 25] = [
    ("go_programs_probed", "Go programs whose locks are probed", |counts| {
        counts.locks.probes.programs
    }),
    ("go_processes_thinned", "Processes of whose waits for locks some stand for all", |counts| {
        counts.locks.thinned
    }),
    ("libc_files_probed", "C libraries whose locks are probed", |counts| {
        counts.locks.probes.libraries
    }),
    ("cpus_not_sampled", "CPUs that came online and could not be sampled", |counts| {
        counts.cpus_not_sampled
    }),
    ("wait_threads", "Threads of which waits are known", |counts| counts.off_cpu.threads),
    ("processes", "Process instances known", |counts| counts.processes.known),
    (
        "reported_mappings_bytes",
        "Memory of reported mappings that nobody has looked at",
        |counts| counts.processes.reported_bytes,
    ),
    ("files", "Foreign files known", |counts| counts.files.known),
    ("file_bytes", "Memory of what is known of foreign files", |counts| counts.files.bytes),
    ("files_open", "Descriptors of foreign files held", |counts| counts.files.open),
    ("file_looks_stuck", "Looks at files that do not answer", |counts| counts.looks.stuck),
    ("tables", "Unwind tables loaded", |counts| counts.tables.tables),
    ("tables_pending", "Unwind tables being made", |counts| counts.tables.pending),
    ("tables_stuck", "Unwind tables whose file does not answer", |counts| {
        counts.tables.compiles.stuck
    }),
    ("tables_shared", "Files that use the table of a copy", |counts| counts.tables.shared),
    ("table_rows", "Unwind rows loaded", |counts| counts.tables.rows),
    ("table_bytes", "BPF memory of unwind tables and mappings", |counts| counts.table_bytes),
    ("map_bytes", "BPF memory of all other maps", |counts| counts.map_bytes),
    ("processes_to_publish_again", "Processes that the kernel side had no room for", |counts| {
        counts.tables.processes_waiting
    }),
    (
        "processes_cut",
        "Processes walked by a part of their mappings, because others need room",
        |counts| counts.tables.processes_cut,
    ),
    ("perf_maps", "Perf maps held", |counts| counts.perf_maps.maps),
    ("perf_maps_stuck", "Perf maps that do not answer", |counts| counts.perf_maps.stuck),
    ("perf_map_bytes", "Memory of perf maps", |counts| counts.perf_maps.bytes),
    ("stacks_held", "Samples that wait with a copy of their stack for tables", |counts| {
        counts.stacks.held
    }),
    ("lifecycle_records_waiting", "Records held back until earlier ones came", |counts| {
        counts.waiting
    }),
];

/// Figures that only grow.
const SINCE_START: [Figure; 79] = [
    ("go_programs_not_probed", "Times that a Go program could not be probed", |counts| {
        counts.locks.probes.programs_failed
    }),
    ("libc_files_not_probed", "Times that a C library could not be probed", |counts| {
        counts.locks.probes.libraries_failed
    }),
    (
        "lock_files_refused",
        "Times that a file's locks were not probed because too many are",
        |counts| counts.locks.probes.refused,
    ),
    ("lock_probe_hits", "Times that a goroutine met a probe", |counts| counts.locks.programs.hits),
    ("lock_waits_thinned", "Waits of goroutines that others stand for", |counts| {
        counts.locks.programs.thinned
    }),
    ("libc_lock_probe_hits", "Waits for locks of C libraries that met a probe", |counts| {
        counts.locks.programs.marked
    }),
    ("libc_lock_marks_refused", "Such waits that found no room", |counts| {
        counts.locks.programs.marks_refused
    }),
    (
        "lock_probe_pauses",
        "Times that probes were taken away because they cost too much",
        |counts| counts.locks.probes.over_budget,
    ),
    (
        "lock_waits_unread",
        "Windows for which the kernel did not say which goroutines wait",
        |counts| counts.locks.readings_failed,
    ),
    ("lock_waits_sent", "Waits of goroutines sent by the probes", |counts| {
        counts.locks.programs.sent
    }),
    ("lock_waits_unmatched", "Waits of goroutines that began before the probes", |counts| {
        counts.locks.programs.unmatched
    }),
    ("lock_waits_lost", "Waits of goroutines for locks that were not kept", |counts| {
        let counts = counts.locks.programs;
        counts.lost + counts.busy + counts.refused
    }),
    ("samples_received", "Samples taken out of the ring buffer", |counts| counts.received),
    ("lifecycle_records_lost", "Process records that the kernel dropped", |counts| {
        counts.processes.lost
    }),
    ("processes_refused", "Process instances that did not fit", |counts| counts.processes.refused),
    ("processes_unknown", "Samples of a process known by nothing else", |counts| {
        counts.processes.strangers
    }),
    ("process_exits_found", "Ends of processes that no record told of", |counts| {
        counts.processes.exits_found
    }),
    ("maps_read", "Reads of /proc/PID/maps", |counts| counts.processes.maps_read),
    ("maps_put_off", "Such reads not done, because the last brought nothing", |counts| {
        counts.processes.maps_put_off
    }),
    ("maps_verified", "Reads of /proc/PID/maps to see whether what is known is true", |counts| {
        counts.processes.maps_verified
    }),
    ("maps_outdated", "Of these, such that showed what no record had told", |counts| {
        counts.processes.maps_outdated
    }),
    ("mappings_left_out", "Executable mappings beyond the limit of a process", |counts| {
        counts.processes.mappings_left_out + counts.tables.mappings_left_out
    }),
    (
        "reported_mappings_forgotten",
        "Reported mappings forgotten for want of room: /proc is read for them",
        |counts| counts.processes.reports_forgotten,
    ),
    ("generations", "Layouts of processes published", |counts| counts.tables.generations),
    (
        "walks_outdated",
        "Samples cut where the walk went by a mapping that was replaced",
        |counts| counts.processes.walks_outdated,
    ),
    ("generations_mismatched", "Samples walked with mappings of another program", |counts| {
        counts.processes.generations_mismatched
    }),
    ("processes_not_published", "Layouts that the kernel side did not take", |counts| {
        counts.tables.processes_refused
    }),
    (
        "publications_put_off",
        "Layouts published later, because the process took long before",
        |counts| counts.tables.publications_put_off,
    ),
    ("tables_failed", "Files that gave no unwind table", |counts| counts.tables.failed),
    ("tables_late", "Files at which a thread that compiles was longer than any takes", |counts| {
        counts.tables.compiles.late
    }),
    ("table_entries_damaged", "Functions whose unwind information could not be read", |counts| {
        counts.tables.entries_damaged
    }),
    ("table_functions_left_out", "Functions beyond a limit of one file's unwind table", |counts| {
        counts.tables.functions_left_out
    }),
    ("table_rules_refused", "Unwind rows of files with too many distinct rules", |counts| {
        counts.tables.rules_refused
    }),
    ("tables_out_of_time", "Unwind tables cut short by the CPU time of one file", |counts| {
        counts.tables.out_of_time
    }),
    ("tables_put_off", "Files whose owner had used up the CPU time for unwind tables", |counts| {
        counts.tables.compiles.put_off
    }),
    ("tables_without_room", "Unwind tables that did not fit", |counts| counts.tables.no_room),
    ("tables_evicted", "Unwind tables removed to make room", |counts| counts.tables.evicted),
    ("tables_returned", "Unwind tables asked for again after their removal", |counts| {
        counts.tables.returned
    }),
    ("tables_completed", "Unwind tables that were used before all rows were found", |counts| {
        counts.tables.completed
    }),
    ("table_waits_overdue", "Waits for unwind tables that did not end in time", |counts| {
        counts.tables.waits.overdue + counts.tables.waits_large.overdue
    }),
    ("table_waits_abandoned", "Processes that ended before their unwind tables came", |counts| {
        counts.tables.waits.abandoned + counts.tables.waits_large.abandoned
    }),
    ("lifecycle_recoveries", "Times that all processes were read again after a loss", |counts| {
        counts.processes.recoveries
    }),
    ("file_looks_late", "Looks at files that took longer than anybody waited", |counts| {
        counts.looks.late
    }),
    ("file_looks_held", "Mappings not looked at, because their path does not answer", |counts| {
        counts.looks.held
    }),
    ("file_looks_forgotten", "Looks that were answered late, and nobody asked again", |counts| {
        counts.looks.forgotten
    }),
    ("file_looks_refused", "Looks not taken, because too many wait", |counts| counts.looks.refused),
    (
        "file_looks_postponed",
        "Looks not waited for, because others had taken the time of a poll",
        |counts| counts.looks.postponed,
    ),
    ("file_looks_panicked", "Files at which a parser panicked", |counts| counts.looks.panics),
    ("table_cache_hits", "Compiled tables found on disk", |counts| counts.cache.hits),
    ("table_cache_misses", "Compiled tables not found on disk", |counts| counts.cache.misses),
    ("table_cache_stored", "Compiled tables written to disk", |counts| counts.cache.stored),
    ("table_cache_damaged", "Files of the table cache that were damaged, and deleted", |counts| {
        counts.cache.damaged
    }),
    ("table_cache_deleted", "Files of the table cache deleted to make room", |counts| {
        counts.cache.deleted
    }),
    ("table_cache_failed", "Times that the disk refused the table cache", |counts| {
        counts.cache.failed
    }),
    ("table_cache_late", "Compiled tables that the disk did not give or take in time", |counts| {
        counts.cache.late
    }),
    ("files_refused", "Mappings whose file found no room: too many are mapped", |counts| {
        counts.files.refused
    }),
    ("files_forgotten", "Foreign files forgotten to make room", |counts| counts.files.forgotten),
    ("files_unreadable", "Mapped files that could not be opened", |counts| counts.files.unreadable),
    ("files_malformed", "Mapped files that are no executables", |counts| counts.files.malformed),
    (
        "files_embedded_left_out",
        "Mappings inside larger files that were not looked at, because of a limit",
        |counts| counts.files.embedded_left_out,
    ),
    ("perf_map_entries", "Code regions that perf maps named", |counts| counts.perf_maps.entries),
    ("perf_map_read_bytes", "Bytes read of perf maps", |counts| counts.perf_maps.read_bytes),
    ("perf_map_lines_malformed", "Lines of perf maps that are no entries", |counts| {
        counts.perf_maps.malformed
    }),
    (
        "perf_map_entries_left_out",
        "Entries of perf maps beyond a limit, and reads put off",
        |counts| counts.perf_maps.left_out,
    ),
    ("perf_maps_refused", "Perf maps of another user, or older than their process", |counts| {
        counts.perf_maps.refused
    }),
    ("perf_map_execs_forgotten", "Execs that perf maps are not held against", |counts| {
        counts.perf_maps.execs_forgotten
    }),
    ("perf_maps_evicted", "Perf maps forgotten to make room", |counts| counts.perf_maps.evicted),
    (
        "processes_inherited",
        "Forked processes walked by their parent's mappings at once",
        |counts| counts.programs.inherited,
    ),
    (
        "processes_inherited_missed",
        "Forked processes that did not get their parent's mappings",
        |counts| counts.programs.inherited_missed,
    ),
    ("stacks_copied", "Samples that took a copy of their stack along", |counts| {
        counts.programs.stacks
    }),
    ("stacks_held_back", "Copies of the stack not made: too many, or too full a ring", |counts| {
        counts.programs.stacks_held
    }),
    ("stacks_unreadable", "Copies of the stack not made: nothing to read", |counts| {
        counts.programs.stacks_unreadable
    }),
    ("stacks_walked", "Copied stacks walked on once their tables were there", |counts| {
        counts.stacks.walked
    }),
    ("stacks_overdue", "Copied stacks whose tables did not come in time", |counts| {
        counts.stacks.overdue()
    }),
    ("stacks_overdue_process", "Of these, where nothing was known of the process", |counts| {
        counts.stacks.overdue_process
    }),
    (
        "stacks_overdue_mapping",
        "Of these, where the next frame was in no known mapping",
        |counts| counts.stacks.overdue_mapping,
    ),
    ("stacks_overdue_table", "Of these, where a table was still being made", |counts| {
        counts.stacks.overdue_table
    }),
    ("stacks_without_room", "Copied stacks that found no room to wait", |counts| {
        counts.stacks.no_room
    }),
    ("samples_of_other_processes", "Samples that were not asked for", |counts| counts.unwanted),
];

/// Waits for unwind tables.
type Waits = (&'static str, &'static str, fn(&EngineCounts) -> WaitCounts);

/// Histograms, in seconds.
const WAITS: [Waits; 2] = [
    (
        "table_wait_seconds",
        "From the first stack that met no mapping or table to their publication",
        |counts| counts.tables.waits,
    ),
    ("table_wait_large_seconds", "The same for tables of half a million rows and more", |counts| {
        counts.tables.waits_large
    }),
];

/// Bounds of buckets in seconds, and what fell into each.
fn buckets(waits: &WaitCounts) -> Vec<(f64, u64)> {
    let bounds = WAIT_BUCKETS_NS.into_iter().map(seconds).chain([f64::MAX]);
    bounds.zip(waits.buckets).collect()
}

fn seconds(ns: u64) -> f64 {
    Duration::from_nanos(ns).as_secs_f64()
}

/// The engine whose figures are shown, once there is one.
#[derive(Clone, Debug, Default)]
pub(super) struct EngineFigures {
    control: Arc<OnceLock<Control>>,
    debug_info_put_off: Arc<OnceLock<Arc<AtomicU64>>>,
}

impl EngineFigures {
    /// Shows the figures of this engine from now on. The first one stays.
    pub(super) fn watch(&self, control: Control, debug_info_put_off: Arc<AtomicU64>) {
        self.control.get_or_init(|| control);
        self.debug_info_put_off.get_or_init(|| debug_info_put_off);
    }
}

impl Collector for EngineFigures {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let Some(control) = self.control.get() else { return Ok(()) };
        let counts = control.counts();
        for (name, help, read) in NOW {
            let gauge = ConstGauge::new(i64::try_from(read(&counts)).unwrap_or(i64::MAX));
            let kind = gauge.metric_type();
            gauge.encode(encoder.encode_descriptor(name, help, None, kind)?)?;
        }
        for (name, help, read) in SINCE_START.into_iter().chain(waits::SINCE_START) {
            let counter = ConstCounter::new(read(&counts));
            let kind = counter.metric_type();
            counter.encode(encoder.encode_descriptor(name, help, None, kind)?)?;
        }
        let put_off = self.debug_info_put_off.get().map(|count| count.load(Ordering::Relaxed));
        let counter = ConstCounter::new(put_off.unwrap_or(0));
        let help = "Times that a file's debug information waited, because others took long";
        let kind = counter.metric_type();
        counter.encode(encoder.encode_descriptor("debug_info_put_off", help, None, kind)?)?;
        for (name, help, read) in WAITS {
            let waits = read(&counts);
            let mut histogram =
                encoder.encode_descriptor(name, help, None, MetricType::Histogram)?;
            let (sum, all) = (seconds(waits.sum_ns), buckets(&waits));
            histogram.encode_histogram::<NoLabelSet>(sum, waits.count, &all, None)?;
            let longest = ConstGauge::new(seconds(waits.max_ns));
            let (name, kind) = (format!("{name}_longest"), longest.metric_type());
            let help = "The longest of these waits, in seconds";
            longest.encode(encoder.encode_descriptor(&name, help, None, kind)?)?;
        }
        Ok(())
    }
}
