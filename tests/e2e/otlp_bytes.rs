//! The bytes of the agent, read by somebody else: OpenTelemetry's own Python protobufs find the same
//! samples, leaf functions and processes as this project's reader.

use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use tests::agent::AgentOptions;
use tests::observation::observations;
use tests::workload::{Language, start_split, truth};
use tests::{Agent, Sink, need, seed};

#[test]
fn python_protobufs_read_the_same() {
    if !need::bpf() {
        return;
    }
    let Some(python) = need::tool("VESTA_PYTHON", "python-with-opentelemetry-proto") else {
        return;
    };
    let Some(program) = Language::C.split() else { return };
    let sink = Sink::start();
    let agent = Agent::start(&sink.url(), &AgentOptions::at(97));
    let split = start_split(&program, 3, seed());
    let pid = split.pid();
    let truth = truth(split);
    // One whole window, and the rest at the end.
    tests::eventually("a request arrives", Duration::from_secs(20), || {
        if sink.requests().is_empty() { Err("none yet".to_owned()) } else { Ok(()) }
    });
    agent.stop();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let files = sink.save(folder.path());
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("e2e/read_otlp.py");
    let output = Command::new(python).arg(script).args(files).output().expect("python runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let theirs: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let own = observations(&sink.requests());
    let (mut leaves, mut pids) = (BTreeMap::new(), BTreeMap::new());
    for sample in &own {
        let leaf = sample.frames.first().and_then(|frame| frame.functions.first());
        *leaves.entry(leaf.cloned().unwrap_or_default()).or_insert(0_u64) += 1;
        *pids.entry(sample.pid.to_string()).or_insert(0_u64) += 1;
    }
    need::figure(&format!("{} observations, {} leaf functions", own.len(), leaves.len()));
    let of_split = own.iter().filter(|sample| sample.pid == pid).count();
    truth.count_is(of_split, 97, 3).expect("complete");
    assert_eq!(theirs["observations"], own.len());
    assert_eq!(theirs["leaves"], serde_json::json!(leaves));
    assert_eq!(theirs["pids"], serde_json::json!(pids));
}
