//! The running sampler: owns programs, clocks and rings, and hands out what they write.

use super::go_locks::{GoLocks, LockProbes};
use super::idle::{self, IdleTime};
use super::libc_locks::LibcProbes;
use super::lifecycle::{self, Malformed};
use super::lock_counters::Counted;
use super::log::ProgramLog;
use super::order::Order;
use super::perf::{CpuClock, LifecycleRing, online_cpus};
use super::probe_programs::ProbePrograms;
use super::statistics::{CpuStatistics, Statistics};
use super::waits::Waits;
use super::{
    BpfError, Form, Options, ProcessEvent, Record, Tables, ThreadReading, WaitingGoroutine, decode,
    loader,
};
use crate::address::{Pid, Tid};
use crate::clock::{MonotonicNs, monotonic_now};
use crate::limits::{COUNTER_READINGS_MAX, FREQUENCY_HZ_MAX, ORDER_SLACK_NS, POLL_RECORDS_MAX};
use agent_ebpf::limits::{
    RING_BYTES_FOR_STACKS, RING_BYTES_MAX, RING_BYTES_MIN, RING_BYTES_PER_SAMPLE, RING_SECONDS,
};
use agent_ebpf::{Counters, UserRegisters, WaitingThread};
use aya::Ebpf;
use aya::maps::{HashMap, MapData, PerCpuArray, PerCpuValues, RingBuf};
use rustix::event::epoll;
use std::cell::{Cell, RefCell};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

/// How long a record waits for its turn.
const ORDER_SLACK: Duration = Duration::from_nanos(ORDER_SLACK_NS);

/// Samples every CPU that is online. Dropping it stops the clocks, detaches and
/// unloads everything, except what a [`Tables`] still holds.
pub struct Sampler {
    clocks: Vec<CpuClock>,
    lifecycle: Vec<LifecycleRing>,
    epoll: OwnedFd,
    records: RingBuf<MapData>,
    counters: PerCpuArray<MapData, Counters>,
    /// `None` where waits are not measured.
    waits: Option<Waits>,
    /// Why not, if they were asked for.
    waits_refused: Option<BpfError>,
    idle_time: RefCell<IdleTime>,
    filter: HashMap<MapData, u32, u8>,
    order: Order,
    /// Every record of an earlier time has been handed out.
    complete_until: MonotonicNs,
    form: Form,
    registers: UserRegisters,
    map_bytes: u64,
    build_ids: bool,
    lifecycle_lost: u64,
    frequency_hz: u32,
    cpus_not_sampled: usize,
    running: Cell<bool>,
    malformed: u64,
    lifecycle_malformed: u64,
    /// When the filter was filled: from then on the programs add children by themselves.
    filtered_since: Option<MonotonicNs>,
    go_locks: Option<GoLocks>,
    libc_locks: Option<LibcProbes>,
    lock_counters: Counted,
    program_log: Option<ProgramLog>,
    /// Programs and their links: last, so that the clocks are gone before it.
    _ebpf: Ebpf,
}

