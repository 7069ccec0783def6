//! Files that do not answer, as on a dead mount.

use super::*;
use crate::address::{AbsAddr, ElfAddr, FileId, FileOffset, Tid};
use crate::elf::{FileFacts, ForeignFileError, ForeignFiles, Names};
use crate::limits::LOOK_WAIT_PER_POLL;
use crate::process::fake::{FakeFiles, FakeHost, FakeProcess, fake_path};
use crate::unwind::RowTable;
use std::os::fd::OwnedFd;
use std::time::Instant;

/// Answers for paths that hold `dead` only once it is told to; panics at what holds `odd`.
#[derive(Debug, Default)]
struct Mount {
    alive: Mutex<bool>,
    changed: Condvar,
}

impl Mount {
    fn answer(&self) {
        *locked(&self.alive) = true;
        self.changed.notify_all();
    }
}

impl ForeignFiles for Mount {
    fn inspect(&self, file: &OwnedFd) -> Result<FileFacts, ForeignFileError> {
        let path = fake_path(file);
        assert!(!path.contains("odd"), "a defect of a parser");
        if path.contains("dead") || path.contains("vdso") {
            let alive = locked(&self.alive);
            drop(self.changed.wait_while(alive, |alive| !*alive).unwrap());
        }
        FakeFiles.inspect(file)
    }

    fn unwind_rows(&self, file: &OwnedFd) -> Result<RowTable, ForeignFileError> {
        FakeFiles.unwind_rows(file)
    }

    fn names_with(
        &self,
        id: FileId,
        file: &OwnedFd,
        debug_file: Option<&OwnedFd>,
        addresses: &[ElfAddr],
        until: MonotonicNs,
    ) -> Vec<Names> {
        FakeFiles.names_with(id, file, debug_file, addresses, until)
    }
}

fn looks(mount: &Arc<Mount>) -> Looks {
    let host: Arc<FakeHost> = Arc::default();
    for pid in (0..100).chain(1000..1200) {
        host.processes().insert(Pid(pid), FakeProcess::new(0, "/bin/a", &[]));
    }
    Looks::start(Arc::new(Files::new(host, Arc::clone(mount) as _))).unwrap()
}

fn look(pid: u32, paths: &[&str]) -> Look {
    let task = Task { pid: Pid(pid), tid: Tid(pid) };
    let asked = |path: &&str| Asked {
        mapping: MapsEntry {
            start: AbsAddr(0x1000),
            end: AbsAddr(0x2000),
            file_offset: FileOffset(0),
            inode: 0,
            path: path.as_bytes().to_vec(),
        },
        build_id: None,
        inode: None,
    };
    let asked = paths.iter().map(asked).collect();
    let program = MonotonicNs(0);
    Look { pid: Pid(pid), program, task: Some(task), relatives: [task; 2], asked }
}

/// `path`, `path?` where it is awaited, `-` for what is no file.
fn shown(seen: &[Seen]) -> String {
    let one = |seen: &Seen| match &seen.backing {
        Backing::Anonymous => "-".to_owned(),
        Backing::File(file) => format!("{}{}", file.path, if seen.awaited { "?" } else { "" }),
    };
    seen.iter().map(one).collect::<Vec<_>>().join(" ")
}

