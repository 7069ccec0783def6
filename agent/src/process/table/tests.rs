//! Orders of events, on a made-up host. Times are nanoseconds after `T`, the time the test begins.

use super::ProcessTable;
use crate::address::{AbsAddr, Generation, Pid, Tid};
use crate::bpf::{ProcessEvent, RawSample, UserFrame};
use crate::clock::{MonotonicNs, monotonic_now};
use crate::limits::{
    EXIT_GRACE_NS, LOST_RECOVERY_INTERVAL_NS, PROCESS_CHECKS_PER_POLL, PUBLISH_LATER_NS,
};
use crate::normalize::{Frame, frames};
use crate::process::fake::{FakeFiles, FakeHost, FakeProcess, fake_build_id};
use crate::process::files::Files;
use crate::process::looks::Looks;
use agent_ebpf::Outcome;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

mod executable;
mod forked;
mod hostile;
mod many;
mod silent;
mod time;
mod verify;
mod zombies;

const MS: u64 = 1_000_000;

struct Scene {
    host: Arc<FakeHost>,
    files: Arc<Files>,
    table: ProcessTable,
    begin: MonotonicNs,
}

impl Scene {
    fn new() -> Self {
        Self::only(&[])
    }

    fn only(pids: &[Pid]) -> Self {
        Self::with(pids, Looks::in_place)
    }

    fn with(pids: &[Pid], looks: impl FnOnce(Arc<Files>) -> Looks) -> Self {
        let host: Arc<FakeHost> = Arc::default();
        let files = Arc::new(Files::new(Arc::clone(&host) as _, Arc::new(FakeFiles)));
        let looks = Arc::new(looks(Arc::clone(&files)));
        let table = ProcessTable::new(Arc::clone(&host) as _, looks, pids);
        Self { host, files, table, begin: monotonic_now() }
    }

    fn at(&self, ms: u64) -> MonotonicNs {
        self.begin.plus(ms * MS)
    }

    fn lives(&self, pid: u32, start_ms: u64, executable: &str, mappings: &[(u64, &str)]) {
        let process = FakeProcess::new(self.at(start_ms).0, executable, mappings);
        self.host.processes().insert(Pid(pid), process);
    }

    fn dies(&self, pid: u32) {
        self.host.processes().remove(&Pid(pid));
    }

    fn fork(&mut self, ms: u64, parent: u32, pid: u32, tid: u32) {
        let time = self.at(ms);
        let (pid, tid, parent) = (Pid(pid), Tid(tid), Pid(parent));
        self.table.apply(ProcessEvent::Fork { pid, tid, parent, time });
    }

    fn exec(&mut self, ms: u64, pid: u32, comm: &str) {
        let time = self.at(ms);
        let comm = comm.as_bytes().to_vec();
        let (pid, tid) = (Pid(pid), Tid(pid));
        self.table.apply(ProcessEvent::Comm { pid, tid, time, exec: true, comm });
    }

    fn mmap(&mut self, ms: u64, pid: u32, start: u64, path: &str) {
        self.table.apply(ProcessEvent::Mmap {
            pid: Pid(pid),
            time: self.at(ms),
            start: AbsAddr(start),
            length: 0x1000,
            file_offset: 0,
            build_id: Some(fake_build_id(path).as_bytes().to_vec()),
            inode: None,
            path: path.as_bytes().to_vec(),
        });
    }

    fn exit(&mut self, ms: u64, pid: u32, tid: u32) {
        let time = self.at(ms);
        self.table.apply(ProcessEvent::Exit { pid: Pid(pid), tid: Tid(tid), time });
    }

