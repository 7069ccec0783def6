//! Right answers for requests of a known truth, refusals for broken ones, totals of foreign ones.

mod times;

use super::*;
use crate::ingest::testing::{NOW_MS, OUTSIDE, PERIOD_NS, pair, profile, request, tables, text};
use crate::limits::{JSON_BYTES_MAX, LABEL_BYTES_MAX, REQUEST_FRAMES_MAX, REQUEST_SETS_BYTES_MAX};
use crate::profile::{AttributeValue, ProfileDef, ProfileId, SeriesLabels};
use crate::query::LEDGER_TYPE;
use crate::store::Retention;
use proptest::prelude::*;
use proto::opentelemetry_proto::tonic::common::v1::{
    AnyValue, ArrayValue, KeyValue, any_value::Value,
};
use proto::opentelemetry_proto::tonic::profiles::v1development as otlp;

const DAY_MS: i64 = 86_400_000;

fn reception() -> Reception {
    Reception {
        project: ProjectName(Arc::from("default")),
        now_ms: NOW_MS,
        retention: Retention::new(400 * DAY_MS),
    }
}

fn received(request: &ExportProfilesServiceRequest) -> Received {
    let received = receive(&request.encode_to_vec(), &reception()).unwrap();
    assert_eq!(received.batch.check(), Ok(()));
    received
}

fn accepted(request: &ExportProfilesServiceRequest) -> ProfileDef {
    let mut received = received(request);
    assert_eq!(received.rejections, Rejections::default());
    assert_eq!(received.batch.profiles.len(), 1);
    received.batch.profiles.remove(0)
}

/// The reason and the text for which the one profile is refused, with nothing in the batch.
fn refused(request: &ExportProfilesServiceRequest) -> (&'static str, String) {
    let received = received(request);
    assert_eq!(received.rejections.profiles, 1);
    let batch = &received.batch;
    let copies = [batch.stacks.len(), batch.locations.len(), batch.functions.len()];
    assert_eq!((batch.profiles.len(), copies), (0, [0; 3]), "something of it was copied");
    let reason = received.rejections.by_reason.keys().next().unwrap();
    (reason, received.rejections.message())
}

#[test]
fn a_request_becomes_a_batch() {
    let received = received(&request());
    let batch = &received.batch;
    let profile = &batch.profiles[0];
    let stacks: Vec<Vec<&str>> = batch
        .stacks
        .iter()
        .map(|stack| {
            let name = |&location: &u32| {
                let line = batch.locations[location as usize].lines[0];
                &*batch.functions[line.function as usize].name
            };
            stack.iter().map(name).collect()
        })
        .collect();
    assert_eq!(stacks, [vec!["hot", "main"], vec!["main"]]);
    assert_eq!(batch.locations[0].address, 0x1200);
    assert_eq!(
        batch.mappings[0].build_id.as_ref().unwrap().to_string(),
        "00112233445566778899aabbccddeeff00112233"
    );
    let labels = SeriesLabels {
        service: Arc::from("app"),
        host: Arc::from("h1"),
        executable: Arc::from("app"),
        ..SeriesLabels::default()
    };
    assert_eq!(profile.labels, labels);
    assert_eq!((&*profile.sample_type.kind, &*profile.sample_type.unit), ("cpu", "nanoseconds"));
    let observations: Vec<_> =
        profile.samples.iter().map(|it| (it.stack, it.time_ms - NOW_MS, it.value)).collect();
    let expected = [(0, 10), (0, 20), (0, 30), (1, 40), (1, 50)];
    let expected = expected.map(|(stack, offset)| (stack, offset - 10_000, PERIOD_NS));
    assert_eq!(observations, expected);
    let set: Vec<_> = batch.attribute_sets[0]
        .iter()
        .map(|attribute| format!("{}={}", attribute.key, attribute.value.text()))
        .collect();
    assert_eq!(
        set,
        ["process.executable.path=/usr/bin/app", "process.pid=42", "thread.name=worker"]
    );
    assert_eq!(profile.id, ProfileId::None);
    assert_eq!((profile.time_ms, profile.duration_ms), (NOW_MS - 10_000, 5_000));
}

