//! All process instances of the host: kept by lifecycle records, completed from `/proc`. It answers who a
//! sample belongs to and which mappings it was walked with, and says whose mappings are to be published.
//! Times decide: a record or a sample belongs to the instance and the program that lived at its time.

use super::files::{Files, Wanted, reported_mapping};
use super::host::{Host, Task};
use super::identity::{Identifier, Known};
use super::instance::{Instance, Reported};
use super::mappings::{Mapping, MappingSet};
use crate::address::{AbsAddr, Generation, Pid, Tid};
use crate::bpf::{ProcessEvent, RawSample};
use crate::clock::{MonotonicNs, monotonic_now};
use crate::limits::{
    EXIT_GRACE_NS, INSTANCES_MAX, MAPS_READ_INTERVAL_NS_MAX, MAPS_READ_INTERVAL_NS_MIN,
    PROCESS_CHECK_INTERVAL_NS, PROCESS_CHECKS_PER_POLL, START_TOLERANCE_NS,
};
use crate::normalize::ProcessIdentity;
use hashbrown::{HashMap, HashSet};
use proto::BuildId;
use std::collections::VecDeque;
use std::sync::Arc;

/// What happened so far, for the metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessCounts {
    /// Instances known now.
    pub known: u64,
    /// Instances that did not fit.
    pub refused: u64,
    /// Reads of `/proc/PID/maps`.
    pub maps_read: u64,
    /// Reads that were asked for and put off, because the last ones brought nothing new.
    pub maps_put_off: u64,
    /// Executable mappings left out because of a limit.
    pub mappings_left_out: u64,
    /// Lifecycle records that the kernel dropped.
    pub lost: u64,
    /// Exits that were found by looking, not reported.
    pub exits_found: u64,
    /// Samples of a process that nothing was known of but what they carry.
    pub strangers: u64,
    /// Samples that were walked with mappings of another program, or of a generation long gone.
    pub generations_mismatched: u64,
}

/// Who a sample belongs to.
#[derive(Clone, Debug)]
pub struct Attribution {
    /// The process.
    pub process: Arc<ProcessIdentity>,
    /// The mappings that its addresses mean, `None` if they are another program's.
    pub mappings: Option<Arc<MappingSet>>,
}

/// The table.
#[derive(Debug)]
pub struct ProcessTable {
    host: Arc<dyn Host>,
    files: Arc<Files>,
    identifier: Identifier,
    /// `CLOCK_BOOTTIME - CLOCK_MONOTONIC`: the time that the host slept.
    asleep_ns: u64,
    /// Instances of each pid, oldest first.
    instances: HashMap<Pid, Vec<Instance>>,
    count: usize,
    /// Only these are kept, if given; what they fork is added.
    tracked: Option<HashSet<Pid>>,
    dirty: Vec<Pid>,
    /// Ended instances, in the order of their ends.
    ended: VecDeque<(MonotonicNs, Pid)>,
    unpublish: Vec<Pid>,
    checks: VecDeque<Pid>,
    reads: VecDeque<Pid>,
    checked_all_at: MonotonicNs,
    counts: ProcessCounts,
}

impl ProcessTable {
    /// An empty table. With `only`, other processes are not kept.
    #[must_use]
    pub fn new(host: Arc<dyn Host>, files: Arc<Files>, asleep_ns: u64, only: &[Pid]) -> Self {
        let tracked = (!only.is_empty()).then(|| only.iter().copied().collect());
        Self {
            identifier: Identifier::new(Arc::clone(&host)),
            host,
            files,
            asleep_ns,
            instances: HashMap::new(),
            count: 0,
            tracked,
            dirty: Vec::new(),
            ended: VecDeque::new(),
            unpublish: Vec::new(),
            checks: VecDeque::new(),
            reads: VecDeque::new(),
            checked_all_at: monotonic_now(),
            counts: ProcessCounts::default(),
        }
    }

    /// What happened so far.
    #[must_use]
    pub fn counts(&self) -> ProcessCounts {
        ProcessCounts { known: u64::try_from(self.count).unwrap_or(u64::MAX), ..self.counts }
    }

