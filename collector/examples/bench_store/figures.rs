//! Figures and how they are printed.

use anyhow::Result;
use std::io::Write as _;

/// Prints figures as they are measured.
#[derive(Clone, Copy)]
pub(crate) struct Report {
    /// One JSON object a line instead of a table.
    pub(crate) json: bool,
}

impl Report {
    pub(crate) fn say(&self, figure: &str, value: f64, unit: &str) -> Result<()> {
        self.beside(figure, value, unit, None)
    }

    /// With the same of chdb; the ratio is chdb's over ours.
    pub(crate) fn beside(
        &self,
        figure: &str,
        value: f64,
        unit: &str,
        peer: Option<f64>,
    ) -> Result<()> {
        let mut out = std::io::stdout().lock();
        if self.json {
            let mut line = serde_json::json!({ "figure": figure, "value": value, "unit": unit });
            if let Some(peer) = peer {
                line["peer"] = peer.into();
                line["ratio"] = (peer / value).into();
            }
            writeln!(out, "{line}")?;
        } else {
            let peer = peer.map(|peer| format!("   chdb {peer:.2}, ratio {:.1}", peer / value));
            let digits = if value.abs() < 1_000.0 { 2 } else { 0 };
            let peer = peer.unwrap_or_default();
            writeln!(out, "{figure:<36} {value:>14.digits$} {unit}{peer}")?;
        }
        Ok(())
    }
}

/// What is going on goes to standard error.
pub(crate) fn progress(what: &str) {
    // Nobody is left to tell if standard error is closed.
    drop(writeln!(std::io::stderr(), "bench store: {what}"));
}

/// Times of one thing, milliseconds.
pub(crate) struct Times(Vec<f64>);

impl Times {
    pub(crate) fn new(mut ms: Vec<f64>) -> Self {
        ms.sort_by(f64::total_cmp);
        Self(ms)
    }

    pub(crate) fn best(&self) -> f64 {
        self.0.first().copied().unwrap_or(f64::NAN)
    }

    pub(crate) fn quantile(&self, percent: usize) -> f64 {
        let at = (self.0.len() * percent / 100).min(self.0.len().saturating_sub(1));
        self.0.get(at).copied().unwrap_or(f64::NAN)
    }
}
