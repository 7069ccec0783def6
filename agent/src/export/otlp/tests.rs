use super::*;
use crate::address::AbsAddr;
use crate::aggregate::fixtures::{self, PERIOD_NS, native, sample};
use crate::aggregate::{DropReason, NamedWindow, ProcessLedger, marker_text};
use crate::normalize::{Frame, KernelRegion, Marker};
use agent_ebpf::Outcome;
use prost::Message as _;
use proto::otlp::collector::ExportProfilesServiceRequest;
use proto::otlp::profiles::{Location, Profile, ProfilesDictionary};
use proto::otlp::{DictionaryView, attribute, common};
use std::collections::{BTreeMap, HashSet};

fn encoder(request_bytes_max: usize) -> Encoder {
    let host = HostIdentity { name: "box".into(), id: Some("0".repeat(32)) };
    Encoder::new(EncoderSettings { host, source_lines: true, request_bytes_max }).unwrap()
}

fn decoded(requests: &[Request]) -> Vec<ExportProfilesServiceRequest> {
    let decode =
        |request: &Request| ExportProfilesServiceRequest::decode(request.bytes.clone()).unwrap();
    requests.iter().map(decode).collect()
}

/// One observation as text: process, thread, stack (leaf first).
type Row = (String, i64, String, Vec<String>);

/// Reads requests back into observations by row, with every reference checked.
fn rows(requests: &[ExportProfilesServiceRequest]) -> BTreeMap<Row, usize> {
    let mut rows = BTreeMap::new();
    for request in requests {
        let tables = request.dictionary.as_ref().unwrap();
        let view = DictionaryView::new(tables);
        view.check().unwrap();
        for resource in &request.resource_profiles {
            let service = resource_text(resource, attribute::SERVICE_NAME).unwrap();
            for profile in resource.scope_profiles.iter().flat_map(|scope| &scope.profiles) {
                view.check_profile(profile).unwrap();
                for sample in &profile.samples {
                    assert!(sample.values.is_empty());
                    assert!(sample.timestamps_unix_nano.is_sorted());
                    let stack = view.stack(sample.stack_index).unwrap().unwrap();
                    let frames = stack
                        .location_indices
                        .iter()
                        .map(|&index| frame_text(view, view.location(index).unwrap().unwrap()));
                    let (tid, name) = thread(view, &sample.attribute_indices);
                    let row = (service.clone(), tid, name, frames.collect());
                    *rows.entry(row).or_default() += sample.timestamps_unix_nano.len();
                }
            }
        }
    }
    rows
}

fn resource_text(resource: &proto::otlp::profiles::ResourceProfiles, key: &str) -> Option<String> {
    let attributes = &resource.resource.as_ref()?.attributes;
    let value = attributes.iter().find(|attribute| attribute.key == key)?.value.as_ref()?;
    match value.value.as_ref()? {
        common::any_value::Value::StringValue(text) => Some(text.clone()),
        common::any_value::Value::IntValue(number) => Some(number.to_string()),
        _ => None,
    }
}

fn thread(view: DictionaryView<'_>, indices: &[i32]) -> (i64, String) {
    let mut found = (0, String::new());
    for &index in indices {
        let attribute = view.attribute(index).unwrap().unwrap();
        let value = attribute.value.as_ref().unwrap();
        match view.string(attribute.key_strindex).unwrap() {
            attribute::THREAD_NAME => found.1 = view.text(value).unwrap().unwrap().to_owned(),
            attribute::THREAD_ID => {
                let Some(common::any_value::Value::IntValue(tid)) = value.value else { panic!() };
                found.0 = tid;
            }
            other => panic!("unexpected attribute {other}"),
        }
    }
    found
}

fn attribute_text<'a>(view: DictionaryView<'a>, indices: &[i32], key: &str) -> Option<&'a str> {
    let mut attributes = indices.iter().map(|&index| view.attribute(index).unwrap().unwrap());
    let found = attributes.find(|found| view.string(found.key_strindex).unwrap() == key)?;
    view.text(found.value.as_ref()?).unwrap()
}

/// `kind file!address name:line<name:line`
fn frame_text(view: DictionaryView<'_>, location: &Location) -> String {
    let kind = attribute_text(view, &location.attribute_indices, attribute::FRAME_TYPE).unwrap();
    let mapping = view.mapping(location.mapping_index).unwrap();
    let file = mapping.map_or("", |mapping| view.string(mapping.filename_strindex).unwrap());
    let lines = location.lines.iter().map(|line| {
        let function = view.function(line.function_index).unwrap().unwrap();
        format!("{}:{}", view.string(function.name_strindex).unwrap(), line.line)
    });
    let lines: Vec<String> = lines.collect();
    format!("{kind} {file}!{:#x} {}", location.address, lines.join("<"))
}

