//! What the guests said, as a table for a person and as JSON for a program.

use super::branch::Branch;
use super::cache::Kernel;
use super::machine::Run;
use crate::test_output::Counts;
use serde_json::{Map, Value, json};

/// A line of a guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Check {
    pub(crate) form: String,
    pub(crate) name: String,
    pub(crate) verdict: String,
    pub(crate) fields: Vec<(String, String)>,
}

impl Check {
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.strip_prefix("kernel_check\t")?.split('\t').map(str::to_owned);
        let (form, name, verdict) = (words.next()?, words.next()?, words.next()?);
        let pair = |word: String| {
            let (key, value) = word.split_once('=')?;
            Some((key.to_owned(), value.to_owned()))
        };
        Some(Self { form, name, verdict, fields: words.filter_map(pair).collect() })
    }

    pub(crate) fn field(&self, key: &str) -> Option<&str> {
        self.fields.iter().find(|(name, _)| name == key).map(|(_, value)| value.as_str())
    }

    /// True unless it failed, or its line was garbled.
    fn is_good(&self) -> bool {
        self.verdict == "passed" || self.verdict == "absent"
    }

    fn number(&self, key: &str) -> u64 {
        self.field(key).and_then(|value| value.parse().ok()).unwrap_or(0)
    }

    /// The check in one line, for a person.
    fn text(&self) -> String {
        let fields = self.fields.iter().map(|(key, value)| format!(" {key}={value}"));
        format!("{} {} {}:{}", self.form, self.name, self.verdict, fields.collect::<String>())
    }
}

/// A branch, and what became of it.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) branch: Branch,
    pub(crate) outcome: Outcome,
}

/// What became of a branch.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// There is no such kernel here.
    NotHad { reason: String },
    /// It was booted.
    Ran { kernel: Kernel, seconds: f64, checks: Vec<Check>, faults: Vec<String> },
}

impl Row {
    /// Judges a run: every check passed, and the last word was said.
    pub(crate) fn ran(branch: Branch, kernel: Kernel, run: &Run) -> Self {
        let checks: Vec<Check> = run.console.lines().filter_map(Check::parse).collect();
        let mut faults: Vec<String> =
            checks.iter().filter(|check| !check.is_good()).map(Check::text).collect();
        let is_whole = checks.last().is_some_and(|check| check.name == "run");
        if !is_whole {
            let how = if run.timed_out { "it did not end" } else { "it ended early" };
            let lines: Vec<&str> = run.console.lines().collect();
            let last = lines[lines.len().saturating_sub(CONSOLE_LINES)..].join("\n  ");
            faults.push(format!("{how}; its last words:\n  {last}"));
        }
        let seconds = run.elapsed.as_secs_f64();
        Self { branch, outcome: Outcome::Ran { kernel, seconds, checks, faults } }
    }

    /// Its checks by result; a kernel that was not had is one skipped test.
    pub(crate) fn counts(&self) -> Counts {
        match &self.outcome {
            Outcome::NotHad { .. } => Counts { skipped: 1, ..Counts::default() },
            Outcome::Ran { checks, faults, .. } => {
                let passed = checks.iter().filter(|check| check.is_good()).count() as u64;
                Counts { passed, failed: faults.len() as u64, skipped: 0 }
            }
        }
    }

    /// What is wrong, for a person.
    pub(crate) fn faults(&self) -> Vec<String> {
        match &self.outcome {
            Outcome::NotHad { .. } => Vec::new(),
            Outcome::Ran { faults, .. } => {
                faults.iter().map(|fault| format!("kernel {}: {fault}", self.branch)).collect()
            }
        }
    }

    /// The lines of the table: one for each form of the programs.
    pub(crate) fn lines(&self) -> Vec<String> {
        match &self.outcome {
            Outcome::NotHad { reason } => vec![format!("{}\tnot had: {reason}", self.branch)],
            Outcome::Ran { kernel, seconds, checks, faults } => {
                let version = kernel.package.version.as_str();
                let verdict = if faults.is_empty() { "passed" } else { "FAILED" };
                let loads = checks.iter().filter(|check| check.name == "load");
                loads
                    .map(|load| form_line(version, load, checks, *seconds, verdict))
                    .chain(checks.is_empty().then(|| format!("{version}\t{verdict}")))
                    .collect()
            }
        }
    }

    fn json(&self) -> Value {
        match &self.outcome {
            Outcome::NotHad { reason } => {
                json!({ "branch": self.branch.to_string(), "ran": false, "reason": reason })
            }
            Outcome::Ran { kernel, seconds, checks, faults } => json!({
                "branch": self.branch.to_string(),
                "package": kernel.package.name,
                "package_version": kernel.package.version,
                "package_sha256": kernel.package.sha256,
                "ran": true,
                "passed": faults.is_empty(),
                "seconds": (seconds * 10.0).round() / 10.0,
                "faults": faults,
                "checks": checks.iter().map(check_json).collect::<Vec<_>>(),
            }),
        }
    }
}

/// Lines of the console that are shown where a guest ended early.
const CONSOLE_LINES: usize = 30;

