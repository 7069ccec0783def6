//! The read routes but the flame graph: each reads its parameters, asks the store, shapes the answer.

use super::App;
use super::error::ApiError;
use super::losses;
use super::params::Params;
use super::selector::label_name;
use crate::limits::{QUERY_MS_MAX, QUERY_WAIT_MS, ROWS_MAX, SERIES_MAX, TIMELINE_BUCKETS_MAX};
use crate::profile::ProjectName;
use crate::query::{self, LEDGER_TYPE, MergeQuery, ProfileTypeRow, TimelineQuery};
use crate::store::StoreError;
use axum::body::Body;
use axum::extract::{FromRequestParts, Path, Query, State};
use axum::response::{IntoResponse as _, Response};
use http::header::{self, HeaderValue};
use http::request::Parts;
use serde::Serialize;
use serde_json::json as value;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// Points of the small trend of a service.
const TREND_BUCKETS: usize = 48;

/// Query parameters as they came; a malformed query string is an error of the API's form.
pub(super) struct Pairs(pub(super) Vec<(String, String)>);

impl<S: Send + Sync> FromRequestParts<S> for Pairs {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        match Query::<Vec<(String, String)>>::from_request_parts(parts, state).await {
            Ok(Query(pairs)) => Ok(Self(pairs)),
            Err(error) => {
                Err(ApiError::parameter(format!("the query string is malformed: {error}")))
            }
        }
    }
}

/// How much of the range was observed, as the API says it.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Coverage {
    hosts: u64,
    host_ms: i64,
    window_ms: i64,
    cores: f64,
}

impl Coverage {
    pub(super) fn new(coverage: &query::Coverage, window_ms: i64) -> Self {
        let query::Coverage { hosts, host_ms, cores } = *coverage;
        Self { hosts, host_ms, window_ms, cores: finite(cores) }
    }
}

/// JSON has no infinities.
pub(super) fn finite(number: f64) -> f64 {
    if number.is_finite() { number } else { 0.0 }
}

#[expect(clippy::cast_precision_loss, reason = "shares and cores are shown with few digits")]
fn float(number: i64) -> f64 {
    number as f64
}

pub(super) fn json<T: Serialize>(answer: &T) -> Result<Response, ApiError> {
    let text = serde_json::to_vec(answer)
        .map_err(|error| ApiError::internal(format!("writing the answer failed: {error}")))?;
    let mut response = Response::new(Body::from(text));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(response)
}

/// What several answers leave out, each once.
pub(super) fn all_warnings(parts: impl IntoIterator<Item = Vec<String>>) -> Vec<String> {
    let all: BTreeSet<String> = parts.into_iter().flatten().collect();
    all.into_iter().collect()
}

/// The project of a path, if it exists.
pub(super) fn project(app: &App, name: &str) -> Result<ProjectName, ApiError> {
    if *app.project.0 == *name { Ok(app.project.clone()) } else { Err(ApiError::no_project(name)) }
}

/// Runs a query in its turn and within its time.
pub(super) async fn query<T>(
    app: &App,
    work: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, ApiError> {
    let turn = timeout(Duration::from_millis(QUERY_WAIT_MS), app.queries.acquire()).await;
    let Ok(Ok(_turn)) = turn else {
        return Err(ApiError::busy("too many queries are running"));
    };
    match timeout(Duration::from_millis(QUERY_MS_MAX), work).await {
        Ok(outcome) => Ok(outcome?),
        Err(_) => {
            Err(ApiError::busy(format!("the query took longer than {} s", QUERY_MS_MAX / 1_000))
                .hint("choose a shorter range or a narrower filter"))
        }
    }
}

/// What a profile type is called in a menu.
fn type_label(id: &str) -> &str {
    match id {
        "cpu" => "CPU time",
        "off_cpu" => "Off-CPU time",
        "off_cpu:count" => "Off-CPU waits, counted",
        "off_cpu_preempted" => "Preempted time",
        "lock" => "Lock wait",
        "lock_contentions" => "Lock waits, counted",
        "lock_holders" => "Lock holders",
        "wall" => "Wall time",
        "alloc_space" => "Allocated bytes",
        "alloc_objects" => "Allocated objects",
        "inuse_space" => "Bytes in use",
        "inuse_objects" => "Objects in use",
        other => other,
    }
}

pub(super) async fn meta(
    State(app): State<Arc<App>>,
    Path(name): Path<String>,
    pairs: Pairs,
) -> Result<Response, ApiError> {
    let params = Params::new(pairs.0, &[])?;
    let project = project(&app, &name)?;
    let (types, stats) = query(&app, async {
        Ok((app.store.profile_types(project).await?, app.store.stats().await?))
    })
    .await?;
    let types: Vec<_> = types
        .iter()
        .filter(|row| row.id != LEDGER_TYPE) // no samples: answers say what it tells
        .map(|row| {
            value!({"id": row.id, "unit": row.unit, "label": type_label(&row.id), "period_ns": row.period_ns})
        })
        .collect();
    json(&value!({
        "version": env!("CARGO_PKG_VERSION"),
        "features": [],
        "now": params.now_ms,
        "data": {"disk_bytes": stats.disk_bytes, "disk_bytes_max": stats.disk_bytes_max},
        "profile_types": types,
        "auth": {"required": false},
    }))
}

/// The unit of a type; of one that does not exist, the empty string.
async fn unit_of(app: &App, project: ProjectName, id: &str) -> Result<String, StoreError> {
    let types = app.store.profile_types(project).await?;
    let is_it = |row: &ProfileTypeRow| row.id == id || format!("{}:{}", row.id, row.unit) == id;
    Ok(types.into_iter().find(is_it).map(|row| row.unit).unwrap_or_default())
}

/// What a value in nanoseconds over time is: an average number of cores in use, or of threads that wait.
fn value_unit<'a>(profile_type: &str, unit: &'a str) -> &'a str {
    match (unit, profile_type) {
        ("nanoseconds", "cpu" | "cpu:nanoseconds") => "cores",
        ("nanoseconds", _) => "threads",
        (other, _) => other,
    }
}

