//! The loop itself: existing processes first, then records as they come, a window every few seconds.

use self::lasting::LastingLocks;
use self::locks::{GoWaits, LockCounts, Locks};
use self::needs::Needs;
use super::held::{Held, HeldCounts};
use super::kernel_side::Sampling;
use super::off_cpu::{OffCpu, OffCpuCounts};
use super::waiting_before::WaitingBefore;
use super::{
    Control, EngineError, EngineOptions, Ledger, OpenFiles, SealedWindow, WindowSink, preload,
};
use crate::address::Tid;
use crate::aggregate::Window;
use crate::bpf::{ProcessEvent, RawSample, Record, Statistics};
use crate::clock::{MonotonicNs, WallOffset, monotonic_now, nanoseconds};
use crate::elf::ForeignFiles;
use crate::limits::{
    ORDER_SLACK_NS, POLL_BUSY_MS, POLL_MS, SCAN_PROCESSES_PER_POLL, START_SCAN_NS_MAX,
    TABLE_CACHE_BYTES_MAX, THREAD_NAMES_MAX,
};
use crate::normalize::{self, Frame, NormalizedSample};
use crate::process::compile::Compilers;
use crate::process::files::{FileCounts, Files};
use crate::process::host::Host;
use crate::process::inner_threads::InnerThreads;
use crate::process::looks::{LookCounts, Looks};
use crate::process::publish::{PublishCounts, Publisher, WalkTables};
use crate::process::table::{Attribution, ProcessCounts, ProcessTable};
use crate::process::table_cache::{CacheCounts, Keeper, TableCache};
use crate::symbolize::kernel::KernelRegions;
use crate::symbolize::perf_maps::{PerfMapCounts, PerfMaps};
use agent_ebpf::{Counters, WaitCounters};
use hashbrown::HashSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Looks for the last samples once the clocks stand, and the time between two of them.
const FLUSHES_MAX: usize = 20;
const FLUSH_PAUSE: Duration = Duration::from_millis(2);

/// What happened so far, for the metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineCounts {
    /// Processes.
    pub processes: ProcessCounts,
    /// Foreign files.
    pub files: FileCounts,
    /// Looks behind mappings.
    pub looks: LookCounts,
    /// Compiled tables on disk.
    pub cache: CacheCounts,
    /// Tables in the kernel side.
    pub tables: PublishCounts,
    /// Threads that wait.
    pub off_cpu: OffCpuCounts,
    /// Probed locks.
    pub locks: LockCounts,
    /// What the programs of waits counted, when the last window ended.
    pub waits: WaitCounters,
    /// Perf maps.
    pub perf_maps: PerfMapCounts,
    /// Stacks that came along with their samples.
    pub stacks: HeldCounts,
    /// Samples of processes that were not asked for.
    pub unwanted: u64,
    /// Samples received.
    pub received: u64,
    /// Records that wait in the reader for earlier ones.
    pub waiting: u64,
    /// CPUs that came online and could not be sampled, when the last window ended.
    pub cpus_not_sampled: u64,
    /// Kernel memory of unwind tables and mappings, bytes.
    pub table_bytes: u64,
    /// What the programs counted, when the last window ended.
    pub programs: Counters,
    /// Kernel memory of all other BPF maps, bytes.
    pub map_bytes: u64,
}

/// One running engine.
pub struct Engine {
    options: EngineOptions,
    host: Arc<dyn Host>,
    files: Arc<Files>,
    looks: Arc<Looks>,
    locks: Locks,
    cache: Option<Arc<TableCache>>,
    sampler: Box<dyn Sampling>,
    tables: Box<dyn WalkTables>,
    publisher: Publisher,
    intake: Intake,
    before: Statistics,
    /// Samples shipped and not received when the last window ended.
    carried: u64,
    /// What was told of waits when the last window ended.
    waits_before: OffCpuCounts,
    /// Nothing of before is in a window: nobody waited for its tables.
    sampling_since: MonotonicNs,
    window_end: MonotonicNs,
}

