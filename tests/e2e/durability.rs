//! The collector killed without warning, again and again, under load. Goal: everything that it acknowledged
//! is there, and nothing is there twice. Method: four senders send windows as an agent does, each with its own
//! boot id and a sequence, and repeat each until it is acknowledged; the collector is killed at random
//! moments and started again on the same data; after each start it must hold at least what was acknowledged
//! and at most that and what was under way, and in the end exactly what was sent.

use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tests::profiles::{Client, Sender, request};
use tests::{Collector, need, seed};

const KILLS: u32 = 20;
const SENDERS: u64 = 4;

/// Samples of one window; the windows of a sender differ, so that a sum shows which is missing.
fn samples_of(sequence: u64) -> usize {
    usize::try_from(sequence % 13 + 1).expect("small")
}

/// What the senders and the test share.
#[derive(Default)]
struct Shared {
    port: AtomicU16,
    stop: AtomicBool,
    /// Samples acknowledged.
    acknowledged: AtomicU64,
    /// Samples sent or under way: counted before sending.
    offered: AtomicU64,
    failures: Mutex<Vec<String>>,
}

#[test]
fn killed_under_load() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut collector = Collector::start_on(folder.path(), &[]);
    let shared = Arc::new(Shared::default());
    shared.port.store(collector.otlp_grpc().port(), Ordering::SeqCst);
    let senders: Vec<_> = (0..SENDERS)
        .map(|sender| {
            let shared = Arc::clone(&shared);
            std::thread::spawn(move || send(sender, &shared))
        })
        .collect();
    let mut state = seed() | 1;
    need::figure(&format!("seed {state}"));
    for _ in 0..KILLS {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        std::thread::sleep(Duration::from_millis(100 + (state >> 33) % 900));
        collector.kill();
        let acknowledged = shared.acknowledged.load(Ordering::SeqCst);
        drop(collector);
        collector = Collector::start_on(folder.path(), &[]);
        shared.port.store(collector.otlp_grpc().port(), Ordering::SeqCst);
        let stored = stored(&collector);
        let offered = shared.offered.load(Ordering::SeqCst);
        assert!(stored >= acknowledged, "{acknowledged} acknowledged, {stored} stored");
        assert!(stored <= offered, "{offered} offered, {stored} stored");
    }
    std::thread::sleep(Duration::from_millis(500));
    shared.stop.store(true, Ordering::SeqCst);
    senders.into_iter().for_each(|sender| sender.join().expect("a sender ends well"));
    let failures = shared.failures.lock().unwrap_or_else(PoisonError::into_inner);
    assert!(failures.is_empty(), "{failures:?}");
    let sent = shared.acknowledged.load(Ordering::SeqCst);
    assert_eq!(shared.offered.load(Ordering::SeqCst), sent, "each sender saw its last one through");
    need::figure(&format!("{sent} samples through {KILLS} kills"));
    assert!(sent > 1000, "there was load");
    assert_eq!(stored(&collector), sent);
    // Once more from what lies on disk after an orderly end.
    collector.stop();
    let collector = Collector::start_on(folder.path(), &[]);
    assert_eq!(stored(&collector), sent);
}

/// Sends windows until told to stop; each is repeated until it is acknowledged.
fn send(sender: u64, shared: &Shared) {
    let mut client: Option<(u16, Client)> = None;
    let mut sequence = 0_u64;
    while !shared.stop.load(Ordering::SeqCst) {
        sequence += 1;
        let samples = samples_of(sequence);
        let mut id = [0; 16];
        id[..8].copy_from_slice(&(0x1234_0000 + sender).to_be_bytes());
        id[8..].copy_from_slice(&sequence.to_be_bytes());
        let window = request(Sender { service: "durable", scope: "vesta-agent" }, id, samples);
        shared.offered.fetch_add(samples as u64, Ordering::SeqCst);
        loop {
            match attempt(&mut client, shared, &window) {
                Ok(0) => break,
                Ok(rejected) => {
                    let mut failures =
                        shared.failures.lock().unwrap_or_else(PoisonError::into_inner);
                    failures.push(format!("{rejected} profiles rejected"));
                    return;
                }
                Err(_) => {
                    client = None;
                    std::thread::sleep(Duration::from_millis(20));
                }
            }
        }
        shared.acknowledged.fetch_add(samples as u64, Ordering::SeqCst);
    }
}

fn attempt(
    client: &mut Option<(u16, Client)>,
    shared: &Shared,
    window: &proto::otlp::collector::ExportProfilesServiceRequest,
) -> Result<i64, String> {
    let port = shared.port.load(Ordering::SeqCst);
    if client.as_ref().is_none_or(|(known, _)| *known != port) {
        let address = ([127, 0, 0, 1], port).into();
        *client = Some((port, Client::connect(address)?));
    }
    let (_, connected) = client.as_mut().ok_or("connected above")?;
    connected.send(window).map_err(|status| status.to_string())
}

/// Samples that queries see.
fn stored(collector: &Collector) -> u64 {
    let query = [("from", "now-1h"), ("to", "now+1m"), ("filter", "{service=\"durable\"}")];
    let graph = collector.api("flamegraph", &query);
    graph["samples"].as_u64().expect("a number of samples")
}
