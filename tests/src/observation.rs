//! Samples as a test wants to see them: one value for each observation, names and files in place, read
//! straight from the tables of OTLP without the code under test.

use prost::Message as _;
use proto::otlp::collector::ExportProfilesServiceRequest;
use proto::otlp::common::any_value::Value;
use proto::otlp::common::{AnyValue, KeyValue};
use proto::otlp::profiles::{Profile, ProfilesDictionary, Sample};
use std::sync::Arc;

/// One sample at one time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observation {
    /// Unix nanoseconds.
    pub time_ns: u64,
    /// `process.pid`.
    pub pid: u32,
    /// `process.executable.name`.
    pub executable: String,
    /// `process.executable.path`; empty if it was not sent.
    pub executable_path: String,
    /// `service.name`.
    pub service: String,
    /// `host.name`.
    pub host: String,
    /// Leaf first; one value for each location of a request.
    pub frames: Vec<Arc<Frame>>,
}

/// One location of a stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// `profile.frame.type`.
    pub kind: String,
    /// File name of the mapping, without its folders; empty if there is none.
    pub file: String,
    /// The same with its folders, as the agent sent it.
    pub path: String,
    /// GNU build id of the mapping, hexadecimal; empty if it was not sent.
    pub build_id: String,
    /// ELF address.
    pub address: u64,
    /// Functions, innermost (inlined) first.
    pub functions: Vec<String>,
}

impl Frame {
    /// True for code in user space.
    #[must_use]
    pub fn is_user(&self) -> bool {
        self.kind != "kernel" && !self.is_marker()
    }

    /// True for a frame that stands for no code (`[truncated]`, `[unwind: ...]`).
    #[must_use]
    pub fn is_marker(&self) -> bool {
        self.kind == "abort-marker" || self.kind.is_empty()
    }

    /// True if one of its functions is called `name`, by itself or as the last part of a path.
    #[must_use]
    pub fn is(&self, name: &str) -> bool {
        self.functions.iter().any(|function| is_called(function, name))
    }
}

/// `leaf_a` is the name of `leaf_a`, `truth_of::leaf_a(unsigned long)`, `split::leaf_a` and `main.leafA`
/// (with name `leafA`), not of `leaf_ab`.
fn is_called(function: &str, name: &str) -> bool {
    let path = function.split('(').next().unwrap_or_default();
    let last = path.rsplit([':', '.']).next().unwrap_or_default();
    last == name || last.split('[').next() == Some(name)
}

impl Observation {
    /// The user half of the stack, leaf first, markers left out.
    pub fn user(&self) -> impl Iterator<Item = &Frame> {
        self.frames.iter().map(Arc::as_ref).filter(|frame| frame.is_user())
    }

    /// The texts of its marker frames.
    pub fn markers(&self) -> impl Iterator<Item = &str> {
        let markers = self.frames.iter().filter(|frame| frame.is_marker());
        markers.flat_map(|frame| frame.functions.iter().map(String::as_str))
    }

    /// True if a frame of the stack is called so.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.frames.iter().any(|frame| frame.is(name))
    }

    /// The stack for a failure's message, root first.
    #[must_use]
    pub fn shown(&self) -> String {
        let frame = |frame: &Arc<Frame>| {
            let names = frame.functions.join("+");
            format!("{}:{:x}:{names}", frame.file, frame.address)
        };
        self.frames.iter().rev().map(frame).collect::<Vec<_>>().join(" > ")
    }
}

/// Every observation of the requests. A sample without values counts once for each timestamp.
///
/// # Panics
/// If a request is not OTLP, or an index points nowhere: the agent must never send such.
#[must_use]
pub fn observations(requests: &[Vec<u8>]) -> Vec<Observation> {
    let mut all = Vec::new();
    each_profile(requests, |tables, resource, profile| {
        let samples = profile.samples.iter();
        all.extend(samples.flat_map(|sample| one(tables, sample, resource)));
    });
    all
}

/// Calls `each` with every profile of the requests, the tables it points into and the labels of its resource.
pub(crate) fn each_profile(
    requests: &[Vec<u8>],
    mut each: impl FnMut(&Tables<'_>, &Labels, &Profile),
) {
    for request in requests {
        let request = ExportProfilesServiceRequest::decode(&request[..]).expect("OTLP");
        let dictionary = request.dictionary.as_ref().expect("a request has a dictionary");
        let tables = Tables::of(dictionary);
        for resource in &request.resource_profiles {
            let attributes = resource.resource.as_ref().map_or(&[][..], |it| &it.attributes[..]);
            let labels = Labels::of_resource(attributes);
            for profile in resource.scope_profiles.iter().flat_map(|scope| &scope.profiles) {
                each(&tables, &labels, profile);
            }
        }
    }
}

/// The dictionary of a request, its locations in place.
pub(crate) struct Tables<'a> {
    dictionary: &'a ProfilesDictionary,
    locations: Vec<Arc<Frame>>,
}

