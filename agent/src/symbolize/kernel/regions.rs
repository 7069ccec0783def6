//! Kernel code that comes and goes: BPF programs and trampolines. The kernel tells of each with its bounds
//! (`PERF_RECORD_KSYMBOL`, Linux 5.1), and uses the place of one that is gone for another at once: so an
//! address belongs to what lay there at the time of its sample. What was there before the records began is
//! kallsyms's.
//!
//! Shared by two threads: the engine takes the records and says which region each sample met; the thread that
//! names asks for the names, later.

use crate::address::AbsAddr;
use crate::bpf::KernelSymbolEvent;
use crate::clock::MonotonicNs;
use crate::limits::{KERNEL_REGION_KEPT_NS, KERNEL_REGIONS_MAX};
use crate::normalize::{Frame, KernelRegion};
use crate::symbolize::KernelSymbol;
use crate::symbolize::kernel::{BPF, CORE};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The regions, those that are gone too, while samples may still ask for them.
#[derive(Debug, Default)]
pub struct KernelRegions {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// By start; the longest of all bounds the walk back.
    lives: BTreeMap<(u64, u32), Life>,
    longest: u64,
    next: u32,
    /// Records were lost: what kallsyms said before this time may be wrong.
    lost_at: Option<MonotonicNs>,
    left_out: u64,
}

/// One region from its first to its last moment.
#[derive(Clone, Debug)]
struct Life {
    end: u64,
    /// Nothing if it was there before the records began.
    since: Option<MonotonicNs>,
    until: Option<MonotonicNs>,
    symbol: KernelSymbol,
}

impl Life {
    fn holds(&self, address: u64) -> bool {
        address < self.end
    }

    fn lived_at(&self, time: MonotonicNs) -> bool {
        self.since.is_none_or(|since| since <= time) && self.until.is_none_or(|until| time <= until)
    }
}

/// What is known of an address that no region was found for when it was sampled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Before {
    /// Nothing: kallsyms decides.
    Unknown,
    /// This was there, and is gone.
    Gone(KernelSymbol),
    /// Another came to lie there: what kallsyms said before this time holds, and nothing later.
    ReplacedAt(MonotonicNs),
}

impl KernelRegions {
    /// Takes one record. Records come in the order of their times.
    pub fn apply(&self, event: KernelSymbolEvent, time: MonotonicNs) {
        let KernelSymbolEvent { address, length, gone, bpf, name } = event;
        let Some(end) = address.0.checked_add(u64::from(length)).filter(|&end| end > address.0)
        else {
            return;
        };
        let mut state = self.state();
        let ended = state.end_overlapping(address.0, end, time);
        if gone && ended {
            return;
        }
        let module = if bpf { BPF } else { CORE };
        let name = String::from_utf8_lossy(&name).into_owned();
        let symbol = KernelSymbol { name, module: module.to_owned() };
        let (since, until) = if gone { (None, Some(time)) } else { (Some(time), None) };
        state.add(address.0, Life { end, since, until, symbol }, time);
    }

    /// The kernel dropped records: what is known may have been replaced unseen.
    pub fn lost(&self, time: MonotonicNs) {
        let mut state = self.state();
        for life in state.lives.values_mut().filter(|life| life.until.is_none()) {
            life.until = Some(time);
        }
        state.lost_at = Some(time);
    }

    /// Says of each kernel frame which region it lies in.
    pub fn place(&self, frames: &mut [Frame], time: MonotonicNs) {
        let mut state = None;
        for frame in frames {
            if let Frame::Kernel { address, region } = frame {
                *region = state.get_or_insert_with(|| self.state()).at(*address, time);
            }
        }
    }

    /// Regions left out for a limit.
    #[must_use]
    pub fn left_out(&self) -> u64 {
        self.state().left_out
    }

    /// The name of a region that [`Self::place`] gave.
    pub(super) fn name(&self, region: KernelRegion, address: AbsAddr) -> Option<KernelSymbol> {
        let state = self.state();
        let mut lives = state.holding(address.0);
        lives.find(|(number, _)| *number == region.0).map(|(_, life)| life.symbol.clone())
    }

    /// What is known of an address that lay in no region when it was sampled.
    pub(super) fn before(&self, address: AbsAddr) -> Before {
        let state = self.state();
        let mut before = Before::Unknown;
        for (_, life) in state.holding(address.0) {
            match life.since {
                None => return Before::Gone(life.symbol.clone()),
                Some(since) => {
                    before = match before {
                        Before::ReplacedAt(earlier) => Before::ReplacedAt(earlier.min(since)),
                        _ => Before::ReplacedAt(since),
                    }
                }
            }
        }
        before
    }