#[test]
fn indices_outside_their_table_refuse_the_profile() {
    for (field, breakage) in OUTSIDE {
        let mut request = request();
        breakage(&mut request);
        let (reason, message) = refused(&request);
        assert_eq!(reason, "index", "{field}: {message}");
        assert!(message.starts_with("1 profile was not stored; profile 0: "), "{field}: {message}");
    }
}

#[test]
fn a_fault_of_one_profile_does_not_touch_its_neighbours() {
    let mut request = request();
    let profiles = &mut request.resource_profiles[0].scope_profiles[0].profiles;
    let mut broken = profiles[0].clone();
    broken.samples[1].stack_index = 77;
    profiles.insert(0, broken);
    let received = received(&request);
    assert_eq!((received.batch.profiles.len(), received.rejections.profiles), (1, 1));
    assert_eq!(received.batch.stacks.len(), 2);
}

#[test]
fn faults() {
    type Row = (&'static str, &'static str, fn(&mut ExportProfilesServiceRequest));
    let rows: [Row; 9] = [
        ("sample_type", "sample_type is not set", |it| profile(it).sample_type = None),
        ("empty_sample", "sample 1 has neither values nor timestamps", |it| {
            profile(it).samples[1].timestamps_unix_nano.clear();
        }),
        ("lengths", "sample 0 has 2 values and 3 timestamps", |it| {
            profile(it).samples[0].values = vec![1, 2];
        }),
        ("overflow", "sample 0: value times period 10000000 exceeds 64 bits", |it| {
            profile(it).samples[0].values = vec![1, 2, i64::MAX];
        }),
        ("time", "time_unix_nano 2126", |it| {
            profile(it).time_unix_nano = 4_936_000_000_000_000_000
        }),
        ("time", "timestamps_unix_nano 2001-09-09T01:46:40Z is outside", |it| {
            profile(it).samples[0].timestamps_unix_nano[1] = 1_000_000_000_000_000_000;
        }),
        ("time", "time_unix_nano + duration_nano", |it| {
            profile(it).duration_nano = 700_000_000_000
        }),
        ("limit", "duration_nano, in milliseconds, is", |it| profile(it).duration_nano = u64::MAX),
        ("limit", "the depth of a stack is 4097, above the limit of 4096", |it| {
            tables(it).stack_table[1].location_indices = vec![1; 4_097];
        }),
    ];
    for (reason, message, breakage) in rows {
        let mut request = request();
        breakage(&mut request);
        let (found, text) = refused(&request);
        assert_eq!(found, reason, "{text}");
        assert!(text.contains(message), "{text}");
    }
}

/// Some bytes of the wire that name large attributes again and again must not become gigabytes.
#[test]
fn attribute_sets_are_bounded_in_bytes() {
    let with_sets = |sets: i32| {
        let mut request = request();
        let large = tables(&mut request).string_table.len();
        tables(&mut request).string_table.push("x".repeat(LABEL_BYTES_MAX));
        let resource = request.resource_profiles[0].resource.as_mut().unwrap();
        let value = Value::StringValueStrindex(i32::try_from(large).unwrap());
        let large = AnyValue { value: Some(value) };
        resource.attributes.extend((0..64).map(|at| pair(&format!("a{at}"), large.clone())));
        let table = &mut tables(&mut request).attribute_table;
        let first = i32::try_from(table.len()).unwrap();
        table.extend((0..sets).map(|tid| otlp::KeyValueAndUnit {
            key_strindex: 9,
            value: Some(AnyValue { value: Some(Value::IntValue(tid.into())) }),
            unit_strindex: 0,
        }));
        let profile = profile(&mut request);
        let mut sample = profile.samples[0].clone();
        // Twice each: a set that two samples share counts once.
        profile.samples = (0..2 * sets)
            .map(|at| {
                sample.attribute_indices = vec![first + at / 2];
                sample.clone()
            })
            .collect();
        request
    };
    let fits = i32::try_from(REQUEST_SETS_BYTES_MAX / (64 * (LABEL_BYTES_MAX + 100))).unwrap();
    assert_eq!(accepted(&with_sets(fits)).samples.len(), 6 * usize::try_from(fits).unwrap());
    let (reason, text) = refused(&with_sets(fits + fits / 10));
    assert_eq!(reason, "limit");
    assert!(text.contains("the attributes of all samples, in bytes,"), "{text}");
}

