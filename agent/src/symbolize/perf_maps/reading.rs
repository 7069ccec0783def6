//! One perf map: when it is looked at again, which bytes of it are new, and what it says.

use super::regions::Regions;
use super::{PerfMapCounts, Program};
use crate::address::AbsAddr;
use crate::clock::MonotonicNs;
use crate::elf::SourceLine;
use crate::limits::{
    PERF_MAP_BYTES_MAX, PERF_MAP_LOOK_INTERVAL_NS_MAX, PERF_MAP_LOOK_INTERVAL_NS_MIN,
    PERF_MAP_READ_BYTES_MAX, PERF_MAP_TRAMPOLINE_RANGES_MAX,
};
use crate::process::host::{FileIdentity, OpenError, OpenedFile, PerfMapError, ProcFs};
use crate::symbolize::UnnamedReason;
use std::os::fd::AsFd as _;

/// Bytes read at once.
const PIECE_BYTES: usize = 256 << 10;
/// Bytes before the place that reading stopped at, by which the file is known again.
const SEEN_BYTES: usize = 64;
/// Bytes that may still be read, over all maps, in this second.
#[derive(Debug, Default)]
pub(super) struct Budget {
    since: MonotonicNs,
    spent: u64,
}

impl Budget {
    /// What is left of `max` in the second of `now`.
    pub(super) fn of(&mut self, now: MonotonicNs, max: u64) -> u64 {
        if now.since(self.since) >= 1_000_000_000 {
            *self = Self { since: now, spent: 0 };
        }
        max.saturating_sub(self.spent)
    }

    pub(super) fn spend(&mut self, bytes: u64) {
        self.spent = self.spent.saturating_add(bytes);
    }
}

/// The map of one process.
#[derive(Debug)]
pub(super) struct PerfMap {
    regions: Regions,
    place: Option<Place>,
    looked_at: MonotonicNs,
    interval_ns: u64,
    /// Why there are no names, or not all.
    reason: UnnamedReason,
}

/// Up to where the file was read.
#[derive(Debug)]
struct Place {
    device: u64,
    inode: u64,
    size: u64,
    modified_ns: i128,
    offset: u64,
    /// What stands before `offset`.
    seen: Vec<u8>,
}

impl Default for PerfMap {
    fn default() -> Self {
        Self {
            regions: Regions::default(),
            place: None,
            looked_at: MonotonicNs(0),
            interval_ns: PERF_MAP_LOOK_INTERVAL_NS_MIN,
            reason: UnnamedReason::AnonymousCode,
        }
    }
}

impl PerfMap {
    /// Reads what is new, if it is time for that; answers what was counted.
    pub(super) fn read(
        &mut self,
        host: &ProcFs,
        Program { process, executed }: Program,
        now: MonotonicNs,
        budget: &mut u64,
    ) -> Option<PerfMapCounts> {
        if self.looked_at != MonotonicNs(0) && now.since(self.looked_at) < self.interval_ns {
            return None;
        }
        self.looked_at = now;
        let mut counts = PerfMapCounts::default();
        match host.perf_map(process.pid, process.start_time_ns, executed) {
            Ok(opened) => {
                self.interval_ns = PERF_MAP_LOOK_INTERVAL_NS_MIN;
                self.read_file(&opened, budget, &mut counts);
            }
            Err(error) => {
                self.interval_ns =
                    self.interval_ns.saturating_mul(2).min(PERF_MAP_LOOK_INTERVAL_NS_MAX);
                self.absent(&error, &mut counts);
            }
        }
        Some(counts)
    }

    /// The name at `address`, or why there is none.
    pub(super) fn name(&self, address: AbsAddr) -> Result<SourceLine, UnnamedReason> {
        self.regions.find(address.0).map(|name| name.line()).ok_or(self.reason)
    }

    /// Bytes of memory.
    pub(super) fn weight(&self) -> usize {
        self.regions.weight()
    }

    /// What it calls `CPython`'s trampolines.
    pub(super) fn python_ranges(&self) -> Vec<(u64, u64)> {
        self.regions.ranges(PERF_MAP_TRAMPOLINE_RANGES_MAX, |name| name.is_python())
    }

