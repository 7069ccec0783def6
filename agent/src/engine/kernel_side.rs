//! What the engine needs of the kernel side, as traits: the loop is tested with others.

use crate::address::{Generation, Pid, Tid};
use crate::bpf::{
    BpfError, LibcProbes, LockProbes, Record, Sampler, Statistics, TableId, Tables, ThreadReading,
    WaitingGoroutine, WalkMapping,
};
use crate::clock::MonotonicNs;
use crate::process::publish::{WalkTableError, WalkTables};
use crate::unwind::RowTable;
use agent_ebpf::{ProcessEntry, UnwindRule, WaitingThread};
use hashbrown::HashMap;
use std::time::Duration;

/// A source of records in the order of their times.
pub trait Sampling {
    /// Starts the clocks.
    ///
    /// # Errors
    /// If the kernel refuses.
    fn start(&mut self) -> Result<(), BpfError>;

    /// Stops the clocks.
    ///
    /// # Errors
    /// If the kernel refuses.
    fn stop(&mut self) -> Result<(), BpfError>;

    /// Waits until the kernel wakes the reader or `timeout` is over, then hands out what is complete.
    ///
    /// # Errors
    /// If waiting fails.
    fn poll(&mut self, timeout: Duration, each: &mut dyn FnMut(Record)) -> Result<(), BpfError>;

    /// Every record that was written before this time has been handed out.
    fn complete_until(&self) -> MonotonicNs;

    /// Hands out everything that was written so far.
    fn flush(&mut self, each: &mut dyn FnMut(Record));

    /// Samples CPUs that came online.
    fn follow_cpus(&mut self);

    /// What was counted so far.
    ///
    /// # Errors
    /// If the kernel refuses.
    fn statistics(&self) -> Result<Statistics, BpfError>;

    /// Reads the sums of all threads that waited; none where waits are not measured.
    ///
    /// # Errors
    /// If the kernel refuses.
    fn threads(&self, _each: &mut dyn FnMut(ThreadReading)) -> Result<(), BpfError> {
        Ok(())
    }

    /// A thread waits that no switch told of; false if it is known.
    fn begin_wait(&mut self, _tid: Tid, _thread: &WaitingThread) -> bool {
        false
    }

    /// It did not wait: forgets what was begun, unless the kernel side has gone on with it.
    fn forget_wait(&mut self, _tid: Tid, _begun: &WaitingThread) {}

    /// What attaches to the locks of Go programs, where the kernel takes it.
    fn lock_probes(&self) -> Option<LockProbes> {
        None
    }

    /// What attaches to the locks of C libraries, where the kernel takes it.
    fn libc_probes(&self) -> Option<LibcProbes> {
        None
    }

    /// Goroutines that wait for a lock now.
    ///
    /// # Errors
    /// If the kernel refuses to show them.
    fn goroutines(&self, _each: &mut dyn FnMut(WaitingGoroutine)) -> Result<(), BpfError> {
        Ok(())
    }

    /// One of them is gone, and no probe told of it.
    fn forget_goroutine(&mut self, _waiting: &WaitingGoroutine) {}

    /// Follows one wait of so many, as a power of two, in these processes, and all in others.
    ///
    /// # Errors
    /// If the kernel refuses.
    fn thin_goroutines(&mut self, _shifts: &HashMap<Pid, u32>) -> Result<(), BpfError> {
        Ok(())
    }

    /// Kernel memory of fixed size, bytes.
    fn map_bytes(&self) -> u64;
}

impl Sampling for Sampler {
    fn start(&mut self) -> Result<(), BpfError> {
        Self::start(self)
    }

    fn stop(&mut self) -> Result<(), BpfError> {
        Self::stop(self)
    }

    fn poll(&mut self, timeout: Duration, each: &mut dyn FnMut(Record)) -> Result<(), BpfError> {
        Self::poll(self, timeout, &mut |record| each(record)).map(drop)
    }

    fn complete_until(&self) -> MonotonicNs {
        Self::complete_until(self)
    }

    fn flush(&mut self, each: &mut dyn FnMut(Record)) {
        Self::flush(self, &mut |record| each(record));
    }

    fn follow_cpus(&mut self) {
        Self::follow_cpus(self);
    }

    fn statistics(&self) -> Result<Statistics, BpfError> {
        Self::statistics(self)
    }

    fn threads(&self, each: &mut dyn FnMut(ThreadReading)) -> Result<(), BpfError> {
        Self::threads(self, each)
    }

    fn begin_wait(&mut self, tid: Tid, thread: &WaitingThread) -> bool {
        Self::begin_wait(self, tid, thread)
    }

    fn forget_wait(&mut self, tid: Tid, begun: &WaitingThread) {
        Self::forget_wait(self, tid, begun);
    }

    fn lock_probes(&self) -> Option<LockProbes> {
        Self::lock_probes(self)
    }

    fn libc_probes(&self) -> Option<LibcProbes> {
        Self::libc_probes(self)
    }

    fn goroutines(&self, each: &mut dyn FnMut(WaitingGoroutine)) -> Result<(), BpfError> {
        Self::goroutines(self, each)
    }

    fn forget_goroutine(&mut self, waiting: &WaitingGoroutine) {
        Self::forget_goroutine(self, waiting);
    }

    fn thin_goroutines(&mut self, shifts: &HashMap<Pid, u32>) -> Result<(), BpfError> {
        Self::thin_goroutines(self, shifts)
    }

    fn map_bytes(&self) -> u64 {
        Self::map_bytes(self)
    }
}

impl From<BpfError> for WalkTableError {
    fn from(error: BpfError) -> Self {
        match error {
            BpfError::Full { .. } => Self::Full(error.to_string()),
            _ => Self::Refused(error.to_string()),
        }
    }
}

impl WalkTables for Tables {
    fn insert(&mut self, rows: &RowTable) -> Result<TableId, WalkTableError> {
        Ok(Self::insert(self, rows)?)
    }

    fn remove(&mut self, id: TableId) {
        Self::remove(self, id);
    }

    fn set_process(
        &mut self,
        pid: Pid,
        generation: Generation,
        mappings: &[WalkMapping],
    ) -> Result<usize, WalkTableError> {
        Ok(Self::set_process(self, pid, generation, mappings)?)
    }

    fn inherit(&mut self, pid: Pid, entry: ProcessEntry) -> bool {
        Self::inherit(self, pid, entry)
    }

    fn records_known_until(&mut self, time: MonotonicNs) {
        Self::records_known_until(self, time);
    }

    fn remove_process(&mut self, pid: Pid) -> Result<(), WalkTableError> {
        Ok(Self::remove_process(self, pid)?)
    }

    fn rule_at(&self, id: TableId, address: u64) -> Result<UnwindRule, WalkTableError> {
        Ok(Self::rule_at(self, id, address)?)
    }

    fn rules_left(&self) -> usize {
        Self::rules_left(self)
    }

    fn new_rules(&self, rows: &RowTable) -> usize {
        Self::new_rules(self, rows)
    }

    fn own_rules(&self, id: TableId) -> usize {
        Self::own_rules(self, id)
    }

    fn prepare(&mut self, chunks: usize) -> bool {
        Self::prepare(self, chunks)
    }

    fn bytes(&self) -> u64 {
        self.sizes().slab_bytes
    }
}
