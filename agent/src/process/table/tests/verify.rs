//! Mappings that change without a record.

use super::Scene;
use crate::address::{Generation, Pid};
use std::sync::atomic::Ordering;

/// A program, 50, at 0x1000, whose mappings are published.
fn scene() -> Scene {
    let mut scene = Scene::new();
    scene.lives(50, 10, "/bin/a", &[(0x1000, "/bin/a")]);
    scene.fork(10, 1, 50, 50);
    scene.exec(11, 50, "a");
    scene.mmap(12, 50, 0x1000, "/bin/a");
    scene.check(13, 50, &[0x1010], "/bin/a: /bin/a+10");
    scene.table.needed(Pid(50));
    assert_eq!(scene.table.take_dirty(), [Pid(50)]);
    scene.table.published(Pid(50), Generation(1));
    scene
}

/// A child of it with the same mappings, published likewise.
fn child(scene: &mut Scene, ms: u64, pid: u32) {
    scene.lives(pid, ms, "/bin/a", &[(0x1000, "/bin/a")]);
    scene.fork(ms, 50, pid, pid);
    scene.check(ms + 1, pid, &[0x1010], "/bin/a: /bin/a+10");
    scene.table.published(Pid(pid), Generation(pid));
}

fn becomes(scene: &Scene, pid: u32, mappings: &[(u64, &str)]) {
    let mappings = mappings.iter().map(|&(start, path)| (start, path.into())).collect();
    scene.host.processes().get_mut(&Pid(pid)).unwrap().mappings = mappings;
}

/// (listings, those that showed something new).
fn counts(scene: &Scene) -> (u64, u64) {
    let counts = scene.table.counts();
    (counts.maps_verified, counts.maps_outdated)
}

#[test]
fn code_that_moved_is_found_once_its_program_is_sampled() {
    let mut scene = scene();
    becomes(&scene, 50, &[(0x1000, "/bin/b")]);
    scene.table.tidy(scene.at(1500));
    assert_eq!(counts(&scene), (0, 0), "nobody samples it");
    scene.check(1500, 50, &[0x1010], "/bin/a: /bin/a+10");
    scene.table.tidy(scene.at(1501));
    assert_eq!(counts(&scene), (1, 1));
    assert_eq!(scene.host.listings.load(Ordering::Relaxed), 1, "what was found is what is taken");
    assert_eq!(scene.table.take_dirty(), [Pid(50)], "to be published");
    scene.check(1502, 50, &[0x1010], "/bin/a: /bin/b+10");
}

#[test]
fn what_is_true_stays_and_is_not_published_again() {
    let mut scene = scene();
    scene.check(1500, 50, &[0x1010], "/bin/a: /bin/a+10");
    scene.table.tidy(scene.at(1501));
    assert_eq!(counts(&scene), (1, 0));
    assert_eq!(scene.table.take_dirty(), []);
    assert_eq!(scene.table.counts().maps_read, 0);
}

#[test]
fn a_process_with_another_root_has_the_same_files_by_longer_paths() {
    let mut scene = scene();
    becomes(&scene, 50, &[(0x1000, "/container/root/bin/a")]);
    scene.check(1500, 50, &[0x1010], "/bin/a: /bin/a+10");
    scene.table.tidy(scene.at(1501));
    assert_eq!((counts(&scene), scene.table.take_dirty()), ((1, 0), vec![]));
}

#[test]
fn memory_that_two_processes_share_changes_for_both() {
    let mut scene = scene();
    child(&mut scene, 20, 60);
    child(&mut scene, 20, 61);
    // 60 shares its parent's memory, 61 does not.
    becomes(&scene, 50, &[(0x1000, "/bin/b")]);
    becomes(&scene, 60, &[(0x1000, "/bin/b")]);
    scene.mmap(30, 50, 0x1000, "/bin/b");
    scene.table.tidy(scene.at(100_000));
    scene.table.tidy(scene.at(200_000));
    assert_eq!(counts(&scene), (2, 1));
    scene.check(40, 50, &[0x1010], "/bin/a: /bin/b+10");
    scene.check(300, 60, &[0x1010], "/bin/a: /bin/b+10");
    scene.check(300, 61, &[0x1010], "/bin/a: /bin/a+10");
    // The child maps: the other way round.
    becomes(&scene, 50, &[(0x1000, "/bin/c")]);
    becomes(&scene, 60, &[(0x1000, "/bin/c")]);
    scene.mmap(301, 60, 0x1000, "/bin/c");
    scene.table.tidy(scene.at(300_000));
    scene.check(400, 50, &[0x1010], "/bin/a: /bin/c+10");
    // Who was found to have memory of its own is not asked again, nor who executes.
    let before = counts(&scene);
    scene.mmap(401, 61, 0x1000, "/bin/d");
    scene.exec(402, 60, "b");
    scene.mmap(403, 60, 0x1000, "/bin/d");
    scene.mmap(404, 50, 0x1000, "/bin/d");
    scene.table.tidy(scene.at(400_000));
    assert_eq!(counts(&scene), before);
}