    fn absent(&mut self, error: &PerfMapError, counts: &mut PerfMapCounts) {
        match error {
            // What it named before it ended, or before it removed the file, is still right.
            PerfMapError::Ended if self.place.is_some() => {}
            PerfMapError::Ended => self.reason = UnnamedReason::FileGone,
            PerfMapError::Open(OpenError::Io(error))
                if error.kind() == std::io::ErrorKind::NotFound => {}
            PerfMapError::NotOwned { .. } | PerfMapError::Stale | PerfMapError::Open(_) => {
                tracing::debug!(%error, "perf map not used");
                let refused = u64::from(self.reason != UnnamedReason::NotReadable);
                *self = Self { reason: UnnamedReason::NotReadable, ..std::mem::take(self) };
                self.regions = Regions::default();
                self.place = None;
                counts.refused += refused;
            }
        }
    }

    fn read_file(&mut self, opened: &OpenedFile, budget: &mut u64, counts: &mut PerfMapCounts) {
        let FileIdentity { device, inode, size, modified_ns, changed_ns: _ } = opened.identity;
        let unchanged = |place: &Place| {
            (place.device, place.inode, place.size, place.modified_ns, place.offset)
                == (device, inode, size, modified_ns, size)
        };
        if self.place.as_ref().is_some_and(unchanged) {
            return;
        }
        let grown = self.place.take().filter(|place| {
            (place.device, place.inode) == (device, inode)
                && place.offset <= size
                && seen(opened, place.offset, place.seen.len()) == place.seen
        });
        if grown.is_none() {
            // Another file, or written anew: nothing of the old one holds.
            self.regions = Regions::default();
        }
        let mut place = grown.unwrap_or(Place {
            device,
            inode,
            size,
            modified_ns,
            offset: 0,
            seen: Vec::new(),
        });
        (place.size, place.modified_ns) = (size, modified_ns);
        let before = (self.regions.len(), self.regions.malformed, self.regions.left_out);
        self.reason = UnnamedReason::NoSymbol;
        let end = size.min(PERF_MAP_BYTES_MAX);
        let last = end.min(place.offset.saturating_add(PERF_MAP_READ_BYTES_MAX.min(*budget)));
        let from = place.offset;
        place.offset = self.read_lines(opened, from, last);
        place.seen = seen(opened, place.offset, SEEN_BYTES);
        *budget = budget.saturating_sub(last.saturating_sub(from));
        counts.read_bytes += last.saturating_sub(from);
        let (entries, malformed, left_out) = before;
        counts.entries += (self.regions.len().saturating_sub(entries)) as u64;
        counts.malformed += self.regions.malformed.saturating_sub(malformed);
        counts.left_out += self.regions.left_out.saturating_sub(left_out) + u64::from(last < size);
        if last < size || self.regions.left_out > 0 {
            self.reason = UnnamedReason::Limit;
        }
        self.place = Some(place);
    }

    /// Takes the whole lines of a range of the file; answers where the first one begins that is not whole.
    fn read_lines(&mut self, opened: &OpenedFile, from: u64, to: u64) -> u64 {
        let mut text = Vec::new();
        let mut piece = vec![0; PIECE_BYTES];
        let (mut offset, mut begin) = (from, from);
        while offset < to {
            let wanted = usize::try_from(to - offset).unwrap_or(PIECE_BYTES).min(PIECE_BYTES);
            let buffer = piece.get_mut(..wanted).unwrap_or_default();
            // A file that shrinks while it is read ends early.
            let Ok(count @ 1..) = rustix::io::pread(opened.descriptor.as_fd(), buffer, offset)
            else {
                break;
            };
            text.extend_from_slice(piece.get(..count).unwrap_or_default());
            offset += count as u64;
            let taken = self.regions.take(&text);
            text.drain(..taken);
            begin += taken as u64;
        }
        begin
    }
}

/// Up to `length` bytes before `offset`, empty if they cannot be read.
fn seen(opened: &OpenedFile, offset: u64, length: usize) -> Vec<u8> {
    let length = length.min(usize::try_from(offset).unwrap_or(length));
    let mut bytes = vec![0; length];
    let read = rustix::io::pread(opened.descriptor.as_fd(), &mut bytes, offset - length as u64);
    if read == Ok(length) { bytes } else { Vec::new() }
}