    /// True if samples of this process are wanted.
    #[must_use]
    pub fn is_tracked(&self, pid: Pid) -> bool {
        self.tracked.as_ref().is_none_or(|tracked| tracked.contains(&pid))
    }

    /// The processes that exist and are wanted.
    ///
    /// # Errors
    /// When `/proc` cannot be listed.
    pub fn existing(&self) -> std::io::Result<Vec<Pid>> {
        let mut pids = self.host.pids()?;
        pids.retain(|pid| self.is_tracked(*pid));
        Ok(pids)
    }

    /// Reads a process that existed before the records began.
    pub fn scan(&mut self, pid: Pid) {
        if self.live(pid).is_none() {
            self.discover(pid, monotonic_now());
        }
    }

    /// Takes one lifecycle record.
    pub fn apply(&mut self, event: ProcessEvent) {
        match event {
            ProcessEvent::Mmap { pid, time, start, length, file_offset, build_id, path } => {
                let build_id = build_id.as_deref().and_then(BuildId::new);
                if let Some(entry) = reported_mapping(start, length, file_offset, path) {
                    self.mapped(pid, time, Reported { entry, build_id });
                }
            }
            ProcessEvent::Comm { pid, time, exec: true, comm, .. } => {
                self.executed(pid, time, String::from_utf8_lossy(&comm).into_owned());
            }
            ProcessEvent::Comm { pid, tid, comm, .. } => {
                if pid.0 == tid.0
                    && let Some(instance) = self.live(pid)
                {
                    instance.image().comm = String::from_utf8_lossy(&comm).into_owned();
                }
            }
            ProcessEvent::Fork { pid, parent, time, .. } => self.forked(pid, parent, time),
            ProcessEvent::Exit { pid, tid, time } => self.exited(pid, tid, time),
            ProcessEvent::Lost { count } => self.lost(count),
        }
    }

    /// The sampler met a process, or an address of it, that it has no mappings for.
    pub fn unknown(&mut self, pid: Pid, address: Option<AbsAddr>, time: MonotonicNs) {
        if !self.is_tracked(pid) {
            return;
        }
        let Some(instance) = self.live(pid) else {
            self.discover(pid, time);
            return;
        };
        let image = instance.image();
        let nothing_known = image.set.mappings().is_empty() && image.reported.is_empty();
        let waiting = !image.reported.is_empty();
        let known = address.is_some_and(|address| image.set.mapping(address).is_some());
        // Published and yet unknown as a whole: it executed another program, and the record of that is
        // still on its way. What `/proc` says now is of the new program.
        let lost_all = instance.published && address.is_none();
        let lost_one = instance.published && address.is_some() && !waiting && !known;
        if nothing_known || lost_all || lost_one {
            self.read_maps(pid, address);
        }
        self.mark_dirty(pid);
    }

    /// The mappings of a process are to be published again.
    pub fn mark_dirty(&mut self, pid: Pid) {
        if let Some(instance) = self.live(pid)
            && !instance.dirty
            && !instance.kernel_thread
        {
            instance.dirty = true;
            self.dirty.push(pid);
        }
    }

    /// Whose mappings are to be published; each is asked about once.
    pub fn take_dirty(&mut self) -> Vec<Pid> {
        let dirty = std::mem::take(&mut self.dirty);
        for pid in &dirty {
            for instance in self.instances.get_mut(pid).into_iter().flatten() {
                instance.dirty = false;
            }
        }
        dirty
    }

    /// Which processes ended and are to be taken out of the kernel side.
    pub fn take_ended(&mut self) -> Vec<Pid> {
        std::mem::take(&mut self.unpublish)
    }

    /// The mappings of a process as they are now, looked at. `None` if it has ended meanwhile.
    pub fn mappings(&mut self, pid: Pid) -> Option<Arc<MappingSet>> {
        self.live(pid)?;
        let last = self.instances.get(&pid)?.len().checked_sub(1)?;
        let program = self.instances.get(&pid)?.get(last)?.images.len() - 1;
        self.take_in(pid, last, program);
        // While it lives: its environment is gone with it.
        self.identify(pid, last, program, None);
        Some(Arc::clone(&self.live(pid)?.image().set))
    }