impl Sampler {
    /// Loads and attaches everything; the lifecycle records begin at once, the samples with
    /// [`Sampler::start`]. The tables are a value of their own, so that they can be filled while records
    /// are handed out.
    ///
    /// # Errors
    /// If the options are out of range or the kernel refuses a step; each error says what is missing.
    pub fn load(options: &Options) -> Result<(Self, Tables), BpfError> {
        check(options)?;
        let cpus = online_cpus()?;
        let ring_bytes =
            options.ring_bytes.unwrap_or_else(|| ring_bytes(&cpus, options.frequency_hz));
        let loader::Loaded { mut ebpf, form, registers, filtered, knows_tasks, waits } =
            loader::load(options, ring_bytes)?;
        let map_bytes = loader::map_bytes(&ebpf)?;
        let (lifecycle, build_ids) = open_lifecycle(&cpus)?;
        loader::attach_lifecycle(&mut ebpf, knows_tasks)?;
        let clocks = cpus.iter().map(|cpu| CpuClock::open(*cpu, options.frequency_hz));
        let clocks = clocks.collect::<Result<Vec<_>, _>>()?;
        let program = loader::sampler(&mut ebpf, form)?;
        clocks.iter().try_for_each(|clock| clock.attach(program.as_fd()))?;
        let libc_wanted = options.libc_locks && matches!(waits, Ok(true));
        let (go_locks, libc_locks) = load_probes(&mut ebpf, options, libc_wanted);
        let tables = Tables::take(&mut ebpf, options.table_bytes_max)?;
        let records: RingBuf<MapData> = loader::take_map(&mut ebpf, "RECORDS")?;
        let (waits, waits_refused) = match waits {
            Ok(wanted) => (wanted.then(|| Waits::take(&mut ebpf)).transpose()?, None),
            Err(error) => (None, Some(error)),
        };
        let epoll = watch(&records, &lifecycle)?;
        let mut sampler = Self {
            clocks,
            lifecycle,
            epoll,
            records,
            counters: loader::take_map(&mut ebpf, "COUNTERS")?,
            waits,
            waits_refused,
            idle_time: RefCell::default(),
            filter: loader::take_map(&mut ebpf, "FILTER")?,
            order: Order::default(),
            complete_until: MonotonicNs(0),
            form,
            registers,
            map_bytes,
            build_ids,
            lifecycle_lost: 0,
            frequency_hz: options.frequency_hz,
            cpus_not_sampled: 0,
            running: Cell::new(false),
            malformed: 0,
            lifecycle_malformed: 0,
            filtered_since: None,
            go_locks,
            libc_locks,
            lock_counters: Counted::take(&mut ebpf)?,
            program_log: options.bpf_log.then(|| ProgramLog::open(&mut ebpf)).transpose()?,
            _ebpf: ebpf,
        };
        for pid in options.pid_filter.iter().flatten().filter(|_| filtered) {
            sampler.include(*pid)?;
        }
        sampler.filtered_since = filtered.then(monotonic_now);
        Ok((sampler, tables))
    }

    /// Starts the clocks.
    ///
    /// # Errors
    /// If the kernel refuses; no capability is needed.
    pub fn start(&self) -> Result<(), BpfError> {
        self.idle_time.borrow_mut().start();
        self.running.set(true);
        self.clocks.iter().try_for_each(|clock| clock.enable(true))
    }