/// Where records go: apart from the sampler that hands them out.
struct Intake {
    processes: ProcessTable,
    window: Window,
    perf_maps: Option<Arc<PerfMaps>>,
    kernel_regions: Option<Arc<KernelRegions>>,
    thread_names: HashSet<Arc<str>>,
    needs: Needs,
    held: Held,
    /// Those of waits, which are in [`OffCpu`] too.
    held_waits: Held,
    off_cpu: OffCpu,
    inner_threads: InnerThreads,
    /// Threads that ended since the sums of all were read.
    threads_ended: HashSet<Tid>,
    /// Waits of goroutines that ended in the open window.
    go_waits: GoWaits,
    /// Those that last.
    lasting: LastingLocks,
    /// The account of the open window, as far as it is counted here.
    ledger: Ledger,
    received: u64,
    unwanted: u64,
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("counts", &self.counts()).finish_non_exhaustive()
    }
}

impl Engine {
    /// An engine over this host and kernel side.
    ///
    /// # Errors
    /// When the host refuses a thread.
    pub fn new(
        options: &EngineOptions,
        host: Arc<dyn Host>,
        foreign: &Arc<dyn ForeignFiles>,
        sampler: Box<dyn Sampling>,
        tables: Box<dyn WalkTables>,
    ) -> Result<Self, EngineError> {
        let files = Arc::new(Files::new(Arc::clone(&host), Arc::clone(foreign)));
        let cache = open_cache(options);
        let open_files: Arc<dyn OpenFiles> = Arc::clone(&files) as _;
        let keeper = cache.clone().map(Keeper::start).transpose().map_err(EngineError::Thread)?;
        let compilers =
            Compilers::start(foreign, &open_files, keeper.as_ref()).map_err(EngineError::Thread)?;
        let looks = Arc::new(Looks::start(Arc::clone(&files)).map_err(EngineError::Thread)?);
        let processes = ProcessTable::new(Arc::clone(&host), Arc::clone(&looks), &options.pids);
        let now = monotonic_now();
        Ok(Self {
            intake: Intake {
                processes,
                window: Window::new(now, period_ns(options)),
                perf_maps: options.perf_maps.clone(),
                kernel_regions: options.kernel_regions.clone(),
                thread_names: HashSet::new(),
                needs: Needs::default(),
                held: Held::default(),
                held_waits: Held::default(),
                off_cpu: OffCpu::default(),
                inner_threads: InnerThreads::new(Arc::clone(&host)),
                threads_ended: HashSet::new(),
                go_waits: GoWaits::default(),
                lasting: LastingLocks::default(),
                ledger: Ledger::default(),
                received: 0,
                unwanted: 0,
            },
            options: options.clone(),
            host,
            locks: Locks::start(sampler.as_ref(), &files),
            files,
            looks,
            cache,
            sampler,
            tables,
            publisher: Publisher::new(
                compilers,
                options.table_bytes_max,
                options.perf_maps.clone(),
            ),
            before: Statistics::default(),
            carried: 0,
            waits_before: OffCpuCounts::default(),
            sampling_since: now,
            window_end: now,
        })
    }

    /// What happened so far.
    #[must_use]
    pub fn counts(&self) -> EngineCounts {
        EngineCounts {
            processes: self.intake.processes.counts(),
            files: self.files.counts(),
            looks: self.looks.counts(),
            cache: self.cache.as_ref().map(|cache| cache.counts()).unwrap_or_default(),
            perf_maps: self.intake.perf_maps.as_ref().map(|maps| maps.counts()).unwrap_or_default(),
            tables: self.publisher.counts(),
            stacks: self.intake.held.counts().and(self.intake.held_waits.counts()),
            off_cpu: self.intake.off_cpu.counts(),
            locks: self.locks.counts(&self.before),
            waits: self.before.waits.unwrap_or_default(),
            unwanted: self.intake.unwanted,
            received: self.intake.received,
            waiting: u64::try_from(self.before.waiting).unwrap_or(u64::MAX),
            cpus_not_sampled: u64::try_from(self.before.cpus_not_sampled).unwrap_or(u64::MAX),
            table_bytes: self.tables.bytes(),
            programs: self.before.total().counters,
            map_bytes: self.sampler.map_bytes(),
        }
    }