fn profiles(requests: &[ExportProfilesServiceRequest]) -> Vec<&Profile> {
    let resources = requests.iter().flat_map(|request| &request.resource_profiles);
    resources
        .flat_map(|resource| &resource.scope_profiles)
        .flat_map(|scope| &scope.profiles)
        .collect()
}

fn total(requests: &[ExportProfilesServiceRequest]) -> usize {
    rows(requests).values().sum()
}

#[test]
fn frames_are_written_as_they_are_read() {
    let file = fixtures::file(1);
    let broken = std::sync::Arc::new(crate::normalize::MappedFile {
        id: crate::address::FileId(9),
        path: "/opt/broken".into(),
        facts: None,
        kernel_build_id: None,
    });
    let unplaced = Frame::Unplaced { file: broken, offset: crate::address::FileOffset(0x77) };
    let frames = vec![
        Frame::Kernel { address: AbsAddr(0xffff_ffff_8100_0010), region: KernelRegion::default() },
        Frame::Kernel { address: AbsAddr(0xffff_ffff_c100_0900), region: KernelRegion::default() },
        Frame::Kernel { address: AbsAddr(0xffff_ffff_c100_0f00), region: KernelRegion::default() },
        native(&file, 0x1011),
        native(&file, 0x20012),
        native(&file, 0x1010),
        unplaced,
        Frame::Anonymous { runtime: crate::elf::Runtime::Native, address: AbsAddr(0x7f00) },
        Frame::Marker(Marker::Stopped(Outcome::TimeLimit)),
    ];
    let window = fixtures::named(&[sample(1, 12, 5, frames)]);
    let rows = rows(&decoded(&encoder(usize::MAX).encode(&window)));
    let expected = [
        "kernel [kernel]!0x0 do_syscall_64:0",
        "kernel ext4!0x0 ext4_read:0",
        "kernel [kernel]!0x0 [unnamed kernel code]:0",
        "native /usr/lib/lib1.so!0x1011 lib1.so_inlined_1011:7<lib1.so_1011:9",
        "native /usr/lib/lib1.so!0x20012 lib1.so_20012:3",
        "native /usr/lib/lib1.so!0x1010 ",
        "native /opt/broken!0x0 [broken]:0",
        "native !0x0 [anonymous code]:0",
        "abort-marker !0x0 [truncated]:0",
    ];
    let ((service, tid, name, frames), count) = rows.into_iter().next().unwrap();
    assert_eq!((service.as_str(), tid, name.as_str(), count), ("service1", 12, "worker0", 1));
    assert_eq!(frames, expected);
}

#[test]
fn native_code_keeps_its_lines_to_itself_and_go_does_not() {
    // The second file of the fixtures is a Go program.
    let frames = vec![native(&fixtures::file(1), 0x1011), native(&fixtures::file(2), 0x1012)];
    let window = fixtures::named(&[sample(1, 1, 5, frames)]);
    let mut encoder = encoder(usize::MAX);
    encoder.settings.source_lines = false;
    let requests = decoded(&encoder.encode(&window));
    let rows = rows(&requests);
    let ((.., frames), _) = rows.first_key_value().unwrap();
    let expected = [
        "native /usr/lib/lib1.so!0x1011 lib1.so_inlined_1011:0<lib1.so_1011:0",
        "go /usr/lib/lib2.so!0x1012 lib2.so_1012:3",
    ];
    assert_eq!(frames[..], expected);
    let strings = &requests[0].dictionary.as_ref().unwrap().string_table;
    assert!(strings.iter().any(|text| text == "/src/lib2.so.c"));
    assert!(!strings.iter().any(|text| text == "/src/lib1.so.c"));
}