#[test]
fn json_of_attributes_is_bounded_in_bytes() {
    let mut request = request();
    let large = i32::try_from(tables(&mut request).string_table.len()).unwrap();
    tables(&mut request).string_table.push("x".repeat(LABEL_BYTES_MAX));
    let item = AnyValue { value: Some(Value::StringValueStrindex(large)) };
    let array = Value::ArrayValue(ArrayValue { values: vec![item; 15] });
    let table = &mut tables(&mut request).attribute_table;
    table[1].value = Some(AnyValue { value: Some(array) });
    let each = table[1].clone();
    table.extend(std::iter::repeat_n(each, JSON_BYTES_MAX / (15 * LABEL_BYTES_MAX) + 1));
    let last = i32::try_from(table.len() - 1).unwrap();
    profile(&mut request).samples[1].attribute_indices = vec![last];
    let (reason, text) = refused(&request);
    assert_eq!(reason, "limit");
    assert!(text.contains("the attribute values that become JSON, in bytes,"), "{text}");
}

/// A deep stack of many samples is in the batch once.
#[test]
fn frames_of_shared_stacks_count_once() {
    let mut request = request();
    tables(&mut request).stack_table[1].location_indices = vec![1; 4_096];
    let profile = profile(&mut request);
    let sample = profile.samples[0].clone();
    profile.samples = vec![sample; REQUEST_FRAMES_MAX / 4_096 + 1];
    assert_eq!(accepted(&request).samples.len(), 3 * (REQUEST_FRAMES_MAX / 4_096 + 1));
}

#[test]
fn reasons_are_named_once_and_not_without_end() {
    let mut request = request();
    let profiles = &mut request.resource_profiles[0].scope_profiles[0].profiles;
    let good = profiles[0].clone();
    profiles.clear();
    for index in 0..20 {
        let mut broken = good.clone();
        broken.samples[0].stack_index = 3 + index / 2;
        profiles.push(broken);
    }
    let rejections = received(&request).rejections;
    assert_eq!((rejections.profiles, rejections.shown.len()), (20, REASONS_SHOWN_MAX));
    assert_eq!(rejections.by_reason[&"index"], 20);
}

#[test]
fn values_of_every_sign_are_kept() {
    let mut request = request();
    let changed = profile(&mut request);
    changed.sample_type = Some(otlp::ValueType { type_strindex: 3, unit_strindex: 4 });
    changed.samples[0].timestamps_unix_nano.clear();
    changed.samples[0].values = vec![i64::MAX, 0, -7, i64::MIN];
    let profile = accepted(&request);
    let values: Vec<i64> = profile.samples.iter().map(|sample| sample.value).collect();
    assert_eq!(values, [i64::MAX, 0, -7, i64::MIN, 1, 1]);
}

