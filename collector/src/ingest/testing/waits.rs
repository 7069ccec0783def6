//! Requests of the waiting side: off-CPU time, lock waits, contentions, holders, as Vesta's agent sends them.

use super::{attribute, of_resource, pair, text};
use proto::opentelemetry_proto::tonic::collector::profiles::v1development::ExportProfilesServiceRequest;
use proto::opentelemetry_proto::tonic::common::v1::{AnyValue, any_value::Value};
use proto::opentelemetry_proto::tonic::profiles::v1development as otlp;

/// One sample, in a profile of its own.
#[derive(Clone)]
pub(crate) struct Wait<'a> {
    /// Name and unit of the type.
    pub(crate) sample_type: (&'a str, &'a str),
    /// `process.executable.path` and `process.pid`.
    pub(crate) process: (&'a str, i64),
    pub(crate) value: i64,
    /// Functions, leaf first; those that begin with `k:` are the kernel's.
    pub(crate) stack: &'a [&'a str],
    pub(crate) attributes: Vec<(&'a str, AnyValue)>,
}

pub(crate) fn int(number: i64) -> AnyValue {
    AnyValue { value: Some(Value::IntValue(number)) }
}

#[derive(Default)]
struct Tables {
    dictionary: otlp::ProfilesDictionary,
}

fn at(len: usize) -> i32 {
    i32::try_from(len).unwrap()
}

impl Tables {
    fn new() -> Self {
        let mut tables = Self::default();
        let dictionary = &mut tables.dictionary;
        dictionary.mapping_table = vec![otlp::Mapping::default()];
        dictionary.location_table = vec![otlp::Location::default()];
        dictionary.function_table = vec![otlp::Function::default()];
        dictionary.link_table = vec![otlp::Link::default()];
        dictionary.attribute_table = vec![otlp::KeyValueAndUnit::default()];
        dictionary.stack_table = vec![otlp::Stack::default()];
        dictionary.string_table = vec![String::new()];
        tables
    }

    fn string(&mut self, text: &str) -> i32 {
        let strings = &mut self.dictionary.string_table;
        let known = strings.iter().position(|string| string == text);
        at(known.unwrap_or_else(|| {
            strings.push(text.to_owned());
            strings.len() - 1
        }))
    }

    fn attribute(&mut self, key: &str, value: AnyValue) -> i32 {
        let key_strindex = self.string(key);
        self.dictionary.attribute_table.push(attribute(key_strindex, value));
        at(self.dictionary.attribute_table.len() - 1)
    }

    fn stack(&mut self, functions: &[&str]) -> i32 {
        let location_indices = functions.iter().map(|name| self.location(name)).collect();
        self.dictionary.stack_table.push(otlp::Stack { location_indices });
        at(self.dictionary.stack_table.len() - 1)
    }

    fn location(&mut self, name: &str) -> i32 {
        let (kind, name) =
            name.strip_prefix("k:").map_or(("native", name), |name| ("kernel", name));
        let name_strindex = self.string(name);
        let attribute = self.attribute("profile.frame.type", text(kind));
        let dictionary = &mut self.dictionary;
        dictionary
            .function_table
            .push(otlp::Function { name_strindex, ..otlp::Function::default() });
        let line = otlp::Line {
            function_index: at(dictionary.function_table.len() - 1),
            ..otlp::Line::default()
        };
        dictionary.location_table.push(otlp::Location {
            lines: vec![line],
            attribute_indices: vec![attribute],
            ..otlp::Location::default()
        });
        at(dictionary.location_table.len() - 1)
    }
}

/// A request of these samples, a second before `now_ms`, in windows of 5 s on host `h1`.
pub(crate) fn waits_at(now_ms: i64, rows: &[Wait<'_>]) -> ExportProfilesServiceRequest {
    let end_ns = u64::try_from(now_ms - 1_000).unwrap() * 1_000_000;
    let mut tables = Tables::new();
    let resource_profiles = rows
        .iter()
        .map(|row| {
            let attributes = row.attributes.iter();
            let attribute_indices =
                attributes.map(|(key, value)| tables.attribute(key, value.clone())).collect();
            let sample = otlp::Sample {
                stack_index: tables.stack(row.stack),
                values: vec![row.value],
                attribute_indices,
                ..otlp::Sample::default()
            };
            let (kind, unit) = row.sample_type;
            let sample_type = otlp::ValueType {
                type_strindex: tables.string(kind),
                unit_strindex: tables.string(unit),
            };
            let profile = otlp::Profile {
                sample_type: Some(sample_type),
                samples: vec![sample],
                time_unix_nano: end_ns - 5_000_000_000,
                duration_nano: 5_000_000_000,
                ..otlp::Profile::default()
            };
            let (path, pid) = row.process;
            let attributes = vec![
                pair("host.name", text("h1")),
                pair("process.executable.path", text(path)),
                pair("process.pid", int(pid)),
            ];
            of_resource(attributes, profile)
        })
        .collect();
    ExportProfilesServiceRequest { resource_profiles, dictionary: Some(tables.dictionary) }
}
