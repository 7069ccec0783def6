//! Profiles that others wrote: each file of the corpus gives the totals that independent tools computed.

use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use tests::http::request;
use tests::{Collector, need};

#[test]
fn otlp_files_give_their_totals() {
    let Some(folder) = need::corpus() else { return };
    let files = truths(&folder, &["otlp", "otlp-ebpf-profiler-live"]);
    for file in &files {
        let name = file["file"].as_str().expect("a name");
        check(&folder.join(name), file).unwrap_or_else(|reason| panic!("{name}: {reason}"));
    }
    need::figure(&format!("{} files", files.len()));
}

/// What is known of the files of these kinds.
fn truths(folder: &Path, kinds: &[&str]) -> Vec<Value> {
    let truth =
        std::fs::read_to_string(folder.join("truth.jsonl")).expect("the corpus has a truth");
    let files: Vec<Value> = truth
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).expect("a line of JSON"))
        .filter(|file| kinds.iter().any(|kind| file["kind"] == *kind))
        .collect();
    assert!(!files.is_empty(), "the corpus has files of {kinds:?}");
    files
}

/// One file, one collector: totals of one do not hide behind another's.
fn check(path: &Path, truth: &Value) -> Result<(), String> {
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

#[test]
fn pprof_files_give_their_totals() {
    let Some(folder) = need::corpus() else { return };
    let files = truths(&folder, &["pprof"]);
    let data = tempfile::tempdir().expect("a temporary folder");
    // These were taken years ago.
    let collector = Collector::start_on(data.path(), &["--retention", "20000d"]);
    let mut checked = 0;
    for (at, file) in files.iter().enumerate() {
        let name = file["file"].as_str().expect("a name");
        let service = format!("file-{at}");
        checked += push(&collector, &service, &folder.join(name), file)
            .unwrap_or_else(|reason| panic!("{name}: {reason}"));
    }
    need::figure(&format!("{} pprof files, {checked} functions", files.len()));
}

/// The formats before protobuf are refused, not read as something else.
#[test]
fn files_of_legacy_pprof_are_refused() {
    let Some(folder) = need::corpus() else { return };
    let files = truths(&folder, &["pprof-legacy"]);
    let collector = Collector::start();
    for file in &files {
        let name = file["file"].as_str().expect("a name");
        let body = std::fs::read(folder.join(name)).expect("the file is there");
        let answer = request(collector.address(), "POST", "/profiles/pprof", &[], &body);
        let answer = answer.expect("an answer");
        assert_eq!(answer.status, 400, "{name}: {}", answer.text());
    }
    need::figure(&format!("{} legacy files", files.len()));
}

/// Pushes one file and compares all that is known of it; answers how many functions were compared.
fn push(collector: &Collector, service: &str, path: &Path, truth: &Value) -> Result<usize, String> {
    let body = std::fs::read(path).map_err(|error| error.to_string())?;
    let to = format!("/profiles/pprof?service={service}");
    let answer = request(collector.address(), "POST", &to, &[], &body);
    let answer = answer.map_err(|error| error.to_string())?;
    if answer.status != 202 {
        return Err(format!("answered {} {:?}", answer.status, answer.text()));
    }
    let from = truth["time_nanos"].as_i64().ok_or("no time")? / 1_000_000;
    let (from, to) = (from.to_string(), (from + 1).to_string());
    let filter = format!("{{service=\"{service}\"}}");
    let mut checked = 0;
    for (at, (kind, factor)) in pprof_types(truth)?.into_iter().enumerate() {
        let query = [("from", &*from), ("to", &*to), ("type", &*kind), ("filter", &*filter)];
        let graph = collector.api("flamegraph", &query);
        let total = truth["sums"][at].as_i64().ok_or("no sum")? * factor;
        let known = (total, truth["samples"].as_i64().ok_or("no samples")?);
        if (graph["total"].as_i64(), graph["samples"].as_i64()) != (Some(known.0), Some(known.1)) {
            let (total, samples) = (&graph["total"], &graph["samples"]);
            return Err(format!("{kind}: {total} in {samples} is stored, the truth is {known:?}"));
        }
        checked += top_functions(collector, &query, factor, &truth["top_flat"][at])
            .map_err(|reason| format!("{kind}: {reason}"))?;
    }
    Ok(checked)
}

/// The types of a file as they are stored, and what their values are multiplied by.
fn pprof_types(truth: &Value) -> Result<Vec<(String, i64)>, String> {
    let types = truth["sample_types"].as_array().ok_or("no types")?;
    let types: Vec<&str> = types.iter().filter_map(Value::as_str).collect();
    let counts_cpu =
        truth["period_type"] == "cpu/nanoseconds" && !types.contains(&"cpu/nanoseconds");
    let period = truth["period"].as_i64().unwrap_or(0);
    let stored = |described: &&str| match *described {
        "samples/count" if counts_cpu && period > 0 => ("cpu".to_owned(), period),
        other => (other.split('/').next().unwrap_or_default().to_owned(), 1),
    };
    Ok(types.iter().map(stored).collect())
}

/// The functions with the largest values of their own.
fn top_functions(
    collector: &Collector,
    query: &[(&str, &str)],
    factor: i64,
    top: &Value,
) -> Result<usize, String> {
    let answer = collector.api("functions", &[query, &[("limit", "10000")]].concat());
    let rows = answer["rows"].as_array().ok_or("no rows")?;
    let top = top.as_array().ok_or("no functions")?;
    for function in top {
        let (name, flat) = (&function[0], function[1].as_i64().ok_or("no value")? * factor);
        let own =
            rows.iter().filter(|row| row["name"] == *name).filter_map(|row| row["self"].as_i64());
        let own: i64 = own.sum();
        if own != flat {
            return Err(format!("{name} has {own}, the truth is {flat}"));
        }
    }
    Ok(top.len())
}