    fn sample(&self, ms: u64, pid: u32, generation: u32, user: &[u64]) -> RawSample {
        let user = user.iter().map(|&address| UserFrame { address: AbsAddr(address), exact: true });
        RawSample {
            cpu: 0,
            pid: Pid(pid),
            tid: Tid(pid),
            time: self.at(ms),
            cgroup_id: 1,
            generation: Generation(generation),
            outcome: Outcome::Complete,
            run_ns: 0,
            comm: b"thread".to_vec(),
            kernel: Vec::new(),
            user: user.collect(),
            root_frames: 0,
            stack: None,
        }
    }

    /// `executable path: frames` of a sample.
    fn shown(&mut self, sample: &RawSample) -> String {
        let attribution = self.table.attribute(sample);
        let frames = frames(sample, attribution.mappings.as_deref());
        let one = |frame: &Frame| match frame {
            Frame::Native { file, address } => format!("{}+{:x}", file.path, address.0),
            Frame::Unplaced { file, offset } => format!("{}@{:x}", file.path, offset.0),
            Frame::Anonymous { .. } => "?".into(),
            Frame::Kernel { .. } => "k".into(),
            Frame::Marker(_) => "[]".into(),
        };
        let shown: Vec<_> = frames.iter().map(one).collect();
        format!("{}: {}", attribution.process.executable_path, shown.join(" "))
    }

    #[track_caller]
    fn check(&mut self, ms: u64, pid: u32, user: &[u64], expected: &str) {
        let sample = self.sample(ms, pid, 0, user);
        assert_eq!(self.shown(&sample), expected, "pid {pid} at {ms} ms");
    }
}

#[test]
fn a_process_that_is_gone_is_known_by_its_records() {
    let mut scene = Scene::new();
    scene.lives(1, 0, "/sbin/init", &[]);
    scene.fork(10, 1, 50, 50);
    scene.exec(11, 50, "short");
    scene.mmap(12, 50, 0x1000, "/bin/short");
    scene.mmap(13, 50, 0x8000, "/lib/libc.so");
    scene.exit(40, 50, 50);
    // Its parent sees the same file, and the build id proves it.
    scene.check(20, 50, &[0x1010, 0x8020], "/bin/short: /bin/short+10 /lib/libc.so+20");
    let process = scene.table.attribute(&scene.sample(20, 50, 0, &[])).process;
    assert_eq!(process.executable_name, "short");
    assert_eq!(process.service_name, "short");
    assert_eq!(process.start_time_ns, scene.at(10).0);
    // Nobody is left who sees the file: it keeps its path and the build id of the record.
    scene.dies(1);
    scene.fork(50, 1, 51, 51);
    scene.exec(51, 51, "other");
    scene.mmap(52, 51, 0x1000, "/bin/other");
    scene.mmap(52, 51, 0x8000, "/lib/libc.so");
    scene.exit(60, 51, 51);
    scene.check(55, 51, &[0x1010, 0x8020], "/bin/other: /bin/other@10 /lib/libc.so+20");
    let found = scene.table.attribute(&scene.sample(55, 51, 0, &[]));
    let file = found.mappings.unwrap().mappings()[0].file.clone().unwrap();
    assert_eq!(file.kernel_build_id, Some(fake_build_id("/bin/other")));
    assert_eq!(scene.files.counts().unreadable, 1);
}

#[test]
fn exec_replaces_the_program() {
    let mut scene = Scene::new();
    scene.lives(1, 0, "/sbin/init", &[(0x1000, "/sbin/init")]);
    scene.table.scan(Pid(1));
    scene.fork(10, 1, 50, 50);
    scene.exec(20, 50, "b");
    scene.mmap(20, 50, 0x1000, "/bin/b");
    scene.exec(30, 50, "c");
    scene.mmap(30, 50, 0x2000, "/bin/c");
    // Between fork and exec it runs its parent's program.
    scene.check(15, 50, &[0x1010], "/sbin/init: /sbin/init+10");
    scene.check(25, 50, &[0x1010], "/bin/b: /bin/b+10");
    scene.check(35, 50, &[0x1010], "/bin/c: ?");
    scene.check(35, 50, &[0x2010], "/bin/c: /bin/c+10");
    scene.check(12, 50, &[0x1010], "/sbin/init: /sbin/init+10");
}

