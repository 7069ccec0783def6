//! Goal: probes lie where the code is. Method: programs built here, their functions as `nm` lists them.

mod hostile;

use super::effort::Effort;
use super::go::lock_functions;
use super::libc::{WaitingCall, search, waiting_calls};
use crate::clock::thread_cpu_ns;
use crate::elf::headers::Elf;
use crate::elf::source::Source;
use crate::limits::{PROBED_CALLS_MAX, PROBED_FUNCTIONS_MAX};
use agent_ebpf::LockForm;
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

/// The function that a call at this place of a file calls. In these files addresses of code are offsets.
fn called(file: &Path, place: u64, base: u64) -> u64 {
    let mut call = [0; 5];
    let opened = std::fs::File::open(file).unwrap();
    std::os::unix::fs::FileExt::read_exact_at(&opened, &mut call, place).unwrap();
    assert_eq!(call[0], 0xe8, "{}: no call at {place:#x}", file.display());
    let offset = i32::from_le_bytes(call[1..].try_into().unwrap());
    (base + place + 5).wrapping_add_signed(offset.into())
}

fn found(file: &Path) -> Vec<WaitingCall> {
    waiting_calls(std::fs::File::open(file).unwrap().as_fd()).unwrap()
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
    let path = Path::new(path);
    let found = found(path);
    let file = std::fs::File::open(path).unwrap();
    let (began_ns, effort) = (thread_cpu_ns(), Effort::begin());
    let elf = Elf::parse(Source::file(file.as_fd()).unwrap()).unwrap();
    assert_eq!(search(&elf, &effort).unwrap(), found);
    let (functions, taken_ns) = (effort.functions.get(), thread_cpu_ns() - began_ns);
    eprintln!("figure: {functions} functions in {taken_ns} ns, {} calls", found.len());
    // Far from what ends a search.
    assert!(functions < PROBED_FUNCTIONS_MAX / 10 && found.len() <= PROBED_CALLS_MAX / 2);
    for (form, name) in [
        (LockForm::GlibcMutex, "__lll_lock_wait"),
        (LockForm::GlibcRwLock, "__GI___futex_abstimed_wait64"),
    ] {
        let targets: std::collections::BTreeSet<u64> = found
            .iter()
            .filter(|call| call.form == form)
            .map(|call| called(path, call.place.0, 0))
            .collect();
        eprintln!("figure: {form:?}: {} calls of {targets:x?}", found.len());
        assert_eq!(targets.len(), 1, "{form:?}: {found:x?}");
        match by_debug_file(path, name) {
            Some(expected) => assert!(targets.contains(&expected), "{form:?}: {expected:#x}"),
            None => println!("skipped: no separate symbol {name} of {}", path.display()),
        }
    }
}

/// A program without names, and the same one with them.
#[test]
fn a_c_library_in_a_program_says_where_it_waits() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("main.c");
    let text = "#include <pthread.h>\n#include <stdio.h>\npthread_mutex_t m = PTHREAD_MUTEX_INITIALIZER;\n\
                int main(void) { pthread_mutex_lock(&m); return puts(\"\"); }\n";
    std::fs::write(&source, text).unwrap();
    let build = |name: &str, flags: &[&str]| {
        let file = folder.path().join(name);
        let mut command = Command::new("gcc");
        command.args(["-O2", "-static", "-no-pie", "-pthread"]).args(flags).arg("-o").arg(&file);
        let status = command.arg(&source).status().ok()?;
        status.success().then_some(file)
    };
    let (Some(plain), Some(stripped)) = (build("plain", &[]), build("stripped", &["-s"])) else {
        println!("skipped: no compiler that links statically");
        return;
    };
    let names = Command::new("nm").arg(&plain).output().unwrap();
    let names = String::from_utf8_lossy(&names.stdout).into_owned();
    let line = names.lines().find(|line| line.ends_with(" T __lll_lock_wait")).unwrap();
    let expected = u64::from_str_radix(line.split(' ').next().unwrap(), 16).unwrap();
    let found = found(&stripped);
    assert!(!found.is_empty());
    for call in found {
        assert_eq!(called(&stripped, call.place.0, 0x40_0000), expected, "{call:x?}");
    }
}

#[test]
fn musl_says_where_it_waits() {
    let path = Path::new("/lib/ld-musl-x86_64.so.1");
    if !path.exists() {
        println!("skipped: no musl");
        return;
    }
    let found = found(path);
    let of = |form| found.iter().filter(|call| call.form == form).count();
    let forms = [LockForm::MuslMutex, LockForm::MuslRwLock].map(of);
    assert!(forms[0] >= 1 && forms[1] >= 2, "{found:x?}");
    let targets: std::collections::BTreeSet<u64> =
        found.iter().map(|call| called(path, call.place.0, 0)).collect();
    assert_eq!(targets.len(), 1, "{found:x?}");
}

#[test]
fn what_is_no_c_library_has_no_place() {
    assert_eq!(found(Path::new("/proc/self/exe")), []);
    let mut broken = tempfile::tempfile().unwrap();
    std::io::Write::write_all(&mut broken, b"\x7fELF").unwrap();
    assert!(waiting_calls(broken.as_fd()).is_err());
}
