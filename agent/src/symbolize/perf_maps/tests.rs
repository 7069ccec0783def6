//! Perf maps of processes that are there: this one, and runtimes that write theirs.

use super::PerfMaps;
use crate::address::{AbsAddr, Pid};
use crate::clock::monotonic_now;
use crate::elf::Names;
use crate::limits::PERF_MAP_LOOK_INTERVAL_NS_MIN;
use crate::normalize::ProcessKey;
use crate::process::host::{Host as _, ProcFs};
use crate::symbolize::UnnamedReason;
use rustix::fs::{Mode, Timespec, Timestamps};
use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

fn key(pid: u32) -> ProcessKey {
    let start_time_ns = ProcFs::new("/proc".into()).status(Pid(pid)).unwrap().start_time_ns;
    ProcessKey { pid: Pid(pid), start_time_ns }
}

fn maps() -> PerfMaps {
    PerfMaps::start("/proc".into()).unwrap()
}

fn shown(names: Names) -> String {
    match names {
        Ok(lines) => lines.into_iter().map(|line| line.function).collect::<Vec<_>>().join(","),
        Err(reason) => format!("[{}]", reason.name()),
    }
}

fn names(maps: &PerfMaps, process: ProcessKey, addresses: &[u64]) -> Vec<String> {
    let addresses: Vec<AbsAddr> = addresses.iter().copied().map(AbsAddr).collect();
    maps.names(process, &addresses).into_iter().map(shown).collect()
}

/// A perf map of this process, removed at the end.
struct OwnMap(PathBuf);

impl OwnMap {
    fn new() -> Self {
        Self(format!("/tmp/perf-{}.map", std::process::id()).into())
    }

    fn append(&self, text: &str) {
        let mut file = OpenOptions::new().create(true).append(true).open(&self.0).unwrap();
        file.write_all(text.as_bytes()).unwrap();
    }
}

impl Drop for OwnMap {
    fn drop(&mut self) {
        let _gone = std::fs::remove_file(&self.0);
    }
}

fn wait_until_due() {
    std::thread::sleep(Duration::from_nanos(PERF_MAP_LOOK_INTERVAL_NS_MIN + 50_000_000));
}

/// One test, since the process has one map.
#[test]
fn a_map_is_followed_and_must_be_the_processes_own() {
    let map = OwnMap::new();
    let own = key(std::process::id());
    let maps_of = || maps();

    // None yet, and a process that is not there.
    let none = maps_of();
    assert_eq!(names(&none, own, &[0x10]), ["[anonymous code]"]);
    let gone = ProcessKey { start_time_ns: own.start_time_ns + 1_000_000_000, ..own };
    assert_eq!(names(&none, gone, &[0x10]), ["[file gone]"]);

    // What is appended is read, once it is due, and what is there already is not read again.
    let followed = maps_of();
    map.append("1000 100 first\n2000 100 second\nnonsense\n3000 1");
    assert_eq!(names(&followed, own, &[0x1000, 0x10ff, 0x1100]), ["first", "first", "[no symbol]"]);
    let read = followed.counts().read_bytes;
    map.append("00 third\n1000 80 moved\n");
    assert_eq!(names(&followed, own, &[0x3000]), ["[no symbol]"], "not due yet");
    wait_until_due();
    let now = names(&followed, own, &[0x3000, 0x1000, 0x1080, 0x2000]);
    assert_eq!(now, ["third", "moved", "first", "second"]);
    let counts = followed.counts();
    assert_eq!((counts.maps, counts.malformed), (1, 1));
    // The line that was not whole is read from its beginning.
    assert_eq!(
        counts.read_bytes - read,
        ("3000 1".len() + "00 third\n1000 80 moved\n".len()) as u64
    );

    // Written anew, longer than before: nothing of the old one holds.
    std::fs::write(&map.0, "5000 100 other, with a much longer name than all of those together, so that the file grows\n").unwrap();
    wait_until_due();
    let now = names(&followed, own, &[0x1000, 0x5000]);
    assert_eq!(now[0], "[no symbol]");
    assert!(now[1].starts_with("other"), "{now:?}");

    // A map that was removed still says what the code is that it named.
    std::fs::remove_file(&map.0).unwrap();
    wait_until_due();
    assert!(names(&followed, own, &[0x5000])[0].starts_with("other"));

    refused(&map, own);
}

