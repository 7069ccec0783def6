//! Which program a process runs, by its path.

use super::Scene;
use crate::address::Pid;

#[test]
fn a_deleted_executable_is_told_from_one_that_is_called_so() {
    let mut scene = Scene::new();
    for (pid, stated, expected) in [
        (50, "/bin/a", "/bin/a"),
        (51, "/bin/a (deleted)", "/bin/a"),
        (52, "/bin/so (deleted)", "/bin/so (deleted)"),
        (53, "/bin/so (deleted) (deleted)", "/bin/so (deleted)"),
    ] {
        scene.lives(pid, 0, stated, &[(0x1000, stated)]);
        scene.table.scan(Pid(pid));
        let found = scene.table.attribute(&scene.sample(10, pid, 0, &[])).process;
        assert_eq!(found.executable_path, expected, "{stated}");
    }
}

#[test]
fn a_pid_that_is_used_again_does_not_lend_its_executable() {
    let mut scene = Scene::new();
    scene.fork(10, 1, 50, 50);
    // It has ended, another process has its pid, and the records of both are yet to come.
    scene.lives(50, 5000, "/bin/other", &[(0x1000, "/bin/other")]);
    let sample = scene.sample(1500, 50, 0, &[]);
    for _ in 0..2 {
        let found = scene.table.attribute(&sample).process;
        assert_eq!(
            (found.executable_path.as_str(), found.executable_name.as_str()),
            ("", "thread")
        );
    }
}
