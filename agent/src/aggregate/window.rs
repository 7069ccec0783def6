//! The open window: takes samples, keeps them folded, and becomes a [`NamedWindow`].

use super::named::{
    Code, FoldedSample, Location, LocationIndex, NamedWindow, ProcessSamples, StackIndex,
};
use super::settle::{self, Settled};
use super::{Ledger, Namer};
use crate::address::{AbsAddr, ElfAddr, FileId, Tid};
use crate::clock::{MonotonicNs, WallOffset};
use crate::elf::Names;
use crate::limits;
use crate::normalize::{Frame, MappedFile, NormalizedSample, ProcessIdentity, ProcessKey};
use crate::symbolize::UnnamedReason;
use hashbrown::HashMap;
use std::sync::Arc;

/// Folds samples until the window ends. Memory is bounded by `limits::WINDOW_*`; a sample that does
/// not fit is counted and appears in [`Ledger::dropped`].
#[derive(Debug)]
pub struct Window {
    start: MonotonicNs,
    period_ns: u64,
    processes: Interner<Arc<ProcessIdentity>>,
    thread_names: Interner<Arc<str>>,
    stacks: Interner<Arc<[LocationIndex]>>,
    codes: Interner<Code>,
    files: HashMap<FileId, u32>,
    file_list: Vec<Arc<MappedFile>>,
    samples: HashMap<SampleKey, usize>,
    folded: Vec<(SampleKey, Vec<MonotonicNs>)>,
    observations: usize,
    overflow: u64,
    scratch: Vec<LocationIndex>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct SampleKey {
    process: u32,
    tid: Tid,
    thread_name: u32,
    stack: u32,
}

impl Window {
    /// Opens a window that begins at `start`; one observation stands for `period_ns` of CPU.
    #[must_use]
    pub fn new(start: MonotonicNs, period_ns: u64) -> Self {
        Self {
            start,
            period_ns,
            processes: Interner::default(),
            thread_names: Interner::default(),
            stacks: Interner::default(),
            codes: Interner::default(),
            files: HashMap::new(),
            file_list: Vec::new(),
            samples: HashMap::new(),
            folded: Vec::new(),
            observations: 0,
            overflow: 0,
            scratch: Vec::new(),
        }
    }

    /// First instant of the window.
    #[must_use]
    pub const fn start(&self) -> MonotonicNs {
        self.start
    }

    /// Samples kept so far.
    #[must_use]
    pub const fn observations(&self) -> usize {
        self.observations
    }

    /// Takes one sample; counts it as overflow where the window is full.
    pub fn add(&mut self, sample: &NormalizedSample) {
        if self.try_add(sample).is_none() {
            self.overflow = self.overflow.saturating_add(1);
        }
    }

    fn try_add(&mut self, sample: &NormalizedSample) -> Option<()> {
        if self.observations >= limits::WINDOW_OBSERVATIONS_MAX {
            return None;
        }
        let mut stack = std::mem::take(&mut self.scratch);
        stack.clear();
        let located = sample.frames.iter().try_for_each(|frame| {
            stack.push(self.location(sample.process.key(), frame)?);
            Some(())
        });
        let stack_index =
            located.and_then(|()| self.stacks.get_or_insert(&stack[..], limits::WINDOW_STACKS_MAX));
        self.scratch = stack;
        let key = SampleKey {
            process: self.processes.get_or_insert(&sample.process, limits::WINDOW_PROCESSES_MAX)?,
            tid: sample.tid,
            thread_name: self
                .thread_names
                .get_or_insert(&sample.thread_name, limits::WINDOW_SAMPLES_MAX)?,
            stack: stack_index?,
        };
        let position = match self.samples.get(&key) {
            Some(&position) => position,
            None if self.folded.len() >= limits::WINDOW_SAMPLES_MAX => return None,
            None => {
                self.samples.insert(key, self.folded.len());
                self.folded.push((key, Vec::new()));
                self.folded.len() - 1
            }
        };
        self.folded[position].1.push(sample.time);
        self.observations += 1;
        Some(())
    }

    fn location(&mut self, process: ProcessKey, frame: &Frame) -> Option<LocationIndex> {
        let code = match frame {
            Frame::Native { file, address } => {
                Code::Native { file: self.file(file)?, address: *address }
            }
            Frame::Unplaced { file, offset } => {
                Code::Unplaced { file: self.file(file)?, offset: *offset }
            }
            Frame::Kernel { address, region } => {
                Code::Kernel { address: *address, region: *region }
            }
            Frame::Anonymous { runtime, address } => {
                Code::Anonymous { process, runtime: *runtime, address: *address }
            }
            Frame::Marker(marker) => Code::Marker(*marker),
        };
        self.codes.get_or_insert(&code, limits::WINDOW_LOCATIONS_MAX).map(LocationIndex)
    }

    fn file(&mut self, file: &Arc<MappedFile>) -> Option<u32> {
        if let Some(&index) = self.files.get(&file.id) {
            return Some(index);
        }
        // Each file comes with a location of its own, so the limit of locations bounds files too.
        let index = u32::try_from(self.file_list.len()).ok()?;
        self.files.insert(file.id, index);
        self.file_list.push(Arc::clone(file));
        Some(index)
    }

