//! The other side of the API: commands that ask a collector, and `vesta local`, which starts one.

mod fetch;
mod flame_graph;
pub mod folder;
pub mod local;
mod locks;
mod losses;
mod quantity;
mod top;
mod upload;

#[cfg(test)]
mod tests;

use crate::options::{FlamegraphArgs, GraphFormat, LocksArgs, QueryArgs, TableFormat, TopArgs};
use crate::query::LOCK_TYPE;
use crate::store::StoreError;
use fetch::{encode, fetch, url};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::{self, Write as _};
use std::path::Path;

pub use upload::upload;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Not a URL that can be asked.
    #[error("`{0}` is not the URL of a collector; write it like http://127.0.0.1:4040")]
    Url(String),
    /// No answer.
    #[error(
        "no answer from {url}: {cause}; is a collector running there (`vesta serve`, `vesta local`)?"
    )]
    Unreachable {
        /// What was asked.
        url: String,
        /// Why.
        cause: String,
    },
    /// An error of the API.
    #[error("the collector refused: {message}{}{hint}", if hint.is_empty() { "" } else { "; " })]
    Refused {
        /// HTTP status.
        status: u16,
        /// The API's message.
        message: String,
        /// The API's hint.
        hint: String,
    },
    /// Not what the API promises.
    #[error("the collector's answer cannot be read: {0}")]
    Answer(#[from] serde_json::Error),
    /// Inconsistent columns.
    #[error("the collector's answer cannot be read: {0}")]
    Columns(&'static str),
    /// A file to send cannot be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// The file, or `-`.
        path: String,
        /// The cause.
        source: io::Error,
    },
    /// Some files were not stored; why was said of each.
    #[error("{failed} of {files} files were not stored")]
    Upload {
        /// Those.
        failed: usize,
        /// All.
        files: usize,
    },
    /// A data folder cannot be read or changed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Some of its files are damaged; each was said.
    #[error(
        "{damaged} of {files} files are damaged; queries leave out what they cannot read: \
         bring the files back from a backup, or wait until retention removes them"
    )]
    Damaged {
        /// Those.
        damaged: usize,
        /// All.
        files: u64,
    },
    /// A task ended without an answer.
    #[error("opening the store stopped: {0}")]
    Stopped(String),
    /// The output cannot be written.
    #[error("cannot write {path}: {source}")]
    Write {
        /// The file, or `-`.
        path: String,
        /// The cause.
        source: io::Error,
    },
}

impl ClientError {
    /// True if the arguments are to blame (exit code 2).
    #[must_use]
    pub const fn is_usage(&self) -> bool {
        matches!(self, Self::Url(_) | Self::Refused { status: 400 | 404, .. })
    }
}

/// The selector of `--service`, `--host` and `--filter` together.
fn selector(query: &QueryArgs) -> String {
    let quote = |text: &str| text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    let named = [("service", &query.service), ("host", &query.host)];
    let mut parts: Vec<String> = named
        .into_iter()
        .filter_map(|(name, value)| Some(format!("{name}=\"{}\"", quote(value.as_ref()?))))
        .collect();
    let filter = query.filter.trim();
    let inner = filter.strip_prefix('{').and_then(|rest| rest.strip_suffix('}')).unwrap_or(filter);
    if !inner.trim().is_empty() {
        parts.push(inner.trim().to_owned());
    }
    if parts.is_empty() { String::new() } else { format!("{{{}}}", parts.join(",")) }
}

async fn ask(
    query: &QueryArgs,
    path: &str,
    profile_type: &str,
    more: &[(&str, &str)],
) -> Result<bytes::Bytes, ClientError> {
    let filter = selector(query);
    let mut pairs = vec![("from", &*query.from), ("to", &*query.to), ("type", profile_type)];
    if !filter.is_empty() {
        pairs.push(("filter", &filter));
    }
    pairs.extend_from_slice(more);
    fetch(url(&query.collector.url, &query.collector.project, path, &pairs)?).await
}

fn write_out(path: &Path, text: &[u8]) -> Result<(), ClientError> {
    let written = if path == Path::new("-") {
        match io::stdout().write_all(text) {
            // `vesta top | head` is no failure.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            other => other,
        }
    } else {
        std::fs::write(path, text)
    };
    written.map_err(|source| ClientError::Write { path: path.display().to_string(), source })
}

/// What is missing from the answer goes to stderr: it belongs to the reader, not into the data.
fn say_losses(body: &[u8]) -> Result<(), ClientError> {
    say(losses::line(body)?);
    say(losses::warnings(body)?);
    Ok(())
}

fn say(lines: impl IntoIterator<Item = String>) {
    for line in lines {
        drop(writeln!(io::stderr(), "{line}")); // a closed stderr is no reason to fail
    }
}

/// Progress, visible on a terminal alone.
fn bar(length: Option<u64>, template: &str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(length, ProgressDrawTarget::stderr());
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar
}

/// `vesta flamegraph`.
///
/// # Errors
/// See [`ClientError`].
pub async fn flame_graph(args: &FlamegraphArgs) -> Result<(), ClientError> {
    let nodes = args.max_nodes.to_string();
    let body = ask(&args.query, "flamegraph", &args.profile_type, &[("max_nodes", &nodes)]).await?;
    let text = match args.format {
        GraphFormat::Json => body.to_vec(),
        GraphFormat::Folded => flame_graph::Graph::read(&body)?.folded()?.into_bytes(),
        GraphFormat::Text => flame_graph::Graph::read(&body)?.text(args.min_share)?.into_bytes(),
    };
    say_losses(&body)?;
    write_out(&args.query.output, &text)
}

/// `vesta top`.
///
/// # Errors
/// See [`ClientError`].
pub async fn top(args: &TopArgs) -> Result<(), ClientError> {
    let limit = args.limit.to_string();
    let body = ask(&args.query, "functions", &args.profile_type, &[("limit", &limit)]).await?;
    let text = match args.format {
        TableFormat::Json => body.to_vec(),
        TableFormat::Text => top::table(&body, &args.profile_type)?.into_bytes(),
    };
    say_losses(&body)?;
    write_out(&args.query.output, &text)
}

/// `vesta locks`.
///
/// # Errors
/// See [`ClientError`].
pub async fn locks(args: &LocksArgs) -> Result<(), ClientError> {
    let (limit, callers) = (args.limit.to_string(), args.callers.to_string());
    let more = [("limit", &*limit), ("callers", &*callers)];
    let body = ask(&args.query, "locks", LOCK_TYPE, &more).await?;
    let text = match args.format {
        TableFormat::Text if !args.json => locks::table(&body)?.into_bytes(),
        TableFormat::Text | TableFormat::Json => body.to_vec(),
    };
    say(losses::warnings(&body)?);
    write_out(&args.query.output, &text)
}

/// The page's address for a collector that listens at `base`.
#[must_use]
pub fn page_url(base: &str, filter: &str) -> String {
    if filter.is_empty() {
        format!("{base}/explore")
    } else {
        format!("{base}/explore?q={}", encode(filter))
    }
}
