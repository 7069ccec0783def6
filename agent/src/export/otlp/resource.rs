//! Resource attributes: whose samples these are.

use super::locations::cut;
use crate::normalize::ProcessIdentity;
use proto::otlp::attribute;
use proto::otlp::common::{AnyValue, KeyValue, any_value};
use proto::otlp::resource::Resource;

/// The host as its resources name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostIdentity {
    /// `host.name`.
    pub name: String,
    /// `host.id`: the machine id, if the host has one.
    pub id: Option<String>,
}

impl HostIdentity {
    /// This host; `name` replaces the kernel's node name.
    #[must_use]
    pub fn read(name: Option<String>) -> Self {
        let node_name = || {
            let uname = rustix::system::uname();
            uname.nodename().to_string_lossy().into_owned()
        };
        let id = std::fs::read_to_string("/etc/machine-id").ok();
        Self {
            name: name.unwrap_or_else(node_name),
            // systemd writes `uninitialized` before the first boot is over (machine-id(5)).
            id: id.map(|id| id.trim().to_owned()).filter(|id| id.len() == 32),
        }
    }
}

/// The resource of one process instance.
pub(super) fn of_process(host: &HostIdentity, process: &ProcessIdentity) -> Resource {
    let ProcessIdentity {
        pid,
        start_time_ns,
        executable_name,
        executable_path,
        service_name,
        container_id,
        kernel_thread: _, // its service name says so
    } = process;
    let mut attributes = of_host(host);
    attributes.push(text(attribute::SERVICE_NAME, service_name));
    attributes.push(int(attribute::PROCESS_PID, u64::from(pid.0)));
    attributes.push(int(attribute::PROCESS_START_TIME_NS, *start_time_ns));
    attributes.push(text(attribute::PROCESS_EXECUTABLE_NAME, executable_name));
    if !executable_path.is_empty() {
        attributes.push(text(attribute::PROCESS_EXECUTABLE_PATH, executable_path));
    }
    if let Some(container_id) = container_id {
        attributes.push(text(attribute::CONTAINER_ID, container_id));
    }
    resource(attributes)
}

/// The resource of the agent itself.
pub(super) fn of_agent(host: &HostIdentity) -> Resource {
    let mut attributes = of_host(host);
    attributes.push(text(attribute::SERVICE_NAME, super::SCOPE_NAME));
    resource(attributes)
}

fn of_host(host: &HostIdentity) -> Vec<KeyValue> {
    let mut attributes =
        vec![text(attribute::HOST_NAME, &host.name), text(attribute::OS_TYPE, "linux")];
    if let Some(id) = &host.id {
        attributes.push(text(attribute::HOST_ID, id));
    }
    attributes
}

fn resource(attributes: Vec<KeyValue>) -> Resource {
    Resource { attributes, dropped_attributes_count: 0, entity_refs: Vec::new() }
}

/// Keys and values stand in place, not by reference into the dictionary: not every receiver resolves
/// references in resources, and compression takes the repetition out.
fn text(key: &str, value: &str) -> KeyValue {
    pair(key, any_value::Value::StringValue(cut(value).to_owned()))
}

fn int(key: &str, value: u64) -> KeyValue {
    pair(key, any_value::Value::IntValue(i64::try_from(value).unwrap_or(i64::MAX)))
}

fn pair(key: &str, value: any_value::Value) -> KeyValue {
    KeyValue { key: key.to_owned(), value: Some(AnyValue { value: Some(value) }), key_strindex: 0 }
}
