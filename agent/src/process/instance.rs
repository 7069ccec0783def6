//! One process instance: a pid between a fork and its end, and the programs that it ran, one after the
//! other. Plain state; who reads `/proc` for it is the table.

use super::host::Task;
use super::looks::{Asked, Look, Seen};
use super::mappings::{Mapping, MappingSet};
use super::reports::{Reported, Reports, Room};
use crate::address::{Generation, Pid, Tid};
use crate::clock::MonotonicNs;
use crate::limits::{
    EXEC_RECORDS_NS, EXIT_GRACE_NS, GENERATIONS_BYTES_MAX, GENERATIONS_PER_IMAGE_MAX,
    HELD_FOR_TABLE_NS_MAX, IMAGES_PER_INSTANCE_MAX, MAPPINGS_REPLACED_MAX, MAPPINGS_TAKEN_IN_MAX,
    MAPS_READ_INTERVAL_NS_MIN, VERIFY_INTERVAL_NS_MIN,
};
use crate::normalize::ProcessIdentity;
use crate::path;
use std::collections::VecDeque;
use std::sync::Arc;

/// What became of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum News {
    /// It says what was known.
    Old,
    /// It waits for whoever asks.
    Kept,
    /// There was no room for it.
    Forgotten,
}

/// A generation of mappings that samples may carry.
#[derive(Clone, Debug)]
struct Published {
    generation: Generation,
    set: Arc<MappingSet>,
    at: MonotonicNs,
}

/// One program: what an instance runs between two execs.
#[derive(Clone, Debug, Default)]
pub(super) struct Image {
    /// When it was executed (or the process forked).
    pub(super) since: MonotonicNs,
    /// Name of the main thread.
    pub(super) comm: String,
    /// No record told of it yet.
    pub(super) inferred: bool,
    /// A record told of its exec: those of its mappings follow.
    told: bool,
    /// Path of the executable, once known.
    pub(super) executable: Option<String>,
    /// Mappings that were looked at.
    pub(super) set: Arc<MappingSet>,
    /// Mappings that were not, in the order of the reports.
    pub(super) reported: Reports,
    /// What was taken in since `/proc` was asked for the mappings, while it has not answered: it comes on top of
    /// what the answer says.
    pub(super) meanwhile: Option<Reports>,
    /// When `/proc` was read into `set`: older reports are in it.
    pub(super) read_at: MonotonicNs,
    /// What was mapped before a file came to lie where another one was, and until when: samples that were held
    /// until now may be of that time.
    replaced: VecDeque<(MonotonicNs, Arc<MappingSet>)>,
    /// Time of the newest report.
    reported_at: MonotonicNs,
    /// Time of the newest report that was forgotten: what `/proc` said before is incomplete.
    forgotten_at: MonotonicNs,
    /// Who it is, once somebody asked.
    pub(super) identity: Option<Arc<ProcessIdentity>>,
    /// Who forked it, while it has not executed a program of its own.
    pub(super) forked_from: Option<Arc<ProcessIdentity>>,
    published: Vec<Published>,
}

/// A process instance.
#[derive(Clone, Debug)]
pub(super) struct Instance {
    /// When it began, on the kernel's clock.
    pub(super) started: MonotonicNs,
    /// When it began, nanoseconds since boot: with the pid, its name.
    pub(super) start_time_ns: u64,
    /// When it ended.
    pub(super) ended: Option<MonotonicNs>,
    /// Who forked it.
    pub(super) parent: Pid,
    /// A thread that lives, as far as known: the door to `/proc` when the main one has ended.
    pub(super) living: Tid,
    /// Threads that live, where every one was reported.
    pub(super) threads: Option<u32>,
    /// The main thread has ended.
    pub(super) leader_ended: bool,
    /// Whether it has ended is looked at again, without another record.
    pub(super) check_awaited: bool,
    /// It is not looked at for a record of an exit before this time.
    pub(super) check_after: MonotonicNs,
    /// True for a kernel thread.
    pub(super) kernel_thread: bool,
    /// Known by nothing but its samples.
    pub(super) stranger: bool,
    /// Programs, oldest first; never empty.
    pub(super) images: Vec<Image>,
    /// Its mappings are to be published.
    pub(super) dirty: bool,
    /// Its mappings were published and nothing has removed them since.
    pub(super) published: bool,
    /// The kernel side was offered mappings of it, if only of a program before.
    pub(super) held: bool,
    /// Its published mappings are those that its parent had when it forked it.
    pub(super) inherited: bool,
    /// It is looked at later, and published if it still lives.
    pub(super) young: bool,
    /// `/proc/PID/maps` is not read again before this time.
    pub(super) read_after: MonotonicNs,
    /// Time between two such reads, nanoseconds.
    pub(super) read_interval_ns: u64,
    /// Whether what is known of its mappings is true was looked at last then.
    pub(super) verified_at: MonotonicNs,
    /// Time until that is done again, nanoseconds.
    pub(super) verify_interval_ns: u64,
    /// It is going to be.
    pub(super) verify_awaited: bool,
    /// It is going to be soon, because this relative mapped a file.
    pub(super) verify_for: Option<Pid>,
    /// Digest of what was listed when that was not true, 0 if it always was.
    pub(super) listing: u64,
}