    /// Reads the processes that exist and loads their tables, so that their first sample is whole
    /// already. What is not done within the budget of time is done on demand.
    ///
    /// # Errors
    /// When processes cannot be listed or the kernel side fails.
    pub fn load_existing(&mut self, control: &Control) -> Result<(), EngineError> {
        let begin = monotonic_now();
        let over = || monotonic_now().since(begin) > START_SCAN_NS_MAX || control.is_stopping();
        let pids = self.intake.processes.existing().map_err(|source| EngineError::Processes {
            path: self.options.proc_root.clone(),
            source,
        })?;
        tracing::info!(processes = pids.len(), "reading the processes that exist");
        for (at, pid) in pids.iter().enumerate() {
            if over() {
                tracing::warn!(left = pids.len() - at, "the rest is read on demand");
                break;
            }
            self.intake.processes.scan(*pid);
            if let Some(set) = self.intake.processes.mappings(*pid) {
                self.publisher.ask_for_tables(&set, *pid);
            }
            // Lifecycle records come in meanwhile; their buffers are small.
            if at % SCAN_PROCESSES_PER_POLL == 0 {
                self.poll(Duration::ZERO)?;
            }
        }
        for file in preload::files(&self.options.preload, self.host.as_ref(), &self.files) {
            self.publisher.preload(&file);
        }
        let asked = self.publisher.outstanding();
        let mut told = monotonic_now();
        while self.publisher.outstanding() > 0 && !over() {
            let wait = Duration::from_millis(POLL_MS);
            self.publisher.wait(wait, &mut self.intake.processes, self.tables.as_mut());
            self.poll(Duration::ZERO)?;
            if monotonic_now().since(told) > 1_000_000_000 {
                told = monotonic_now();
                let left = self.publisher.outstanding();
                tracing::info!(
                    done = asked.saturating_sub(left),
                    of = asked,
                    "making unwind tables"
                );
            }
        }
        for pid in pids {
            self.intake.processes.mark_dirty(pid);
        }
        self.publisher.refresh(&mut self.intake.processes, self.tables.as_mut());
        let counts = self.publisher.counts();
        tracing::info!(
            tables = counts.tables,
            rows = counts.rows,
            taken_ms = monotonic_now().since(begin) / 1_000_000,
            "processes are known"
        );
        Ok(())
    }

