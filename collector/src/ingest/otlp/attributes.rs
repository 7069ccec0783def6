//! Attribute values of the wire to values of the domain model. Text, whole numbers and truth values stay
//! what they are; numbers with a fraction, bytes, arrays and maps become their JSON text, as the
//! OpenTelemetry specification asks of back ends without such types.

use super::fault::{Fault, cap};
use crate::ingest::fitting::fitting;
use crate::limits::{JSON_BYTES_MAX, LABEL_BYTES_MAX, STRING_BYTES_MAX, VALUE_DEPTH_MAX};
use crate::profile::AttributeValue;
use hashbrown::HashMap;
use proto::opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue, any_value::Value};
use std::cell::{Cell, RefCell};
use std::fmt::Write as _;
use std::sync::Arc;

/// The string table of a request, and what was cut off while attributes were read through it.
pub(super) struct Strings<'a> {
    table: &'a [String],
    /// Attribute values that were longer than [`LABEL_BYTES_MAX`].
    pub(super) truncated: Cell<u64>,
    /// One copy of each string that attributes refer to: a reference takes 2 bytes on the wire.
    shared: RefCell<HashMap<i32, Arc<str>>>,
    /// Bytes of JSON text made so far.
    json_bytes: Cell<usize>,
}

impl<'a> Strings<'a> {
    pub(super) fn new(table: &'a [String]) -> Self {
        let (truncated, json_bytes) = (Cell::new(0), Cell::new(0));
        Self { table, truncated, shared: RefCell::default(), json_bytes }
    }

    /// A string of the dictionary; index 0 of an empty table is the empty string.
    pub(super) fn get(&self, index: i32, field: &'static str) -> Result<&'a str, Fault> {
        let found = usize::try_from(index).ok().and_then(|at| self.table.get(at));
        match found {
            Some(text) => {
                cap("a string, in bytes,", text.len(), STRING_BYTES_MAX)?;
                Ok(text)
            }
            None if index == 0 => Ok(""),
            None => {
                let len = self.table.len();
                Err(Fault::Index { field, table: "string_table", index, len })
            }
        }
    }

    /// The string as an attribute's text, cut where it is longer than one may be.
    fn shared(&self, index: i32, field: &'static str) -> Result<Arc<str>, Fault> {
        let text = self.get(index, field)?;
        let mut shared = self.shared.borrow_mut();
        Ok(Arc::clone(shared.entry(index).or_insert_with(|| self.cut(text))))
    }

    /// The name of an attribute of the dictionary.
    pub(super) fn name(&self, index: i32, field: &'static str) -> Result<Arc<str>, Fault> {
        cap("an attribute key, in bytes,", self.get(index, field)?.len(), LABEL_BYTES_MAX)?;
        self.shared(index, field)
    }

    /// The name of a resource or scope attribute: spelled out, or a reference.
    pub(super) fn key(&self, pair: &KeyValue) -> Result<Arc<str>, Fault> {
        if pair.key.is_empty() {
            return self.name(pair.key_strindex, "key_strindex");
        }
        cap("an attribute name, in bytes,", pair.key.len(), LABEL_BYTES_MAX)?;
        Ok(Arc::from(&*pair.key))
    }

    /// The value in the domain model, or nothing where none is set. Longer text is cut, as
    /// OpenTelemetry's SDKs do with attributes (a command line may have megabytes).
    pub(super) fn value(&self, any: Option<&AnyValue>) -> Result<Option<AttributeValue>, Fault> {
        let Some(value) = any.and_then(|any| any.value.as_ref()) else { return Ok(None) };
        Ok(Some(match value {
            Value::StringValue(it) => AttributeValue::Text(self.cut(it)),
            Value::StringValueStrindex(index) => {
                AttributeValue::Text(self.shared(*index, "string_value_strindex")?)
            }
            Value::BoolValue(it) => AttributeValue::Bool(*it),
            Value::IntValue(it) => AttributeValue::Int(*it),
            other => AttributeValue::Text(self.json(other)?),
        }))
    }

    fn json(&self, value: &Value) -> Result<Arc<str>, Fault> {
        let mut json = String::new();
        write_json(self, value, &mut json, 0)?;
        let all = self.json_bytes.get().saturating_add(json.len());
        cap("the attribute values that become JSON, in bytes,", all, JSON_BYTES_MAX)?;
        self.json_bytes.set(all);
        Ok(self.cut(&json))
    }

    fn cut(&self, text: &str) -> Arc<str> {
        let fits = fitting(text);
        if fits.len() < text.len() {
            self.truncated.set(self.truncated.get() + 1);
        }
        Arc::from(fits)
    }
}

fn write_json(
    strings: &Strings<'_>,
    value: &Value,
    out: &mut String,
    depth: usize,
) -> Result<(), Fault> {
    if depth > VALUE_DEPTH_MAX {
        return Err(Fault::Nesting);
    }
    cap("an attribute value, in bytes,", out.len(), STRING_BYTES_MAX)?;
    match value {
        Value::StringValue(text) => quote(text, out),
        Value::StringValueStrindex(index) => {
            quote(strings.get(*index, "string_value_strindex")?, out);
        }
        Value::BoolValue(it) => out.push_str(if *it { "true" } else { "false" }),
        Value::IntValue(it) => push(out, format_args!("{it}")),
        Value::DoubleValue(it) if it.is_finite() => push(out, format_args!("{it:?}")),
        Value::DoubleValue(it) => quote(&it.to_string(), out),
        Value::BytesValue(bytes) => {
            cap("an attribute value, in bytes,", bytes.len(), STRING_BYTES_MAX)?;
            out.push('"');
            bytes.iter().for_each(|byte| push(out, format_args!("{byte:02x}")));
            out.push('"');
        }
        Value::ArrayValue(array) => {
            out.push('[');
            for (at, item) in array.values.iter().enumerate() {
                separate(out, at);
                write_item(strings, Some(item), out, depth)?;
            }
            out.push(']');
        }
        Value::KvlistValue(list) => {
            out.push('{');
            for (at, pair) in list.values.iter().enumerate() {
                separate(out, at);
                quote(&strings.key(pair)?, out);
                out.push(':');
                write_item(strings, pair.value.as_ref(), out, depth)?;
            }
            out.push('}');
        }
    }
    Ok(())
}

fn write_item(
    strings: &Strings<'_>,
    item: Option<&AnyValue>,
    out: &mut String,
    depth: usize,
) -> Result<(), Fault> {
    match item.and_then(|any| any.value.as_ref()) {
        Some(value) => write_json(strings, value, out, depth + 1),
        None => {
            out.push_str("null");
            Ok(())
        }
    }
}

fn separate(out: &mut String, at: usize) {
    if at > 0 {
        out.push(',');
    }
}

fn push(out: &mut String, text: std::fmt::Arguments<'_>) {
    out.write_fmt(text).expect("writing to a String cannot fail");
}

fn quote(text: &str, out: &mut String) {
    out.push('"');
    for char in text.chars() {
        match char {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            control if u32::from(control) < 0x20 => {
                push(out, format_args!("\\u{:04x}", u32::from(control)))
            }
            other => out.push(other),
        }
    }
    out.push('"');
}