/// Type and unit of samples and period by string index, the period, and what is stored.
#[test]
fn unit_rules() {
    let rows = [
        ([1, 2, 3, 4], PERIOD_NS, "cpu/nanoseconds", PERIOD_NS),
        ([3, 2, 3, 4], 7, "cpu/nanoseconds", 7),
        ([3, 4, 3, 4], PERIOD_NS, "cpu/nanoseconds", 1),
        ([1, 2, 3, 4], 0, "samples/count", 1),
        ([1, 2, 0, 0], PERIOD_NS, "samples/count", 1),
        ([5, 4, 3, 4], PERIOD_NS, "main/nanoseconds", 1),
        ([5, 2, 3, 4], PERIOD_NS, "main/count", 1),
    ];
    for ([kind, unit, period_kind, period_unit], period, stored, factor) in rows {
        let mut request = request();
        let changed = profile(&mut request);
        changed.sample_type = Some(otlp::ValueType { type_strindex: kind, unit_strindex: unit });
        changed.period_type =
            Some(otlp::ValueType { type_strindex: period_kind, unit_strindex: period_unit });
        changed.period = period;
        let profile = accepted(&request);
        let found = format!("{}/{}", profile.sample_type.kind, profile.sample_type.unit);
        assert_eq!((&*found, profile.samples[0].value), (stored, factor), "{kind} {unit}");
        assert_eq!(profile.period, period);
    }
}

#[test]
fn counts_beside_cpu_nanoseconds_are_not_cpu_a_second_time() {
    let mut request = request();
    let profiles = &mut request.resource_profiles[0].scope_profiles[0].profiles;
    let mut nanoseconds = profiles[0].clone();
    nanoseconds.sample_type = Some(otlp::ValueType { type_strindex: 3, unit_strindex: 4 });
    profiles.push(nanoseconds);
    let received = received(&request);
    let kinds: Vec<_> =
        received.batch.profiles.iter().map(|profile| &*profile.sample_type.kind).collect();
    assert_eq!(kinds, ["samples", "cpu"]);
}

#[test]
fn a_service_without_a_name_is_named_after_its_program() {
    let named = |change: fn(&mut ExportProfilesServiceRequest)| {
        let mut request = request();
        let resource = request.resource_profiles[0].resource.as_mut().unwrap();
        resource.attributes.retain(|pair| pair.key != "service.name");
        change(&mut request);
        accepted(&request).labels.service
    };
    assert_eq!(&*named(|_| {}), "app");
    assert_eq!(&*named(|it| it.resource_profiles[0].resource = None), "unknown_service");
    let kernel = named(|it| {
        it.resource_profiles[0].resource = None;
        tables(it).attribute_table[3].value = Some(text("kernel"));
    });
    assert_eq!(&*kernel, "kernel");
}

#[test]
fn addresses_of_running_processes_become_those_of_their_file() {
    // memory_start, memory_limit, file_offset, address, kind, normalized.
    let rows = [
        (0, 0, 0, 0x1100, "native", 0x1100), // the OpenTelemetry eBPF profiler
        (0x1000, 0x9000, 0x800, 0x1100, "native", 0x1100), // Vesta: p_vaddr and p_offset
        (0x40_0000, 0x50_0000, 0, 0x40_1000, "native", 0x40_1000), // position dependent
        (0x5555_5555_4000, 0x5555_5556_0000, 0x2000, 0x5555_5555_4100, "native", 0x2100),
        (0x7fff_0000_0000, 0x7fff_0001_0000, 0, 0x1234, "native", 0x1234), // already relative
        (
            0xffff_8000_0000_0000,
            u64::MAX,
            0,
            0xffff_8000_0000_1000,
            "kernel",
            0xffff_8000_0000_1000,
        ),
    ];
    for (memory_start, memory_limit, file_offset, address, kind, normalized) in rows {
        let mut request = request();
        let tables = tables(&mut request);
        let mapping = &mut tables.mapping_table[1];
        (mapping.memory_start, mapping.memory_limit) = (memory_start, memory_limit);
        mapping.file_offset = file_offset;
        tables.location_table[2].address = address;
        tables.attribute_table[3].value = Some(text(kind));
        let batch = received(&request).batch;
        assert_eq!(batch.locations[0].address, normalized, "{address:#x} in {memory_start:#x}");
    }
}

