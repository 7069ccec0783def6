//! All process instances of the host: kept by lifecycle records, completed from `/proc`. It answers who a
//! sample belongs to and which mappings it was walked with, and says whose mappings are to be published.
//! Times decide: a record or a sample belongs to the instance and the program that lived at its time.

mod events;
mod reading;
mod verify;

use super::host::Host;
use super::identity::{Identifier, Known, Surroundings};
use super::instance::Instance;
use super::looks::Looks;
use super::mappings::{Mapping, MappingSet};
use super::reports::Room;
use crate::address::{FileId, Generation, Pid};
use crate::bpf::{RawSample, UserFrame};
use crate::clock::{MonotonicNs, monotonic_now};
use crate::limits::{
    EXIT_CHECK_INTERVAL_NS, EXIT_GRACE_NS, INSTANCES_MAX, PROCESS_CHECK_INTERVAL_NS,
    PROCESS_CHECKS_PER_POLL, PUBLISH_LATER_NS, START_TOLERANCE_NS,
};
use crate::normalize::{ProcessIdentity, ProcessKey};
use agent_ebpf::ProcessEntry;
use hashbrown::{HashMap, HashSet};
use std::collections::VecDeque;
use std::sync::Arc;
use verify::Verification;

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
    /// Reads of `/proc/PID/maps` to see whether what is known of it is true.
    pub maps_verified: u64,
    /// Of these, such that showed what no record had told.
    pub maps_outdated: u64,
    /// Executable mappings left out because of a limit.
    pub mappings_left_out: u64,
    /// Bytes of reported mappings that nobody has looked at yet.
    pub reported_bytes: u64,
    /// Such mappings that were forgotten because there are too many.
    pub reports_forgotten: u64,
    /// Lifecycle records that the kernel dropped.
    pub lost: u64,
    /// Times that all processes were read again because of that.
    pub recoveries: u64,
    /// Exits that were found by looking, not reported.
    pub exits_found: u64,
    /// Samples of a process that nothing was known of but what they carry.
    pub strangers: u64,
    /// Samples that were walked with mappings of another program, or of a generation long gone.
    pub generations_mismatched: u64,
    /// Samples that were walked with mappings that had been replaced meanwhile, and were cut there.
    pub walks_outdated: u64,
}

/// Who a sample belongs to.
#[derive(Clone, Debug)]
pub struct Attribution {
    /// The process.
    pub process: Arc<ProcessIdentity>,
    /// The mappings that its addresses mean, `None` if they are another program's.
    pub mappings: Option<Arc<MappingSet>>,
    /// User frames to believe, from the leaf on: behind them the walk went by a file that was not mapped
    /// there any more.
    pub sound_frames: usize,
    doubt: Option<Doubt>,
}

/// What is counted of a sample.
#[derive(Clone, Copy, Debug)]
enum Doubt {
    Stranger,
    GenerationMismatched,
    WalkOutdated,
}

impl Attribution {
    fn of_stranger(process: Arc<ProcessIdentity>) -> Self {
        let doubt = Some(Doubt::Stranger);
        Self { process, mappings: None, sound_frames: usize::MAX, doubt }
    }
}

/// The table.
#[derive(Debug)]
pub struct ProcessTable {
    host: Arc<dyn Host>,
    looks: Arc<Looks>,
    identifier: Identifier,
    /// Instances of each pid, oldest first.
    instances: HashMap<Pid, Vec<Instance>>,
    count: usize,
    /// Only these are kept, if given; what they fork is added.
    tracked: Option<HashSet<Pid>>,
    dirty: Vec<Pid>,
    /// Processes that changed and have not been sampled since, and when to look at them.
    young: VecDeque<(MonotonicNs, Pid)>,
    /// Ended instances, in the order of their ends.
    ended: VecDeque<(MonotonicNs, Pid)>,
    unpublish: Vec<Pid>,
    /// Processes that the programs gave an entry of the kernel side.
    inherited: Vec<(Pid, ProcessEntry)>,
    /// Processes that run another program since they were asked about.
    replaced: Vec<Pid>,
    checks: VecDeque<Pid>,
    /// Processes that had exits of threads, and when to look whether they have ended.
    exits: VecDeque<(MonotonicNs, Pid)>,
    reads: VecDeque<Pid>,
    verification: Verification,
    /// For mappings that were reported and not looked at.
    room: Room,
    /// When room is made for them again, if it is short.
    make_room_at: MonotonicNs,
    /// When all are looked at again.
    check_all_at: MonotonicNs,
    /// Records were lost since everything was last read again.
    records_lost: bool,
    read_all_at: MonotonicNs,
    counts: ProcessCounts,
}

