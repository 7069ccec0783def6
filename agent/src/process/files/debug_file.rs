//! The separate debug file of a file: where distributions and `objcopy --add-gnu-debuglink` put it (GDB's
//! manual, "Debugging Information in Separate Files"), beneath the host's own root, else beneath that of a process
//! that maps the file. It belongs to the file if it carries its build id, and counts if whoever owns it could
//! have written the file too: what it says names the file in every process that maps it.

use super::{Files, carried};
use crate::address::{FileId, Pid, Tid};
use crate::clock::monotonic_now;
use crate::limits::FILES_OPEN_MAX;
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
        let carried = carried(&file);
        let mut asked = carried.is_none();
        let found = carried.and_then(|build_id| {
            let mapped = crate::engine::OpenFiles::open(self, id);
            let link = mapped.as_ref().and_then(|mapped| self.foreign.debug_link(mapped));
            let paths = paths(build_id, &file.path, link.as_deref());
            let owner = mapped.and_then(|mapped| owner(&mapped));
            let places = places.iter().rev().map(|(task, _)| *task);
            std::iter::once(HOST).chain(places).find_map(|task| {
                asked |= self.host.view(task).is_ok();
                let opened = paths.iter().map(|path| self.host.open_path(task, path.as_bytes()));
                let mut descriptors = opened.filter_map(|opened| Some(opened.ok()?.descriptor));
                descriptors.find(|debug_file| {
                    may_speak_for(owner, debug_file)
                        && self.foreign.build_id(debug_file).as_ref() == Some(build_id)
                })
            })
        });
        let found = found.map(Arc::new);
        let mut state = self.state();
        if found.is_some() {
            state.close_least_used(FILES_OPEN_MAX.saturating_sub(1));
        }
        if let Some(entry) = state.entries.get_mut(&id) {
            // Where everybody is gone or shielded, a later process that maps the file may show it.
            let absent = if asked { DebugFile::Absent } else { DebugFile::NotLooked };
            entry.debug_file = found.clone().map_or(absent, DebugFile::Open);
            entry.opened_at = monotonic_now();
        }
        found
    }
}

/// True if root or the mapped file's owner wrote a debug file. Any process may mount what it likes in a
/// namespace of its own, and its files are still its user's.
fn may_speak_for(mapped_owner: Option<u32>, debug_file: &OwnedFd) -> bool {
    owner(debug_file).is_some_and(|user| user == 0 || Some(user) == mapped_owner)
}

