//! What a resource says about its profiles: the labels of their series, and attributes that every one of
//! their samples carries (the process's id among them).

use super::attributes::Strings;
use super::fault::{Fault, cap};
use crate::limits::SAMPLE_ATTRIBUTES_MAX;
use crate::profile::{Attribute, AttributeValue, SeriesLabels};
use proto::opentelemetry_proto::tonic::resource::v1::Resource;
use std::sync::Arc;

/// A resource, read.
#[derive(Clone, Debug, Default)]
pub(super) struct Origin {
    /// `service` is empty if the resource does not name one.
    pub(super) labels: SeriesLabels,
    /// For every sample.
    pub(super) attributes: Vec<Attribute>,
}

pub(super) fn read(strings: &Strings<'_>, resource: Option<&Resource>) -> Result<Origin, Fault> {
    let mut origin = Origin::default();
    let mut path = Arc::from("");
    let mut host_id = Arc::from("");
    let pairs = resource.map_or(&[][..], |resource| &resource.attributes);
    cap("the number of resource attributes", pairs.len(), SAMPLE_ATTRIBUTES_MAX)?;
    for pair in pairs {
        let key = strings.key(pair)?;
        let Some(value) = strings.value(pair.value.as_ref())? else { continue };
        let label = match &*key {
            "service.name" => &mut origin.labels.service,
            "host.name" => &mut origin.labels.host,
            "container.id" => &mut origin.labels.container,
            "k8s.pod.name" => &mut origin.labels.pod,
            "process.executable.name" => &mut origin.labels.executable,
            _ => {
                match (&*key, &value) {
                    ("process.executable.path", AttributeValue::Text(text)) => {
                        path = Arc::clone(text)
                    }
                    ("host.id", AttributeValue::Text(text)) => host_id = Arc::clone(text),
                    _ => {}
                }
                if !key.is_empty() && !key.starts_with("telemetry.sdk.") {
                    origin.attributes.push(Attribute { key, value });
                }
                continue;
            }
        };
        *label = text(value);
    }
    let labels = &mut origin.labels;
    if labels.executable.is_empty() {
        labels.executable = Arc::clone(&path);
    }
    labels.executable = file_name(&labels.executable);
    if labels.host.is_empty() {
        labels.host = host_id;
    }
    Ok(origin)
}

fn text(value: AttributeValue) -> Arc<str> {
    match value {
        AttributeValue::Text(text) => text,
        AttributeValue::Int(number) => Arc::from(number.to_string()),
        AttributeValue::Bool(truth) => Arc::from(truth.to_string()),
    }
}

fn file_name(path: &Arc<str>) -> Arc<str> {
    match path.rsplit_once('/') {
        Some((_, name)) if !name.is_empty() => Arc::from(name),
        _ => Arc::clone(path),
    }
}
