//! Asks files for names on a thread of its own: a file system that falls silent holds up that thread for ever, and
//! nobody else. Who names waits a while, then goes on with another thread, and leaves the file alone until it answers.

use crate::address::{ElfAddr, FileId};
use crate::clock::{MonotonicNs, monotonic_now};
use crate::elf::{ForeignFiles, Names};
use crate::engine::OpenFiles;
use crate::limits::{NAMES_FILE_NS_MAX, NAMES_LATE_NS_MAX, NAMING_THREADS_MAX};
use crate::symbolize::UnnamedReason;
use hashbrown::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::time::Duration;

/// Names of some addresses of a file.
struct Question {
    file: FileId,
    open: Arc<dyn OpenFiles>,
    addresses: Vec<ElfAddr>,
    until: MonotonicNs,
    /// `None`: a reader panicked.
    answer: SyncSender<Option<Vec<Names>>>,
    /// Set when it was answered, if anybody waits or not.
    over: Arc<AtomicBool>,
}

/// Why there are no names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unasked {
    /// A reader panicked.
    Panic,
    /// The file does not answer, or no thread is left to ask it.
    Silent,
}

/// Who asks.
pub(super) struct Asker {
    files: Arc<dyn ForeignFiles>,
    /// The thread that is asked, if there is one.
    thread: Option<Sender<Question>>,
    /// Files that did not answer; true once they did.
    silent: HashMap<FileId, Arc<AtomicBool>>,
    wait: Duration,
}

impl Asker {
    pub(super) fn new(files: Arc<dyn ForeignFiles>) -> Self {
        let wait = Duration::from_nanos(NAMES_FILE_NS_MAX);
        Self { files, thread: None, silent: HashMap::new(), wait }
    }

    /// The same, with another patience for one file.
    #[cfg(test)]
    pub(super) fn waiting(self, wait: Duration) -> Self {
        Self { wait, ..self }
    }

    /// The names of one file.
    pub(super) fn ask(
        &mut self,
        file: FileId,
        open: &Arc<dyn OpenFiles>,
        (addresses, until): (&[ElfAddr], MonotonicNs),
    ) -> Result<Vec<Names>, Unasked> {
        self.silent.retain(|_, over| !over.load(Ordering::Relaxed));
        if self.silent.contains_key(&file) || self.silent.len() >= NAMING_THREADS_MAX {
            return Err(Unasked::Silent);
        }
        let (answer, answers) = sync_channel(1);
        let over = Arc::new(AtomicBool::new(false));
        let question = Question {
            file,
            open: Arc::clone(open),
            addresses: addresses.to_vec(),
            until,
            answer,
            over: Arc::clone(&over),
        };
        self.thread().and_then(|thread| thread.send(question).ok()).ok_or(Unasked::Silent)?;
        // It knows its time itself; one that does not keep it is stuck.
        let left_ns = until.since(monotonic_now()).saturating_add(NAMES_LATE_NS_MAX);
        match answers.recv_timeout(self.wait.min(Duration::from_nanos(left_ns))) {
            Ok(answer) => answer.ok_or(Unasked::Panic),
            Err(RecvTimeoutError::Timeout) => {
                tracing::warn!(file = file.0, "a file does not answer: it is left without names");
                self.silent.insert(file, over);
                self.thread = None;
                Err(Unasked::Silent)
            }
            Err(RecvTimeoutError::Disconnected) => {
                self.thread = None;
                Err(Unasked::Panic)
            }
        }
    }

    /// The thread, which is started if there is none; `None` if the kernel gives none.
    fn thread(&mut self) -> Option<&Sender<Question>> {
        if self.thread.is_none() {
            let (sender, receiver) = channel();
            let files = Arc::clone(&self.files);
            let thread = std::thread::Builder::new().name("names".to_owned());
            match thread.spawn(move || answer_all(&*files, &receiver)) {
                Ok(_detached) => self.thread = Some(sender),
                Err(error) => tracing::warn!(%error, "no thread to ask files for names"),
            }
        }
        self.thread.as_ref()
    }
}

fn answer_all(files: &dyn ForeignFiles, questions: &Receiver<Question>) {
    while let Ok(Question { file, open, addresses, until, answer, over }) = questions.recv() {
        // A defect of what reads foreign bytes costs their names, never the thread.
        let names = catch_unwind(AssertUnwindSafe(|| {
            let Some(descriptor) = open.open(file) else {
                return vec![Err(UnnamedReason::FileGone); addresses.len()];
            };
            let debug_file = open.open_debug(file);
            files.names_with(file, &descriptor, debug_file.as_deref(), &addresses, until)
        }));
        over.store(true, Ordering::Relaxed);
        // Nobody waits for it any more if it came late.
        drop(answer.try_send(names.ok()));
    }
}