/// The user that a file belongs to, in the host's user namespace.
fn owner(file: &OwnedFd) -> Option<u32> {
    rustix::fs::fstat(file).ok().map(|stat| stat.st_uid)
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
    use super::{Files, HOST, may_speak_for, owner, paths};
    use crate::address::{AbsAddr, FileOffset, Pid, Tid};
    use crate::elf::LocalFiles;
    use crate::engine::OpenFiles as _;
    use crate::process::fake::{FakeFiles, FakeHost, FakeProcess};
    use crate::process::files::{Backing, Wanted};
    use crate::process::host::{Host as _, ProcFs, Task};
    use crate::process::maps::MapsEntry;
    use proto::BuildId;
    use std::path::Path;
    use std::process::Command;
    use std::sync::Arc;

    #[test]
    fn debug_files_count_as_open_and_are_closed_with_their_files() {
        let host: Arc<FakeHost> = Arc::default();
        host.processes().insert(HOST.pid, FakeProcess::new(0, "/bin/init", &[]));
        let files = Files::new(Arc::clone(&host) as _, Arc::new(FakeFiles));
        let take = |path: String| {
            let opened = host.open_path(HOST, path.as_bytes()).unwrap();
            match files.take_opened(opened, path.as_bytes()) {
                Backing::File(file) => file.id,
                Backing::Anonymous => panic!("{path} is a file"),
            }
        };
        let ids: Vec<_> = (0..10).map(|number| take(format!("/bin/{number}"))).collect();
        for id in &ids {
            assert!(files.open_debug(*id).is_some());
        }
        assert_eq!(files.counts().open, 20);
        files.state().close_least_used(7);
        assert_eq!(files.counts().open, 6, "a file and its debug file go together");
        // The last ones used stay.
        let open = |id: &&_| files.state().entries[*id].open() == 2;
        assert_eq!(
            ids.iter().filter(open).collect::<Vec<_>>(),
            ids[7..].iter().collect::<Vec<_>>()
        );
    }

    #[test]
    fn what_nobody_could_be_asked_about_is_asked_again() {
        let host: Arc<FakeHost> = Arc::default();
        let insert = |pid| {
            host.processes().insert(pid, FakeProcess::new(0, "/bin/app", &[]));
        };
        let ended = Task { pid: Pid(7), tid: Tid(7) };
        insert(ended.pid);
        let files = Files::new(Arc::clone(&host) as _, Arc::new(FakeFiles));
        let opened = host.open_path(ended, b"/bin/app").unwrap();
        let Backing::File(file) = files.take_opened(opened, b"/bin/app") else { panic!("a file") };
        host.processes().remove(&ended.pid);
        assert!(files.open_debug(file.id).is_none());
        insert(HOST.pid);
        assert!(files.open_debug(file.id).is_some());
    }

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

    /// Compiles a library in a folder of its own and puts its debug file beside it.
    fn library(folder: &Path, source: &str) {
        std::fs::create_dir(folder).unwrap();
        std::fs::write(folder.join("l.c"), source).unwrap();
        for command in [
            "gcc -shared -fPIC -Wl,--build-id l.c -o l.so",
            "objcopy --only-keep-debug l.so l.debug",
            "objcopy --add-gnu-debuglink=l.debug l.so",
        ] {
            let mut words = command.split(' ');
            let tool = words.next().unwrap();
            let status = Command::new(tool).args(words).current_dir(folder).status();
            assert!(status.unwrap().success(), "{command}");
        }
    }

    /// True if a debug file is found for the library at `path`.
    fn has_debug_file(path: &Path) -> bool {
        let files = Files::new(Arc::new(ProcFs::new("/proc".into())), Arc::new(LocalFiles::new()));
        let pid = std::process::id();
        let task = Task { pid: Pid(pid), tid: Tid(pid) };
        let mapping = MapsEntry {
            start: AbsAddr(0x1000),
            end: AbsAddr(0x2000),
            file_offset: FileOffset(0),
            inode: 0,
            path: path.to_str().unwrap().into(),
        };
        let wanted = Wanted {
            task: Some(task),
            relatives: [task; 2],
            mapping: &mapping,
            build_id: None,
            inode: None,
        };
        let Backing::File(file) = files.behind(wanted) else { panic!("{path:?} was not found") };
        files.debug_file(file.id).is_some()
    }

    #[test]
    fn a_debug_file_is_of_the_same_build_and_of_the_files_owner_or_root() {
        let folder = tempfile::tempdir().unwrap();
        let (own, other) = (folder.path().join("own"), folder.path().join("other"));
        library(&own, "int own(void) { return 1; }");
        library(&other, "int other(void) { return 2; }");
        assert!(has_debug_file(&own.join("l.so")));
        if rustix::process::geteuid().is_root() {
            let chown = |name, user| {
                std::os::unix::fs::chown(own.join(name), Some(user), None).unwrap();
            };
            chown("l.debug", 12_345);
            assert!(!has_debug_file(&own.join("l.so")), "another user's");
            chown("l.so", 12_345);
            assert!(has_debug_file(&own.join("l.so")), "the same user's");
            chown("l.debug", 0);
            assert!(has_debug_file(&own.join("l.so")), "root's");
        } else {
            eprintln!("skipped: another user's debug file: not root");
        }
        std::fs::copy(other.join("l.debug"), own.join("l.debug")).unwrap();
        assert!(!has_debug_file(&own.join("l.so")), "of another build");
        let file = std::fs::File::open(own.join("l.so")).unwrap().into();
        assert!(may_speak_for(owner(&file), &file));
    }
}