pub(super) async fn services(
    State(app): State<Arc<App>>,
    Path(name): Path<String>,
    pairs: Pairs,
) -> Result<Response, ApiError> {
    let params = Params::new(pairs.0, &["from", "to", "type", "filter"])?;
    let selection = params.selection(project(&app, &name)?)?;
    let (services, coverage, unit) = query(&app, async {
        let services = app.store.services(selection.clone(), TREND_BUCKETS).await?;
        let coverage = app.store.coverage(selection.clone()).await?;
        let unit = unit_of(&app, selection.project.clone(), &selection.profile_type).await?;
        Ok((services, coverage, unit))
    })
    .await?;
    let range = selection.range;
    let window_ms = range.to_ms - range.from_ms;
    let is_cores = unit == "nanoseconds";
    let rows = services.answer;
    let all: f64 = rows.iter().map(|row| float(row.total)).sum();
    let rows: Vec<_> = rows
        .iter()
        .map(|row| {
            let share = if all == 0.0 { 0.0 } else { finite(float(row.total) / all) };
            // Cores where the unit is a time, sums elsewhere.
            let trend: Vec<f64> = if is_cores {
                row.trend_cores.iter().map(|&cores| finite(cores)).collect()
            } else {
                row.trend.iter().map(|&sum| float(sum)).collect()
            };
            value!({
                "service": row.service,
                "cores": if is_cores { finite(row.cores) } else { 0.0 },
                "share": share,
                "trend": trend,
                "samples": row.samples,
                "hosts": row.hosts,
                "containers": row.containers,
                "named_share": finite(row.named_share),
            })
        })
        .collect();
    json(&value!({
        "warnings": all_warnings([services.warnings, coverage.warnings]),
        "from": range.from_ms,
        "to": range.to_ms,
        "type": selection.profile_type,
        "unit": unit,
        "total_cores": if is_cores { finite(coverage.answer.cores) } else { 0.0 },
        "coverage": Coverage::new(&coverage.answer, window_ms),
        "rows": rows,
    }))
}

pub(super) async fn labels(
    State(app): State<Arc<App>>,
    Path(name): Path<String>,
    pairs: Pairs,
) -> Result<Response, ApiError> {
    let params = Params::new(pairs.0, &["from", "to", "type", "filter"])?;
    let selection = params.selection(project(&app, &name)?)?;
    let names = query(&app, app.store.label_names(selection)).await?;
    let labels: Vec<_> =
        names.answer.iter().map(|row| value!({"name": row.name, "values": row.values})).collect();
    json(&value!({"labels": labels, "warnings": names.warnings}))
}

pub(super) async fn label_values(
    State(app): State<Arc<App>>,
    Path((name, label)): Path<(String, String)>,
    pairs: Pairs,
) -> Result<Response, ApiError> {
    let params = Params::new(pairs.0, &["from", "to", "type", "filter", "prefix", "limit"])?;
    let selection = params.selection(project(&app, &name)?)?;
    let prefix = params.text("prefix").unwrap_or_default().to_owned();
    let limit = params.number("limit", 100, 1, ROWS_MAX)?;
    let label = label_name(&label).to_owned();
    let rows = query(&app, app.store.label_values(selection, label, prefix, limit)).await?;
    let values: Vec<_> = rows
        .answer
        .iter()
        .map(|row| value!({"value": row.value, "samples": row.samples}))
        .collect();
    json(&value!({"values": values, "warnings": rows.warnings}))
}

/// Widths of a bucket that people read well, milliseconds.
const STEPS_MS: [i64; 18] = [
    1_000,
    2_000,
    5_000,
    10_000,
    15_000,
    30_000,
    60_000,
    120_000,
    300_000,
    600_000,
    900_000,
    1_800_000,
    3_600_000,
    7_200_000,
    21_600_000,
    43_200_000,
    86_400_000,
    604_800_000,
];

/// Buckets that a chosen width aims at: one per few pixels of a chart.
const BUCKETS_CHOSEN: i64 = 240;