    /// The mappings that [`Self::mappings`] gave are published as `generation`.
    pub fn published(&mut self, pid: Pid, generation: Generation) {
        let now = monotonic_now();
        if let Some(instance) = self.live(pid) {
            instance.published = true;
            instance.image().publish(generation, now);
        }
    }

    /// Who a sample belongs to. Never fails: at worst it is a stranger known by its pid and name.
    pub fn attribute(&mut self, sample: &RawSample) -> Attribution {
        let pid = sample.pid;
        let index = self.at_time(pid, sample.time);
        let Some(index) = index else { return self.stranger(sample) };
        let instance = &mut self.instances.get_mut(&pid).expect("`at_time` found it")[index];
        let program = instance.image_index(sample.time);
        instance.living = sample.tid;
        self.take_in(pid, index, program);
        let process = self.identify(pid, index, program, Some(sample));
        let instances = &self.instances[&pid];
        let image = &instances[index].images[program];
        let mappings = match image.of_generation(sample.generation) {
            Some(set) => Some(Arc::clone(set)),
            None if sample.generation == Generation(0) => Some(Arc::clone(&image.set)),
            None => {
                self.counts.generations_mismatched += 1;
                let mut images = instances.iter().flat_map(|instance| &instance.images);
                let other = images.any(|image| image.of_generation(sample.generation).is_some());
                (!other).then(|| Arc::clone(&image.set))
            }
        };
        Attribution { process, mappings }
    }

    /// Frees what ended long enough ago, and looks after a few processes: for exits that were missed,
    /// and for everything after records were lost.
    pub fn tidy(&mut self, now: MonotonicNs) {
        let limit = MonotonicNs(now.0.saturating_sub(EXIT_GRACE_NS));
        while let Some(&(time, pid)) = self.ended.front()
            && time < limit
        {
            self.ended.pop_front();
            self.free(pid, limit);
        }
        if now.0.saturating_sub(self.checked_all_at.0) > PROCESS_CHECK_INTERVAL_NS {
            self.checked_all_at = now;
            self.checks = self.instances.keys().copied().collect();
        }
        for _ in 0..PROCESS_CHECKS_PER_POLL.min(self.checks.len()) {
            let Some(pid) = self.checks.pop_front() else { break };
            self.check(pid, now);
            for instance in self.instances.get_mut(&pid).into_iter().flatten() {
                instance.forget_before(limit);
            }
        }
        for _ in 0..PROCESS_CHECKS_PER_POLL {
            let Some(pid) = self.reads.pop_front() else { break };
            self.read_again(pid, now);
        }
    }

    // ---- events ----

    fn forked(&mut self, pid: Pid, parent: Pid, time: MonotonicNs) {
        if pid == parent {
            if let Some(threads) = self.live(pid).and_then(|instance| instance.threads.as_mut()) {
                *threads += 1;
            }
            return;
        }
        if let Some(tracked) = &mut self.tracked
            && tracked.contains(&parent)
            && tracked.len() < INSTANCES_MAX
        {
            tracked.insert(pid);
        }
        if !self.is_tracked(pid) {
            return;
        }
        let start_time_ns = time.0.saturating_add(self.asleep_ns);
        if let Some(known) = self.live(pid) {
            // Found in `/proc` before its record came.
            if known.start_time_ns.abs_diff(start_time_ns) < START_TOLERANCE_NS {
                known.parent = parent;
                known.threads = None;
                return;
            }
            self.end(pid, time);
        }
        let mut child = Instance::new(pid, time, start_time_ns);
        child.parent = parent;
        child.threads = Some(1);
        if let Some(forker) = self.live(parent) {
            child.kernel_thread = forker.kernel_thread;
            *child.image() = forker.image().forked(time);
        }
        self.add(pid, child);
        self.mark_dirty(pid);
    }

    fn executed(&mut self, pid: Pid, time: MonotonicNs, comm: String) {
        if !self.is_tracked(pid) {
            return;
        }
        if self.live(pid).is_none() && !self.revive(pid, time) {
            let start_time_ns = time.0.saturating_add(self.asleep_ns);
            if self.discover(pid, time).is_none() {
                self.add(pid, Instance::new(pid, time, start_time_ns));
            }
        }
        if let Some(instance) = self.live(pid) {
            instance.executed(time, comm);
        }
        self.mark_dirty(pid);
    }

