//! Sends queued requests over gRPC, one after the other, and decides what a failure means. It never
//! looks into a request and never changes its bytes.

mod client;
mod frame;
mod verdict;

#[cfg(test)]
mod tests;

pub use client::{Client, Compression, EndpointError};

use client::Failure;

use super::queue::{Entry, Queue};
use crate::limits;
use crate::metrics::{ExportMetrics, Status};
use proto::otlp::collector::ExportProfilesServiceResponse;
use std::collections::HashSet;
use std::hash::{BuildHasher as _, Hasher as _};
use std::sync::Arc;
use std::time::Duration;
use verdict::Verdict;

/// How long the sender waits between attempts.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    /// Before the second attempt.
    pub first: Duration,
    /// At most; each wait is twice the one before it.
    pub max: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { first: limits::EXPORT_BACKOFF_FIRST, max: limits::EXPORT_BACKOFF_MAX }
    }
}

/// The sending side of a queue.
#[derive(Debug)]
pub struct Sender {
    client: Client,
    queue: Arc<Queue>,
    metrics: ExportMetrics,
    backoff: Backoff,
    failures: u32,
    said: HashSet<String>,
}

impl Sender {
    /// A sender that has not begun.
    #[must_use]
    pub fn new(
        client: Client,
        queue: Arc<Queue>,
        metrics: ExportMetrics,
        backoff: Backoff,
    ) -> Self {
        Self { client, queue, metrics, backoff, failures: 0, said: HashSet::new() }
    }

    /// Sends until the queue is closed and empty.
    pub async fn run(mut self) {
        while let Some(entry) = self.queue.take().await {
            let Some(wait) = self.send(entry).await else { continue };
            // At the end there is no time to wait: the next attempt comes soon.
            if tokio::time::timeout(wait, self.queue.closed()).await.is_ok() {
                tokio::time::sleep(wait.min(self.backoff.first)).await;
            }
        }
    }

    /// One attempt; answers how long to wait before the next.
    async fn send(&mut self, entry: Entry) -> Option<Duration> {
        let answer = self.client.export(entry.request.bytes.clone()).await;
        let code = |failure: &Failure| failure.status.code();
        let status = answer.as_ref().map_or_else(code, |_| tonic::Code::Ok);
        self.metrics.requests.get_or_create(&Status { status: verdict::name(status) }).inc();
        match answer {
            Ok(response) => {
                self.acknowledged(&entry, &response);
                None
            }
            Err(failure) => self.failed(entry, &failure),
        }
    }

    fn acknowledged(&mut self, entry: &Entry, response: &ExportProfilesServiceResponse) {
        if self.failures > 0 {
            tracing::info!(attempts = self.failures + 1, "the collector takes profiles again");
        }
        self.failures = 0;
        self.queue.done(entry);
        self.metrics.observations.inc_by(entry.request.observations);
        self.metrics.bytes.inc_by(entry.request.bytes.len() as u64);
        let Some(partial) = &response.partial_success else { return };
        if partial.rejected_profiles > 0 {
            let rejected = partial.rejected_profiles.unsigned_abs();
            self.metrics.profiles_rejected.inc_by(rejected);
            let reason = format!("the collector refused profiles: {}", partial.error_message);
            self.say_once(&reason);
        } else if !partial.error_message.is_empty() {
            self.say_once(&format!("the collector warns: {}", partial.error_message));
        }
    }

    fn failed(&mut self, entry: Entry, failure: &Failure) -> Option<Duration> {
        let status = &failure.status;
        match verdict::of(failure) {
            Verdict::OtherEncoding if self.client.step_down() => {
                self.say_once("the collector does not take this compression, trying the next");
                self.queue.put_back(entry);
                None
            }
            Verdict::Refused | Verdict::OtherEncoding => {
                self.client.step_up();
                self.queue.give_up(&entry, "refused by the collector");
                let (code, message) = (verdict::name(status.code()), status.message());
                self.say_once(&format!("the collector refuses a request: {code}: {message}"));
                None
            }
            Verdict::Again { after } => {
                if self.failures == 0 {
                    let (code, message) = (verdict::name(status.code()), status.message());
                    tracing::warn!(code, message, "the collector cannot be reached, trying again");
                }
                self.failures = self.failures.saturating_add(1);
                self.metrics.retries.inc();
                self.queue.put_back(entry);
                Some(after.unwrap_or_else(|| self.wait()).min(limits::EXPORT_RETRY_AFTER_MAX))
            }
        }
    }

    /// Doubles with each failure; half of it is random, so that a fleet does not come back at once.
    fn wait(&self) -> Duration {
        let doublings = self.failures.saturating_sub(1).min(31);
        let wait = self.backoff.first.saturating_mul(1 << doublings).min(self.backoff.max);
        let random = std::hash::RandomState::new().build_hasher().finish();
        let half = wait / 2;
        half + half
            .mul_f64(f64::from(u32::try_from(random >> 32).unwrap_or(0)) / f64::from(u32::MAX))
    }

    /// Says a thing once: a collector that refuses everything would fill the log.
    fn say_once(&mut self, text: &str) {
        let remembered = self.said.len() < limits::EXPORT_REASONS_MAX;
        if remembered && self.said.insert(text.to_owned()) {
            tracing::warn!("{text}");
        }
    }
}
