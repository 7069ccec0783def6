//! `vesta flamegraph`: the columns of a merged tree as folded stacks or as an indented tree.

use super::ClientError;
use super::quantity::{harmless, percent, quantity};
use serde::Deserialize;
use std::fmt::Write as _;

/// What the API answers, as far as it is used here.
#[derive(Deserialize)]
pub(super) struct Graph {
    unit: String,
    total: i64,
    samples: u64,
    period_ns: u64,
    strings: Vec<String>,
    functions: Functions,
    nodes: Nodes,
}

#[derive(Deserialize)]
struct Functions {
    name: Vec<usize>,
    kind: Vec<String>,
}

#[derive(Deserialize)]
struct Nodes {
    func: Vec<usize>,
    total: Vec<i64>,
    #[serde(rename = "self")]
    self_value: Vec<i64>,
    depth: Vec<usize>,
    hidden: Vec<i64>,
}

/// One node.
struct Node<'a> {
    depth: usize,
    name: &'a str,
    kind: &'a str,
    total: i64,
    self_value: i64,
    hidden: i64,
}

/// Stands for what pruning left out below a node.
const HIDDEN: &str = "[hidden]";

/// Stands for samples without a stack: a line must have one.
const NO_STACK: &str = "[no stack]";

impl Graph {
    pub(super) fn read(body: &[u8]) -> Result<Self, ClientError> {
        Ok(serde_json::from_slice(body)?)
    }

    fn node(&self, at: usize) -> Result<Node<'_>, ClientError> {
        let nodes = &self.nodes;
        let node = || {
            let function = *nodes.func.get(at)?;
            Some(Node {
                depth: *nodes.depth.get(at)?,
                name: self.strings.get(*self.functions.name.get(function)?)?,
                kind: self.functions.kind.get(function)?,
                total: *nodes.total.get(at)?,
                self_value: *nodes.self_value.get(at)?,
                hidden: *nodes.hidden.get(at)?,
            })
        };
        node().ok_or(ClientError::Columns("columns of unequal length or indices out of range"))
    }

    /// Samples, where a value is a whole number of periods; else the value.
    fn count(&self, value: i64) -> i64 {
        match i64::try_from(self.period_ns) {
            Ok(period) if period > 0 && self.unit == "nanoseconds" => {
                (value + value.signum() * (period / 2)) / period
            }
            _ => value,
        }
    }

    /// `root;...;leaf samples`, one line per stack; kernel frames end in `_[k]`.
    pub(super) fn folded(&self) -> Result<String, ClientError> {
        let mut text = String::new();
        let mut path: Vec<String> = Vec::new();
        for at in 0..self.nodes.func.len() {
            let node = self.node(at)?;
            if (node.depth == 0) != (at == 0) || node.depth > path.len() + 1 {
                return Err(ClientError::Columns("depths are not those of a tree"));
            }
            if let Some(parent) = node.depth.checked_sub(1) {
                path.truncate(parent);
                path.push(folded_name(&node));
            }
            let own = (at == 0).then_some(NO_STACK);
            for (value, leaf) in [(node.self_value, own), (node.hidden, Some(HIDDEN))] {
                let count = self.count(value);
                if count != 0 {
                    let stack = path.iter().map(|name| &**name).chain(leaf).collect::<Vec<_>>();
                    add(&mut text, format_args!("{} {count}\n", stack.join(";")));
                }
            }
        }
        Ok(text)
    }

    /// An indented tree of what has at least `min_share` percent.
    pub(super) fn text(&self, min_share: f64) -> Result<String, ClientError> {
        let total = quantity(self.total, &self.unit);
        let mut text = format!("{total} in {} samples\n", self.samples);
        if self.total == 0 {
            text.push_str("no samples in this range match\n");
            return Ok(text);
        }
        for at in 1..self.nodes.func.len() {
            let node = self.node(at)?;
            let share = percent(node.total, self.total);
            if share.abs() < min_share {
                continue;
            }
            let indent = node.depth.saturating_sub(1);
            let own = percent(node.self_value, self.total);
            let name = harmless(node.name);
            let kernel = if node.kind == "kernel" { " [kernel]" } else { "" };
            add(
                &mut text,
                format_args!("{share:>6.2}% {own:>6.2}%  {:indent$}{name}{kernel}\n", ""),
            );
        }
        Ok(text)
    }
}

/// `;` separates frames and the last space the count, so neither may be in a name's way.
fn folded_name(node: &Node<'_>) -> String {
    let name = harmless(&node.name.replace(';', ":").replace(['\n', '\r'], " "));
    if node.kind == "kernel" { format!("{name}_[k]") } else { name }
}

fn add(text: &mut String, more: std::fmt::Arguments<'_>) {
    text.write_fmt(more).expect("writing to a String cannot fail");
}
