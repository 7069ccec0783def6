//! Processes that cost as much as they can.

use super::{MS, Scene};
use crate::address::{AbsAddr, Generation, Pid};
use crate::bpf::ProcessEvent;
use crate::clock::monotonic_now;
use crate::limits::{
    EXIT_CHECK_INTERVAL_NS, FILES_BYTES_MAX, FILES_FULL_NS, FILES_MAX, GENERATIONS_BYTES_MAX,
    PUBLISH_LATER_NS, REPORTED_BYTES_MAX,
};
use std::sync::atomic::Ordering;

impl Scene {
    fn mmap_without_id(&mut self, ms: u64, pid: u32, start: u64, path: &str) {
        self.table.apply(ProcessEvent::Mmap {
            pid: Pid(pid),
            time: self.at(ms),
            start: AbsAddr(start),
            length: 0x1000,
            file_offset: 0,
            build_id: None,
            inode: None,
            path: path.as_bytes().to_vec(),
        });
    }
}

/// A process, 50, that maps `count` files with paths of 4 KB from 12 ms on.
fn maps_much(scene: &mut Scene, count: u64) {
    let long = "x".repeat(4000);
    scene.lives(50, 10, "/bin/a", &[(0x1000, "/bin/a"), (0x9000, "/lib/late.so")]);
    scene.fork(10, 1, 50, 50);
    scene.exec(11, 50, "a");
    scene.mmap(12, 50, 0x1000, "/bin/a");
    for number in 1..count {
        let path = format!("/{number}/{long}");
        scene.mmap_without_id(12, 50, 0x10_0000 + number * 0x1000, &path);
    }
}

#[test]
fn forks_share_what_nobody_has_looked_at() {
    let mut scene = Scene::new();
    maps_much(&mut scene, 2000);
    let before = scene.table.counts().reported_bytes;
    assert!((8_000_000..9_000_000).contains(&before), "{before}");
    for pid in 1000..1500 {
        scene.lives(pid, 20, "/bin/a", &[(0x1000, "/bin/a")]);
        scene.host.processes().get_mut(&Pid(pid)).unwrap().status.cpu_ticks = 0;
        scene.fork(20, 50, pid, pid);
    }
    scene.table.tidy(monotonic_now().plus(PUBLISH_LATER_NS));
    let counts = scene.table.counts();
    assert_eq!((counts.reported_bytes, counts.reports_forgotten), (before, 0));
    scene.check(30, 1234, &[0x1010], "/bin/a: /bin/a+10");
    assert_eq!(scene.table.counts().maps_read, 0, "it was reported");
    for pid in (1000..1500).chain([50]) {
        scene.exit(40, pid, pid);
    }
    scene.table.tidy(monotonic_now().plus(2 * PUBLISH_LATER_NS + 1000 * MS));
    assert_eq!(scene.table.counts().reported_bytes, 0);
}

