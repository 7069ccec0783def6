use super::*;
use crate::address::AbsAddr;
use crate::aggregate::fixtures::{self, PERIOD_NS, native, sample};
use crate::normalize::{Frame, KernelRegion, Marker};
use agent_ebpf::Outcome;
use prost::Message as _;
use std::io::Read as _;
use std::process::Command;

fn folded(window: &NamedWindow) -> String {
    let mut text = Vec::new();
    write_folded(window, Contents::Cpu, &mut text).unwrap();
    String::from_utf8(text).unwrap()
}

/// Joins windows of `samples` cut into pieces of `size`.
fn joined(samples: &[crate::normalize::NormalizedSample], size: usize) -> NamedWindow {
    let mut recorder = Recorder::default();
    for piece in samples.chunks(size) {
        recorder.write(fixtures::named(piece));
    }
    recorder.take().unwrap()
}

#[test]
fn folded_lines_run_from_root_to_leaf() {
    let file = fixtures::file(1);
    let kernel =
        Frame::Kernel { address: AbsAddr(0xffff_ffff_8100_0010), region: KernelRegion::default() };
    let broken = Frame::Marker(Marker::Stopped(Outcome::NoUnwindInfo));
    let window = fixtures::named(&[
        sample(1, 1, 1, vec![kernel, native(&file, 0x1011), native(&file, 0x1012)]),
        sample(1, 1, 2, vec![native(&file, 0x1010), broken]),
        sample(
            2,
            5,
            3,
            vec![native(&file, 0x1010), Frame::Marker(Marker::Stopped(Outcome::NoUnwindInfo))],
        ),
    ]);
    let expected = "\
worker1;[unwind: no unwind info];lib1.so+0x1010 2
worker1;lib1.so_1012;lib1.so_1011;lib1.so_inlined_1011;do_syscall_64_[k] 1
";
    assert_eq!(folded(&window), expected);
}

#[test]
fn separators_in_names_do_not_break_lines() {
    let file = fixtures::file(1);
    let mut window = fixtures::named(&[sample(1, 1, 1, vec![native(&file, 0x1012)])]);
    window.locations[0].lines[0].function = "operator();\n<a b>".into();
    assert_eq!(folded(&window), "worker1;operator()__<a b> 1\n");
}

#[test]
fn windows_join_to_what_one_window_would_be() {
    let samples = fixtures::samples(2_000, 7);
    let whole = fixtures::named(&samples);
    let pieces = joined(&samples, 111);
    assert_eq!(pieces.observations(), 2_000);
    assert_eq!(folded(&pieces), folded(&whole));
    assert_eq!(pieces.locations.len(), whole.locations.len());
    assert_eq!(pieces.stacks.len(), whole.stacks.len());
    assert_eq!(pieces.ledger.received, 2_000);
    assert_eq!(Recorder::default().take().map(|window| window.observations()), None);
}

#[test]
fn pprof_has_both_values_and_what_a_reader_needs() {
    let window = fixtures::named(&fixtures::samples(1_000, 3));
    let profile = pprof_profile(&window, Contents::Cpu);
    let text = |index: i64| {
        std::str::from_utf8(&profile.string_table[usize::try_from(index).unwrap()]).unwrap()
    };
    let types: Vec<_> =
        profile.sample_type.iter().map(|value| (text(value.r#type), text(value.unit))).collect();
    assert_eq!(types, [("samples", "count"), ("cpu", "nanoseconds")]);
    assert_eq!(text(profile.default_sample_type), "cpu");
    assert_eq!(profile.period, i64::try_from(PERIOD_NS).unwrap());
    let sum = |at: usize| profile.sample.iter().map(|sample| sample.value[at]).sum::<i64>();
    assert_eq!(sum(0), 1_000);
    assert_eq!(sum(1), 1_000 * profile.period);
    let library =
        profile.mapping.iter().find(|mapping| text(mapping.filename).ends_with("lib1.so"));
    let library = library.unwrap();
    assert_eq!(text(library.build_id), "02".repeat(20));
    assert_eq!((library.memory_start, library.memory_limit), (0x1000, 0x9000));
    assert!(profile.mapping.iter().any(|mapping| mapping.has_inline_frames));
    let comment = text(profile.comment[0]);
    assert!(comment.ends_with("1000 samples, 0 lost, 0 ticks missed, 900 of 1000 stacks complete"));
    assert!(profile.mapping.iter().any(|mapping| text(mapping.filename) == "[kernel]"));
}

#[test]
fn gzip_opens_to_the_same_profile() {
    let window = fixtures::named(&fixtures::samples(100, 3));
    let mut packed = Vec::new();
    write_pprof(&window, Contents::Cpu, &mut packed).unwrap();
    let mut bytes = Vec::new();
    flate2::read::GzDecoder::new(packed.as_slice()).read_to_end(&mut bytes).unwrap();
    let profile = proto::pprof::Profile::decode(bytes.as_slice()).unwrap();
    assert_eq!(profile, pprof_profile(&window, Contents::Cpu));
}

/// Go's own reader, where the machine has Go: equal totals, types, names.
#[test]
fn go_reads_the_same_totals_and_names() {
    if Command::new("go").arg("version").output().is_err() {
        eprintln!("skipped: there is no `go` on this machine to read pprof with");
        return;
    }
    let window = fixtures::named(&fixtures::samples(1_500, 6));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cpu.pb.gz");
    write_pprof(&window, Contents::Cpu, &mut std::fs::File::create(&path).unwrap()).unwrap();
    let raw = go_pprof(&["-raw"], &path);
    assert!(raw.contains("samples/count cpu/nanoseconds[dflt]"), "{raw}");
    let rows = raw.lines().skip_while(|line| !line.contains("[dflt]")).skip(1);
    let rows = rows.take_while(|line| *line != "Locations");
    let values = rows.filter_map(|line| {
        let (values, _) = line.split_once(':')?;
        let mut values = values.split_whitespace().map(str::parse::<u64>);
        Some((values.next()?.ok()?, values.next()?.ok()?))
    });
    let (samples, nanoseconds) = values.fold((0, 0), |sum, row| (sum.0 + row.0, sum.1 + row.1));
    assert_eq!((samples, nanoseconds), (1_500, 1_500 * PERIOD_NS));
    for name in
        ["lib1.so_inlined_", "do_syscall_64", "[truncated]", "[python frames: names to come]"]
    {
        assert!(raw.contains(name), "{name}");
    }
    let top = go_pprof(&["-top", "-sample_index=samples"], &path);
    assert!(top.contains("of 1500 total"), "{top}");
}

fn go_pprof(arguments: &[&str], path: &std::path::Path) -> String {
    let mut command = Command::new("go");
    command.args(["tool", "pprof", "-symbolize=none"]).args(arguments).arg(path);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}