#[test]
fn tables_without_a_zero_entry_are_understood() {
    let mut request = request();
    let tables = tables(&mut request);
    // The sender counts from 0: everything one lower.
    tables.stack_table = vec![otlp::Stack { location_indices: vec![1, 0] }];
    tables.location_table.remove(0);
    tables.function_table.remove(0);
    for location in &mut tables.location_table {
        location.lines[0].function_index -= 1;
    }
    let changed = profile(&mut request);
    changed.samples.truncate(1);
    changed.samples[0].stack_index = 0;
    let batch = received(&request).batch;
    assert_eq!(batch.stacks, [[0, 1]]);
    assert_eq!(&*batch.functions[0].name, "hot");
}

#[test]
fn links_and_rare_values_become_attributes() {
    let mut request = request();
    profile(&mut request).samples[0].link_index = 1;
    let double = |number| AnyValue { value: Some(Value::DoubleValue(number)) };
    let array = ArrayValue { values: vec![text("a\"b"), double(0.5), AnyValue::default()] };
    let resource = request.resource_profiles[0].resource.as_mut().unwrap();
    resource.attributes.extend([
        pair("array", AnyValue { value: Some(Value::ArrayValue(array)) }),
        pair("double", double(2.0)),
        pair("bytes", AnyValue { value: Some(Value::BytesValue(vec![0, 255])) }),
        pair("bool", AnyValue { value: Some(Value::BoolValue(true)) }),
        pair("telemetry.sdk.name", text("dropped")),
        KeyValue { key_strindex: 11, value: Some(text("by index")), key: String::new() },
    ]);
    let batch = received(&request).batch;
    let set: Vec<_> = batch.attribute_sets[0]
        .iter()
        .map(|attribute| format!("{}={}", attribute.key, attribute.value.text()))
        .collect();
    let expected = [
        r#"array=["a\"b",0.5,null]"#,
        "bool=true",
        r#"bytes="00ff""#,
        "double=2.0",
        "process.executable.path=/usr/bin/app",
        "process.pid=42",
        "span_id=cdcdcdcdcdcdcdcd",
        "thread.name=worker",
        "trace_id=abababababababababababababababab",
        "worker=by index",
    ];
    assert_eq!(set, expected);
}

#[test]
fn long_attribute_values_are_cut_at_a_character_and_counted() {
    let mut request = request();
    let resource = request.resource_profiles[0].resource.as_mut().unwrap();
    resource.attributes.push(pair("process.command_line", text(&"\u{e9}".repeat(3_000))));
    let received = received(&request);
    let cut =
        received.batch.attribute_sets[0].iter().find_map(|attribute| match &attribute.value {
            AttributeValue::Text(text) if &*attribute.key == "process.command_line" => {
                Some(text.len())
            }
            _ => None,
        });
    assert_eq!((cut, received.truncated), (Some(4_096), 1));
}

fn nested(depth: usize) -> AnyValue {
    (0..depth).fold(text("x"), |inner, _| AnyValue {
        value: Some(Value::ArrayValue(ArrayValue { values: vec![inner] })),
    })
}

#[test]
fn nested_values_are_bounded() {
    for depth in [1, 8, 9, 15] {
        let mut request = request();
        tables(&mut request).attribute_table[1].value = Some(nested(depth));
        let outcome = received(&request);
        let expected = u64::from(depth > crate::limits::VALUE_DEPTH_MAX);
        assert_eq!(outcome.rejections.profiles, expected, "{depth}");
    }
    for depth in [60, 2_000] {
        let mut request = request();
        let resource = request.resource_profiles[0].resource.as_mut().unwrap();
        resource.attributes.push(pair("x", nested(depth)));
        let outcome = receive(&request.encode_to_vec(), &reception());
        assert!(
            matches!(outcome, Err(Undecodable::Wire(WireError::Depth))),
            "{depth}: {outcome:?}"
        );
    }
}

