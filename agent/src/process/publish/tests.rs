//! What reaches the kernel side, with a made-up host and made-up tables.

use super::{Publisher, WalkTableError, WalkTables};
use crate::address::{AbsAddr, Generation, Pid, Tid};
use crate::bpf::{MappingUnwind, ProcessEvent, TableId, WalkMapping};
use crate::clock::monotonic_now;
use crate::engine::OpenFiles;
use crate::process::compile::Compilers;
use crate::process::fake::{FakeFiles, FakeHost, FakeProcess};
use crate::process::files::Files;
use crate::process::table::ProcessTable;
use crate::unwind::RowTable;
use agent_ebpf::RuleKind;
use hashbrown::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// A kernel side that keeps what it is told.
#[derive(Debug, Default)]
struct FakeTables {
    next: u32,
    tables: HashMap<TableId, usize>,
    processes: HashMap<Pid, (Generation, Vec<WalkMapping>)>,
    full: bool,
}

impl WalkTables for FakeTables {
    fn insert(&mut self, rows: &RowTable) -> Result<TableId, WalkTableError> {
        if self.full {
            return Err(WalkTableError::Full("chunks".into()));
        }
        self.next += 1;
        self.tables.insert(TableId(self.next), rows.pcs.len());
        Ok(TableId(self.next))
    }

    fn remove(&mut self, id: TableId) {
        self.tables.remove(&id).expect("only what is loaded is removed");
    }

    fn set_process(
        &mut self,
        pid: Pid,
        generation: Generation,
        mappings: &[WalkMapping],
    ) -> Result<usize, WalkTableError> {
        for mapping in mappings {
            if let MappingUnwind::Table(id) = mapping.unwind {
                assert!(self.tables.contains_key(&id), "a table that is loaded");
            }
        }
        self.processes.insert(pid, (generation, mappings.to_vec()));
        Ok(0)
    }

    fn remove_process(&mut self, pid: Pid) -> Result<(), WalkTableError> {
        self.processes.remove(&pid);
        Ok(())
    }

    fn bytes(&self) -> u64 {
        0
    }
}

struct Scene {
    host: Arc<FakeHost>,
    files: Arc<Files>,
    table: ProcessTable,
    publisher: Publisher,
    kernel: FakeTables,
}

impl Scene {
    fn new() -> Self {
        let host: Arc<FakeHost> = Arc::default();
        let parse: Arc<dyn crate::elf::ForeignFiles> = Arc::new(FakeFiles);
        let files = Arc::new(Files::new(Arc::clone(&host) as _, Arc::clone(&parse)));
        let open: Arc<dyn OpenFiles> = Arc::clone(&files) as _;
        let compilers = Compilers::start(&parse, &open).unwrap();
        let table = ProcessTable::new(Arc::clone(&host) as _, Arc::clone(&files), 0, &[]);
        let publisher = Publisher::new(compilers, None);
        Self { host, files, table, publisher, kernel: FakeTables::default() }
    }

    fn lives(&mut self, pid: u32, mappings: &[(u64, &str)]) {
        let process = FakeProcess::new(monotonic_now().0, "/bin/a", mappings);
        self.host.processes().insert(Pid(pid), process);
        self.table.scan(Pid(pid));
    }

    fn dies(&mut self, pid: u32) {
        self.host.processes().remove(&Pid(pid));
        let (pid, tid, time) = (Pid(pid), Tid(pid), monotonic_now());
        self.table.apply(ProcessEvent::Exit { pid, tid, time });
        self.table.tidy(time.plus(10_000_000_000));
    }

    fn refresh(&mut self) {
        self.publisher.refresh(&mut self.table, &mut self.kernel);
    }

    /// Until every table that was asked for is loaded and published.
    fn settle(&mut self) {
        self.refresh();
        while self.publisher.outstanding() > 0 {
            let wait = Duration::from_secs(5);
            assert!(self.publisher.wait(wait, &mut self.table, &mut self.kernel), "no table came");
        }
        self.refresh();
    }

    /// `start-end how` of each mapping of a process.
    fn shown(&self, pid: u32) -> String {
        let Some((_, mappings)) = self.kernel.processes.get(&Pid(pid)) else { return "-".into() };
        let one = |mapping: &WalkMapping| {
            let how = match mapping.unwind {
                MappingUnwind::Table(id) => format!("t{}", id.0),
                MappingUnwind::Pending => "pending".into(),
                MappingUnwind::Rule(rule) if rule.kind == RuleKind::NoInfo as u8 => "fp".into(),
                MappingUnwind::Rule(_) => "rule".into(),
            };
            format!("{:x}-{:x} {how}", mapping.start.0, mapping.end.0)
        };
        mappings.iter().map(one).collect::<Vec<_>>().join(", ")
    }
}

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
        path: b"/bin/short".to_vec(),
    });
    scene.table.apply(ProcessEvent::Exit { pid, tid, time });
    scene.refresh();
    assert_eq!(scene.publisher.counts().generations, 0);
    assert_eq!(scene.files.counts().known, 0);
}

#[test]
fn the_budget_of_rows_is_kept() {
    let mut scene = Scene::new();
    scene.publisher.rows_max = 6; // three files of two rows
    for (pid, path) in [(50, "/bin/a"), (51, "/bin/b"), (52, "/bin/c")] {
        scene.lives(pid, &[(0x1000, path)]);
        scene.settle();
    }
    assert_eq!(scene.publisher.counts().rows, 6);
    // All are mapped: the fourth gets none, and says so.
    scene.lives(53, &[(0x1000, "/bin/d")]);
    scene.settle();
    assert_eq!(scene.shown(53), "1000-2000 fp");
    let counts = scene.publisher.counts();
    assert_eq!((counts.no_room, counts.evicted, counts.rows), (1, 0, 6));
    assert_eq!(scene.publisher.tidy(&mut scene.kernel), [], "still no room");
    // Two end: the fifth takes the place of the one that was used longest ago.
    scene.dies(50);
    scene.dies(51);
    scene.lives(54, &[(0x1000, "/bin/e")]);
    scene.settle();
    assert_eq!(scene.shown(54), "1000-2000 t4");
    let counts = scene.publisher.counts();
    assert_eq!((counts.evicted, counts.rows), (1, 6));
    assert_eq!(scene.kernel.tables.len(), 3);
}

#[test]
fn what_did_not_fit_is_asked_for_again() {
    let mut scene = Scene::new();
    scene.kernel.full = true;
    scene.lives(50, &[(0x1000, "/bin/a")]);
    scene.settle();
    assert_eq!(scene.shown(50), "1000-2000 fp");
    scene.kernel.full = false;
    let again = scene.publisher.tidy(&mut scene.kernel);
    assert_eq!(again.len(), 1);
    scene.table.mark_dirty_by_file(&again);
    scene.settle();
    assert_eq!(scene.shown(50), "1000-2000 t1");
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
