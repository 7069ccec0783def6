//! The separate debug file of a file: where distributions and `objcopy --add-gnu-debuglink` put it (GDB's
//! manual, "Debugging Information in Separate Files"), beneath the root of a process that maps the file, else
//! beneath the host's own. Whether it belongs to the file is for its reader to check, by the build id.

use super::{Files, carried};
use crate::address::{FileId, Pid, Tid};
use crate::clock::monotonic_now;
use crate::process::host::Task;
use proto::BuildId;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Where debug files of installed packages are.
const DIRECTORY: &str = "/usr/lib/debug";
/// Any process that sees the host's files.
const HOST: Task = Task { pid: Pid(1), tid: Tid(1) };

/// What is known of a file's debug file.
#[derive(Clone, Debug, Default)]
pub(super) enum DebugFile {
    /// Nobody asked, or it was closed again.
    #[default]
    NotLooked,
    Open(Arc<OwnedFd>),
    /// There is none.
    Absent,
}

impl Files {
    pub(super) fn debug_file(&self, id: FileId) -> Option<Arc<OwnedFd>> {
        let (file, places) = {
            let mut state = self.state();
            let entry = state.entries.get_mut(&id)?;
            match &entry.debug_file {
                DebugFile::NotLooked => {}
                DebugFile::Open(descriptor) => return Some(Arc::clone(descriptor)),
                DebugFile::Absent => return None,
            }
            (Arc::clone(entry.file.as_ref()?), entry.places.clone())
        };
        // Without a build id nothing proves that a debug file belongs to the file.
        let paths = carried(&file).map_or_else(Vec::new, |build_id| {
            let link = self.debug_link(id);
            paths(build_id, &file.path, link.as_deref())
        });
        let mut tasks: Vec<Task> = places.iter().rev().map(|(task, _)| *task).collect();
        tasks.push(HOST);
        let open = |path: &String| {
            let mut opened =
                tasks.iter().filter_map(|task| self.host.open_path(*task, path.as_bytes()).ok());
            opened.next()
        };
        let found = paths.iter().find_map(open).map(|opened| Arc::new(opened.descriptor));
        let mut state = self.state();
        if let Some(entry) = state.entries.get_mut(&id) {
            entry.debug_file = found.clone().map_or(DebugFile::Absent, DebugFile::Open);
            entry.opened_at = monotonic_now();
        }
        found
    }

    /// The name that the file states for its debug file.
    fn debug_link(&self, id: FileId) -> Option<String> {
        let descriptor = crate::engine::OpenFiles::open(self, id)?;
        self.foreign.debug_link(&descriptor)
    }
}

/// Where the debug file of `path` may be, the likeliest first.
fn paths(build_id: &BuildId, path: &str, link: Option<&str>) -> Vec<String> {
    let hex = build_id.to_string();
    let mut paths = Vec::new();
    if let Some((first, rest)) = hex.split_at_checked(2)
        && !rest.is_empty()
    {
        paths.push(format!("{DIRECTORY}/.build-id/{first}/{rest}.debug"));
    }
    // A name with a slash would lead elsewhere.
    let link = link.filter(|name| !name.is_empty() && !name.contains('/') && *name != "..");
    if let (Some(link), Some((directory, _))) = (link, path.rsplit_once('/')) {
        paths.push(format!("{directory}/{link}"));
        paths.push(format!("{directory}/.debug/{link}"));
        paths.push(format!("{DIRECTORY}{directory}/{link}"));
    }
    paths.retain(|found| found != path);
    paths
}

#[cfg(test)]
mod tests {
    use super::paths;
    use proto::BuildId;

    #[track_caller]
    fn check(path: &str, link: Option<&str>, expected: &[&str]) {
        let build_id = BuildId::new(&[0xab, 0xcd, 0xef]).unwrap();
        assert_eq!(paths(&build_id, path, link), expected);
    }

    #[test]
    fn debug_files_are_looked_for_where_they_are_put() {
        let by_id = "/usr/lib/debug/.build-id/ab/cdef.debug";
        check("/usr/bin/app", None, &[by_id]);
        let linked = [
            by_id,
            "/usr/bin/app.debug",
            "/usr/bin/.debug/app.debug",
            "/usr/lib/debug/usr/bin/app.debug",
        ];
        check("/usr/bin/app", Some("app.debug"), &linked);
        check("/usr/bin/app", Some("../../etc/shadow"), &[by_id]);
        check("/usr/bin/app", Some(".."), &[by_id]);
        check("/usr/bin/app", Some(""), &[by_id]);
        check("[vdso]", Some("vdso.debug"), &[by_id]);
        let own = [by_id, "/usr/bin/.debug/app", "/usr/lib/debug/usr/bin/app"];
        check("/usr/bin/app", Some("app"), &own);
    }
}
