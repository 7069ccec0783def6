//! Goal: probes lie where the code is. Method: programs built here, their functions as `nm` lists them.

use super::go::lock_functions;
use super::libc::{LibcWait, lock_wait};
use std::os::fd::AsFd as _;
use std::path::Path;
use std::process::Command;

/// A program that uses both locks.
const PROGRAM: &str = r#"package main

import "sync"

var mutex sync.Mutex
var rwlock sync.RWMutex

func main() {
	mutex.Lock()
	mutex.Unlock()
	rwlock.RLock()
	rwlock.RUnlock()
	rwlock.Lock()
	rwlock.Unlock()
}
"#;

/// Builds it; `None`, said aloud, if there is no Go.
fn build(folder: &Path, name: &str, flags: &[&str]) -> Option<std::path::PathBuf> {
    let source = folder.join("main.go");
    std::fs::write(&source, PROGRAM).unwrap();
    let out = folder.join(name);
    let mut command = Command::new(std::env::var_os("VESTA_GO").unwrap_or_else(|| "go".into()));
    command.args(["build"]).args(flags).arg("-o").arg(&out).arg(&source);
    let output = command.env("GO111MODULE", "off").env("GOFLAGS", "").output();
    let Ok(output) = output else {
        println!("skipped: no Go compiler");
        return None;
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(out)
}

/// Addresses of functions by `go tool nm`; these programs are linked to run where their file says, and the first
/// segment of code begins at address 0x401000 and at offset 0x1000.
fn by_nm(program: &Path) -> Vec<(String, u64)> {
    let output = Command::new("nm").arg(program).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let lines = text.lines().filter_map(|line| {
        let mut words = line.splitn(3, ' ');
        let address = u64::from_str_radix(words.next()?, 16).ok()?;
        Some((words.nth(1)?.to_owned(), address - 0x40_0000))
    });
    lines.filter(|(name, _)| name.contains("runtime_Semacquire")).collect()
}

#[test]
fn locks_of_go_are_found_with_and_without_symbols() {
    let folder = tempfile::tempdir().unwrap();
    let Some(plain) = build(folder.path(), "plain", &[]) else { return };
    let stripped = build(folder.path(), "stripped", &["-ldflags=-s -w"]).unwrap();
    let open = |path: &Path| std::fs::File::open(path).unwrap();
    let found = lock_functions(open(&plain).as_fd()).unwrap();
    let names: Vec<&str> = found.iter().map(|function| function.name).collect();
    assert!(names.iter().any(|name| name.ends_with("sync.runtime_SemacquireMutex")), "{names:?}");
    assert!(names.contains(&"sync.runtime_SemacquireRWMutex"), "{names:?}");
    assert!(names.contains(&"sync.runtime_SemacquireRWMutexR"), "{names:?}");
    for function in &found {
        let known = by_nm(&plain);
        let (_, entry) = known.iter().find(|(name, _)| name == function.name).unwrap();
        assert_eq!(function.entry.0, *entry, "{}", function.name);
        // `c3`, and what follows is padding or another function.
        for at in &function.returns {
            let mut byte = [0];
            std::os::unix::fs::FileExt::read_exact_at(&open(&plain), &mut byte, at.0).unwrap();
            assert_eq!(byte, [0xc3], "{}", function.name);
        }
    }
    let without_symbols = lock_functions(open(&stripped).as_fd()).unwrap();
    assert_eq!(without_symbols.len(), found.len());
    let nothing = lock_functions(open(Path::new("/proc/self/exe")).as_fd()).unwrap();
    assert!(nothing.is_empty());
}

/// The file offset of a local function by the library's separate symbols, if this host has them: glibc's first segment
/// begins at address 0, so that both are the same.
fn by_debug_file(library: &Path, function: &str) -> Option<u64> {
    let notes = Command::new("readelf").arg("--notes").arg(library).output().ok()?;
    let notes = String::from_utf8_lossy(&notes.stdout).into_owned();
    let id = notes.lines().find_map(|line| line.trim().strip_prefix("Build ID: "))?.to_owned();
    let (folder, rest) = id.split_at_checked(2)?;
    let file = format!("/usr/lib/debug/.build-id/{folder}/{rest}.debug");
    let output = Command::new("nm").arg(file).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = text.lines().find(|line| line.ends_with(&format!(" t {function}")))?;
    u64::from_str_radix(line.split(' ').next()?, 16).ok()
}

#[test]
fn the_c_library_of_this_host_says_where_it_waits() {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let Some(path) = maps.lines().find_map(|line| {
        Some(&line[line.find('/')?..]).filter(|path| {
            path.rsplit('/')
                .next()
                .is_some_and(|name| name.starts_with("libc.so") || name.starts_with("libc-2"))
        })
    }) else {
        println!("skipped: this test is linked statically");
        return;
    };
    let found = lock_wait(std::fs::File::open(path).unwrap().as_fd()).unwrap();
    let Some(LibcWait::Glibc(place)) = found else { panic!("{path}: {found:?}") };
    match by_debug_file(Path::new(path), "__lll_lock_wait") {
        Some(expected) => assert_eq!(place.0, expected, "{path}"),
        None => println!("skipped: no separate symbols of {path}"),
    }
}

#[test]
fn musl_says_where_it_waits() {
    let path = Path::new("/lib/ld-musl-x86_64.so.1");
    let Ok(file) = std::fs::File::open(path) else {
        println!("skipped: no musl");
        return;
    };
    let found = lock_wait(file.as_fd()).unwrap();
    let Some(LibcWait::Musl(place)) = found else { panic!("{found:?}") };
    // It begins like a function: no return in front of its first call, and behind padding or a return.
    let mut before = [0];
    std::os::unix::fs::FileExt::read_exact_at(&file, &mut before, place.0 - 1).unwrap();
    assert!([0x90, 0xc3, 0xcc, 0x00, 0x66].contains(&before[0]), "{before:x?} before {place:?}");
}

#[test]
fn what_is_no_c_library_has_no_place() {
    let own = std::fs::File::open("/proc/self/exe").unwrap();
    assert_eq!(lock_wait(own.as_fd()).unwrap(), None);
    let mut broken = tempfile::tempfile().unwrap();
    std::io::Write::write_all(&mut broken, b"\x7fELF").unwrap();
    assert!(lock_wait(broken.as_fd()).is_err());
}
