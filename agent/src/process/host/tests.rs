//! Against this machine's own `/proc`: the test process is the process looked at.

use super::{Host as _, OpenError, ProcFs, Task};
use crate::address::{AbsAddr, FileOffset, Pid, Tid};
use crate::limits::MAPPINGS_PER_PROCESS_MAX;
use crate::path;
use crate::process::maps::MapsEntry;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;

fn host() -> ProcFs {
    ProcFs::new(PathBuf::from("/proc"))
}

fn me() -> Task {
    let pid = std::process::id();
    Task { pid: Pid(pid), tid: Tid(pid) }
}

fn entry(path: &str) -> MapsEntry {
    MapsEntry {
        start: AbsAddr(0x1000),
        end: AbsAddr(0x2000),
        file_offset: FileOffset(0),
        inode: 0,
        path: path.into(),
    }
}

#[test]
fn own_status_and_executable() {
    let status = host().status(me().pid).unwrap();
    assert!(!status.kernel_thread && !status.zombie && status.threads >= 1);
    assert!(status.start_time_ns > 0);
    assert!(host().pids().unwrap().contains(&me().pid));
    let path = String::from_utf8(host().executable(me()).unwrap()).unwrap();
    assert_eq!(PathBuf::from(path), std::env::current_exe().unwrap());
}

#[test]
fn who_shares_mounts_and_root_shares_a_view() {
    let mine = host().view(me()).unwrap();
    assert!(mine.starts_with(b"mnt:[") && mine.ends_with(b"\0/"), "{mine:?}");
    let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
    let other = Task { pid: Pid(child.id()), tid: Tid(child.id()) };
    assert_eq!(host().view(other).unwrap(), mine);
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(host().view(other).is_err());
}

#[test]
fn mapped_file_opens_by_range_or_by_path() {
    let maps = host().maps(me()).unwrap();
    let exe = std::fs::metadata("/proc/self/exe").unwrap();
    let mapped = maps.entries.iter().find(|map| map.inode == exe.ino()).unwrap();
    let by_range = host().open(me(), mapped).unwrap();
    assert_eq!(by_range.identity.inode, exe.ino());
    assert_eq!(by_range.identity.size, exe.len());
    // A range that is not mapped: the path decides.
    let moved = MapsEntry { start: AbsAddr(0x1000), end: AbsAddr(0x2000), ..mapped.clone() };
    assert_eq!(host().open(me(), &moved).unwrap().identity, by_range.identity);
    // The path of another file: refused by its inode.
    let other = MapsEntry { path: b"/proc/self/maps".to_vec(), ..moved };
    assert!(matches!(host().open(me(), &other), Err(OpenError::Io(_))));
}

#[test]
fn only_regular_files_are_opened() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RWXU).unwrap();
    // Would wait for a writer, if it were opened in the ordinary way.
    let found = host().open_path(me(), pipe.to_str().unwrap().as_bytes());
    assert!(matches!(found, Err(OpenError::NotRegular)), "{found:?}");
    let found = host().open_path(me(), b"/dev/null");
    assert!(matches!(found, Err(OpenError::NotRegular)), "{found:?}");
    // A magic link leads out of the process's view of files.
    let found = host().open_path(me(), b"/proc/self/exe");
    assert!(matches!(found, Err(OpenError::Io(_))), "{found:?}");
    assert!(host().open(me(), &entry("/nothing/here")).is_err());
    // Regular by their mode, and the kernel's own.
    for path in ["/proc/self/maps", "/proc/kmsg", "/sys/kernel/mm/transparent_hugepage/enabled"] {
        let found = host().open_path(me(), path.as_bytes());
        let absent = !std::path::Path::new(path).exists();
        assert!(absent || matches!(found, Err(OpenError::NotRegular)), "{path}: {found:?}");
    }
}

#[test]
fn own_vdso_is_an_elf_file() {
    let maps = host().maps(me()).unwrap();
    let vdso = maps.entries.iter().find(|map| map.path == b"[vdso]").unwrap();
    let (length, bytes) = host().vdso().unwrap();
    assert_eq!(bytes.get(..4), Some(&b"\x7fELF"[..]));
    assert_eq!(length, vdso.end.0 - vdso.start.0);
    assert_eq!(host().memory(me(), vdso.start, vdso.end).unwrap(), bytes);
    assert!(host().memory(me(), AbsAddr(0), AbsAddr(1 << 40)).is_err());
    assert!(host().memory(me(), AbsAddr(9), AbsAddr(1)).is_err());
}

/// As a store of packages has it, which gives every file one time.
#[test]
fn a_file_that_is_written_again_with_its_old_time_is_another() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("library");
    let fixed = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1);
    let write = |bytes: &str| {
        std::fs::write(&path, bytes).unwrap();
        std::fs::File::options().write(true).open(&path).unwrap().set_modified(fixed).unwrap();
        host().open_path(me(), path.to_str().unwrap().as_bytes()).unwrap()
    };
    let old = write("old").identity;
    // The kernel's clock of files goes in ticks.
    std::thread::sleep(std::time::Duration::from_millis(20));
    let new = write("new");
    assert_ne!(old, new.identity);
    // A file that is deleted is what it was to those who have it.
    std::fs::remove_file(&path).unwrap();
    let deleted = super::regular_identity(&new.descriptor).unwrap();
    assert!(deleted.is_as_before(&new.identity));
    let other_size = super::FileIdentity { size: 4, ..deleted };
    assert!(!other_size.is_as_before(&new.identity));
}

