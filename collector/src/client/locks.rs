//! `vesta locks`: a table of locks, below each who waits and who holds.

use super::ClientError;
use super::quantity::{harmless, percent, quantity};
use serde::Deserialize;
use std::fmt::Write as _;

#[derive(Deserialize)]
struct Answer {
    coverage: Coverage,
    locks: u64,
    total: Figures,
    rows: Vec<Row>,
    others: Others,
}

#[derive(Deserialize)]
struct Coverage {
    hosts: u64,
    cores: f64,
}

#[derive(Deserialize)]
struct Figures {
    wait_ns: i64,
    contentions: i64,
    holder_samples: i64,
}

#[derive(Deserialize)]
struct Others {
    locks: u64,
    wait_ns: i64,
    contentions: i64,
}

#[derive(Deserialize)]
struct Row {
    lock: String,
    kind: String,
    service: String,
    services: u64,
    executable: String,
    host: String,
    pid: String,
    wait_ns: i64,
    contentions: i64,
    holder_samples: i64,
    mean_ns: Option<i64>,
    waiters: Vec<Waiter>,
    holders: Vec<Holder>,
}

#[derive(Deserialize)]
struct Waiter {
    name: String,
    wait_ns: i64,
    stack: Vec<String>,
}

#[derive(Deserialize)]
struct Holder {
    name: String,
    samples: i64,
}

/// Callers of a waiter that a line has room for.
const STACK_SHOWN: usize = 4;

/// The API's answer as columns.
pub(super) fn table(body: &[u8]) -> Result<String, ClientError> {
    let Answer { coverage, locks, total, rows, others } = serde_json::from_slice(body)?;
    let Figures { wait_ns, contentions, holder_samples } = total;
    let mut text = format!(
        "{} of waiting in {contentions} contentions of {locks} locks, {:.3} threads on average on {} hosts\n",
        quantity(wait_ns, "nanoseconds"),
        coverage.cores,
        coverage.hosts,
    );
    if rows.is_empty() {
        text.push_str("no lock was waited for in this range, as far as the filter shows\n");
        return Ok(text);
    }
    let head = ("wait", "wait %", "contentions", "mean", "kind");
    add(
        &mut text,
        format_args!(
            "{:>12} {:>7} {:>11} {:>10} {:<8} lock\n",
            head.0, head.1, head.2, head.3, head.4
        ),
    );
    for row in &rows {
        add_row(&mut text, row, wait_ns);
    }
    if others.locks > 0 {
        let name = format!("{} other locks", others.locks);
        add_line(&mut text, (others.wait_ns, wait_ns), others.contentions, "-", "", &name);
    }
    if holder_samples == 0 {
        text.push_str("nobody was seen holding one: no samples of holders in this range\n");
    }
    Ok(text)
}

fn add_row(text: &mut String, row: &Row, all_ns: i64) {
    let mean = row.mean_ns.map_or_else(|| "-".to_owned(), |mean| quantity(mean, "nanoseconds"));
    let lock = if row.lock.is_empty() { "(address unknown)" } else { &row.lock };
    let service = match row.services {
        0 | 1 => row.service.clone(),
        more => format!("{} and {} more", row.service, more - 1),
    };
    let process = match (&*row.pid, &*row.host) {
        ("", "") => String::new(),
        (pid, host) => format!(", pid {pid} on {host}"),
    };
    let executable = match &*row.executable {
        "" => String::new(),
        name if *name == row.service => String::new(),
        name => format!(", {name}"),
    };
    let name = harmless(&format!("{lock} [{service}{executable}{process}]"));
    let kind = harmless(&row.kind);
    add_line(text, (row.wait_ns, all_ns), row.contentions, &mean, &kind, &name);
    for waiter in &row.waiters {
        let share = percent(waiter.wait_ns, row.wait_ns);
        let callers = waiter.stack.iter().skip(1).take(STACK_SHOWN);
        let way: String = callers.map(|caller| format!(" < {}", harmless(caller))).collect();
        let more = if waiter.stack.len() > STACK_SHOWN + 1 { " < …" } else { "" };
        let name = harmless(&waiter.name);
        add(text, format_args!("{:53}waits {share:>6.2}%  {name}{way}{more}\n", ""));
    }
    for holder in &row.holders {
        let share = percent(holder.samples, row.holder_samples);
        let name = harmless(&holder.name);
        add(text, format_args!("{:53}holds {share:>6.2}%  {name}\n", ""));
    }
}

fn add_line(
    text: &mut String,
    (wait_ns, all_ns): (i64, i64),
    contentions: i64,
    mean: &str,
    kind: &str,
    name: &str,
) {
    let (wait, share) = (quantity(wait_ns, "nanoseconds"), percent(wait_ns, all_ns));
    add(
        text,
        format_args!("{wait:>12} {share:>6.2}% {contentions:>11} {mean:>10} {kind:<8} {name}\n"),
    );
}

fn add(text: &mut String, more: std::fmt::Arguments<'_>) {
    text.write_fmt(more).expect("writing to a String cannot fail");
}