    /// Samples until told to stop.
    ///
    /// # Errors
    /// When the kernel side fails.
    pub fn run(&mut self, sink: &mut dyn WindowSink, control: &Control) -> Result<(), EngineError> {
        self.before = self.sampler.statistics()?;
        self.sampler.start()?;
        self.forget_earlier_waits()?;
        let mut waiting_before = WaitingBefore::new(Arc::clone(&self.host), self.pids_before());
        let begin = monotonic_now();
        self.sampling_since = begin;
        self.open_window(begin);
        control.set_sampling();
        tracing::info!("sampling");
        let end = self.options.duration.map(|duration| begin.plus(nanoseconds(duration)));
        loop {
            let now = monotonic_now();
            if control.is_stopping() || end.is_some_and(|end| now >= end) {
                break;
            }
            let busy = self.publisher.is_busy() || !self.intake.held.is_empty();
            let poll_ns = if busy { POLL_BUSY_MS } else { POLL_MS } * 1_000_000;
            let until = end.map_or(u64::MAX, |end| end.since(now));
            let seal_at = self.window_end.plus(ORDER_SLACK_NS);
            let wait_ns = poll_ns.min(until).min(seal_at.since(now).max(1_000_000));
            self.looks.begin_poll();
            self.poll(Duration::from_nanos(wait_ns))?;
            for pid in self.intake.perf_maps.iter().flat_map(|maps| maps.take_changed()) {
                self.intake.processes.mark_dirty(pid);
            }
            self.state_needs();
            self.locks.look(&self.files);
            // Before what it finds is published.
            self.intake.processes.tidy(monotonic_now());
            self.publisher.refresh(&mut self.intake.processes, self.tables.as_mut());
            self.tables.records_known_until(self.sampler.complete_until());
            self.walk_held();
            self.walk_held_waits();
            let refused = waiting_before.go_on(self.sampler.as_mut());
            self.intake.off_cpu.count_before_refused(refused);
            // The poll began after the end: all records of the window have been handed out.
            if now >= seal_at {
                let readings = self.read_threads()?;
                self.wait_for_records(&readings)?;
                self.intake.add_waits(&readings);
                self.seal(self.window_end, sink)?;
                control.set_counts(self.counts());
            }
        }
        self.sampler.stop()?;
        let readings = self.read_threads()?;
        let Self { sampler, intake, .. } = self;
        sampler.flush(&mut |record| intake.take(record));
        intake.add_waits(&readings);
        self.wait_for_held();
        self.flush_rest()?;
        self.seal(monotonic_now(), sink)?;
        control.set_counts(self.counts());
        Ok(())
    }

    /// Takes out what was sent and not seen: a record that another CPU is still writing hides those behind it, and a
    /// virtual CPU may stand still meanwhile.
    fn flush_rest(&mut self) -> Result<(), EngineError> {
        for _ in 0..FLUSHES_MAX {
            let now = self.sampler.statistics()?;
            let ledger = closed(self.intake.ledger.clone(), &self.before, &now, self.carried);
            if ledger.carried_over == 0 {
                break;
            }
            std::thread::sleep(FLUSH_PAUSE);
            let Self { sampler, intake, .. } = self;
            sampler.flush(&mut |record| intake.take(record));
            self.wait_for_held();
        }
        Ok(())
    }

    fn poll(&mut self, timeout: Duration) -> Result<(), EngineError> {
        let Self { sampler, intake, .. } = self;
        sampler.poll(timeout, &mut |record| intake.take(record))?;
        Ok(())
    }

    /// Tells the publisher what the records of the last poll need.
    fn state_needs(&mut self) {
        let Needs { used, wanted, missed } = &mut self.intake.needs;
        for (file, time) in used.drain() {
            self.publisher.used(file, time);
        }
        for file in wanted.drain() {
            self.publisher.wanted(file);
        }
        for (pid, time) in missed.drain(..) {
            // It may have been published since the record was taken in.
            if time >= self.sampling_since && self.intake.processes.is_behind(pid, time) {
                self.publisher.missed(pid, time);
            }
            self.intake.processes.needed(pid);
        }
    }

    fn open_window(&mut self, start: MonotonicNs) {
        self.window_end = start.plus(nanoseconds(self.options.window));
        self.intake.window = Window::new(start, period_ns(&self.options));
        self.intake.ledger = Ledger::default();
    }

