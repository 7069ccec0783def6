//! A small request with a known truth, for tests of everything that takes requests.

pub(crate) mod waits;

use proto::opentelemetry_proto::tonic::collector::profiles::v1development::ExportProfilesServiceRequest;
use proto::opentelemetry_proto::tonic::common::v1::{
    AnyValue, InstrumentationScope, KeyValue, any_value::Value,
};
use proto::opentelemetry_proto::tonic::profiles::v1development as otlp;
use proto::opentelemetry_proto::tonic::resource::v1::Resource;

/// 2026-11-29T20:00:00Z.
pub(crate) const NOW_MS: i64 = 1_795_982_400_000;

/// 100 Hz.
pub(crate) const PERIOD_NS: i64 = 10_000_000;

const STRINGS: [&str; 14] = [
    "",
    "samples",
    "count",
    "cpu",
    "nanoseconds",
    "main",
    "hot",
    "main.c",
    "/usr/bin/app",
    "thread.name",
    "process.executable.build_id.gnu",
    "worker",
    "profile.frame.type",
    "native",
];

pub(crate) fn text(text: &str) -> AnyValue {
    AnyValue { value: Some(Value::StringValue(text.to_owned())) }
}

pub(crate) fn pair(key: &str, value: AnyValue) -> KeyValue {
    KeyValue { key: key.to_owned(), value: Some(value), key_strindex: 0 }
}

fn attribute(key_strindex: i32, value: AnyValue) -> otlp::KeyValueAndUnit {
    otlp::KeyValueAndUnit { key_strindex, value: Some(value), unit_strindex: 0 }
}

fn dictionary() -> otlp::ProfilesDictionary {
    let function = |name_strindex| otlp::Function {
        name_strindex,
        system_name_strindex: 0,
        filename_strindex: 7,
        start_line: 10,
    };
    let location = |address, function_index| otlp::Location {
        mapping_index: 1,
        address,
        lines: vec![otlp::Line { function_index, line: 12, column: 0 }],
        attribute_indices: vec![3],
    };
    let mapping = otlp::Mapping {
        memory_start: 0x1000,
        memory_limit: 0x9000,
        file_offset: 0x1000,
        filename_strindex: 8,
        attribute_indices: vec![2],
    };
    otlp::ProfilesDictionary {
        mapping_table: vec![otlp::Mapping::default(), mapping],
        location_table: vec![otlp::Location::default(), location(0x1100, 1), location(0x1200, 2)],
        function_table: vec![otlp::Function::default(), function(5), function(6)],
        link_table: vec![
            otlp::Link::default(),
            otlp::Link { trace_id: vec![0xab; 16], span_id: vec![0xcd; 8] },
        ],
        string_table: STRINGS.map(str::to_owned).to_vec(),
        attribute_table: vec![
            otlp::KeyValueAndUnit::default(),
            attribute(9, AnyValue { value: Some(Value::StringValueStrindex(11)) }),
            attribute(10, text("00112233445566778899aabbccddeeff00112233")),
            attribute(12, text("native")),
        ],
        stack_table: vec![
            otlp::Stack::default(),
            otlp::Stack { location_indices: vec![2, 1] }, // hot < main
            otlp::Stack { location_indices: vec![1] },    // main
        ],
    }
}

/// One profile of a resource.
fn of_resource(attributes: Vec<KeyValue>, profile: otlp::Profile) -> otlp::ResourceProfiles {
    let scope = InstrumentationScope { name: "test".to_owned(), ..InstrumentationScope::default() };
    otlp::ResourceProfiles {
        resource: Some(Resource { attributes, ..Resource::default() }),
        scope_profiles: vec![otlp::ScopeProfiles {
            scope: Some(scope),
            profiles: vec![profile],
            schema_url: String::new(),
        }],
        schema_url: String::new(),
    }
}

/// Service `app` on host `h1`: `main;hot` 3 observations, `main` 2; 10 ms each.
pub(crate) fn request_at(now_ms: i64) -> ExportProfilesServiceRequest {
    let time_ns = u64::try_from(now_ms - 10_000).unwrap() * 1_000_000;
    let sample = |stack_index, offsets: &[u64]| otlp::Sample {
        stack_index,
        attribute_indices: vec![1],
        link_index: 0,
        values: Vec::new(),
        timestamps_unix_nano: offsets.iter().map(|ms| time_ns + ms * 1_000_000).collect(),
    };
    let profile = otlp::Profile {
        sample_type: Some(otlp::ValueType { type_strindex: 1, unit_strindex: 2 }),
        samples: vec![sample(1, &[10, 20, 30]), sample(2, &[40, 50])],
        time_unix_nano: time_ns,
        duration_nano: 5_000_000_000,
        period_type: Some(otlp::ValueType { type_strindex: 3, unit_strindex: 4 }),
        period: PERIOD_NS,
        ..otlp::Profile::default()
    };
    let attributes = vec![
        pair("service.name", text("app")),
        pair("host.name", text("h1")),
        pair("process.pid", AnyValue { value: Some(Value::IntValue(42)) }),
        pair("process.executable.path", text("/usr/bin/app")),
    ];
    ExportProfilesServiceRequest {
        resource_profiles: vec![of_resource(attributes, profile)],
        dictionary: Some(dictionary()),
    }
}

