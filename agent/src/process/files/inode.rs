//! The file of a process that is gone, where the kernel could read no build id of it (many have none): by its inode.

use super::{Backing, Files, Wanted};
use crate::bpf::Inode;
use crate::clock::{UnixNs, WallOffset};
use crate::limits::FILE_UNCHANGED_NS;
use crate::process::host::FileIdentity;

impl Files {
    /// The file of this path that a relative of the process sees, if it is the one that was mapped: the same inode, and
    /// not changed since. One that is deleted gives its number to the next one, which is younger then.
    pub(super) fn unchanged(&self, wanted: Wanted<'_>) -> Option<Backing> {
        let (inode, mapped_at) = wanted.inode?;
        let path = &wanted.mapping.path;
        let mapped_at = WallOffset::read().to_unix(mapped_at);
        let mut seen = wanted.relatives.into_iter();
        let opened = seen.find_map(|relative| {
            let opened = self.host.open_path(relative, path).ok()?;
            is_unchanged(&opened.identity, inode, mapped_at).then_some(opened)
        })?;
        let backing = self.opened(opened, None, None, path);
        matches!(backing, Backing::File(_)).then_some(backing)
    }
}

/// True for the file of this inode, if it was not changed since `mapped_at`.
pub(super) fn is_unchanged(found: &FileIdentity, inode: Inode, mapped_at: UnixNs) -> bool {
    (found.device, found.inode) == (inode.device, inode.number)
        && found.changed_ns + i128::from(FILE_UNCHANGED_NS) < i128::from(mapped_at.0)
}
