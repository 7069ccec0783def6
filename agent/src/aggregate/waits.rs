//! The waits of a window: folded while it is open by what tells them apart, and once more when names have said what
//! each was for. Samples of the clock are `window`'s.

use super::holders::{Span, ThreadAt, Told, ToldWaits};
use super::named::{FoldedWait, Location, LocationIndex, LockPlace, ProcessSamples, StackIndex};
use super::reason;
use crate::address::{ElfAddr, Tid};
use crate::clock::MonotonicNs;
use crate::limits;
use crate::normalize::MappedFile;
use crate::waits::{Owners, Wait};
use agent_ebpf::{WaitClass, WaitFacts};
use hashbrown::HashMap;
use std::sync::Arc;

/// What makes two waits of a window one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct WaitKey {
    pub(super) process: u32,
    pub(super) tid: Tid,
    pub(super) thread_name: u32,
    pub(super) stack: u32,
    pub(super) class: WaitClass,
    /// What of the facts tells reasons apart, where a stack was taken; the rest is zero.
    facts: Option<KeyFacts>,
}

/// The facts of a wait that its reason depends on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct KeyFacts {
    syscall: u64,
    /// Of a futex wait: the word, the operation, what it waits for.
    arguments: [u64; 3],
    /// The form of the lock, where a probe told it.
    form: u64,
    /// Who may hold the lock.
    owners: Owners,
    /// The variable of a file that the word is.
    place: Option<LockPlace>,
}

impl WaitKey {
    pub(super) fn new(
        [process, thread_name, stack]: [u32; 3],
        tid: Tid,
        class: WaitClass,
        facts: Option<&WaitFacts>,
        (owners, place): (Owners, Option<LockPlace>),
    ) -> Self {
        let facts = facts.map(|facts| match class {
            WaitClass::Preempted => KeyFacts::default(),
            WaitClass::Futex | WaitClass::Lock | WaitClass::Goroutine => {
                let &WaitFacts { syscall, arguments, form, .. } = facts;
                KeyFacts { syscall, arguments, form, owners, place }
            }
            _ => KeyFacts { syscall: facts.syscall, ..KeyFacts::default() },
        });
        Self { process, tid, thread_name, stack, class, facts }
    }

    fn facts(&self) -> Option<(WaitFacts, Owners)> {
        let KeyFacts { syscall, arguments, form, owners, .. } = self.facts?;
        let class = self.class as u32;
        Some((WaitFacts { class, syscall, arguments, form, ..WaitFacts::default() }, owners))
    }

    /// The variable that the lock is, which may begin before its word.
    fn lock_place(&self, told: &Wait) -> Option<LockPlace> {
        let KeyFacts { arguments: [word, ..], place, .. } = self.facts?;
        let (place, start) = (place?, told.lock?.address?);
        let before = word.checked_sub(start.0)?;
        Some(LockPlace { address: ElfAddr(place.address.0.checked_sub(before)?), ..place })
    }
}

/// The waits of an open window.
#[derive(Debug, Default)]
pub(super) struct OpenWaits {
    places: HashMap<WaitKey, usize>,
    folded: Vec<(WaitKey, WaitSum)>,
    /// When waits with a stack lasted.
    spans: Vec<Span>,
    pub(super) spans_dropped: u64,
}

/// Stacks, locations and files of a window.
type NamedStacks<'a> = (&'a [Arc<[LocationIndex]>], &'a [Location], &'a [Arc<MappedFile>]);

/// Time and number of waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WaitSum {
    /// Nanoseconds that lie in the window.
    pub ns: u64,
    /// Waits that ended in the window.
    pub count: u64,
}

impl WaitSum {
    /// Adds another sum.
    pub fn add(&mut self, other: Self) {
        self.ns = self.ns.saturating_add(other.ns);
        self.count = self.count.saturating_add(other.count);
    }
}

impl OpenWaits {
    /// Adds a wait; false if there is no room.
    pub(super) fn add(
        &mut self,
        key: WaitKey,
        sum: WaitSum,
        span: Option<(MonotonicNs, MonotonicNs)>,
    ) -> bool {
        let place = match self.places.get(&key) {
            Some(&place) => place,
            None if self.folded.len() >= limits::WINDOW_WAITS_MAX => return false,
            None => {
                self.places.insert(key, self.folded.len());
                self.folded.push((key, WaitSum::default()));
                self.folded.len() - 1
            }
        };
        self.folded[place].1.add(sum);
        let Some((from, until)) = span else { return true };
        if self.spans.len() < limits::WINDOW_SPANS_MAX {
            self.spans.push(Span { place, from, until, ns: sum.ns });
        } else {
            self.spans_dropped += 1;
        }
        true
    }

    /// Nanoseconds of all waits.
    pub(super) fn ns(&self) -> u64 {
        self.folded.iter().fold(0, |sum, (_, wait)| sum.saturating_add(wait.ns))
    }

