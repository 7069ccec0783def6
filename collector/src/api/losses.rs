//! What is missing from an answer: samples whose stack was cut, by the markers in them, and samples that
//! agents lost, by their accounts. Told beside the samples, never scaled in.

use super::App;
use crate::query::{FunctionRow, LEDGER_TYPE, Selection, Told};
use crate::store::StoreError;
use serde::Serialize;
use std::sync::Arc;

/// Figures of accounts that are kept: a handful, and a reason to drop each.
const FIGURES_MAX: usize = 64;

/// What of a selection was lost or cut, each by reason, largest first.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Losses {
    /// Of the selection, in the type's unit.
    cut: Vec<Cut>,
    /// Of its hosts, whatever else is selected: nobody knows whose samples they would have been.
    lost: Vec<Lost>,
    /// Samples that arrived from these hosts.
    sent: i64,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct Cut {
    reason: String,
    total: i64,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct Lost {
    reason: String,
    samples: i64,
}

/// The accounts of the agents of the selected hosts.
pub(super) async fn accounts(
    app: &App,
    selection: &Selection,
) -> Result<Told<Vec<FunctionRow>>, StoreError> {
    if selection.profile_type != "cpu" {
        return Ok(Told::default()); // accounts are of the agents' clocks
    }
    let mut hosts = selection.clone();
    LEDGER_TYPE.clone_into(&mut hosts.profile_type);
    hosts.matchers.retain(|matcher| matcher.name == "host");
    app.store.functions(hosts, FIGURES_MAX).await
}

impl Losses {
    pub(super) fn new(cut: &[(Arc<str>, i64)], accounts: &[FunctionRow]) -> Self {
        let mut losses = Self::default();
        for (marker, total) in cut {
            losses.cut.push(Cut { reason: of_marker(marker), total: *total });
        }
        for FunctionRow { function, self_value: samples, .. } in accounts {
            match &*function.name {
                "sent" => losses.sent = *samples,
                figure => losses.lost.push(Lost { reason: of_figure(figure), samples: *samples }),
            }
        }
        losses
    }
}

/// `[unwind: stack unreadable]` is the frame, `stack unreadable` the reason.
fn of_marker(marker: &str) -> String {
    let inside = marker.trim_start_matches('[').trim_end_matches(']');
    inside.strip_prefix("unwind: ").unwrap_or(inside).to_owned()
}

/// What a figure of the account means to who reads it.
fn of_figure(figure: &str) -> String {
    match figure {
        "missed" => "clock ticks missed".to_owned(),
        "lost_in_ring" => "ring buffer full".to_owned(),
        "malformed" => "not decodable".to_owned(),
        "dropped.naming" => "naming too slow".to_owned(),
        other => {
            let what = other.strip_prefix("dropped.").unwrap_or(other);
            format!("too many {what} in a window")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::query::FunctionInfo;
    use proto::FrameKind;

    #[test]
    fn figures_become_reasons() {
        let row = |(name, self_value): (&str, i64)| {
            let empty = Arc::<str>::from("");
            let function = FunctionInfo {
                name: Arc::from(name),
                file: Arc::clone(&empty),
                line: 0,
                kind: FrameKind::Marker,
                module: empty,
                named: true,
            };
            FunctionRow { function, self_value, total: self_value }
        };
        let rows = [("sent", 900), ("missed", 7), ("dropped.stacks", 2), ("lost_in_ring", 1)];
        let cut = [(Arc::from("[unwind: no unwind info]"), 50), (Arc::from("[truncated]"), 3)];
        let losses = Losses::new(&cut, &rows.map(row));
        assert_eq!(losses.sent, 900);
        let lost = losses.lost.iter().map(|lost| (&*lost.reason, lost.samples));
        let expected = [
            ("clock ticks missed", 7),
            ("too many stacks in a window", 2),
            ("ring buffer full", 1),
        ];
        assert_eq!(lost.collect::<Vec<_>>(), expected);
        let cut = losses.cut.iter().map(|cut| (&*cut.reason, cut.total));
        assert_eq!(cut.collect::<Vec<_>>(), [("no unwind info", 50), ("truncated", 3)]);
    }
}
