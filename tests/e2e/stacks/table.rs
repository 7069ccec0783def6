//! The table of all cases: each run leaves a row, all rows together are target/e2e/stacks/stacks.md. The rows of
//! README.md are those of the run that `VESTA_BLESS` was set for.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::process::Command;
use tests::binary::{repository, scratch};

/// Between these two lines of README.md stands the table.
const BEGIN: &str = "<!-- stacks: VESTA_BLESS=1 cargo xtask test stacks -->";
const END: &str = "<!-- end of stacks -->";

/// One case as it was seen.
#[derive(Serialize, Deserialize)]
pub(super) struct Row {
    pub(super) name: String,
    pub(super) what: String,
    pub(super) samples: usize,
    /// Share of the stacks that reach their root under their true callers.
    pub(super) complete: f64,
    /// Share of the frames with their true name.
    pub(super) named: f64,
    /// User frames, the mean.
    pub(super) depth: f64,
    /// The same by somebody else.
    pub(super) opinion: String,
}

impl Row {
    /// One line for a person.
    pub(super) fn text(&self) -> String {
        let Self { name, samples, complete, named, depth, opinion, .. } = self;
        let (complete, named) = (complete * 100.0, named * 100.0);
        let opinion = if opinion.is_empty() { "-" } else { opinion };
        format!(
            "{name}: {samples} samples, {complete:.2} % complete, {named:.2} % named, depth {depth:.2}, {opinion}"
        )
    }

    fn markdown(&self) -> String {
        let Self { what, samples, complete, named, depth, opinion, .. } = self;
        let (complete, named) = (complete * 100.0, named * 100.0);
        format!("| {what} | {samples} | {complete:.2} | {named:.2} | {depth:.2} | {opinion} |\n")
    }
}

fn folder() -> PathBuf {
    scratch("stacks")
}

/// Keeps a row.
pub(super) fn write(row: &Row) {
    let text = serde_json::to_string(row).expect("a row is text and numbers");
    let file = folder().join(format!("{}.json", row.name));
    std::fs::write(file, text).expect("the target folder can be written");
}

/// Names and words of all rows, in the order of the table.
fn all() -> impl Iterator<Item = (&'static str, &'static str)> {
    let cases = super::kinds::all().map(|case| (case.name, case.what));
    cases.chain(super::foreign::FOREIGN.iter().map(|program| (program.name, program.what)))
}

/// Writes the table of all rows that there are.
pub(super) fn assemble() {
    let row = |(name, _): (&str, &str)| {
        let text = std::fs::read_to_string(folder().join(format!("{name}.json"))).ok()?;
        serde_json::from_str::<Row>(&text).ok()
    };
    let rows: String = all().filter_map(row).map(|row| row.markdown()).collect();
    let table = format!(
        "| workload | samples | complete % | named % | depth | beside |\n|---|---|---|---|---|---|\n{rows}"
    );
    std::fs::write(folder().join("stacks.md"), &table).expect("the target folder can be written");
    if std::env::var_os("VESTA_BLESS").is_some() {
        bless(&table);
    }
}

/// Puts the table into README.md, with its day and its kernel.
fn bless(table: &str) {
    let said = |program: &str, argument: &str| {
        let output = Command::new(program).arg(argument).output().expect("a tool of every host");
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    };
    let (day, kernel) = (said("date", "+%Y-%m-%d"), said("uname", "-r"));
    let text = std::fs::read_to_string(readme()).expect("README.md");
    let (before, rest) = text.split_once(BEGIN).expect("README.md has a place for the table");
    let (_, after) = rest.split_once(END).expect("README.md says where the table ends");
    let text = format!("{before}{BEGIN}\nTaken {day} on Linux {kernel}.\n\n{table}{END}{after}");
    std::fs::write(readme(), text).expect("README.md can be written");
}

fn readme() -> PathBuf {
    repository().join("README.md")
}

/// The table of README.md has a row for every case: one that is new is blessed before it lands.
pub(super) fn check_readme() {
    let text = std::fs::read_to_string(readme()).expect("README.md");
    let missing: Vec<&str> = all()
        .filter(|(_, what)| !text.contains(&format!("| {what} |")))
        .map(|(name, _)| name)
        .collect();
    assert!(missing.is_empty(), "no row in README.md: {}; cure: {BEGIN}", missing.join(" "));
}
