//! Processes that have ended and that nobody has taken note of: made up, and real ones of this machine.

use super::{MS, Scene};
use crate::address::Pid;
use crate::clock::monotonic_now;
use crate::limits::{EXIT_GRACE_NS, LOST_RECOVERY_INTERVAL_NS};
use crate::process::fake::FakeFiles;
use crate::process::files::Files;
use crate::process::host::{Host, ProcFs};
use crate::process::looks::Looks;
use crate::process::table::ProcessTable;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

#[test]
fn what_has_ended_is_not_taken_in_at_the_start() {
    let mut scene = Scene::new();
    // Threads that `/proc` counts; none once the kernel takes it away.
    for (pid, threads) in [(50, 1), (51, 0), (52, 2)] {
        scene.lives(pid, 0, "/bin/a", &[(0x1000, "/bin/a")]);
        let mut processes = scene.host.processes();
        let status = &mut processes.get_mut(&Pid(pid)).unwrap().status;
        (status.zombie, status.threads) = (true, threads);
    }
    for pid in scene.table.existing().unwrap() {
        scene.table.scan(pid);
    }
    assert_eq!(scene.table.counts().known, 1);
    assert_eq!(scene.table.take_dirty(), [Pid(52)], "others of its threads run on");
    // Nor when everything is read again.
    scene.table.apply(crate::bpf::ProcessEvent::Lost { count: 1 });
    let mut now = monotonic_now();
    for _ in 0..3 {
        now = now.plus(LOST_RECOVERY_INTERVAL_NS);
        scene.table.tidy(now);
    }
    assert_eq!((scene.table.counts().known, scene.table.counts().recoveries), (1, 1));
    // A sample of one is older than its end, and the record of that is on its way.
    scene.check(5, 50, &[0x1010], "/bin/a: /bin/a+10");
    scene.exit(6, 50, 50);
    scene.table.tidy(now.plus(EXIT_GRACE_NS));
    assert_eq!(scene.table.counts().known, 1);
}

#[test]
fn what_ends_without_a_record_is_found_by_looking() {
    let mut scene = Scene::new();
    for pid in 50..60 {
        scene.lives(pid, 0, "/bin/a", &[(0x1000, "/bin/a")]);
        scene.table.scan(Pid(pid));
    }
    // On their way out when the records began: one is gone, one is a zombie by now.
    scene.dies(50);
    scene.host.processes().get_mut(&Pid(51)).unwrap().status.zombie = true;
    let first = monotonic_now().plus(EXIT_GRACE_NS + MS);
    scene.table.tidy(first);
    assert_eq!((scene.table.counts().exits_found, scene.table.counts().known), (2, 10));
    scene.table.tidy(first.plus(EXIT_GRACE_NS + MS));
    assert_eq!(scene.table.counts().known, 8);
}

/// Waits until `/proc` says what `holds` wants of a process.
#[track_caller]
fn until_status(host: &dyn Host, child: &Child, holds: impl Fn(bool, u32) -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        let status = host.status(Pid(child.id())).unwrap();
        if holds(status.zombie, status.threads) {
            return;
        }
        assert!(Instant::now() < end, "{status:?}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A program whose main thread ends before the others; `None` after saying why.
fn leaderless(folder: &Path) -> Option<Child> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/workloads/leaderless.c");
    let program = folder.join("leaderless");
    let built = Command::new("cc").arg("-pthread").arg("-o").args([&program, &source]).status();
    if !built.is_ok_and(|status| status.success()) {
        eprintln!("skipped: no C compiler");
        return None;
    }
    Some(Command::new(program).arg("60000").stdout(Stdio::null()).spawn().unwrap())
}

#[test]
fn zombies_of_this_machine_are_told_from_a_process_without_its_main_thread() {
    let folder = tempfile::tempdir().unwrap();
    let Some(mut living) = leaderless(folder.path()) else { return };
    let host: Arc<dyn Host> = Arc::new(ProcFs::new(PathBuf::from("/proc")));
    let files = Arc::new(Files::new(Arc::clone(&host), Arc::new(FakeFiles)));
    let looks = Arc::new(Looks::in_place(files));
    let mut table = ProcessTable::new(Arc::clone(&host), looks, &[]);
    let mut dead: Vec<Child> = (0..20).map(|_| Command::new("true").spawn().unwrap()).collect();
    for zombie in &dead {
        until_status(host.as_ref(), zombie, |zombie, _| zombie);
        table.scan(Pid(zombie.id()));
    }
    until_status(host.as_ref(), &living, |zombie, threads| zombie && threads > 1);
    table.scan(Pid(living.id()));
    assert_eq!(table.counts().known, 1, "the one with other threads");
    // Its end, without a record, is found by looking.
    living.kill().unwrap();
    until_status(host.as_ref(), &living, |zombie, threads| zombie && threads <= 1);
    table.tidy(monotonic_now().plus(EXIT_GRACE_NS + MS));
    assert_eq!(table.counts().exits_found, 1);
    living.wait().unwrap();
    for zombie in &mut dead {
        zombie.wait().unwrap();
    }
}