    /// Closes the window in front of `end` and opens the next one.
    fn seal(&mut self, end: MonotonicNs, sink: &mut dyn WindowSink) -> Result<(), EngineError> {
        self.sampler.follow_cpus();
        self.tell_lasting_locks(end);
        let now = self.sampler.statistics()?;
        let before = std::mem::replace(&mut self.before, now);
        let counted = std::mem::take(&mut self.intake.ledger);
        let mut ledger = closed(counted, &before, &self.before, self.carried);
        let told = self.intake.off_cpu.counts();
        let told_before = std::mem::replace(&mut self.waits_before, told);
        ledger.waits = waits::closed((&before, &self.before), (&told_before, &told));
        self.carried = ledger.carried_over;
        let period_ns = period_ns(&self.options);
        let next = Window::new(end, period_ns);
        let window = std::mem::replace(&mut self.intake.window, next);
        self.intake.off_cpu.count_spans_dropped(window.spans_dropped());
        let sealed = SealedWindow { window, end, wall: WallOffset::read(), period_ns, ledger };
        let files: Arc<dyn OpenFiles> = Arc::clone(&self.files) as _;
        sink.window(sealed, &files);
        self.open_window(end);
        let window_ns = nanoseconds(self.options.window);
        let waits = std::mem::take(&mut self.intake.go_waits);
        let shifts = self.locks.seal(&self.files, (&before, &self.before), (waits, window_ns));
        if let Err(error) = self.sampler.thin_goroutines(&shifts) {
            tracing::warn!(%error, "the waits of Go programs are not thinned");
        }
        self.files.tidy();
        let again = self.publisher.tidy(self.tables.as_mut());
        self.intake.processes.mark_dirty_by_file(&again);
        Ok(())
    }
}

impl Intake {
    fn take(&mut self, record: Record) {
        match record {
            Record::Sample(sample) => {
                if let Some(sample) = self.hold(sample) {
                    self.sample(&sample);
                }
            }
            Record::UnknownMapping { pid, address, time } => {
                self.needs.wanted.extend(self.processes.unknown(pid, address, time));
                if self.processes.is_behind(pid, time) {
                    self.needs.missed.push((pid, time));
                }
            }
            Record::LockWait(wait) => self.lock_wait(&wait),
            Record::Inherited { pid, entry, time } => self.processes.inherited(pid, entry, time),
            Record::Process(ProcessEvent::KernelSymbol { time, event }) => {
                if let Some(regions) = &self.kernel_regions {
                    regions.apply(event, time);
                }
            }
            Record::Wait(wait) => self.wait(wait),
            Record::WaitEnd { tid, since, end } => self.off_cpu.ended(tid, since, end),
            Record::ThreadEnd { tid, time, thread } => self.thread_ended(tid, time, &thread),
            Record::Process(event) => {
                if let (ProcessEvent::Lost { .. }, Some(regions)) = (&event, &self.kernel_regions) {
                    regions.lost(monotonic_now());
                }
                match (&self.perf_maps, &event) {
                    (Some(maps), &ProcessEvent::Comm { pid, time, exec: true, .. }) => {
                        maps.executed(pid, time);
                    }
                    (Some(maps), &ProcessEvent::Exit { pid, tid, .. }) if pid.0 == tid.0 => {
                        maps.ended(pid);
                    }
                    _ => {}
                }
                self.processes.apply(event);
            }
        }
    }

    /// Holds a sample back that may become whole, and says what it needs; gives back any other.
    fn hold(&mut self, sample: RawSample) -> Option<RawSample> {
        // What nobody asked for is not worth waiting for.
        if !Held::may_become_whole(&sample) || !self.processes.is_tracked(sample.pid) {
            return Some(sample);
        }
        let mappings = self.processes.attribute_held(&sample).mappings;
        let frames = normalize::frames(&sample, mappings.as_deref());
        self.needs.state(&sample, &frames, &self.processes);
        self.held.offer(sample, monotonic_now())
    }

    fn sample(&mut self, sample: &RawSample) {
        if !self.processes.is_tracked(sample.pid) {
            self.ledger.unwanted += 1;
            self.unwanted += 1;
            return;
        }
        let sample = self.normalized(sample);
        self.ledger.received += 1;
        self.ledger.outcomes[sample.outcome as usize] += 1;
        self.received += 1;
        self.window.add(&sample);
    }

    /// A sample as a window takes it; what it says of tables is noted.
    fn normalized(&mut self, sample: &RawSample) -> NormalizedSample {
        let attribution = self.processes.attribute(sample);
        self.normalized_by(attribution, sample)
    }

