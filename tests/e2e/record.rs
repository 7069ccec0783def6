//! `vesta-agent record`: a file for other tools. Goal: Go's pprof reads the same totals and the same names
//! out of it that are in it. Method: record a workload, sum the file here, and hold the sums against what
//! `go tool pprof` prints.

use flate2::read::GzDecoder;
use prost::Message as _;
use proto::pprof::Profile;
use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use tests::workload::{Language, Truth, parse_truth};
use tests::{Running, binary, need, seed};

const FREQUENCY_HZ: u32 = 997;

#[test]
fn pprof_is_read_by_go() {
    if !need::bpf() {
        return;
    }
    let (Some(program), Some(go)) = (Language::C.split(), need::tool("VESTA_GO", "go")) else {
        return;
    };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("cpu.pb.gz");
    let expected = record(&file, &program).samples_at(FREQUENCY_HZ);
    let profile = read(&file);
    for (index, kind) in [(0, "samples"), (1, "cpu")] {
        let own = flat(&profile, index);
        let theirs = go_flat(&go, &file, kind);
        assert_eq!(own.values().sum::<i64>(), theirs.values().sum::<i64>(), "total of {kind}");
        assert_eq!(own, theirs, "{kind} by function");
    }
    let own = flat(&profile, 0);
    let leaves: i64 = ["leaf_a", "leaf_b", "leaf_c"].iter().filter_map(|leaf| own.get(*leaf)).sum();
    let leaves = f64::from(i32::try_from(leaves).expect("a short run"));
    assert!(leaves >= 0.95 * expected, "{leaves} of {expected:.0} samples: {own:?}");
}

#[test]
fn folded_counts_samples() {
    if !need::bpf() {
        return;
    }
    let Some(program) = Language::C.split() else { return };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("cpu.folded");
    let expected = record(&file, &program).samples_at(FREQUENCY_HZ);
    let text = std::fs::read_to_string(&file).expect("record wrote the file");
    let (mut total, mut in_chain) = (0, 0);
    for line in text.lines() {
        let (stack, count) = line.rsplit_once(' ').expect("a line ends in its count");
        let count: u32 = count.parse().expect("a count");
        total += count;
        let frames: Vec<&str> = stack.split(';').collect();
        if frames.iter().any(|frame| frame.starts_with("chain_")) {
            assert_eq!(frames[0], "split-c", "the thread's name stands first: {line}");
            in_chain += count;
        }
    }
    need::figure(&format!("{in_chain} of {total} samples are in a chain"));
    assert!(in_chain * 100 > total * 97, "the command alone was recorded: {in_chain} of {total}");
    let in_chain = f64::from(in_chain);
    assert!(in_chain >= 0.97 * expected, "{in_chain} of {expected:.0} samples of the clock");
}

/// Records three seconds of the workload; what that prints comes through.
fn record(file: &Path, program: &Path) -> Truth {
    let mut command = Command::new(binary::program("vesta-agent"));
    command.args(["record", "--frequency", &FREQUENCY_HZ.to_string(), "-o"]).arg(file);
    command.arg("--").arg(program).arg("3").arg(seed().to_string());
    parse_truth(&Running::start(command).finish(Duration::from_secs(60)))
}

fn read(file: &Path) -> Profile {
    let mut bytes = Vec::new();
    let file = std::fs::File::open(file).expect("record wrote the file");
    GzDecoder::new(file).read_to_end(&mut bytes).expect("gzip");
    Profile::decode(&bytes[..]).expect("pprof")
}

/// Value of the leaf function of each sample.
fn flat(profile: &Profile, value: usize) -> BTreeMap<String, i64> {
    let string = |index: i64| {
        let bytes = &profile.string_table[usize::try_from(index).expect("an index")];
        String::from_utf8_lossy(bytes).into_owned()
    };
    let function = |id: u64| profile.function.iter().find(|it| it.id == id).expect("a function");
    let location = |id: u64| profile.location.iter().find(|it| it.id == id).expect("a location");
    let mut flat = BTreeMap::new();
    for sample in &profile.sample {
        let Some(&leaf) = sample.location_id.first() else { continue };
        let leaf = location(leaf);
        let name = match leaf.line.first() {
            Some(line) => string(function(line.function_id).name),
            // What pprof calls a location without a name.
            None => {
                let mapping = profile.mapping.iter().find(|it| it.id == leaf.mapping_id);
                let path = string(mapping.expect("a mapping").filename);
                format!("[{}]", path.rsplit('/').next().unwrap_or_default())
            }
        };
        *flat.entry(name).or_insert(0) += sample.value[value];
    }
    flat.retain(|_, value| *value != 0);
    flat
}

/// The same from `go tool pprof -top`.
fn go_flat(go: &Path, file: &Path, kind: &str) -> BTreeMap<String, i64> {
    let unit = if kind == "cpu" { "nanoseconds" } else { "count" };
    let output = Command::new(go)
        .args(["tool", "pprof", "-top", "-symbolize=none", "-nodecount=1000000", "-nodefraction=0"])
        .args([&format!("-sample_index={kind}"), &format!("-unit={unit}")])
        .arg(file)
        .output()
        .expect("go runs");
    let text = String::from_utf8_lossy(&output.stdout);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "go tool pprof: {said}");
    let rows = text.lines().skip_while(|line| !line.trim_start().starts_with("flat ")).skip(1);
    let mut flat = BTreeMap::new();
    for row in rows {
        // flat flat% sum% cum cum% name
        let mut words = row.split_whitespace();
        let value = words.next().expect("a value").trim_end_matches("ns");
        let value: i64 = value.parse().unwrap_or_else(|error| panic!("{row}: {error}"));
        let name = words.skip(4).collect::<Vec<_>>().join(" ");
        *flat.entry(name).or_insert(0) += value;
    }
    flat.retain(|_, value| *value != 0);
    flat
}
