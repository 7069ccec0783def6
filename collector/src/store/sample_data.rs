//! Random batches and selections for tests: small tables, so that stacks, ids, labels and times collide.

use crate::profile::{
    Attribute, AttributeValue, FunctionDef, LineDef, LocationDef, MappingDef, NewNames, ProfileDef,
    ProfileId, ProjectName, SampleDef, SeriesLabels, Text, ValueType, WriteBatch,
};
use crate::query::{MatchOp, Matcher, Selection, TimeRange};
use crate::store::{Deletion, DeletionId};
use proptest::prelude::*;
use proptest::sample::Index;
use proto::{BuildId, FrameKind};
use std::sync::Arc;

/// Start of the random times, Unix milliseconds: an hour's start, 2026-11-29T19:00:00Z.
pub(crate) const START_MS: i64 = 1_795_978_800_000;
/// Length of the span of random times: two hours and a half.
pub(crate) const SPAN_MS: i64 = 9_000_000;

pub(crate) fn project() -> ProjectName {
    ProjectName("default".into())
}

fn text(choices: &'static [&'static str]) -> impl Strategy<Value = Arc<str>> {
    prop::sample::select(choices).prop_map(Arc::from)
}

fn mappings() -> impl Strategy<Value = MappingDef> {
    let files =
        ["/bin/app", "/lib/libc.so.6", "/other/libc.so.6", "[kernel.kallsyms]", "", "[heap]"];
    let build_ids = prop::option::of(1_u8..3);
    (prop::sample::select(files.to_vec()), build_ids).prop_map(|(filename, id)| MappingDef {
        filename: filename.into(),
        build_id: id.and_then(|id| BuildId::new(&[id; 20])),
    })
}

fn functions() -> impl Strategy<Value = FunctionDef> {
    let names = [
        "main",
        "work",
        "work.cold",
        "leaf::h0123456789abcdef",
        "leaf",
        "",
        "__init__",
        "pthread_mutex_lock",
        "__lll_lock_wait",
    ];
    let name = prop::sample::select(names.to_vec()).prop_map(Text::from);
    let system = prop::sample::select(vec!["", "", "_Z4workv", "main"]).prop_map(Text::from);
    let file = prop::sample::select(vec!["", "a.c", "b.py"]).prop_map(Text::from);
    (name, system, file, 0_i64..3).prop_map(|(name, system_name, file, start_line)| FunctionDef {
        name,
        system_name,
        file,
        start_line,
    })
}

fn kinds() -> impl Strategy<Value = FrameKind> {
    use FrameKind::{Go, Kernel, Marker, Native, Python};
    prop::sample::select(vec![Native, Native, Native, Kernel, Python, Go, Marker])
}

/// A location whose indices are still random.
type LooseLocation = (Option<Index>, u64, FrameKind, Vec<(Index, i64)>);
/// A profile whose indices are still random.
type LooseProfile = (ProfileId, SeriesLabels, (u8, i64), (i64, i64), Vec<LooseSample>);
type LooseSample = (Index, Index, i64, i64);

fn profiles() -> impl Strategy<Value = LooseProfile> {
    let id = prop_oneof![
        2 => Just(ProfileId::None),
        2 => (1_u64..3, 0_u64..12).prop_map(|(boot, sequence)| ProfileId::Agent { boot, sequence }),
        1 => (0_u8..8).prop_map(|byte| ProfileId::Foreign([byte; 16])),
    ];
    let labels = (
        text(&["api", "db", "kernel"]),
        text(&["h1", "h2", ""]),
        text(&["", "c1", "c2"]),
        text(&["", "p1"]),
        text(&["app", "postgres"]),
    );
    let labels = labels.prop_map(|(service, host, container, pod, executable)| SeriesLabels {
        service,
        host,
        container,
        pod,
        executable,
    });
    let kind = (0_u8..10, prop::sample::select(vec![0_i64, 10, 52_631_578]));
    let window = (0..SPAN_MS, prop::sample::select(vec![0_i64, 5_000, 60_000]));
    let value = prop_oneof![
        6 => prop::sample::select(vec![52_631_578_i64, 1, 0, -5]),
        1 => -1_000_000_000_000_i64..1_000_000_000_000,
    ];
    let sample = (any::<Index>(), any::<Index>(), 0..SPAN_MS, value);
    (id, labels, kind, window, prop::collection::vec(sample, 0..12))
}

