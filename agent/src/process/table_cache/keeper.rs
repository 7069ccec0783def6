//! The thread that reads and writes compiled tables, so that a disk which does not answer holds up nobody who
//! compiles: who asks for a table waits a moment and compiles it, and what is to be kept is handed over. What is
//! in the folder is [`super::TableCache`]'s.

use super::TableCache;
use crate::elf::UnwindDigest;
use crate::limits::{TABLE_CACHE_REQUESTS_MAX, TABLE_CACHE_WAIT};
use crate::process::compile::Unwound;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

/// What the thread asks of the folder.
pub(super) trait Folder: Send + Sync {
    fn find(&self, digest: &UnwindDigest) -> Option<Unwound>;
    fn store(&self, digest: &UnwindDigest, unwound: &Unwound);
    /// Somebody did not wait for an answer, or has handed over a table that found no room to wait.
    fn was_late(&self);
}

impl Folder for TableCache {
    fn find(&self, digest: &UnwindDigest) -> Option<Unwound> {
        Self::find(self, digest)
    }

    fn store(&self, digest: &UnwindDigest, unwound: &Unwound) {
        Self::store(self, digest, unwound);
    }

    fn was_late(&self) {
        self.count(super::Count::Late);
    }
}

#[derive(Debug)]
enum Request {
    Find(UnwindDigest, SyncSender<Option<Unwound>>),
    Store(UnwindDigest, Arc<Unwound>),
}

/// The door to the thread, which ends when the last clone of this is dropped; it is never joined.
#[derive(Clone)]
pub struct Keeper {
    folder: Arc<dyn Folder>,
    requests: SyncSender<Request>,
}

impl fmt::Debug for Keeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keeper").finish_non_exhaustive()
    }
}

impl Keeper {
    /// Starts the thread.
    ///
    /// # Errors
    /// When the host refuses it.
    pub fn start(cache: Arc<TableCache>) -> io::Result<Self> {
        Self::of(cache)
    }

    pub(super) fn of(folder: Arc<dyn Folder>) -> io::Result<Self> {
        let (requests, receiver) = sync_channel(TABLE_CACHE_REQUESTS_MAX);
        let thread = std::thread::Builder::new().name("table-cache".to_owned());
        let served = Arc::clone(&folder);
        thread.spawn(move || serve(served.as_ref(), &receiver))?;
        Ok(Self { folder, requests })
    }

    /// The table that was compiled from what has this digest, if the disk answers in time.
    #[must_use]
    pub fn find(&self, digest: &UnwindDigest) -> Option<Unwound> {
        let (answer, answers) = sync_channel(1);
        let asked = self.requests.try_send(Request::Find(*digest, answer));
        let answer = asked.ok().and_then(|()| answers.recv_timeout(TABLE_CACHE_WAIT).ok());
        if answer.is_none() {
            self.folder.was_late();
        }
        answer.flatten()
    }

    /// Keeps a table, later.
    pub fn store(&self, digest: UnwindDigest, unwound: Arc<Unwound>) {
        if self.requests.try_send(Request::Store(digest, unwound)).is_err() {
            self.folder.was_late();
        }
    }
}

fn serve(folder: &dyn Folder, requests: &Receiver<Request>) {
    while let Ok(request) = requests.recv() {
        match request {
            // Nobody takes an answer that comes late.
            Request::Find(digest, answer) => drop(answer.try_send(folder.find(&digest))),
            Request::Store(digest, unwound) => folder.store(&digest, &unwound),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::unwind::RowTable;
    use agent_ebpf::{RuleKind, UnwindRule};
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::{Condvar, Mutex};
    use std::time::{Duration, Instant};

    /// A disk that answers only when it is told to.
    #[derive(Default)]
    struct Hung {
        alive: Mutex<bool>,
        changed: Condvar,
        late: AtomicU64,
        stored: AtomicU64,
    }

    impl Hung {
        fn answer(&self) {
            *self.alive.lock().unwrap() = true;
            self.changed.notify_all();
        }

        fn wait(&self) {
            let alive = self.alive.lock().unwrap();
            drop(self.changed.wait_while(alive, |alive| !*alive).unwrap());
        }
    }

    impl Folder for Hung {
        fn find(&self, _digest: &UnwindDigest) -> Option<Unwound> {
            self.wait();
            Some(unwound())
        }

        fn store(&self, _digest: &UnwindDigest, _unwound: &Unwound) {
            self.wait();
            self.stored.fetch_add(1, Ordering::Relaxed);
        }

        fn was_late(&self) {
            self.late.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn unwound() -> Unwound {
        let rules = vec![UnwindRule::plain(RuleKind::NoInfo)];
        Unwound::new(RowTable::new(0, rules, [(0, 0)]).unwrap())
    }

    #[test]
    fn a_disk_that_does_not_answer_holds_up_nobody() {
        let disk: Arc<Hung> = Arc::default();
        let keeper = Keeper::of(Arc::clone(&disk) as _).unwrap();
        let digest = UnwindDigest([1; 32]);
        let begin = Instant::now();
        let asked = TABLE_CACHE_REQUESTS_MAX as u64 + 5;
        for _ in 0..asked {
            keeper.store(digest, Arc::new(unwound()));
        }
        assert!(keeper.find(&digest).is_none());
        // One is at the disk, or about to be; the question found no room.
        let late = disk.late.load(Ordering::Relaxed);
        assert!((5..=6).contains(&late), "{late}");
        assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
        disk.answer();
        let end = Instant::now() + Duration::from_secs(20);
        while disk.stored.load(Ordering::Relaxed) + late < asked + 1 {
            assert!(Instant::now() < end, "what was handed over is kept");
            std::thread::sleep(Duration::from_millis(2));
        }
        while keeper.find(&digest).is_none() {
            assert!(Instant::now() < end, "it answers again");
        }
    }

    #[test]
    fn who_asks_a_hung_disk_waits_a_moment() {
        let disk: Arc<Hung> = Arc::default();
        let keeper = Keeper::of(Arc::clone(&disk) as _).unwrap();
        let begin = Instant::now();
        assert!(keeper.find(&UnwindDigest([1; 32])).is_none());
        assert!(begin.elapsed() >= TABLE_CACHE_WAIT);
        assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
        assert_eq!(disk.late.load(Ordering::Relaxed), 1);
        disk.answer();
    }
}
