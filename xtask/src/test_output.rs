//! Reads what a test runner prints: shows it as it comes, counts passed, failed and skipped.
//!
//! libtest knows no skipped tests. A test that cannot run here prints a line `skipped: <reason>` and
//! returns; the runner is asked to show the output of passed tests, and of that only these lines are
//! shown. Node's runner says `# skip N` itself.

use std::io::{BufRead, Write};
use std::ops::AddAssign;

/// Tests of a run by result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) skipped: u64,
}

impl AddAssign for Counts {
    fn add_assign(&mut self, more: Self) {
        self.passed += more.passed;
        self.failed += more.failed;
        self.skipped += more.skipped;
    }
}

/// What a runner said.
#[derive(Debug, Default)]
pub(crate) struct Said {
    pub(crate) counts: Counts,
    /// Tests that failed, each with the first words of its panic.
    pub(crate) failures: Vec<String>,
}

impl Said {
    /// The failures of a runner that ended in that way: one that failed and names no test did not compile, or died.
    pub(crate) fn failures(self, succeeded: bool, status: &str) -> Vec<String> {
        let mut failures = self.failures;
        if !succeeded && failures.is_empty() {
            failures.push(format!("the runner did not compile or died: {status}"));
        }
        failures
    }
}

/// Characters of a failed test's words that are said again at the end.
const FAILURE_CHARS_MAX: usize = 400;

/// What a runner's output is made of.
#[derive(Debug, Default)]
struct Reader {
    said: Said,
    /// The test whose captured output is being read.
    test: String,
    in_successes: bool,
    /// The next line is the message of a panic that was met.
    at_panic: bool,
    /// Node's runner says its failures once more.
    node_repeats: bool,
    /// Tests of this runner that said so; it counts them as passed.
    skips: u64,
}

/// Copies the output of a runner, without the captured output of passed tests.
pub(crate) fn read(output: impl BufRead, mut shown: impl Write) -> std::io::Result<Said> {
    let mut reader = Reader::default();
    for line in output.split(b'\n') {
        let line = line?;
        let line = String::from_utf8_lossy(&line);
        if let Some(text) = reader.line(&line) {
            writeln!(shown, "{text}")?;
        }
    }
    shown.flush()?;
    Ok(reader.said)
}

impl Reader {
    /// Takes one line and gives the line to show for it, if any.
    fn line(&mut self, line: &str) -> Option<String> {
        if let Some(result) = line.strip_prefix("test result: ") {
            self.in_successes = false;
            let skips = std::mem::take(&mut self.skips);
            self.said.counts.passed += number_before(result, " passed").saturating_sub(skips);
            self.said.counts.failed += number_before(result, " failed");
            self.said.counts.skipped += skips + number_before(result, " ignored");
            return Some(line.to_owned());
        }
        if line == "failures:" {
            self.in_successes = false;
        } else if line == "successes:" {
            self.in_successes = true;
            return None;
        }
        if self.in_successes {
            return self.success(line);
        }
        self.failure(line);
        self.node(line);
        Some(line.to_owned())
    }

    /// A line of the captured output of a failed test, or one between the tests.
    fn failure(&mut self, line: &str) {
        if std::mem::take(&mut self.at_panic)
            && let Some(failure) = self.said.failures.last_mut()
        {
            failure.extend([" "].into_iter().chain([line]));
            *failure = failure.chars().take(FAILURE_CHARS_MAX).collect();
        } else if let Some(test) = captured(line) {
            self.said.failures.push(format!("{test}:"));
        } else if line.starts_with("thread '")
            && let Some((_, place)) =
                line.split_once("' panicked at ").or_else(|| line.split_once(") panicked at "))
            && let Some(failure) = self.said.failures.last_mut()
        {
            failure.extend([" "].into_iter().chain([place]));
            self.at_panic = true;
        }
    }

    /// A line of the captured output of a passed test.
    fn success(&mut self, line: &str) -> Option<String> {
        if let Some(test) = captured(line) {
            test.clone_into(&mut self.test);
            return None;
        }
        if let Some(figure) = line.strip_prefix("figure: ") {
            return Some(format!("figure {}: {figure}", self.test));
        }
        let reason = line.strip_prefix("skipped: ")?;
        self.skips += 1;
        Some(format!("skipped {}: {reason}", self.test))
    }

    /// Failures and the closing lines of Node's runner, with either of its reporters. A test that failed in parts is named
    /// after them.
    fn node(&mut self, line: &str) {
        if line == "\u{2716} failing tests:" {
            self.node_repeats = true;
        }
        if let Some(test) = failed_in_node(line.trim_start()).filter(|_| !self.node_repeats) {
            self.said.failures.push(test.to_owned());
        }
        let Some(rest) = line.strip_prefix("# ").or_else(|| line.strip_prefix("\u{2139} ")) else {
            return;
        };
        let Some((word, number)) = rest.split_once(' ') else { return };
        let Ok(number) = number.parse::<u64>() else { return };
        match word {
            "pass" => self.said.counts.passed += number,
            "fail" => self.said.counts.failed += number,
            "skipped" => self.said.counts.skipped += number,
            _ => {}
        }
    }
}

