//! The waits of threads as the kernel side hands them out: their ring, the map of threads, and what was counted.
//! It decides nothing about them.

use super::{BpfError, Record, ThreadReading, decode, loader, raw};
use crate::address::Tid;
use crate::clock::{MonotonicNs, monotonic_now};
use crate::limits::THREADS_PER_READING;
use agent_ebpf::limits::{
    RING_BYTES_MAX, RING_BYTES_MIN, THREADS_MAX, THREADS_MIN, WAIT_RING_BYTES_PER_CPU,
};
use agent_ebpf::{WaitCounters, WaitingThread};
use aya::Ebpf;
use aya::maps::{HashMap, IterableMap as _, MapData, PerCpuArray, RingBuf};
use std::os::fd::AsFd as _;

/// Ring, map and counters of waits.
pub(super) struct Waits {
    ring: RingBuf<MapData>,
    threads: HashMap<MapData, u32, WaitingThread>,
    counters: PerCpuArray<MapData, WaitCounters>,
    /// Records that could not be decoded.
    pub(super) malformed: u64,
}

/// Threads in their map, and bytes of the ring.
pub(super) fn sizes() -> (u32, u32) {
    let cpus = super::perf::online_cpus().map_or(1, |cpus| cpus.len());
    let bytes = u32::try_from(cpus).unwrap_or(u32::MAX).saturating_mul(WAIT_RING_BYTES_PER_CPU);
    let ring_bytes = bytes.clamp(RING_BYTES_MIN, RING_BYTES_MAX).next_power_of_two();
    let threads = threads_of_host().saturating_mul(4).next_power_of_two();
    (u32::try_from(threads.clamp(THREADS_MIN, THREADS_MAX)).unwrap_or(u32::MAX), ring_bytes)
}

/// Threads that exist now: the second half of the fourth field (`proc_loadavg(5)`).
fn threads_of_host() -> usize {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let field = text.split_whitespace().nth(3).and_then(|field| field.split_once('/'));
    field.and_then(|(_, threads)| threads.parse().ok()).unwrap_or(THREADS_MIN)
}

impl Waits {
    pub(super) fn take(ebpf: &mut Ebpf) -> Result<Self, BpfError> {
        Ok(Self {
            ring: loader::take_map(ebpf, "WAITS")?,
            threads: loader::take_map(ebpf, "THREADS")?,
            counters: loader::take_map(ebpf, "WAIT_COUNTERS")?,
            malformed: 0,
        })
    }

    /// Hands out what is in the ring, at most so many records. The time of the last one if more are left.
    pub(super) fn drain(
        &mut self,
        records_max: usize,
        each: &mut impl FnMut(MonotonicNs, Record),
    ) -> Option<MonotonicNs> {
        let mut last = None;
        for _ in 0..records_max {
            let item = self.ring.next()?;
            match decode::wait(&item) {
                Some((time, record)) => {
                    last = Some(time);
                    each(time, record);
                }
                None => self.malformed += 1,
            }
        }
        last
    }

    /// Reads all threads.
    pub(super) fn threads(&self, each: &mut dyn FnMut(ThreadReading)) -> Result<(), BpfError> {
        let map = self.threads.map().fd().as_fd();
        let mut reading = raw::Batches::<u32, WaitingThread>::new(THREADS_PER_READING);
        loop {
            let before = monotonic_now();
            let more = reading.next(map)?;
            let after = monotonic_now();
            for (&tid, &thread) in reading.entries() {
                each(ThreadReading { tid: Tid(tid), thread, before, after });
            }
            if !more {
                return Ok(());
            }
        }
    }

    /// Puts a thread into the map, if it is not there.
    pub(super) fn begin(&mut self, tid: Tid, thread: &WaitingThread) -> bool {
        /// `BPF_NOEXIST` (include/uapi/linux/bpf.h).
        const NEW: u64 = 1;
        self.threads.insert(tid.0, thread, NEW).is_ok()
    }

    /// Takes it out, if it is as it was put in.
    pub(super) fn forget(&mut self, tid: Tid, begun: &WaitingThread) {
        if self.threads.get(&tid.0, 0).is_ok_and(|now| now == *begun) {
            let _gone_already = self.threads.remove(&tid.0);
        }
    }

    /// What all CPUs counted.
    pub(super) fn counters(&self) -> Result<WaitCounters, BpfError> {
        let all = self.counters.get(&0, 0).map_err(BpfError::map("WAIT_COUNTERS"))?;
        let mut sum = WaitCounters::default();
        all.iter().for_each(|counters| add(&mut sum, counters));
        Ok(sum)
    }
}

fn add(sum: &mut WaitCounters, more: &WaitCounters) {
    let WaitCounters {
        switches,
        waits,
        negative,
        absurd,
        ends_unseen,
        threads_refused,
        stacks,
        stacks_held,
        stacks_lost,
        ends_lost,
        threads_lost,
        stacks_ns,
        timed,
        timed_ns,
        switched_ns: _,
    } = more;
    sum.switches += switches;
    sum.waits += waits;
    sum.negative += negative;
    sum.absurd += absurd;
    sum.ends_unseen += ends_unseen;
    sum.threads_refused += threads_refused;
    sum.stacks += stacks;
    sum.stacks_held += stacks_held;
    sum.stacks_lost += stacks_lost;
    sum.ends_lost += ends_lost;
    sum.threads_lost += threads_lost;
    sum.stacks_ns += stacks_ns;
    sum.timed += timed;
    sum.timed_ns += timed_ns;
}
