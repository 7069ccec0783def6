//! What a lifecycle record, or a note of the sampler, changes.

use super::ProcessTable;
use crate::address::{AbsAddr, FileId, Generation, Pid, Tid};
use crate::bpf::ProcessEvent;
use crate::clock::MonotonicNs;
use crate::limits::{EXIT_CHECK_INTERVAL_NS, INSTANCES_MAX, PUBLISH_LATER_NS, START_TOLERANCE_NS};
use crate::process::files::reported_mapping;
use crate::process::instance::{Instance, News};
use crate::process::reports::Reported;
use agent_ebpf::ProcessEntry;
use proto::BuildId;
use std::sync::Arc;

impl ProcessTable {
    /// Takes one lifecycle record.
    pub fn apply(&mut self, event: ProcessEvent) {
        match event {
            ProcessEvent::Mmap { pid, time, start, length, file_offset, build_id, inode, path } => {
                let build_id = build_id.as_deref().and_then(BuildId::new);
                if let Some(entry) = reported_mapping(start, length, file_offset, path) {
                    self.mapped(pid, time, Reported { entry, build_id, inode, time });
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
            // No process's.
            ProcessEvent::KernelSymbol { .. } => {}
        }
    }

    /// The sampler met a process, or an address of it, that it has no mappings or no table for. Answers
    /// the file there, where the mapping is known.
    pub fn unknown(
        &mut self,
        pid: Pid,
        address: Option<AbsAddr>,
        time: MonotonicNs,
    ) -> Option<FileId> {
        if !self.is_tracked(pid) {
            return None;
        }
        let Some(instance) = self.live(pid) else {
            self.discover(pid, time);
            return None;
        };
        let published = instance.published;
        let current = published && instance.image().is_current();
        let image = instance.image();
        let awaited = image.awaits_mappings(time);
        let nothing_known =
            image.set.mappings().is_empty() && image.reported.is_empty() && !awaited;
        let waiting = !image.reported.is_empty();
        let mapping = address.and_then(|address| image.set.mapping(address));
        let known = mapping.is_some();
        let file = mapping.and_then(|mapping| Some(mapping.file.as_ref()?.id));
        // Published and yet unknown as a whole: it executed another program, and the record of that was
        // lost. What `/proc` says now is of the new program.
        let behind = published && image.published_before(time) && !awaited;
        let lost_all = behind && address.is_none();
        let lost_one = published && address.is_some() && !waiting && !known;
        let forgotten = image.is_incomplete() && !awaited;
        if nothing_known || lost_all || lost_one || forgotten {
            self.read_maps(pid, address);
        }
        // Where the mapping is published, only its table is missing.
        if !(current && known) {
            self.mark_dirty(pid);
        }
        file
    }

    pub(super) fn forked(&mut self, pid: Pid, parent: Pid, time: MonotonicNs) {
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
        let start_time_ns = self.start_time_ns(time);
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
        if self.add(pid, child).is_some() {
            self.verification.forked(parent, pid);
        }
        self.changed(pid);
    }

    /// The programs gave a forked process its parent's published mappings. It gives them back when it ends;
    /// if nothing is known of it, at once.
    pub fn inherited(&mut self, pid: Pid, entry: ProcessEntry, time: MonotonicNs) {
        self.inherited.push((pid, entry));
        if self.live(pid).is_none() && self.is_tracked(pid) {
            self.discover(pid, time); // the record of its fork was lost
        }
        let generation = Generation(entry.generation);
        let parent = self.live(pid).map(|instance| instance.parent);
        let parents = parent.and_then(|parent| self.instances.get(&parent));
        let mut images = parents.into_iter().flatten().flat_map(|instance| &instance.images);
        let set = images.find_map(|image| image.of_generation(generation)).map(Arc::clone);
        let Some(instance) = self.live(pid) else {
            self.unpublish.push(pid);
            return;
        };
        instance.held = true;
        // It may run another program by now, as far as `/proc` told.
        if let (Some(set), [image]) = (set, &mut instance.images[..]) {
            image.inherit(generation, set, time);
            instance.published = true;
            instance.inherited = true;
        }
    }

    pub(super) fn executed(&mut self, pid: Pid, time: MonotonicNs, comm: String) {
        if !self.is_tracked(pid) {
            return;
        }
        if self.live(pid).is_none() && !self.revive(pid, time) {
            let start_time_ns = self.start_time_ns(time);
            if self.discover(pid, time).is_none() {
                self.add(pid, Instance::new(pid, time, start_time_ns));
            }
        }
        if let Some(instance) = self.live(pid) {
            instance.executed(time, comm);
            let parent = instance.parent;
            // What was published is not read any more, and would keep its tables in memory.
            if !instance.published && std::mem::take(&mut instance.held) {
                self.unpublish.push(pid);
            }
            self.replaced.push(pid);
            self.part(pid, parent);
        }
        self.changed(pid);
    }

    /// A thread that executes takes over the pid of the main one, whose exit was reported before.
    pub(super) fn revive(&mut self, pid: Pid, time: MonotonicNs) -> bool {
        let last = self.instances.get_mut(&pid).and_then(|instances| instances.last_mut());
        let Some(instance) = last.filter(|last| last.ended.is_some_and(|ended| ended <= time))
        else {
            return false;
        };
        instance.ended = None;
        true
    }

    pub(super) fn mapped(&mut self, pid: Pid, time: MonotonicNs, reported: Reported) {
        if !self.is_tracked(pid) {
            return;
        }
        if self.live(pid).is_none() {
            // Older than all records, or a record was lost: `/proc` has this mapping too.
            if self.discover(pid, time).is_some() {
                return;
            }
            let start_time_ns = self.start_time_ns(time);
            self.add(pid, Instance::new(pid, time, start_time_ns));
        }
        let room = self.room.clone();
        let of_file = reported.entry.path.starts_with(b"/");
        let Some(instance) = self.live(pid) else { return };
        let news = instance.image().report(reported, time, &room);
        if news == News::Forgotten {
            self.counts.reports_forgotten += 1;
            self.make_room(time);
        }
        if news != News::Old {
            self.changed(pid);
            if of_file {
                self.mapped_by_relative(pid);
            }
        }
    }

    /// Forgets the reports of programs that began or mapped nothing for a while and that nobody has asked for:
    /// most of those that live only sleep, and `/proc` has their mappings.
    fn make_room(&mut self, now: MonotonicNs) {
        if now < self.make_room_at {
            return;
        }
        self.make_room_at = now.plus(PUBLISH_LATER_NS);
        let limit = MonotonicNs(now.0.saturating_sub(PUBLISH_LATER_NS));
        let images = self.instances.values_mut().flatten().flat_map(|one| &mut one.images);
        let forgotten: usize = images.map(|image| image.forget_reports(limit)).sum();
        self.counts.reports_forgotten += u64::try_from(forgotten).unwrap_or(u64::MAX);
    }

    pub(super) fn exited(&mut self, pid: Pid, tid: Tid, time: MonotonicNs) {
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
            None => self.check_exit(pid, time),
        }
    }

    /// Looks whether a process has ended of which nobody knows how many threads it has: at once, with the next
    /// poll, and then once a second at most, however many threads come and go.
    fn check_exit(&mut self, pid: Pid, time: MonotonicNs) {
        let Some(instance) = self.live(pid) else { return };
        if instance.check_awaited {
            return;
        }
        if time < instance.check_after {
            instance.check_awaited = true;
            self.exits.push_back((time.plus(EXIT_CHECK_INTERVAL_NS), pid));
            return;
        }
        instance.check_after = time.plus(EXIT_CHECK_INTERVAL_NS);
        if !self.check(pid, time)
            && let Some(instance) = self.live(pid)
        {
            instance.check_awaited = true;
            self.exits.push_front((time, pid));
        }
    }

    pub(super) fn lost(&mut self, count: u64) {
        self.counts.lost = self.counts.lost.saturating_add(count);
        // Threads are counted record by record: from here on nobody's count is complete.
        for instance in self.instances.values_mut().flatten() {
            instance.threads = None;
        }
        self.records_lost = true;
    }
}
