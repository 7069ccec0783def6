//! Files that do not answer, as on a dead mount.

use super::*;
use crate::limits::COMPILE_USER_NS_MAX;
use crate::process::fake::FakeFiles;
use std::io::Write as _;
use std::time::Instant;

/// Files below number 100 answer only once it is told to.
#[derive(Debug, Default)]
struct Mount {
    alive: Mutex<bool>,
    changed: Condvar,
}

impl Mount {
    fn answer(&self) {
        *self.alive.lock().unwrap() = true;
        self.changed.notify_all();
    }
}

impl OpenFiles for Mount {
    fn open(&self, id: FileId) -> Option<Arc<OwnedFd>> {
        if id.0 < 100 {
            let alive = self.alive.lock().unwrap();
            drop(self.changed.wait_while(alive, |alive| !*alive).unwrap());
        }
        let memory = rustix::fs::memfd_create("fake", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let mut file = std::fs::File::from(memory);
        file.write_all(b"/bin/a").unwrap();
        Some(Arc::new(file.into()))
    }
}

fn asked(file: u32, code_bytes: u64, urgent: bool) -> Asked {
    Asked { file: FileId(file), code_bytes, urgent, at: monotonic_now() }
}

fn small(file: u32) -> Asked {
    asked(file, 0, false)
}

#[test]
fn what_a_sample_waits_for_comes_first_then_small_before_large() {
    let large = TABLE_LARGE_CODE_BYTES;
    let due = |milliseconds: u64| MonotonicNs(milliseconds * 1_000_000);
    let mut queue = Queue::default();
    // Asked for at the times 0 to 5; a large one takes 50 ms.
    for (at, asked) in [
        (50, asked(0, large, false)),
        (51, asked(1, large, true)),
        (52, asked(2, large, false)),
        (3, asked(3, 1, false)),
        (4, asked(4, 1, true)),
        (55, asked(5, 1, false)),
    ] {
        queue.files.push((due(at), asked));
    }
    let mut order = Vec::new();
    while let Some(next) = queue.pop() {
        let at = At {
            file: next.file,
            large: next.is_large(),
            since: due(0),
            stuck: false,
            owner: None,
        };
        queue.at.insert(order.len(), at);
        order.push(next.file.0);
    }
    assert_eq!(order, [4, 1, 3, 0, 5], "the third large one waits for an end");
    queue.at.remove(&1);
    assert_eq!(queue.pop().unwrap().file, FileId(2));
}

fn compilers(mount: &Arc<Mount>) -> Compilers {
    let parse: Arc<dyn ForeignFiles> = Arc::new(FakeFiles);
    let files: Arc<dyn OpenFiles> = Arc::clone(mount) as _;
    let mut compilers = Compilers::start(&parse, &files, None).unwrap();
    // What answers takes microseconds; a busy machine may take longer, which makes one thread too many.
    compilers.stuck_ns = 20_000_000;
    compilers
}

/// Takes tables until something holds; the threads are not this test's.
#[track_caller]
fn until(compilers: &mut Compilers, what: &str, holds: impl Fn(&Compilers, &[u32]) -> bool) {
    let begin = Instant::now();
    let mut taken = Vec::new();
    while !holds(compilers, &taken) {
        assert!(begin.elapsed() < Duration::from_secs(20), "{what}: {taken:?}");
        taken.extend(compilers.wait(Duration::from_millis(2)).map(|compiled| compiled.file.0));
        assert!(compilers.work.shared.queue().threads <= TABLE_WORKERS_MAX);
    }
}

#[test]
fn files_that_do_not_answer_hold_up_nobody_else() {
    let mount: Arc<Mount> = Arc::default();
    let mut compilers = compilers(&mount);
    let dead = u32::try_from(TABLE_WORKERS_MAX - 1).unwrap();
    for file in 0..dead {
        assert!(compilers.ask(small(file)));
        until(&mut compilers, "it is noticed", |compilers, _| {
            compilers.counts().stuck == u64::from(file) + 1
        });
        assert!(compilers.ask(small(100 + file)));
        until(&mut compilers, "another file goes on", |_, taken| taken.contains(&(100 + file)));
    }
    assert_eq!(compilers.outstanding(), 0, "nobody waits for what does not answer");
    // With the last thread stuck there are no more.
    compilers.ask(small(dead));
    until(&mut compilers, "all are stuck", |compilers, _| {
        compilers.counts().stuck == u64::from(dead) + 1
    });
    compilers.ask(small(200));
    assert_eq!(compilers.outstanding(), 0);
    mount.answer();
    until(&mut compilers, "all come at last", |compilers, taken| {
        taken.len() == TABLE_WORKERS_MAX + 1 && compilers.counts().stuck == 0
    });
    assert!(compilers.counts().late > u64::from(dead));
    until(&mut compilers, "the extra threads end", |compilers, _| {
        compilers.work.shared.wake.notify_all();
        compilers.work.shared.queue().threads == TABLE_WORKERS
    });
}

#[test]
fn nobody_waits_at_the_end() {
    let mount: Arc<Mount> = Arc::default();
    let mut compilers = compilers(&mount);
    let all = u32::try_from(TABLE_WORKERS).unwrap();
    for file in 0..all {
        compilers.ask(small(file));
    }
    let shared = Arc::clone(&compilers.work.shared);
    until(&mut compilers, "all threads are stuck", |compilers, _| {
        compilers.counts().stuck == u64::from(all)
    });
    let begin = Instant::now();
    drop(compilers);
    assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
    mount.answer();
    let begin = Instant::now();
    while shared.queue().threads > 0 {
        assert!(begin.elapsed() < Duration::from_secs(20), "all threads end");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Says at which priority each file was compiled.
#[derive(Debug, Default)]
struct Priorities(Mutex<HashMap<u32, i32>>);

/// Files from 1000 on belong to the user of that number.
#[derive(Debug, Default)]
struct Owned;

impl OpenFiles for Owned {
    fn open(&self, id: FileId) -> Option<Arc<OwnedFd>> {
        let memory = rustix::fs::memfd_create("fake", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let mut file = std::fs::File::from(memory);
        write!(file, "{}", id.0).unwrap();
        let owner = (id.0 >= 1000).then(|| rustix::fs::Uid::from_raw(id.0));
        rustix::fs::fchown(&file, owner, None).unwrap();
        Some(Arc::new(file.into()))
    }
}

impl ForeignFiles for Priorities {
    fn inspect(&self, file: &OwnedFd) -> Result<crate::elf::FileFacts, ForeignFileError> {
        FakeFiles.inspect(file)
    }

    fn unwind_rows(&self, file: &OwnedFd) -> Result<RowTable, ForeignFileError> {
        let nice = rustix::process::getpriority_process(None).unwrap();
        let id = crate::process::fake::fake_path(file).parse().unwrap();
        self.0.lock().unwrap().insert(id, nice);
        FakeFiles.unwind_rows(file)
    }

    fn names_with(
        &self,
        id: FileId,
        file: &OwnedFd,
        debug_file: Option<&OwnedFd>,
        addresses: &[crate::address::ElfAddr],
        until: crate::clock::MonotonicNs,
    ) -> Vec<crate::elf::Names> {
        FakeFiles.names_with(id, file, debug_file, addresses, until)
    }
}

#[test]
fn files_of_users_do_not_go_before_programs_and_wait_when_their_time_is_spent() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root can give files away");
        return;
    }
    let parse = Arc::new(Priorities::default());
    // The threads inherit the priority of who starts them, in a thread of its own here.
    let start = {
        let parse: Arc<dyn ForeignFiles> = Arc::clone(&parse) as _;
        let files: Arc<dyn OpenFiles> = Arc::new(Owned);
        move || {
            rustix::process::setpriority_process(None, -3).unwrap();
            Compilers::start(&parse, &files, None).unwrap()
        }
    };
    let mut compilers = std::thread::spawn(start).join().unwrap();
    for round in 0..20 {
        for file in [round, 1000 + round] {
            assert!(compilers.ask(small(file)));
            until(&mut compilers, "each comes", |_, taken| taken.contains(&file));
        }
    }
    let nice_of = |file| parse.0.lock().unwrap().get(&file).copied();
    assert!((0..20).all(|n| nice_of(n) == Some(-3) && nice_of(1000 + n) == Some(0)));
    // One has spent all that he had: his wait, others' and root's come.
    let all = COMPILE_USER_NS_MAX.unsigned_abs() / 2 * 3;
    let owner = Owner::User(1000);
    compilers.work.shared.queue().spending.spent(owner, all, monotonic_now());
    for file in [1000, 0, 1001] {
        compilers.ask(small(file));
    }
    until(&mut compilers, "the others come", |compilers, taken| {
        taken.len() == 2 && compilers.counts().put_off == 1
    });
    assert!(compilers.wait(Duration::from_millis(20)).is_none());
    assert_eq!(compilers.outstanding(), 0, "nobody waits for it meanwhile");
    // His time comes back.
    let shared = Arc::clone(&compilers.work.shared);
    shared.queue().spending = Spending::default();
    shared.queue().put_off.iter_mut().for_each(|put_off| put_off.0 = MonotonicNs(0));
    shared.wake.notify_all();
    until(&mut compilers, "it comes", |_, taken| taken == [1000]);
}