#[test]
fn ids_tell_profiles_apart() {
    let id = |scope: &str, change: fn(&mut otlp::Profile)| {
        let mut request = request();
        let scope_profiles = &mut request.resource_profiles[0].scope_profiles[0];
        scope_profiles.scope.as_mut().unwrap().name = scope.to_owned();
        let changed = profile(&mut request);
        changed.profile_id = (1..=16).collect();
        change(changed);
        accepted(&request).id
    };
    let agent = ProfileId::Agent { boot: 0x0102_0304_0506_0708, sequence: 0x090a_0b0c_0d0e_0f10 };
    assert_eq!(id(AGENT_SCOPE, |_| {}), agent);
    let foreign = id("other", |_| {});
    assert!(matches!(foreign, ProfileId::Foreign(_)));
    assert_eq!(foreign, id("other", |_| {}), "a retry has the same id");
    assert_ne!(foreign, id("other", |it| it.time_unix_nano += 1));
    assert_ne!(foreign, id("other", |it| it.sample_type.as_mut().unwrap().type_strindex = 5));
    assert_eq!(id("other", |it| it.profile_id = vec![0; 16]), ProfileId::None);
    assert_eq!(id(AGENT_SCOPE, |it| it.profile_id = Vec::new()), ProfileId::None);
    assert!(matches!(id(AGENT_SCOPE, |it| it.profile_id = vec![7]), ProfileId::Foreign(_)));
}

#[test]
fn an_empty_window_is_a_profile_and_an_empty_request_is_none() {
    let mut request = request();
    profile(&mut request).samples.clear();
    assert_eq!(accepted(&request).samples, []);
    let nothing = received(&ExportProfilesServiceRequest::default());
    assert_eq!((nothing.batch.profiles.len(), nothing.rejections.profiles), (0, 0));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    #[test]
    fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        drop(receive(&bytes, &reception()));
    }

    /// What is accepted of a damaged request keeps the rules of the domain model.
    #[test]
    fn damaged_requests_never_panic(
        damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6)
    ) {
        let mut bytes = request().encode_to_vec();
        for (at, byte) in damage {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Ok(received) = receive(&bytes, &reception()) {
            prop_assert_eq!(received.batch.check(), Ok(()));
        }
    }
}

#[test]
fn the_account_of_a_window_is_summed_by_host_and_is_no_attribute_of_samples() {
    let mut request = request();
    let tables = tables(&mut request);
    let lost = i32::try_from(tables.string_table.len()).unwrap();
    let names = ["lost_in_ring", "outcome.no_table", "<x>", "cpus"];
    tables.string_table.extend(names.map(|name| format!("vesta.ledger.{name}")));
    tables.string_table.push("vesta.process_ledger.outcome.no_table".to_owned());
    for (name, value) in [(0, 7), (1, 3), (2, 1), (1, -5), (3, 2), (4, 9)] {
        tables.attribute_table.push(otlp::KeyValueAndUnit {
            key_strindex: lost + name,
            value: Some(AnyValue { value: Some(Value::IntValue(value)) }),
            unit_strindex: 0,
        });
    }
    let scope_profiles = &mut request.resource_profiles[0].scope_profiles[0];
    scope_profiles.scope.as_mut().unwrap().name = AGENT_SCOPE.to_owned();
    scope_profiles.profiles[0].attribute_indices = vec![4, 5, 6, 7, 8, 9];
    let again = scope_profiles.profiles[0].clone();
    scope_profiles.profiles.push(again);
    let received = received(&request);
    let ledger = sums(&received.accounts, &[]).into_iter();
    let ledger: Vec<_> =
        ledger.map(|((host, name), sum)| (host.to_string(), name.to_string(), sum)).collect();
    let right = [("lost_in_ring", 14), ("outcome.no_table", 6)];
    let right = right.map(|(name, sum)| ("h1".to_owned(), name.to_owned(), sum));
    assert_eq!(ledger, right);
    // A window that was stored before was counted before; others of its request were not.
    let of_window = |account: &Account| &*received.batch.profiles[account.profile].sample_type.kind;
    assert!(received.accounts.iter().all(|account| of_window(account) == "cpu"));
    let [first, rest @ ..] = &received.accounts[..] else { panic!("no account") };
    let left = sums(&received.accounts, &[first.profile]);
    assert_eq!(left, sums(rest, &[]));
    assert_ne!(left, sums(&received.accounts, &[]));
    // What was lost is stored too, once for each window.
    let of_ledger = |profile: &&ProfileDef| *profile.sample_type.kind == *LEDGER_TYPE;
    let stored: Vec<_> = received.batch.profiles.iter().filter(of_ledger).collect();
    let values: Vec<_> =
        stored.iter().map(|profile| (profile.samples.len(), profile.samples[0].value)).collect();
    assert_eq!(values, [(1, 7), (1, 7)]);
    let frame = received.batch.stacks[stored[0].samples[0].stack as usize][0];
    let line = received.batch.locations[frame as usize].lines[0];
    assert_eq!(&*received.batch.functions[line.function as usize].name, "lost_in_ring");
    assert_eq!(received.batch.check(), Ok(()));
    let mut keys = received.batch.attribute_sets.iter().flatten().map(|attribute| &*attribute.key);
    assert!(keys.all(|key| !key.starts_with("vesta.")));
}