    /// A thread that executes takes over the pid of the main one, whose exit was reported before.
    fn revive(&mut self, pid: Pid, time: MonotonicNs) -> bool {
        let last = self.instances.get_mut(&pid).and_then(|instances| instances.last_mut());
        let Some(instance) = last.filter(|last| last.ended.is_some_and(|ended| ended <= time))
        else {
            return false;
        };
        instance.ended = None;
        true
    }

    fn mapped(&mut self, pid: Pid, time: MonotonicNs, reported: Reported) {
        if !self.is_tracked(pid) {
            return;
        }
        if self.live(pid).is_none() {
            // Older than all records, or a record was lost: `/proc` has this mapping too.
            if self.discover(pid, time).is_some() {
                return;
            }
            let start_time_ns = time.0.saturating_add(self.asleep_ns);
            self.add(pid, Instance::new(pid, time, start_time_ns));
        }
        let Some(instance) = self.live(pid) else { return };
        if instance.image().report(reported, time) {
            self.mark_dirty(pid);
        }
    }

    fn exited(&mut self, pid: Pid, tid: Tid, time: MonotonicNs) {
        let Some(instance) = self.live(pid) else { return };
        if instance.living == tid {
            instance.living = Tid(pid.0);
        }
        instance.leader_ended |= tid.0 == pid.0;
        match &mut instance.threads {
            Some(threads) => {
                *threads = threads.saturating_sub(1);
                if *threads == 0 {
                    self.end(pid, time);
                }
            }
            // How many there were is not known: look, and look again when it is over for sure.
            None if !instance.leader_ended => {}
            None => {
                if !self.check(pid, time) {
                    self.checks.push_back(pid);
                }
            }
        }
    }

    fn lost(&mut self, count: u64) {
        self.counts.lost = self.counts.lost.saturating_add(count);
        for instance in self.instances.values_mut().flatten() {
            instance.threads = None;
        }
        self.checks = self.instances.keys().copied().collect();
        self.reads = self.existing().unwrap_or_default().into();
    }

    // ---- instances ----

    /// The newest instance of a pid, if it lives.
    fn live(&mut self, pid: Pid) -> Option<&mut Instance> {
        self.instances.get_mut(&pid)?.last_mut().filter(|instance| instance.ended.is_none())
    }

    /// The place of the instance that lived at `time`; reads `/proc` where none is known.
    fn at_time(&mut self, pid: Pid, time: MonotonicNs) -> Option<usize> {
        // `/proc` rounds a start down, never up; a record's time may be a moment late.
        let lived = |instance: &Instance| {
            instance.started.0 <= time.0.saturating_add(START_TOLERANCE_NS)
                && instance
                    .ended
                    .is_none_or(|ended| time.0 <= ended.0.saturating_add(START_TOLERANCE_NS))
        };
        let find = |table: &Self| {
            let instances = table.instances.get(&pid)?;
            let exact = instances.iter().rposition(|instance| {
                instance.started <= time && instance.ended.is_none_or(|ended| time <= ended)
            });
            exact.or_else(|| instances.iter().rposition(lived))
        };
        if let Some(index) = find(self) {
            return Some(index);
        }
        self.discover(pid, time)?;
        find(self)
    }

    /// Reads a process that no record told of.
    fn discover(&mut self, pid: Pid, time: MonotonicNs) -> Option<()> {
        let status = self.host.status(pid).ok()?;
        let started = MonotonicNs(status.start_time_ns.saturating_sub(self.asleep_ns));
        if started.0 > time.0.saturating_add(START_TOLERANCE_NS) {
            return None; // The pid belongs to another process by now; its own records will tell.
        }
        let known = self.instances.get(&pid).and_then(|instances| instances.last());
        if known.is_some_and(|known| {
            known.start_time_ns.abs_diff(status.start_time_ns) < START_TOLERANCE_NS
        }) {
            return None; // The one that has ended, still a zombie.
        }
        let mut instance = Instance::new(pid, started, status.start_time_ns);
        instance.parent = status.parent;
        instance.kernel_thread = status.kernel_thread;
        instance.leader_ended = status.zombie;
        instance.image().comm = status.comm;
        self.add(pid, instance)?;
        if !status.kernel_thread {
            self.read_maps(pid, None);
            self.mark_dirty(pid);
        }
        Some(())
    }

