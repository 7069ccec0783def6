//! Waits of goroutines that outlast a window: told while they last, as those of threads are. Nobody has taken a stack by
//! then; the function that waits is known. When the wait ends, its record tells the rest, with the stack.

use super::waits::data_place;
use super::{Engine, Intake};
use crate::address::{AbsAddr, FileId, Generation, Pid};
use crate::aggregate::{WaitSum, WindowWait};
use crate::bpf::{RawSample, UserFrame, WaitingGoroutine};
use crate::clock::{MonotonicNs, nanoseconds};
use crate::normalize::{self, Frame};
use crate::waits::Owners;
use agent_ebpf::wait::CHANCE_ONE;
use agent_ebpf::{Outcome, WaitClass, WaitFacts};
use hashbrown::HashMap;

/// One wait of a goroutine.
type WaitId = (Pid, AbsAddr, MonotonicNs);

/// What earlier windows got of waits that last.
#[derive(Debug, Default)]
pub(super) struct LastingLocks {
    told: HashMap<WaitId, Told>,
    /// Number of the reading that goes on.
    reading: u64,
}

#[derive(Clone, Copy, Debug)]
struct Told {
    until: MonotonicNs,
    reading: u64,
}

impl LastingLocks {
    /// Begins a reading; forgets waits that are over and whose record did not come.
    fn begin(&mut self) {
        self.reading += 1;
        let reading = self.reading;
        self.told.retain(|_, told| reading - told.reading <= 2);
    }

    /// From when on the wait is told now, up to `until`.
    fn tell(&mut self, id: WaitId, until: MonotonicNs) -> MonotonicNs {
        let told = Told { until, reading: self.reading };
        self.told.insert(id, told).map_or(id.2, |before| before.until)
    }

    /// From when on the wait is left to tell, which is over.
    pub(super) fn end(&mut self, id: WaitId) -> MonotonicNs {
        self.told.remove(&id).map_or(id.2, |told| told.until)
    }
}

impl Engine {
    /// Tells the window that closes at `end` of goroutines that have waited since before it began.
    /// If they cannot be read, a later window or their record tells all of it.
    pub(super) fn tell_lasting_locks(&mut self, end: MonotonicNs) {
        let begin = MonotonicNs(end.0.saturating_sub(nanoseconds(self.options.window)));
        let mut waiting = Vec::new();
        let read = self.sampler.goroutines(&mut |goroutine| {
            if goroutine.since < begin {
                waiting.push(goroutine);
            }
        });
        if let Err(error) = read {
            return self.locks.reading_failed(&error);
        }
        self.intake.lasting.begin();
        for goroutine in waiting {
            // A program that is over, or whose probes were taken away, will not tell of an end.
            let probed = |id| self.locks.is_probed(id);
            let is_tracked = self.intake.processes.is_tracked(goroutine.pid);
            if !is_tracked || !self.intake.lasting_lock(&goroutine, end, probed) {
                self.sampler.forget_goroutine(&goroutine);
            }
        }
    }
}

impl Intake {
    /// False if nobody will tell of its end.
    fn lasting_lock(
        &mut self,
        goroutine: &WaitingGoroutine,
        end: MonotonicNs,
        probed: impl Fn(FileId) -> bool,
    ) -> bool {
        let WaitingGoroutine { pid, tid, word, ip, since, weight, .. } = *goroutine;
        let Some(mappings) = self.processes.mappings(pid) else { return false };
        let sample = RawSample {
            cpu: 0,
            pid,
            tid,
            time: end,
            cgroup_id: 0,
            generation: Generation(0),
            outcome: Outcome::NotSampled,
            run_ns: 0,
            comm: Vec::new(),
            kernel: Vec::new(),
            user: vec![UserFrame { address: ip, exact: true }],
            root_frames: 0,
            stack: None,
        };
        let frames = normalize::frames(&sample, Some(&mappings));
        match frames.first() {
            Some(Frame::Native { file, .. }) if probed(file.id) => {}
            Some(Frame::Native { .. }) => return false,
            // Its mappings are not known yet: a later window, or its record, tells all of it.
            _ => return true,
        }
        let attribution = self.processes.attribute_held(&sample);
        let place = data_place(&attribution, word);
        let process = attribution.process;
        let facts = goroutine_facts(word);
        let wait = WindowWait {
            process: &process,
            tid,
            thread_name: &self.thread_name(&sample.comm),
            frames: &frames,
            class: WaitClass::Goroutine,
            facts: Some(&facts),
            owners: Owners::default(),
            place: place.as_ref(),
            span: None,
        };
        let ns = end.since(self.lasting.tell((pid, word, since), end));
        let sum = WaitSum { ns: ns.saturating_mul(weight.into()), count: 0 };
        self.window.add_wait(&wait, sum);
        true
    }
}

/// What is known of a wait for that word.
pub(super) fn goroutine_facts(word: AbsAddr) -> WaitFacts {
    WaitFacts {
        class: WaitClass::Goroutine as u32,
        chance: CHANCE_ONE,
        arguments: [word.0, 0, 0],
        ..WaitFacts::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_window_gets_its_part_of_a_wait() {
        let at = MonotonicNs;
        let id = |since| (Pid(1), AbsAddr(0x10), at(since));
        let mut lasting = LastingLocks::default();
        lasting.begin();
        assert_eq!(lasting.tell(id(5), at(20)), at(5));
        assert_eq!(lasting.tell(id(6), at(20)), at(6), "another goroutine's");
        lasting.begin();
        assert_eq!(lasting.tell(id(5), at(30)), at(20));
        assert_eq!(lasting.end(id(5)), at(30));
        assert_eq!(lasting.end(id(5)), at(5), "one that was never told");
        assert_eq!(lasting.end(id(6)), at(20), "its record came a window later");
        lasting.tell(id(7), at(30));
        for _ in 0..3 {
            lasting.begin();
        }
        assert!(lasting.told.is_empty());
    }
}
