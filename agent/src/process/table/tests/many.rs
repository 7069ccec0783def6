//! Large processes, and many.

use super::*;

#[test]
fn large_maps_are_read_with_pauses() {
    let mut scene = Scene::new();
    scene.lives(50, 0, "/bin/a", &[(0x1000, "/bin/a")]);
    scene.host.processes().get_mut(&Pid(50)).unwrap().maps_wait = Duration::from_millis(10);
    scene.table.scan(Pid(50));
    scene.table.published(Pid(50), Generation(1));
    // New code is met all the time, and each read would find it.
    let end = monotonic_now().plus(300 * MS);
    while monotonic_now() < end {
        scene.table.unknown(Pid(50), Some(AbsAddr(0x9000)), monotonic_now());
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(scene.table.counts().maps_read, 1);
}

#[test]
fn ten_thousand_processes_are_scanned_and_kept() {
    let mut scene = Scene::new();
    let mappings: Vec<(u64, String)> =
        (0..2).map(|number| (0x10_0000 * (number + 1), format!("/lib/{number}.so"))).collect();
    for pid in 1..=10_000 {
        scene.lives(pid, 0, "/bin/a", &[]);
        scene.host.processes().get_mut(&Pid(pid)).unwrap().mappings = mappings.clone();
    }
    let begin = Instant::now();
    for pid in 1..=10_000 {
        scene.table.scan(Pid(pid));
    }
    let scanned = begin.elapsed();
    assert_eq!(scene.table.take_dirty().len(), 10_000);
    let file = scene.table.mappings(Pid(1)).unwrap().mappings()[0].file.as_ref().unwrap().id;
    let begin = Instant::now();
    scene.table.mark_dirty_by_file(&[file]);
    let marked = begin.elapsed();
    assert_eq!(scene.table.take_dirty().len(), 10_000);
    eprintln!("10,000 processes of 2 mappings: scanned in {scanned:?}, marked in {marked:?}");
    assert_eq!((scene.table.counts().known, scene.files.counts().known), (10_000, 2));
}