/// [`request_at`] a fixed time.
pub(crate) fn request() -> ExportProfilesServiceRequest {
    request_at(NOW_MS)
}

/// The only profile of [`request`].
pub(crate) fn profile(request: &mut ExportProfilesServiceRequest) -> &mut otlp::Profile {
    &mut request.resource_profiles[0].scope_profiles[0].profiles[0]
}

/// The tables of [`request`].
pub(crate) fn tables(request: &mut ExportProfilesServiceRequest) -> &mut otlp::ProfilesDictionary {
    request.dictionary.as_mut().unwrap()
}

/// One change that makes the profile of [`request`] refusable, by the field it breaks.
pub(crate) type Breakage = (&'static str, fn(&mut ExportProfilesServiceRequest));

/// An index that points outside its table, in every field that holds one.
pub(crate) const OUTSIDE: [Breakage; 24] = [
    ("sample.stack_index", |it| profile(it).samples[0].stack_index = 3),
    ("sample.stack_index negative", |it| profile(it).samples[0].stack_index = -1),
    ("sample.attribute_indices", |it| profile(it).samples[0].attribute_indices = vec![1, 4]),
    ("sample.link_index", |it| profile(it).samples[0].link_index = 2),
    ("sample.link_index negative", |it| profile(it).samples[0].link_index = i32::MIN),
    ("profile.attribute_indices", |it| profile(it).attribute_indices = vec![99]),
    ("sample_type.type_strindex", |it| {
        profile(it).sample_type = Some(otlp::ValueType { type_strindex: 14, unit_strindex: 2 });
    }),
    ("sample_type.unit_strindex", |it| {
        profile(it).sample_type = Some(otlp::ValueType { type_strindex: 1, unit_strindex: -2 });
    }),
    ("period_type.type_strindex", |it| {
        profile(it).period_type = Some(otlp::ValueType { type_strindex: 14, unit_strindex: 4 });
    }),
    ("stack.location_indices", |it| tables(it).stack_table[1].location_indices = vec![2, 3]),
    ("stack.location_indices negative", |it| {
        tables(it).stack_table[1].location_indices = vec![-1];
    }),
    ("location.mapping_index", |it| tables(it).location_table[1].mapping_index = 2),
    ("location.attribute_indices", |it| {
        tables(it).location_table[1].attribute_indices = vec![i32::MAX];
    }),
    ("line.function_index", |it| tables(it).location_table[1].lines[0].function_index = 3),
    ("function.name_strindex", |it| tables(it).function_table[1].name_strindex = 14),
    ("function.system_name_strindex", |it| tables(it).function_table[1].system_name_strindex = 99),
    ("function.filename_strindex", |it| tables(it).function_table[1].filename_strindex = -1),
    ("mapping.filename_strindex", |it| tables(it).mapping_table[1].filename_strindex = 14),
    ("mapping.attribute_indices", |it| tables(it).mapping_table[1].attribute_indices = vec![4]),
    ("attribute.key_strindex", |it| tables(it).attribute_table[1].key_strindex = 14),
    ("attribute.unit_strindex", |it| tables(it).attribute_table[1].unit_strindex = 14),
    ("attribute string_value_strindex", |it| {
        tables(it).attribute_table[1].value =
            Some(AnyValue { value: Some(Value::StringValueStrindex(14)) });
    }),
    ("resource key_strindex", |it| {
        let resource = it.resource_profiles[0].resource.as_mut().unwrap();
        resource.attributes.push(KeyValue {
            key_strindex: 14,
            value: Some(text("x")),
            key: String::new(),
        });
    }),
    ("resource string_value_strindex", |it| {
        let resource = it.resource_profiles[0].resource.as_mut().unwrap();
        let value = AnyValue { value: Some(Value::StringValueStrindex(-1)) };
        resource.attributes.push(pair("x", value));
    }),
];