    fn add(&mut self, pid: Pid, instance: Instance) -> Option<()> {
        if self.count >= INSTANCES_MAX {
            // What has ended goes before its time.
            let (_, oldest) = self.ended.pop_front().or_else(|| {
                self.counts.refused += 1;
                None
            })?;
            self.free(oldest, MonotonicNs(u64::MAX));
        }
        self.instances.entry(pid).or_default().push(instance);
        self.count += 1;
        Some(())
    }

    fn end(&mut self, pid: Pid, time: MonotonicNs) {
        if let Some(instance) = self.live(pid) {
            instance.ended = Some(time);
            self.ended.push_back((time, pid));
            self.unpublish.push(pid);
        }
    }

    /// Frees instances of a pid that ended up to `limit`.
    fn free(&mut self, pid: Pid, limit: MonotonicNs) {
        let Some(instances) = self.instances.get_mut(&pid) else { return };
        let before = instances.len();
        instances.retain(|instance| instance.ended.is_none_or(|ended| ended > limit));
        self.count -= before - instances.len();
        if instances.is_empty() {
            self.instances.remove(&pid);
            if let Some(tracked) = &mut self.tracked {
                tracked.remove(&pid);
            }
        }
    }

    /// Looks whether a process still is the one known. True if it has ended.
    fn check(&mut self, pid: Pid, now: MonotonicNs) -> bool {
        let status = self.host.status(pid);
        let Some(instance) = self.live(pid) else { return true };
        let ended = match status {
            Ok(status) => {
                let other =
                    status.start_time_ns.abs_diff(instance.start_time_ns) >= START_TOLERANCE_NS;
                other || (status.zombie && status.threads <= 1)
            }
            Err(error) => {
                error.kind() == std::io::ErrorKind::NotFound
                    || error.raw_os_error() == Some(libc::ESRCH)
            }
        };
        if ended {
            self.counts.exits_found += 1;
            self.end(pid, now);
        }
        ended
    }

    /// A process nothing is known of but its sample: it is kept, so that all its samples agree.
    fn stranger(&mut self, sample: &RawSample) -> Attribution {
        self.counts.strangers += 1;
        if let Some(attribution) = self.stranger_again(sample) {
            return attribution;
        }
        let mut instance =
            Instance::new(sample.pid, sample.time, sample.time.0.saturating_add(self.asleep_ns));
        instance.kernel_thread = sample.outcome == agent_ebpf::Outcome::NoUserStack
            && sample.user.is_empty()
            && !sample.kernel.is_empty();
        instance.image().comm = String::from_utf8_lossy(&sample.comm).into_owned();
        instance.stranger = true;
        let known = Known::of(sample.pid, &instance, 0);
        let process = self.identifier.identify(&known, None, Some(sample), false);
        instance.image().identity = Some(Arc::clone(&process));
        // It is gone, or its records are yet to come: they will make an instance of their own.
        instance.ended = Some(sample.time);
        if self.add(sample.pid, instance).is_some() {
            self.ended.push_back((sample.time, sample.pid));
            if let Some(instances) = self.instances.get_mut(&sample.pid) {
                instances.sort_by_key(|instance| instance.started);
            }
        }
        Attribution { process, mappings: None }
    }

    /// The stranger of the sample before, if that is not long ago.
    fn stranger_again(&mut self, sample: &RawSample) -> Option<Attribution> {
        let instance = self.instances.get_mut(&sample.pid)?.last_mut()?;
        let ended = instance.ended.filter(|_| instance.stranger)?;
        if sample.time.0.saturating_sub(ended.0) > EXIT_GRACE_NS {
            return None;
        }
        let time = ended.max(sample.time);
        instance.ended = Some(time);
        let process = instance.image().identity.clone()?;
        self.ended.push_back((time, sample.pid));
        Some(Attribution { process, mappings: None })
    }

