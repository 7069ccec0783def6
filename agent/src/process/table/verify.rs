//! What no record tells. `mremap` moves code without one, and where processes share their memory (`CLONE_VM`) the
//! records name only the one that maps. So the mappings of whoever is sampled are listed again now and then, within a
//! part of a CPU, and first of all those of who may share memory with a process that maps a file.

use super::ProcessTable;
use crate::address::Pid;
use crate::clock::{MonotonicNs, monotonic_now, thread_cpu_ns};
use crate::limits::{
    MAPS_READ_PAUSE_FACTOR, VERIFY_INTERVAL_NS_MAX, VERIFY_INTERVAL_NS_MIN, VERIFY_PAUSE_FACTOR,
};
use crate::path;
use crate::process::looks::Listed;
use crate::process::mappings::MappingSet;
use crate::process::maps::MapsEntry;
use hashbrown::{HashMap, HashSet};
use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

/// First address of the kernel's half: `[vsyscall]` lies there, and no record tells of it.
const KERNEL_HALF: u64 = 1 << 63;

/// Whose mappings are to be listed again.
#[derive(Debug, Default)]
pub(super) struct Verification {
    /// Who was sampled; each is there once.
    sampled: VecDeque<Pid>,
    /// A relative mapped a file; likewise.
    soon: VecDeque<Pid>,
    /// The next of each is listed then.
    sampled_after: MonotonicNs,
    soon_after: MonotonicNs,
    /// Children that run the program of who forked them: they may share its memory.
    children: HashMap<Pid, HashSet<Pid>>,
}

impl Verification {
    /// A process was forked.
    pub(super) fn forked(&mut self, parent: Pid, child: Pid) {
        self.children.entry(parent).or_default().insert(child);
    }

    /// A process that this one forked executes or ends, or does not share its memory.
    fn parted(&mut self, parent: Pid, child: Pid) {
        let Some(children) = self.children.get_mut(&parent) else { return };
        children.remove(&child);
        if children.is_empty() {
            self.children.remove(&parent);
        }
    }
}

impl ProcessTable {
    /// A process has memory of its own from now on, or none: it executes or ends.
    pub(super) fn part(&mut self, pid: Pid, parent: Pid) {
        self.verification.parted(parent, pid);
        self.verification.children.remove(&pid);
    }

    /// A process was sampled: what is known of its mappings is to be true.
    pub(super) fn sampled(&mut self, pid: Pid, time: MonotonicNs) {
        let Some(instance) = self.live(pid) else { return };
        let image = instance.image();
        let known = image.read_at.max(image.since);
        if !instance.verify_awaited
            && !instance.kernel_thread
            && time.since(known.max(instance.verified_at)) >= instance.verify_interval_ns
        {
            instance.verify_awaited = true;
            self.verification.sampled.push_back(pid);
        }
    }

    /// A process mapped a file: who may share its memory has it too, and no record says so.
    pub(super) fn mapped_by_relative(&mut self, pid: Pid) {
        if self.verification.children.is_empty() {
            return;
        }
        let children = self.verification.children.get(&pid);
        let mut relatives: Vec<Pid> = children.into_iter().flatten().copied().collect();
        let parent = self.live(pid).map(|instance| instance.parent);
        let siblings = parent.and_then(|parent| self.verification.children.get(&parent));
        relatives.extend(parent.filter(|_| siblings.is_some_and(|all| all.contains(&pid))));
        for relative in relatives {
            let Some(instance) = self.live(relative) else { continue };
            // Nobody is walked by what nobody published.
            if instance.published && instance.verify_for.is_none() {
                instance.verify_for = Some(pid);
                self.verification.soon.push_back(relative);
            }
        }
    }