    /// When records were lost last.
    pub(super) fn lost_at(&self) -> Option<MonotonicNs> {
        self.state().lost_at
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// All lives that held `address` at some time, the nearest start first.
    fn holding(&self, address: u64) -> impl Iterator<Item = (u32, &Life)> {
        let from = address.saturating_sub(self.longest);
        let range = self.lives.range((from, 0)..=(address, u32::MAX)).rev();
        range
            .filter(move |(_, life)| life.holds(address))
            .map(|(&(_, number), life)| (number, life))
    }

    fn at(&self, address: AbsAddr, time: MonotonicNs) -> KernelRegion {
        // A life without a beginning is known only since its end: who asked before got no region, and
        // all samples of one place and time must agree.
        let living = |life: &Life| life.since.is_some() && life.lived_at(time);
        let mut lives = self.holding(address.0);
        lives
            .find(|(_, life)| living(life))
            .map_or_else(KernelRegion::default, |(number, _)| KernelRegion(number))
    }

    /// Two regions never lie in one place at one time. True if one was ended.
    fn end_overlapping(&mut self, start: u64, end: u64, time: MonotonicNs) -> bool {
        let from = start.saturating_sub(self.longest);
        let mut ended = false;
        for life in self.lives.range_mut((from, 0)..(end, 0)).map(|(_, life)| life) {
            // One that ended with a loss of records ended no later than this.
            if life.end > start && life.until.is_none_or(|until| until > time) {
                life.until = Some(time);
                ended = true;
            }
        }
        ended
    }

    fn add(&mut self, start: u64, life: Life, now: MonotonicNs) {
        if self.lives.len() >= KERNEL_REGIONS_MAX {
            let kept = |life: &Life| {
                life.until.is_none_or(|until| now.since(until) < KERNEL_REGION_KEPT_NS)
            };
            self.lives.retain(|_, life| kept(life));
        }
        let Some(number) =
            self.next.checked_add(1).filter(|_| self.lives.len() < KERNEL_REGIONS_MAX)
        else {
            self.left_out += 1;
            return;
        };
        self.next = number;
        self.longest = self.longest.max(life.end - start);
        self.lives.insert((start, number), life);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACE: u64 = 0xffff_ffff_a000_1000;

    fn event(start: u64, length: u32, name: &str, gone: bool) -> KernelSymbolEvent {
        let name = name.as_bytes().to_vec();
        KernelSymbolEvent { address: AbsAddr(start), length, gone, bpf: true, name }
    }

    /// The name at an address for a sample of `time` that is named now.
    fn named(regions: &KernelRegions, address: u64, time: u64) -> String {
        let region = KernelRegion::default();
        let mut frames = [Frame::Kernel { address: AbsAddr(address), region }];
        regions.place(&mut frames, MonotonicNs(time));
        let [Frame::Kernel { address, region }] = frames else { unreachable!("still one") };
        if region == KernelRegion::default() {
            return match regions.before(address) {
                Before::Unknown => "kallsyms".into(),
                Before::Gone(symbol) => symbol.name,
                Before::ReplacedAt(time) => format!("kallsyms before {}", time.0),
            };
        }
        regions.name(region, address).map_or_else(|| "?".into(), |symbol| symbol.name)
    }

    #[test]
    fn an_address_belongs_to_what_lay_there_at_its_time() {
        let regions = KernelRegions::default();
        regions.apply(event(PLACE, 0x100, "one", false), MonotonicNs(100));
        regions.apply(event(PLACE, 0x100, "one", true), MonotonicNs(200));
        regions.apply(event(PLACE + 0x40, 0x40, "two", false), MonotonicNs(300));
        for (address, time, expected) in [
            (PLACE, 150, "one"),
            (PLACE + 0xff, 200, "one"),
            (PLACE + 0x100, 150, "kallsyms"),
            (PLACE - 1, 150, "kallsyms"),
            (PLACE + 0x40, 150, "one"),
            (PLACE + 0x40, 350, "two"),
            (PLACE + 0x40, 250, "kallsyms before 100"),
            (PLACE, 50, "kallsyms before 100"),
            (PLACE, 350, "kallsyms before 100"),
        ] {
            assert_eq!(named(&regions, address, time), expected, "{address:x} at {time}");
        }
    }

    #[test]
    fn what_was_there_before_the_records_keeps_its_name() {
        let regions = KernelRegions::default();
        regions.apply(event(PLACE, 0x100, "old", true), MonotonicNs(200));
        regions.apply(event(PLACE, 0x100, "new", false), MonotonicNs(300));
        assert_eq!(named(&regions, PLACE, 100), "old");
        assert_eq!(named(&regions, PLACE, 350), "new");
    }

    #[test]
    fn lost_records_end_what_was_known() {
        let regions = KernelRegions::default();
        regions.apply(event(PLACE, 0x100, "one", false), MonotonicNs(100));
        regions.lost(MonotonicNs(200));
        assert_eq!(named(&regions, PLACE, 150), "one");
        assert_eq!(named(&regions, PLACE, 250), "kallsyms before 100");
        assert_eq!(regions.lost_at(), Some(MonotonicNs(200)));
    }

    #[test]
    fn the_number_of_regions_is_bounded() {
        let regions = KernelRegions::default();
        for number in 0..KERNEL_REGIONS_MAX as u64 * 2 {
            regions.apply(event(PLACE + number * 0x100, 0x100, "many", false), MonotonicNs(1));
        }
        assert_eq!(regions.left_out(), KERNEL_REGIONS_MAX as u64);
        regions.lost(MonotonicNs(2));
        let later = MonotonicNs(3 + KERNEL_REGION_KEPT_NS);
        regions.apply(event(PLACE, 0x100, "late", false), later);
        assert_eq!(named(&regions, PLACE, later.0), "late");
        regions.apply(event(u64::MAX - 1, 0x100, "wraps", false), later);
        regions.apply(event(PLACE + 0x1000, 0, "empty", false), later);
    }
}
