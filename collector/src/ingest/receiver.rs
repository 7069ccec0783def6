//! What every transport does with a request: read the body within limits, wait for a turn, decompress,
//! decode, append to the store, count. Transports differ only in how they say the outcome.

use super::compression::{Coding, DecompressError, plain};
use super::otlp::{self, Reception, Rejections, Undecodable};
use super::pprof::{self, Push, Severity};
use crate::limits;
use crate::metrics::{Metrics, Transport};
use crate::profile::{BatchError, ProjectName, WriteBatch};
use crate::store::Retention;
use crate::store::{Ack, ProfileStore, StoreError};
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::timeout;

/// Why a request is refused as a whole: nothing of it is stored.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// The body is larger than [`limits::REQUEST_BYTES_MAX`], compressed or not, or decodes to too much.
    #[error("{0}")]
    TooLarge(String),
    /// The body is malformed.
    #[error("{0}")]
    Malformed(String),
    /// The body did not arrive in time, or the connection broke.
    #[error("the body did not arrive: {0}")]
    Unread(String),
    /// A pprof profile that cannot be stored.
    #[error("{0}")]
    Pprof(#[from] pprof::Fault),
    /// No room now; the sender should try again.
    #[error("{0}")]
    Busy(String),
    /// The store failed; nothing was acknowledged, the sender should try again.
    #[error("the store failed: {0}")]
    Failed(String),
}

impl Refused {
    /// What the outcome is called in metrics.
    const fn status(&self) -> &'static str {
        match self {
            Self::TooLarge(_) => "too_large",
            Self::Malformed(_) => "malformed",
            Self::Unread(_) => "unread",
            Self::Pprof(fault) => match fault.severity() {
                Severity::Malformed => "malformed",
                Severity::TooLarge => "too_large",
                Severity::Unstorable => "unstorable",
            },
            Self::Busy(_) => "busy",
            Self::Failed(_) => "failed",
        }
    }

    /// Why the profile itself is refused: sent again as it is, it would be again.
    #[must_use]
    pub const fn reason(&self) -> Option<&'static str> {
        match self {
            Self::TooLarge(_) => Some("limit"),
            Self::Malformed(_) => Some("undecodable"),
            Self::Pprof(fault) => Some(fault.reason()),
            Self::Unread(_) | Self::Busy(_) | Self::Failed(_) => None,
        }
    }
}

/// A pprof profile that is stored, or was before.
#[derive(Clone, Debug)]
pub struct Pushed {
    /// Of which service.
    pub service: Arc<str>,
    /// Start, Unix milliseconds.
    pub time_ms: i64,
    /// Length, milliseconds.
    pub duration_ms: i64,
    /// What it measures.
    pub types: Vec<pprof::Measured>,
    /// The type to show first.
    pub view: usize,
    /// The same was stored before, and is not stored twice.
    pub is_repeated: bool,
}

/// A request body, with its share of the memory that all bodies may take.
#[derive(Debug)]
pub struct HeldBody {
    /// As received: maybe compressed.
    pub bytes: Bytes,
    held: Option<OwnedSemaphorePermit>,
}

impl HeldBody {
    /// The same share of memory for a part of the body.
    pub(super) fn with_bytes(self, bytes: Bytes) -> Self {
        Self { bytes, ..self }
    }
}

/// Takes requests of all transports.
#[derive(Clone)]
pub struct Receiver {
    store: Arc<dyn ProfileStore>,
    metrics: Arc<Metrics>,
    project: ProjectName,
    retention: Retention,
    /// One permit per KiB of [`limits::BODIES_BYTES_MAX`].
    bodies: Arc<Semaphore>,
    decoding: Arc<Semaphore>,
}

impl std::fmt::Debug for Receiver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Receiver").field("project", &self.project).finish_non_exhaustive()
    }
}

const PERMIT_BYTES: usize = 1 << 10;

/// How gzip begins. No pprof profile does: it would be field 3 with a wire type that protobuf does not have.
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

/// Times that a profile is gzip in gzip: files are gzip, and some clients compress what they send again.
const GZIP_LAYERS_MAX: usize = 2;

/// The profile without its codings, at most [`limits::REQUEST_BYTES_MAX`] at each step.
fn plain_pprof(body: Bytes, coding: Coding) -> Result<Bytes, DecompressError> {
    let mut bytes = plain(body, coding)?;
    for _ in 0..GZIP_LAYERS_MAX {
        if !bytes.starts_with(&GZIP_MAGIC) {
            break;
        }
        bytes = plain(bytes, Coding::Gzip)?;
    }
    Ok(bytes)
}

/// Does something to its end, also if the client hangs up: what is stored is to be counted.
async fn to_its_end<T: Send + 'static>(
    work: impl Future<Output = Result<T, Refused>> + Send + 'static,
) -> Result<T, Refused> {
    let task = tokio::spawn(work);
    task.await.unwrap_or_else(|error| Err(Refused::Failed(format!("storing stopped: {error}"))))
}

