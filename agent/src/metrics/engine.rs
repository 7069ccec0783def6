//! What the engine counted, as metrics: read when somebody asks, from [`Control::counts`].

use crate::engine::{Control, EngineCounts};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use std::fmt;
use std::sync::{Arc, OnceLock};

/// One figure: its name, what it says, and where it stands.
type Figure = (&'static str, &'static str, fn(&EngineCounts) -> u64);

/// Figures that go up and down.
const NOW: [Figure; 11] = [
    ("processes", "Process instances known", |counts| counts.processes.known),
    ("files", "Foreign files known", |counts| counts.files.known),
    ("files_open", "Descriptors of foreign files held", |counts| counts.files.open),
    ("tables", "Unwind tables loaded", |counts| counts.tables.tables),
    ("tables_pending", "Unwind tables being made", |counts| counts.tables.pending),
    ("table_rows", "Unwind rows loaded", |counts| counts.tables.rows),
    ("table_bytes", "BPF memory of unwind tables and mappings", |counts| counts.table_bytes),
    ("map_bytes", "BPF memory of all other maps", |counts| counts.map_bytes),
    ("perf_maps", "Perf maps held", |counts| counts.perf_maps.maps),
    ("perf_map_bytes", "Memory of perf maps", |counts| counts.perf_maps.bytes),
    ("lifecycle_records_waiting", "Records held back until earlier ones came", |counts| {
        counts.waiting
    }),
];

/// Figures that only grow.
const SINCE_START: [Figure; 24] = [
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
    ("mappings_left_out", "Executable mappings beyond the limit of a process", |counts| {
        counts.processes.mappings_left_out + counts.tables.mappings_left_out
    }),
    ("generations", "Layouts of processes published", |counts| counts.tables.generations),
    ("generations_mismatched", "Samples walked with mappings of another program", |counts| {
        counts.processes.generations_mismatched
    }),
    ("processes_not_published", "Layouts that the kernel side did not take", |counts| {
        counts.tables.processes_refused
    }),
    ("tables_failed", "Files that gave no unwind table", |counts| counts.tables.failed),
    ("tables_without_room", "Unwind tables that did not fit", |counts| counts.tables.no_room),
    ("tables_evicted", "Unwind tables removed to make room", |counts| counts.tables.evicted),
    ("files_forgotten", "Foreign files forgotten to make room", |counts| counts.files.forgotten),
    ("files_unreadable", "Mapped files that could not be opened", |counts| counts.files.unreadable),
    ("files_malformed", "Mapped files that are no executables", |counts| counts.files.malformed),
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
    ("perf_maps_evicted", "Perf maps forgotten to make room", |counts| counts.perf_maps.evicted),
    ("samples_of_other_processes", "Samples that were not asked for", |counts| counts.filtered),
];

/// The engine whose figures are shown, once there is one.
#[derive(Clone, Debug, Default)]
pub(super) struct EngineFigures {
    control: Arc<OnceLock<Control>>,
}

impl EngineFigures {
    /// Shows the figures of this engine from now on. The first one stays.
    pub(super) fn watch(&self, control: Control) {
        self.control.get_or_init(|| control);
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
        for (name, help, read) in SINCE_START {
            let counter = ConstCounter::new(read(&counts));
            let kind = counter.metric_type();
            counter.encode(encoder.encode_descriptor(name, help, None, kind)?)?;
        }
        Ok(())
    }
}
