//! `vesta top`: a table of functions.

use super::ClientError;
use super::quantity::{harmless, percent, quantity};
use serde::Deserialize;
use std::fmt::Write as _;

#[derive(Deserialize)]
struct Answer {
    unit: String,
    total: i64,
    samples: u64,
    coverage: Coverage,
    rows: Vec<Row>,
}

#[derive(Deserialize)]
struct Coverage {
    hosts: u64,
    cores: f64,
}

#[derive(Deserialize)]
struct Row {
    name: String,
    kind: String,
    module: String,
    #[serde(rename = "self")]
    self_value: i64,
    total: i64,
}

/// The API's answer as columns.
pub(super) fn table(body: &[u8], profile_type: &str) -> Result<String, ClientError> {
    let Answer { unit, total, samples, coverage, rows } = serde_json::from_slice(body)?;
    let mut text = format!("{profile_type}: {} in {samples} samples", quantity(total, &unit));
    if unit == "nanoseconds" {
        // Over time, CPU time is cores; any other time of threads is how many there were.
        let what = if profile_type == "cpu" { "cores" } else { "threads on average" };
        add(&mut text, format_args!(", {:.3} {what} on {} hosts", coverage.cores, coverage.hosts));
    }
    if rows.is_empty() {
        text.push_str("\nno samples in this range match\n");
        return Ok(text);
    }
    let head = ("self", "self %", "total", "total %");
    add(
        &mut text,
        format_args!("\n{:>12} {:>7} {:>12} {:>7}  function\n", head.0, head.1, head.2, head.3),
    );
    for row in rows {
        let (of_self, of_total) = (quantity(row.self_value, &unit), quantity(row.total, &unit));
        let (self_share, total_share) = (percent(row.self_value, total), percent(row.total, total));
        let place = if row.module.is_empty() { row.kind } else { row.module };
        let (name, place) = (harmless(&row.name), harmless(&place));
        add(
            &mut text,
            format_args!(
                "{of_self:>12} {self_share:>6.2}% {of_total:>12} {total_share:>6.2}%  {name} [{place}]\n"
            ),
        );
    }
    Ok(text)
}

fn add(text: &mut String, more: std::fmt::Arguments<'_>) {
    text.write_fmt(more).expect("writing to a String cannot fail");
}
