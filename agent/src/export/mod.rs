//! Towards the collector: [`otlp`] writes sealed windows as OTLP Profiles, [`queue`] keeps what is not
//! acknowledged yet within bounds, [`sender`] talks gRPC. No sample is looked at here twice: the bytes
//! that are queued are the bytes that are sent and, after a failure, sent again.

pub mod otlp;
pub mod queue;
pub mod sender;

use crate::aggregate::{NamedWindow, WindowWriter};
use crate::metrics::Metrics;
use otlp::Encoder;
use queue::Queue;
use sender::Sender;
use std::sync::Arc;
use std::time::Duration;

/// Writes windows into the queue.
#[derive(Debug)]
pub struct Exporter {
    encoder: Encoder,
    queue: Arc<Queue>,
    metrics: Metrics,
}

/// The sending task of an exporter.
#[derive(Debug)]
pub struct Export {
    queue: Arc<Queue>,
    task: tokio::task::JoinHandle<()>,
}

impl Exporter {
    /// Starts the sending task on the current runtime and answers both ends.
    #[must_use]
    pub fn start(
        encoder: Encoder,
        queue: Arc<Queue>,
        sender: Sender,
        metrics: Metrics,
    ) -> (Self, Export) {
        let task = tokio::spawn(sender.run());
        let export = Export { queue: Arc::clone(&queue), task };
        (Self { encoder, queue, metrics }, export)
    }
}

impl WindowWriter for Exporter {
    fn write(&mut self, window: NamedWindow) {
        self.metrics.count_window(&window);
        for request in self.encoder.encode(&window) {
            self.queue.push(request);
        }
    }
}

impl Export {
    /// Sends what is queued, for at most `wait_max`; answers the observations that had to be given up.
    pub async fn finish(self, wait_max: Duration) -> u64 {
        let Self { queue, mut task } = self;
        queue.close();
        if tokio::time::timeout(wait_max, &mut task).await.is_err() {
            task.abort();
            // The request on its way is dropped with the task: it is given up too.
            drop(task.await);
        }
        // Nothing is left where the task came to its end.
        queue.give_up_all("the agent ended")
    }
}
