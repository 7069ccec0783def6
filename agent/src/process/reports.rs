//! Mappings that the kernel reported and that nobody has looked at yet: most programs are over, or sleep, before
//! anybody asks for theirs. All of them share one budget of memory, and a forked process shares the reports of who
//! forked it. What finds no room is forgotten: `/proc` has it as long as the process lives.

use super::maps::MapsEntry;
use crate::bpf::Inode;
use crate::clock::MonotonicNs;
use crate::limits::{MAPPINGS_PER_PROCESS_MAX, REPORTED_BYTES_MAX};
use proto::BuildId;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A mapping that the kernel reported.
#[derive(Debug)]
pub(super) struct Reported {
    /// Where and which.
    pub(super) entry: MapsEntry,
    /// Build id that the kernel read.
    pub(super) build_id: Option<BuildId>,
    /// Which file, if it could not.
    pub(super) inode: Option<Inode>,
    /// When it was mapped.
    pub(super) time: MonotonicNs,
}

/// The memory of all reports; clones mean the same.
#[derive(Clone, Debug, Default)]
pub(super) struct Room {
    used: Arc<AtomicU64>,
}

impl Room {
    /// Bytes taken.
    pub(super) fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    fn take(&self, bytes: usize) -> Option<Share> {
        let mut share = Share { room: self.clone(), bytes: 0 };
        share.grow(bytes).then_some(share)
    }
}

/// Memory that was taken, given back on drop.
#[derive(Debug)]
struct Share {
    room: Room,
    bytes: u64,
}