    /// Stops the clocks. What is in the rings stays, and [`Sampler::flush`] hands it out.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn stop(&self) -> Result<(), BpfError> {
        self.running.set(false);
        self.ticks_expected()?; // wakes CPUs that sleep, so that their late ticks are counted
        self.clocks.iter().try_for_each(|clock| clock.enable(false))
    }

    /// Waits until the kernel wakes the reader or `timeout` is over, then hands out all records that are
    /// complete, in the order of their times: an event of a process goes before samples of later time.
    /// Notes of unknown mappings wait for their turn too: what is read because of them must not be taken for
    /// the program that ran before an exec that is still to be told of. While one waits, the next look is not
    /// far: nobody else wakes the reader. Returns how many records were handed out.
    ///
    /// # Errors
    /// If waiting fails.
    pub fn poll(
        &mut self,
        timeout: Duration,
        each: &mut impl FnMut(Record),
    ) -> Result<usize, BpfError> {
        let patience = if self.order.holds_note() { ORDER_SLACK } else { timeout };
        self.wait(timeout.min(patience))?;
        let before = monotonic_now();
        let drained = self.drain();
        // If samples are left in a ring, what was written up to the last one is all that is known.
        let known = drained.last.filter(|_| drained.more).map_or(before, |last| last.min(before));
        let known = drained.waits_left_from.map_or(known, |last| last.min(known));
        let handed_out = self.order.deliver(known, each);
        self.complete_until = MonotonicNs(known.0.saturating_sub(ORDER_SLACK_NS));
        Ok(handed_out)
    }

    /// Every record that was written before this time has been handed out.
    #[must_use]
    pub fn complete_until(&self) -> MonotonicNs {
        self.complete_until
    }

    /// Hands out everything that was written so far, without waiting.
    pub fn flush(&mut self, each: &mut impl FnMut(Record)) -> usize {
        // Bounded by the size of the ring: whoever flushes has stopped the clocks.
        loop {
            let Drained { more, waits_left_from, .. } = self.drain();
            if !more && waits_left_from.is_none() {
                break;
            }
        }
        self.order.flush(each)
    }

    /// Samples `pid` too, where a filter was asked for.
    ///
    /// # Errors
    /// If the filter is full or the kernel refuses.
    pub fn include(&mut self, pid: Pid) -> Result<(), BpfError> {
        self.filter.insert(pid.0, 1, 0).map_err(BpfError::map("FILTER"))
    }

    /// Samples `pid` no more, where a filter was asked for.
    ///
    /// # Errors
    /// If the kernel refuses, or `pid` was not included.
    pub fn exclude(&mut self, pid: Pid) -> Result<(), BpfError> {
        self.filter.remove(&pid.0).map_err(BpfError::map("FILTER"))
    }

    /// What attaches to the locks of Go programs; `None` if it was not asked for, or the kernel refuses it.
    #[must_use]
    pub fn lock_probes(&self) -> Option<LockProbes> {
        self.go_locks.as_ref().map(GoLocks::probes)
    }

    /// What attaches to the locks of C libraries; `None` if it was not asked for, or the kernel refuses it.
    #[must_use]
    pub fn libc_probes(&self) -> Option<LibcProbes> {
        self.libc_locks.clone()
    }

    /// Gives up probing C libraries if each place would be attached by itself; true if that is so.
    pub fn forget_single_libc_probes(&mut self) -> bool {
        self.libc_locks.take_if(|probes| !probes.are_linked()).is_some()
    }

    /// What was counted so far.
    ///
    /// # Errors
    /// If the kernel refuses to show its counters.
    pub fn statistics(&self) -> Result<Statistics, BpfError> {
        // First the clocks: reading one wakes its CPU, and a tick that is late is then counted.
        let ticks = self.ticks_expected()?;
        let counters = self.settled_counters()?;
        let (idle, mut idle_time) = (idle::read(), self.idle_time.borrow_mut());
        let of_cpu = |(clock, ticks_expected): (&CpuClock, u64)| {
            let index = usize::try_from(clock.cpu).unwrap_or(usize::MAX);
            let counters = counters.get(index).copied().unwrap_or_default();
            let account = (ticks_expected, &counters);
            let asleep = idle_time.asleep(clock.cpu, &idle, clock.period_ns, account);
            CpuStatistics { cpu: clock.cpu, ticks_expected, asleep, counters }
        };
        let cpus = self.clocks.iter().zip(ticks).map(of_cpu).collect();
        Ok(Statistics {
            cpus,
            lifecycle_lost: self.lifecycle_lost,
            malformed: self.malformed,
            lifecycle_malformed: self.lifecycle_malformed,
            waits: self.waits.as_ref().map(Waits::counters).transpose()?,
            waits_malformed: self.waits.as_ref().map_or(0, |waits| waits.malformed),
            locks: self.lock_counters.read()?,
            cpus_not_sampled: self.cpus_not_sampled,
            waiting: self.order.len(),
        })
    }

    /// Opens anew what died with a CPU that went offline and came back, and what one that was plugged in needs: the
    /// kernel takes the perf events of a CPU from it when it goes, and gives none back (`perf_event_exit_cpu`,
    /// kernel/events/core.c). What cannot be opened is counted as a CPU that is not sampled.
    pub fn follow_cpus(&mut self) {
        if !self.running.get() {
            return;
        }
        let known = std::mem::take(&mut self.cpus_not_sampled);
        for cpu in online_cpus().unwrap_or_default() {
            let clock = self.clocks.iter_mut().find(|clock| clock.cpu == cpu);
            if clock.is_some_and(|clock| !clock.is_dead()) {
                continue;
            }
            match self.open_cpu(cpu) {
                Ok(()) => tracing::info!(cpu, "the CPU came online, and is sampled"),
                Err(error) => {
                    self.cpus_not_sampled += 1;
                    if self.cpus_not_sampled > known {
                        tracing::warn!(cpu, %error, "the CPU came online, and is not sampled");
                    }
                }
            }
        }
    }

    /// A running clock and a ring for `cpu`, in place of those that it had.
    fn open_cpu(&mut self, cpu: u32) -> Result<(), BpfError> {
        let mut clock = CpuClock::open(cpu, self.frequency_hz)?;
        clock.attach(loader::sampler(&mut self._ebpf, self.form)?.as_fd())?;
        let ring = LifecycleRing::open(cpu, self.build_ids)?;
        also_watch(&self.epoll, &ring)?;
        self.drain_lifecycle();
        self.lifecycle.retain(|ring| ring.cpu != cpu);
        self.lifecycle.push(ring);
        // Nobody knows what happened there meanwhile.
        self.lifecycle_lost += 1;
        self.order.push(monotonic_now(), Record::Process(ProcessEvent::Lost { count: 1 }));
        if let Some(at) = self.clocks.iter().position(|clock| clock.cpu == cpu) {
            clock.follow(&self.clocks[at]);
            self.clocks.remove(at);
        }
        self.idle_time.borrow_mut().begin(cpu);
        clock.enable(true)?;
        self.clocks.push(clock);
        Ok(())
    }

    /// Ticks that each clock should have made so far.
    fn ticks_expected(&self) -> Result<Vec<u64>, BpfError> {
        self.clocks.iter().map(CpuClock::ticks_expected).collect()
    }

    /// The counters of all CPUs, each between two runs of its program. A reading copies a CPU's counters
    /// while they change, without a lock; a run takes about 15 us, so the next reading mostly finds it over.
    fn settled_counters(&self) -> Result<PerCpuValues<Counters>, BpfError> {
        let read = || self.counters.get(&0, 0).map_err(BpfError::map("COUNTERS"));
        let settled = |counters: &Counters| {
            let Counters { runs, idle, shipped, lost, filtered, .. } = counters;
            *runs == idle + shipped + lost + filtered
        };
        let mut counters = read()?;
        for _ in 1..COUNTER_READINGS_MAX {
            if counters.iter().all(settled) {
                break;
            }
            counters = read()?;
        }
        Ok(counters)
    }

    /// Why the waits of threads are not measured though they were asked for.
    #[must_use]
    pub fn waits_refused(&self) -> Option<&BpfError> {
        self.waits_refused.as_ref()
    }

    /// Reads the sums of all threads that waited once; none where waits are not measured.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn threads(&self, each: &mut dyn FnMut(ThreadReading)) -> Result<(), BpfError> {
        self.waits.as_ref().map_or(Ok(()), |waits| waits.threads(each))
    }

    /// A thread waits that no switch told of; false if it is known, or there is no room.
    pub fn begin_wait(&mut self, tid: Tid, thread: &WaitingThread) -> bool {
        self.waits.as_mut().is_some_and(|waits| waits.begin(tid, thread))
    }

    /// It did not wait: forgets what was begun, unless a switch has told of it since.
    pub fn forget_wait(&mut self, tid: Tid, begun: &WaitingThread) {
        if let Some(waits) = &mut self.waits {
            waits.forget(tid, begun);
        }
    }

    /// Goroutines that wait for a lock now; none where they are not probed.
    ///
    /// # Errors
    /// If the kernel refuses to show them.
    pub fn goroutines(&self, each: &mut dyn FnMut(WaitingGoroutine)) -> Result<(), BpfError> {
        self.go_locks.as_ref().map_or(Ok(()), |locks| locks.waiting(each))
    }

    /// One of them is gone, and no probe told of it: its program is not probed any more, or over.
    pub fn forget_goroutine(&mut self, waiting: &WaitingGoroutine) {
        if let Some(locks) = &mut self.go_locks {
            locks.forget(waiting);
        }
    }

    /// Follows one wait of so many goroutines, as a power of two, in these processes, and all in others.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn thin_goroutines(
        &mut self,
        shifts: &hashbrown::HashMap<Pid, u32>,
    ) -> Result<(), BpfError> {
        self.go_locks.as_mut().map_or(Ok(()), |locks| locks.thin(shifts))
    }

    /// Kernel memory of the maps of fixed size, bytes; the slabs of the tables come on top
    /// ([`Tables::sizes`]).
    #[must_use]
    pub fn map_bytes(&self) -> u64 {
        self.map_bytes
    }

    /// The form of the programs that this kernel took.
    #[must_use]
    pub fn form(&self) -> Form {
        self.form
    }

    /// How user registers are found when the clock hits the kernel.
    #[must_use]
    pub fn user_registers(&self) -> UserRegisters {
        self.registers
    }

    /// True if the kernel puts build ids into lifecycle records (5.12 and newer).
    #[must_use]
    pub fn kernel_build_ids(&self) -> bool {
        self.build_ids
    }

    /// Processes in the filter.
    #[cfg(test)]
    pub(super) fn included(&self) -> usize {
        self.filter.keys().filter(Result::is_ok).count()
    }

    /// The clocks, for tests that put another beside them.
    #[cfg(test)]
    pub(super) fn clocks(&self) -> &[CpuClock] {
        &self.clocks
    }

    fn wait(&self, timeout: Duration) -> Result<(), BpfError> {
        let timeout = rustix::time::Timespec::try_from(timeout).ok();
        let mut events = Vec::with_capacity(64);
        match epoll::wait(
            &self.epoll,
            rustix::buffer::spare_capacity(&mut events),
            timeout.as_ref(),
        ) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(errno) => Err(BpfError::System { call: "epoll_wait", source: errno.into() }),
        }
    }

    /// Takes everything out of the rings: samples first. An event that precedes a sample that was taken is
    /// then in the lifecycle rings already.
    fn drain(&mut self) -> Drained {
        if let Some(log) = &mut self.program_log {
            log.flush();
        }
        let mut drained = Drained { last: None, more: true, waits_left_from: None };
        for _ in 0..POLL_RECORDS_MAX {
            let Some(item) = self.records.next() else {
                drained.more = false;
                break;
            };
            match decode::record(&item) {
                Some(Record::Sample(sample)) => {
                    drained.last = Some(sample.time);
                    self.order.push(sample.time, Record::Sample(sample));
                }
                Some(Record::UnknownMapping { pid, address, time }) => {
                    drained.last = Some(time);
                    self.order.push(time, Record::UnknownMapping { pid, address, time });
                }
                Some(Record::Inherited { pid, entry, time }) => {
                    drained.last = Some(time);
                    self.order.push(time, Record::Inherited { pid, entry, time });
                }
                None if decode::is_note(&item) => self.lifecycle_malformed += 1,
                Some(_) | None => self.malformed += 1,
            }
        }
        if let Some(waits) = &mut self.waits {
            let order = &mut self.order;
            drained.waits_left_from =
                waits.drain(POLL_RECORDS_MAX, &mut |time, record| order.push(time, record));
        }
        let (order, malformed) = (&mut self.order, &mut self.malformed);
        if let Some(locks) = &mut self.go_locks {
            *malformed += locks.drain(&mut |time, record| order.push(time, record));
        }
        self.drain_lifecycle();
        drained
    }

    fn drain_lifecycle(&mut self) {
        let mut children = Vec::new();
        let (order, malformed, lost) =
            (&mut self.order, &mut self.lifecycle_malformed, &mut self.lifecycle_lost);
        let filtered_since = self.filtered_since;
        let mut keep = |time, event| {
            match event {
                ProcessEvent::Lost { count } => *lost += count,
                ProcessEvent::Fork { pid, parent, .. } if filtered_since > Some(time) => {
                    children.push((pid, parent));
                }
                _ => {}
            }
            order.push(time, Record::Process(event));
        };
        for ring in &mut self.lifecycle {
            let in_step =
                ring.drain(POLL_RECORDS_MAX, &mut |record| match lifecycle::event(record) {
                    Ok(Some((time, event))) => keep(time, event),
                    Ok(None) => {}
                    Err(Malformed) => *malformed += 1,
                });
            if !in_step {
                // How many there were is not known; that there were some is what counts.
                keep(monotonic_now(), ProcessEvent::Lost { count: 1 });
            }
        }
        for (child, parent) in children {
            if self.filter.get(&parent.0, 0).is_ok() && self.include(child).is_err() {
                tracing::warn!(child = child.0, "a child is not sampled: the filter is full");
            }
        }
    }
}