/// Waits until something holds; the threads are not this test's.
#[track_caller]
fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < Duration::from_secs(20), "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn a_dead_mount_holds_up_nobody_else() {
    let mount: Arc<Mount> = Arc::default();
    let looks = looks(&mount);
    let begin = Instant::now();
    // Many more than there are threads at first.
    for number in 0..8 {
        let path = format!("/dead/{number}");
        let seen = looks.look(look(number, &["/lib/a", &path]));
        assert_eq!(shown(&seen), format!("/lib/a? {path}?"), "the process waits");
        until("others go on", || {
            shown(&looks.look(look(50, &["/lib/b", "", "/etc/text"]))) == "/lib/b - -"
        });
    }
    // The same path again costs no thread and no wait.
    let stuck = looks.counts();
    assert_eq!(stuck.stuck, 8);
    for pid in 20..90 {
        until("what does not answer is not asked for again", || {
            shown(&looks.look(look(pid, &["/dead/3", "/lib/b"]))) == "/dead/3? /lib/b"
        });
    }
    assert_eq!(looks.counts().stuck, 8);
    assert!(looks.counts().held >= 70);
    assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
    drop(looks.take_late()); // on a busy machine others may be late too
    // It answers at last: all who asked may ask again, and get it.
    mount.answer();
    until("nothing is stuck", || looks.counts().stuck == 0);
    let mut late = looks.take_late();
    late.sort_unstable();
    late.dedup();
    assert_eq!(late.len(), 8 + 70);
    until("it is there", || {
        shown(&looks.look(look(30, &["/dead/3", "/lib/a"]))) == "/dead/3 /lib/a"
    });
    let shared = Arc::clone(&looks.pools.as_ref().unwrap().files);
    until("the extra threads end", || {
        shared.wake.notify_all();
        locked(&shared.queue).threads == LOOK_THREADS
    });
    drop(looks);
    until("all threads end", || locked(&shared.queue).threads == 0);
}

#[test]
fn a_dead_mount_of_one_container_holds_up_no_other() {
    let mount: Arc<Mount> = Arc::default();
    let looks = looks(&mount);
    for (first, second, stuck) in [(1000, 1001, 1), (1100, 1101, 2)] {
        until("its container is asked", || {
            assert_eq!(shown(&looks.look(look(first, &["/dead/a"]))), "/dead/a?");
            looks.counts().stuck == stuck
        });
        assert_eq!(shown(&looks.look(look(second, &["/dead/a"]))), "/dead/a?");
        assert_eq!(looks.counts().stuck, stuck, "once");
    }
    mount.answer();
    until("nothing is stuck", || looks.counts().stuck == 0);
    assert!(locked(&looks.pools.as_ref().unwrap().files.queue).held.is_empty());
}

#[test]
fn a_process_whose_memory_does_not_answer_keeps_the_vdso_from_no_other() {
    let mount: Arc<Mount> = Arc::default();
    let looks = looks(&mount);
    for pid in 1..4 {
        until("each is asked", || {
            assert_eq!(shown(&looks.look(look(pid, &["[vdso]"]))), "-");
            looks.counts().stuck == u64::from(pid)
        });
    }
    assert_eq!(looks.counts().held, 0);
    mount.answer();
    until("nothing is stuck", || looks.counts().stuck == 0);
}

#[test]
fn when_all_threads_are_stuck_the_engine_still_goes_on() {
    let mount: Arc<Mount> = Arc::default();
    let looks = looks(&mount);
    let count = u32::try_from(LOOK_THREADS_MAX).unwrap();
    for number in 0..count {
        looks.look(look(number, &[&format!("/dead/{number}")]));
    }
    assert_eq!(looks.counts().stuck, u64::from(count));
    let begin = Instant::now();
    assert_eq!(shown(&looks.look(look(50, &["/lib/b"]))), "/lib/b?");
    assert!(begin.elapsed() < Duration::from_secs(1));
    mount.answer();
    until("nothing is stuck", || looks.counts().stuck == 0);
    until("the one that waited is told too", || looks.take_late().contains(&Pid(50)));
    until("it is there", || shown(&looks.look(look(50, &["/lib/b"]))) == "/lib/b");
}

#[test]
fn who_is_refused_asks_again_when_there_is_room() {
    let mount: Arc<Mount> = Arc::default();
    let looks = looks(&mount);
    let mut number = 0;
    until("all threads are stuck", || {
        looks.look(look(1, &[&format!("/dead/{number}")]));
        number += 1;
        looks.counts().stuck == u64::try_from(LOOK_THREADS_MAX).unwrap()
    });
    let asked = u32::try_from(LOOK_QUEUE_MAX).unwrap() + 10;
    for number in 0..asked {
        looks.look(look(if number < asked - 10 { 2 } else { 1000 + number % 10 }, &["/lib/a"]));
    }
    let counts = looks.counts();
    assert!(counts.refused >= 10, "{counts:?}");
    assert!(!looks.take_late().iter().any(|pid| pid.0 >= 1000), "in vain");
    mount.answer();
    let mut late = HashSet::new();
    until("all who were refused may ask again", || {
        late.extend(looks.take_late());
        (1000..1010).all(|pid| late.contains(&Pid(pid)))
    });
    until("it is there", || shown(&looks.look(look(1000, &["/lib/a"]))) == "/lib/a");
}