fn choose_step(window_ms: i64) -> i64 {
    let wanted = window_ms / BUCKETS_CHOSEN;
    let step = STEPS_MS.into_iter().find(|&step| step >= wanted);
    step.unwrap_or(wanted.div_euclid(604_800_000).saturating_add(1).saturating_mul(604_800_000))
}

pub(super) async fn series(
    State(app): State<Arc<App>>,
    Path(name): Path<String>,
    pairs: Pairs,
) -> Result<Response, ApiError> {
    let params = Params::new(pairs.0, &["from", "to", "type", "filter", "by", "step", "limit"])?;
    let selection = params.selection(project(&app, &name)?)?;
    let range = selection.range;
    let window_ms = range.to_ms - range.from_ms;
    let step_ms = params.number("step", choose_step(window_ms), 1, i64::MAX)?;
    let buckets_max = i64::try_from(TIMELINE_BUCKETS_MAX).unwrap_or(i64::MAX);
    if window_ms / step_ms >= buckets_max {
        return Err(ApiError::parameter(format!("`step` gives more than {buckets_max} buckets"))
            .hint(format!("use at least {} ms, or leave it out", window_ms / buckets_max + 1)));
    }
    let by = match params.text("by") {
        None | Some("") => None,
        Some(_) => Some(label_name(params.name("by", "")?).to_owned()),
    };
    let series_max = params.number("limit", 8, 1, SERIES_MAX)?;
    let question =
        TimelineQuery { selection: selection.clone(), by: by.clone(), step_ms, series_max };
    let (told, unit) = query(&app, async {
        let line = app.store.timeline(question).await?;
        let unit = unit_of(&app, selection.project.clone(), &selection.profile_type).await?;
        Ok((line, unit))
    })
    .await?;
    let line = told.answer;
    let is_cores = unit == "nanoseconds";
    let shape = |sums: &[i64], cores: Option<&[f64]>| -> Vec<f64> {
        match cores {
            Some(cores) if is_cores => cores.iter().map(|&cores| finite(cores)).collect(),
            _ => sums.iter().map(|&sum| float(sum)).collect(),
        }
    };
    let rows: Vec<_> = line
        .series
        .iter()
        .zip(&line.series_cores)
        .map(|((label, sums), cores)| {
            let mut labels = serde_json::Map::new();
            if let Some(by) = &by {
                labels.insert(by.clone(), label.clone().into());
            }
            value!({"labels": labels, "values": shape(sums, Some(cores))})
        })
        .collect();
    json(&value!({
        "t0": line.start_ms,
        "step": line.step_ms,
        "type": selection.profile_type,
        "unit": unit,
        "value_unit": value_unit(&selection.profile_type, &unit),
        "series": rows,
        "other": line.other.as_deref().map(|sums| shape(sums, line.other_cores.as_deref())),
        "annotations": [],
        "warnings": told.warnings,
    }))
}

pub(super) async fn functions(
    State(app): State<Arc<App>>,
    Path(name): Path<String>,
    pairs: Pairs,
) -> Result<Response, ApiError> {
    let params = Params::new(pairs.0, &["from", "to", "type", "filter", "limit"])?;
    let selection = params.selection(project(&app, &name)?)?;
    let limit = params.number("limit", 500, 1, ROWS_MAX)?;
    let whole =
        MergeQuery { selection: selection.clone(), nodes_max: 1, keep_self_top: 0, leaf: None };
    let (functions, tree, coverage, accounts) = query(&app, async {
        let functions = app.store.functions(selection.clone(), limit).await?;
        let tree = app.store.merge(whole).await?;
        let coverage = app.store.coverage(selection.clone()).await?;
        Ok((functions, tree, coverage, losses::accounts(&app, &selection).await?))
    })
    .await?;
    let window_ms = selection.range.to_ms - selection.range.from_ms;
    let rows: Vec<_> = functions
        .answer
        .iter()
        .map(|row| {
            let function = &row.function;
            value!({
                "name": &*function.name,
                "file": &*function.file,
                "line": function.line,
                "kind": function.kind.as_str(),
                "module": &*function.module,
                "named": function.named,
                "self": row.self_value,
                "total": row.total,
            })
        })
        .collect();
    json(&value!({
        "unit": tree.unit,
        "total": tree.node_total.first().copied().unwrap_or_default(),
        "samples": tree.samples,
        "coverage": Coverage::new(&coverage.answer, window_ms),
        "losses": losses::Losses::new(&tree.cut, &accounts.answer),
        "rows": rows,
        "warnings": all_warnings([
            functions.warnings, tree.warnings, coverage.warnings, accounts.warnings,
        ]),
    }))
}

/// 200 once the store answers.
pub(super) async fn ready(State(app): State<Arc<App>>) -> Result<Response, ApiError> {
    query(&app, app.store.profile_types(app.project.clone())).await?;
    Ok("ready\n".into_response())
}

pub(super) async fn metrics(State(app): State<Arc<App>>) -> Response {
    let stats = app.store.stats().await.ok();
    let text = app.metrics.text(stats.as_ref());
    let content_type = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, content_type)], text).into_response()
}
