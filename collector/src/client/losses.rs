//! What is missing from an answer, as lines for stderr.

use super::ClientError;
use super::quantity::{harmless, percent};
use serde::Deserialize;

#[derive(Deserialize)]
struct Answer {
    total: i64,
    /// A collector of an earlier version says nothing.
    #[serde(default)]
    losses: Losses,
}

#[derive(Default, Deserialize)]
struct Losses {
    cut: Vec<Cut>,
    lost: Vec<Lost>,
    sent: i64,
}

#[derive(Deserialize)]
struct Cut {
    reason: String,
    total: i64,
}

#[derive(Deserialize)]
struct Lost {
    reason: String,
    samples: i64,
}

#[derive(Deserialize)]
struct Warned {
    #[serde(default)]
    warnings: Vec<String>,
}

/// What the collector says that its answer leaves out.
pub(super) fn warnings(body: &[u8]) -> Result<Vec<String>, ClientError> {
    let Warned { warnings } = serde_json::from_slice(body)?;
    Ok(warnings.iter().map(|warning| harmless(warning)).collect())
}

/// How much was cut or lost, and why; `None` where nothing was.
pub(super) fn line(body: &[u8]) -> Result<Option<String>, ClientError> {
    let Answer { total, losses: Losses { cut, lost, sent } } = serde_json::from_slice(body)?;
    let cut: Vec<_> = cut.iter().map(|cut| (&*cut.reason, cut.total)).collect();
    let lost: Vec<_> = lost.iter().map(|lost| (&*lost.reason, lost.samples)).collect();
    let owed = lost.iter().fold(sent, |sum, (_, samples)| sum.saturating_add(*samples));
    let parts = [part("cut", &cut, total), part("lost on these hosts", &lost, owed)];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    Ok((!parts.is_empty()).then(|| parts.join("; ")))
}

fn part(what: &str, reasons: &[(&str, i64)], whole: i64) -> Option<String> {
    let sum = reasons.iter().fold(0_i64, |sum, (_, value)| sum.saturating_add(*value));
    let reason = |&(reason, value): &(&str, i64)| {
        format!("{} {:.2} %", harmless(reason), percent(value, whole))
    };
    let reasons: Vec<String> = reasons.iter().map(reason).collect();
    let share = percent(sum, whole);
    (sum > 0).then(|| format!("{share:.2} % of samples {what} ({})", reasons.join(", ")))
}
