//! What reaches the kernel side.

use super::WalkTables as _;
use super::scene::Scene;
use crate::address::{AbsAddr, Pid, Tid};
use crate::bpf::ProcessEvent;
use crate::clock::{MonotonicNs, monotonic_now};
use crate::engine::OpenFiles as _;
use crate::limits::{
    PAGES_SHARE, PUBLISH_BURST_NS, PUBLISH_PAUSE_NS_MAX, PUBLISH_RETRY_NS_MIN, TABLE_PARKED_NS,
    TABLE_PREPARE_PAUSE_NS,
};
use agent_ebpf::limits::MAPPINGS_PER_PAGE;
use std::time::Duration;

#[test]
fn pending_becomes_a_table_in_a_new_generation() {
    let mut scene = Scene::new();
    scene.lives(
        50,
        &[
            (0x1000, "/bin/a"),
            (0x9000, ""),
            (0xa000, "[uprobes]"),
            (0xb000, "/a.text"),
            (0xffff_ffff_ff60_0000, "[vsyscall]"),
        ],
    );
    scene.refresh();
    let first = scene.kernel.processes[&Pid(50)].0;
    assert_eq!(scene.shown(50), "1000-2000 pending, 9000-c000 fp", "adjacent ones are one");
    scene.settle();
    assert_eq!(scene.shown(50), "1000-2000 t1, 9000-c000 fp");
    assert!(scene.kernel.processes[&Pid(50)].0 > first, "a new generation");
    // The next process that maps the file has it at once.
    scene.lives(51, &[(0x5000, "/bin/a")]);
    scene.refresh();
    assert_eq!(scene.shown(51), "5000-6000 t1");
    assert_eq!(scene.publisher.counts().tables, 1);
}

#[test]
fn a_process_that_ended_is_taken_out() {
    let mut scene = Scene::new();
    scene.lives(50, &[(0x1000, "/bin/a")]);
    scene.settle();
    scene.dies(50);
    scene.refresh();
    assert_eq!(scene.shown(50), "-");
    // Its pid is used again: what is published then is the new one's.
    scene.lives(50, &[(0x7000, "/bin/b")]);
    scene.settle();
    assert_eq!(scene.shown(50), "7000-8000 t2");
}

#[test]
fn who_waits_for_a_table_is_noted_once() {
    let mut scene = Scene::new();
    for pid in [50, 51] {
        scene.lives(pid, &[(0x1000, "/bin/a")]);
    }
    // Held samples of both are tried in turn for as long as the table is not there.
    for pid in [50, 51, 50, 51, 50] {
        let set = scene.table.mappings(Pid(pid)).unwrap();
        let process = scene.table.key(Pid(pid)).unwrap();
        scene.publisher.walk_mappings(&set, process, false);
    }
    let file = scene.file(50);
    assert_eq!(scene.publisher.waiting.pids(file), 2);
    // Whoever ends does not wait: the file may never answer. Before anything is taken out of the threads.
    scene.host.processes().remove(&Pid(50));
    let (pid, tid, time) = (Pid(50), Tid(50), monotonic_now());
    scene.table.apply(ProcessEvent::Exit { pid, tid, time });
    scene.publisher.forget_ended(&mut scene.table, &mut scene.kernel);
    assert_eq!(scene.publisher.waiting.pids(file), 1);
    scene.settle();
    assert_eq!(scene.shown(51), "1000-2000 t1");
    assert!(scene.publisher.waiting.is_empty());
}

#[test]
fn an_exec_and_an_exit_in_one_poll_publish_nothing() {
    let mut scene = Scene::new();
    let (pid, tid, parent) = (Pid(60), Tid(60), Pid(1));
    let time = monotonic_now();
    scene.table.apply(ProcessEvent::Fork { pid, tid, parent, time });
    let comm = b"short".to_vec();
    scene.table.apply(ProcessEvent::Comm { pid, tid, time, exec: true, comm });
    scene.table.apply(ProcessEvent::Mmap {
        pid,
        time,
        start: AbsAddr(0x1000),
        length: 0x1000,
        file_offset: 0,
        build_id: None,
        inode: None,
        path: b"/bin/short".to_vec(),
    });
    scene.table.apply(ProcessEvent::Exit { pid, tid, time });
    scene.refresh();
    assert_eq!(scene.publisher.counts().generations, 0);
    assert_eq!(scene.files.counts().known, 0);
}

