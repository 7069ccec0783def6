//! What the holder of a lock did while others waited for it: its samples of the clock, and its own waits as the clock would
//! have met them. The times of both waits are known where a stack was taken, and who holds the lock where the lock
//! says so. What was taken stands for the others here as in the sums of waits.

use super::named::{FoldedHolder, LockPlace, ProcessSamples, StackIndex};
use crate::address::Tid;
use crate::clock::MonotonicNs;
use crate::waits::LockWait;
use hashbrown::HashMap;
use std::sync::Arc;

/// A thread in a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct ThreadAt {
    pub(super) process: u32,
    pub(super) tid: Tid,
    pub(super) thread_name: u32,
    pub(super) stack: u32,
}

/// When a wait lasted, within its window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    /// Which of the window's waits.
    pub(super) place: usize,
    pub(super) from: MonotonicNs,
    pub(super) until: MonotonicNs,
    /// Nanoseconds that it stands for.
    pub(super) ns: u64,
}

impl Span {
    const fn own_ns(&self) -> u64 {
        self.until.0.saturating_sub(self.from.0)
    }
}

/// Who waited, and for which lock, if for one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Told {
    pub(super) thread: ThreadAt,
    pub(super) lock: Option<(LockWait, Option<LockPlace>)>,
}

/// All waits of a window.
#[derive(Debug)]
pub(super) struct ToldWaits {
    pub(super) all: Vec<Told>,
    pub(super) spans: Vec<Span>,
}

/// A lock that a thread holds.
#[derive(Debug, Default)]
struct Wanted {
    /// When others wait for it: apart from each other, ascending.
    times: Vec<(u64, u64)>,
    /// Nanoseconds of those waits.
    own_ns: u64,
    /// Nanoseconds that they stand for.
    ns: u64,
}

/// What a thread holds.
type Held = HashMap<(LockWait, Option<LockPlace>), Wanted>;

/// 1, in the weights of ticks.
const ONE: u64 = 1 << 10;

/// What each thread holds that others wait for.
#[derive(Debug, Default)]
pub(super) struct Holders {
    held: HashMap<(u32, Tid), Held>,
    /// Ticks, in parts of the square of [`ONE`].
    found: HashMap<(ThreadAt, LockWait, Option<LockPlace>), u64>,
}

impl Holders {
    /// From the waits of a window; `period_ns`: between two ticks.
    pub(super) fn of(waits: &ToldWaits, period_ns: u64) -> Self {
        let mut holders = Self::default();
        for span in &waits.spans {
            let Told { thread, lock } = &waits.all[span.place];
            let Some((lock, place)) = *lock else { continue };
            let Some(owner) = lock.owner else { continue };
            let held = holders.held.entry((thread.process, owner)).or_default();
            let wanted = held.entry((lock, place)).or_default();
            wanted.times.push((span.from.0, span.until.0));
            wanted.own_ns = wanted.own_ns.saturating_add(span.own_ns());
            wanted.ns = wanted.ns.saturating_add(span.ns);
        }
        for wanted in holders.held.values_mut().flat_map(HashMap::values_mut) {
            wanted.times = joined(std::mem::take(&mut wanted.times));
        }
        for span in &waits.spans {
            let thread = waits.all[span.place].thread;
            holders.add(thread, weight(span.ns, span.own_ns()), |times| {
                ticks_within(times, (span.from.0, span.until.0), period_ns.max(1))
            });
        }
        holders
    }

    /// Adds what the clock saw of a thread.
    pub(super) fn add_samples(&mut self, thread: ThreadAt, samples: &[MonotonicNs]) {
        self.add(thread, ONE, |times| {
            let is_within = |time: &&MonotonicNs| {
                let behind = times.partition_point(|(from, _)| *from <= time.0);
                behind > 0 && time.0 < times[behind - 1].1
            };
            samples.iter().filter(is_within).count() as u64
        });
    }

    fn add(&mut self, thread: ThreadAt, one: u64, ticks: impl Fn(&[(u64, u64)]) -> u64) {
        let Some(held) = self.held.get(&(thread.process, thread.tid)) else { return };
        for (&(lock, place), wanted) in held {
            let ticks = ticks(&wanted.times).saturating_mul(one);
            if ticks > 0 {
                let ticks = ticks.saturating_mul(weight(wanted.ns, wanted.own_ns));
                let found = self.found.entry((thread, lock, place)).or_default();
                *found = found.saturating_add(ticks);
            }
        }
    }

