//! Opens a file again whose descriptor was closed.

use super::inside::Inside;
use super::{Files, Key};
use crate::address::FileId;
use crate::clock::monotonic_now;
use crate::limits::FILES_OPEN_MAX;
use std::os::fd::OwnedFd;
use std::sync::Arc;

impl Files {
    /// Opens a file again where it was mapped, if it is still the same one.
    pub(super) fn open_again(&self, id: FileId) -> Option<Arc<OwnedFd>> {
        let (identity, part, places) = {
            let state = self.state();
            let entry = state.entries.get(&id)?;
            let Key::Opened(identity, part) = entry.key else { return None };
            (identity, part, entry.places.clone())
        };
        let opened = places.iter().rev().find_map(|(task, mapping)| {
            let opened = self.host.open(*task, mapping).ok()?;
            // It may have been deleted since, by an upgrade.
            opened.identity.is_as_before(&identity).then_some(opened)
        })?;
        let (descriptor, copy_bytes) = match part.map(|at| self.copy_inside(&opened.descriptor, at))
        {
            Some(Inside::Library(copy)) => (copy.descriptor, copy.bytes),
            Some(Inside::Nothing | Inside::LeftOut) => return None,
            None => (opened.descriptor, 0),
        };
        let descriptor = Arc::new(descriptor);
        let mut state = self.state();
        state.close_copies(copy_bytes);
        state.close_least_used(FILES_OPEN_MAX.saturating_sub(1));
        if let Some(entry) = state.entries.get_mut(&id) {
            entry.descriptor = Some(Arc::clone(&descriptor));
            entry.copy_bytes = copy_bytes;
            entry.opened_at = monotonic_now();
        }
        Some(descriptor)
    }
}