/// The probes of Go and of C libraries that are wanted. A kernel that refuses the programs costs what they tell, nothing
/// else.
fn load_probes(
    ebpf: &mut Ebpf,
    options: &Options,
    libc: bool,
) -> (Option<GoLocks>, Option<LibcProbes>) {
    if !options.go_locks && !libc {
        return (None, None);
    }
    let programs = ProbePrograms::of(ebpf, options.verifier_log);
    let go = options.go_locks.then(|| GoLocks::load(ebpf, &programs));
    let libc = libc.then(|| LibcProbes::load(ebpf, &programs));
    let not_probed =
        |whose| move |error: &BpfError| tracing::warn!(%error, "locks of {whose} are not probed");
    let go = go.and_then(|it| it.inspect_err(not_probed("Go")).ok());
    (go, libc.and_then(|it| it.inspect_err(not_probed("C libraries")).ok()))
}

/// What one look into the rings brought.
struct Drained {
    /// Time of the last sample or note.
    last: Option<MonotonicNs>,
    /// True if samples are left in the ring.
    more: bool,
    /// Time of the last record of waits, if some are left in their ring.
    waits_left_from: Option<MonotonicNs>,
}

impl std::fmt::Debug for Sampler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sampler").field("form", &self.form).finish_non_exhaustive()
    }
}