    /// The window ends in front of `end`: names each distinct location once, and closes the account.
    #[must_use]
    pub fn into_named(
        self,
        end: MonotonicNs,
        wall: WallOffset,
        mut ledger: Ledger,
        namer: &mut dyn Namer,
    ) -> NamedWindow {
        ledger.dropped = ledger.dropped.saturating_add(self.overflow);
        let locations = named(&self.codes.list, &self.file_list, namer);
        let Settled { stacks, places } = settle::settled(&self.stacks.list, &locations);
        let mut processes: Vec<ProcessSamples> = self
            .processes
            .list
            .into_iter()
            .map(|process| ProcessSamples { process, samples: Vec::new() })
            .collect();
        let mut known: HashMap<SampleKey, usize> = HashMap::with_capacity(self.folded.len());
        for (key, times) in self.folded {
            let key = SampleKey { stack: places[key.stack as usize], ..key };
            let samples = &mut processes[key.process as usize].samples;
            let position = *known.entry(key).or_insert(samples.len());
            if position == samples.len() {
                samples.push(FoldedSample {
                    tid: key.tid,
                    thread_name: Arc::clone(&self.thread_names.list[key.thread_name as usize]),
                    stack: StackIndex(key.stack),
                    times: Vec::with_capacity(times.len()),
                });
            }
            samples[position].times.extend(times.into_iter().map(|time| wall.to_unix(time)));
        }
        for sample in processes.iter_mut().flat_map(|process| &mut process.samples) {
            sample.times.sort_unstable(); // CPUs are drained one after the other.
        }
        processes.retain(|process| !process.samples.is_empty());
        NamedWindow {
            start: wall.to_unix(self.start),
            end: wall.to_unix(end),
            duration_ns: end.0.saturating_sub(self.start.0),
            start_monotonic: self.start,
            period_ns: self.period_ns,
            processes,
            stacks,
            locations,
            files: self.file_list,
            ledger,
        }
    }
}

/// Names all locations: files are asked once each, with all their addresses.
fn named(codes: &[Code], files: &[Arc<MappedFile>], namer: &mut dyn Namer) -> Vec<Location> {
    let mut locations: Vec<Location> = codes.iter().map(|&code| Location::new(code)).collect();
    let mut by_file: Vec<(Vec<usize>, Vec<ElfAddr>)> = vec![Default::default(); files.len()];
    let mut by_process: HashMap<ProcessKey, (Vec<usize>, Vec<AbsAddr>)> = HashMap::new();
    for (index, location) in locations.iter_mut().enumerate() {
        match location.code {
            Code::Native { file, address } => {
                let (indices, addresses) = &mut by_file[file as usize];
                indices.push(index);
                addresses.push(address);
            }
            Code::Kernel { address, region } => match namer.kernel(address, region) {
                Ok(symbol) => {
                    location.lines = vec![crate::elf::SourceLine {
                        function: symbol.name,
                        system_name: String::new(),
                        file: String::new(),
                        line: 0,
                    }];
                    location.module = Some(symbol.module.into());
                }
                Err(reason) => location.unnamed = Some(reason),
            },
            Code::Anonymous { process, address, .. } => {
                let (indices, addresses) = by_process.entry(process).or_default();
                indices.push(index);
                addresses.push(address);
            }
            Code::Unplaced { .. } => location.unnamed = Some(UnnamedReason::NotReadable),
            Code::Marker(_) => {}
        }
    }
    let mut name = |indices: Vec<usize>, names: Vec<Names>| {
        for (index, names) in indices.into_iter().zip(names) {
            match names {
                Ok(lines) => locations[index].lines = lines,
                Err(reason) => locations[index].unnamed = Some(reason),
            }
        }
    };
    for (file, (indices, addresses)) in files.iter().zip(by_file) {
        if addresses.is_empty() {
            continue;
        }
        name(indices, namer.native(file, &addresses));
    }
    for (process, (indices, addresses)) in by_process {
        name(indices, namer.anonymous(process, &addresses));
    }
    locations
}

/// Gives equal values one number, in the order in which they came.
#[derive(Debug)]
pub(super) struct Interner<T> {
    numbers: HashMap<T, u32>,
    list: Vec<T>,
}

impl<T> Default for Interner<T> {
    fn default() -> Self {
        Self { numbers: HashMap::new(), list: Vec::new() }
    }
}

impl<T: std::hash::Hash + Eq + Clone> Interner<T> {
    /// The values, by number.
    pub(super) fn into_list(self) -> Vec<T> {
        self.list
    }

    /// The number of `value`, a new one if there are fewer than `len_max`.
    pub(super) fn get_or_insert<Q>(&mut self, value: &Q, len_max: usize) -> Option<u32>
    where
        Q: std::hash::Hash + hashbrown::Equivalent<T> + ?Sized + ToValue<T>,
    {
        if let Some(&number) = self.numbers.get(value) {
            return Some(number);
        }
        if self.list.len() >= len_max {
            return None;
        }
        let number = u32::try_from(self.list.len()).ok()?;
        let value = value.to_value();
        self.numbers.insert(value.clone(), number);
        self.list.push(value);
        Some(number)
    }
}

/// How a borrowed form becomes the stored one.
pub(super) trait ToValue<T> {
    fn to_value(&self) -> T;
}

impl<T: Clone> ToValue<T> for T {
    fn to_value(&self) -> T {
        self.clone()
    }
}

impl ToValue<Arc<[LocationIndex]>> for [LocationIndex] {
    fn to_value(&self) -> Arc<[LocationIndex]> {
        self.into()
    }
}
