//! The open window: takes samples, keeps them folded, and becomes a [`NamedWindow`].

use super::account::StackNames;
use super::holders::{Holders, ThreadAt};
use super::named::{
    Code, FoldedSample, Location, LocationIndex, LockPlace, NamedWindow, NamingCounts,
    ProcessSamples, StackIndex,
};
use super::settle::{self, Settled};
use super::waits::{OpenWaits, WaitKey};
use super::{DropReason, Ledger, Namer, ProcessLedger, WaitSum};
use crate::address::{AbsAddr, ElfAddr, FileId, Tid};
use crate::clock::{MonotonicNs, WallOffset};
use crate::elf::Names;
use crate::limits;
use crate::normalize::{Frame, MappedFile, NormalizedSample, ProcessIdentity, ProcessKey};
use crate::symbolize::UnnamedReason;
use crate::waits::Owners;
use agent_ebpf::{WaitClass, WaitFacts};
use hashbrown::HashMap;
use std::sync::Arc;

/// Folds samples until the window ends. Memory is bounded by [`WindowLimits`]; a sample that does not fit
/// is counted by reason, in the account of its process and in the window's.
#[derive(Debug)]
pub struct Window {
    start: MonotonicNs,
    period_ns: u64,
    limits: WindowLimits,
    processes: Interner<Arc<ProcessIdentity>>,
    /// The accounts of the processes, in their order.
    accounts: Vec<ProcessLedger>,
    thread_names: Interner<Arc<str>>,
    stacks: Interner<Arc<[LocationIndex]>>,
    codes: Interner<Code>,
    files: HashMap<FileId, u32>,
    file_list: Vec<Arc<MappedFile>>,
    samples: HashMap<SampleKey, usize>,
    folded: Vec<(SampleKey, Vec<MonotonicNs>)>,
    observations: usize,
    waits: OpenWaits,
    /// Nanoseconds of waits that did not fit.
    waits_dropped_ns: u64,
    /// Samples of processes that did not fit themselves.
    strangers: u64,
    scratch: Vec<LocationIndex>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct SampleKey {
    process: u32,
    tid: Tid,
    thread_name: u32,
    stack: u32,
}

impl SampleKey {
    const fn thread(self) -> ThreadAt {
        let Self { process, tid, thread_name, stack } = self;
        ThreadAt { process, tid, thread_name, stack }
    }
}

/// Time that a thread waited, as a window takes it.
#[derive(Clone, Copy, Debug)]
pub struct WindowWait<'a> {
    /// Whose thread.
    pub process: &'a Arc<ProcessIdentity>,
    /// Which.
    pub tid: Tid,
    /// Its name.
    pub thread_name: &'a Arc<str>,
    /// Where it waited, leaf first.
    pub frames: &'a [Frame],
    /// What for, as far as the kernel tells.
    pub class: WaitClass,
    /// More about it, where its stack was taken.
    pub facts: Option<&'a WaitFacts>,
    /// Who may hold what it waits for.
    pub owners: Owners,
    /// The variable of a file that its futex word is.
    pub place: Option<&'a (Arc<MappedFile>, ElfAddr)>,
    /// When it lasted, where that is known and tells more than the sum.
    pub span: Option<(MonotonicNs, MonotonicNs)>,
}

/// What a window holds at most.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WindowLimits {
    pub(crate) observations: usize,
    pub(crate) samples: usize,
    pub(crate) stacks: usize,
    pub(crate) locations: usize,
    pub(crate) processes: usize,
}

impl Default for WindowLimits {
    fn default() -> Self {
        Self {
            observations: limits::WINDOW_OBSERVATIONS_MAX,
            samples: limits::WINDOW_SAMPLES_MAX,
            stacks: limits::WINDOW_STACKS_MAX,
            locations: limits::WINDOW_LOCATIONS_MAX,
            processes: limits::WINDOW_PROCESSES_MAX,
        }
    }
}

impl Window {
    /// Opens a window that begins at `start`; one observation stands for `period_ns` of CPU.
    #[must_use]
    pub fn new(start: MonotonicNs, period_ns: u64) -> Self {
        Self::within(WindowLimits::default(), start, period_ns)
    }

