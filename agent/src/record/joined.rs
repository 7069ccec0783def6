//! Joins named windows into one: equal files, locations, stacks and samples become one again.

use crate::address::{FileId, Tid};
use crate::aggregate::{
    Code, DropReason, FoldedHolder, FoldedSample, FoldedWait, Ledger, Location, LocationIndex,
    LockPlace, NamedWindow, NamingCounts, ProcessSamples, StackIndex,
};
use crate::clock::{MonotonicNs, UnixNs};
use crate::limits;
use crate::normalize::{MappedFile, ProcessIdentity};
use crate::waits::{LockWait, Wait};
use hashbrown::HashMap;
use hashbrown::hash_map::Entry;
use std::hash::Hash;
use std::sync::Arc;

/// What makes two waits one: process, thread and its name, stack, what for, and whether a goroutine waited.
type WaitKey = (usize, Tid, Arc<str>, StackIndex, Wait, Option<LockPlace>, bool);
/// What makes two holders one.
type HolderKey = (usize, Tid, Arc<str>, StackIndex, LockWait, Option<LockPlace>);

/// Windows joined so far.
#[derive(Debug, Default)]
pub struct Joined {
    span: Option<Span>,
    files: HashMap<FileId, u32>,
    file_list: Vec<Arc<MappedFile>>,
    codes: HashMap<Code, LocationIndex>,
    locations: Vec<Location>,
    stacks: HashMap<Arc<[LocationIndex]>, StackIndex>,
    stack_list: Vec<Arc<[LocationIndex]>>,
    processes: HashMap<Arc<ProcessIdentity>, usize>,
    process_list: Vec<ProcessSamples>,
    samples: HashMap<SampleKey, usize>,
    waits: HashMap<WaitKey, usize>,
    holders: HashMap<HolderKey, usize>,
    lock_names: HashMap<LockPlace, Arc<str>>,
    ledger: Ledger,
    naming: NamingCounts,
    observations: u64,
}

type SampleKey = (usize, Tid, Arc<str>, StackIndex);

#[derive(Debug)]
struct Span {
    start: UnixNs,
    start_monotonic: MonotonicNs,
    end: UnixNs,
    duration_ns: u64,
    period_ns: u64,
}

impl Joined {
    /// Observations so far.
    #[must_use]
    pub const fn observations(&self) -> u64 {
        self.observations
    }

    /// Adds a window. What does not fit is counted in the account.
    pub fn add(&mut self, window: &NamedWindow) {
        self.extend_span(window);
        self.ledger.add(&window.ledger);
        self.naming.add(window.naming);
        let files: Vec<u32> = window.files.iter().map(|file| self.add_file(file)).collect();
        let locations = self.add_locations(window, &files);
        let in_joined = |place: LockPlace| LockPlace { file: files[place.file as usize], ..place };
        for (place, name) in &window.lock_names {
            self.lock_names.insert(in_joined(*place), Arc::clone(name));
        }
        let stacks: Vec<Result<StackIndex, DropReason>> =
            window.stacks.iter().map(|stack| self.add_stack(stack, &locations)).collect();
        for process in &window.processes {
            let position =
                *self.processes.entry(Arc::clone(&process.process)).or_insert_with(|| {
                    self.process_list.push(ProcessSamples::of(Arc::clone(&process.process)));
                    self.process_list.len() - 1
                });
            self.process_list[position].ledger.add(&process.ledger);
            for sample in &process.samples {
                self.add_sample(position, stacks[sample.stack.0 as usize], sample);
            }
            for wait in &process.waits {
                let place = wait.place.map(in_joined);
                self.add_wait(position, stacks[wait.stack.0 as usize], place, wait);
            }
            for holder in &process.holders {
                let place = holder.place.map(in_joined);
                self.add_holder(position, stacks[holder.stack.0 as usize], place, holder);
            }
        }
    }

    /// The windows as one; `None` if there was none.
    #[must_use]
    pub fn finish(self) -> Option<NamedWindow> {
        let Span { start, start_monotonic, end, duration_ns, period_ns } = self.span?;
        Some(NamedWindow {
            start,
            end,
            duration_ns,
            start_monotonic,
            period_ns,
            processes: self.process_list,
            stacks: self.stack_list,
            locations: self.locations,
            files: self.file_list,
            lock_names: self.lock_names,
            ledger: self.ledger,
            naming: self.naming,
        })
    }

    fn extend_span(&mut self, window: &NamedWindow) {
        let span = self.span.get_or_insert(Span {
            start: window.start,
            start_monotonic: window.start_monotonic,
            end: window.end,
            duration_ns: 0,
            period_ns: window.period_ns,
        });
        span.end = window.end;
        let start_ns = window.start_monotonic.0.saturating_sub(span.start_monotonic.0);
        span.duration_ns = start_ns.saturating_add(window.duration_ns);
    }

    /// The joined index of each location of the window.
    fn add_locations(&mut self, window: &NamedWindow, files: &[u32]) -> Vec<Option<LocationIndex>> {
        let joined_code = |code| match code {
            Code::Native { file, address } => Code::Native { file: files[file as usize], address },
            Code::Unplaced { file, offset } => {
                Code::Unplaced { file: files[file as usize], offset }
            }
            Code::Kernel { .. } | Code::Anonymous { .. } | Code::Marker(_) => code,
        };
        let (codes, list) = (&mut self.codes, &mut self.locations);
        let mut add = |location: &Location| {
            let code = joined_code(location.code);
            if let Some(&index) = codes.get(&code) {
                let known = &mut list[index.0 as usize];
                if known.lines.is_empty() {
                    known.lines.clone_from(&location.lines);
                    known.module.clone_from(&location.module);
                }
                return Some(index);
            }
            if list.len() >= limits::RECORD_LOCATIONS_MAX {
                return None;
            }
            let index = LocationIndex(u32::try_from(list.len()).ok()?);
            codes.insert(code, index);
            list.push(Location { code, ..location.clone() });
            Some(index)
        };
        window.locations.iter().map(&mut add).collect()
    }