/// The test whose captured output begins. Names of documentation tests have spaces.
fn captured(line: &str) -> Option<&str> {
    line.strip_prefix("---- ")?.strip_suffix(" stdout ----")
}

/// `not ok 2 - name`, or `✖ name (0.8ms)`.
fn failed_in_node(line: &str) -> Option<&str> {
    let tap = line.strip_prefix("not ok ").and_then(|rest| Some(rest.split_once(" - ")?.1));
    tap.or_else(|| Some(line.strip_prefix("\u{2716} ")?.rsplit_once(" (")?.0))
}

fn number_before(text: &str, word: &str) -> u64 {
    let before = text.split_once(word).map_or("", |(before, _)| before);
    before.rsplit(' ').next().and_then(|number| number.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::{Counts, read};

    #[test]
    fn runners() {
        let check = |output: &str, counts: [u64; 3], failures: &[&str], shown: &str| {
            let mut text = Vec::new();
            let said = read(output.as_bytes(), &mut text).expect("memory does not fail");
            let [passed, failed, skipped] = counts;
            assert_eq!(said.counts, Counts { passed, failed, skipped }, "{output}");
            assert_eq!(said.failures, failures, "{output}");
            assert_eq!(String::from_utf8(text).expect("text"), shown, "{output}");
        };
        // All of it is shown.
        let plain =
            |output: &str, counts, failures: &[&str]| check(output, counts, failures, output);
        plain("test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured\n", [3, 0, 1], &[]);
        check(
            "test a ... ok\n\nsuccesses:\n\n---- on_cpu::a stdout ----\nnoise\n\
             skipped: not root\n\nsuccesses:\n    on_cpu::a\n\n\
             test result: ok. 2 passed; 0 failed; 0 ignored\n",
            [1, 0, 1],
            &[],
            "test a ... ok\n\nskipped on_cpu::a: not root\n\
             test result: ok. 2 passed; 0 failed; 0 ignored\n",
        );
        plain(
            "failures:\n---- b stdout ----\nskipped: no\n\
             test result: FAILED. 0 passed; 1 failed;\n",
            [0, 1, 0],
            &["b:"],
        );
        plain(
            "failures:\n---- src/a.rs - b (line 7) stdout ----\n---- no test\n\
             test result: FAILED. 0 passed; 1 failed;\n",
            [0, 1, 0],
            &["src/a.rs - b (line 7):"],
        );
        plain("# pass 7\n# fail 0\n# skipped 1\n", [7, 0, 1], &[]);
        plain(
            "ok 1 - a\n# Subtest: b\n    not ok 1 - c - d\n      error: 'x'\nnot ok 2 - b\n\
             # pass 1\n# fail 2\n",
            [1, 2, 0],
            &["c - d", "b"],
        );
        plain(
            "\u{2714} a (1.1ms)\n\u{25b6} b\n  \u{2716} c (d) (0.2ms)\n    Error: x\n\n\
             \u{2716} b (0.4ms)\n\u{2139} pass 1\n\u{2139} fail 2\n\n\
             \u{2716} failing tests:\n\ntest at a.mjs:2:98\n\u{2716} c (d) (0.2ms)\n",
            [1, 2, 0],
            &["c (d)", "b"],
        );
    }

    #[test]
    fn a_runner_that_names_no_failed_test_is_told_too() {
        let of = |output: &str, succeeded| {
            let said = read(output.as_bytes(), Vec::new()).expect("memory does not fail");
            said.failures(succeeded, "exit status: 101")
        };
        assert_eq!(of("", true), [""; 0]);
        assert_eq!(of("", false), ["the runner did not compile or died: exit status: 101"]);
        assert_eq!(of("not ok 1 - a\n", false), ["a"]);
    }

    #[test]
    fn failed_tests_are_told_with_their_panic() {
        let output = "failures:\n\n---- a::b stdout ----\nfigure: 7\n\n\
            thread 'a::b' (4711) panicked at tests/a.rs:3:5:\n7 of 8\nmore\n\
            ---- c stdout ----\nthread 'c' panicked at src/c.rs:1:1:\nno\n\n\
            failures:\n    a::b\n    c\n\ntest result: FAILED. 1 passed; 2 failed;\n";
        let said = read(output.as_bytes(), Vec::new()).expect("memory does not fail");
        assert_eq!(said.failures, ["a::b: tests/a.rs:3:5: 7 of 8", "c: src/c.rs:1:1: no"]);
        assert_eq!(said.counts, Counts { passed: 1, failed: 2, skipped: 0 });
    }
}