/// What a foreign file should give: its line in `truth.jsonl`.
fn check_corpus_file(corpus: &std::path::Path, truth: &serde_json::Value) {
    let name = truth["file"].as_str().unwrap();
    let bytes = std::fs::read(corpus.join(name)).unwrap();
    let mut reception = reception();
    reception.retention = Retention::default();
    let received = receive(&bytes, &reception).unwrap();
    assert_eq!(received.rejections, Rejections::default(), "{name}");
    assert_eq!(received.batch.check(), Ok(()), "{name}");
    let mut expected = BTreeMap::<String, (u64, i64)>::new();
    for (key, figures) in truth["by_type"].as_object().unwrap() {
        let (sample_type, period) = key.split_once(" period=").unwrap();
        let (period_type, period) = period.split_once(' ').unwrap();
        let is_cpu = sample_type == "samples/count" && period_type == "cpu/nanoseconds";
        let factor = if is_cpu { period.parse().unwrap() } else { 1 };
        let stored = if is_cpu { "cpu/nanoseconds" } else { sample_type };
        let entry = expected.entry(stored.to_owned()).or_default();
        entry.0 += figures["profiles"].as_u64().unwrap();
        entry.1 += figures["sum_occ"].as_i64().unwrap() * factor;
    }
    let mut found = BTreeMap::<String, (u64, i64)>::new();
    for profile in &received.batch.profiles {
        let key = format!("{}/{}", profile.sample_type.kind, profile.sample_type.unit);
        let entry = found.entry(key).or_default();
        entry.0 += 1;
        entry.1 += profile.samples.iter().map(|sample| sample.value).sum::<i64>();
    }
    assert_eq!(found, expected, "{name}");
    let observations: usize =
        received.batch.profiles.iter().map(|profile| profile.samples.len()).sum();
    assert_eq!(observations as u64, truth["ts_count"].as_u64().unwrap(), "{name}");
    let depth = received.batch.stacks.iter().map(Vec::len).max().unwrap();
    assert_eq!(depth as u64, truth["depth"].as_u64().unwrap(), "{name}");
}

#[test]
fn foreign_files_give_their_true_totals() {
    let Some(corpus) = std::env::var_os("VESTA_CORPUS").map(std::path::PathBuf::from) else {
        println!("skipped: VESTA_CORPUS is not set to a folder with foreign profiles");
        return;
    };
    let truth = std::fs::read_to_string(corpus.join("truth.jsonl")).unwrap();
    let rows = truth.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let mut files = 0;
    for row in rows.filter(|row| row["file"].as_str().unwrap().starts_with("otlp")) {
        check_corpus_file(&corpus, &row);
        files += 1;
    }
    assert!(files >= 4, "{files} OTLP files in truth.jsonl");
}
