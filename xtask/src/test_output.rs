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

/// What a runner's output is made of.
#[derive(Debug, Default)]
struct Reader {
    counts: Counts,
    /// The test whose captured output is being read.
    test: String,
    in_successes: bool,
    /// Tests of this runner that said so; it counts them as passed.
    skips: u64,
}

/// Copies the output of a runner, without the captured output of passed tests, and counts.
pub(crate) fn read(output: impl BufRead, mut shown: impl Write) -> std::io::Result<Counts> {
    let mut reader = Reader::default();
    for line in output.split(b'\n') {
        let line = line?;
        let line = String::from_utf8_lossy(&line);
        if let Some(text) = reader.line(&line) {
            writeln!(shown, "{text}")?;
        }
    }
    shown.flush()?;
    Ok(reader.counts)
}

impl Reader {
    /// Takes one line and gives the line to show for it, if any.
    fn line(&mut self, line: &str) -> Option<String> {
        if let Some(result) = line.strip_prefix("test result: ") {
            self.in_successes = false;
            let skips = std::mem::take(&mut self.skips);
            self.counts.passed += number_before(result, " passed").saturating_sub(skips);
            self.counts.failed += number_before(result, " failed");
            self.counts.skipped += skips + number_before(result, " ignored");
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
        self.node(line);
        Some(line.to_owned())
    }

    /// A line of the captured output of a passed test.
    fn success(&mut self, line: &str) -> Option<String> {
        if let Some(test) = line.strip_prefix("---- ").and_then(|rest| rest.split(' ').next()) {
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

    /// The closing lines of Node's runner, with either of its reporters.
    fn node(&mut self, line: &str) {
        let Some(rest) = line.strip_prefix("# ").or_else(|| line.strip_prefix("\u{2139} ")) else {
            return;
        };
        let Some((word, number)) = rest.split_once(' ') else { return };
        let Ok(number) = number.parse::<u64>() else { return };
        match word {
            "pass" => self.counts.passed += number,
            "fail" => self.counts.failed += number,
            "skipped" => self.counts.skipped += number,
            _ => {}
        }
    }
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
        let check = |output: &str, passed: u64, failed: u64, skipped: u64, shown: &str| {
            let mut text = Vec::new();
            let counts = read(output.as_bytes(), &mut text).expect("memory does not fail");
            assert_eq!(counts, Counts { passed, failed, skipped }, "{output}");
            assert_eq!(String::from_utf8(text).expect("text"), shown, "{output}");
        };
        check(
            "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured\n",
            3,
            0,
            1,
            "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured\n",
        );
        check(
            "test a ... ok\n\nsuccesses:\n\n---- on_cpu::a stdout ----\nnoise\nskipped: not root\n\nsuccesses:\n    on_cpu::a\n\ntest result: ok. 2 passed; 0 failed; 0 ignored\n",
            1,
            0,
            1,
            "test a ... ok\n\nskipped on_cpu::a: not root\ntest result: ok. 2 passed; 0 failed; 0 ignored\n",
        );
        check(
            "failures:\n---- b stdout ----\nskipped: no\ntest result: FAILED. 0 passed; 1 failed;\n",
            0,
            1,
            0,
            "failures:\n---- b stdout ----\nskipped: no\ntest result: FAILED. 0 passed; 1 failed;\n",
        );
        check("# pass 7\n# fail 0\n# skipped 1\n", 7, 0, 1, "# pass 7\n# fail 0\n# skipped 1\n");
        check("\u{2139} pass 7\n\u{2139} fail 2\n", 7, 2, 0, "\u{2139} pass 7\n\u{2139} fail 2\n");
    }
}
