//! What the table asks `/proc`, and when.

use super::ProcessTable;
use crate::address::{AbsAddr, Pid};
use crate::bpf::RawSample;
use crate::clock::{MonotonicNs, monotonic_now};
use crate::limits::{
    LOST_RECOVERY_INTERVAL_NS, MAPS_READ_INTERVAL_NS_MAX, MAPS_READ_INTERVAL_NS_MIN,
    MAPS_READ_PAUSE_FACTOR, START_TOLERANCE_NS,
};
use crate::normalize::ProcessIdentity;
use crate::path;
use crate::process::host::ProcessStatus;
use crate::process::identity::{Known, Surroundings};
use crate::process::instance::Instance;
use crate::process::looks::{Asked, Listed, Look, Ticket};
use crate::process::mappings::{Mapping, MappingSet};
use crate::process::maps::MapsEntry;
use crate::process::reports::Reports;
use hashbrown::{HashMap, HashSet};
use std::sync::Arc;

impl ProcessTable {
    /// Reads a process that `/proc` lists, if it lives. What has ended and is listed still has had the record of
    /// its exit, or never will: nobody would ever find out that it is gone.
    pub(super) fn discover_living(&mut self, pid: Pid, time: MonotonicNs) {
        if let Ok(status) = self.host.status(pid)
            && !status.has_ended()
        {
            self.take_up(pid, time, status);
        }
    }

    /// Reads a process that no record told of, for a record or a sample of it. It may have ended since: the
    /// record of that is on its way.
    pub(super) fn discover(&mut self, pid: Pid, time: MonotonicNs) -> Option<()> {
        let status = self.host.status(pid).ok()?;
        self.take_up(pid, time, status)
    }

    fn take_up(&mut self, pid: Pid, time: MonotonicNs, status: ProcessStatus) -> Option<()> {
        let started = MonotonicNs(status.start_time_ns.saturating_sub(self.host.asleep_ns()));
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
        // Its mappings hang on the others: `/proc/PID/maps` is empty.
        if status.zombie
            && let Ok(living) = self.host.living_thread(pid)
        {
            instance.living = living;
        }
        instance.image().comm = status.comm;
        self.add(pid, instance)?;
        if !status.kernel_thread {
            self.read_maps(pid, None);
            self.mark_dirty(pid);
        }
        Some(())
    }

