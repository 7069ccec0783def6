//! A made-up host and made-up tables, for the tests.

use super::{Publisher, WalkTableError, WalkTables};
use crate::address::{FileId, Generation, Pid, Tid};
use crate::bpf::{MappingUnwind, ProcessEvent, TableId, WalkMapping};
use crate::clock::{MonotonicNs, monotonic_now, thread_cpu_ns};
use crate::engine::OpenFiles;
use crate::limits::UNWIND_TABLE_BYTES_MAX;
use crate::process::compile::Compilers;
use crate::process::fake::{FakeFiles, FakeHost, FakeProcess};
use crate::process::files::Files;
use crate::process::looks::Looks;
use crate::process::table::ProcessTable;
use crate::unwind::RowTable;
use agent_ebpf::limits::{MAPPINGS_PER_PAGE, RULES_MAX};
use agent_ebpf::{ProcessEntry, RuleKind, UnwindRule};
use hashbrown::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

/// A kernel side that keeps what it is told.
#[derive(Debug, Default)]
pub(super) struct FakeTables {
    pub(super) next: u32,
    pub(super) tables: HashMap<TableId, usize>,
    pub(super) processes: HashMap<Pid, (Generation, Vec<WalkMapping>)>,
    pub(super) full: bool,
    pub(super) processes_full: bool,
    /// Distinct rules of the tables that are loaded.
    pub(super) rules: HashMap<TableId, HashSet<UnwindRule>>,
    /// Pages of mappings; 0 is as many as are wanted.
    pub(super) pages_max: usize,
    /// CPU time that a publication takes, nanoseconds.
    pub(super) work_ns: u64,
    /// Times that memory was asked for in vain.
    pub(super) refusals: u32,
}

impl FakeTables {
    pub(super) fn rules_in_use(&self) -> HashSet<UnwindRule> {
        self.rules.values().flatten().copied().collect()
    }

    fn pages(mappings: &[WalkMapping]) -> usize {
        mappings.len().div_ceil(MAPPINGS_PER_PAGE)
    }
}

impl WalkTables for FakeTables {
    fn insert(&mut self, rows: &RowTable) -> Result<TableId, WalkTableError> {
        if self.full {
            return Err(WalkTableError::Full("chunks".into()));
        }
        if self.new_rules(rows) > self.rules_left() {
            return Err(WalkTableError::Full("rules".into()));
        }
        self.next += 1;
        self.tables.insert(TableId(self.next), rows.len());
        self.rules.insert(TableId(self.next), rows.rules().iter().copied().collect());
        Ok(TableId(self.next))
    }

    fn remove(&mut self, id: TableId) {
        self.tables.remove(&id).expect("only what is loaded is removed");
        self.rules.remove(&id);
    }

    fn set_process(
        &mut self,
        pid: Pid,
        generation: Generation,
        mappings: &[WalkMapping],
    ) -> Result<usize, WalkTableError> {
        if self.processes_full {
            return Err(WalkTableError::Full("pages".into()));
        }
        let others = self.processes.iter().filter(|(other, _)| **other != pid);
        let used: usize = others.map(|(_, (_, mappings))| Self::pages(mappings)).sum();
        if self.pages_max > 0 && used + Self::pages(mappings) > self.pages_max {
            return Err(WalkTableError::Full("pages".into()));
        }
        let begin = thread_cpu_ns();
        while thread_cpu_ns() - begin < self.work_ns {}
        for mapping in mappings {
            if let MappingUnwind::Table(id) = mapping.unwind {
                assert!(self.tables.contains_key(&id), "a table that is loaded");
            }
        }
        self.processes.insert(pid, (generation, mappings.to_vec()));
        Ok(0)
    }

    fn inherit(&mut self, pid: Pid, entry: ProcessEntry) -> bool {
        self.processes.insert(pid, (Generation(entry.generation), Vec::new()));
        true
    }

    fn records_known_until(&mut self, _time: MonotonicNs) {}

    fn remove_process(&mut self, pid: Pid) -> Result<(), WalkTableError> {
        self.processes.remove(&pid);
        Ok(())
    }

    fn rule_at(&self, id: TableId, _at: u64) -> Result<agent_ebpf::UnwindRule, WalkTableError> {
        Err(WalkTableError::Refused(format!("{id:?} is not read back here")))
    }

    fn rules_left(&self) -> usize {
        RULES_MAX.saturating_sub(self.rules_in_use().len())
    }

    fn new_rules(&self, rows: &RowTable) -> usize {
        let used = self.rules_in_use();
        rows.rules().iter().filter(|rule| !used.contains(*rule)).count()
    }

    fn own_rules(&self, id: TableId) -> usize {
        let others = self.rules.iter().filter(|(other, _)| **other != id);
        let others: HashSet<UnwindRule> = others.flat_map(|(_, rules)| rules).copied().collect();
        self.rules.get(&id).map_or(0, |rules| rules.difference(&others).count())
    }

    fn prepare(&mut self, _chunks: usize) -> bool {
        self.refusals += u32::from(self.full);
        !self.full
    }

    fn bytes(&self) -> u64 {
        0
    }
}

pub(super) struct Scene {
    pub(super) host: Arc<FakeHost>,
    pub(super) files: Arc<Files>,
    pub(super) table: ProcessTable,
    pub(super) publisher: Publisher,
    pub(super) kernel: FakeTables,
}

impl Scene {
    pub(super) fn new() -> Self {
        let host: Arc<FakeHost> = Arc::default();
        let parse: Arc<dyn crate::elf::ForeignFiles> = Arc::new(FakeFiles);
        let files = Arc::new(Files::new(Arc::clone(&host) as _, Arc::clone(&parse)));
        let open: Arc<dyn OpenFiles> = Arc::clone(&files) as _;
        let compilers = Compilers::start(&parse, &open, None).unwrap();
        let table = ProcessTable::new(
            Arc::clone(&host) as _,
            Arc::new(Looks::in_place(Arc::clone(&files))),
            &[],
        );
        let publisher = Publisher::new(compilers, UNWIND_TABLE_BYTES_MAX, None);
        Self { host, files, table, publisher, kernel: FakeTables::default() }
    }

    pub(super) fn lives(&mut self, pid: u32, mappings: &[(u64, &str)]) {
        let process = FakeProcess::new(monotonic_now().0, "/bin/a", mappings);
        self.host.processes().insert(Pid(pid), process);
        self.table.scan(Pid(pid));
    }

    pub(super) fn dies(&mut self, pid: u32) {
        self.host.processes().remove(&Pid(pid));
        let (pid, tid, time) = (Pid(pid), Tid(pid), monotonic_now());
        self.table.apply(ProcessEvent::Exit { pid, tid, time });
        self.table.tidy(time.plus(10_000_000_000));
    }

    pub(super) fn refresh(&mut self) {
        self.publisher.refresh(&mut self.table, &mut self.kernel);
    }

    /// Until every table that was asked for is loaded and published.
    pub(super) fn settle(&mut self) {
        self.refresh();
        while self.publisher.outstanding() > 0 {
            let wait = Duration::from_secs(5);
            assert!(self.publisher.wait(wait, &mut self.table, &mut self.kernel), "no table came");
        }
        self.refresh();
    }

    /// As if nobody had used any table for long.
    pub(super) fn forget_use(&mut self) {
        self.publisher.budget.forget_use();
    }

    pub(super) fn file(&mut self, pid: u32) -> FileId {
        self.table.mappings(Pid(pid)).unwrap().mappings()[0].file.as_ref().unwrap().id
    }

    /// `start-end how` of each mapping of a process.
    pub(super) fn shown(&self, pid: u32) -> String {
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