    /// Puts what was found into the processes.
    pub(super) fn into_processes(
        self,
        processes: &mut [ProcessSamples],
        thread_names: &[Arc<str>],
    ) {
        for ((thread, lock, place), parts) in self.found {
            let ticks = parts.saturating_add(ONE * ONE / 2) / (ONE * ONE);
            if ticks == 0 {
                continue;
            }
            let ThreadAt { process, tid, thread_name, stack } = thread;
            processes[process as usize].holders.push(FoldedHolder {
                tid,
                thread_name: Arc::clone(&thread_names[thread_name as usize]),
                stack: StackIndex(stack),
                lock,
                place,
                ticks,
            });
        }
        for process in processes {
            process.holders.sort_unstable_by_key(|it| (it.stack, it.tid, it.lock.address));
        }
    }
}

/// How much more waits stand for than they lasted, in parts of [`ONE`].
fn weight(ns: u64, own_ns: u64) -> u64 {
    let parts = u128::from(ns) * u128::from(ONE) / u128::from(own_ns.max(1));
    u64::try_from(parts).unwrap_or(u64::MAX).max(ONE)
}

/// The same times, those that overlap as one.
fn joined(mut times: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    times.sort_unstable();
    let mut all: Vec<(u64, u64)> = Vec::new();
    for (from, until) in times {
        match all.last_mut() {
            Some((_, end)) if from <= *end => *end = until.max(*end),
            _ => all.push((from, until)),
        }
    }
    all
}

/// Ticks of a clock at all multiples of the period that lie in `span` and in one of the times.
fn ticks_within(times: &[(u64, u64)], span: (u64, u64), period_ns: u64) -> u64 {
    let first = times.partition_point(|(_, until)| *until <= span.0);
    let overlapping = times[first..].iter().take_while(|(from, _)| *from < span.1);
    let ticks = overlapping.map(|(from, until)| {
        let (from, until) = ((*from).max(span.0), (*until).min(span.1));
        until.div_ceil(period_ns).saturating_sub(from.div_ceil(period_ns))
    });
    ticks.sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::AbsAddr;
    use crate::waits::{LockKind, ToldBy};

    const HOLDER: ThreadAt = ThreadAt { process: 0, tid: Tid(7), thread_name: 1, stack: 3 };

    fn waiter(tid: u32, address: u64) -> Told {
        let lock = LockWait {
            kind: LockKind::Mutex,
            address: Some(AbsAddr(address)),
            owner: Some(HOLDER.tid),
            told_by: ToldBy::Rule,
        };
        let thread = ThreadAt { process: 0, tid: Tid(tid), thread_name: 0, stack: 2 };
        Told { thread, lock: Some((lock, None)) }
    }

    fn span(place: usize, from: u64, until: u64) -> Span {
        Span { place, from: MonotonicNs(from), until: MonotonicNs(until), ns: until - from }
    }

    #[test]
    fn a_holder_is_seen_at_the_ticks_of_others_waits() {
        // Two threads wait for a lock at once, one for another lock; the holder sleeps meanwhile, and works.
        let sleeps = Told { thread: HOLDER, lock: None };
        let waits = ToldWaits {
            all: vec![waiter(1, 0x10), waiter(2, 0x10), waiter(3, 0x20), sleeps],
            spans: vec![
                span(0, 100, 205),
                span(1, 150, 300),
                span(2, 1_000, 1_100),
                span(3, 180, 400),
                span(3, 1_050, 1_060),
            ],
        };
        let mut holders = Holders::of(&waits, 10);
        let works = ThreadAt { stack: 4, ..HOLDER };
        holders.add_samples(works, &[99, 100, 299, 300, 1_099].map(MonotonicNs));
        holders.add_samples(ThreadAt { tid: Tid(8), ..works }, &[MonotonicNs(150)]);
        holders.add_samples(ThreadAt { process: 1, ..works }, &[MonotonicNs(150)]);
        let mut found: Vec<(u32, u64, u64)> = holders
            .found
            .into_iter()
            .map(|((thread, lock, _), parts)| {
                (thread.stack, lock.address.unwrap().0, parts / (ONE * ONE))
            })
            .collect();
        found.sort_unstable();
        assert_eq!(found, [(3, 0x10, 12), (3, 0x20, 1), (4, 0x10, 2), (4, 0x20, 1)]);
    }

    #[test]
    fn waits_that_were_taken_stand_for_the_others() {
        let sleeps = Told { thread: HOLDER, lock: None };
        let waits = ToldWaits {
            all: vec![waiter(1, 0x10), sleeps],
            spans: vec![
                Span { ns: 400, ..span(0, 100, 200) },
                Span { ns: 150, ..span(1, 100, 200) },
            ],
        };
        let mut holders = Holders::of(&waits, 10);
        holders.add_samples(ThreadAt { stack: 4, ..HOLDER }, &[MonotonicNs(150)]);
        let ticks = |stack| {
            let found = holders.found.iter().find(|((thread, ..), _)| thread.stack == stack);
            found.map(|(_, parts)| parts / (ONE * ONE))
        };
        // Ten ticks asleep, for one and a half as many, in a quarter of the waits.
        assert_eq!((ticks(3), ticks(4)), (Some(60), Some(4)));
    }
}