#[test]
fn a_parser_that_panics_costs_one_file() {
    let mount: Arc<Mount> = Arc::default();
    let looks = looks(&mount);
    // A panic with a backtrace takes longer than anybody waits.
    until("it is over", || shown(&looks.look(look(1, &["/odd", "/lib/a"]))) == "- /lib/a");
    assert!(looks.counts().panics >= 1);
}

#[test]
fn a_poll_waits_a_moment_in_all() {
    let mount: Arc<Mount> = Arc::default();
    let looks = looks(&mount);
    looks.begin_poll();
    let most = LOOK_THREADS_MAX as u64 - 2;
    for number in 0..most {
        let number = u32::try_from(number).unwrap();
        let path = format!("/dead/{number}");
        assert_eq!(shown(&looks.look(look(number, &[&path]))), format!("{path}?"));
    }
    let whole = LOOK_WAIT_PER_POLL.as_millis() / LOOK_WAIT.as_millis();
    let counts = looks.counts();
    assert!(u128::from(counts.late) <= whole, "{counts:?}");
    assert_eq!(counts.postponed, most - counts.late, "{counts:?}");
    // What nobody waits for takes no thread away either.
    until("all are noticed", || {
        drop(looks.take_late());
        looks.counts().stuck == most
    });
    looks.begin_poll();
    until("others go on", || shown(&looks.look(look(50, &["/lib/b"]))) == "/lib/b");
    mount.answer();
    let mut late = HashSet::new();
    until("all who asked are told", || {
        late.extend(looks.take_late());
        (0..most).all(|pid| late.contains(&Pid(u32::try_from(pid).unwrap())))
    });
    assert_eq!(looks.counts().stuck, 0);
}

#[test]
fn what_nobody_waited_for_can_be_had_later() {
    let mount: Arc<Mount> = Arc::default();
    let looks = looks(&mount);
    looks.begin_poll();
    looks.patience.spend(LOOK_WAIT_PER_POLL, |wait| {
        std::thread::sleep(wait);
        None::<()>
    });
    // What takes its time: an answer may come before anybody asks for it.
    assert_eq!(shown(&looks.look(look(50, &["/dead/b"]))), "/dead/b?");
    assert_eq!(shown(&looks.look(look(51, &["/dead/c"]))), "/dead/c?");
    assert_eq!(looks.counts().postponed, 2);
    mount.answer();
    let mut late = HashSet::new();
    until("both are told", || {
        late.extend(looks.take_late());
        [50, 51].iter().all(|pid| late.contains(&Pid(*pid)))
    });
    // Without any wait: no poll has begun since.
    assert_eq!(shown(&looks.look(look(50, &["/dead/b"]))), "/dead/b");
    assert_eq!(shown(&looks.look(look(51, &["/dead/c"]))), "/dead/c");
    assert_eq!(looks.counts().postponed, 2);
}

#[test]
fn what_is_asked_is_bounded_in_bytes() {
    let mount: Arc<Mount> = Arc::default();
    let looks = looks(&mount);
    until("all threads are stuck", || {
        let stuck = looks.counts().stuck;
        looks.look(look(1, &[&format!("/dead/{stuck}")]));
        looks.counts().stuck == u64::try_from(LOOK_THREADS_MAX).unwrap()
    });
    let long = format!("/{}", "x".repeat(4000));
    let paths = vec![long.as_str(); 1000];
    for pid in 2..12 {
        looks.look(look(pid, &paths));
    }
    let shared = Arc::clone(&looks.pools.as_ref().unwrap().files);
    assert!(locked(&shared.queue).jobs_bytes <= LOOK_QUEUE_BYTES_MAX);
    assert!(looks.counts().refused >= 6, "{:?}", looks.counts());
    mount.answer();
    until("the queue is empty", || locked(&shared.queue).jobs.is_empty());
    assert_eq!(locked(&shared.queue).jobs_bytes, 0);
}
