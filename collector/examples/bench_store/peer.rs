//! The same samples in chdb, `ClickHouse`'s engine as a Python package: one table in the order of the questions, two threads,
//! sums by stack without a tree. Its numbers of stacks and series are small, as ours are.

use crate::data_set::{DataSet, Row};
use crate::figures::{Times, progress};
use crate::folder::Folder;
use crate::questions::{self, Merge};
use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;
use std::io::{BufRead as _, BufReader, BufWriter, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// The Python that has chdb.
const PYTHON: &str = "VESTA_CHDB_PYTHON";
/// Answers of which the best counts.
const RUNS: usize = 5;
/// Samples that are handed over in one file of 27 bytes each.
const CHUNK: usize = 5_000_000;
const THREADS: &str = "max_threads = 2, max_insert_threads = 2";

const TABLE: &str = "CREATE TABLE bench.samples (project UInt32, type LowCardinality(String), \
    service LowCardinality(String), series UInt64 CODEC(ZSTD(1)), \
    ts DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)), stack UInt64 CODEC(ZSTD(1)), \
    value Int64 CODEC(T64, ZSTD(1))) ENGINE = MergeTree PARTITION BY toDate(ts) \
    ORDER BY (project, type, service, series, ts)";

/// A process with chdb.
pub(crate) struct Peer {
    child: Child,
    requests: ChildStdin,
    answers: BufReader<ChildStdout>,
}

#[derive(Deserialize)]
struct Answer {
    ms: Vec<f64>,
    text: String,
}

impl Drop for Peer {
    fn drop(&mut self) {
        // It has ended already, or ends now: its data is not needed any more.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

impl Peer {
    /// Starts it on its folder, with the samples in it; `None` if it cannot be had.
    pub(crate) fn start(folder: &Folder, set: &DataSet) -> Result<Option<Self>> {
        let Some(python) = std::env::var_os(PYTHON) else {
            progress(
                "without chdb, and so without ratios: VESTA_CHDB_PYTHON names no Python with it",
            );
            return Ok(None);
        };
        let is_there = folder.has_peer()?;
        let mut child = Command::new(&python)
            .args(["-c", include_str!("peer.py")])
            .arg(folder.peer())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("start {}", python.display()))?;
        let pipes = child.stdin.take().zip(child.stdout.take());
        let (requests, answers) = pipes.context("a child has its pipes")?;
        let mut peer = Self { child, requests, answers: BufReader::new(answers) };
        let version = peer.text("SELECT version()")?;
        progress(&format!("beside chdb with ClickHouse {}", version.trim()));
        if !is_there {
            peer.load(set, &folder.peer())?;
            folder.mark_peer()?;
        }
        Ok(Some(peer))
    }

    fn ask(&mut self, sql: &str, format: &str, runs: usize) -> Result<Answer> {
        let request = serde_json::json!({ "sql": sql, "format": format, "runs": runs });
        writeln!(self.requests, "{request}")?;
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        serde_json::from_str(&line).with_context(|| format!("chdb does not answer {sql}"))
    }

    fn text(&mut self, sql: &str) -> Result<String> {
        Ok(self.ask(sql, "TabSeparated", 1)?.text)
    }

    fn load(&mut self, set: &DataSet, folder: &Path) -> Result<()> {
        progress("writing the same samples to chdb");
        self.text("CREATE DATABASE bench ENGINE = Atomic")?;
        self.text(TABLE)?;
        let path = folder.with_extension("rows");
        let mut rows = set.rows().peekable();
        while rows.peek().is_some() {
            write_rows(&path, set, rows.by_ref().take(CHUNK))?;
            self.text(&insert(&path))?;
        }
        std::fs::remove_file(&path)?;
        self.text("OPTIMIZE TABLE bench.samples FINAL")?;
        let count = self.text("SELECT count() FROM bench.samples")?;
        ensure!(count.trim() == set.samples.to_string(), "chdb has {} samples", count.trim());
        Ok(())
    }

    pub(crate) fn bytes_per_row(&mut self) -> Result<f64> {
        let text = self.text(
            "SELECT sum(bytes_on_disk) / sum(rows) FROM system.parts \
             WHERE active AND database = 'bench' AND table = 'samples'",
        )?;
        Ok(text.trim().parse()?)
    }

    /// The best time of a merge without a tree, milliseconds.
    pub(crate) fn merge(&mut self, merge: &Merge, set: &DataSet) -> Result<f64> {
        let question = merge.question;
        let (from, to) = (question.range.from_ms, question.range.to_ms);
        let of_service = question.service.map(|number| {
            // The first pod of the first service is the first series.
            let label = if question.by_label { " AND series != 0" } else { "" };
            format!(" AND service = '{}'{label}", set.services[number].name)
        });
        let chosen = format!(
            "FROM bench.samples WHERE project = 1 AND type = 'cpu'{} \
             AND ts >= fromUnixTimestamp64Milli({from}) AND ts < fromUnixTimestamp64Milli({to})",
            of_service.unwrap_or_default(),
        );
        let sums = self.text(&format!("SELECT count(), sum(value) {chosen}"))?;
        let truth = format!("{}\t{}", merge.samples, merge.total);
        ensure!(sums.trim() == truth, "chdb answers {}, not {truth}", sums.trim());
        self.best(&format!("SELECT stack, sum(value) {chosen} GROUP BY stack"))
    }

    /// The best time of the time line, milliseconds.
    pub(crate) fn timeline(&mut self, set: &DataSet) -> Result<f64> {
        let step_ms = questions::STEP_MS;
        self.best(&format!(
            "SELECT series, intDiv(toUnixTimestamp64Milli(ts), {step_ms}) AS step, sum(value) \
             FROM bench.samples WHERE project = 1 AND type = 'cpu' AND service = '{}' \
             GROUP BY series, step",
            set.services[0].name
        ))
    }

    fn best(&mut self, sql: &str) -> Result<f64> {
        let answer = self.ask(&format!("{sql} SETTINGS {THREADS}"), "RowBinary", RUNS)?;
        Ok(Times::new(answer.ms).best())
    }
}

fn insert(path: &Path) -> String {
    format!(
        "INSERT INTO bench.samples SELECT 1, ['cpu', 'off_cpu', 'alloc_space'][type + 1], \
         concat('service-', toString(service)), series, fromUnixTimestamp64Milli(ts), stack, value \
         FROM file('{}', 'RowBinary', \
         'type UInt8, service UInt16, series UInt32, ts Int64, stack UInt32, value Int64') \
         SETTINGS {THREADS}",
        path.display()
    )
}

fn write_rows(path: &Path, set: &DataSet, rows: impl Iterator<Item = Row>) -> Result<()> {
    let mut file = BufWriter::new(std::fs::File::create(path)?);
    for row in rows {
        let series = &set.series[row.series as usize];
        let stack = set.services[series.service].first_stack + row.stack;
        file.write_all(&[series.kind as u8])?;
        file.write_all(&u16::try_from(series.service)?.to_le_bytes())?;
        file.write_all(&row.series.to_le_bytes())?;
        file.write_all(&row.time_ms.to_le_bytes())?;
        file.write_all(&stack.to_le_bytes())?;
        file.write_all(&row.value.to_le_bytes())?;
    }
    Ok(file.flush()?)
}
