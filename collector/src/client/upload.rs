//! `vesta upload`: sends profiles of files to a collector, one request each.

use super::fetch::{send, url};
use super::{ClientError, bar, say};
use crate::ingest::times::rfc3339;
use crate::limits::{REQUEST_BYTES_MAX, UPLOAD_PAUSE_MS, UPLOAD_TRIES_MAX};
use crate::options::UploadArgs;
use bytes::Bytes;
use serde::Deserialize;
use std::io::Read as _;
use std::path::Path;
use std::time::Duration;

/// The collector's answer.
#[derive(Deserialize)]
struct Pushed {
    service: String,
    from: i64,
    types: Vec<Measured>,
    repeated: bool,
}

#[derive(Deserialize)]
struct Measured {
    r#type: String,
    unit: String,
    samples: u64,
    total: i64,
}

/// `vesta upload`. Every file is tried, and said how it went.
///
/// # Errors
/// See [`ClientError`].
pub async fn upload(args: &UploadArgs) -> Result<(), ClientError> {
    let pairs: Vec<(&str, &str)> = args
        .parameters()
        .into_iter()
        .filter_map(|(name, value)| Some((name, value.as_deref()?)))
        .collect();
    let url = url(&args.collector.url, &args.collector.project, "profiles/pprof", &pairs)?;
    let bar = bar(Some(args.files.len() as u64), "{bar:30} {pos}/{len} {wide_msg}");
    let mut failed = 0;
    for file in &args.files {
        bar.set_message(file.display().to_string());
        let outcome = match read(file) {
            Ok(body) => push(url.clone(), body).await,
            Err(error) => Err(error),
        };
        let line = match outcome {
            Ok(pushed) => told(file, &pushed),
            Err(error) => {
                failed += 1;
                format!("{}: not stored: {error}", file.display())
            }
        };
        bar.inc(1);
        bar.suspend(|| say([line]));
    }
    bar.finish_and_clear();
    let files = args.files.len();
    if failed == 0 { Ok(()) } else { Err(ClientError::Upload { failed, files }) }
}

/// The bytes of a file, `-` is standard input; a little more than the collector takes is enough to be told so.
fn read(file: &Path) -> Result<Bytes, ClientError> {
    let fail = |source| ClientError::Read { path: file.display().to_string(), source };
    let limit = REQUEST_BYTES_MAX as u64 + 1;
    let mut bytes = Vec::new();
    if file == Path::new("-") {
        std::io::stdin().take(limit).read_to_end(&mut bytes).map_err(fail)?;
    } else {
        let file = std::fs::File::open(file).map_err(fail)?;
        file.take(limit).read_to_end(&mut bytes).map_err(fail)?;
    }
    Ok(Bytes::from(bytes))
}

/// Sends one profile; again after a pause while the collector is busy, for then it has stored nothing.
async fn push(url: http::Uri, body: Bytes) -> Result<Pushed, ClientError> {
    let mut tries = 1;
    loop {
        match send(url.clone(), Some(body.clone())).await {
            Err(ClientError::Refused { status: 429 | 503, .. }) if tries < UPLOAD_TRIES_MAX => {
                tries += 1;
                tokio::time::sleep(Duration::from_millis(UPLOAD_PAUSE_MS)).await;
            }
            outcome => return Ok(serde_json::from_slice(&outcome?)?),
        }
    }
}

fn told(file: &Path, pushed: &Pushed) -> String {
    let Pushed { service, from, types, repeated } = pushed;
    let mut line = format!("{}: {service} at {}", file.display(), rfc3339(*from));
    for Measured { r#type, unit, samples, total } in types {
        line += &format!(", {} {total} {unit} in {samples} samples", r#type);
    }
    if *repeated {
        line += " (was stored before)";
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_stored_is_one_line() {
        let answer = r#"{"service":"shop","from":1795982400000,"to":1795982410000,"type":"cpu","repeated":false,
            "types":[{"type":"samples","unit":"count","samples":2,"total":5},
                     {"type":"cpu","unit":"nanoseconds","samples":2,"total":50000000}]}"#;
        let mut pushed: Pushed = serde_json::from_str(answer).unwrap();
        let line = "a.pb.gz: shop at 2026-11-29T20:00:00Z, samples 5 count in 2 samples, cpu 50000000 nanoseconds in 2 samples";
        assert_eq!(told(Path::new("a.pb.gz"), &pushed), line);
        pushed.repeated = true;
        assert_eq!(told(Path::new("a.pb.gz"), &pushed), format!("{line} (was stored before)"));
    }
}