impl Share {
    /// False if there is not so much.
    fn grow(&mut self, bytes: usize) -> bool {
        let Ok(bytes) = u64::try_from(bytes) else { return false };
        // One thread takes; that others may give back meanwhile does no harm.
        if self.room.used().saturating_add(bytes) > REPORTED_BYTES_MAX {
            return false;
        }
        self.room.used.fetch_add(bytes, Ordering::Relaxed);
        self.bytes += bytes;
        true
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.room.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// The reports of one program, in the order in which they came. Clones share them.
#[derive(Clone, Debug, Default)]
pub(super) struct Reports {
    list: Option<Arc<List>>,
}

#[derive(Debug)]
struct List {
    reports: Vec<Arc<Kept>>,
    share: Share,
}

#[derive(Debug)]
pub(super) struct Kept {
    report: Reported,
    _share: Share,
}

/// A place in a list, and as much again that a growing vector holds in reserve.
const PLACE_BYTES: usize = 2 * size_of::<Arc<Kept>>();

impl Reports {
    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn len(&self) -> usize {
        self.list.as_ref().map_or(0, |list| list.reports.len())
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Reported> {
        self.kept().map(|kept| &kept.report)
    }

    fn kept(&self) -> impl Iterator<Item = &Arc<Kept>> {
        self.list.iter().flat_map(|list| &list.reports)
    }

    /// Adds one. False if there is no room.
    pub(super) fn push(&mut self, report: Reported, room: &Room) -> bool {
        let bytes = size_of::<Kept>() + report.entry.path.capacity();
        let Some(share) = room.take(bytes) else { return false };
        self.push_kept(&Arc::new(Kept { report, _share: share }), room)
    }

    /// Adds those of `others` that are of after `time`. Answers the time of the newest one that found no room.
    pub(super) fn share(
        &mut self,
        others: &Self,
        time: MonotonicNs,
        room: &Room,
    ) -> Option<MonotonicNs> {
        let later = others.kept().filter(|kept| kept.report.time > time);
        let refused = later.filter(|kept| !self.push_kept(kept, room));
        refused.map(|kept| kept.report.time).max()
    }

    fn push_kept(&mut self, kept: &Arc<Kept>, room: &Room) -> bool {
        if self.len() >= MAPPINGS_PER_PROCESS_MAX {
            return false;
        }
        let Some(list) = self.own(room) else { return false };
        let fits = list.share.grow(PLACE_BYTES);
        if fits {
            list.reports.push(Arc::clone(kept));
        }
        fits
    }

    /// The list, as this program's alone. A copy has the same reports, and takes room for their places.
    fn own(&mut self, room: &Room) -> Option<&mut List> {
        let shared = self.list.as_mut().is_none_or(|list| Arc::get_mut(list).is_none());
        if shared {
            let reports: Vec<_> = self.kept().cloned().collect();
            let share = room.take(size_of::<List>() + reports.len() * PLACE_BYTES)?;
            self.list = Some(Arc::new(List { reports, share }));
        }
        self.list.as_mut().and_then(Arc::get_mut)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::{AbsAddr, FileOffset};

    fn report(number: u64, path_bytes: usize) -> Reported {
        let start = AbsAddr(0x1000 * number);
        let end = AbsAddr(start.0 + 0x1000);
        let path = vec![b'/'; path_bytes];
        let entry = MapsEntry { start, end, file_offset: FileOffset(0), inode: 0, path };
        Reported { entry, build_id: None, inode: None, time: MonotonicNs(number) }
    }

    fn starts(reports: &Reports) -> Vec<u64> {
        reports.iter().map(|report| report.entry.start.0 / 0x1000).collect()
    }

    #[test]
    fn clones_take_no_room_until_they_differ() {
        let room = Room::default();
        let mut parent = Reports::default();
        for number in 1..=2000 {
            assert!(parent.push(report(number, 4000), &room));
        }
        let used = room.used();
        assert!((8_000_000..9_000_000).contains(&used), "{used}");
        let children = vec![parent.clone(); 500];
        assert_eq!(room.used(), used);
        // Each gets one of its own: the places are copied, the paths are not.
        let mut grown = children.clone();
        for child in &mut grown {
            child.push(report(3000, 10), &room);
        }
        assert!(room.used() <= REPORTED_BYTES_MAX);
        let own = grown.iter().filter(|child| child.len() == 2001).count();
        assert!(own > 100, "{own}");
        assert_eq!((parent.len(), children[7].len()), (2000, 2000));
        drop((children, grown));
        assert_eq!(room.used(), used);
        drop(parent);
        assert_eq!(room.used(), 0);
    }

    #[test]
    fn room_is_bounded_and_comes_back() {
        let room = Room::default();
        let mut reports = Reports::default();
        let fits = (1..100_000).find(|&number| !reports.push(report(number, 4000), &room)).unwrap();
        assert_eq!(u64::try_from(reports.len()).unwrap(), fits - 1);
        assert!(room.used() <= REPORTED_BYTES_MAX);
        drop(reports);
        assert_eq!(room.used(), 0);
    }

    #[test]
    fn one_program_has_no_more_than_can_be_published() {
        let room = Room::default();
        let mut reports = Reports::default();
        let max = u64::try_from(MAPPINGS_PER_PROCESS_MAX).unwrap();
        assert!((1..=max).all(|number| reports.push(report(number, 6), &room)));
        assert!(!reports.push(report(max + 1, 6), &room));
    }

    #[test]
    fn later_ones_are_shared() {
        let room = Room::default();
        let mut reports = Reports::default();
        for number in 1..=5 {
            reports.push(report(number, 6), &room);
        }
        let mut later = Reports::default();
        assert_eq!(later.share(&reports, MonotonicNs(3), &room), None);
        assert_eq!((starts(&later), starts(&reports)), (vec![4, 5], vec![1, 2, 3, 4, 5]));
        let all = room.take(usize::try_from(REPORTED_BYTES_MAX - room.used()).unwrap()).unwrap();
        assert_eq!(later.share(&reports, MonotonicNs(2), &room), Some(MonotonicNs(5)));
        assert_eq!(starts(&later), [4, 5]);
        drop(all);
    }
}
