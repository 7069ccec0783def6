//! What is known belongs to a time: the next program's mappings are not those of the one before.

use super::Scene;
use crate::address::{Generation, Pid};

#[test]
fn what_is_read_of_a_later_program_is_not_taken_for_the_one_before() {
    let mut scene = Scene::new();
    scene.fork(10, 1, 50, 50);
    // It executes b, then c; `/proc` speaks of c before the records of both have come.
    scene.lives(50, 10, "/bin/c", &[(0x1000, "/bin/c")]);
    scene.exec(20, 50, "b");
    scene.table.unknown(Pid(50), None, scene.at(20));
    scene.check(20, 50, &[0x1010], ": ?");
    scene.mmap(20, 50, 0x1000, "/bin/b");
    scene.check(21, 50, &[0x1010], "/bin/b: /bin/b+10");
    // A walk of before the first publication says nothing of now.
    scene.table.published(Pid(50), Generation(1));
    scene.table.unknown(Pid(50), None, scene.at(21));
    scene.check(22, 50, &[0x1010], "/bin/b: /bin/b+10");
    scene.exec(30, 50, "c");
    scene.mmap(30, 50, 0x1000, "/bin/c");
    scene.check(29, 50, &[0x1010], "/bin/b: /bin/b+10");
    scene.check(31, 50, &[0x1010], "/bin/c: /bin/c+10");
    // The records of its mappings were lost: after a while `/proc` is asked.
    scene.lives(50, 10, "/bin/d", &[(0x1000, "/bin/d")]);
    scene.exec(40, 50, "d");
    scene.table.unknown(Pid(50), None, scene.at(1100));
    scene.check(1100, 50, &[0x1010], "/bin/d: /bin/d+10");
}

#[test]
fn a_walk_by_a_mapping_that_was_replaced_is_cut_there() {
    let mut scene = Scene::new();
    scene.fork(10, 1, 50, 50);
    scene.exec(11, 50, "a");
    scene.mmap(11, 50, 0x1000, "/bin/a");
    scene.mmap(12, 50, 0x8000, "/lib/one.so");
    scene.lives(50, 10, "/bin/a", &[]);
    scene.table.mappings(Pid(50));
    scene.table.published(Pid(50), Generation(1));
    // Another library comes to lie there, and the walker does not know yet.
    scene.mmap(20, 50, 0x8000, "/lib/two.so");
    let check = |scene: &mut Scene, walk: (u64, u32, &[u64]), sound: usize, expected: &str| {
        let (ms, generation, user) = walk;
        let sample = scene.sample(ms, 50, generation, user);
        let attribution = scene.table.attribute(&sample);
        assert_eq!(attribution.sound_frames, sound, "at {ms}");
        assert_eq!(scene.shown(&sample), expected, "at {ms}");
    };
    let stack = [0x1004, 0x8010, 0x1010];
    check(&mut scene, (21, 1, &stack), 2, "/bin/a: /bin/a+4 /lib/two.so+10 /bin/a+10");
    // A stack that does not go through it is whole.
    check(&mut scene, (21, 1, &stack[..1]), usize::MAX, "/bin/a: /bin/a+4");
    scene.table.mappings(Pid(50));
    scene.table.published(Pid(50), Generation(2));
    check(&mut scene, (22, 2, &stack), usize::MAX, "/bin/a: /bin/a+4 /lib/two.so+10 /bin/a+10");
}

#[test]
fn a_sample_is_counted_once_however_long_it_was_held() {
    let mut scene = Scene::new();
    scene.fork(10, 1, 50, 50);
    scene.exec(11, 50, "a");
    scene.mmap(11, 50, 0x1000, "/bin/a");
    scene.lives(50, 10, "/bin/a", &[]);
    scene.table.mappings(Pid(50));
    scene.table.published(Pid(50), Generation(1));
    scene.mmap(20, 50, 0x1000, "/bin/b");
    let outdated = scene.sample(21, 50, 1, &[0x1010, 0x1020]);
    let mismatched = scene.sample(21, 50, 9, &[0x1010]);
    let stranger = scene.sample(21, 99, 0, &[0x1010]);
    for sample in [&outdated, &mismatched, &stranger] {
        for _ in 0..3 {
            scene.table.attribute_held(sample);
        }
    }
    let counted = |scene: &Scene| {
        let counts = scene.table.counts();
        [counts.walks_outdated, counts.generations_mismatched, counts.strangers]
    };
    assert_eq!(counted(&scene), [0; 3]);
    for sample in [&outdated, &mismatched, &stranger] {
        scene.table.attribute(sample);
    }
    assert_eq!(counted(&scene), [1; 3]);
}

#[test]
fn a_held_sample_shows_what_was_mapped_at_its_time() {
    let mut scene = Scene::new();
    scene.fork(10, 1, 50, 50);
    scene.exec(11, 50, "a");
    scene.mmap(11, 50, 0x1000, "/bin/a");
    // Two libraries take turns at one address, and none of it was looked at before.
    let libraries = ["/lib/one.so", "/lib/two.so"];
    let turns: Vec<(u64, &str)> = (0..40).zip(libraries.into_iter().cycle()).collect();
    for &(turn, library) in &turns {
        scene.mmap(20 + 5 * turn, 50, 0x8000, library);
    }
    scene.lives(50, 10, "/bin/a", &[]);
    for &(turn, library) in turns.iter().rev() {
        let expected = format!("/bin/a: {library}+10 /bin/a+10");
        scene.check(23 + 5 * turn, 50, &[0x8010, 0x1010], &expected);
    }
    // Walked by what was published in the middle: the frames in the other library are not believed.
    scene.table.mappings(Pid(50));
    scene.table.published(Pid(50), Generation(1));
    scene.mmap(230, 50, 0x8000, "/lib/one.so");
    scene.mmap(240, 50, 0x8000, "/lib/two.so");
    let held = scene.sample(235, 50, 1, &[0x8010, 0x1010]);
    assert_eq!(scene.table.attribute_held(&held).sound_frames, 1);
    assert_eq!(scene.shown(&held), "/bin/a: /lib/one.so+10 /bin/a+10");
    let later = scene.sample(245, 50, 1, &[0x8010, 0x1010]);
    assert_eq!(scene.table.attribute_held(&later).sound_frames, usize::MAX);
    // A program that does it all the time keeps a few of these.
    for turn in 0..4000 {
        scene.mmap(300 + turn, 50, 0x8000, libraries[usize::try_from(turn % 2).unwrap()]);
    }
    scene.check(4299, 50, &[0x8010], "/bin/a: /lib/two.so+10");
    scene.check(4298, 50, &[0x8010], "/bin/a: /lib/one.so+10");
}