impl Instance {
    pub(super) fn new(pid: Pid, started: MonotonicNs, start_time_ns: u64) -> Self {
        Self {
            started,
            start_time_ns,
            ended: None,
            parent: Pid(0),
            living: Tid(pid.0),
            threads: None,
            leader_ended: false,
            check_awaited: false,
            check_after: MonotonicNs(0),
            kernel_thread: false,
            stranger: false,
            images: vec![Image { since: started, ..Image::default() }],
            dirty: false,
            published: false,
            held: false,
            inherited: false,
            young: false,
            read_after: MonotonicNs(0),
            read_interval_ns: MAPS_READ_INTERVAL_NS_MIN,
            verified_at: MonotonicNs(0),
            verify_interval_ns: VERIFY_INTERVAL_NS_MIN,
            verify_awaited: false,
            verify_for: None,
            listing: 0,
        }
    }

    /// The program that runs now.
    pub(super) fn image(&mut self) -> &mut Image {
        self.images.last_mut().expect("an instance has at least one program, see `new`")
    }

    /// How the program at this place is looked at. The pid speaks only of the one that runs now.
    pub(super) fn look(&self, pid: Pid, program: usize) -> Look {
        let current = self.ended.is_none() && program + 1 == self.images.len();
        Look {
            pid,
            program: self.images.get(program).map_or(self.started, |image| image.since),
            task: current.then_some(Task { pid, tid: self.living }),
            relatives: [self.parent, Pid(1)].map(|pid| Task { pid, tid: Tid(pid.0) }),
            asked: Vec::new(),
        }
    }

    /// When mappings of the program that runs now were published last.
    pub(super) fn published_at(&self) -> Option<MonotonicNs> {
        Some(self.images.last()?.published.last()?.at)
    }

    /// The place of the program that ran at `time` (the first one, if it is older than all).
    pub(super) fn image_index(&self, time: MonotonicNs) -> usize {
        self.images.partition_point(|image| image.since <= time).saturating_sub(1)
    }

    /// The kernel says that the program was replaced at `time`. What `/proc` said after that time was of
    /// the new one already.
    pub(super) fn executed(&mut self, time: MonotonicNs, comm: String) {
        let image = self.image();
        if image.inferred && time <= image.since {
            image.inferred = false;
            image.told = true;
            image.since = time;
            image.comm = comm;
            return;
        }
        self.replace(time, comm);
        self.image().told = true;
    }

    /// `/proc` says that another program runs, and the record of it is still on its way, or lost.
    pub(super) fn found_executed(&mut self, time: MonotonicNs) {
        let comm = self.image().comm.clone();
        self.replace(time, comm);
        // Threads that it started before this look are not in any record from here on.
        self.threads = None;
        self.image().inferred = true;
    }