#[test]
fn a_pid_that_is_used_again_never_mixes_two_programs() {
    let mut scene = Scene::new();
    for (start, name) in [(10, "a"), (40, "b")] {
        scene.fork(start, 1, 50, 50);
        scene.exec(start + 1, 50, name);
        scene.mmap(start + 2, 50, 0x1000, &format!("/bin/{name}"));
        scene.exit(start + 20, 50, 50);
    }
    scene.check(20, 50, &[0x1010], "/bin/a: /bin/a@10");
    scene.check(50, 50, &[0x1010], "/bin/b: /bin/b@10");
    // The exit was lost: the fork ends the old one.
    scene.fork(100, 1, 60, 60);
    scene.exec(101, 60, "a");
    scene.mmap(102, 60, 0x1000, "/bin/a");
    scene.fork(200, 1, 60, 60);
    scene.exec(201, 60, "b");
    scene.mmap(202, 60, 0x1000, "/bin/b");
    scene.check(150, 60, &[0x1010], "/bin/a: /bin/a@10");
    scene.check(250, 60, &[0x1010], "/bin/b: /bin/b@10");
    let starts = [150, 250]
        .map(|ms| scene.table.attribute(&scene.sample(ms, 60, 0, &[])).process.start_time_ns);
    assert_ne!(starts[0], starts[1], "two instances");
}

#[test]
fn a_process_lives_until_its_last_thread_ends() {
    let mut scene = Scene::new();
    scene.fork(10, 1, 50, 50);
    scene.exec(11, 50, "a");
    scene.mmap(12, 50, 0x1000, "/bin/a");
    scene.table.published(Pid(50), Generation(1));
    scene.fork(20, 50, 50, 51);
    scene.exit(30, 50, 50);
    assert_eq!(scene.table.take_ended(), []);
    scene.check(500, 50, &[0x1010], "/bin/a: /bin/a@10");
    scene.exit(600, 50, 51);
    assert_eq!(scene.table.take_ended(), [Pid(50)]);
    scene.check(590, 50, &[0x1010], "/bin/a: /bin/a@10");
}

#[test]
fn a_thread_that_executes_takes_the_process_over() {
    let mut scene = Scene::new();
    scene.fork(10, 1, 50, 50);
    scene.exec(11, 50, "a");
    scene.mmap(12, 50, 0x1000, "/bin/a");
    scene.fork(20, 50, 50, 51);
    // The main thread and the caller's old thread id end, then the caller is the main thread.
    scene.exit(30, 50, 50);
    scene.exit(30, 50, 51);
    scene.exec(31, 50, "b");
    scene.mmap(32, 50, 0x1000, "/bin/b");
    scene.check(40, 50, &[0x1010], "/bin/b: /bin/b@10");
    scene.check(25, 50, &[0x1010], "/bin/a: /bin/a@10");
    scene.exit(50, 50, 50);
    assert!(scene.table.live(Pid(50)).is_none());
}

