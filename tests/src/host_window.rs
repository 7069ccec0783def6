//! A window as a busy host sends it, made up: for load, not for truth.

use crate::profiles::{PERIOD_NS, now_ns};
use prost::Message as _;
use proto::otlp::collector::ExportProfilesServiceRequest;
use proto::otlp::common::any_value::Value;
use proto::otlp::common::{AnyValue, InstrumentationScope, KeyValue};
use proto::otlp::profiles::{
    Function, KeyValueAndUnit, Line, Link, Location, Mapping, Profile, ProfilesDictionary,
    ResourceProfiles, Sample, ScopeProfiles, Stack, ValueType,
};
use proto::otlp::resource::Resource;

/// Entries of the string table before the names.
const STRINGS: [&str; 5] = ["", "samples", "count", "cpu", "nanoseconds"];

/// How much is in a window. The defaults are near a host with 16 busy CPUs at 19 Hz: 1,520 samples in 5 s.
#[derive(Clone, Copy, Debug)]
pub struct HostWindow {
    /// Processes, each a service of its own.
    pub processes: u32,
    /// Distinct stacks of a process.
    pub stacks: u32,
    /// Observations of a stack.
    pub times: u32,
    /// Frames of a stack.
    pub frames: u32,
    /// Locations that stacks are made of.
    pub locations: u32,
}

impl Default for HostWindow {
    fn default() -> Self {
        Self { processes: 20, stacks: 38, times: 2, frames: 24, locations: 4000 }
    }
}

impl HostWindow {
    /// Observations in one window.
    #[must_use]
    pub fn observations(&self) -> u64 {
        u64::from(self.processes) * u64::from(self.stacks) * u64::from(self.times)
    }

    /// A request without a profile id, so that it counts each time it is sent.
    #[must_use]
    pub fn encoded(&self, seed: u64) -> Vec<u8> {
        let mut random = seed * 2_654_435_761 + 88_172_645_463_325_252;
        let mut next = move |below: u32| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            u32::try_from(random % u64::from(below)).expect("below 32 bits")
        };
        let mut stacks = vec![Stack::default()];
        for _ in 0..self.processes * self.stacks {
            // Deep frames differ, those near the root are shared: as in real programs.
            let location = |depth: u32| {
                let spread = (self.locations * (self.frames - depth) / self.frames).max(1);
                i32_of(1 + next(spread))
            };
            stacks.push(Stack { location_indices: (0..self.frames).map(location).collect() });
        }
        let now = now_ns();
        let resources = (0..self.processes).map(|process| self.process(process, now)).collect();
        let dictionary = ProfilesDictionary {
            mapping_table: vec![
                Mapping::default(),
                Mapping { filename_strindex: 5, ..Mapping::default() },
            ],
            location_table: (0..=self.locations).map(location).collect(),
            function_table: (0..=self.locations / 4).map(function).collect(),
            link_table: vec![Link::default()],
            string_table: self.strings(),
            attribute_table: vec![KeyValueAndUnit::default()],
            stack_table: stacks,
        };
        let request = ExportProfilesServiceRequest {
            resource_profiles: resources,
            dictionary: Some(dictionary),
        };
        request.encode_to_vec()
    }

    fn strings(&self) -> Vec<String> {
        let fixed = STRINGS.map(str::to_owned).into_iter().chain(["program".to_owned()]);
        let names = (1..=self.locations / 4).map(|index| format!("module::part_{index}::function"));
        fixed.chain(names).collect()
    }

    fn process(&self, process: u32, now: u64) -> ResourceProfiles {
        let samples = (0..self.stacks)
            .map(|stack| Sample {
                stack_index: i32_of(1 + process * self.stacks + stack),
                timestamps_unix_nano: (0..self.times)
                    .map(|time| now - u64::from(stack * self.times + time) * 50_000_000)
                    .collect(),
                ..Sample::default()
            })
            .collect();
        let profile = Profile {
            sample_type: Some(ValueType { type_strindex: 1, unit_strindex: 2 }),
            samples,
            time_unix_nano: now - 5_000_000_000,
            duration_nano: 5_000_000_000,
            period_type: Some(ValueType { type_strindex: 3, unit_strindex: 4 }),
            period: PERIOD_NS,
            ..Profile::default()
        };
        let scope =
            InstrumentationScope { name: "load".to_owned(), ..InstrumentationScope::default() };
        let attributes = vec![
            text("service.name", format!("service-{process}")),
            text("host.name", "load-host".to_owned()),
            text("process.executable.name", format!("program-{process}")),
        ];
        ResourceProfiles {
            resource: Some(Resource { attributes, ..Resource::default() }),
            scope_profiles: vec![ScopeProfiles {
                scope: Some(scope),
                profiles: vec![profile],
                ..ScopeProfiles::default()
            }],
            ..ResourceProfiles::default()
        }
    }
}

fn location(index: u32) -> Location {
    if index == 0 {
        return Location::default();
    }
    let lines = vec![Line { function_index: i32_of(index.div_ceil(4)), line: 1, column: 0 }];
    Location {
        mapping_index: 1,
        address: 0x1000 + u64::from(index) * 16,
        lines,
        ..Location::default()
    }
}

fn function(index: u32) -> Function {
    let name = if index == 0 { 0 } else { i32_of(5 + index) };
    Function { name_strindex: name, ..Function::default() }
}

fn text(key: &str, value: String) -> KeyValue {
    let value = AnyValue { value: Some(Value::StringValue(value)) };
    KeyValue { key: key.to_owned(), value: Some(value), ..KeyValue::default() }
}

fn i32_of(index: u32) -> i32 {
    i32::try_from(index).expect("tables of a window are small")
}