/// This host's wall clock, Unix milliseconds.
#[must_use]
pub fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

impl Receiver {
    /// Takes requests for `project`; profiles that are older than is kept are refused.
    #[must_use]
    pub fn new(
        store: Arc<dyn ProfileStore>,
        metrics: Arc<Metrics>,
        project: ProjectName,
        retention: Retention,
    ) -> Self {
        Self {
            store,
            metrics,
            project,
            retention,
            bodies: Arc::new(Semaphore::new(limits::BODIES_BYTES_MAX / PERMIT_BYTES)),
            decoding: Arc::new(Semaphore::new(limits::DECODING_MAX)),
        }
    }

    /// The metrics that requests are counted in.
    #[must_use]
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// True if requests for the project `name` are taken.
    #[must_use]
    pub fn has_project(&self, name: &str) -> bool {
        *self.project.0 == *name
    }

    /// Reads a body whose length is at most `bytes_max`.
    ///
    /// # Errors
    /// Too large, too slow, broken, or no room for it.
    pub async fn read<B>(&self, body: B, bytes_max: usize) -> Result<HeldBody, Refused>
    where
        B: hyper::body::Body<Data = Bytes>,
        B::Error: std::fmt::Display,
    {
        let time = Duration::from_millis(limits::BODY_READ_MS_MAX);
        match timeout(time, self.read_all(body, bytes_max)).await {
            Ok(outcome) => outcome,
            Err(_) => Err(Refused::Unread(format!("not complete after {} s", time.as_secs()))),
        }
    }