    /// As [`Window::new`], with limits of its own.
    pub(crate) fn within(limits: WindowLimits, start: MonotonicNs, period_ns: u64) -> Self {
        Self {
            start,
            period_ns,
            limits,
            processes: Interner::default(),
            accounts: Vec::new(),
            thread_names: Interner::default(),
            stacks: Interner::default(),
            codes: Interner::default(),
            files: HashMap::new(),
            file_list: Vec::new(),
            samples: HashMap::new(),
            folded: Vec::new(),
            observations: 0,
            waits: OpenWaits::default(),
            waits_dropped_ns: 0,
            strangers: 0,
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

    /// Takes one sample, or counts why not.
    pub fn add(&mut self, sample: &NormalizedSample) {
        let Some(process) = self.processes.get_or_insert(&sample.process, self.limits.processes)
        else {
            self.strangers = self.strangers.saturating_add(1);
            return;
        };
        let kept = self.try_add(process, sample);
        self.account(process).count(sample.outcome, kept);
    }

    /// The account of a process of the window.
    fn account(&mut self, process: u32) -> &mut ProcessLedger {
        let process = process as usize;
        if process == self.accounts.len() {
            self.accounts.push(ProcessLedger::default());
        }
        &mut self.accounts[process]
    }

    /// Waits that found no room among those whose holder is sought.
    #[must_use]
    pub const fn spans_dropped(&self) -> u64 {
        self.waits.spans_dropped
    }

    /// Takes time that a thread waited, or counts it as dropped.
    pub fn add_wait(&mut self, wait: &WindowWait<'_>, sum: WaitSum) {
        if self.try_add_wait(wait, sum).is_none() {
            self.waits_dropped_ns = self.waits_dropped_ns.saturating_add(sum.ns);
        }
    }

    fn try_add_wait(&mut self, wait: &WindowWait<'_>, sum: WaitSum) -> Option<()> {
        let WindowWait { process, tid, thread_name, frames, class, facts, .. } = *wait;
        let index = self.processes.get_or_insert(process, self.limits.processes)?;
        self.account(index);
        let stack = self.stack(process.key(), frames).ok()?;
        let thread_name = self.thread_names.get_or_insert(thread_name, self.limits.samples)?;
        let place = wait.place.and_then(|(file, address)| {
            Some(LockPlace { file: self.file(file)?, address: *address })
        });
        let lock = (wait.owners, place);
        let key = WaitKey::new([index, thread_name, stack], tid, class, facts, lock);
        self.waits.add(key, sum, wait.span).then_some(())
    }

    /// The number of a stack.
    fn stack(&mut self, process: ProcessKey, frames: &[Frame]) -> Result<u32, DropReason> {
        let mut stack = std::mem::take(&mut self.scratch);
        stack.clear();
        let located = frames.iter().try_for_each(|frame| {
            stack.push(self.location(process, frame)?);
            Some(())
        });
        let stack_index = located.ok_or(DropReason::Locations).and_then(|()| {
            let index = self.stacks.get_or_insert(&stack[..], self.limits.stacks);
            index.ok_or(DropReason::Stacks)
        });
        self.scratch = stack;
        stack_index
    }

    fn try_add(&mut self, process: u32, sample: &NormalizedSample) -> Result<(), DropReason> {
        if self.observations >= self.limits.observations {
            return Err(DropReason::Observations);
        }
        let stack_index = self.stack(sample.process.key(), &sample.frames);
        let thread_name = self.thread_names.get_or_insert(&sample.thread_name, self.limits.samples);
        let key = SampleKey {
            process,
            tid: sample.tid,
            thread_name: thread_name.ok_or(DropReason::Samples)?,
            stack: stack_index?,
        };
        let position = match self.samples.get(&key) {
            Some(&position) => position,
            None if self.folded.len() >= self.limits.samples => return Err(DropReason::Samples),
            None => {
                self.samples.insert(key, self.folded.len());
                self.folded.push((key, Vec::new()));
                self.folded.len() - 1
            }
        };
        self.folded[position].1.push(sample.time);
        self.observations += 1;
        Ok(())
    }

    /// Gives all samples up: answers the account of each process, and closes the window's.
    pub(super) fn give_up(
        self,
        ledger: &mut Ledger,
    ) -> impl Iterator<Item = (Arc<ProcessIdentity>, ProcessLedger)> {
        let Self { processes, mut accounts, strangers, waits, waits_dropped_ns, .. } = self;
        let waits_ns = waits.ns().saturating_add(waits_dropped_ns);
        ledger.waits.dropped_ns = ledger.waits.dropped_ns.saturating_add(waits_ns);
        for account in &mut accounts {
            let kept = account.received.saturating_sub(account.lost());
            account.drop_also(DropReason::Naming, kept);
            ledger.add_process(account);
        }
        ledger.drop_also(DropReason::Processes, strangers);
        processes.list.into_iter().zip(accounts)
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
        self.codes.get_or_insert(&code, self.limits.locations).map(LocationIndex)
    }

    fn file(&mut self, file: &Arc<MappedFile>) -> Option<u32> {
        if let Some(&index) = self.files.get(&file.id) {
            return Some(index);
        }
        // Each file comes with a location or a wait of its own, so their limits bound files too.
        let index = u32::try_from(self.file_list.len()).ok()?;
        self.files.insert(file.id, index);
        self.file_list.push(Arc::clone(file));
        Some(index)
    }

    /// The window ends in front of `end`: names each distinct location once, and closes the account.
    #[must_use]
    pub fn into_named(
        mut self,
        end: MonotonicNs,
        wall: WallOffset,
        mut ledger: Ledger,
        namer: &mut dyn Namer,
    ) -> NamedWindow {
        self.accounts.iter().for_each(|account| ledger.add_process(account));
        ledger.drop_also(DropReason::Processes, self.strangers);
        ledger.waits.dropped_ns = ledger.waits.dropped_ns.saturating_add(self.waits_dropped_ns);
        let locations = named(&self.codes.list, &self.file_list, namer);
        // Before they are settled: a marker may stand for frames that have no name.
        let names = StackNames::of_all(&self.stacks.list, &locations);
        self.waits.trim(&mut self.stacks.list, &locations);
        let Settled { stacks, places } = settle::settled(&self.stacks.list, &locations);
        let mut processes: Vec<ProcessSamples> = self
            .processes
            .list
            .into_iter()
            .zip(self.accounts)
            .map(|(process, ledger)| ProcessSamples { ledger, ..ProcessSamples::of(process) })
            .collect();
        let named_stacks = (&stacks[..], &locations[..], &self.file_list[..]);
        let thread_names = &self.thread_names.list;
        let told = self.waits.into_processes(&mut processes, thread_names, named_stacks, &places);
        let mut holders = Holders::of(&told, self.period_ns);
        let mut known: HashMap<SampleKey, usize> = HashMap::with_capacity(self.folded.len());
        for (key, times) in self.folded {
            let ProcessSamples { samples, ledger, .. } = &mut processes[key.process as usize];
            ledger.count_frames(StackNames::of(&names, StackIndex(key.stack)), times.len() as u64);
            let key = SampleKey { stack: places[key.stack as usize], ..key };
            holders.add_samples(key.thread(), &times);
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
        holders.into_processes(&mut processes, thread_names);
        let lock_names = lock_names(&processes, &self.file_list, namer);
        for sample in processes.iter_mut().flat_map(|process| &mut process.samples) {
            sample.times.sort_unstable(); // CPUs are drained one after the other.
        }
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
            lock_names,
            ledger,
            naming: NamingCounts::default(),
        }
    }
}

/// Names the variables of files that are locks.
fn lock_names(
    processes: &[ProcessSamples],
    files: &[Arc<MappedFile>],
    namer: &mut dyn Namer,
) -> HashMap<LockPlace, Arc<str>> {
    let waits = processes.iter().flat_map(|process| &process.waits);
    let mut by_file: HashMap<u32, Vec<ElfAddr>> = HashMap::new();
    for LockPlace { file, address } in waits.filter_map(|wait| wait.place) {
        by_file.entry(file).or_default().push(address);
    }
    let mut names = HashMap::new();
    for (file, mut addresses) in by_file {
        addresses.sort_unstable();
        addresses.dedup();
        let found = namer.native(&files[file as usize], &addresses);
        for (address, lines) in addresses.into_iter().zip(found) {
            if let Some(line) = lines.ok().and_then(|lines| lines.into_iter().next()) {
                names.insert(LockPlace { file, address }, line.function.into());
            }
        }
    }
    names
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
    let mut of_files: Vec<_> = files.iter().zip(by_file).collect();
    of_files.retain(|(_, (_, addresses))| !addresses.is_empty());
    of_files.sort_by_key(|(file, _)| namer.is_slow(file.id));
    for (file, (indices, addresses)) in of_files {
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