#[test]
fn proc_is_ahead_of_the_records() {
    let mut scene = Scene::new();
    scene.lives(50, 0, "/bin/old", &[(0x1000, "/bin/old")]);
    scene.table.scan(Pid(50));
    let _ = scene.table.mappings(Pid(50));
    scene.table.published(Pid(50), Generation(7));
    // It executes; the sampler meets the new program before the record of the exec arrives.
    let executed = scene.begin.plus(monotonic_now().since(scene.begin));
    scene.lives(50, 0, "/bin/new", &[(0x1000, "/bin/new")]);
    scene.table.live(Pid(50)).unwrap().read_after = MonotonicNs(0);
    scene.table.unknown(Pid(50), None, monotonic_now());
    let _ = scene.table.mappings(Pid(50));
    scene.table.published(Pid(50), Generation(8));
    let comm = b"new".to_vec();
    let (pid, tid, time) = (Pid(50), Tid(50), executed);
    scene.table.apply(ProcessEvent::Comm { pid, tid, time, exec: true, comm });
    // Its mapping was read already: the record is old news.
    let mut sample = scene.sample(0, 50, 8, &[0x1010]);
    sample.time = monotonic_now();
    assert_eq!(scene.shown(&sample), "/bin/new: /bin/new+10");
    sample.generation = Generation(7);
    // Walked with the old program's mappings: its leaf is right, where it ran itself.
    assert_eq!(scene.table.attribute(&sample).sound_frames, 1);
    sample.kernel = vec![AbsAddr(1 << 63)];
    assert_eq!(scene.shown(&sample), "/bin/new: k []");
    sample.kernel.clear();
    sample.time = MonotonicNs(executed.0 - 1);
    assert_eq!(scene.shown(&sample), "/bin/old: /bin/old+10");
}

#[test]
fn generations_keep_their_mappings() {
    let mut scene = Scene::new();
    scene.lives(50, 0, "/bin/a", &[(0x1000, "/bin/a"), (0x5000, "/lib/one.so")]);
    scene.table.scan(Pid(50));
    let _ = scene.table.mappings(Pid(50));
    scene.table.published(Pid(50), Generation(1));
    // Another library takes the place of the first.
    let time = monotonic_now();
    scene.table.apply(ProcessEvent::Mmap {
        pid: Pid(50),
        time,
        start: AbsAddr(0x5000),
        length: 0x1000,
        file_offset: 0,
        build_id: None,
        inode: None,
        path: b"/lib/two.so".to_vec(),
    });
    scene.table.needed(Pid(50));
    assert_eq!(scene.table.take_dirty(), [Pid(50)]);
    let _ = scene.table.mappings(Pid(50));
    scene.table.published(Pid(50), Generation(2));
    // What was mapped at the time of the sample counts, whatever the walk went by.
    for (generation, after_ns, expected) in [
        (1, 0, "/bin/a: /lib/one.so+10"),
        (1, 2, "/bin/a: /lib/two.so+10"),
        (2, 2, "/bin/a: /lib/two.so+10"),
        (0, 2, "/bin/a: /lib/two.so+10"),
    ] {
        let mut sample = scene.sample(1, 50, generation, &[0x5010]);
        sample.time = MonotonicNs(time.0 - 1 + after_ns);
        assert_eq!(scene.shown(&sample), expected, "generation {generation}");
    }
}

#[test]
fn lost_records_are_made_up_for() {
    let mut scene = Scene::new();
    scene.lives(50, 0, "/bin/a", &[(0x1000, "/bin/a")]);
    scene.lives(51, 0, "/bin/b", &[(0x1000, "/bin/b")]);
    scene.table.scan(Pid(50));
    scene.table.scan(Pid(51));
    scene.table.published(Pid(50), Generation(1));
    // Meanwhile, unseen: one ends, one executes, one is new.
    scene.dies(50);
    scene.lives(51, 0, "/bin/c", &[(0x1000, "/bin/c")]);
    scene.lives(52, 0, "/bin/d", &[(0x1000, "/bin/d")]);
    scene.table.apply(ProcessEvent::Lost { count: 9 });
    scene.table.tidy(monotonic_now());
    assert_eq!(scene.table.take_ended(), [Pid(50)]);
    let later = monotonic_now().since(scene.begin) / MS + 1;
    scene.check(later, 51, &[0x1010], "/bin/c: /bin/c+10");
    scene.check(later, 52, &[0x1010], "/bin/d: /bin/d+10");
    assert_eq!(scene.table.counts().lost, 9);
    assert_eq!(scene.table.counts().exits_found, 1);
}

