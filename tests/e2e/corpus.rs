//! OTLP that others wrote: each file of the corpus gives the totals that independent tools computed.

use serde_json::Value;
use std::collections::BTreeMap;
use tests::http::request;
use tests::{Collector, need};

#[test]
fn otlp_files_give_their_totals() {
    let Some(folder) = need::corpus() else { return };
    let truth =
        std::fs::read_to_string(folder.join("truth.jsonl")).expect("the corpus has a truth");
    let files: Vec<Value> = truth
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).expect("a line of JSON"))
        .filter(|file| file["kind"] == "otlp" || file["kind"] == "otlp-ebpf-profiler-live")
        .collect();
    assert!(!files.is_empty(), "the corpus has OTLP files");
    for file in &files {
        let name = file["file"].as_str().expect("a name");
        check(&folder.join(name), file).unwrap_or_else(|reason| panic!("{name}: {reason}"));
    }
    need::figure(&format!("{} files", files.len()));
}

/// One file, one collector: totals of one do not hide behind another's.
fn check(path: &std::path::Path, truth: &Value) -> Result<(), String> {
    let body = std::fs::read(path).map_err(|error| error.to_string())?;
    let folder = tempfile::tempdir().expect("a temporary folder");
    // These were taken months ago: the time since the epoch is kept.
    let collector = Collector::start_on(folder.path(), &["--retention", "20000d"]);
    let headers = [("Content-Type", "application/x-protobuf")];
    let answer = request(collector.otlp_http(), "POST", "/v1development/profiles", &headers, &body)
        .map_err(|error| error.to_string())?;
    if answer.status != 200 || !answer.body.is_empty() {
        return Err(format!("answered {} {:?}", answer.status, answer.text()));
    }
    let ms = |key: &str| truth[key].as_u64().map(|ns| ns / 1_000_000);
    let (Some(from), Some(to)) = (ms("tmin"), ms("tmax")) else {
        return Err("no times".to_owned());
    };
    let (from, to) = (from.to_string(), (to + 1).to_string());
    for (kind, total) in expected(truth)? {
        let query = [("from", from.as_str()), ("to", to.as_str()), ("type", kind.as_str())];
        let graph = collector.api("flamegraph", &query);
        if graph["total"] != total {
            return Err(format!("{kind}: {} is stored, the truth is {total}", graph["total"]));
        }
    }
    Ok(())
}

/// Total by stored type: a count with a CPU period is stored as nanoseconds of `cpu`.
fn expected(truth: &Value) -> Result<BTreeMap<String, i64>, String> {
    let types = truth["by_type"].as_object().ok_or("no types")?;
    let mut totals = BTreeMap::new();
    for (described, sums) in types {
        // "samples/count period=cpu/nanoseconds 50000000"
        let mut words = described.split(' ');
        let kind = words.next().unwrap_or_default();
        let period_type = words.next().unwrap_or_default();
        let period: i64 = words.next().unwrap_or_default().parse().unwrap_or(0);
        let sum = sums["sum_occ"].as_i64().ok_or("no sum")?;
        let (kind, sum) = match (kind, period_type) {
            ("samples/count", "period=cpu/nanoseconds") => ("cpu", sum * period),
            _ => (kind.split('/').next().unwrap_or_default(), sum),
        };
        *totals.entry(kind.to_owned()).or_insert(0) += sum;
    }
    Ok(totals)
}