impl<'a> Tables<'a> {
    fn of(dictionary: &'a ProfilesDictionary) -> Self {
        let locations = 0..dictionary.location_table.len();
        let locations = locations.map(|index| Arc::new(frame(dictionary, index))).collect();
        Self { dictionary, locations }
    }

    /// The frames of a stack, leaf first.
    pub(crate) fn stack(&self, index: i32) -> Vec<Arc<Frame>> {
        let stack = &self.dictionary.stack_table[at(index)];
        stack.location_indices.iter().map(|&index| Arc::clone(&self.locations[at(index)])).collect()
    }

    /// A text of the table of strings.
    pub(crate) fn text(&self, index: i32) -> &str {
        string(self.dictionary, index)
    }

    /// The value of the attribute with this key.
    pub(crate) fn attribute(&self, indices: &[i32], key: &str) -> Option<Value> {
        let mut all = indices.iter().map(|&index| &self.dictionary.attribute_table[at(index)]);
        let found = all.find(|it| string(self.dictionary, it.key_strindex) == key)?;
        found.value.as_ref()?.value.clone()
    }
}

/// What names the sender of a sample.
#[derive(Clone, Debug, Default)]
pub(crate) struct Labels {
    pub(crate) pid: u32,
    executable: String,
    executable_path: String,
    service: String,
    host: String,
}

impl Labels {
    fn of_resource(attributes: &[KeyValue]) -> Self {
        let mut labels = Self::default();
        for attribute in attributes {
            labels.set(&attribute.key, attribute.value.as_ref());
        }
        labels
    }

    fn set(&mut self, key: &str, value: Option<&AnyValue>) {
        match (key, value.and_then(|value| value.value.as_ref())) {
            ("process.pid", Some(Value::IntValue(pid))) => {
                self.pid = u32::try_from(*pid).expect("a pid fits 32 bits");
            }
            ("process.executable.name", Some(Value::StringValue(name))) => {
                self.executable.clone_from(name)
            }
            ("process.executable.path", Some(Value::StringValue(path))) => {
                self.executable_path.clone_from(path)
            }
            ("service.name", Some(Value::StringValue(name))) => self.service.clone_from(name),
            ("host.name", Some(Value::StringValue(name))) => self.host.clone_from(name),
            _ => {}
        }
    }
}

fn one(tables: &Tables<'_>, sample: &Sample, resource: &Labels) -> Vec<Observation> {
    let dictionary = tables.dictionary;
    let mut labels = resource.clone();
    for &index in &sample.attribute_indices {
        let attribute = &dictionary.attribute_table[at(index)];
        labels.set(string(dictionary, attribute.key_strindex), attribute.value.as_ref());
    }
    let frames = tables.stack(sample.stack_index);
    let observation = |&time_ns: &u64| Observation {
        time_ns,
        pid: labels.pid,
        executable: labels.executable.clone(),
        executable_path: labels.executable_path.clone(),
        service: labels.service.clone(),
        host: labels.host.clone(),
        frames: frames.clone(),
    };
    sample.timestamps_unix_nano.iter().map(observation).collect()
}

fn frame(dictionary: &ProfilesDictionary, index: usize) -> Frame {
    let location = &dictionary.location_table[index];
    let mapping = &dictionary.mapping_table[at(location.mapping_index)];
    let path = string(dictionary, mapping.filename_strindex);
    let text = |indices: &[i32], key: &str| {
        let mut attributes = indices.iter().map(|&index| &dictionary.attribute_table[at(index)]);
        let found = attributes.find(|it| string(dictionary, it.key_strindex) == key);
        match found.and_then(|attribute| attribute.value.as_ref()?.value.as_ref()) {
            Some(Value::StringValue(text)) => text.clone(),
            _ => String::new(),
        }
    };
    let function = |line: &proto::otlp::profiles::Line| {
        let function = &dictionary.function_table[at(line.function_index)];
        string(dictionary, function.name_strindex).to_owned()
    };
    Frame {
        kind: text(&location.attribute_indices, "profile.frame.type"),
        file: path.rsplit('/').next().unwrap_or_default().to_owned(),
        path: path.to_owned(),
        build_id: text(&mapping.attribute_indices, "process.executable.build_id.gnu"),
        address: location.address,
        functions: location.lines.iter().map(function).collect(),
    }
}

fn string(dictionary: &ProfilesDictionary, index: i32) -> &str {
    &dictionary.string_table[at(index)]
}

fn at(index: i32) -> usize {
    usize::try_from(index).expect("an index of a dictionary is not negative")
}

#[cfg(test)]
mod tests {
    use super::is_called;

    #[test]
    fn names() {
        let check = |function: &str, name: &str, same: bool| {
            assert_eq!(is_called(function, name), same, "{function} {name}");
        };
        check("leaf_a", "leaf_a", true);
        check("truth_of::leaf_a(unsigned long)", "leaf_a", true);
        check("truth_of::Worker<1>::leaf_a(unsigned long)", "leaf_a", true);
        check("split::leaf_a", "leaf_a", true);
        check("main.leafA", "leafA", true);
        check("leaf_ab", "leaf_a", false);
        check("middle_a", "leaf_a", false);
    }
}