#[test]
fn what_is_never_sampled_is_published_only_if_it_runs_on() {
    let mut scene = Scene::new();
    for pid in [50, 51, 52, 53] {
        scene.lives(pid, 10, "/bin/a", &[(0x1000, "/bin/a")]);
        scene.fork(10, 1, pid, pid);
        scene.exec(11, pid, "a");
        scene.mmap(12, pid, 0x1000, "/bin/a");
    }
    scene.host.processes().get_mut(&Pid(52)).unwrap().status.cpu_ticks = 0;
    assert_eq!(scene.table.take_dirty(), []);
    scene.table.needed(Pid(53));
    assert_eq!(scene.table.take_dirty(), [Pid(53)], "a sample met it");
    scene.dies(50);
    scene.exit(20, 50, 50);
    let later = monotonic_now().plus(PUBLISH_LATER_NS);
    scene.table.tidy(later);
    assert_eq!(scene.table.take_dirty(), [Pid(51)], "not what is over, nor what only sleeps");
    assert_eq!(scene.table.take_ended(), [], "nothing was published of it");
    let counts = (scene.table.counts().maps_read, scene.files.counts().known);
    assert_eq!(counts, (0, 0), "nothing was read");
    scene.table.needed(Pid(52));
    assert_eq!(scene.table.take_dirty(), []);
    scene.table.unknown(Pid(52), None, monotonic_now());
    assert_eq!(scene.table.take_dirty(), [Pid(52)]);
}

#[test]
fn a_storm_of_losses_reads_everything_once() {
    let mut scene = Scene::new();
    let processes = 3 * PROCESS_CHECKS_PER_POLL;
    for pid in 0..processes {
        scene.lives(100 + u32::try_from(pid).unwrap(), 0, "/bin/a", &[(0x1000, "/bin/a")]);
    }
    let mut now = monotonic_now();
    for _ in 0..10 {
        scene.table.apply(ProcessEvent::Lost { count: 1 });
        scene.table.apply(ProcessEvent::Lost { count: 1 });
        now = now.plus(MS);
        scene.table.tidy(now);
    }
    let counts = scene.table.counts();
    assert_eq!((counts.lost, counts.recoveries), (20, 1));
    assert_eq!(counts.maps_read, processes as u64, "each was read, and once");
    now = now.plus(LOST_RECOVERY_INTERVAL_NS);
    scene.table.tidy(now);
    assert_eq!(scene.table.counts().recoveries, 2, "what was lost meanwhile is made up for");
    for _ in 0..10 {
        now = now.plus(LOST_RECOVERY_INTERVAL_NS);
        scene.table.tidy(now);
    }
    assert_eq!(scene.table.counts().recoveries, 2);
}

#[test]
fn start_times_are_right_after_the_host_slept() {
    const HOUR_NS: u64 = 3_600_000_000_000;
    let mut scene = Scene::new();
    scene.host.asleep_ns.store(HOUR_NS, Ordering::Relaxed);
    scene.fork(10, 1, 50, 50);
    let process = scene.table.attribute(&scene.sample(20, 50, 0, &[])).process;
    assert_eq!(process.start_time_ns, scene.at(10).0 + HOUR_NS);
    // `/proc` says the same of it: it is not taken for another one.
    let process = FakeProcess::new(scene.at(10).0 + HOUR_NS, "/bin/a", &[(0x1000, "/bin/a")]);
    scene.host.processes().insert(Pid(50), process);
    assert!(!scene.table.check(Pid(50), scene.at(30)));
    assert_eq!(scene.table.counts().exits_found, 0);
}

#[test]
fn unknown_addresses_read_proc_with_patience() {
    let mut scene = Scene::new();
    scene.lives(50, 0, "/bin/a", &[(0x1000, "/bin/a")]);
    scene.table.unknown(Pid(50), None, monotonic_now());
    assert_eq!(scene.table.take_dirty(), [Pid(50)]);
    let _ = scene.table.mappings(Pid(50));
    scene.table.published(Pid(50), Generation(1));
    assert_eq!(scene.table.counts().maps_read, 1);
    for _ in 0..100 {
        scene.table.unknown(Pid(50), Some(AbsAddr(0x9000)), monotonic_now());
    }
    let counts = scene.table.counts();
    assert_eq!(counts.maps_read + counts.maps_put_off, 101);
    assert!(counts.maps_read <= 3, "{counts:?}");
}