    fn replace(&mut self, time: MonotonicNs, comm: String) {
        self.ended = None;
        self.threads = Some(1);
        self.leader_ended = false;
        self.kernel_thread = false; // helpers of the kernel begin as one of its threads
        self.published = false;
        self.inherited = false;
        self.read_after = MonotonicNs(0);
        self.read_interval_ns = MAPS_READ_INTERVAL_NS_MIN;
        let old = self.image();
        let mut new = Image { since: time, comm, ..Image::default() };
        if old.read_at > time {
            new.set = Arc::clone(&old.set);
            new.read_at = old.read_at;
            new.executable = old.executable.clone();
            let at = old.published.partition_point(|published| published.at < time);
            new.published = old.published.split_off(at);
        }
        self.images.push(new);
        self.forget_before(MonotonicNs(time.0.saturating_sub(EXIT_GRACE_NS)));
        if self.images.len() > IMAGES_PER_INSTANCE_MAX {
            self.images.remove(0);
        }
    }

    /// Forgets programs and generations that were replaced before `time`.
    pub(super) fn forget_before(&mut self, time: MonotonicNs) {
        // A program ends where the next one begins.
        let over = self.images.iter().skip(1).take_while(|next| next.since < time).count();
        self.images.drain(..over.min(self.images.len() - 1));
        for image in &mut self.images {
            image.forget_before(time);
        }
    }
}

impl Image {
    /// The same program in a process that was forked at `time`.
    pub(super) fn forked(&self, time: MonotonicNs) -> Self {
        Self {
            since: time,
            comm: self.comm.clone(),
            inferred: false,
            told: false,
            executable: self.executable.clone(),
            set: Arc::clone(&self.set),
            reported: self.reported.clone(),
            meanwhile: None,
            read_at: MonotonicNs(0),
            replaced: VecDeque::new(),
            reported_at: MonotonicNs(0),
            forgotten_at: if self.is_incomplete() { time } else { MonotonicNs(0) },
            identity: None,
            forked_from: self.identity.clone(),
            published: Vec::new(),
        }
    }

    /// The kernel reported a mapping.
    pub(super) fn report(&mut self, reported: Reported, time: MonotonicNs, room: &Room) -> News {
        let path = reported.entry.path.as_slice();
        // `//anon` is memory, whatever the target's root holds under that name.
        if self.executable.is_none() && path.starts_with(b"/") && !path.starts_with(b"//") {
            self.executable = Some(path::shown(path).into_owned());
        }
        if time < self.since || time <= self.read_at {
            return News::Old;
        }
        self.reported_at = time;
        if self.reported.push(reported, room) {
            return News::Kept;
        }
        self.forgotten_since(time);
        News::Forgotten
    }

    /// True if a mapping of it was reported and forgotten, and `/proc` not read since.
    pub(super) fn is_incomplete(&self) -> bool {
        self.forgotten_at > self.read_at
    }

    /// A report of this time was forgotten.
    pub(super) fn forgotten_since(&mut self, time: MonotonicNs) {
        self.forgotten_at = self.forgotten_at.max(time);
    }

    /// Forgets reports, if the newest is of before `time`. Answers their number.
    pub(super) fn forget_reports(&mut self, time: MonotonicNs) -> usize {
        let newest = self.reported_at.max(self.since);
        if newest >= time || self.reported.is_empty() {
            return 0;
        }
        self.forgotten_since(newest);
        std::mem::take(&mut self.reported).len()
    }

    /// True if the kernel told of its exec so short before `time` that the records of its mappings are still
    /// coming. `/proc` is not asked meanwhile: it may speak of the next program already.
    pub(super) fn awaits_mappings(&self, time: MonotonicNs) -> bool {
        self.told && time.since(self.since) < EXEC_RECORDS_NS
    }

    /// True if its mappings were published before `time`.
    pub(super) fn published_before(&self, time: MonotonicNs) -> bool {
        self.published.last().is_some_and(|published| published.at < time)
    }