#[test]
fn mappings_state_the_segment_of_the_address() {
    let file = fixtures::file(1);
    let frames = vec![native(&file, 0x1011), native(&file, 0x20012)];
    let window = fixtures::named(&[sample(1, 1, 5, frames)]);
    let requests = decoded(&encoder(usize::MAX).encode(&window));
    let tables = requests[0].dictionary.as_ref().unwrap();
    let facts = |index: usize| {
        let mapping = &tables.mapping_table[index];
        (mapping.memory_start, mapping.memory_limit, mapping.file_offset)
    };
    assert_eq!(facts(1), (0x1000, 0x9000, 0x800));
    assert_eq!(facts(2), (0x20000, 0x30000, 0xa000));
    let view = DictionaryView::new(tables);
    let id = |key| attribute_text(view, &tables.mapping_table[1].attribute_indices, key);
    assert_eq!(id(attribute::BUILD_ID_GNU), Some("02".repeat(20).as_str()));
    assert_eq!(id(attribute::BUILD_ID_HTLHASH), Some("02".repeat(16).as_str()));
    assert_eq!(id(attribute::BUILD_ID_GO), None);
}

#[test]
fn a_window_is_read_back_with_equal_totals() {
    let samples = fixtures::samples(3_000, 12);
    let window = fixtures::named(&samples);
    let requests = encoder(usize::MAX).encode(&window);
    assert_eq!(requests.len(), 1);
    let whole = decoded(&requests);
    assert_eq!(total(&whole), 3_000);
    assert_eq!(requests[0].observations, 3_000);
    for profile in profiles(&whole) {
        assert_eq!(profile.period, i64::try_from(PERIOD_NS).unwrap());
        assert_eq!(profile.duration_nano, 5_000_000_000);
        assert_eq!(profile.time_unix_nano, 1_795_910_400_000_000_000);
    }
    // Sample identities do not repeat within a profile.
    for profile in profiles(&whole) {
        let keys =
            profile.samples.iter().map(|sample| (sample.stack_index, &sample.attribute_indices));
        assert_eq!(keys.collect::<HashSet<_>>().len(), profile.samples.len());
    }
}

#[test]
fn split_requests_hold_the_same_rows() {
    let window = fixtures::named(&fixtures::samples(5_000, 40));
    let whole = rows(&decoded(&encoder(usize::MAX).encode(&window)));
    for bytes_max in [60_000, 100_000, 250_000] {
        let requests = encoder(bytes_max).encode(&window);
        assert!(requests.len() > 1, "{bytes_max}");
        for request in &requests {
            assert!(request.bytes.len() <= bytes_max, "{} > {bytes_max}", request.bytes.len());
        }
        assert_eq!(rows(&decoded(&requests)), whole, "{bytes_max}");
        let observations: u64 = requests.iter().map(|request| request.observations).sum();
        assert_eq!(observations, 5_000);
    }
}

#[test]
fn many_timestamps_and_long_names_stay_within_a_request() {
    let file = fixtures::file(1);
    let times: Vec<_> =
        (0..300_000).map(|time| sample(1, 1, time, vec![native(&file, 0x1011)])).collect();
    let window = fixtures::named(&times);
    let max = crate::limits::EXPORT_REQUEST_BYTES_MAX;
    let requests = encoder(max).encode(&window);
    assert!(requests.iter().all(|request| request.bytes.len() <= max));
    assert_eq!(total(&decoded(&requests)), 300_000);

    let mut window = fixtures::named(&fixtures::samples(50, 2));
    for location in &mut window.locations {
        for line in &mut location.lines {
            line.function = format!("{}{}", line.function, "é".repeat(3_000));
        }
    }
    let requests = encoder(200_000).encode(&window);
    assert!(requests.iter().all(|request| request.bytes.len() <= 200_000));
    assert_eq!(total(&decoded(&requests)), 50);
}

#[test]
fn profile_ids_are_the_boot_id_and_a_sequence() {
    let window = fixtures::named(&fixtures::samples(100, 3));
    let mut encoder = encoder(usize::MAX);
    let mut requests = decoded(&encoder.encode(&window));
    requests.extend(decoded(&encoder.encode(&window)));
    let ids = profiles(&requests).into_iter().map(|profile| profile.profile_id.clone());
    let expected = (0_u64..8).map(|n| [encoder.boot_id(), n.to_be_bytes()].concat());
    assert_eq!(ids.collect::<Vec<_>>(), expected.collect::<Vec<_>>());
}

#[test]
fn an_empty_window_says_that_it_was_observed() {
    let window = fixtures::named(&[]);
    let requests = decoded(&encoder(usize::MAX).encode(&window));
    let resource = &requests[0].resource_profiles[0];
    assert_eq!(resource_text(resource, attribute::SERVICE_NAME).unwrap(), SCOPE_NAME);
    assert_eq!(resource_text(resource, attribute::HOST_NAME).unwrap(), "box");
    let profile = profiles(&requests)[0];
    assert!(profile.samples.is_empty());
    assert_eq!(profile.duration_nano, 5_000_000_000);
    let ledger = ledger_of(requests[0].dictionary.as_ref().unwrap(), profile);
    assert_eq!(ledger["vesta.ledger.idle"], 190);
    assert_eq!(ledger["vesta.ledger.sent"], 0);
    assert!(!ledger.contains_key("vesta.ledger.lost_in_ring"), "what is not there is 0");
}