    fn add_file(&mut self, file: &Arc<MappedFile>) -> u32 {
        *self.files.entry(file.id).or_insert_with(|| {
            self.file_list.push(Arc::clone(file));
            // File ids have 32 bits, so the list has fewer entries than 2^32.
            u32::try_from(self.file_list.len() - 1).unwrap_or(u32::MAX)
        })
    }

    fn add_stack(
        &mut self,
        stack: &[LocationIndex],
        locations: &[Option<LocationIndex>],
    ) -> Result<StackIndex, DropReason> {
        let joined: Option<Arc<[LocationIndex]>> =
            stack.iter().map(|index| locations[index.0 as usize]).collect();
        let joined = joined.ok_or(DropReason::Locations)?;
        if let Some(&index) = self.stacks.get(&joined) {
            return Ok(index);
        }
        let index = u32::try_from(self.stack_list.len()).unwrap_or(u32::MAX);
        if self.stack_list.len() >= limits::RECORD_STACKS_MAX {
            return Err(DropReason::Stacks);
        }
        let index = StackIndex(index);
        self.stacks.insert(Arc::clone(&joined), index);
        self.stack_list.push(joined);
        Ok(index)
    }

    fn add_wait(
        &mut self,
        process: usize,
        stack: Result<StackIndex, DropReason>,
        place: Option<LockPlace>,
        wait: &FoldedWait,
    ) {
        let waits = &mut self.process_list[process].waits;
        let placed = stack.ok().and_then(|stack| {
            let name = Arc::clone(&wait.thread_name);
            let key = (process, wait.tid, name, stack, wait.told, place, wait.goroutine);
            Some((stack, position(&mut self.waits, key, waits.len(), limits::RECORD_WAITS_MAX)?))
        });
        let Some((stack, position)) = placed else {
            self.ledger.waits.dropped_ns = self.ledger.waits.dropped_ns.saturating_add(wait.sum.ns);
            return;
        };
        match waits.get_mut(position) {
            Some(known) => known.sum.add(wait.sum),
            None => waits.push(FoldedWait { stack, place, ..wait.clone() }),
        }
    }

    /// Adds what a holder did; of what found no room, the waits for it are counted.
    fn add_holder(
        &mut self,
        process: usize,
        stack: Result<StackIndex, DropReason>,
        place: Option<LockPlace>,
        holder: &FoldedHolder,
    ) {
        let Ok(stack) = stack else { return };
        let holders = &mut self.process_list[process].holders;
        let name = Arc::clone(&holder.thread_name);
        let key = (process, holder.tid, name, stack, holder.lock, place);
        let max = limits::RECORD_WAITS_MAX;
        let Some(position) = position(&mut self.holders, key, holders.len(), max) else { return };
        match holders.get_mut(position) {
            Some(known) => known.ticks = known.ticks.saturating_add(holder.ticks),
            None => holders.push(FoldedHolder { stack, place, ..holder.clone() }),
        }
    }

    fn add_sample(
        &mut self,
        process: usize,
        stack: Result<StackIndex, DropReason>,
        sample: &FoldedSample,
    ) {
        let count = sample.times.len() as u64;
        let total = self.observations.saturating_add(count);
        let full = total > limits::RECORD_OBSERVATIONS_MAX;
        let dropped = full.then_some(DropReason::Observations);
        let stack = match (stack, dropped) {
            (Ok(stack), None) => stack,
            (_, Some(reason)) | (Err(reason), None) => {
                self.ledger.drop_also(reason, count);
                self.process_list[process].ledger.drop_also(reason, count);
                return;
            }
        };
        self.observations = total;
        let samples = &mut self.process_list[process].samples;
        let key = (process, sample.tid, Arc::clone(&sample.thread_name), stack);
        let position = *self.samples.entry(key).or_insert(samples.len());
        match samples.get_mut(position) {
            Some(known) => known.times.extend_from_slice(&sample.times),
            None => samples.push(FoldedSample { stack, ..sample.clone() }),
        }
    }
}

/// Where what has this key is in its list: `end` if it is new and fewer than `max` are known.
fn position<K: Hash + Eq>(
    known: &mut HashMap<K, usize>,
    key: K,
    end: usize,
    max: usize,
) -> Option<usize> {
    let full = known.len() >= max;
    match known.entry(key) {
        Entry::Occupied(entry) => Some(*entry.get()),
        Entry::Vacant(_) if full => None,
        Entry::Vacant(entry) => Some(*entry.insert(end)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_known_has_its_place_where_no_more_is_taken() {
        let mut known = HashMap::new();
        assert_eq!(position(&mut known, 'a', 0, 2), Some(0));
        assert_eq!(position(&mut known, 'b', 7, 2), Some(7), "of another process");
        assert_eq!(position(&mut known, 'c', 1, 2), None);
        assert_eq!(position(&mut known, 'a', 1, 2), Some(0));
        assert_eq!(known.len(), 2);
    }
}
