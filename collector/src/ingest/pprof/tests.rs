//! Profiles made here, with a known truth, and each way in which one can be wrong.

use super::*;
use crate::limits::{DECODED_BYTES_MAX, STACK_FRAMES_MAX};
use crate::profile::ProjectName;
use crate::store::{Retention, TypeRetention};
use prost::Message as _;
use proto::FrameKind;
use proto::pprof as wire_model;
use proto::pprof::ProfileBuilder;

const NOW_MS: i64 = 1_795_982_400_000;
const TIME_MS: i64 = NOW_MS - 60_000;

fn reception() -> Reception {
    let (project, retention) = (ProjectName(Arc::from("default")), Retention::new(86_400_000));
    Reception { project, now_ms: NOW_MS, retention }
}

fn read(profile: &wire_model::Profile) -> Result<Received, Fault> {
    receive(&profile.encode_to_vec(), &Push::default(), &reception())
}

/// Go's CPU profile: `samples`/`count` and `cpu`/`nanoseconds`; `main;work` 3, `main` 2, with one label each.
fn profile() -> wire_model::Profile {
    let mut builder = ProfileBuilder::new();
    let types = [builder.value_type("samples", "count"), builder.value_type("cpu", "nanoseconds")];
    let mapping = wire_model::Mapping {
        memory_start: 0x40_0000,
        memory_limit: 0x50_0000,
        filename: builder.string("/usr/bin/shop"),
        build_id: builder.string("00112233445566778899aabbccddeeff00112233"),
        ..wire_model::Mapping::default()
    };
    let mapping = builder.mapping(mapping);
    let main = builder.function("main", "main", "main.go");
    let work = builder.function("work", "pkg.work", "work.go");
    let inlined = builder.function("inlined", "inlined", "work.go");
    let in_main = builder.location(mapping, 0x40_1000, vec![(main, 7)]);
    let in_work = builder.location(mapping, 0x40_2000, vec![(inlined, 3), (work, 9)]);
    let key = builder.string("tenant");
    for (location_id, count, tenant) in [(vec![in_work, in_main], 3, "a"), (vec![in_main], 2, "b")]
    {
        let label = wire_model::Label { key, str: builder.string(tenant), num: 0, num_unit: 0 };
        let value = vec![count, count * 10_000_000];
        builder.sample(wire_model::Sample { location_id, value, label: vec![label] });
    }
    let period_type = builder.value_type("cpu", "nanoseconds");
    let mut profile = builder.finish();
    profile.sample_type = types.to_vec();
    profile.period_type = Some(period_type);
    profile.period = 10_000_000;
    profile.time_nanos = TIME_MS * 1_000_000;
    profile.duration_nanos = 10_000_000_000;
    profile
}

fn kinds(received: &Received) -> Vec<(&str, &str, usize, i64)> {
    let types = received.types.iter();
    types.map(|it| (&*it.value_type.kind, &*it.value_type.unit, it.samples, it.total)).collect()
}

#[test]
fn a_profile_with_a_type_that_is_too_old_is_refused_whole() {
    let of = |kind: &str, kept_ms| {
        let short = TypeRetention { kind: kind.into(), kept_ms };
        let retention = Retention::new(86_400_000).with_type(short).unwrap();
        receive(
            &profile().encode_to_vec(),
            &Push::default(),
            &Reception { retention, ..reception() },
        )
    };
    assert!(of("samples", 60_000).is_ok() && of("off_cpu", 59_999).is_ok());
    for kind in ["samples", "cpu"] {
        assert!(matches!(of(kind, 59_999), Err(Fault::Time { .. })), "{kind}");
    }
}