    /// The same where it is known whose it is.
    fn normalized_by(&mut self, attribution: Attribution, sample: &RawSample) -> NormalizedSample {
        let cut;
        let sample = if attribution.sound_frames < sample.user.len() {
            cut = sample.cut_behind(attribution.sound_frames);
            &cut
        } else {
            sample
        };
        let mappings = attribution.mappings.as_deref();
        let outcome = normalize::outcome(sample, mappings);
        let mut frames = normalize::frames(sample, mappings);
        if let Some(regions) = &self.kernel_regions {
            regions.place(&mut frames, sample.time);
        }
        let anonymous = |frame: &Frame| matches!(frame, Frame::Anonymous { .. });
        if let Some(perf_maps) = &self.perf_maps
            && frames.iter().any(anonymous)
        {
            perf_maps.sighted(attribution.process.key());
        }
        self.needs.state(sample, &frames, &self.processes);
        NormalizedSample {
            process: attribution.process,
            tid: sample.tid,
            thread_name: self.thread_name(&sample.comm),
            cpu: sample.cpu,
            time: sample.time,
            outcome,
            frames,
        }
    }

    /// Equal names are one string: there are few, and every sample has one.
    fn thread_name(&mut self, comm: &[u8]) -> Arc<str> {
        let name = String::from_utf8_lossy(comm);
        if let Some(known) = self.thread_names.get(name.as_ref()) {
            return Arc::clone(known);
        }
        if self.thread_names.len() >= THREAD_NAMES_MAX {
            self.thread_names.clear();
        }
        let name: Arc<str> = name.into();
        self.thread_names.insert(Arc::clone(&name));
        name
    }
}

/// The account of a window: what the programs counted between two readings, and what was counted here.
/// What the programs counted is never changed by what was: a sample that is counted as shipped at the end
/// of one window may come out of the ring in the next. `carried_in` samples were shipped before and not
/// received.
fn closed(mut ledger: Ledger, before: &Statistics, now: &Statistics, carried_in: u64) -> Ledger {
    let (old, new) = (before.total(), now.total());
    ledger.cpus = u64::try_from(now.cpus.len()).unwrap_or(u64::MAX);
    ledger.ticks_expected = new.ticks_expected.saturating_sub(old.ticks_expected);
    ledger.asleep = new.asleep.saturating_sub(old.asleep);
    let (old, new) = (&old.counters, &new.counters);
    ledger.runs = new.runs.saturating_sub(old.runs);
    ledger.idle = new.idle.saturating_sub(old.idle);
    ledger.filtered = new.filtered.saturating_sub(old.filtered);
    ledger.shipped = new.shipped.saturating_sub(old.shipped);
    ledger.lost_in_ring = new.lost.saturating_sub(old.lost);
    ledger.malformed = now.malformed.saturating_sub(before.malformed);
    ledger.carried_in = carried_in;
    let taken_out = [ledger.received, ledger.unwanted, ledger.malformed];
    ledger.carried_over = taken_out
        .iter()
        .fold(carried_in.saturating_add(ledger.shipped), |left, out| left.saturating_sub(*out));
    ledger.program_run_ns = new.run_ns.saturating_sub(old.run_ns);
    ledger
}

/// The cache of compiled tables, if one is wanted and can be had: without it tables are compiled.
fn open_cache(options: &EngineOptions) -> Option<Arc<TableCache>> {
    let folder = options.table_cache.as_ref()?;
    match TableCache::open(folder, TABLE_CACHE_BYTES_MAX) {
        Ok(cache) => Some(Arc::new(cache)),
        Err(error) => {
            tracing::info!(%error, folder = %folder.display(), "compiled tables are not kept");
            None
        }
    }
}

fn period_ns(options: &EngineOptions) -> u64 {
    1_000_000_000 / u64::from(options.frequency_hz.max(1))
}

mod held;
mod lasting;
mod locks;
mod needs;
mod thinning;
mod waits;

#[cfg(test)]
mod account_tests;
#[cfg(test)]
mod tests;
