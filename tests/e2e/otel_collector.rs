//! Windows of the agent through a real OpenTelemetry Collector, which batches them anew. Goal: what arrives
//! behind it has the same totals as what was sent. Method: keep the agent's requests, then send the same bytes to
//! one of our collectors directly, and to another through the OpenTelemetry Collector.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use tests::agent::AgentOptions;
use tests::profiles::send_bytes;
use tests::workload::{Language, start_split, truth};
use tests::{Agent, Collector, Running, Sink, eventually, free_port, need, seed};

#[test]
fn windows_arrive_with_the_same_totals() {
    if !need::bpf() {
        return;
    }
    let Some(executable) = need::tool("VESTA_OTELCOL", "otelcol-vesta-test") else { return };
    let Some(program) = Language::C.split() else { return };
    let requests = windows(&program);
    let (direct, behind) = (Collector::start(), Collector::start());
    let folder = tempfile::tempdir().expect("a temporary folder");
    let port = free_port();
    let _between = between(&executable, folder.path(), port, behind.otlp_grpc());
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    for request in &requests {
        assert_eq!(send_bytes(direct.otlp_grpc(), request).expect("accepted"), 0);
        assert_eq!(send_bytes(address, request).expect("accepted"), 0);
    }
    let wanted = totals(&direct);
    need::figure(&format!("{} requests, {} services", requests.len(), wanted.len()));
    assert!(wanted.iter().any(|(service, _)| service == "split-c"), "{wanted:?}");
    eventually("the same arrives", Duration::from_secs(20), || {
        let arrived = totals(&behind);
        if arrived == wanted { Ok(()) } else { Err(format!("{arrived:?} instead of {wanted:?}")) }
    });
}

/// What the agent sends in two windows with a workload running.
fn windows(program: &Path) -> Vec<Vec<u8>> {
    let sink = Sink::start();
    let agent = Agent::start(&sink.url(), &AgentOptions::at(97));
    truth(start_split(program, 6, seed()));
    agent.stop();
    sink.requests()
}

/// An OpenTelemetry Collector that passes profiles from `port` on to `receiver`.
fn between(executable: &Path, folder: &Path, port: u16, receiver: SocketAddr) -> Running {
    let template = Path::new(env!("CARGO_MANIFEST_DIR")).join("otel-collector/config.yaml");
    let template = std::fs::read_to_string(template).expect("the repository is whole");
    let config = template
        .replace("${RECEIVER}", &format!("127.0.0.1:{port}"))
        .replace("${EXPORTER}", &receiver.to_string());
    let file = folder.join("config.yaml");
    std::fs::write(&file, config).expect("a temporary folder can be written");
    let mut command = Command::new(executable);
    command.arg("--config").arg(file).arg("--feature-gates=+service.profilesSupport");
    let mut process = Running::start(command);
    process.wait_for("Everything is ready", Duration::from_secs(30));
    process
}

/// Samples and nanoseconds of every service, by name.
fn totals(collector: &Collector) -> Vec<(String, (u64, i64))> {
    let range = [("from", "now-1h"), ("to", "now+1m")];
    let services = collector.api("services", &range);
    let rows = services["rows"].as_array().expect("rows");
    let mut totals: Vec<(String, (u64, i64))> = rows
        .iter()
        .map(|row| {
            let service = row["service"].as_str().expect("a name").to_owned();
            let filter = format!("{{service={}}}", serde_json::json!(service));
            let query = [range[0], range[1], ("filter", filter.as_str())];
            let graph = collector.api("flamegraph", &query);
            let samples = graph["samples"].as_u64().expect("a count");
            (service, (samples, graph["total"].as_i64().expect("a total")))
        })
        .collect();
    totals.sort();
    totals
}