    // ---- /proc ----

    /// Reads the mappings of a process, if that was not done a moment ago.
    fn read_maps(&mut self, pid: Pid, address: Option<AbsAddr>) {
        let now = monotonic_now();
        let Some(instance) = self.live(pid) else { return };
        if now < instance.read_after {
            self.counts.maps_put_off += 1;
            return;
        }
        let task = Task { pid, tid: instance.living };
        let relatives = [main_thread(instance.parent), main_thread(Pid(1))];
        let maps = self.host.maps(task);
        self.counts.maps_read += 1;
        let Ok(maps) = maps else { return };
        self.counts.mappings_left_out += maps.left_out;
        let mappings = maps.entries.iter().map(|entry| {
            let wanted = Wanted { task: Some(task), relatives, mapping: entry, build_id: None };
            Mapping::new(entry.start, entry.end, entry.file_offset, self.files.behind(wanted))
        });
        let set = Arc::new(MappingSet::new(mappings));
        let executable = self.host.executable(task).ok();
        let executable = executable.map(|path| String::from_utf8_lossy(&path).into_owned());
        let Some(instance) = self.live(pid) else { return };
        let known = &instance.image().executable;
        if executable.is_some() && known.is_some() && executable != *known {
            instance.found_executed(now);
        }
        let helped = address.is_none_or(|address| set.mapping(address).is_some());
        instance.read_interval_ns = if helped {
            MAPS_READ_INTERVAL_NS_MIN
        } else {
            instance.read_interval_ns.saturating_mul(2).min(MAPS_READ_INTERVAL_NS_MAX)
        };
        instance.read_after = MonotonicNs(now.0.saturating_add(instance.read_interval_ns));
        let image = instance.image();
        image.set = set;
        image.read_at = now;
        image.reported.clear();
        image.executable = executable.or(image.executable.take());
    }

    /// After lost records: the process may have executed, mapped, or be new.
    fn read_again(&mut self, pid: Pid, now: MonotonicNs) {
        let Some(instance) = self.live(pid) else {
            self.discover(pid, now);
            return;
        };
        if instance.kernel_thread {
            return;
        }
        instance.read_after = MonotonicNs(0);
        self.read_maps(pid, None);
        self.mark_dirty(pid);
    }

    /// Looks at the mappings that were reported of a program.
    fn take_in(&mut self, pid: Pid, index: usize, program: usize) {
        let files = Arc::clone(&self.files);
        let Some(instance) = self.instances.get_mut(&pid).and_then(|all| all.get_mut(index)) else {
            return;
        };
        // The pid's ranges are those of the program that runs now.
        let current = instance.ended.is_none() && program + 1 == instance.images.len();
        let task = current.then_some(Task { pid, tid: instance.living });
        let relatives = [main_thread(instance.parent), main_thread(Pid(1))];
        let Some(image) = instance.images.get_mut(program) else { return };
        image.take_in(|reported| {
            files.behind(Wanted {
                task,
                relatives,
                mapping: &reported.entry,
                build_id: reported.build_id.as_ref(),
            })
        });
    }

    fn identify(
        &mut self,
        pid: Pid,
        index: usize,
        program: usize,
        sample: Option<&RawSample>,
    ) -> Arc<ProcessIdentity> {
        let instance = &self.instances[&pid][index];
        if let Some(identity) = &instance.images[program].identity {
            return Arc::clone(identity);
        }
        let alive = instance.ended.is_none() && program + 1 == instance.images.len();
        let known = Known::of(pid, instance, program);
        let parent = self.instances.get(&instance.parent).and_then(|instances| instances.last());
        let parent = parent.and_then(|parent| parent.images.last()?.identity.clone());
        let identity = self.identifier.identify(&known, parent.as_deref(), sample, alive);
        let image =
            &mut self.instances.get_mut(&pid).expect("looked up above")[index].images[program];
        image.identity = Some(Arc::clone(&identity));
        identity
    }
}

const fn main_thread(pid: Pid) -> Task {
    Task { pid, tid: Tid(pid.0) }
}

#[cfg(test)]
mod tests;