    /// Puts the stacks of waits as they are shown in place of the recorded ones: without the frames of the
    /// scheduler and of the program that it ran.
    pub(super) fn trim(&self, stacks: &mut [Arc<[LocationIndex]>], locations: &[Location]) {
        for (key, _) in &self.folded {
            let stack = &mut stacks[key.stack as usize];
            let skipped = scheduler_frames(stack, locations);
            if skipped > 0 {
                *stack = stack[skipped..].into();
            }
        }
    }

    /// Says what each was for, and folds by that, into the processes. `places` are those of the settled stacks.
    pub(super) fn into_processes(
        self,
        processes: &mut [ProcessSamples],
        thread_names: &[Arc<str>],
        (stacks, locations, files): NamedStacks<'_>,
        places: &[u32],
    ) -> ToldWaits {
        type NamedKey = (u32, Tid, u32, u32, Wait, Option<LockPlace>, bool);
        let mut known: HashMap<NamedKey, usize> = HashMap::with_capacity(self.folded.len());
        let mut all = Vec::with_capacity(self.folded.len());
        for (key, sum) in self.folded {
            let stack = places[key.stack as usize];
            let frames = stacks[stack as usize].iter().map(|at| &locations[at.0 as usize]);
            let told = reason::tell(key.class, key.facts(), frames, files);
            let place = key.lock_place(&told);
            let waits = &mut processes[key.process as usize].waits;
            let goroutine = key.class == WaitClass::Goroutine;
            let named = (key.process, key.tid, key.thread_name, stack, told, place, goroutine);
            let at = *known.entry(named).or_insert(waits.len());
            match waits.get_mut(at) {
                Some(wait) => wait.sum.add(sum),
                None => waits.push(FoldedWait {
                    tid: key.tid,
                    thread_name: Arc::clone(&thread_names[key.thread_name as usize]),
                    stack: StackIndex(stack),
                    told,
                    goroutine,
                    place,
                    sum,
                }),
            }
            let lock = told.lock.map(|lock| (lock, place));
            let WaitKey { process, tid, thread_name, .. } = key;
            all.push(Told { thread: ThreadAt { process, tid, thread_name, stack }, lock });
        }
        ToldWaits { all, spans: self.spans }
    }
}

/// How many frames from the leaf on belong to the switch itself: up to `__schedule`, which is not far. 0 where the
/// kernel's names are hidden.
fn scheduler_frames(stack: &[LocationIndex], locations: &[Location]) -> usize {
    const FRAMES_MAX: usize = 12;
    let is_schedule = |index: &LocationIndex| {
        let lines = &locations[index.0 as usize].lines;
        lines.first().is_some_and(|line| line.function == "__schedule")
    };
    stack.iter().take(FRAMES_MAX).position(is_schedule).map_or(0, |at| at + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::AbsAddr;
    use crate::aggregate::Code;
    use crate::elf::SourceLine;
    use crate::normalize::KernelRegion;

    #[test]
    fn stacks_begin_behind_the_scheduler() {
        let check = |names: &[&str], skipped: usize| {
            let location = |(address, name): (u64, &&str)| Location {
                lines: vec![SourceLine {
                    function: (*name).to_owned(),
                    system_name: String::new(),
                    file: String::new(),
                    line: 0,
                }],
                ..Location::new(Code::Kernel {
                    address: AbsAddr(address),
                    region: KernelRegion::default(),
                })
            };
            let locations: Vec<Location> = (0..).zip(names).map(location).collect();
            let stack: Vec<LocationIndex> = (0..).map(LocationIndex).take(names.len()).collect();
            assert_eq!(scheduler_frames(&stack, &locations), skipped, "{names:?}");
        };
        check(&["bpf_prog_1_switch_loop", "bpf_trace_run4", "__schedule", "schedule", "read"], 3);
        check(&["futex_wait", "main"], 0);
        check(&[], 0);
        let far = [&["main"; 12][..], &["__schedule"]].concat();
        check(&far, 0);
    }

    #[test]
    fn what_does_not_tell_reasons_apart_does_not_split() {
        let facts = |syscall, word| WaitFacts {
            syscall,
            arguments: [word, 0x80, 2],
            stack_pointer: word,
            ..WaitFacts::default()
        };
        let key = |class, facts: &WaitFacts| {
            WaitKey::new([1, 2, 3], Tid(4), class, Some(facts), Default::default())
        };
        let of = |class| (key(class, &facts(0, 1)), key(class, &facts(0, 2)));
        let (one, other) = of(WaitClass::Io);
        assert_eq!(one, other, "a buffer's address");
        let (one, other) = of(WaitClass::Futex);
        assert_ne!(one, other, "a lock's address");
        let mut waits = OpenWaits::default();
        assert!(waits.add(one, WaitSum { ns: 5, count: 1 }, None));
        assert!(waits.add(other, WaitSum { ns: 6, count: 0 }, None));
        assert!(waits.add(one, WaitSum { ns: 7, count: 1 }, None));
        assert_eq!((waits.folded.len(), waits.ns()), (2, 18));
        assert_eq!(waits.folded[0].1, WaitSum { ns: 12, count: 2 });
    }
}
