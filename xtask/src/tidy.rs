//! The house rules that no compiler checks. A rule has a reason, stated where it is broken; exceptions are
//! listed here with theirs.

use crate::workspace::{files, root};
use anyhow::{Context as _, Result, bail};
use std::path::Path;

/// Lines above which a file needs a reason to be one file.
const LINES_MAX: usize = 600;

/// Files that are longer, each with the reason. The list may only shrink.
const LONG_FILES: [(&str, &str); 0] = [];

/// Names that say nothing about what is inside.
const EMPTY_NAMES: [&str; 5] = ["util", "utils", "common", "helpers", "misc"];

/// Words that the glossary of CONTRIBUTING.md replaces.
const WORDS: [(&str, &str); 4] = [
    ("symbolicat", "symbolize"),
    ("callchain", "stack"),
    ("symbol file", "debug file"),
    ("DSO", "mapping"),
];

/// Half-written work, in halves so that this file does not report itself.
const UNFINISHED: [[&str; 2]; 4] =
    [["TO", "DO"], ["FIX", "ME"], ["todo", "!("], ["unimplemented", "!("]];

/// Hosts of package registries: tools know theirs, and a mirror must stay possible.
const HOSTS: [[&str; 2]; 6] = [
    ["crates", ".io/"],
    ["registry.npmjs", ".org"],
    ["pypi", ".org"],
    ["proxy.golang", ".org"],
    ["deb.debian", ".org"],
    ["repo1.maven", ".org"],
];

/// Attributes that hide a test's result.
const HIDDEN_TESTS: [[&str; 2]; 2] = [["#[ign", "ore"], ["#[should", "_panic"]];

/// Walks every file under version control.
pub(crate) fn tidy() -> Result<()> {
    let mut faults = Vec::new();
    for file in files()? {
        let name = file.to_str().context("a file name that is not UTF-8")?;
        if is_foreign(name) {
            continue;
        }
        let bytes = std::fs::read(root().join(&file)).with_context(|| format!("read {name}"))?;
        let Ok(text) = String::from_utf8(bytes) else { continue };
        faults.extend(check(name, &text));
    }
    if !faults.is_empty() {
        bail!("{} faults:\n  {}", faults.len(), faults.join("\n  "));
    }
    Ok(())
}

/// Written by tools: their shape is not ours.
fn is_foreign(name: &str) -> bool {
    name.ends_with(".lock")
        || name.ends_with("package-lock.json")
        || name.starts_with("collector/ui/dist/")
        || name.starts_with("tests/fuzz/corpus/")
        || name.starts_with("LICENSE")
}

/// Every fault of one file, as `file:line: what`.
fn check(name: &str, text: &str) -> Vec<String> {
    let mut faults = Vec::new();
    let mut fault = |line: usize, what: String| faults.push(format!("{name}:{line}: {what}"));
    for part in Path::new(name).components() {
        let part = part.as_os_str().to_string_lossy();
        let stem = part.split('.').next().unwrap_or_default();
        if EMPTY_NAMES.contains(&stem) {
            fault(1, format!("`{stem}` says nothing: name the noun that is inside"));
        }
    }
    for (index, line) in text.lines().enumerate() {
        let number = index + 1;
        if line.ends_with([' ', '\t']) {
            fault(number, "white space at the end of the line".to_owned());
        }
        for found in forbidden(name, line) {
            fault(number, found);
        }
    }
    if !text.is_empty() && !text.ends_with('\n') {
        fault(text.lines().count(), "no newline at the end".to_owned());
    }
    if name.ends_with(".rs") {
        if !name.ends_with("/tests.rs") && !opens_with_docs(text) {
            fault(
                1,
                "a module opens with `//!`: what it is responsible for, and what not".to_owned(),
            );
        }
        let lines = text.lines().count();
        let excused =
            LONG_FILES.iter().any(|(file, _)| *file == name) || name.contains("/generated/");
        if lines > LINES_MAX && !excused {
            fault(
                lines,
                format!("longer than {LINES_MAX} lines: split it, or give the reason in tidy.rs"),
            );
        }
    }
    faults
}

/// Inner attributes may stand above the documentation (`#![no_std]`); generated files say who made them.
fn opens_with_docs(text: &str) -> bool {
    let first = text.lines().find(|line| !line.starts_with("#!["));
    first.is_some_and(|line| line.starts_with("//!") || line.starts_with("// @generated"))
}

fn forbidden(name: &str, line: &str) -> Vec<String> {
    let own = name == "xtask/src/tidy.rs";
    let mut found = Vec::new();
    for halves in UNFINISHED.iter().chain(&HIDDEN_TESTS) {
        let word = halves.concat();
        if has_word(line, &word) {
            found.push(format!("`{word}`: finish it, or write down why it stays"));
        }
    }
    for halves in &HOSTS {
        let host = halves.concat();
        if line.contains(&host) {
            found.push(format!("`{host}`: name the package, not the registry's host"));
        }
    }
    for (word, instead) in WORDS {
        if !own && has_word(line, word) {
            found.push(format!("`{word}`: the word is `{instead}`"));
        }
    }
    found
}

/// True if `word` occurs and no letter stands before it.
fn has_word(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + word.len()..].chars().next();
        let capitals = word.chars().all(|c| c.is_ascii_uppercase());
        let inside = before.is_some_and(char::is_alphabetic)
            || capitals && after.is_some_and(char::is_alphabetic);
        !inside
    })
}

#[cfg(test)]
mod tests {
    use super::check as faults;

    #[test]
    fn faults_are_found() {
        let check = |name: &str, text: &str, count: usize| {
            let found = faults(name, text);
            assert_eq!(found.len(), count, "{name}: {found:?}");
        };
        check("agent/src/clock.rs", "//! Clocks.\nfn now() {}\n", 0);
        check("agent/src/clock.rs", "fn now() {}\n", 1);
        check("agent-ebpf/src/lib.rs", "#![no_std]\n//! The ABI.\n", 0);
        check("agent/src/util.rs", "//! Things.\n", 1);
        check("agent/src/utilization.rs", "//! Share of the time.\n", 0);
        check("README.md", "text \n", 1);
        check("README.md", "text", 1);
        check("README.md", &["TO", "DO: more\n"].concat(), 1);
        check("README.md", &["symbol", "icated\n"].concat(), 1);
        check("README.md", "ADSORPTION and adSO\n", 0);
        check("README.md", &["https://pypi", ".org/simple\n"].concat(), 1);
        check("agent/src/long.rs", &format!("//! Long.\n{}", "\n".repeat(600)), 1);
    }
}