#[test]
fn the_budget_is_kept_and_what_was_not_used_for_longest_goes() {
    let mut scene = Scene::new();
    scene.publisher.budget.chunks_max = 3; // three small files
    for (pid, path) in [(50, "/bin/a"), (51, "/bin/b"), (52, "/bin/c")] {
        scene.lives(pid, &[(0x1000, path)]);
        scene.settle();
    }
    assert_eq!(scene.publisher.counts().tables, 3);
    // All are in use: the fourth waits, and says so.
    scene.lives(53, &[(0x1000, "/bin/d")]);
    scene.settle();
    assert_eq!(scene.shown(53), "1000-2000 pending");
    let counts = scene.publisher.counts();
    assert_eq!((counts.no_room, counts.evicted, counts.tables), (1, 0, 3));
    assert_eq!(scene.publisher.tidy(&mut scene.kernel), [], "still no room");
    // A sample met the first: the second, which is mapped all the same, makes room for the next.
    scene.forget_use();
    let (first, second) = (scene.file(50), scene.file(51));
    scene.publisher.used(first, monotonic_now());
    let third = scene.file(52);
    scene.publisher.used(third, MonotonicNs(7));
    scene.lives(54, &[(0x1000, "/bin/e")]);
    scene.settle();
    assert_eq!(scene.shown(54), "1000-2000 t4");
    assert_eq!(scene.shown(50), "1000-2000 t1");
    assert_eq!(scene.shown(51), "1000-2000 pending", "its table is gone");
    assert_eq!(scene.shown(52), "1000-2000 t3");
    assert_eq!(scene.kernel.tables.len(), 3);
    // Publishing it again does not bring it back; a sample that meets it does.
    scene.table.mark_dirty(Pid(51));
    scene.settle();
    assert_eq!(scene.shown(51), "1000-2000 pending");
    scene.publisher.wanted(second);
    scene.settle();
    assert_eq!(scene.shown(51), "1000-2000 t5");
    assert_eq!(scene.shown(52), "1000-2000 pending");
    let counts = scene.publisher.counts();
    assert_eq!((counts.evicted, counts.returned, counts.tables), (2, 1, 3));
    // A new process that maps a removed one brings it back too, for all.
    scene.forget_use();
    scene.lives(55, &[(0x7000, "/bin/c")]);
    scene.settle();
    assert_eq!(scene.shown(55), "7000-8000 t6");
    assert_eq!(scene.shown(52), "1000-2000 t6");
}

#[test]
fn what_nobody_maps_goes_first() {
    let mut scene = Scene::new();
    scene.publisher.budget.chunks_max = 2;
    scene.lives(50, &[(0x1000, "/bin/a")]);
    scene.settle();
    scene.forget_use();
    scene.lives(51, &[(0x1000, "/bin/b")]);
    scene.settle();
    scene.dies(51);
    scene.lives(52, &[(0x1000, "/bin/c")]);
    scene.settle();
    assert_eq!((scene.shown(50), scene.shown(52)), ("1000-2000 t1".into(), "1000-2000 t3".into()));
}

#[test]
fn what_was_removed_can_be_used_only_after_a_delay() {
    let mut scene = Scene::new();
    scene.kernel.full = true;
    scene.lives(50, &[(0x1000, "/bin/a")]);
    scene.settle();
    assert_eq!(scene.shown(50), "1000-2000 pending");
    assert_eq!((scene.publisher.counts().pending, scene.publisher.counts().no_room), (1, 0));
    scene.kernel.full = false;
    scene.refresh();
    assert_eq!(scene.shown(50), "1000-2000 pending", "not at once");
    let parked = monotonic_now().plus(TABLE_PARKED_NS);
    scene.publisher.load_parked(parked, &mut scene.table, &mut scene.kernel);
    scene.refresh();
    assert_eq!(scene.shown(50), "1000-2000 t1");
}