#[test]
fn environment_of_a_child() {
    let mut child = std::process::Command::new("sleep")
        .arg("10")
        .env_clear()
        .env("SECRET", "1")
        .env("OTEL_SERVICE_NAME", "shop")
        .env("PATH", "/usr/bin:/bin")
        .spawn()
        .unwrap();
    let task = Task { pid: Pid(child.id()), tid: Tid(child.id()) };
    let name = host().service_name(task).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(name.as_deref(), Some("shop"));
    assert!(host().status(task.pid).is_err(), "a reaped process is gone");
    host().cgroup(me().pid).unwrap();
}

#[test]
fn main_thread_that_ended_first() {
    // Python can end its main thread alone through libc's pthread_exit.
    let script = "import ctypes, threading, time\n\
                  threading.Thread(target=time.sleep, args=(10,)).start()\n\
                  print('up', flush=True)\n\
                  ctypes.CDLL(None).pthread_exit(None)\n";
    let Ok(mut child) = std::process::Command::new("python3")
        .args(["-c", script])
        .stdout(std::process::Stdio::null())
        .spawn()
    else {
        eprintln!("skipped: no python3 on this machine");
        return;
    };
    let pid = Pid(child.id());
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(5);
    while !host().status(pid).unwrap().zombie && std::time::Instant::now() < deadline {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let tid = std::fs::read_dir(format!("/proc/{}/task", pid.0))
        .unwrap()
        .filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok())
        .find(|&tid| tid != pid.0)
        .map(Tid)
        .unwrap();
    let task = Task { pid, tid };
    let status = host().status(pid).unwrap();
    let maps = host().maps(task).unwrap();
    let libc = maps.entries.iter().find(|map| map.path.ends_with(b"/libc.so.6")).cloned();
    let opened = libc.map(|libc| host().open(task, &libc).map(|file| file.identity.inode));
    let path = host().executable(task);
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(status.zombie && status.threads >= 1, "{status:?}");
    assert!(opened.unwrap().unwrap() > 0, "libc opens through the living thread");
    assert!(path.unwrap().starts_with(b"/"));
}

/// What a running copy of `sleep` at `path` is called, and whether to the last letter, once `change` was done
/// to it.
#[track_caller]
fn called(path: &std::path::Path, change: impl FnOnce()) -> (String, bool) {
    let mut child = std::process::Command::new(path).arg("10").spawn().unwrap();
    let task = Task { pid: Pid(child.id()), tid: Tid(child.id()) };
    // Its start returns in the middle of the exec.
    let linked = |map: &MapsEntry| map.path.ends_with(b"/libc.so.6");
    while !host().maps(task).unwrap().entries.iter().any(linked) {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    change();
    let executable = host().executable(task).unwrap();
    let maps = host().maps(task).unwrap();
    let first = maps.entries.first().unwrap();
    assert_eq!(executable, first.path, "the kernel states it here and there in one way");
    let named = host().open(task, first).map(|opened| opened.named);
    child.kill().unwrap();
    child.wait().unwrap();
    let named = named.unwrap();
    let name = if named { &executable[..] } else { path::without_remark(&executable) };
    (String::from_utf8(name.to_vec()).unwrap(), named)
}

#[test]
fn a_deleted_file_is_told_from_one_that_is_called_so() {
    let folder = tempfile::tempdir().unwrap();
    let copy = |name: &str| {
        let path = folder.path().join(name);
        std::fs::copy("/bin/sleep", &path).unwrap();
        path
    };
    let shown = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
    let remove = |path: &std::path::Path| std::fs::remove_file(path).unwrap();
    assert_eq!(called(&copy("plain"), || {}), (shown("plain"), true));
    let so = copy("so (deleted)");
    assert_eq!(called(&so, || {}), (shown("so (deleted)"), true));
    assert_eq!(called(&so, || remove(&so)), (shown("so (deleted)"), false));
    let gone = copy("gone");
    assert_eq!(called(&gone, || remove(&gone)), (shown("gone"), false));
    // A second name keeps the file, not the name.
    let linked = copy("linked");
    std::fs::hard_link(&linked, folder.path().join("other")).unwrap();
    assert_eq!(called(&linked, || remove(&linked)), (shown("linked"), false));
    // Another file under the old name with the remark is not this one.
    let replaced = copy("replaced");
    copy("replaced (deleted)");
    assert_eq!(called(&replaced, || remove(&replaced)), (shown("replaced"), false));
    let memory = rustix::fs::memfd_create("a/b", rustix::fs::MemfdFlags::empty()).unwrap();
    let path = format!("/proc/{}/fd/{}", std::process::id(), memory.as_raw_fd());
    std::fs::copy("/bin/sleep", &path).unwrap();
    assert_eq!(called(path.as_ref(), || {}), ("/memfd:a/b".to_owned(), false));
}

#[test]
fn a_maps_file_of_128_000_lines_is_read_once_and_bounded() {
    let root = tempfile::tempdir().unwrap();
    let process = root.path().join("77");
    std::fs::create_dir(&process).unwrap();
    // As V8 has it: data and code in turns, most of it without a file.
    let lines = (0..128_000_u64).map(|number| {
        let (start, end) = (0x7f00_0000_0000 + number * 0x2000, 0x7f00_0000_1000 + number * 0x2000);
        let permissions = if number % 10 == 0 { "r-xp" } else { "rw-p" };
        format!("{start:x}-{end:x} {permissions} 00000000 00:00 0 \n")
    });
    std::fs::write(process.join("maps"), lines.collect::<String>()).unwrap();
    let host = ProcFs::new(root.path().to_owned());
    let begin = std::time::Instant::now();
    let maps = host.maps(Task { pid: Pid(77), tid: Tid(77) }).unwrap();
    eprintln!("128,000 lines in {:?}", begin.elapsed());
    assert_eq!((maps.entries.len(), maps.left_out), (MAPPINGS_PER_PROCESS_MAX, 12_800 - 8192));
}
