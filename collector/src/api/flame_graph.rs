//! `GET /flamegraph`: a merged tree as columns.

use super::App;
use super::columns::{self, Numbers};
use super::error::ApiError;
use super::losses::{self, Losses};
use super::params::Params;
use super::routes::{Coverage, Pairs, all_warnings, project, query};
use super::selector::label_name;
use crate::limits::{NODES_MAX, ROWS_MAX};
use crate::query::{FlameTree, MergeQuery};
use axum::extract::{Path, State};
use axum::response::Response;
use bytes::Bytes;
use hashbrown::HashMap;
use http::header::{self, HeaderValue};
use serde::Serialize;
use std::sync::Arc;

const FLAG_HIDDEN: u8 = 1;
const FLAG_INLINED: u8 = 2;

#[derive(Serialize)]
struct Answer<'a> {
    #[serde(rename = "type")]
    profile_type: &'a str,
    unit: &'a str,
    total: i64,
    samples: u64,
    period_ns: u64,
    coverage: Coverage,
    losses: Losses,
    hidden: Hidden,
    strings: Vec<&'a str>,
    functions: Functions,
    warnings: &'a [String],
    // `nodes`, the columns of the tree, stand behind.
}

#[derive(Serialize)]
struct Hidden {
    nodes: u64,
    total: i64,
}

#[derive(Serialize)]
struct Functions {
    name: Vec<u32>,
    file: Vec<u32>,
    line: Vec<i64>,
    kind: Vec<&'static str>,
    module: Vec<u32>,
    named: Vec<u8>,
}

/// Strings in order of first use.
#[derive(Default)]
struct Strings<'a> {
    list: Vec<&'a str>,
    index: HashMap<&'a str, u32>,
}

impl<'a> Strings<'a> {
    fn index(&mut self, text: &'a str) -> u32 {
        *self.index.entry(text).or_insert_with(|| {
            self.list.push(text);
            u32::try_from(self.list.len() - 1).expect("NODES_MAX keeps strings below 2^32")
        })
    }
}

pub(super) async fn flame_graph(
    State(app): State<Arc<App>>,
    Path(name): Path<String>,
    pairs: Pairs,
) -> Result<Response, ApiError> {
    let known = ["from", "to", "type", "filter", "leaf", "max_nodes", "keep_self_top"];
    let params = Params::new(pairs.0, &known)?;
    let selection = params.selection(project(&app, &name)?)?;
    let leaf = match params.text("leaf") {
        None | Some("") => None,
        Some(_) => Some(label_name(params.name("leaf", "")?).to_owned()),
    };
    let merge = MergeQuery {
        leaf,
        selection: selection.clone(),
        nodes_max: params.number("max_nodes", 20_000, 1, NODES_MAX)?,
        keep_self_top: params.number("keep_self_top", 200, 0, ROWS_MAX)?,
    };
    let (mut tree, coverage, accounts) = query(&app, async {
        let tree = app.store.merge(merge).await?;
        let coverage = app.store.coverage(selection.clone()).await?;
        Ok((tree, coverage, losses::accounts(&app, &selection).await?))
    })
    .await?;
    let window_ms = selection.range.to_ms - selection.range.from_ms;
    let task = tokio::task::spawn_blocking(move || {
        let losses = Losses::new(&tree.cut, &accounts.answer);
        let others = [std::mem::take(&mut tree.warnings), coverage.warnings, accounts.warnings];
        tree.warnings = all_warnings(others);
        answer(&selection.profile_type, tree, Coverage::new(&coverage.answer, window_ms), losses)
    });
    task.await.unwrap_or_else(|_| Err(ApiError::internal("writing the answer failed")))
}

fn answer(
    profile_type: &str,
    mut tree: FlameTree,
    coverage: Coverage,
    losses: Losses,
) -> Result<Response, ApiError> {
    let total = tree.node_total.first().copied().unwrap_or_default();
    let hidden_total =
        tree.node_hidden.iter().try_fold(0i64, |sum, &hidden| sum.checked_add(hidden));
    let nodes = nodes(&mut tree);
    let mut strings = Strings::default();
    strings.index("");
    let mut functions = Functions {
        name: Vec::with_capacity(tree.functions.len()),
        file: Vec::with_capacity(tree.functions.len()),
        line: tree.functions.iter().map(|function| function.line).collect(),
        kind: tree.functions.iter().map(|function| function.kind.as_str()).collect(),
        module: Vec::with_capacity(tree.functions.len()),
        named: tree.functions.iter().map(|function| u8::from(function.named)).collect(),
    };
    for function in &tree.functions {
        functions.name.push(strings.index(&function.name));
        functions.file.push(strings.index(&function.file));
        functions.module.push(strings.index(&function.module));
    }
    let mut before = serde_json::to_vec(&Answer {
        profile_type,
        unit: &tree.unit,
        total,
        samples: tree.samples,
        period_ns: tree.period_ns,
        coverage,
        losses,
        hidden: Hidden { nodes: tree.hidden_nodes, total: hidden_total.unwrap_or(i64::MAX) },
        strings: strings.list,
        functions,
        warnings: &tree.warnings,
    })
    .map_err(|error| ApiError::internal(format!("writing the answer failed: {error}")))?;
    before.pop(); // the end of the object comes behind the nodes
    before.extend_from_slice(b",\"nodes\":");
    let texts = columns::texts(before, nodes, b"}".to_vec());
    let length: usize = texts.iter().map(Bytes::len).sum();
    let mut response = Response::new(columns::body(texts));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
    Ok(response)
}

/// The columns of the nodes, taken out of the tree.
fn nodes(tree: &mut FlameTree) -> Vec<(&'static str, Numbers)> {
    let hidden = tree.node_hidden.iter().zip(std::mem::take(&mut tree.node_inlined));
    let flags = hidden
        .map(|(&hidden, inlined)| {
            (if hidden == 0 { 0 } else { FLAG_HIDDEN }) | (if inlined { FLAG_INLINED } else { 0 })
        })
        .collect();
    vec![
        ("func", Numbers::Positions(std::mem::take(&mut tree.node_function))),
        ("total", Numbers::Values(std::mem::take(&mut tree.node_total))),
        ("self", Numbers::Values(std::mem::take(&mut tree.node_self))),
        ("depth", Numbers::Positions(std::mem::take(&mut tree.node_depth))),
        ("hidden", Numbers::Values(std::mem::take(&mut tree.node_hidden))),
        ("flags", Numbers::Flags(flags)),
    ]
}