#[test]
fn reports_without_room_are_read_when_they_are_needed() {
    let mut scene = Scene::new();
    maps_much(&mut scene, 6000);
    let counts = scene.table.counts();
    assert!(counts.reported_bytes <= REPORTED_BYTES_MAX, "{counts:?}");
    assert!(counts.reports_forgotten > 1500, "{counts:?}");
    // Another one, which lives, and whose mappings found no room.
    scene.lives(60, 13, "/bin/b", &[(0x1000, "/bin/b")]);
    scene.fork(13, 1, 60, 60);
    scene.exec(14, 60, "b");
    scene.mmap_without_id(15, 60, 0x1000, &format!("/{}", "y".repeat(4050)));
    let forgotten = scene.table.counts().reports_forgotten;
    assert!(forgotten > counts.reports_forgotten);
    while monotonic_now() < scene.at(20) {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    scene.table.unknown(Pid(60), None, scene.at(2000));
    assert!(scene.table.mappings(Pid(60)).is_some());
    scene.table.published(Pid(60), Generation(7));
    let mut sample = scene.sample(0, 60, 7, &[0x1010]);
    sample.time = monotonic_now();
    assert_eq!(scene.shown(&sample), "/bin/b: /bin/b+10");
    assert_eq!(scene.table.counts().maps_read, 1);
}

#[test]
fn what_sleeps_makes_room() {
    let mut scene = Scene::new();
    maps_much(&mut scene, 6000);
    let full = scene.table.counts();
    // The next one maps when the first has slept for a while.
    let late = 12 + PUBLISH_LATER_NS / MS + 2;
    scene.lives(60, late, "/bin/b", &[(0x1000, "/bin/b")]);
    scene.fork(late, 1, 60, 60);
    scene.exec(late, 60, "b");
    for number in 0..2 {
        scene.mmap_without_id(late, 60, 0x1000, &format!("/{number}{}", "y".repeat(4000)));
    }
    let counts = scene.table.counts();
    assert!(counts.reported_bytes < 10_000, "{counts:?}");
    assert!(counts.reports_forgotten > full.reports_forgotten + 4000 - 100, "{counts:?}");
    // It is read once it does something.
    scene.table.unknown(Pid(50), None, monotonic_now().plus(3 * PUBLISH_LATER_NS));
    let set = scene.table.mappings(Pid(50)).unwrap();
    assert_eq!(set.mappings().len(), 2);
}

#[test]
fn threads_that_end_without_a_leader_cost_a_look_a_second() {
    let mut scene = Scene::new();
    scene.lives(50, 0, "/bin/a", &[(0x1000, "/bin/a")]);
    let set = |scene: &Scene, threads| {
        let mut processes = scene.host.processes();
        let status = &mut processes.get_mut(&Pid(50)).unwrap().status;
        (status.zombie, status.threads) = (true, threads);
    };
    set(&scene, 9);
    scene.table.scan(Pid(50));
    let looks = |scene: &Scene| scene.host.statuses.load(Ordering::Relaxed);
    let before = looks(&scene);
    for number in 0..20_000 {
        let ms = 10 + u64::from(number / 10);
        scene.exit(ms, 50, 100 + number);
        if number % 800 == 0 {
            scene.table.tidy(scene.at(ms));
        }
    }
    // Two seconds: at once, with the next poll, and twice more.
    assert!(looks(&scene) - before <= 5, "{} looks", looks(&scene) - before);
    assert!(scene.table.exits.len() <= 1 && scene.table.checks.is_empty());
    // The last one ends.
    set(&scene, 1);
    scene.exit(2020, 50, 99);
    scene.table.tidy(scene.at(2020).plus(EXIT_CHECK_INTERVAL_NS));
    assert_eq!(scene.table.counts().exits_found, 1);
    assert!(scene.table.live(Pid(50)).is_none());
}

#[test]
fn mapped_files_are_bounded_too() {
    let mut scene = Scene::new();
    // Five processes map 4,000 files each, all of which stay mapped.
    for pid in 50..55u32 {
        scene.lives(pid, 0, "/bin/a", &[]);
        scene.table.scan(Pid(pid));
        let time = monotonic_now().since(scene.begin) / MS + 2;
        for number in 0..4000 {
            let path = format!("/lib/{pid}/{number}.so");
            scene.mmap_without_id(time, pid, 0x10_0000 + 0x1000 * number, &path);
        }
        let set = scene.table.mappings(Pid(pid)).unwrap();
        assert_eq!(set.mappings().len(), 4000);
    }
    let counts = scene.files.counts();
    assert_eq!(counts.known, FILES_MAX as u64, "{counts:?}");
    assert_eq!(counts.refused, 5 * 4000 - FILES_MAX as u64, "{counts:?}");
    assert!(counts.bytes <= FILES_BYTES_MAX as u64, "{counts:?}");
    // They are known again once there is room.
    for pid in 51..55 {
        scene.exit(100_000, pid, pid);
        scene.dies(pid);
    }
    scene.table.apply(ProcessEvent::Lost { count: 1 });
    scene.table.tidy(monotonic_now().plus(200_000 * MS));
    std::thread::sleep(std::time::Duration::from_nanos(FILES_FULL_NS));
    scene.table.tidy(monotonic_now().plus(300_000 * MS));
    scene.lives(60, 0, "/bin/b", &[(0x1000, "/bin/b")]);
    scene.table.scan(Pid(60));
    let set = scene.table.mappings(Pid(60)).unwrap();
    assert!(set.mappings()[0].file.is_some());
}

#[test]
fn long_paths_count_by_their_bytes() {
    let mut scene = Scene::new();
    let long = "x".repeat(300);
    for pid in 50..54u32 {
        scene.lives(pid, 0, "/bin/a", &[]);
        scene.table.scan(Pid(pid));
        let time = monotonic_now().since(scene.begin) / MS + 2;
        for number in 0..4000 {
            let path = format!("/{pid}/{number}/{long}");
            scene.mmap_without_id(time, pid, 0x10_0000 + 0x1000 * number, &path);
        }
        assert!(scene.table.mappings(Pid(pid)).is_some());
    }
    let counts = scene.files.counts();
    assert!(counts.known > 10_000 && counts.known < 16_000, "{counts:?}");
    assert!(counts.bytes <= FILES_BYTES_MAX as u64 + 10_000 && counts.refused > 0, "{counts:?}");
}

#[test]
fn generations_of_many_mappings_are_few() {
    let mut scene = Scene::new();
    scene.lives(50, 0, "/bin/a", &[]);
    scene.table.scan(Pid(50));
    let time = monotonic_now().since(scene.begin) / MS + 2;
    for number in 0..8000 {
        scene.mmap_without_id(time, 50, 0x10_0000 + 0x2000 * number, "//anon");
    }
    for generation in 1..=20u32 {
        let start = 0x100 + u64::from(generation);
        scene.mmap_without_id(time, 50, start * 0x1_0000_0000, "//anon");
        let set = scene.table.mappings(Pid(50)).unwrap();
        assert!(set.bytes() <= GENERATIONS_BYTES_MAX / 2 * 3, "{}", set.bytes());
        scene.table.published(Pid(50), Generation(generation));
    }
    let image = scene.table.live(Pid(50)).unwrap().image();
    let kept: Vec<u32> =
        (1..=20).filter(|&g| image.of_generation(Generation(g)).is_some()).collect();
    assert!(kept.len() <= 3 && kept.ends_with(&[20]), "{kept:?}");
}

#[test]
fn evicted_files_are_found_among_many_mappings() {
    let mut scene = Scene::new();
    let mappings: Vec<(u64, String)> =
        (0..200).map(|number| (0x10_0000 * (number + 1), format!("/lib/{number}.so"))).collect();
    for pid in 1..=500 {
        scene.lives(pid, 0, "/bin/a", &[]);
        scene.host.processes().get_mut(&Pid(pid)).unwrap().mappings = mappings.clone();
        scene.table.scan(Pid(pid));
    }
    drop(scene.table.take_dirty());
    let set = scene.table.mappings(Pid(1)).unwrap();
    let mapped = set.mappings()[199].file.as_ref().unwrap().id;
    let others: Vec<_> = (1_000_000..1_016_384).map(crate::address::FileId).collect();
    let begin = std::time::Instant::now();
    scene.table.mark_dirty_by_file(&others);
    assert_eq!(scene.table.take_dirty(), []);
    // Each mapping against each file would be 1.6 thousand million comparisons.
    assert!(begin.elapsed() < std::time::Duration::from_millis(200), "{:?}", begin.elapsed());
    scene.table.mark_dirty_by_file(&[mapped]);
    assert_eq!(scene.table.take_dirty().len(), 500);
}