#[test]
fn memory_that_the_kernel_refuses_is_not_asked_for_with_each_poll() {
    let mut scene = Scene::new();
    scene.kernel.full = true;
    let now = monotonic_now();
    for poll in 0..10 {
        scene.publisher.prepare(now.plus(poll), &mut scene.kernel);
    }
    assert_eq!(scene.kernel.refusals, 1);
    scene.publisher.prepare(now.plus(TABLE_PREPARE_PAUSE_NS), &mut scene.kernel);
    assert_eq!(scene.kernel.refusals, 2);
}

#[test]
fn what_never_fits_is_given_up_and_asked_for_again_much_later() {
    let mut scene = Scene::new();
    scene.kernel.full = true;
    scene.lives(50, &[(0x1000, "/bin/a")]);
    scene.settle();
    let mut now = monotonic_now();
    for _ in 0..10 {
        now = now.plus(TABLE_PARKED_NS);
        scene.publisher.load_parked(now, &mut scene.table, &mut scene.kernel);
    }
    scene.refresh();
    let counts = scene.publisher.counts();
    assert_eq!((counts.pending, counts.no_room, scene.publisher.is_busy()), (0, 1, false));
    assert_eq!(scene.shown(50), "1000-2000 pending");
    scene.kernel.full = false;
    let file = scene.file(50);
    scene.publisher.wanted(file);
    assert_eq!(scene.publisher.outstanding(), 0, "a compilation for each sample would be too much");
    let later = monotonic_now().plus(60_000_000_000);
    assert_eq!(scene.publisher.budget.tidy(later, &mut scene.kernel), [file]);
    scene.table.mark_dirty_by_file(&[file]);
    scene.settle();
    assert_eq!(scene.shown(50), "1000-2000 t1");
}

#[test]
fn copies_of_one_file_share_a_table_until_the_last_is_gone() {
    let mut scene = Scene::new();
    scene.lives(50, &[(0x1000, "/bin/a")]);
    scene.lives(51, &[(0x1000, "/copy/bin/a")]);
    scene.settle();
    assert_eq!((scene.shown(50), scene.shown(51)), ("1000-2000 t1".into(), "1000-2000 t1".into()));
    let counts = scene.publisher.counts();
    assert_eq!((counts.tables, counts.shared, counts.rows), (1, 1, 2));
    scene.dies(50);
    scene.files.forget_unused();
    assert_eq!(scene.publisher.tidy(&mut scene.kernel), []);
    assert_eq!((scene.kernel.tables.len(), scene.publisher.counts().shared), (1, 0));
    scene.dies(51);
    scene.files.forget_unused();
    assert_eq!(scene.publisher.tidy(&mut scene.kernel), []);
    assert_eq!(scene.kernel.tables.len(), 0);
}

#[test]
fn a_refused_process_is_offered_again() {
    let mut scene = Scene::new();
    scene.kernel.processes_full = true;
    scene.lives(50, &[(0x1000, "/bin/a")]);
    scene.settle();
    assert_eq!(scene.shown(50), "-");
    let counts = scene.publisher.counts();
    assert_eq!((counts.processes_waiting, counts.generations), (1, 0));
    scene.kernel.processes_full = false;
    scene.refresh();
    assert_eq!(scene.shown(50), "-", "not before the kernel side can use its memory again");
    std::thread::sleep(Duration::from_nanos(2 * PUBLISH_RETRY_NS_MIN));
    scene.refresh();
    assert_eq!(scene.shown(50), "1000-2000 t1");
    assert_eq!(scene.publisher.counts().processes_waiting, 0);
    // One that ends while it waits is forgotten.
    scene.kernel.processes_full = true;
    scene.lives(51, &[(0x1000, "/bin/a")]);
    scene.refresh();
    assert_eq!(scene.publisher.counts().processes_waiting, 1);
    scene.dies(51);
    scene.refresh();
    assert_eq!(scene.publisher.counts().processes_waiting, 0);
}

