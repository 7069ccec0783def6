//! The priority of a thread that compiles tables: whose files go before programs, and whose do not.

use super::spending::Owner;
use crate::limits::USER_FILES_NICE;
use std::cell::Cell;

/// That of a thread.
#[derive(Debug)]
pub(super) struct Priority {
    /// Its own, for files of root.
    own: i32,
    now: Cell<i32>,
}

impl Priority {
    pub(super) fn of_this_thread() -> Self {
        let own = rustix::process::getpriority_process(None).unwrap_or(0);
        Self { own, now: Cell::new(own) }
    }

    /// What belongs to others does not go before the programs of others.
    pub(super) fn set_for(&self, owner: Owner) {
        let nice = if owner == Owner::Root { self.own } else { self.own.max(USER_FILES_NICE) };
        if nice == self.now.get() {
            return;
        }
        // Linux keeps it for each thread, against POSIX (setpriority(2), "C library/kernel differences").
        match rustix::process::setpriority_process(None, nice) {
            Ok(()) => self.now.set(nice),
            Err(error) => tracing::debug!(%error, nice, "priority of a thread not changed"),
        }
    }
}
