//! What the collector counts about itself, as OpenMetrics text. Figures of the store are read when the
//! text is asked for.

use crate::ingest::otlp::{Ledger, Rejections};
use crate::limits::LEDGER_FIGURES_MAX;
use crate::store::{Ack, StoreStats};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// How a request came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// OTLP/gRPC.
    Grpc,
    /// OTLP/HTTP.
    Http,
    /// pprof over HTTP.
    Pprof,
}

impl Transport {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Grpc => "grpc",
            Self::Http => "http",
            Self::Pprof => "pprof",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct IngestLabels {
    transport: &'static str,
    status: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TransportLabels {
    transport: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabels {
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PortLabels {
    port: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RouteLabels {
    route: &'static str,
    status: u16,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct LedgerLabels {
    host: String,
    figure: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RouteLabel {
    route: &'static str,
}

/// Seconds of a query: from what a page does not notice to the limit of a query.
const QUERY_BUCKETS_S: [f64; 11] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0];

fn query_histogram() -> Histogram {
    Histogram::new(QUERY_BUCKETS_S)
}

/// All counters.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    requests: Family<IngestLabels, Counter>,
    bytes: Family<TransportLabels, Counter>,
    profiles: Counter,
    duplicates: Counter,
    samples: Counter,
    rejected: Family<ReasonLabels, Counter>,
    /// Profiles received in the layout of protocol 1.8 or 1.9.
    pub(crate) old_layout: Counter,
    /// Attribute values that were cut because they were too long.
    pub(crate) truncated: Counter,
    /// Texts that were not UTF-8.
    pub(crate) replaced: Counter,
    ledger: Family<LedgerLabels, Counter>,
    ledger_figures: AtomicUsize,
    ledger_unkept: Counter,
    connections: Family<PortLabels, Gauge>,
    connections_refused: Family<PortLabels, Counter>,
    http: Family<RouteLabels, Counter>,
    query_seconds: Family<RouteLabel, Histogram, fn() -> Histogram>,
    store: StoreGauges,
}

#[derive(Debug, Default)]
struct StoreGauges {
    disk: Gauge,
    disk_max: Gauge,
    wal: Gauge,
    segments: Gauge,
    hours_dropped: Gauge,
    hours_expired: Gauge,
    sections_damaged: Gauge,
    segments_merged: Gauge,
    merges_failed: Gauge,
}

impl StoreGauges {
    fn register(&self, registry: &mut Registry) {
        let rows = [
            ("vesta_store_disk", "Bytes of stored profiles on disk", Some(Unit::Bytes), &self.disk),
            ("vesta_store_disk_max", "Limit of bytes on disk", Some(Unit::Bytes), &self.disk_max),
            ("vesta_store_wal", "Bytes in the write-ahead log", Some(Unit::Bytes), &self.wal),
            ("vesta_store_segments", "Segments on disk", None, &self.segments),
            (
                "vesta_store_hours_dropped",
                "Hours of data dropped because of the disk limit, since start",
                None,
                &self.hours_dropped,
            ),
            (
                "vesta_store_hours_expired",
                "Hours of data dropped because they are older than is kept, since start",
                None,
                &self.hours_expired,
            ),
            (
                "vesta_store_sections_damaged",
                "Damaged sections that queries left out, since start",
                None,
                &self.sections_damaged,
            ),
            (
                "vesta_store_segments_merged",
                "Segments that became part of larger ones, since start",
                None,
                &self.segments_merged,
            ),
            (
                "vesta_store_merges_failed",
                "Merges of segments that failed, since start: these segments stay as they are",
                None,
                &self.merges_failed,
            ),
        ];
        for (name, help, unit, gauge) in rows {
            match unit {
                Some(unit) => registry.register_with_unit(name, help, unit, gauge.clone()),
                None => registry.register(name, help, gauge.clone()),
            }
        }
    }

    fn set(&self, stats: &StoreStats) {
        let number = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        self.disk.set(number(stats.disk_bytes));
        self.disk_max.set(number(stats.disk_bytes_max));
        self.wal.set(number(stats.wal_bytes));
        self.segments.set(number(stats.segments));
        self.hours_dropped.set(number(stats.hours_dropped));
        self.hours_expired.set(number(stats.hours_expired));
        self.sections_damaged.set(number(stats.sections_damaged));
        self.segments_merged.set(number(stats.segments_merged));
        self.merges_failed.set(number(stats.merges_failed));
    }
}

impl Default for Metrics {
    fn default() -> Self {
        let mut this = Self {
            registry: Registry::default(),
            requests: Family::default(),
            bytes: Family::default(),
            profiles: Counter::default(),
            duplicates: Counter::default(),
            samples: Counter::default(),
            rejected: Family::default(),
            old_layout: Counter::default(),
            truncated: Counter::default(),
            replaced: Counter::default(),
            ledger: Family::default(),
            ledger_figures: AtomicUsize::new(0),
            ledger_unkept: Counter::default(),
            connections: Family::default(),
            connections_refused: Family::default(),
            http: Family::default(),
            query_seconds: Family::new_with_constructor(query_histogram),
            store: StoreGauges::default(),
        };
        this.register();
        this
    }
}

impl Metrics {
    fn register(&mut self) {
        let registry = &mut self.registry;
        let mut add = |name: &str, help: &str, counter: &Counter| {
            registry.register(name, help, counter.clone());
        };
        add("vesta_profiles_stored", "Profiles stored", &self.profiles);
        add(
            "vesta_profiles_duplicate",
            "Profiles received again, not stored twice",
            &self.duplicates,
        );
        add("vesta_observations_stored", "Observations in stored profiles", &self.samples);
        add("vesta_profiles_old_layout", "Profiles of OTLP 1.8 or 1.9", &self.old_layout);
        add("vesta_attribute_values_cut", "Attribute values cut to their limit", &self.truncated);
        add("vesta_texts_replaced", "Texts of pprof that were not UTF-8", &self.replaced);
        registry.register(
            "vesta_profiles_rejected",
            "Profiles refused, by reason",
            self.rejected.clone(),
        );
        registry.register("vesta_ingest_requests", "Requests by outcome", self.requests.clone());
        registry.register_with_unit(
            "vesta_ingest",
            "Bytes of request bodies as received",
            Unit::Bytes,
            self.bytes.clone(),
        );
        registry.register(
            "vesta_agent_ledger",
            "What agents say became of their clock's ticks, by host",
            self.ledger.clone(),
        );
        registry.register(
            "vesta_agent_ledger_unkept",
            "Figures of agents that were not kept because there are too many",
            self.ledger_unkept.clone(),
        );
        registry.register("vesta_connections", "Open connections", self.connections.clone());
        registry.register(
            "vesta_connections_refused",
            "Connections closed because there were too many",
            self.connections_refused.clone(),
        );
        registry.register(
            "vesta_http_requests",
            "Requests to the API and the page",
            self.http.clone(),
        );
        registry.register_with_unit(
            "vesta_query",
            "Time to answer a query",
            Unit::Seconds,
            self.query_seconds.clone(),
        );
        self.store.register(registry);
    }

    /// Counts a request to an ingest route.
    pub fn ingest_request(&self, transport: Transport, status: &'static str, bytes: usize) {
        let transport = transport.as_str();
        self.requests.get_or_create(&IngestLabels { transport, status }).inc();
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        self.bytes.get_or_create(&TransportLabels { transport }).inc_by(bytes);
    }

    /// Counts what the store acknowledged; `samples` are those of each profile of the batch.
    pub fn stored(&self, ack: &Ack, samples: &[usize]) {
        self.profiles.inc_by(ack.stored);
        self.duplicates.inc_by(ack.duplicates());
        let is_new = |at: &usize| ack.repeated.binary_search(at).is_err();
        let new = samples.iter().enumerate().filter(|(at, _)| is_new(at));
        let new: usize = new.map(|(_, samples)| samples).sum();
        self.samples.inc_by(u64::try_from(new).unwrap_or(u64::MAX));
    }

    /// Counts refused profiles.
    pub fn rejected(&self, rejections: &Rejections) {
        for (&reason, &profiles) in &rejections.by_reason {
            self.rejected.get_or_create(&ReasonLabels { reason }).inc_by(profiles);
        }
    }

    /// Counts one refused profile.
    pub fn reject(&self, reason: &'static str) {
        self.rejected.get_or_create(&ReasonLabels { reason }).inc();
    }

    /// Adds up what agents account for.
    pub fn ledger(&self, ledger: &Ledger) {
        for ((host, figure), &value) in ledger {
            let labels = LedgerLabels { host: host.to_string(), figure: figure.to_string() };
            if let Some(counter) = self.ledger.get(&labels) {
                counter.inc_by(value);
            } else if self.ledger_figures.fetch_add(1, Ordering::Relaxed) < LEDGER_FIGURES_MAX {
                self.ledger.get_or_create(&labels).inc_by(value);
            } else {
                self.ledger_unkept.inc();
            }
        }
    }

    /// Counts a connection that opened (`1`) or closed (`-1`).
    pub fn connection(&self, port: &'static str, change: i64) {
        self.connections.get_or_create(&PortLabels { port }).inc_by(change);
    }

    /// Counts a connection that was closed because there were too many.
    pub fn connection_refused(&self, port: &'static str) {
        self.connections_refused.get_or_create(&PortLabels { port }).inc();
    }

    /// Counts an answer of the main port.
    pub fn http_request(&self, route: &'static str, status: u16, took: Duration) {
        self.http.get_or_create(&RouteLabels { route, status }).inc();
        // A push is no query.
        if route.starts_with("/api/") && !route.ends_with("/profiles/pprof") {
            self.query_seconds.get_or_create(&RouteLabel { route }).observe(took.as_secs_f64());
        }
    }

    /// The OpenMetrics text.
    #[must_use]
    pub fn text(&self, stats: Option<&StoreStats>) -> String {
        if let Some(stats) = stats {
            self.store.set(stats);
        }
        let mut text = String::new();
        encode(&mut text, &self.registry).expect("writing to a String cannot fail");
        text
    }
}