#[test]
fn nothing_is_left_of_five_thousand_short_processes() {
    let mut scene = Scene::new();
    scene.lives(1, 0, "/sbin/init", &[(0x1000, "/sbin/init")]);
    scene.table.scan(Pid(1));
    for number in 0..5000 {
        // Pids are used again: the kernel has 32,768 by default, this test has 500.
        let (pid, start) = (100 + number % 500, 10 + 4 * u64::from(number));
        scene.fork(start, 1, pid, pid);
        scene.exec(start + 1, pid, "short");
        scene.mmap(start + 1, pid, 0x1000, "/bin/short");
        scene.check(start + 2, pid, &[0x1010], "/bin/short: /bin/short+10");
        scene.exit(start + 3, pid, pid);
        scene.table.tidy(scene.at(start + 3));
        assert!(scene.table.counts().known < 600, "{:?}", scene.table.counts());
    }
    let end = scene.at(10 + 4 * 5000).plus(EXIT_GRACE_NS + MS);
    scene.table.tidy(end);
    let counts = scene.table.counts();
    assert_eq!((counts.known, counts.refused, counts.strangers), (1, 0, 0));
    assert_eq!(scene.table.instances.len(), 1);
    assert!(scene.table.ended.is_empty());
    assert_eq!(scene.files.counts().known, 2);
    let dirty = scene.table.take_dirty();
    assert!(dirty.iter().all(|pid| pid.0 == 1 || scene.table.mappings(*pid).is_none()));
}

#[test]
fn strangers_agree_with_themselves() {
    let mut scene = Scene::new();
    let first = scene.table.attribute(&scene.sample(10, 77, 0, &[])).process;
    let second = scene.table.attribute(&scene.sample(60, 77, 0, &[])).process;
    assert_eq!(first, second);
    assert_eq!((first.executable_name.as_str(), first.kernel_thread), ("thread", false));
    let mut kernel = scene.sample(10, 78, 0, &[]);
    kernel.outcome = Outcome::NoUserStack;
    kernel.kernel = vec![AbsAddr(u64::MAX)];
    let kernel = scene.table.attribute(&kernel).process;
    assert_eq!((kernel.service_name.as_str(), kernel.kernel_thread), ("kernel", true));
    scene.table.tidy(scene.at(100).plus(EXIT_GRACE_NS));
    assert_eq!(scene.table.counts().known, 0);
}

#[test]
fn who_it_is_by_the_rules() {
    let mut scene = Scene::new();
    let id = "4ca2b8b5a1d3c4f6e7089a1b2c3d4e5f60718293a4b5c6d7e8f9000112233445";
    for (pid, service, cgroup, expected) in [
        (50, Some("shop"), "0::/system.slice/nginx.service", "shop"),
        (51, None, "0::/system.slice/nginx.service", "nginx"),
        (52, None, "0::/", "a"),
        (53, None, "0::/docker/ID", "a"),
    ] {
        scene.lives(pid, 0, "/bin/a (deleted)", &[(0x1000, "/bin/a (deleted)")]);
        let mut processes = scene.host.processes();
        let process = processes.get_mut(&Pid(pid)).unwrap();
        process.service = service.map(Into::into);
        process.cgroup = cgroup.replace("ID", id);
        drop(processes);
        scene.table.scan(Pid(pid));
        let found = scene.table.attribute(&scene.sample(10, pid, 0, &[])).process;
        assert_eq!(found.service_name, expected, "{cgroup}");
        assert_eq!(found.executable_path, "/bin/a");
        assert_eq!(found.container_id.is_some(), cgroup.contains("docker"));
        // A fork is who its parent is.
        scene.fork(20, pid, pid + 100, pid + 100);
        let child = scene.table.attribute(&scene.sample(25, pid + 100, 0, &[])).process;
        assert_eq!(child.service_name, expected);
        assert_eq!(child.pid, Pid(pid + 100));
        assert_eq!(child.container_id, found.container_id);
    }
}