fn check(options: &Options) -> Result<(), BpfError> {
    let hz = options.frequency_hz;
    if hz == 0 || hz > FREQUENCY_HZ_MAX {
        return Err(BpfError::Frequency { hz, max: FREQUENCY_HZ_MAX });
    }
    match options.ring_bytes {
        Some(bytes) if !bytes.is_power_of_two() || bytes < 4096 => {
            Err(BpfError::RingBytes { bytes })
        }
        _ => Ok(()),
    }
}

/// The ring buffer that holds the samples of all CPUs while the reader is away.
fn ring_bytes(cpus: &[u32], frequency_hz: u32) -> u32 {
    let cpus = u32::try_from(cpus.len()).unwrap_or(u32::MAX);
    let samples =
        cpus.saturating_mul(frequency_hz).saturating_mul(RING_BYTES_PER_SAMPLE * RING_SECONDS);
    let stacks = cpus.saturating_mul(RING_BYTES_FOR_STACKS);
    samples.saturating_add(stacks).clamp(RING_BYTES_MIN, RING_BYTES_MAX).next_power_of_two()
}

/// Opens the lifecycle rings, with build ids if the kernel has them.
fn open_lifecycle(cpus: &[u32]) -> Result<(Vec<LifecycleRing>, bool), BpfError> {
    let open = |build_id| {
        cpus.iter().map(|cpu| LifecycleRing::open(*cpu, build_id)).collect::<Result<Vec<_>, _>>()
    };
    match open(true) {
        Ok(rings) => Ok((rings, true)),
        Err(BpfError::Perf { source, .. }) if source.raw_os_error() == Some(libc::EINVAL) => {
            open(false).map(|rings| (rings, false))
        }
        Err(error) => Err(error),
    }
}

/// One descriptor to wait on. Edge-triggered: a ring that merely holds data does not end the wait, only a
/// writer that wakes the reader does.
fn watch(records: &RingBuf<MapData>, lifecycle: &[LifecycleRing]) -> Result<OwnedFd, BpfError> {
    let watched = epoll::create(epoll::CreateFlags::CLOEXEC)
        .map_err(|errno| BpfError::System { call: "epoll_create", source: errno.into() })?;
    also_watch(&watched, records)?;
    lifecycle.iter().try_for_each(|ring| also_watch(&watched, ring))?;
    Ok(watched)
}

fn also_watch(watched: &OwnedFd, source: impl AsFd) -> Result<(), BpfError> {
    let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
    epoll::add(watched, source, epoll::EventData::new_u64(0), flags)
        .map_err(|errno| BpfError::System { call: "epoll_ctl", source: errno.into() })
}