impl ProcessTable {
    /// An empty table. With `only`, other processes are not kept.
    #[must_use]
    pub fn new(host: Arc<dyn Host>, looks: Arc<Looks>, only: &[Pid]) -> Self {
        let tracked = (!only.is_empty()).then(|| only.iter().copied().collect());
        Self {
            identifier: Identifier::new(Arc::clone(&host)),
            host,
            looks,
            instances: HashMap::new(),
            count: 0,
            tracked,
            dirty: Vec::new(),
            young: VecDeque::new(),
            ended: VecDeque::new(),
            unpublish: Vec::new(),
            inherited: Vec::new(),
            replaced: Vec::new(),
            checks: VecDeque::new(),
            exits: VecDeque::new(),
            reads: VecDeque::new(),
            verification: Verification::default(),
            room: Room::default(),
            make_room_at: MonotonicNs(0),
            // What was on its way out when the records began had left its own before.
            check_all_at: monotonic_now().plus(EXIT_GRACE_NS),
            records_lost: false,
            read_all_at: MonotonicNs(0),
            counts: ProcessCounts::default(),
        }
    }

    /// What happened so far.
    #[must_use]
    pub fn counts(&self) -> ProcessCounts {
        let known = u64::try_from(self.count).unwrap_or(u64::MAX);
        ProcessCounts { known, reported_bytes: self.room.used(), ..self.counts }
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

    /// Reads a process that existed before the records began, if it lives.
    pub fn scan(&mut self, pid: Pid) {
        if self.live(pid).is_none() {
            self.discover_living(pid, monotonic_now());
        }
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

    /// A stack of this process could not be walked: if it was to be published later, or goes by what it
    /// inherited, it is published now.
    pub fn needed(&mut self, pid: Pid) {
        let later = |instance: &mut Instance| {
            std::mem::take(&mut instance.young) | std::mem::take(&mut instance.inherited)
        };
        if self.live(pid).is_some_and(later) {
            self.mark_dirty(pid);
        }
    }

    /// The mappings of a process have changed. Nobody may ever sample it, and most programs that a shell
    /// runs are over in a moment: it is published when the sampler meets it, or if it still runs later.
    pub(super) fn changed(&mut self, pid: Pid) {
        if self.tracked.is_some() {
            self.mark_dirty(pid); // whoever is asked for by name is going to be sampled
            return;
        }
        let due = monotonic_now().plus(PUBLISH_LATER_NS);
        if let Some(instance) = self.live(pid)
            && !instance.dirty
            && !instance.young
            && !instance.kernel_thread
        {
            instance.young = true;
            self.young.push_back((due, pid));
        }
    }

    /// Publishes processes that changed a while ago, still run, and have used the CPU at all.
    fn look_after_young(&mut self, now: MonotonicNs) {
        for _ in 0..PROCESS_CHECKS_PER_POLL {
            let Some((_, pid)) = self.young.pop_front_if(|(due, _)| *due <= now) else { break };
            let Some(instance) = self.live(pid).filter(|instance| instance.young) else { continue };
            instance.young = false;
            if !instance.dirty && self.host.status(pid).is_ok_and(|status| status.cpu_ticks > 0) {
                self.mark_dirty(pid);
            }
        }
    }

    /// The mappings of all processes that map one of these files are to be published again.
    pub fn mark_dirty_by_file(&mut self, files: &[FileId]) {
        if files.is_empty() {
            return;
        }
        let files: HashSet<FileId> = files.iter().copied().collect();
        let maps_one = |instance: &Instance| {
            let mappings = instance.images.last().map_or(&[][..], |image| image.set.mappings());
            let mut mapped = mappings.iter().filter_map(|mapping| mapping.file.as_ref());
            instance.ended.is_none() && mapped.any(|file| files.contains(&file.id))
        };
        let affected = |(pid, instances): (&Pid, &Vec<Instance>)| {
            instances.iter().any(maps_one).then_some(*pid)
        };
        let pids: Vec<Pid> = self.instances.iter().filter_map(affected).collect();
        for pid in pids {
            self.mark_dirty(pid);
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

    /// Which processes ended, or run another program, and are to be taken out of the kernel side.
    pub fn take_ended(&mut self) -> Vec<Pid> {
        std::mem::take(&mut self.unpublish)
    }

    /// Which processes got an entry of the kernel side from who forked them.
    pub fn take_inherited(&mut self) -> Vec<(Pid, ProcessEntry)> {
        std::mem::take(&mut self.inherited)
    }

    /// Which processes run another program now: what was missing of the one before is not any more.
    pub fn take_replaced(&mut self) -> Vec<Pid> {
        std::mem::take(&mut self.replaced)
    }

    /// The mappings of a process as they are now, looked at. `None` if it has ended meanwhile.
    pub fn mappings(&mut self, pid: Pid) -> Option<Arc<MappingSet>> {
        if self.live(pid)?.image().is_incomplete() {
            self.read_maps(pid, None);
        }
        self.live(pid)?.held = true;
        let last = self.instances.get(&pid)?.len().checked_sub(1)?;
        let program = self.instances.get(&pid)?.get(last)?.images.len() - 1;
        // While it lives: its environment is gone with it.
        let surroundings = self.ask_surroundings(pid, last, program);
        self.take_in(pid, last, program);
        self.identify(pid, last, program, None, surroundings);
        Some(Arc::clone(&self.live(pid)?.image().set))
    }

    /// Which instance of a pid lives.
    pub fn key(&mut self, pid: Pid) -> Option<ProcessKey> {
        self.live(pid).map(|instance| ProcessKey { pid, start_time_ns: instance.start_time_ns })
    }

    /// True if mappings of the program that this process runs are published.
    pub fn is_published(&mut self, pid: Pid) -> bool {
        self.live(pid).is_some_and(|instance| instance.published)
    }

    /// True for a living process of which nothing was published at or after `time`.
    #[must_use]
    pub fn is_behind(&self, pid: Pid, time: MonotonicNs) -> bool {
        let last = self.instances.get(&pid).and_then(|instances| instances.last());
        last.is_some_and(|instance| {
            instance.ended.is_none() && instance.published_at().is_none_or(|at| at < time)
        })
    }

    /// The mappings that [`Self::mappings`] gave are published as `generation`.
    pub fn published(&mut self, pid: Pid, generation: Generation) {
        let now = monotonic_now();
        if let Some(instance) = self.live(pid) {
            instance.published = true;
            instance.inherited = false;
            instance.held = true;
            instance.image().publish(generation, now);
        }
    }

    /// Who a sample belongs to that is taken in. Never fails: at worst it is a stranger known by its pid and
    /// name.
    pub fn attribute(&mut self, sample: &RawSample) -> Attribution {
        let attribution = self.attribute_held(sample);
        let counts = &mut self.counts;
        match attribution.doubt {
            Some(Doubt::Stranger) => counts.strangers += 1,
            Some(Doubt::GenerationMismatched) => counts.generations_mismatched += 1,
            Some(Doubt::WalkOutdated) => counts.walks_outdated += 1,
            None => {}
        }
        self.sampled(sample.pid, sample.time);
        attribution
    }

    /// The same of a sample that may be held back and asked about again: it is counted when it is taken in.
    pub fn attribute_held(&mut self, sample: &RawSample) -> Attribution {
        let pid = sample.pid;
        let index = self.at_time(pid, sample.time);
        let Some(index) = index else { return self.stranger(sample) };
        let instance = &mut self.instances.get_mut(&pid).expect("`at_time` found it")[index];
        let program = instance.image_index(sample.time);
        instance.living = sample.tid;
        let surroundings = self.ask_surroundings(pid, index, program);
        self.take_in(pid, index, program);
        let process = self.identify(pid, index, program, Some(sample), surroundings);
        let instances = &self.instances[&pid];
        let image = &instances[index].images[program];
        let (mut sound_frames, mut doubt) = (usize::MAX, None);
        // A sample that was held may be older than what the records said since.
        let set = image.set_at(sample.time);
        let mappings = match image.of_generation(sample.generation) {
            // Records come in the order of their times: what they say is how it was at the sample's.
            Some(walked) if image.read_at <= sample.time => {
                sound_frames = sound(&sample.user, walked, set);
                doubt = (sound_frames < sample.user.len()).then_some(Doubt::WalkOutdated);
                Some(Arc::clone(set))
            }
            // What is known was read after the sample.
            Some(walked) => Some(Arc::clone(walked)),
            None if sample.generation == Generation(0) => Some(Arc::clone(set)),
            None => {
                doubt = Some(Doubt::GenerationMismatched);
                let mut images = instances.iter().flat_map(|instance| &instance.images);
                let other = images.any(|image| image.of_generation(sample.generation).is_some());
                // Where it ran itself, its leaf is its own whatever the walk went by; in the kernel it may
                // be on its way through an exec, with the registers of the program before.
                if other && sample.kernel.is_empty() {
                    sound_frames = 1;
                }
                (!other || sound_frames == 1).then(|| Arc::clone(set))
            }
        };
        // Found as one by a look before, be it for this very sample.
        let doubt = if instances[index].stranger { Some(Doubt::Stranger) } else { doubt };
        Attribution { process, mappings, sound_frames, doubt }
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
        self.look_again();
        self.recover_lost(now);
        self.look_after_young(now);
        if now > self.check_all_at {
            self.check_all_at = now.plus(PROCESS_CHECK_INTERVAL_NS);
            self.checks = self.instances.keys().copied().collect();
        }
        for _ in 0..PROCESS_CHECKS_PER_POLL {
            let Some((_, pid)) = self.exits.pop_front_if(|(due, _)| *due <= now) else { break };
            let Some(instance) = self.live(pid) else { continue };
            instance.check_awaited = false;
            instance.check_after = now.plus(EXIT_CHECK_INTERVAL_NS);
            self.check(pid, now);
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
        self.verify_next(now);
    }

    /// What `/proc` says of a process that the kernel says began at `time`, in nanoseconds since boot.
    fn start_time_ns(&self, time: MonotonicNs) -> u64 {
        time.0.saturating_add(self.host.asleep_ns())
    }

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
            let held = std::mem::take(&mut instance.held);
            let parent = instance.parent;
            self.ended.push_back((time, pid));
            if held {
                self.unpublish.push(pid);
            }
            self.part(pid, parent);
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

    /// A process nothing is known of but its sample: it is kept, so that all its samples agree.
    fn stranger(&mut self, sample: &RawSample) -> Attribution {
        if let Some(attribution) = self.stranger_again(sample) {
            return attribution;
        }
        let mut instance = Instance::new(sample.pid, sample.time, self.start_time_ns(sample.time));
        instance.kernel_thread = sample.outcome == agent_ebpf::Outcome::NoUserStack
            && sample.user.is_empty()
            && !sample.kernel.is_empty();
        instance.image().comm = String::from_utf8_lossy(&sample.comm).into_owned();
        instance.stranger = true;
        let mut known = Known::of(sample.pid, &instance, 0);
        let (process, _) =
            self.identifier.identify(&mut known, None, Some(sample), Surroundings::Gone);
        instance.image().identity = Some(Arc::clone(&process));
        // It is gone, or its records are yet to come: they will make an instance of their own.
        instance.ended = Some(sample.time);
        if self.add(sample.pid, instance).is_some() {
            self.ended.push_back((sample.time, sample.pid));
            if let Some(instances) = self.instances.get_mut(&sample.pid) {
                instances.sort_by_key(|instance| instance.started);
            }
        }
        Attribution::of_stranger(process)
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
        Some(Attribution::of_stranger(process))
    }
}

/// Frames of a walk by the mappings `walked` that stand by the mappings `now` too: up to the first in another
/// file, whose own address still is right.
fn sound(frames: &[UserFrame], walked: &Arc<MappingSet>, now: &Arc<MappingSet>) -> usize {
    if Arc::ptr_eq(walked, now) {
        return usize::MAX;
    }
    let replaced = |frame: &UserFrame| {
        let (walked, now) = (walked.mapping(frame.address), now.mapping(frame.address));
        let place = |mapping: &Mapping| Some((mapping.file.as_ref()?.id, mapping.bias));
        // A file that was looked at since is no other file.
        let (walked, now) = (walked.and_then(place), now.map(place));
        walked.is_some() && now.is_some_and(|now| now != walked)
    };
    frames.iter().position(replaced).map_or(usize::MAX, |at| at + 1)
}

#[cfg(test)]
mod tests;