fn attributes() -> impl Strategy<Value = Vec<Attribute>> {
    let pid = prop::option::of(1_i64..4).prop_map(|pid| pid.map(AttributeValue::Int));
    let name = prop::option::of(text(&["main", "worker-1", "worker-2"]))
        .prop_map(|name| name.map(AttributeValue::Text));
    let flag = prop::option::of(any::<bool>()).prop_map(|flag| flag.map(AttributeValue::Bool));
    let start = prop::option::of(1_i64..3).prop_map(|start| start.map(AttributeValue::Int));
    (pid, start, name, flag, lock_attributes()).prop_map(|(pid, start, name, flag, locks)| {
        let [address, kind, lock] = locks;
        // Sorted by key.
        let rows = [
            ("lock.address", address),
            ("lock.kind", kind),
            ("lock.name", lock),
            ("process.pid", pid),
            ("thread.name", name),
            ("vesta.process.start_time_ns", start),
            ("x.idle", flag),
        ];
        let row = |(key, value): (&str, Option<AttributeValue>)| {
            value.map(|value| Attribute { key: key.into(), value })
        };
        rows.into_iter().filter_map(row).collect()
    })
}

/// Address, kind and name of a lock; senders may leave out each, and write what they like.
fn lock_attributes() -> impl Strategy<Value = [Option<AttributeValue>; 3]> {
    let of = |texts: &'static [&'static str]| {
        prop_oneof![
            2 => Just(None),
            5 => text(texts).prop_map(|text| Some(AttributeValue::Text(text))),
            1 => (-1_i64..2).prop_map(|number| Some(AttributeValue::Int(number))),
            1 => any::<bool>().prop_map(|truth| Some(AttributeValue::Bool(truth))),
        ]
    };
    let address = of(&["0x7f0000001000", "0x10", "not \"hex\"\n", ""]);
    (address, of(&["mutex", "rwlock", "monitor", "spoon"]), of(&["queue+0x10", "", "app+0x4010"]))
        .prop_map(|(address, kind, name)| [address, kind, name])
}

/// A batch of at most some sixty samples.
pub(crate) fn batches() -> impl Strategy<Value = WriteBatch> {
    let location = (
        prop::option::of(any::<Index>()),
        prop::sample::select(vec![0_u64, 0x1000, 0x1010, 0x2000]),
        kinds(),
        prop::collection::vec((any::<Index>(), 0_i64..3), 0..3),
    );
    (
        prop::collection::vec(mappings(), 1..4),
        prop::collection::vec(functions(), 1..5),
        prop::collection::vec(location, 1..8),
        prop::collection::vec(prop::collection::vec(any::<Index>(), 0..6), 1..8),
        prop::collection::vec(attributes(), 1..4),
        prop::collection::vec(profiles(), 0..5),
    )
        .prop_map(|(mappings, functions, locations, stacks, sets, profiles)| {
            let at = |index: &Index, len: usize| u32::try_from(index.index(len)).unwrap();
            let location = |(mapping, address, kind, lines): &LooseLocation| LocationDef {
                mapping: mapping.as_ref().map(|index| at(index, mappings.len())),
                address: *address,
                kind: *kind,
                lines: lines
                    .iter()
                    .map(|(index, line)| LineDef {
                        function: at(index, functions.len()),
                        line: *line,
                    })
                    .collect(),
            };
            let locations: Vec<LocationDef> = locations.iter().map(location).collect();
            let stacks: Vec<Vec<u32>> = stacks
                .iter()
                .map(|stack| stack.iter().map(|index| at(index, locations.len())).collect())
                .collect();
            let profile = |loose: LooseProfile| {
                let (id, labels, (kind, period), (start, duration_ms), samples) = loose;
                let (sample_type, period_type) = types(kind);
                let time_ms = START_MS + start;
                let sample = |(stack, set, offset, value): &LooseSample| SampleDef {
                    stack: at(stack, stacks.len()),
                    attributes: at(set, sets.len()),
                    time_ms: START_MS + offset,
                    value: *value,
                };
                let samples = samples.iter().map(sample).collect();
                ProfileDef {
                    id,
                    labels,
                    sample_type,
                    period_type,
                    period,
                    time_ms,
                    duration_ms,
                    samples,
                }
            };
            let profiles = profiles.into_iter().map(profile).collect();
            WriteBatch {
                project: project(),
                mappings,
                functions,
                locations,
                stacks,
                attribute_sets: sets,
                profiles,
            }
        })
}