#[test]
fn a_profile_is_what_its_sender_wrote() {
    let received = read(&profile()).unwrap();
    let expected = [("samples", "count", 2, 5), ("cpu", "nanoseconds", 2, 50_000_000)];
    assert_eq!(kinds(&received), expected);
    assert_eq!(received.view, 1);
    let batch = &received.batch;
    assert_eq!(batch.check(), Ok(()));
    assert_eq!(batch.stacks, [vec![1, 0], vec![0]]);
    let names: Vec<&str> = batch.locations[1]
        .lines
        .iter()
        .map(|line| &*batch.functions[line.function as usize].name)
        .collect();
    assert_eq!(names, ["inlined", "work"], "innermost first");
    assert_eq!(&*batch.functions[1].system_name, "pkg.work");
    assert_eq!(batch.functions[0].system_name.len(), 0, "the same as the name");
    assert_eq!(batch.locations[1].address, 0x40_2000);
    let build_id = batch.mappings[0].build_id.as_ref().unwrap();
    assert_eq!(build_id.to_string(), "00112233445566778899aabbccddeeff00112233");
    let labels = &batch.profiles[0].labels;
    assert_eq!((&*labels.service, &*labels.executable), ("shop", "shop"));
    let sets: Vec<String> = batch
        .attribute_sets
        .iter()
        .map(|set| format!("{}={}", set[0].key, set[0].value.text()))
        .collect();
    assert_eq!(sets, ["tenant=a", "tenant=b"]);
    let first = batch.profiles[1].samples[0];
    assert_eq!((first.time_ms, first.value), (TIME_MS, 30_000_000));
    assert_eq!((batch.profiles[1].time_ms, batch.profiles[1].duration_ms), (TIME_MS, 10_000));
}

#[test]
fn counts_become_cpu_time_where_nothing_else_is() {
    let mut counts = profile();
    counts.sample_type.truncate(1);
    counts.sample.iter_mut().for_each(|sample| sample.value.truncate(1));
    assert_eq!(kinds(&read(&counts).unwrap()), [("cpu", "nanoseconds", 2, 50_000_000)]);
    counts.period = 0;
    assert_eq!(kinds(&read(&counts).unwrap()), [("samples", "count", 2, 5)]);
    counts.period = 10_000_000;
    counts.sample[0].value = vec![i64::MAX / 2];
    assert!(matches!(read(&counts), Err(Fault::Overflow { .. })));
}

#[test]
fn the_named_type_is_shown_first_else_the_last() {
    let view = |default: i64, named: Option<&str>| {
        let mut profile = profile();
        profile.default_sample_type = default;
        let push = Push { profile_type: named.map(Arc::from), ..Push::default() };
        let received = receive(&profile.encode_to_vec(), &push, &reception()).unwrap();
        let set = &received.batch.attribute_sets[0];
        let named =
            set.iter().find(|it| &*it.key == NAMED_TYPE).map(|it| it.value.text().into_owned());
        (received.view, named)
    };
    let samples = profile().sample_type[0].r#type;
    assert_eq!(view(0, None), (1, None));
    assert_eq!(view(samples, None), (0, None));
    assert_eq!(view(samples, Some("cpu")), (1, None));
    assert_eq!(view(0, Some("samples")), (0, None));
    assert_eq!(view(0, Some("mutex")), (1, Some("mutex".to_owned())));
}

#[test]
fn zero_and_negative_values_are_kept() {
    let mut profile = profile();
    profile.sample[0].value = vec![0, -70];
    profile.sample[1].value = vec![-2, 0];
    let received = read(&profile).unwrap();
    let expected = [("samples", "count", 2, -2), ("cpu", "nanoseconds", 2, -70)];
    assert_eq!(kinds(&received), expected);
}

#[test]
fn what_is_legal_though_unusual() {
    // No samples: the host reported this time, and nothing ran.
    let mut none = profile();
    none.sample.clear();
    assert_eq!(read(&none).unwrap().types[0].samples, 0);
    // Mapping and function 0; ids that are no positions; fields that nobody knows.
    let mut odd = profile();
    odd.location[0].mapping_id = 0;
    odd.location[0].line[0].function_id = 0;
    odd.location[1].id = u64::MAX;
    odd.sample[0].location_id[0] = u64::MAX;
    let mut bytes = odd.encode_to_vec();
    bytes.extend([0xfa, 0x01, 1, 0]); // field 31
    let batch = receive(&bytes, &Push::default(), &reception()).unwrap().batch;
    assert_eq!(batch.stacks[0], [1, 0]);
    assert_eq!((batch.locations[0].mapping, batch.locations[0].lines.len()), (None, 0));
    // Numbers that are not packed: the sample `1` with the values 4 and 5.
    let mut packed = profile();
    packed.sample.truncate(1);
    let mut bytes = packed.encode_to_vec();
    bytes.extend([0x12, 6, 0x08, 1, 0x10, 4, 0x10, 5]);
    let received = receive(&bytes, &Push::default(), &reception()).unwrap();
    assert_eq!(received.types[0].total, 7);
}