#[test]
fn waits_end_with_the_publication_of_the_last_table() {
    let mut scene = Scene::new();
    scene.lives(50, &[(0x1000, "/bin/a")]);
    scene.publisher.missed(Pid(50), monotonic_now());
    scene.refresh();
    assert_eq!(scene.publisher.counts().waits.count, 0, "its table is being made");
    scene.settle();
    let waits = scene.publisher.counts().waits;
    assert_eq!((waits.count, waits.abandoned), (1, 0));
    assert!(waits.max_ns > 0 && waits.p99_ns() == waits.max_ns, "{waits:?}");
    scene.publisher.missed(Pid(50), monotonic_now());
    scene.dies(50);
    scene.refresh();
    assert_eq!(scene.publisher.counts().waits.abandoned, 1);
}

#[test]
fn the_whole_table_takes_the_place_of_what_came_first() {
    for (full, shown, completed, no_room) in
        [(false, "1000-2000 t2", 1, 0), (true, "1000-2000 t1", 0, 1)]
    {
        let mut scene = Scene::new();
        scene.lives(50, &[(0x1000, "/bin/later")]);
        scene.publisher.missed(Pid(50), monotonic_now());
        scene.refresh();
        let wait = Duration::from_secs(5);
        assert!(scene.publisher.wait(wait, &mut scene.table, &mut scene.kernel));
        assert_eq!(scene.publisher.counts().rows, 100, "what came first is used");
        scene.kernel.full = full;
        assert!(scene.publisher.wait(wait, &mut scene.table, &mut scene.kernel));
        assert_eq!(scene.publisher.outstanding(), 0);
        scene.refresh();
        let counts = scene.publisher.counts();
        assert_eq!(scene.shown(50), shown);
        assert_eq!((scene.kernel.tables.len(), counts.tables, counts.waits.count), (1, 1, 1));
        assert_eq!((counts.completed, counts.no_room), (completed, no_room));
    }
}

#[test]
fn the_whole_table_comes_while_its_first_part_waits_for_memory() {
    // Rows in the end: of the whole table if there is room for it, else of its first part.
    for (chunks_max, rows) in [(1, 2), (0, 100)] {
        let mut scene = Scene::new();
        scene.publisher.budget.chunks_max = 1;
        scene.kernel.full = true;
        scene.lives(50, &[(0x1000, "/bin/later")]);
        scene.refresh();
        let wait = Duration::from_secs(5);
        assert!(scene.publisher.wait(wait, &mut scene.table, &mut scene.kernel));
        assert!(scene.publisher.budget.has_parked(), "the first part");
        scene.kernel.full = false;
        scene.publisher.budget.chunks_max = chunks_max;
        assert!(scene.publisher.wait(wait, &mut scene.table, &mut scene.kernel));
        assert_eq!(scene.publisher.outstanding(), 0);
        scene.publisher.budget.chunks_max = 1;
        let parked = monotonic_now().plus(TABLE_PARKED_NS);
        scene.publisher.load_parked(parked, &mut scene.table, &mut scene.kernel);
        scene.refresh();
        assert_eq!(scene.shown(50), "1000-2000 t1", "what came first is loaded over nothing");
        let counts = scene.publisher.counts();
        assert_eq!((scene.kernel.tables.len(), counts.tables, counts.rows), (1, 1, rows));
        assert!(!scene.publisher.budget.has_parked());
    }
}

#[test]
fn a_file_that_cannot_be_opened_is_not_asked_for_in_a_circle() {
    let mut scene = Scene::new();
    scene.lives(50, &[(0x1000, "/bin/a")]);
    let set = scene.table.mappings(Pid(50)).unwrap();
    // Gone from the host before a thread comes to it, and no descriptor is kept.
    scene.host.processes().clear();
    let id = set.mappings()[0].file.as_ref().unwrap().id;
    scene.files.close_all();
    assert!(scene.files.open(id).is_none());
    scene.settle();
    scene.refresh();
    assert_eq!(scene.publisher.outstanding(), 0);
    assert_eq!(scene.publisher.counts().failed, 1);
    assert_eq!(scene.shown(50), "1000-2000 fp");
}

