//! Lines and inlined functions from a file's own DWARF, through blazesym.
//!
//! blazesym maps the files that it reads and opens whatever they link to. So it never sees a foreign
//! file: the sections that it needs are copied by `pread` into a sealed memory file, links left out. It
//! runs on a thread of its own (its types stay on one thread, and hostile DWARF may take long): a
//! caller waits a bounded time and does without.

mod copy;
mod purse;
mod worker;

use crate::address::{ElfAddr, FileId};
use crate::clock::{MonotonicNs, monotonic_now};
use crate::limits::{
    DEBUG_INFO_WAIT_MS_MAX, DEBUG_INFO_WAITS_DIVISOR, DEBUG_INFO_WAITS_MAX, NAMING_AT_EASE_NS_MAX,
};
use purse::Purse;
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What the debug information says of one address, innermost function first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Chain {
    pub(super) frames: Vec<ChainFrame>,
}

/// One function of a chain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ChainFrame {
    /// Linkage name where there is one.
    pub(super) name: Option<String>,
    pub(super) file: String,
    pub(super) line: u32,
}

/// A batch for the thread.
#[derive(Debug)]
struct Request {
    id: FileId,
    file: OwnedFd,
    addresses: Vec<ElfAddr>,
    /// `None`: not now.
    answer: SyncSender<Option<Vec<Option<Chain>>>>,
}

/// The door to the thread.
#[derive(Debug)]
pub(super) struct DebugInfo {
    requests: Option<SyncSender<Request>>,
    put_off: Arc<AtomicU64>,
    /// What callers waited for it.
    waits: Mutex<Purse>,
}

impl DebugInfo {
    /// Starts the thread, which ends when this is dropped.
    pub(super) fn start() -> Self {
        // One batch at a time: the caller waits for its answer.
        let (sender, receiver): (_, Receiver<Request>) = sync_channel(1);
        let put_off: Arc<AtomicU64> = Arc::default();
        let counted = Arc::clone(&put_off);
        let started = std::thread::Builder::new()
            .name("vesta-debug-info".to_owned())
            .spawn(move || worker::run(&receiver, &counted));
        if let Err(error) = &started {
            tracing::warn!(%error, "no thread for debug information: names come without lines");
        }
        let waits = Mutex::new(Purse::new(DEBUG_INFO_WAITS_MAX, DEBUG_INFO_WAITS_DIVISOR));
        Self { requests: started.is_ok().then_some(sender), put_off, waits }
    }

    /// Times that a file was put off, because others took too much time of late.
    pub(super) fn put_off(&self) -> &Arc<AtomicU64> {
        &self.put_off
    }

    /// One answer for each address, and whether asking again would give the same.
    pub(super) fn chains(
        &self,
        id: FileId,
        file: &OwnedFd,
        addresses: &[ElfAddr],
        until: MonotonicNs,
    ) -> (Vec<Option<Chain>>, bool) {
        let nothing = vec![None; addresses.len()];
        let Some(requests) = &self.requests else { return (nothing, true) };
        let begin = Instant::now();
        // Who has more time than any window of a continuous run waits for a recording.
        let hurried = until.since(monotonic_now()) <= NAMING_AT_EASE_NS_MAX;
        if hurried && !self.waits().is_left(begin) {
            return (nothing, false);
        }
        let Ok(file) = file.try_clone() else { return (nothing, false) };
        let (answer, answers) = sync_channel(1);
        let request = Request { id, file, addresses: addresses.to_vec(), answer };
        match requests.try_send(request) {
            Ok(()) => {}
            Err(TrySendError::Full(_)) => return (nothing, false),
            Err(TrySendError::Disconnected(_)) => return (nothing, true),
        }
        let left = Duration::from_nanos(until.since(monotonic_now()));
        let limit = left.min(Duration::from_millis(DEBUG_INFO_WAIT_MS_MAX));
        let answer = answers.recv_timeout(limit);
        self.waits().spend(begin.elapsed());
        match answer {
            Ok(Some(chains)) if chains.len() == addresses.len() => (chains, true),
            Ok(Some(_)) | Err(RecvTimeoutError::Disconnected) => (nothing, true),
            Ok(None) => (nothing, false),
            Err(RecvTimeoutError::Timeout) => {
                tracing::debug!(file = id.0, "debug information takes too long, named without it");
                (nothing, false)
            }
        }
    }

    fn waits(&self) -> MutexGuard<'_, Purse> {
        self.waits.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
