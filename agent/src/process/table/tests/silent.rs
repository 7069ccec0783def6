//! Processes whose `/proc` does not answer for a while: their memory is locked, or they serve it themselves.

use super::*;

/// Longer than anybody waits, and than a busy machine takes for the rest.
const SILENT: Duration = Duration::from_millis(1500);

/// The table looks on other threads.
fn scene() -> Scene {
    Scene::with(&[], |files| Looks::start(files).unwrap())
}

/// Takes in what came late until something holds.
#[track_caller]
fn until(scene: &mut Scene, what: &str, mut holds: impl FnMut(&mut Scene) -> bool) {
    let begin = Instant::now();
    while !holds(scene) {
        assert!(begin.elapsed() < Duration::from_secs(20), "{what}");
        std::thread::sleep(Duration::from_millis(5));
        scene.table.tidy(monotonic_now());
    }
}

#[test]
fn mappings_that_come_late_are_of_the_time_when_they_were_read() {
    let mut scene = scene();
    scene.lives(50, 0, "/bin/a", &[(0x1000, "/bin/a"), (0x7000, "/lib/old.so")]);
    scene.lives(51, 0, "/bin/b", &[(0x2000, "/bin/b")]);
    scene.host.processes().get_mut(&Pid(50)).unwrap().maps_wait = SILENT;
    let begin = Instant::now();
    scene.table.scan(Pid(50));
    // It is asked once, however often it is sampled meanwhile; others are not held up.
    for _ in 0..100 {
        scene.table.unknown(Pid(50), Some(AbsAddr(0x9000)), monotonic_now());
        assert!(scene.table.mappings(Pid(50)).unwrap().mappings().is_empty());
    }
    until(&mut scene, "others are known", |scene| {
        scene.table.scan(Pid(51));
        !scene.table.mappings(Pid(51)).unwrap().mappings().is_empty()
    });
    assert!(begin.elapsed() < SILENT, "{:?}", begin.elapsed());
    // What it maps in the meantime is newer than the answer.
    let now_ms = monotonic_now().since(scene.begin) / MS + 1;
    scene.mmap(now_ms, 50, 0x7000, "/lib/new.so");
    let paths = |scene: &mut Scene| {
        let set = scene.table.mappings(Pid(50)).unwrap();
        let files = set.mappings().iter().filter_map(|mapping| mapping.file.as_ref());
        files.map(|file| file.path.clone()).collect::<Vec<_>>()
    };
    assert_eq!(paths(&mut scene), ["/lib/new.so"], "it is known at once");
    let _ = scene.table.attribute(&RawSample { tid: Tid(51), ..scene.sample(0, 50, 0, &[]) });
    until(&mut scene, "its mappings came", |scene| paths(scene) == ["/bin/a", "/lib/new.so"]);
}

#[test]
fn an_environment_that_comes_late_is_waited_for_once() {
    let mut scene = scene();
    scene.lives(60, 0, "/bin/a", &[(0x1000, "/bin/a")]);
    let silent = |process: &mut FakeProcess| {
        process.service = Some("billing".to_owned());
        process.environment_wait = SILENT;
    };
    silent(scene.host.processes().get_mut(&Pid(60)).unwrap());
    let mut tid = 60;
    let mut service = |scene: &mut Scene| {
        // Its threads take turns.
        tid = 121 - tid;
        let sample = RawSample { tid: Tid(tid), ..scene.sample(100, 60, 0, &[0x1010]) };
        scene.table.attribute(&sample).process.service_name.clone()
    };
    let begin = Instant::now();
    for _ in 0..100 {
        assert_eq!(service(&mut scene), "a", "its executable's");
    }
    assert!(begin.elapsed() < SILENT, "{:?}", begin.elapsed());
    until(&mut scene, "its service came", |scene| service(scene) == "billing");
    assert!(begin.elapsed() >= SILENT / 2);
}