#[test]
fn in_the_middle_of_an_exec_nothing_is_final() {
    let mut scene = Scene::new();
    scene.lives(50, 0, "/bin/a", &[]);
    scene.table.scan(Pid(50));
    let set_executing = |scene: &Scene, executing| {
        let mut processes = scene.host.processes();
        let process = processes.get_mut(&Pid(50)).unwrap();
        process.executable = "/bin/b".into();
        process.service = Some("shop".into());
        process.executing = executing;
    };
    set_executing(&scene, true);
    let (pid, tid, time) = (Pid(50), Tid(50), monotonic_now());
    let comm = b"b".to_vec();
    scene.table.apply(ProcessEvent::Comm { pid, tid, time, exec: true, comm });
    let mut sample = scene.sample(0, 50, 0, &[]);
    sample.time = monotonic_now();
    let early = scene.table.attribute(&sample).process;
    // What `/proc` says of the executable may be of the next program already: its record is awaited.
    assert_eq!((early.executable_path.as_str(), early.service_name.as_str()), ("", "b"));
    set_executing(&scene, false);
    sample.time = monotonic_now();
    scene.table.apply(ProcessEvent::Mmap {
        pid,
        time: sample.time,
        start: AbsAddr(0x1000),
        length: 0x1000,
        file_offset: 0,
        build_id: None,
        inode: None,
        path: b"/bin/b".to_vec(),
    });
    let late = scene.table.attribute(&sample).process;
    assert_eq!((late.executable_path.as_str(), late.service_name.as_str()), ("/bin/b", "shop"));
}

#[test]
fn only_what_is_asked_for_and_its_children() {
    let mut scene = Scene::only(&[Pid(50)]);
    scene.lives(49, 0, "/bin/x", &[]);
    scene.lives(50, 0, "/bin/a", &[(0x1000, "/bin/a")]);
    assert_eq!(scene.table.existing().unwrap(), [Pid(50)]);
    scene.table.scan(Pid(50));
    scene.fork(10, 50, 60, 60);
    scene.fork(11, 60, 61, 61);
    scene.fork(12, 49, 70, 70);
    scene.exec(13, 70, "y");
    for (pid, tracked) in [(49, false), (50, true), (60, true), (61, true), (70, false)] {
        assert_eq!(scene.table.is_tracked(Pid(pid)), tracked, "{pid}");
    }
    assert_eq!(scene.table.counts().known, 3);
}

#[test]
fn a_note_of_a_known_mapping_asks_for_its_table_only() {
    let mut scene = Scene::new();
    scene.lives(50, 0, "/bin/a", &[(0x1000, "/bin/a")]);
    scene.table.scan(Pid(50));
    let _ = scene.table.mappings(Pid(50));
    scene.table.published(Pid(50), Generation(1));
    drop(scene.table.take_dirty());
    let file = scene.table.unknown(Pid(50), Some(AbsAddr(0x1010)), monotonic_now());
    assert!(file.is_some());
    assert_eq!(scene.table.take_dirty(), []);
    // A library that a sample made known is not published by that.
    let time = monotonic_now();
    scene.mmap(time.since(scene.begin) / MS + 1, 50, 0x5000, "/lib/b.so");
    let _ = scene.table.attribute(&scene.sample(1000, 50, 0, &[0x5010]));
    let file = scene.table.unknown(Pid(50), Some(AbsAddr(0x5010)), monotonic_now());
    assert!(file.is_some());
    assert_eq!(scene.table.take_dirty(), [Pid(50)]);
}