#[test]
fn texts_that_are_not_utf_8_are_kept_and_counted() {
    let mut profile = profile();
    let work = profile.function[1].name;
    profile.string_table[usize::try_from(work).unwrap()] = vec![b'w', 0xff, b'k'];
    let received = read(&profile).unwrap();
    assert_eq!(&*received.batch.functions[1].name, "w\u{fffd}k");
    assert_eq!(received.replaced, 1);
}

#[test]
fn labels_win_over_what_the_sender_says_and_join() {
    let mut profile = profile();
    let mut label = profile.sample[0].label[0];
    label.str = profile.sample[1].label[0].str;
    profile.sample[0].label.push(label);
    let number = wire_model::Label { key: profile.sample_type[1].r#type, num: -3, ..label };
    profile.sample[1].label.push(wire_model::Label { str: 0, ..number });
    let text = |text: &str| AttributeValue::Text(Arc::from(text));
    let attribute = |key: &str| Attribute { key: Arc::from(key), value: text("said") };
    let push = Push { attributes: vec![attribute("tenant"), attribute("env")], ..Push::default() };
    let batch = receive(&profile.encode_to_vec(), &push, &reception()).unwrap().batch;
    let sets: Vec<Vec<String>> = batch
        .attribute_sets
        .iter()
        .map(|set| set.iter().map(|it| format!("{}={}", it.key, it.value.text())).collect())
        .collect();
    assert_eq!(sets[0], ["env=said", "tenant=a,b"]);
    assert_eq!(sets[1], ["cpu=-3", "env=said", "tenant=b"]);
}

#[test]
fn frames_of_the_kernel_and_frames_that_are_missing() {
    let mut builder = ProfileBuilder::new();
    let filename = builder.string("[kernel.kallsyms]");
    let kernel = builder.mapping(wire_model::Mapping { filename, ..Default::default() });
    let names =
        [builder.function("do_syscall_64", "", ""), builder.function("[truncated]", "", "")];
    let locations = [
        builder.location(kernel, 0xffff_ffff_8100_0000, vec![(names[0], 0)]),
        builder.location(0, 0, vec![(names[1], 0)]),
    ];
    let cpu = builder.value_type("cpu", "nanoseconds");
    let sample =
        wire_model::Sample { location_id: locations.to_vec(), value: vec![1], label: Vec::new() };
    builder.sample(sample);
    let mut profile = builder.finish();
    profile.sample_type = vec![cpu];
    let batch = read(&profile).unwrap().batch;
    assert_eq!(batch.locations[0].kind, FrameKind::Kernel);
    assert_eq!(batch.locations[0].address, 0xffff_ffff_8100_0000);
    assert_eq!(batch.locations[1].kind, FrameKind::Marker);
    assert_eq!(&*batch.profiles[0].labels.service, "unknown_service");
}

#[test]
fn the_same_profile_again_has_the_same_id() {
    let ids = |profile: &wire_model::Profile, push: &Push| {
        let received = receive(&profile.encode_to_vec(), push, &reception()).unwrap();
        received.batch.profiles.iter().map(|it| it.id).collect::<Vec<_>>()
    };
    let push = Push::default();
    let first = ids(&profile(), &push);
    assert_ne!(first[0], first[1], "each type is a profile");
    assert_eq!(ids(&profile(), &push), first);
    let mut later = profile();
    later.time_nanos += 1;
    let other = Push { profile_type: Some(Arc::from("mutex")), ..Push::default() };
    for others in [ids(&later, &push), ids(&profile(), &other)] {
        assert!(others.iter().all(|id| !first.contains(id)));
    }
    // Without a time, two profiles of the same program are equal though none is the other's repetition.
    later.time_nanos = 0;
    assert_eq!(ids(&later, &push), [ProfileId::None; 2]);
    let received = read(&later).unwrap();
    assert_eq!(received.batch.profiles[0].time_ms, NOW_MS - 10_000);
}

/// A way to break a profile, what is said then, and whose fault it is.
type Row = (fn(&mut wire_model::Profile), &'static str, Severity);

const BROKEN: [Row; 22] = [
    (|it| it.sample_type.clear(), "sample_type", Severity::Malformed),
    (|it| it.sample_type[0].r#type = 0, "sample_type", Severity::Malformed),
    (|it| it.sample_type[0] = it.sample_type[1], "sample_type", Severity::Unstorable),
    (|it| it.sample_type[0].unit = 99, "index", Severity::Malformed),
    (|it| it.sample_type[0].unit = -1, "index", Severity::Malformed),
    (|it| it.string_table[0] = vec![b'x'], "index", Severity::Malformed),
    (|it| it.string_table.clear(), "index", Severity::Malformed),
    (|it| it.sample[0].location_id[0] = 77, "index", Severity::Malformed),
    (|it| it.sample[0].location_id[0] = 0, "index", Severity::Malformed),
    (|it| it.location[0].id = 0, "index", Severity::Malformed),
    (|it| it.location[0].id = 2, "index", Severity::Malformed),
    (|it| it.location[0].mapping_id = 9, "index", Severity::Malformed),
    (|it| it.location[1].line[0].function_id = 9, "index", Severity::Malformed),
    (|it| it.function[0].name = 1 << 40, "index", Severity::Malformed),
    (|it| it.sample[0].value.push(1), "lengths", Severity::Malformed),
    (|it| it.sample[1].value.clear(), "lengths", Severity::Malformed),
    (|it| it.sample[0].label[0].key = 0, "label", Severity::Malformed),
    (|it| it.duration_nanos = -1, "time", Severity::Malformed),
    (|it| it.time_nanos = -1, "time", Severity::Unstorable),
    (|it| it.time_nanos = 4_923_072_000_000_000_000, "time", Severity::Unstorable),
    (|it| it.duration_nanos = i64::MAX, "limit", Severity::TooLarge),
    (|it| it.sample[0].location_id = vec![1; STACK_FRAMES_MAX + 1], "limit", Severity::TooLarge),
];

#[test]
fn each_fault_has_its_reason() {
    for (at, (breakage, reason, severity)) in BROKEN.into_iter().enumerate() {
        let mut profile = profile();
        breakage(&mut profile);
        let fault = read(&profile).expect_err("broken");
        assert_eq!((fault.reason(), fault.severity()), (reason, severity), "{at}: {fault}");
    }
    let fault = receive(&[], &Push::default(), &reception()).unwrap_err();
    assert_eq!(fault, Fault::Empty);
}

#[test]
fn sums_beyond_64_bits_are_refused() {
    for values in [[i64::MAX, i64::MAX], [i64::MAX, 1], [i64::MIN, 0], [i64::MAX, i64::MIN]] {
        let mut profile = profile();
        profile.sample[0].value[0] = values[0];
        profile.sample[1].value[0] = values[1];
        let fault = read(&profile).unwrap_err();
        let severity = (fault.reason(), fault.severity());
        assert_eq!(severity, ("overflow", Severity::Unstorable), "{values:?}: {fault}");
    }
    let mut largest = profile();
    largest.sample[0].value[0] = i64::MAX;
    largest.sample[1].value[0] = 0;
    assert_eq!(read(&largest).unwrap().types[0].total, i64::MAX);
}

/// Cut off anywhere, it is refused, or is the message of what was whole: never half of it, never a panic.
#[test]
fn a_profile_that_is_cut_off_anywhere() {
    let whole = profile().encode_to_vec();
    let complete = receive(&whole, &Push::default(), &reception()).unwrap();
    let mut refused = 0;
    for cut in 0..whole.len() {
        match receive(&whole[..cut], &Push::default(), &reception()) {
            Ok(received) => assert_eq!(received.types, complete.types, "at {cut}"),
            Err(_) => refused += 1,
        }
    }
    assert!(refused > whole.len() * 9 / 10, "{refused} of {}", whole.len());
}

#[test]
fn what_would_take_too_much_memory_is_refused_before_it_does() {
    // Empty messages take 2 bytes on the wire.
    for tag in [0x12_u8, 0x1a, 0x22, 0x2a, 0x32] {
        let body: Vec<u8> = [tag, 0].into_iter().cycle().take(24 << 20).collect();
        let fault = Sections::find(&body).unwrap_err();
        assert!(
            matches!(fault, Fault::Limit { size, .. } if size < DECODED_BYTES_MAX + 4_096),
            "{tag:x}: {fault}"
        );
    }
}
