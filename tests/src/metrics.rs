//! The agent's own metrics, asked for over HTTP.

use crate::{free_port, http};
use std::net::SocketAddr;

/// Where an agent under test serves its metrics.
#[derive(Clone, Copy, Debug)]
pub struct Metrics {
    address: SocketAddr,
}

impl Metrics {
    /// A loopback port that is free now.
    #[must_use]
    pub fn somewhere() -> Self {
        Self { address: ([127, 0, 0, 1], free_port()).into() }
    }

    /// The agent's arguments that make it serve them.
    #[must_use]
    pub fn arguments(&self) -> Vec<String> {
        vec!["--metrics".to_owned(), self.address.to_string()]
    }

    /// What it says now.
    ///
    /// # Panics
    /// If it does not answer.
    #[must_use]
    pub fn read(&self) -> Reading {
        let answer = http::get(self.address, "/metrics").expect("the agent serves its metrics");
        assert_eq!(answer.status, 200, "{}", answer.head);
        Reading { text: answer.text() }
    }
}

/// The metrics of one moment.
#[derive(Clone, Debug)]
pub struct Reading {
    text: String,
}

impl Reading {
    /// An upper bound, of those that a histogram has, below which at least this share of its values lie.
    ///
    /// # Panics
    /// If there is no such histogram.
    #[must_use]
    pub fn quantile(&self, name: &str, share: f64) -> f64 {
        let start = format!("vesta_agent_{name}_bucket{{le=\"");
        let bucket = |line: &str| -> Option<(f64, f64)> {
            let (bound, count) = line.strip_prefix(&start)?.split_once("\"} ")?;
            let bound = if bound == "+Inf" { f64::INFINITY } else { bound.parse().ok()? };
            Some((bound, count.parse().ok()?))
        };
        let buckets: Vec<(f64, f64)> = self.text.lines().filter_map(bucket).collect();
        let wanted = self.get(&format!("{name}_count")) * share;
        let found = buckets.iter().find(|(_, count)| *count >= wanted);
        found.unwrap_or_else(|| panic!("no histogram {name}")).0
    }

    /// A value by its name without `vesta_agent_`; over all labels where it has some.
    ///
    /// # Panics
    /// If there is none: a test must not believe a zero that nobody said.
    #[must_use]
    pub fn get(&self, name: &str) -> f64 {
        let wanted = format!("vesta_agent_{name}");
        let value = |line: &str| -> Option<f64> {
            let (series, value) = line.rsplit_once(' ')?;
            (series.split('{').next() == Some(&wanted)).then(|| value.parse().ok())?
        };
        let values: Vec<f64> = self.text.lines().filter_map(value).collect();
        assert!(!values.is_empty(), "no metric {wanted} in:\n{}", self.text);
        values.iter().sum()
    }
}