/// Maps that do not count.
fn refused(map: &OwnMap, own: ProcessKey) {
    map.append("1000 100 planted\n");
    let set_age = |seconds: i64| {
        let time = Timespec { tv_sec: seconds, tv_nsec: 0 };
        let times = Timestamps { last_access: time, last_modification: time };
        rustix::fs::utimensat(rustix::fs::CWD, &map.0, &times, rustix::fs::AtFlags::empty())
            .unwrap();
    };
    assert_eq!(names(&maps(), own, &[0x1000]), ["planted"]);
    // Of an earlier process with this pid.
    set_age(1_000_000_000);
    let stale = maps();
    assert_eq!(names(&stale, own, &[0x1000]), ["[not readable]"]);
    assert_eq!(stale.counts().refused, 1);
    if rustix::process::geteuid().is_root() {
        map.append("2000 100 more\n");
        std::os::unix::fs::chown(&map.0, Some(12_345), None).unwrap();
        assert_eq!(names(&maps(), own, &[0x1000]), ["[not readable]"]);
    } else {
        eprintln!("skipped: another user's map: not root");
    }
    // A pipe must not be opened: nobody writes into it.
    std::fs::remove_file(&map.0).unwrap();
    let fifo = rustix::fs::FileType::Fifo;
    rustix::fs::mknodat(rustix::fs::CWD, &map.0, fifo, Mode::RWXU, 0).unwrap();
    assert_eq!(names(&maps(), own, &[0x1000]), ["[not readable]"]);
}

#[test]
fn what_was_read_outlives_its_process() {
    let mut child = std::process::Command::new("sleep").arg("100").spawn().unwrap();
    let path = format!("/tmp/perf-{}.map", child.id());
    std::fs::write(&path, "1000 100 code\n").unwrap();
    let process = key(child.id());
    let maps = maps();
    assert_eq!(names(&maps, process, &[0x1000]), ["code"]);
    child.kill().unwrap();
    child.wait().unwrap();
    std::fs::remove_file(&path).unwrap();
    wait_until_due();
    assert_eq!(names(&maps, process, &[0x1000, 0x2000]), ["code", "[no symbol]"]);
    assert!(Path::new(&path).metadata().is_err());
}

#[test]
fn an_exec_leaves_the_map_of_the_program_before_behind() {
    let mut child = std::process::Command::new("sleep").arg("100").spawn().unwrap();
    let path = format!("/tmp/perf-{}.map", child.id());
    let process = key(child.id());
    let before = monotonic_now();
    std::fs::write(&path, "1000 100 code\n").unwrap();
    let maps = maps();
    maps.executed(process.pid, before);
    let own = names(&maps, process, &[0x1000]);
    let ranges: super::Trampolines = [(AbsAddr(1), AbsAddr(2))].into();
    let later = ProcessKey { start_time_ns: process.start_time_ns + 1_000_000_000, ..process };
    let put = || {
        let known = (process, Arc::clone(&ranges));
        maps.shared.sightings().trampolines.insert(process.pid, known);
        assert_eq!(maps.trampolines(process).as_ref(), Some(&ranges));
        assert_eq!(maps.trampolines(later), None, "another process with this pid");
    };
    put();
    std::thread::sleep(Duration::from_millis(100));
    maps.executed(process.pid, monotonic_now());
    let others = names(&maps, process, &[0x1000]);
    let trampolines = maps.trampolines(process);
    put();
    maps.ended(process.pid);
    child.kill().unwrap();
    child.wait().unwrap();
    std::fs::remove_file(&path).unwrap();
    assert_eq!((own, others), (vec!["code".to_owned()], vec!["[not readable]".to_owned()]));
    assert_eq!((trampolines, maps.trampolines(process)), (None, None));
}

#[test]
fn maps_beyond_the_budget_are_forgotten_oldest_first() {
    use super::{Slot, State};
    use crate::limits::{PERF_MAPS_BYTES_MAX, PERF_MAPS_MAX};
    let key = |pid| ProcessKey { pid: Pid(pid), start_time_ns: 1 };
    let mut state = State::default();
    for pid in 0..8 {
        let slot =
            Slot { used: u64::from(pid), weight: PERF_MAPS_BYTES_MAX / 4, ..Slot::default() };
        state.slots.insert(key(pid), slot);
    }
    assert_eq!(state.make_room(key(0)), [1, 2, 3, 4].map(key), "the newest one's own stays");
    assert_eq!(state.counts.evicted, 4);
    let mut state = State::default();
    for pid in 0..=u32::try_from(PERF_MAPS_MAX).unwrap() {
        state.slots.insert(key(pid), Slot { used: u64::from(pid), ..Slot::default() });
    }
    let evicted = state.make_room(key(0));
    assert!(evicted.len() > PERF_MAPS_MAX / 16 && state.slots.len() < PERF_MAPS_MAX);
    assert_eq!(state.counts.evicted, 0, "these were empty");
}

#[test]
fn reasons_are_words() {
    assert_eq!(shown(Err(UnnamedReason::Limit)), "[limit]");
}
