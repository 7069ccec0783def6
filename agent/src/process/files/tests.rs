//! Which file a mapping is believed to show.

use super::inode::is_unchanged;
use super::*;
use crate::address::{Pid, Tid};
use crate::clock::UnixNs;
use crate::process::fake::{
    FAKE_BYTES, FakeFiles, FakeHost, FakeProcess, fake_build_id, fake_path,
};

/// What is behind `/bin/a` for a process that is gone, and without relatives, after a living one had
/// `mapped` read.
fn found(mapped: &str, owner: Option<u32>) -> bool {
    let host: Arc<FakeHost> = Arc::default();
    let files = Files::new(Arc::clone(&host) as _, Arc::new(FakeFiles));
    let task = |pid| Task { pid: Pid(pid), tid: Tid(pid) };
    host.processes().insert(Pid(1), FakeProcess::new(0, mapped, &[]));
    let mapping = |path: &str| reported_mapping(AbsAddr(0x1000), 0x1000, 0, path.into()).unwrap();
    // The content of a made-up file is its path, and gives the build id.
    let content = host.open(task(1), &mapping("/bin/a")).unwrap();
    rustix::fs::fchown(&content.descriptor, owner.map(rustix::fs::Uid::from_raw), None).unwrap();
    let Backing::File(known) = files.take_opened(content, mapped.as_bytes()) else {
        panic!("no file")
    };
    let (build_id, mapping) = (fake_build_id("/bin/a"), mapping("/bin/a"));
    let relatives = [task(7), task(8)];
    let wanted =
        Wanted { task: None, relatives, mapping: &mapping, build_id: Some(&build_id), inode: None };
    let Backing::File(file) = files.behind(wanted) else { panic!("no file") };
    file.id == known.id
}

#[test]
fn a_build_id_is_believed_where_path_and_owner_agree() {
    assert!(found("/bin/a", None));
    assert!(!found("/tmp/a", None), "another path");
    if rustix::process::geteuid().is_root() {
        assert!(!found("/bin/a", Some(1000)), "anybody could have made it");
    } else {
        eprintln!("skipped: only root can give files away");
    }
}

/// A process may write over its own, or map one of another length; what it does is nobody else's.
#[test]
fn the_vdso_is_the_agents_own() {
    let host: Arc<FakeHost> = Arc::default();
    let files = Files::new(Arc::clone(&host) as _, Arc::new(FakeFiles));
    let task = Task { pid: Pid(1), tid: Tid(1) };
    let behind = |by: Option<Task>, bytes: u64| {
        let mapping = reported_mapping(AbsAddr(0x1000), bytes, 0, b"[vdso]".to_vec()).unwrap();
        let (mapping, relatives) = (&mapping, [task; 2]);
        match files.behind(Wanted { task: by, relatives, mapping, build_id: None, inode: None }) {
            Backing::File(file) => Some(file),
            Backing::Anonymous => None,
        }
    };
    assert!(behind(Some(task), 2 * FAKE_BYTES).is_none(), "of another length");
    let first = behind(None, FAKE_BYTES).expect("nobody's memory is read");
    assert_eq!(first.path, "[vdso]");
    assert_eq!(fake_path(&files.open(first.id).unwrap()), "vdso");
    assert_eq!(behind(Some(task), FAKE_BYTES).unwrap().id, first.id);
}

/// What the kernel could read no build id of is told by its inode, as long as nobody changed it since.
#[test]
fn a_file_without_build_id_is_believed_where_nobody_changed_it() {
    let host: Arc<FakeHost> = Arc::default();
    let files = Files::new(Arc::clone(&host) as _, Arc::new(FakeFiles));
    let task = |pid| Task { pid: Pid(pid), tid: Tid(pid) };
    host.processes().insert(Pid(1), FakeProcess::new(0, "/bin/a", &[]));
    let mapping = reported_mapping(AbsAddr(0x1000), 0x1000, 0, b"/bin/a".to_vec()).unwrap();
    let identity = host.open(task(1), &mapping).unwrap().identity;
    let inode = Inode { device: identity.device, number: identity.inode };
    let is_known = |inode: Inode| {
        let (relatives, mapping) = ([task(7), task(1)], &mapping);
        let inode = Some((inode, monotonic_now()));
        let wanted = Wanted { task: None, relatives, mapping, build_id: None, inode };
        let Backing::File(file) = files.behind(wanted) else { panic!("no file") };
        file.facts.is_some()
    };
    assert!(is_known(inode));
    assert!(!is_known(Inode { number: inode.number + 1, ..inode }), "another file");
    assert!(!is_known(Inode { device: inode.device + 1, ..inode }), "on another file system");
    let changed = FileIdentity { changed_ns: 5_000_000_000, ..identity };
    assert!(is_unchanged(&changed, inode, UnixNs(5_200_000_000)));
    assert!(!is_unchanged(&changed, inode, UnixNs(5_050_000_000)), "a new one may have its number");
}