fn types(kind: u8) -> (ValueType, ValueType) {
    let named = |kind: &str, unit: &str| ValueType { kind: kind.into(), unit: unit.into() };
    match kind {
        0 => (named("alloc", "bytes"), named("space", "bytes")),
        1 => (named("alloc", "count"), named("space", "bytes")),
        2 => (named("off_cpu", "nanoseconds"), named("", "")),
        3 => (named("off_cpu", "count"), named("", "")),
        4 => (named("lock", "nanoseconds"), named("", "")),
        5 => (named("lock_contentions", "count"), named("", "")),
        6 => (named("lock_holders", "count"), named("", "")),
        _ => (named("cpu", "nanoseconds"), named("cpu", "nanoseconds")),
    }
}

/// Names for addresses that batches have too.
pub(crate) fn names() -> impl Strategy<Value = NewNames> {
    batches().prop_map(|batch| {
        let WriteBatch { project, mappings, functions, mut locations, .. } = batch;
        locations.retain(|location| {
            let mapping = location.mapping.map(|at| &mappings[at as usize]);
            location.address != 0
                && matches!(location.kind, FrameKind::Native | FrameKind::Go)
                && mapping.is_some_and(|mapping| mapping.build_id.is_some())
        });
        NewNames::new(project, mappings, functions, locations).unwrap()
    })
}

/// A deletion of what was stored before a random time.
pub(crate) fn deletions() -> impl Strategy<Value = Deletion> {
    let service = prop::option::of(text(&["api", "db", "none"]));
    let before = prop_oneof![
        3 => 0..SPAN_MS + 100_000,
        1 => prop::sample::select(vec![0, 3_600_000, 2 * SPAN_MS]),
    ];
    (any::<u128>(), service, before).prop_map(|(id, service, before_ms)| Deletion {
        id: DeletionId(id),
        project: project(),
        service,
        before_ms: START_MS + before_ms,
    })
}

/// A selection with random range and matchers.
pub(crate) fn selections() -> impl Strategy<Value = Selection> {
    let ranges = prop_oneof![
        Just((0, SPAN_MS)),
        Just((0, 3_600_000)),
        // All of the days that the times lie in.
        Just((-86_400_000, 86_400_000)),
        (0..SPAN_MS, 0..SPAN_MS).prop_map(|(from, to)| (from, to)),
    ];
    let rows = [
        ("service", "api"),
        ("host", "h1"),
        ("host", ""),
        ("container", "c1"),
        ("thread.name", "main"),
        ("thread.name", ""),
        ("process.pid", "2"),
        ("lock.kind", "mutex"),
        ("lock.name", "queue+0x10"),
        ("nothing", ""),
    ];
    let matcher = (prop::sample::select(rows.to_vec()), 0_u8..4).prop_map(|((name, value), op)| {
        let regex = || regex::Regex::new(&format!("^(?:{value}.*)$")).unwrap();
        let op = match op {
            0 => MatchOp::Equal(value.to_owned()),
            1 => MatchOp::NotEqual(value.to_owned()),
            2 => MatchOp::Regex(regex()),
            _ => MatchOp::NotRegex(regex()),
        };
        Matcher { name: name.to_owned(), op }
    });
    let kind = prop::sample::select(vec![
        "cpu",
        "cpu",
        "alloc",
        "alloc:count",
        "off_cpu",
        "off_cpu:count",
        "lock",
        "lock_contentions",
    ]);
    (kind, ranges, prop::collection::vec(matcher, 0..3)).prop_map(|(kind, (from, to), matchers)| {
        Selection {
            project: project(),
            profile_type: kind.to_owned(),
            range: TimeRange { from_ms: START_MS + from, to_ms: START_MS + to },
            matchers,
        }
    })
}
