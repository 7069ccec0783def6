//! Samples of the set as the bytes of OTLP requests: the windows of agents, and requests that hold much of one service.
//! None has an id, so each counts whenever it is sent.

use crate::batches::function_name;
use crate::data_set::{DataSet, PERIOD_NS};
use crate::random::Random;
use prost::Message as _;
use proto::otlp::collector::ExportProfilesServiceRequest;
use proto::otlp::common::{AnyValue, InstrumentationScope, KeyValue, any_value::Value};
use proto::otlp::profiles as wire;
use proto::otlp::resource::Resource;
use std::collections::{BTreeMap, HashMap};

/// Samples of a window: 16 CPUs, 19 Hz, 5 s.
pub(crate) const WINDOW_SAMPLES: usize = 16 * 19 * 5;
/// Length of a window.
pub(crate) const WINDOW_MS: u64 = 5_000;
/// Samples of a dense request.
pub(crate) const DENSE_SAMPLES: usize = 50_000;

/// Each service runs on one of so many hosts.
const HOSTS_A_SERVICE: usize = 5;
/// Threads of a service on a host.
const THREADS: u32 = 8;
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

/// Samples of one service: times by stack and thread.
type Samples = BTreeMap<(u32, u32), Vec<u64>>;

/// What a host with 16 CPUs saw in 5 s, with twenty services.
pub(crate) fn window(set: &DataSet, host: usize, now_ns: u64) -> Vec<u8> {
    let mut random = Random::new(set.seed + host as u64);
    let mut services: BTreeMap<usize, Samples> = BTreeMap::new();
    let mut count = 0;
    while count < WINDOW_SAMPLES {
        let service = set.service_at(random.float());
        if service % HOSTS_A_SERVICE == host % HOSTS_A_SERVICE {
            sample(set, service, &mut random, now_ns, &mut services);
            count += 1;
        }
    }
    encode(set, host, &services, now_ns)
}

/// Much of the largest service, from a pod of its own.
pub(crate) fn dense(set: &DataSet, number: usize, now_ns: u64) -> Vec<u8> {
    let mut random = Random::new(set.seed + 1_000_000 + number as u64);
    let mut services = BTreeMap::new();
    for _ in 0..DENSE_SAMPLES {
        sample(set, 0, &mut random, now_ns, &mut services);
    }
    encode(set, number, &services, now_ns)
}

fn sample(
    set: &DataSet,
    service: usize,
    random: &mut Random,
    now_ns: u64,
    services: &mut BTreeMap<usize, Samples>,
) {
    let stack = set.services[service].popular(random);
    let thread = random.below(THREADS);
    let ago_ms = u64::from(random.below(5_000));
    let samples = services.entry(service).or_default();
    samples.entry((stack, thread)).or_default().push(now_ns - ago_ms * 1_000_000);
}

fn encode(set: &DataSet, host: usize, services: &BTreeMap<usize, Samples>, now_ns: u64) -> Vec<u8> {
    let mut dictionary = Dictionary::new();
    let profile = |(&service, samples): (&usize, &Samples)| {
        let sample = |(&(stack, thread), times): (&(u32, u32), &Vec<u64>)| wire::Sample {
            stack_index: dictionary.stack(set, service, stack),
            attribute_indices: vec![dictionary.thread(thread)],
            timestamps_unix_nano: times.clone(),
            ..wire::Sample::default()
        };
        let samples = samples.iter().map(sample).collect();
        profile(&set.services[service].name, host, samples, now_ns)
    };
    let resource_profiles = services.iter().map(profile).collect();
    let dictionary = Some(dictionary.tables);
    ExportProfilesServiceRequest { resource_profiles, dictionary }.encode_to_vec()
}

fn profile(
    service: &str,
    host: usize,
    samples: Vec<wire::Sample>,
    now_ns: u64,
) -> wire::ResourceProfiles {
    let text = |key: &str, text: String| KeyValue {
        key: key.to_owned(),
        value: Some(AnyValue { value: Some(Value::StringValue(text)) }),
        ..KeyValue::default()
    };
    let profile = wire::Profile {
        sample_type: Some(wire::ValueType { type_strindex: 1, unit_strindex: 2 }),
        samples,
        time_unix_nano: now_ns - WINDOW_MS * 1_000_000,
        duration_nano: WINDOW_MS * 1_000_000,
        period_type: Some(wire::ValueType { type_strindex: 3, unit_strindex: 4 }),
        period: PERIOD_NS,
        ..wire::Profile::default()
    };
    let scope = InstrumentationScope { name: "load".to_owned(), ..InstrumentationScope::default() };
    let attributes =
        vec![text("service.name", service.to_owned()), text("host.name", format!("host-{host}"))];
    wire::ResourceProfiles {
        resource: Some(Resource { attributes, ..Resource::default() }),
        scope_profiles: vec![wire::ScopeProfiles {
            scope: Some(scope),
            profiles: vec![profile],
            ..wire::ScopeProfiles::default()
        }],
        ..wire::ResourceProfiles::default()
    }
}

/// The dictionary of one request.
struct Dictionary {
    tables: wire::ProfilesDictionary,
    functions: HashMap<u32, i32>,
    stacks: HashMap<(usize, u32), i32>,
    threads: HashMap<u32, i32>,
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

    fn stack(&mut self, set: &DataSet, service: usize, stack: u32) -> i32 {
        if let Some(&index) = self.stacks.get(&(service, stack)) {
            return index;
        }
        let functions = set.services[service].stack(stack).iter();
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
        tables.string_table.push(function_name(function));
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

    fn thread(&mut self, thread: u32) -> i32 {
        if let Some(&index) = self.threads.get(&thread) {
            return index;
        }
        self.tables.attribute_table.push(wire::KeyValueAndUnit {
            key_strindex: 5,
            value: Some(AnyValue { value: Some(Value::IntValue(100 + i64::from(thread))) }),
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