fn ledger_of(tables: &ProfilesDictionary, profile: &Profile) -> BTreeMap<String, i64> {
    let view = DictionaryView::new(tables);
    let pair = |&index: &i32| {
        let attribute = view.attribute(index).unwrap().unwrap();
        let Some(common::any_value::Value::IntValue(value)) =
            attribute.value.as_ref().unwrap().value
        else {
            panic!("a ledger has numbers only")
        };
        (view.string(attribute.key_strindex).unwrap().to_owned(), value)
    };
    profile.attribute_indices.iter().map(pair).collect()
}

#[test]
fn the_account_travels_with_the_window() {
    let window: NamedWindow = fixtures::named(&fixtures::samples(100, 3));
    let requests = decoded(&encoder(usize::MAX).encode(&window));
    let ledger = ledger_of(requests[0].dictionary.as_ref().unwrap(), profiles(&requests)[0]);
    let value = |name: &str| ledger.get(&format!("vesta.ledger.{name}")).copied().unwrap_or(0);
    assert_eq!(value("sent"), 100);
    assert_eq!(
        value("runs"),
        value("idle") + value("shipped") + value("lost_in_ring") + value("filtered")
    );
    assert_eq!(value("ticks_expected"), value("runs") + value("asleep") + value("missed"));
    assert_eq!(value("outcome.complete"), 90);
    let (frames, unnamed) = (value("frames"), value("frames_unnamed"));
    assert!(frames > 1000 && unnamed > 0 && unnamed < frames / 5, "{unnamed} of {frames}");
    let reasons = ledger.iter().filter(|(name, _)| name.starts_with("vesta.ledger.unnamed."));
    assert_eq!(reasons.map(|(_, value)| value).sum::<i64>(), unnamed);
}

#[test]
fn a_process_states_what_went_wrong_with_its_samples() {
    let mut window: NamedWindow = fixtures::named(&fixtures::samples(100, 2));
    window.processes[0].samples.clear();
    let account = &mut window.processes[0].ledger;
    *account = ProcessLedger::default();
    account.drop_also(DropReason::Stacks, 50);
    let requests = decoded(&encoder(usize::MAX).encode(&window));
    let tables = requests[0].dictionary.as_ref().unwrap();
    let all = profiles(&requests);
    assert_eq!(all.len(), 3, "a process that lost everything is there");
    let lost = BTreeMap::from([("vesta.process_ledger.dropped.stacks".to_owned(), 50)]);
    assert_eq!(ledger_of(tables, all[1]), lost);
    let other = ledger_of(tables, all[2]);
    let keys: Vec<_> = other.keys().map(|key| key.rsplit('.').next().unwrap()).collect();
    assert_eq!(keys, ["no_symbol"], "{other:?}");
    let resource = &requests[0].resource_profiles[1];
    assert_eq!(resource_text(resource, attribute::SERVICE_NAME).unwrap(), "service1");
}

#[test]
fn times_are_rounded_down_within_the_window() {
    let file = fixtures::file(1);
    let times = [0, 5, 70_000, 1_000_000_000, 4_999_999_999];
    let samples = times.map(|time| sample(1, 1, time, vec![native(&file, 0x1011)]));
    let requests = decoded(&encoder(usize::MAX).encode(&fixtures::named(&samples)));
    let written = &profiles(&requests)[1].samples[0].timestamps_unix_nano;
    let start = u64::try_from(fixtures::WALL.0).unwrap();
    for (written, time) in written.iter().zip(times) {
        let early = (start + time).checked_sub(*written).unwrap();
        assert!(early < crate::limits::EXPORT_TIME_STEP_NS && *written >= start, "{time}: {early}");
    }
}

#[test]
fn markers_are_readable() {
    let text = |outcome| marker_text(Marker::Stopped(outcome)).into_owned();
    assert_eq!(text(Outcome::NoUnwindInfo), "[unwind: no unwind info]");
    assert_eq!(text(Outcome::DepthLimit), "[truncated]");
    let python = marker_text(Marker::Interpreter(crate::elf::Runtime::Python));
    assert_eq!(python, "[python frames: names to come]");
}
