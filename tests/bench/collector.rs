//! What the collector takes and how fast it answers: windows of a busy host over OTLP/gRPC, each acknowledged
//! when it is on disk; then merges over all of it.

use crate::CollectorArgs;
use crate::figures::{Figure, print};
use crate::observer::Reading;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tests::Collector;
use tests::host_window::HostWindow;
use tests::profiles::{connect_bytes, send_bytes_on};

/// Windows made before the clock runs; they carry no id, so each counts whenever it is sent.
const WINDOWS: u64 = 64;

/// Merges that are timed.
const MERGES: usize = 30;

pub(crate) fn measure(args: CollectorArgs) {
    let mut collector = Collector::start();
    let shape = HostWindow::default();
    let windows: Arc<Vec<Vec<u8>>> =
        Arc::new((0..WINDOWS).map(|seed| shape.encoded(seed)).collect());
    let sent = Arc::new(AtomicU64::new(0));
    let pid = collector.process().pid();
    let before = Reading::of(pid);
    let start = Instant::now();
    let senders: Vec<_> = (0..args.senders)
        .map(|sender| {
            let (windows, sent) = (Arc::clone(&windows), Arc::clone(&sent));
            let address = collector.otlp_grpc();
            std::thread::spawn(move || {
                let mut channel = connect_bytes(address);
                for window in windows.iter().cycle().skip(sender * 7) {
                    if start.elapsed() > Duration::from_secs(args.seconds) {
                        break;
                    }
                    match send_bytes_on(&mut channel, window) {
                        Ok(0) => sent.fetch_add(shape.observations(), Ordering::Relaxed),
                        Ok(rejected) => panic!("{rejected} profiles rejected"),
                        Err(status) if status.code() == tonic::Code::Unavailable => 0,
                        Err(status) => panic!("{status}"),
                    };
                }
            })
        })
        .collect();
    senders.into_iter().for_each(|sender| sender.join().expect("a sender ends well"));
    let seconds = start.elapsed().as_secs_f64();
    let after = Reading::of(pid);
    let samples = number(sent.load(Ordering::Relaxed));
    let disk = collector.api("meta", &[])["data"]["disk_bytes"].as_f64().unwrap_or(0.0);
    let mut figures = vec![
        Figure::new("durable_samples_per_second", samples / seconds, "samples/s"),
        Figure::new("samples_stored", samples, "samples"),
        Figure::new("cpu_per_sample", number(after.cpu_ns - before.cpu_ns) / samples, "ns"),
        Figure::new("disk_per_sample", disk / samples, "bytes"),
        Figure::new("rss", number(after.rss_bytes), "bytes"),
    ];
    for (name, worst, path, query) in [
        ("merge_all_median", "merge_all_p95", "flamegraph", ""),
        ("merge_service_median", "merge_service_p95", "flamegraph", "{service=\"service-3\"}"),
        ("functions_median", "functions_p95", "functions", ""),
        ("series_median", "series_p95", "series", ""),
    ] {
        let (median, p95) = latency(&collector, path, query);
        figures.push(Figure::new(name, median, "ms"));
        figures.push(Figure::new(worst, p95, "ms"));
    }
    print(&figures, &[], args.json);
}

/// Median and 95th percentile of an answer, milliseconds.
fn latency(collector: &Collector, path: &str, filter: &str) -> (f64, f64) {
    let query = [("from", "now-1h"), ("to", "now+1m"), ("filter", filter)];
    let query = if filter.is_empty() { &query[..2] } else { &query[..] };
    let mut times: Vec<f64> = (0..MERGES)
        .map(|_| {
            let start = Instant::now();
            let answer = collector.ask(path, query);
            assert_eq!(answer.status, 200, "{}", answer.text());
            start.elapsed().as_secs_f64() * 1000.0
        })
        .collect();
    times.sort_by(f64::total_cmp);
    (times[MERGES / 2], times[MERGES * 95 / 100])
}

#[expect(clippy::cast_precision_loss, reason = "figures have a few digits")]
fn number(count: u64) -> f64 {
    count as f64
}