    /// Looks whether a process still is the one known. True if it has ended.
    pub(super) fn check(&mut self, pid: Pid, now: MonotonicNs) -> bool {
        let status = self.host.status(pid);
        let Some(instance) = self.live(pid) else { return true };
        let ended = match status {
            Ok(status) => {
                let other =
                    status.start_time_ns.abs_diff(instance.start_time_ns) >= START_TOLERANCE_NS;
                other || status.has_ended()
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

    /// Reads the mappings of a process, if that was not done a moment ago.
    pub(super) fn read_maps(&mut self, pid: Pid, address: Option<AbsAddr>) {
        let now = monotonic_now();
        let Some(instance) = self.live(pid) else { return };
        if now < instance.read_after {
            self.counts.maps_put_off += 1;
            return;
        }
        let program = instance.images.len() - 1;
        let look = instance.look(pid, program);
        let listed = self.looks.list(look.clone());
        self.counts.maps_read += 1;
        match listed {
            Some(listed) => self.take_listed(pid, (look, listed), address, now),
            None => {
                if let Some(instance) = self.live(pid) {
                    instance.image().meanwhile.get_or_insert_default();
                }
            }
        }
    }

    /// What was listed of a process is what is known of its mappings from then on.
    pub(super) fn take_listed(
        &mut self,
        pid: Pid,
        (look, listed): (Look, Listed),
        address: Option<AbsAddr>,
        asked: MonotonicNs,
    ) {
        let Some(instance) = self.live(pid) else { return };
        let meanwhile = instance.image().meanwhile.take().unwrap_or_default();
        let Listed { at, taken_ns, maps: Some(maps), executable, .. } = listed else { return };
        self.counts.mappings_left_out += maps.left_out;
        let set = Arc::new(MappingSet::new(self.behind(look, &maps.entries)));
        let executable = executable.map(|path| named(&path, &set));
        let room = self.room.clone();
        let Some(instance) = self.live(pid) else { return };
        let known = &instance.image().executable;
        let both = executable.as_ref().zip(known.as_ref());
        if both.is_some_and(|(found, known)| !same_program(found, known)) {
            instance.found_executed(at);
        }
        let helped = address.is_none_or(|address| set.mapping(address).is_some());
        instance.read_interval_ns = if helped {
            MAPS_READ_INTERVAL_NS_MIN
        } else {
            instance.read_interval_ns.saturating_mul(2).min(MAPS_READ_INTERVAL_NS_MAX)
        };
        let taken_ns = monotonic_now().since(asked).max(taken_ns);
        let pause_ns = taken_ns.saturating_mul(MAPS_READ_PAUSE_FACTOR);
        instance.read_after = asked.plus(instance.read_interval_ns.max(pause_ns));
        let image = instance.image();
        image.set = set;
        image.read_at = at;
        let mut later = Reports::default();
        let refused = [meanwhile, std::mem::take(&mut image.reported)];
        let refused = refused.iter().filter_map(|reports| later.share(reports, at, &room)).max();
        image.reported = later;
        if let Some(refused_at) = refused {
            image.forgotten_since(refused_at);
        }
        image.executable = executable.or(image.executable.take());
    }

    /// The mappings that `/proc` states, each with its file. A file that is mapped in many places is asked
    /// for once.
    fn behind(&self, look: Look, entries: &[MapsEntry]) -> Vec<Mapping> {
        let mut places: HashMap<(u64, &[u8]), usize> = HashMap::new();
        let mut asked: Vec<Asked> = Vec::new();
        let mut ask = |entry: &MapsEntry| {
            asked.push(Asked { mapping: entry.clone(), build_id: None, inode: None });
            asked.len() - 1
        };
        let of_entry: Vec<usize> = entries
            .iter()
            .map(|entry| match entry.inode {
                0 => ask(entry),
                inode => *places.entry((inode, &entry.path)).or_insert_with(|| ask(entry)),
            })
            .collect();
        let seen = self.looks.look(Look { asked, ..look });
        let seen = of_entry.iter().filter_map(|place| seen.get(*place).cloned());
        entries.iter().zip(seen).map(|(entry, seen)| Mapping::seen(entry, seen)).collect()
    }

    /// Asks again for what was looked at too late.
    pub(super) fn look_again(&mut self) {
        let late: HashSet<Pid> = self.looks.take_late().into_iter().collect();
        for pid in late {
            if let Some(instance) = self.live(pid) {
                instance.read_after = MonotonicNs(0);
                self.read_maps(pid, None);
                self.mark_dirty(pid);
            }
        }
    }

    /// Asks for all processes again if records were lost: once for all losses of an interval, and only when
    /// the reads of the last time are done, so that a host that loses records all the time does not spend
    /// its time on the first few processes.
    pub(super) fn recover_lost(&mut self, now: MonotonicNs) {
        let busy =
            !self.reads.is_empty() || now.since(self.read_all_at) < LOST_RECOVERY_INTERVAL_NS;
        if !self.records_lost || busy {
            return;
        }
        self.records_lost = false;
        self.read_all_at = now;
        self.counts.recoveries += 1;
        self.checks = self.instances.keys().copied().collect();
        self.reads = self.existing().unwrap_or_default().into();
    }

    /// After lost records: the process may have executed, mapped, or be new.
    pub(super) fn read_again(&mut self, pid: Pid, now: MonotonicNs) {
        let Some(instance) = self.live(pid) else {
            self.discover_living(pid, now);
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
    pub(super) fn take_in(&mut self, pid: Pid, index: usize, program: usize) {
        let looks = Arc::clone(&self.looks);
        let room = self.room.clone();
        let Some(instance) = self.instances.get_mut(&pid).and_then(|all| all.get_mut(index)) else {
            return;
        };
        let look = instance.look(pid, program);
        let Some(image) = instance.images.get_mut(program) else { return };
        image.take_in(&room, |asked| looks.look(Look { asked, ..look }));
    }

    /// Asks for the surroundings of a program that nobody has identified yet, as long as it runs.
    pub(super) fn ask_surroundings(
        &self,
        pid: Pid,
        index: usize,
        program: usize,
    ) -> Option<Ticket> {
        let instance = &self.instances[&pid][index];
        let image = &instance.images[program];
        let known = image.identity.is_some() || image.forked_from.is_some();
        let look = instance.look(pid, program);
        let wanted = !known && !instance.kernel_thread && look.task.is_some();
        wanted.then(|| self.looks.ask_surroundings(look))
    }

    pub(super) fn identify(
        &mut self,
        pid: Pid,
        index: usize,
        program: usize,
        sample: Option<&RawSample>,
        surroundings: Option<Ticket>,
    ) -> Arc<ProcessIdentity> {
        let instance = &self.instances[&pid][index];
        if let Some(identity) = &instance.images[program].identity {
            return Arc::clone(identity);
        }
        let alive = instance.ended.is_none() && program + 1 == instance.images.len();
        let mut known = Known::of(pid, instance, program);
        let time = sample.map_or_else(monotonic_now, |sample| sample.time);
        let awaited = instance.images[program].awaits_mappings(time);
        if alive && known.executable.is_none() && !known.kernel_thread && !awaited {
            // Who looked at the mappings knows whether ` (deleted)` is part of its name: to look here would
            // make the engine wait for a file system.
            let path = self.host.executable(known.task).ok();
            known.executable = path.map(|path| named(&path, &instance.images[program].set));
            known.executable_unproven = true;
        }
        let surroundings = match surroundings.and_then(|asked| self.looks.surroundings(asked)) {
            Some(surroundings) => Surroundings::Told(surroundings),
            None if alive => Surroundings::Late,
            None => Surroundings::Gone,
        };
        let parent = self.instances.get(&instance.parent).and_then(|instances| instances.last());
        let parent = parent.and_then(|parent| parent.images.last()?.identity.clone());
        let (identity, settled) =
            self.identifier.identify(&mut known, parent.as_deref(), sample, surroundings);
        let image =
            &mut self.instances.get_mut(&pid).expect("looked up above")[index].images[program];
        if image.executable.is_none() {
            image.executable = known.executable;
        }
        if settled {
            image.identity = Some(Arc::clone(&identity));
        }
        identity
    }
}

/// The executable's path. Whether ` (deleted)` is part of its name is known from its mappings.
fn named(path: &[u8], set: &MappingSet) -> String {
    let stated = String::from_utf8_lossy(path);
    let mut files = set.mappings().iter().filter_map(|mapping| mapping.file.as_ref());
    let named = !path::has_remark(path) || files.any(|file| file.path == *stated);
    if named { stated } else { path::shown(path) }.into_owned()
}

/// True if two paths name one program: a record that has the kernel's remark cannot be told from a file
/// that is called so.
fn same_program(one: &str, other: &str) -> bool {
    path::without_remark(one.as_bytes()) == path::without_remark(other.as_bytes())
}