    async fn read_all<B>(&self, body: B, bytes_max: usize) -> Result<HeldBody, Refused>
    where
        B: hyper::body::Body<Data = Bytes>,
        B::Error: std::fmt::Display,
    {
        let mut body = std::pin::pin!(body);
        let mut held: Option<OwnedSemaphorePermit> = None;
        let mut bytes = BytesMut::new();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| Refused::Unread(error.to_string()))?;
            let Ok(data) = frame.into_data() else { continue };
            if bytes.len().saturating_add(data.len()) > bytes_max {
                return Err(Refused::TooLarge(format!(
                    "the body is larger than {bytes_max} bytes; send smaller requests"
                )));
            }
            let needed = (bytes.len() + data.len()).div_ceil(PERMIT_BYTES);
            let more =
                needed.saturating_sub(held.as_ref().map_or(0, OwnedSemaphorePermit::num_permits));
            let more = u32::try_from(more).unwrap_or(u32::MAX);
            let Ok(permit) = Arc::clone(&self.bodies).try_acquire_many_owned(more) else {
                return Err(Refused::Busy("too many requests are being received".to_owned()));
            };
            match &mut held {
                Some(held) => held.merge(permit),
                None => held = Some(permit),
            }
            bytes.extend_from_slice(&data);
        }
        Ok(HeldBody { bytes: bytes.freeze(), held })
    }

    /// Decodes and stores a request.
    ///
    /// # Errors
    /// The request is refused as a whole; single profiles that are refused are in the answer.
    pub async fn store(&self, body: HeldBody, coding: Coding) -> Result<Rejections, Refused> {
        let this = self.clone();
        to_its_end(async move { this.store_now(body, coding).await }).await
    }

    async fn store_now(&self, body: HeldBody, coding: Coding) -> Result<Rejections, Refused> {
        let decode = move |reception: &Reception| -> Result<_, Refused> {
            let HeldBody { bytes, held } = body;
            let bytes = plain(bytes, coding)?;
            let received = otlp::receive(&bytes, reception)?;
            drop((bytes, held));
            let otlp::Received { batch, rejections, old_layout, truncated, accounts } = received;
            Ok((batch, (rejections, old_layout, truncated, accounts)))
        };
        let ((rejections, old_layout, truncated, accounts), ack) = self.take(decode).await?;
        self.metrics.ledger(&otlp::sums(&accounts, &ack.repeated));
        self.metrics.old_layout.inc_by(old_layout);
        self.metrics.truncated.inc_by(truncated);
        self.metrics.rejected(&rejections);
        Ok(rejections)
    }

    /// Decodes and stores a pprof profile: whole, or not at all.
    ///
    /// # Errors
    /// Nothing of it is stored.
    pub async fn push(
        &self,
        body: HeldBody,
        coding: Coding,
        push: Push,
    ) -> Result<Pushed, Refused> {
        let this = self.clone();
        to_its_end(async move { this.push_now(body, coding, push).await }).await
    }

    async fn push_now(
        &self,
        body: HeldBody,
        coding: Coding,
        push: Push,
    ) -> Result<Pushed, Refused> {
        let decode = move |reception: &Reception| -> Result<_, Refused> {
            let HeldBody { bytes, held } = body;
            let plain = plain_pprof(bytes, coding)?;
            let received = pprof::receive(&plain, &push, reception)?;
            drop((plain, held));
            let pprof::Received { batch, types, view, replaced, truncated } = received;
            let first = batch.profiles.first();
            let (service, time_ms, duration_ms) = first.map_or_else(Default::default, |profile| {
                (Arc::clone(&profile.labels.service), profile.time_ms, profile.duration_ms)
            });
            let is_repeated = false;
            let pushed = Pushed { service, time_ms, duration_ms, types, view, is_repeated };
            Ok((batch, (pushed, replaced, truncated)))
        };
        let ((pushed, replaced, truncated), ack) = self.take(decode).await?;
        self.metrics.replaced.inc_by(replaced);
        self.metrics.truncated.inc_by(truncated);
        Ok(Pushed { is_repeated: ack.stored == 0, ..pushed })
    }

    /// Decodes on a thread for blocking work, when it is this request's turn, and stores the batch; answers what else was
    /// decoded, and what became of the batch.
    async fn take<T: Send + 'static>(
        &self,
        decode: impl FnOnce(&Reception) -> Result<(WriteBatch, T), Refused> + Send + 'static,
    ) -> Result<(T, Ack), Refused> {
        let wait = Duration::from_millis(limits::DECODING_WAIT_MS);
        let turn = match timeout(wait, Arc::clone(&self.decoding).acquire_owned()).await {
            Ok(Ok(turn)) => turn,
            _ => return Err(Refused::Busy("too many requests wait to be decoded".to_owned())),
        };
        let now_ms = now_ms();
        let reception =
            Reception { project: self.project.clone(), now_ms, retention: self.retention.clone() };
        let (tell, told) = oneshot::channel();
        let make = move || {
            let decoded = decode(&reception);
            drop(turn);
            let (batch, told) = match decoded {
                Ok((batch, rest)) => {
                    let profiles = batch.profiles.iter();
                    let samples: Vec<usize> =
                        profiles.map(|profile| profile.samples.len()).collect();
                    (Some(batch), Ok((rest, samples)))
                }
                Err(refused) => (None, Err(refused)),
            };
            // Nobody listens if the client hung up; the batch is stored all the same.
            drop(tell.send(told));
            batch.filter(|batch| !batch.profiles.is_empty())
        };
        // No limit on the time: to give up would mean to answer 503 for what may be stored after all.
        let appended = self.store.append_made(Box::new(make)).await;
        let Ok(told) = told.await else {
            // Nothing was decoded: the store says why, if it had no room for that.
            appended?;
            return Err(Refused::Failed("decoding stopped".to_owned()));
        };
        let (rest, samples) = told?;
        let ack = appended?.unwrap_or_default();
        self.metrics.stored(&ack, &samples);
        Ok((rest, ack))
    }

    /// Counts a finished request.
    pub fn count(&self, transport: Transport, bytes: usize, outcome: &Result<Rejections, Refused>) {
        let status = match outcome {
            Ok(rejections) if rejections.profiles == 0 => "ok",
            Ok(_) => "partial",
            Err(refused) => refused.status(),
        };
        self.metrics.ingest_request(transport, status, bytes);
    }

    /// Counts a finished push.
    pub fn count_push(&self, bytes: usize, outcome: &Result<Pushed, Refused>) {
        let status = match outcome {
            Ok(pushed) if pushed.is_repeated => "repeated",
            Ok(_) => "ok",
            Err(refused) => refused.status(),
        };
        self.metrics.ingest_request(Transport::Pprof, status, bytes);
        if let Some(reason) = outcome.as_ref().err().and_then(Refused::reason) {
            self.metrics.reject(reason);
        }
    }
}

/// What the blocking half of a request may fail with.
impl From<DecompressError> for Refused {
    fn from(error: DecompressError) -> Self {
        match error {
            DecompressError::TooLarge { .. } => {
                Self::TooLarge(format!("{error}; send smaller requests"))
            }
            DecompressError::Corrupt { .. } => Self::Malformed(error.to_string()),
        }
    }
}

impl From<Undecodable> for Refused {
    fn from(error: Undecodable) -> Self {
        if error.is_too_large() {
            Self::TooLarge(error.to_string())
        } else {
            Self::Malformed(error.to_string())
        }
    }
}

impl From<StoreError> for Refused {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Busy(what) => Self::Busy(what),
            StoreError::Limit { .. } | StoreError::Invalid(BatchError::Limit { .. }) => {
                Self::TooLarge(error.to_string())
            }
            StoreError::Invalid(_) => Self::Malformed(error.to_string()),
            other => Self::Failed(other.to_string()),
        }
    }
}

#[cfg(test)]
mod tests;
