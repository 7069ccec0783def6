//! A window as the bytes of an OTLP request, the way agents send it: one dictionary, one profile a service,
//! one sample for each stack and thread with one timestamp for each observation.

use crate::generate::{Set, Window};
use bytes::Bytes;
use prost::Message as _;
use proto::opentelemetry_proto::tonic::collector::profiles::v1development::ExportProfilesServiceRequest;
use proto::opentelemetry_proto::tonic::common::v1::{
    AnyValue, InstrumentationScope, KeyValue, any_value::Value,
};
use proto::opentelemetry_proto::tonic::profiles::v1development as wire;
use proto::opentelemetry_proto::tonic::resource::v1::Resource;
use std::collections::{BTreeMap, HashMap};

/// 19 Hz.
const PERIOD_NS: i64 = 52_631_578;
/// Positions of the fixed strings of every request.
const FIXED: [&str; 9] = [
    "",
    "samples",
    "count",
    "cpu",
    "nanoseconds",
    "thread.id",
    "profile.frame.type",
    "native",
    "/usr/bin/app",
];

/// The dictionary of one request.
struct Dictionary {
    tables: wire::ProfilesDictionary,
    functions: HashMap<u32, i32>,
    stacks: HashMap<(usize, usize), i32>,
    threads: HashMap<u64, i32>,
}

pub(crate) fn encode(set: &Set, window: &Window) -> Bytes {
    let mut dictionary = Dictionary::new();
    let resource_profiles = window
        .services
        .iter()
        .map(|(&service, samples)| {
            let mut by_stack: BTreeMap<(usize, u64), Vec<u64>> = BTreeMap::new();
            for &(stack, thread, time_ms) in samples {
                by_stack.entry((stack, thread)).or_default().push(nanoseconds(time_ms));
            }
            let samples = by_stack.into_iter().map(|((stack, thread), times)| wire::Sample {
                stack_index: dictionary.stack(set, service, stack),
                attribute_indices: vec![dictionary.thread(thread)],
                link_index: 0,
                values: Vec::new(),
                timestamps_unix_nano: times,
            });
            profile(set, window, service, samples.collect())
        })
        .collect();
    let request =
        ExportProfilesServiceRequest { resource_profiles, dictionary: Some(dictionary.tables) };
    request.encode_to_vec().into()
}

fn nanoseconds(time_ms: i64) -> u64 {
    u64::try_from(time_ms).unwrap_or(0) * 1_000_000
}

fn text(text: String) -> Option<AnyValue> {
    Some(AnyValue { value: Some(Value::StringValue(text)) })
}

fn profile(
    set: &Set,
    window: &Window,
    service: usize,
    samples: Vec<wire::Sample>,
) -> wire::ResourceProfiles {
    let pair = |key: &str, value| KeyValue { key: key.to_owned(), value, key_strindex: 0 };
    let mut profile_id = (window.host as u64 + 1).to_be_bytes().to_vec();
    profile_id.extend_from_slice(&(window.sequence * 1_000 + service as u64).to_be_bytes());
    let profile = wire::Profile {
        sample_type: Some(wire::ValueType { type_strindex: 1, unit_strindex: 2 }),
        samples,
        time_unix_nano: nanoseconds(window.start_ms),
        duration_nano: 60_000_000_000,
        period_type: Some(wire::ValueType { type_strindex: 3, unit_strindex: 4 }),
        period: PERIOD_NS,
        profile_id,
        ..wire::Profile::default()
    };
    let scope = InstrumentationScope {
        name: collector::ingest::otlp::AGENT_SCOPE.to_owned(),
        ..InstrumentationScope::default()
    };
    let attributes = vec![
        pair("service.name", text(set.service_name(service).to_owned())),
        pair("host.name", text(format!("host-{}", window.host))),
    ];
    wire::ResourceProfiles {
        resource: Some(Resource { attributes, ..Resource::default() }),
        scope_profiles: vec![wire::ScopeProfiles {
            scope: Some(scope),
            profiles: vec![profile],
            schema_url: String::new(),
        }],
        schema_url: String::new(),
    }
}

impl Dictionary {
    fn new() -> Self {
        let kind = wire::KeyValueAndUnit {
            key_strindex: 6,
            value: Some(AnyValue { value: Some(Value::StringValueStrindex(7)) }),
            unit_strindex: 0,
        };
        let mapping = wire::Mapping {
            memory_limit: 1 << 40,
            filename_strindex: 8,
            ..wire::Mapping::default()
        };
        let tables = wire::ProfilesDictionary {
            mapping_table: vec![wire::Mapping::default(), mapping],
            location_table: vec![wire::Location::default()],
            function_table: vec![wire::Function::default()],
            link_table: vec![wire::Link::default()],
            string_table: FIXED.map(str::to_owned).to_vec(),
            attribute_table: vec![wire::KeyValueAndUnit::default(), kind],
            stack_table: vec![wire::Stack::default()],
        };
        let (functions, stacks, threads) = (HashMap::new(), HashMap::new(), HashMap::new());
        Self { tables, functions, stacks, threads }
    }

    fn stack(&mut self, set: &Set, service: usize, stack: usize) -> i32 {
        if let Some(&index) = self.stacks.get(&(service, stack)) {
            return index;
        }
        let functions = set.stack(service, stack).iter();
        let location_indices = functions.map(|&function| self.location(function)).collect();
        self.tables.stack_table.push(wire::Stack { location_indices });
        let index = last(&self.tables.stack_table);
        self.stacks.insert((service, stack), index);
        index
    }

    fn location(&mut self, function: u32) -> i32 {
        if let Some(&index) = self.functions.get(&function) {
            return index;
        }
        let tables = &mut self.tables;
        tables.string_table.push(format!("namespace::module::function_{function}"));
        let name_strindex = last(&tables.string_table);
        tables.function_table.push(wire::Function { name_strindex, ..wire::Function::default() });
        let function_index = last(&tables.function_table);
        tables.location_table.push(wire::Location {
            mapping_index: 1,
            address: 0x1000 + u64::from(function) * 64,
            lines: vec![wire::Line { function_index, line: 1, column: 0 }],
            attribute_indices: vec![1],
        });
        let index = last(&tables.location_table);
        self.functions.insert(function, index);
        index
    }

    fn thread(&mut self, thread: u64) -> i32 {
        if let Some(&index) = self.threads.get(&thread) {
            return index;
        }
        let value = i64::try_from(thread).unwrap_or(0) + 100;
        self.tables.attribute_table.push(wire::KeyValueAndUnit {
            key_strindex: 5,
            value: Some(AnyValue { value: Some(Value::IntValue(value)) }),
            unit_strindex: 0,
        });
        let index = last(&self.tables.attribute_table);
        self.threads.insert(thread, index);
        index
    }
}

fn last<T>(table: &[T]) -> i32 {
    i32::try_from(table.len() - 1).unwrap_or(i32::MAX)
}
