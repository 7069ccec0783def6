//! Processes that the programs gave their parent's mappings at fork.

use super::Scene;
use crate::address::{Generation, Pid};
use agent_ebpf::ProcessEntry;

fn entry(generation: u32) -> ProcessEntry {
    ProcessEntry { generation, first_page: 3, pages: 1 }
}

fn inherit(scene: &mut Scene, ms: u64, pid: u32, generation: u32) {
    let time = scene.at(ms);
    scene.table.inherited(Pid(pid), entry(generation), time);
}

/// A parent, 50, whose mappings are published as generation 1.
fn scene() -> Scene {
    let mut scene = Scene::new();
    scene.fork(10, 1, 50, 50);
    scene.exec(11, 50, "a");
    scene.mmap(12, 50, 0x1000, "/bin/a");
    scene.check(13, 50, &[0x1010], "/bin/a: /bin/a@10");
    scene.table.published(Pid(50), Generation(1));
    scene
}

#[test]
fn samples_of_a_child_mean_its_parents_mappings() {
    let mut scene = scene();
    scene.fork(20, 50, 60, 60);
    inherit(&mut scene, 20, 60, 1);
    // The parent goes on; its child has what was there.
    scene.mmap(30, 50, 0x1000, "/bin/b");
    scene.table.published(Pid(50), Generation(2));
    let of_child = scene.sample(40, 60, 1, &[0x1010]);
    assert_eq!(scene.shown(&of_child), "/bin/a: /bin/a@10");
    assert_eq!(scene.table.counts().generations_mismatched, 0);
    // A child of the child, before anybody looked.
    scene.fork(41, 60, 70, 70);
    inherit(&mut scene, 41, 70, 1);
    let of_grandchild = scene.sample(42, 70, 1, &[0x1010]);
    assert_eq!(scene.shown(&of_grandchild), "/bin/a: /bin/a@10");
    assert_eq!(scene.table.counts().generations_mismatched, 0);
    let handed = scene.table.take_inherited();
    assert_eq!(handed, [(Pid(60), entry(1)), (Pid(70), entry(1))]);
}

#[test]
fn what_was_inherited_is_given_back() {
    let mut scene = scene();
    scene.fork(20, 50, 60, 60);
    inherit(&mut scene, 20, 60, 1);
    scene.exit(21, 60, 60);
    assert_eq!(scene.table.take_ended(), [Pid(60)]);
    // It executes another program, which nobody ever samples.
    scene.fork(30, 50, 61, 61);
    inherit(&mut scene, 30, 61, 1);
    scene.exec(31, 61, "b");
    assert_eq!(scene.table.take_ended(), [Pid(61)], "exec took the entry");
    scene.exit(32, 61, 61);
    assert_eq!(scene.table.take_ended(), []);
    // Nothing is known of it: the record of its fork was lost, and it is gone.
    inherit(&mut scene, 40, 62, 1);
    assert_eq!(scene.table.take_ended(), [Pid(62)]);
}

#[test]
fn a_child_that_misses_a_table_gets_mappings_of_its_own() {
    let mut scene = scene();
    assert_eq!(scene.table.take_dirty(), []);
    scene.fork(20, 50, 60, 60);
    inherit(&mut scene, 20, 60, 1);
    scene.table.needed(Pid(60));
    assert_eq!(scene.table.take_dirty(), [Pid(60)]);
    scene.table.published(Pid(60), Generation(2));
    scene.table.needed(Pid(60));
    assert_eq!(scene.table.take_dirty(), [], "they were published");
}