/// Four files with as many rules as a file may have take all that there are, and samples meet them all the time.
#[test]
fn files_with_many_rules_keep_no_other_from_its_own() {
    let mut scene = Scene::new();
    for number in 0..4 {
        scene.lives(50 + number, &[(0x1000, format!("/bin/4095-rules-{number}").as_str())]);
        scene.settle();
    }
    assert_eq!((scene.publisher.counts().tables, scene.kernel.rules_left()), (4, 4));
    scene.lives(60, &[(0x1000, "/bin/300-rules-9")]);
    scene.settle();
    assert_eq!(scene.shown(60), "1000-2000 t5");
    let counts = scene.publisher.counts();
    assert_eq!((counts.tables, counts.evicted, counts.no_room), (4, 1, 0));
    // The one that made room is sampled again: it does not push out what needs less, nor its like.
    let evicted = (50..54).find(|&pid| scene.shown(pid) == "1000-2000 pending").unwrap();
    let file = scene.file(evicted);
    scene.publisher.wanted(file);
    scene.settle();
    let mut now = monotonic_now();
    for _ in 0..10 {
        now = now.plus(TABLE_PARKED_NS);
        scene.publisher.load_parked(now, &mut scene.table, &mut scene.kernel);
    }
    scene.refresh();
    assert_eq!(scene.shown(60), "1000-2000 t5");
    let counts = scene.publisher.counts();
    assert_eq!((counts.tables, counts.evicted, counts.no_room), (4, 1, 1));
}

#[test]
fn a_table_in_use_has_no_more_than_its_share_while_a_smaller_one_finds_no_room() {
    let mut scene = Scene::new();
    scene.publisher.budget.chunks_max = 3;
    scene.lives(50, &[(0x1000, "/bin/9000-rows")]);
    scene.settle();
    assert_eq!(scene.shown(50), "1000-2000 t1");
    scene.lives(51, &[(0x1000, "/bin/b")]);
    scene.settle();
    assert_eq!(
        (scene.shown(50), scene.shown(51)),
        ("1000-2000 pending".into(), "1000-2000 t2".into())
    );
}

/// Two processes with as many mappings as one may have take all pages.
#[test]
fn a_process_has_no_more_than_its_share_of_pages_while_others_need_them() {
    let mut scene = Scene::new();
    (scene.kernel.pages_max, scene.publisher.pages.pages_max) = (256, 256);
    let many: Vec<(u64, &str)> = (1..=8192).map(|number| (number * 0x2000, "")).collect();
    for pid in [50, 51] {
        scene.lives(pid, &many);
        scene.refresh();
        assert_eq!(scene.kernel.processes[&Pid(pid)].1.len(), 8192);
    }
    scene.lives(60, &[(0x1000, "/bin/a")]);
    scene.settle();
    std::thread::sleep(Duration::from_nanos(2 * PUBLISH_RETRY_NS_MIN));
    scene.settle();
    assert_eq!(scene.shown(60), "1000-2000 t1");
    let share = PAGES_SHARE * MAPPINGS_PER_PAGE;
    assert!([50, 51].iter().all(|pid| scene.kernel.processes[&Pid(*pid)].1.len() == share));
    let counts = scene.publisher.counts();
    assert_eq!(counts.processes_cut, 2);
    assert_eq!(counts.mappings_left_out, 2 * (8192 - share as u64));
}

#[test]
fn a_process_that_takes_long_to_publish_rests() {
    let mut scene = Scene::new();
    scene.kernel.work_ns = PUBLISH_BURST_NS + 8_000_000;
    scene.lives(50, &[(0x1000, "")]);
    scene.settle();
    let first = scene.kernel.processes[&Pid(50)].0;
    for _ in 0..10 {
        scene.table.mark_dirty(Pid(50));
        scene.refresh();
    }
    assert_eq!(scene.kernel.processes[&Pid(50)].0, first);
    assert_eq!(scene.publisher.counts().publications_put_off, 10);
    std::thread::sleep(Duration::from_nanos(2 * PUBLISH_PAUSE_NS_MAX));
    scene.refresh();
    assert!(scene.kernel.processes[&Pid(50)].0 > first, "what changed meanwhile comes by itself");
}
