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
use tests::workload::{Language, Truth, parse_truth, start_split};
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
    let truth = record(&file, &program);
    let profile = read(&file);
    for (index, kind) in [(0, "samples"), (1, "cpu")] {
        let own = flat(&profile, index);
        let theirs = go_flat(&go, &file, kind);
        assert_eq!(own.values().sum::<i64>(), theirs.values().sum::<i64>(), "total of {kind}");
        assert_eq!(own, theirs, "{kind} by function");
    }
    let own = flat(&profile, 0);
    let leaves: i64 = ["leaf_a", "leaf_b", "leaf_c"].iter().filter_map(|leaf| own.get(*leaf)).sum();
    let leaves = usize::try_from(leaves).expect("a count");
    truth.count_is(leaves, FREQUENCY_HZ, 3).expect("complete");
}

#[test]
fn folded_counts_samples() {
    if !need::bpf() {
        return;
    }
    let Some(program) = Language::C.split() else { return };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("cpu.folded");
    let truth = record(&file, &program);
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
    let in_chain = usize::try_from(in_chain).expect("a count");
    truth.count_is(in_chain, FREQUENCY_HZ, 3).expect("complete");
}

#[test]
fn one_process_alone() {
    if !need::bpf() {
        return;
    }
    let Some(program) = Language::C.split() else { return };
    let (wanted, _other) = (start_split(&program, 60, seed()), start_split(&program, 60, seed()));
    let mut command = Command::new(binary::program("vesta-agent"));
    command.args(["record", "--duration", "2s", "--frequency", "397", "-o", "-"]);
    command.args(["--format", "folded", "--pid", &wanted.pid().to_string()]);
    let start = cpu_ticks(wanted.pid());
    let folded = Running::start(command).finish(Duration::from_secs(60));
    let ticks = cpu_ticks(wanted.pid()) - start;
    let count = |line: &str| line.rsplit_once(' ').and_then(|(_, count)| count.parse::<u64>().ok());
    let samples: u64 = folded.lines().map(|line| count(line).expect("a count")).sum();
    need::figure(&format!("{samples} samples of one of two processes"));
    // A tick is 10 ms; it ran before and after the recording too. The other one would double the count.
    assert!(samples > 50 && samples <= ticks * 397 / 100 + 20, "{samples} of {ticks} ticks");
    assert!(folded.lines().all(|line| line.starts_with("split-c;")), "{folded}");
}

/// User and system time of a process, in ticks of 10 ms (proc(5), fields 14 and 15 of stat).
fn cpu_ticks(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("it runs");
    let behind_name = stat.rsplit_once(')').expect("a name").1;
    behind_name
        .split_whitespace()
        .skip(11)
        .take(2)
        .map(|ticks| ticks.parse::<u64>().expect("ticks"))
        .sum()
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