    /// Takes in what was reported, given what stands behind all of it.
    pub(super) fn take_in(&mut self, room: &Room, behind: impl FnOnce(Vec<Asked>) -> Vec<Seen>) {
        if self.reported.is_empty() {
            return;
        }
        let reported = std::mem::take(&mut self.reported);
        if let Some(meanwhile) = &mut self.meanwhile
            && let Some(forgotten_at) = meanwhile.share(&reported, MonotonicNs(0), room)
        {
            self.forgotten_since(forgotten_at);
        }
        let asked = reported.iter().map(|reported| Asked {
            mapping: reported.entry.clone(),
            build_id: reported.build_id.clone(),
            inode: reported.inode.map(|inode| (inode, reported.time)),
        });
        let seen = behind(asked.collect());
        let mappings = reported
            .iter()
            .zip(seen)
            .map(|(one, seen)| (Mapping::seen(&one.entry, seen), one.time));
        let (mut set, mut added) = (Arc::clone(&self.set), Vec::new());
        for (mapping, time) in mappings {
            if set.is_replaced_by(&mapping) || added.iter().any(|old| mapping.replaces(old)) {
                set = Arc::new(set.with(added.drain(..)));
                self.keep_replaced(time, &set);
            } else if added.len() >= MAPPINGS_TAKEN_IN_MAX {
                set = Arc::new(set.with(added.drain(..)));
            }
            added.push(mapping);
        }
        self.set = Arc::new(set.with(added));
    }

    /// Another file takes a place in `set` from `time` on.
    fn keep_replaced(&mut self, time: MonotonicNs, set: &Arc<MappingSet>) {
        let limit = MonotonicNs(time.0.saturating_sub(2 * HELD_FOR_TABLE_NS_MAX));
        while self.replaced.pop_front_if(|(until, _)| *until < limit).is_some() {}
        let length = set.mappings().len().max(1);
        let room = MAPPINGS_REPLACED_MAX / length;
        while self.replaced.len() >= room && self.replaced.pop_front().is_some() {}
        if room > 0 {
            self.replaced.push_back((time, Arc::clone(set)));
        }
    }

    /// The mappings of a time, as they are known now.
    pub(super) fn set_at(&self, time: MonotonicNs) -> &Arc<MappingSet> {
        let at = self.replaced.partition_point(|(until, _)| *until <= time);
        self.replaced.get(at).map_or(&self.set, |(_, set)| set)
    }

    /// The mappings of this program that samples with `generation` were walked with.
    pub(super) fn of_generation(&self, generation: Generation) -> Option<&Arc<MappingSet>> {
        let found = self.published.iter().rev().find(|one| one.generation == generation);
        found.map(|one| &one.set)
    }

    /// True if what was published last is what is known now.
    pub(super) fn is_current(&self) -> bool {
        let last = self.published.last().is_some_and(|last| Arc::ptr_eq(&last.set, &self.set));
        last && self.reported.is_empty() && !self.is_incomplete()
    }

    /// The mappings were published as `generation`.
    pub(super) fn publish(&mut self, generation: Generation, at: MonotonicNs) {
        self.inherit(generation, Arc::clone(&self.set), at);
    }

    /// These mappings, which the parent had, are the process's own since `at`.
    pub(super) fn inherit(
        &mut self,
        generation: Generation,
        set: Arc<MappingSet>,
        at: MonotonicNs,
    ) {
        self.forget_before(MonotonicNs(at.0.saturating_sub(EXIT_GRACE_NS)));
        // The last one is kept whatever it takes: samples that were walked by it are on their way.
        while self.published.len() > 1
            && (self.published.len() >= GENERATIONS_PER_IMAGE_MAX
                || self.published_bytes().saturating_add(set.bytes()) > GENERATIONS_BYTES_MAX)
        {
            self.published.remove(0);
        }
        self.published.push(Published { generation, set, at });
    }

    /// Bytes of the mappings of all generations. Those that follow each other are often of one set.
    fn published_bytes(&self) -> usize {
        let mut last: Option<&Arc<MappingSet>> = None;
        let mut bytes = 0;
        for Published { set, .. } in &self.published {
            if !last.is_some_and(|last| Arc::ptr_eq(last, set)) {
                bytes += set.bytes();
            }
            last = Some(set);
        }
        bytes
    }

    /// Forgets generations, and what was mapped, before `time`.
    fn forget_before(&mut self, time: MonotonicNs) {
        while self.replaced.pop_front_if(|(until, _)| *until < time).is_some() {}
        let over = self.published.iter().skip(1).take_while(|next| next.at < time).count();
        self.published.drain(..over.min(self.published.len()));
    }
}
