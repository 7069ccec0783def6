//! `GET /locks`: lock waits by lock, with who waits and who holds.

use super::App;
use super::error::ApiError;
use super::params::Params;
use super::routes::{Coverage, Pairs, all_warnings, finite, json, project, query};
use crate::limits::{LOCK_CALLERS_MAX, LOCK_ROWS_MAX, SELECTOR_BYTES_MAX};
use crate::query::{LOCK_TYPE, LockCaller, LockFigures, LockKey, LockRow, LocksQuery, Measure};
use axum::extract::{Path, State};
use axum::response::Response;
use serde::Serialize;
use std::sync::Arc;

#[derive(Serialize)]
struct Answer<'a> {
    from: i64,
    to: i64,
    coverage: Coverage,
    locks: u64,
    total: Figures,
    rows: Vec<Row<'a>>,
    others: Others,
    warnings: Vec<String>,
}

#[derive(Serialize)]
struct Figures {
    wait_ns: i64,
    contentions: i64,
    holder_samples: i64,
}

impl From<LockFigures> for Figures {
    fn from(LockFigures { wait_ns, contentions, held }: LockFigures) -> Self {
        Self { wait_ns, contentions, holder_samples: held }
    }
}

#[derive(Serialize)]
struct Others {
    locks: u64,
    #[serde(flatten)]
    figures: Figures,
}

#[derive(Serialize)]
struct Row<'a> {
    /// Name or address.
    lock: &'a str,
    /// `static` or `address`.
    place: &'static str,
    kind: &'static str,
    service: &'a str,
    services: u64,
    executable: &'a str,
    host: &'a str,
    pid: &'a str,
    #[serde(flatten)]
    figures: Figures,
    /// Absent where nobody counted.
    mean_ns: Option<i64>,
    threads: f64,
    waiters: Vec<Waiter<'a>>,
    holders: Vec<Holder<'a>>,
    other_callers: Figures,
    filter: String,
}

#[derive(Serialize)]
struct Waiter<'a> {
    #[serde(flatten)]
    function: Function<'a>,
    wait_ns: i64,
    contentions: i64,
    stack: Vec<&'a str>,
}

#[derive(Serialize)]
struct Holder<'a> {
    #[serde(flatten)]
    function: Function<'a>,
    samples: i64,
    stack: Vec<&'a str>,
}

#[derive(Serialize)]
struct Function<'a> {
    name: &'a str,
    file: &'a str,
    line: i64,
    kind: &'static str,
    module: &'a str,
    named: bool,
}

impl<'a> Function<'a> {
    fn of(caller: &'a LockCaller) -> Self {
        let function = &caller.function;
        Self {
            name: &function.name,
            file: &function.file,
            line: function.line,
            kind: function.kind.as_str(),
            module: &function.module,
            named: function.named,
        }
    }
}

fn names_of(caller: &LockCaller) -> Vec<&str> {
    caller.stack.iter().map(|name| &**name).collect()
}

impl<'a> Row<'a> {
    fn of(row: &'a LockRow) -> Self {
        let (place, lock, executable, host, pid): (_, &str, &str, &str, &str) = match &row.key {
            LockKey::Static { executable, name } => ("static", name, executable, "", ""),
            LockKey::Address { host, executable, pid, address, .. } => {
                ("address", address, executable, host, pid)
            }
        };
        let waiter = |caller: &'a LockCaller| Waiter {
            function: Function::of(caller),
            wait_ns: caller.figures.wait_ns,
            contentions: caller.figures.contentions,
            stack: names_of(caller),
        };
        let holder = |caller: &'a LockCaller| Holder {
            function: Function::of(caller),
            samples: caller.figures.held,
            stack: names_of(caller),
        };
        let LockFigures { wait_ns, contentions, .. } = row.figures;
        let filter = row.key.selector();
        Self {
            lock,
            place,
            kind: row.kind.as_str(),
            service: &row.service,
            services: row.services,
            executable,
            host,
            pid,
            figures: row.figures.into(),
            mean_ns: (contentions > 0).then(|| wait_ns / contentions),
            threads: finite(row.threads),
            waiters: row.waiters.iter().map(waiter).collect(),
            holders: row.holders.iter().map(holder).collect(),
            other_callers: row.others.into(),
            // A question with a longer one is refused; no filter is better than one that fails.
            filter: if filter.len() <= SELECTOR_BYTES_MAX { filter } else { String::new() },
        }
    }
}

pub(super) async fn locks(
    State(app): State<Arc<App>>,
    Path(name): Path<String>,
    pairs: Pairs,
) -> Result<Response, ApiError> {
    let params = Params::new(pairs.0, &["from", "to", "type", "filter", "limit", "callers"])?;
    let project = project(&app, &name)?;
    let profile_type = params.name("type", LOCK_TYPE)?;
    if profile_type != LOCK_TYPE {
        return Err(ApiError::parameter(format!("`type` must be `{LOCK_TYPE}`"))
            .hint("leave it out; samples of other types do not say which lock they are about"));
    }
    let selection = params.selection(project)?;
    let rows_max = params.number("limit", 50, 1, LOCK_ROWS_MAX)?;
    let callers_max = params.number("callers", 5, 0, LOCK_CALLERS_MAX)?;
    let question = LocksQuery::new(selection, rows_max, callers_max);
    let waits = question.selection_of(Measure::Wait);
    let range = waits.range;
    let (locks, coverage) = query(&app, async {
        let locks = app.store.locks(question).await?;
        Ok((locks, app.store.coverage(waits).await?))
    })
    .await?;
    json(&Answer {
        from: range.from_ms,
        to: range.to_ms,
        coverage: Coverage::new(&coverage.answer, range.to_ms - range.from_ms),
        locks: locks.locks,
        total: locks.total.into(),
        others: Others {
            locks: locks.locks.saturating_sub(locks.rows.len() as u64),
            figures: locks.others.into(),
        },
        rows: locks.rows.iter().map(Row::of).collect(),
        warnings: all_warnings([locks.warnings, coverage.warnings]),
    })
}
