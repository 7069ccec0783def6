//! Off-CPU time and lock waits made by a test, for a collector: as Vesta's agent sends them, with known sums.

use crate::profiles::now_ns;
use proto::FrameKind;
use proto::otlp::collector::ExportProfilesServiceRequest;
use proto::otlp::common::any_value::Value;
use proto::otlp::common::{AnyValue, InstrumentationScope, KeyValue};
use proto::otlp::profiles::{Profile, ResourceProfiles, Sample, ScopeProfiles, ValueType};
use proto::otlp::resource::Resource;
use proto::otlp::{AttributeValue, DictionaryBuilder, attribute};

/// The service of [`request`].
pub const SERVICE: &str = "wait-shop";
/// Its lock that was waited for longest.
pub const LOCK: &str = "queue+0x10";
/// How long, nanoseconds.
pub const LOCK_WAIT_NS: i64 = 900_000_000_000;
/// How often.
pub const LOCK_CONTENTIONS: i64 = 4_500;
/// Who waits for it.
pub const WAITER: &str = "push_order";
/// Who holds it.
pub const HOLDER: &str = "compress_orders";
/// How long its threads were blocked in all, nanoseconds.
pub const OFF_CPU_NS: i64 = 2_400_000_000_000;

/// One sample of one type: type, unit, value, stack (leaf first), attributes.
type Row = (&'static str, &'static str, i64, &'static [&'static str], Attributes);
type Attributes = &'static [(&'static str, &'static str)];

const QUEUE: Attributes = &[
    ("lock.kind", "mutex"),
    ("lock.address", "0x555500001010"),
    ("lock.name", LOCK),
    ("off_cpu.reason", "lock"),
];
const HEAP: Attributes = &[("lock.kind", "rwlock"), ("lock.address", "0x7f0000001000")];
const LOCKED: &[&str] = &["__lll_lock_wait", "pthread_mutex_lock", WAITER, "serve", "main"];
const ROWS: [Row; 8] = [
    ("lock", "nanoseconds", LOCK_WAIT_NS, LOCKED, QUEUE),
    ("lock_contentions", "count", LOCK_CONTENTIONS, LOCKED, QUEUE),
    ("lock_holders", "count", 60, &[HOLDER, "serve", "main"], QUEUE),
    ("lock", "nanoseconds", 1_000_000, &["pthread_rwlock_rdlock", "look_up", "main"], HEAP),
    ("off_cpu", "nanoseconds", LOCK_WAIT_NS, LOCKED, QUEUE),
    (
        "off_cpu",
        "nanoseconds",
        OFF_CPU_NS - LOCK_WAIT_NS,
        &["read", "load_orders", "main"],
        &[("off_cpu.reason", "io")],
    ),
    ("off_cpu", "count", LOCK_CONTENTIONS, LOCKED, QUEUE),
    ("off_cpu", "count", 10, &["read", "load_orders", "main"], &[("off_cpu.reason", "io")]),
];

/// A request of the service's waits in the last second.
#[must_use]
pub fn request() -> ExportProfilesServiceRequest {
    let mut dictionary = DictionaryBuilder::new();
    let end_ns = now_ns();
    let profiles = ROWS.iter().map(|row| profile(&mut dictionary, end_ns, row)).collect();
    let text = |key: &str, value: &str| pair(key, Value::StringValue(value.to_owned()));
    let attributes = vec![
        text(attribute::SERVICE_NAME, SERVICE),
        text(attribute::HOST_NAME, "test-host"),
        text(attribute::PROCESS_EXECUTABLE_PATH, "/usr/bin/wait-shop"),
        pair(attribute::PROCESS_PID, Value::IntValue(4_711)),
    ];
    ExportProfilesServiceRequest {
        resource_profiles: vec![ResourceProfiles {
            resource: Some(Resource { attributes, ..Resource::default() }),
            scope_profiles: vec![ScopeProfiles {
                scope: Some(InstrumentationScope {
                    name: "test".to_owned(),
                    ..InstrumentationScope::default()
                }),
                profiles,
                ..ScopeProfiles::default()
            }],
            ..ResourceProfiles::default()
        }],
        dictionary: Some(dictionary.finish()),
    }
}

fn profile(dictionary: &mut DictionaryBuilder, end_ns: u64, row: &Row) -> Profile {
    let (kind, unit, value, stack, attributes) = *row;
    let native = AttributeValue::Text(FrameKind::Native.as_str());
    let native = dictionary.attribute(attribute::FRAME_TYPE, &native);
    let locations: Vec<i32> = stack
        .iter()
        .map(|name| {
            let function = dictionary.function(name, "", "", 0);
            dictionary.location(0, 0, &[(function, 0)], &[native])
        })
        .collect();
    let attribute_indices = attributes
        .iter()
        .map(|(key, value)| dictionary.attribute(key, &AttributeValue::Text(value)))
        .collect();
    let sample = Sample {
        stack_index: dictionary.stack(&locations),
        values: vec![value],
        attribute_indices,
        ..Sample::default()
    };
    Profile {
        sample_type: Some(ValueType {
            type_strindex: dictionary.string(kind),
            unit_strindex: dictionary.string(unit),
        }),
        samples: vec![sample],
        time_unix_nano: end_ns - 1_000_000_000,
        duration_nano: 1_000_000_000,
        ..Profile::default()
    }
}

fn pair(key: &str, value: Value) -> KeyValue {
    let value = Some(AnyValue { value: Some(value) });
    KeyValue { key: key.to_owned(), value, ..KeyValue::default() }
}
