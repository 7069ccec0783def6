//! The lines that xtask reads: `kernel_check`, form, check, verdict, then `key=value`, separated by tabs.

use agent::bpf::Form;
use std::fmt::Display;
use std::sync::LazyLock;
use std::time::Instant;

/// When the first line was printed.
static START: LazyLock<Instant> = LazyLock::new(Instant::now);

/// How a check ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Passed,
    Failed,
    /// The kernel lacks what this needs, as is known of its version.
    Absent,
}

impl Verdict {
    pub(crate) const fn of(passed: bool) -> Self {
        if passed { Self::Passed } else { Self::Failed }
    }
}

/// Prints what the checks of one form found.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Report {
    form: &'static str,
}

/// One finding: its name and its value.
pub(crate) type Field<'a> = (&'a str, &'a dyn Display);

impl Report {
    /// What belongs to no form.
    pub(crate) const OF_KERNEL: Self = Self { form: "-" };

    pub(crate) const fn of(form: Form) -> Self {
        let form = match form {
            Form::BpfLoop => "bpf_loop",
            Form::TailCalls => "tail_calls",
        };
        Self { form }
    }

    pub(crate) fn line(self, check: &str, verdict: Verdict, fields: &[Field<'_>]) {
        let verdict = match verdict {
            Verdict::Passed => "passed",
            Verdict::Failed => "failed",
            Verdict::Absent => "absent",
        };
        let mut line = format!("kernel_check\t{}\t{check}\t{verdict}", self.form);
        for (key, value) in fields {
            let value = value.to_string().replace(['\t', '\n', '\r'], " ");
            line.extend(["\t", key, "=", &value]);
        }
        let ms = START.elapsed().as_millis();
        println!("{line}\tat_ms={ms}");
    }
}