    /// Lists the mappings of one process again, if it is time.
    pub(super) fn verify_next(&mut self, now: MonotonicNs) {
        let Verification { sampled, soon, sampled_after, soon_after, .. } = &mut self.verification;
        let next = if now >= *soon_after { soon.pop_front() } else { None };
        let next = next.or_else(|| sampled.pop_front_if(|_| now >= *sampled_after));
        let Some(pid) = next else { return };
        let Some(instance) = self.live(pid) else { return };
        instance.verify_awaited = false;
        let relative = instance.verify_for.take();
        // What was reported and not looked at is newer than all that is known.
        if relative.is_none() && !instance.image().reported.is_empty() {
            return;
        }
        let (begin, began_ns) = (monotonic_now(), thread_cpu_ns());
        instance.verified_at = begin;
        let look = instance.look(pid, instance.images.len() - 1);
        let listed = self.looks.list(look.clone());
        self.counts.maps_verified += 1;
        // One that does not answer in time is read as a whole when it does.
        let answered = listed.and_then(|listed| {
            let places = listed.maps.as_ref().map(|maps| of_files(&maps.entries))?;
            let Listed { cpu_ns, .. } = listed;
            let agrees = agree(&known(&self.live(pid)?.image().set), &places);
            Some((digest(&places), agrees, cpu_ns, listed))
        });
        let Some((digest, agrees, cpu_ns, listed)) = answered else {
            self.verification.sampled_after = begin.plus(VERIFY_INTERVAL_NS_MIN);
            return;
        };
        let Some(instance) = self.live(pid) else { return };
        // A file that others know by another path is known from the time that this was found.
        if instance.listing != digest && !agrees {
            instance.listing = digest;
            instance.verify_interval_ns = VERIFY_INTERVAL_NS_MIN;
            self.counts.maps_outdated += 1;
            self.take_listed(pid, (look, listed), None, begin);
            self.mark_dirty(pid);
        } else if let Some(relative) = relative {
            // It has not what the other one mapped.
            self.verification.parted(relative, pid);
            self.verification.parted(pid, relative);
        } else if instance.listing == 0 {
            let doubled_ns = instance.verify_interval_ns.saturating_mul(2);
            instance.verify_interval_ns = doubled_ns.min(VERIFY_INTERVAL_NS_MAX);
        }
        let taken_ns = thread_cpu_ns().saturating_sub(began_ns).saturating_add(cpu_ns);
        let (after, factor) = match relative {
            Some(_) => (&mut self.verification.soon_after, MAPS_READ_PAUSE_FACTOR),
            None => (&mut self.verification.sampled_after, VERIFY_PAUSE_FACTOR),
        };
        *after = begin.plus(taken_ns.saturating_mul(factor));
    }
}

/// A range of a file in memory: start, end, start of the file in memory, path.
type Range<'a> = (u64, u64, u64, &'a [u8]);

/// What is known of code of files. Code that no file backs is left out: a virtual machine makes and unmakes it all the
/// time, and who names it asks its perf map.
fn known(set: &MappingSet) -> Vec<Range<'_>> {
    joined(set.mappings().iter().filter_map(|mapping| {
        let path = mapping.file.as_ref()?.path.as_bytes();
        Some((mapping.start.0, mapping.end.0, mapping.file_offset.0, path))
    }))
}

/// What `/proc` lists of it.
fn of_files(listed: &[MapsEntry]) -> Vec<Range<'_>> {
    joined(
        listed
            .iter()
            .filter(|entry| entry.inode != 0)
            .map(|entry| (entry.start.0, entry.end.0, entry.file_offset.0, entry.path.as_slice())),
    )
}

/// True if both say the same. A path may be longer for one: whoever has another root sees a file by the end of its path.
fn agree(known: &[Range<'_>], listed: &[Range<'_>]) -> bool {
    let same = |(a, b): (&Range<'_>, &Range<'_>)| {
        (a.0, a.1, a.2) == (b.0, b.1, b.2) && (a.3.ends_with(b.3) || b.3.ends_with(a.3))
    };
    known.len() == listed.len() && known.iter().zip(listed).all(same)
}

fn digest(places: &[Range<'_>]) -> u64 {
    let mut hasher = DefaultHasher::new();
    places.hash(&mut hasher);
    hasher.finish()
}

/// Neighbours of one file as one.
fn joined<'a>(ranges: impl Iterator<Item = Range<'a>>) -> Vec<Range<'a>> {
    let mut joined: Vec<Range<'a>> = Vec::new();
    for (start, end, file_offset, path) in ranges {
        if !path.starts_with(b"/") || start >= KERNEL_HALF {
            continue;
        }
        let path = path::without_remark(path);
        let base = start.wrapping_sub(file_offset);
        match joined.last_mut() {
            Some(last) if (last.1, last.2, last.3) == (start, base, path) => last.1 = end,
            _ => joined.push((start, end, base, path)),
        }
    }
    joined
}