/// Headings of [`Row::lines`].
pub(crate) const HEADINGS: &str = "kernel\tform\tinstructions\tload ms\tregisters\tstacks complete\tdeepest\t\
     new processes\tmissed ticks\tleft behind\tseconds\tverdict";

fn form_line(version: &str, load: &Check, checks: &[Check], seconds: f64, verdict: &str) -> String {
    let form = load.form.as_str();
    if load.verdict == "absent" {
        return format!("{version}\t{form}\tthe kernel has none");
    }
    let of_form = || checks.iter().filter(|check| check.form == form);
    let named = |name: &'static str| of_form().filter(move |check| check.name == name);
    let targets = || of_form().filter(|check| check.field("deepest").is_some());
    let sum = |key: &str| targets().map(|check| check.number(key)).sum::<u64>();
    let deepest = targets().map(|check| check.number("deepest")).max().unwrap_or(0);
    let new = named("stacks_of_new_processes").next();
    let new = new.map_or("-".to_owned(), |check| {
        format!("{} of {}", check.number("complete"), check.number("samples"))
    });
    let ledger = named("engine_ledger").next();
    let missed = ledger.map_or("-".to_owned(), |check| {
        format!("{} of {}", check.number("missed"), check.number("ticks"))
    });
    let left: u64 =
        named("nothing_left").map(|check| check.number("programs") + check.number("maps")).sum();
    format!(
        "{version}\t{form}\t{}\t{}\t{}\t{} of {}\t{deepest}\t{new}\t{missed}\t{left}\t{seconds:.0}\t{verdict}",
        load.field("instructions").unwrap_or("-"),
        load.field("ms").unwrap_or("-"),
        load.field("registers").unwrap_or("-"),
        sum("complete"),
        sum("samples"),
    )
}

fn check_json(check: &Check) -> Value {
    let mut object = Map::new();
    for (key, value) in [("form", &check.form), ("check", &check.name), ("verdict", &check.verdict)]
    {
        object.insert(key.to_owned(), Value::from(value.as_str()));
    }
    for (key, value) in &check.fields {
        let number = value.parse::<u64>().map(Value::from);
        object.insert(key.clone(), number.unwrap_or_else(|_| Value::from(value.as_str())));
    }
    Value::Object(object)
}

/// All rows as an array, one kernel a line.
pub(crate) fn json(rows: &[Row]) -> String {
    let rows: Vec<String> = rows.iter().map(|row| row.json().to_string()).collect();
    format!("[\n{}\n]\n", rows.join(",\n"))
}

#[cfg(test)]
mod tests {
    use super::{Outcome, Row, json};
    use crate::kernels::branch::Branch;
    use crate::kernels::cache::Kernel;
    use crate::kernels::machine::Run;
    use crate::setup::PackageVersion;
    use crate::test_output::Counts;
    use std::time::Duration;

    fn row(console: &str) -> Row {
        let package = PackageVersion {
            name: "linux-image".to_owned(),
            version: "6.1.192-3".to_owned(),
            sha256: "0".repeat(64),
        };
        let kernel = Kernel { package, image: "/vmlinuz".into(), module: None };
        let run =
            Run { console: console.to_owned(), elapsed: Duration::from_secs(7), timed_out: false };
        Row::ran(Branch::Series(6, 1), kernel, &run)
    }

    #[test]
    fn a_run_is_judged_by_its_checks_and_its_end() {
        let check = |console: &str, passed: u64, failed: u64, fault: &str| {
            let row = row(console);
            assert_eq!(row.counts(), Counts { passed, failed, skipped: 0 }, "{console}");
            let faults = row.faults().join("\n");
            assert!(faults.contains(fault) && fault.is_empty() == faults.is_empty(), "{faults}");
        };
        let load = "kernel_check\tbpf_loop\tload\tpassed\tms=8\n";
        let end = "kernel_check\t-\trun\tpassed\n";
        check(&format!("noise\n{load}{end}"), 2, 0, "");
        check(load, 1, 1, "ended early");
        check("panic: no init\n", 0, 1, "panic: no init");
        check(&format!("{}{end}", load.replace("passed", "failed")), 1, 1, "load failed: ms=8");
        check(&format!("{}{end}", load.replace("passed", "absent")), 2, 0, "");
        check(&format!("{}{end}", load.replace("passed", "p\u{fffd}ssed")), 1, 1, "load");
    }

    #[test]
    fn one_kernel_is_one_line_of_json() {
        let not_had = Outcome::NotHad { reason: "no \"mirror\"".to_owned() };
        let rows = [
            row("kernel_check\t-\trun\tpassed\tms=8\tx=y\n"),
            Row { branch: Branch::Newest, outcome: not_had },
        ];
        let text = json(&rows);
        assert_eq!(text.lines().count(), 4);
        let value: serde_json::Value = serde_json::from_str(&text).expect("it is JSON");
        assert_eq!(value[0]["checks"][0]["ms"], 8);
        assert_eq!(value[1]["reason"], "no \"mirror\"");
        // The form that .ci/run looks for.
        let line = text.lines().nth(1).expect("a line");
        assert!(line.contains("\"branch\":\"6.1\",") && line.contains("\"ran\":true"), "{line}");
    }
}
