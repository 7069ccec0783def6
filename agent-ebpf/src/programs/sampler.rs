//! The on-CPU sampler: one run for each tick of a CPU's clock. It decides what becomes a sample, takes the
//! kernel stack, lets the walker take the user stack, and ships one record. Every run is counted, and so
//! is what became of it.
//!
//! Two forms do the same: `sample_loop` walks with `bpf_loop` (kernel 5.17), `sample_tail` with tail
//! calls to `walk_tail`.

use super::maps::{
    COUNTERS, FILTER, FILTERED, KERNEL_THREADS, RECORDS, SCRATCH, Scratch, TAIL, WAKE_BYTES,
};
use super::registers;
use super::{record, roots, stacks, walker};
use agent_ebpf::counters::OUTCOME_SLOTS;
use agent_ebpf::limits::{
    FRAMES_PER_LOOP_STEP, FRAMES_PER_TAIL_CALL, KERNEL_FRAMES_MAX, SCOUT_FRAMES_MAX,
    USER_FRAMES_MAX, USER_FRAMES_TAIL_CALLS_MAX, WALK_NS_MAX,
};
use agent_ebpf::verifier::{limit32, low32, place};
use agent_ebpf::walk::Registers;
use agent_ebpf::{Counters, RecordKind};
use aya_ebpf::EbpfContext as _;
use aya_ebpf::bindings::{BPF_RB_AVAIL_DATA, BPF_RB_FORCE_WAKEUP, BPF_RB_NO_WAKEUP};
use aya_ebpf::helpers::bpf_get_current_pid_tgid;
use aya_ebpf::helpers::generated::{
    bpf_get_stack, bpf_ktime_get_ns, bpf_loop, bpf_ringbuf_output, bpf_ringbuf_query,
};
use aya_ebpf::macros::perf_event;
use aya_ebpf::programs::PerfEventContext;
use aya_log_ebpf::debug;
use core::ffi::c_void;
use core::mem::offset_of;

/// The sampler, main form.
#[perf_event]
fn sample_loop(ctx: PerfEventContext) -> u32 {
    let Some((scratch, walks)) = begin(&ctx) else { return 0 };
    if walks {
        let mut unused = 0u64;
        let step = walk_some as unsafe extern "C" fn(u32, *mut c_void) -> i64;
        // SAFETY: the callback has the signature that the helper calls, and the context is on the stack.
        unsafe {
            bpf_loop(
                const { limit32((USER_FRAMES_MAX + SCOUT_FRAMES_MAX) / FRAMES_PER_LOOP_STEP) },
                step as *mut c_void,
                (&raw mut unused).cast(),
                0,
            )
        };
    }
    finish(scratch, false);
    0
}

/// The next frames; 1 ends the loop.
unsafe extern "C" fn walk_some(_: u32, _: *mut c_void) -> i64 {
    let Some(scratch) = SCRATCH.get_ptr_mut(0) else { return 1 };
    // SAFETY: a value of the scratch map, which only this CPU's sampler uses.
    let frames = unsafe { (*scratch).state.user_frames };
    if frames >= const { limit32(USER_FRAMES_MAX) } && !roots::scouts(scratch) {
        return 1;
    }
    for _ in 0..FRAMES_PER_LOOP_STEP {
        if !walker::walk_on(scratch) {
            return 1;
        }
    }
    0
}

/// The sampler, where the kernel has no `bpf_loop`.
#[perf_event]
fn sample_tail(ctx: PerfEventContext) -> u32 {
    let Some((scratch, walks)) = begin(&ctx) else { return 0 };
    if walks {
        // SAFETY: the program in the slot is of the same type; if the slot is empty, execution goes on.
        unsafe { TAIL.tail_call(&ctx, 0) };
    }
    finish(scratch, true);
    0
}

/// The next frames, then another call of itself.
#[perf_event]
fn walk_tail(ctx: PerfEventContext) -> u32 {
    let Some(scratch) = SCRATCH.get_ptr_mut(0) else { return 0 };
    for _ in 0..FRAMES_PER_TAIL_CALL {
        if !walker::walk_on(scratch) {
            finish(scratch, true);
            return 0;
        }
    }
    // SAFETY: a value of the scratch map, which only this CPU's sampler uses.
    let calls = unsafe { &mut (*scratch).state.calls };
    *calls += 1;
    if *calls < const { limit32(USER_FRAMES_TAIL_CALLS_MAX / FRAMES_PER_TAIL_CALL) } {
        // SAFETY: as in `sample_tail`.
        unsafe { TAIL.tail_call(&ctx, 0) };
    }
    finish(scratch, true);
    0
}

/// Everything up to the first user frame; true if there are frames to walk. `None` if the run makes no sample.
#[inline(always)]
fn begin(ctx: &PerfEventContext) -> Option<(*mut Scratch, bool)> {
    // SAFETY: a helper without preconditions.
    let start_ns = unsafe { bpf_ktime_get_ns() };
    let counters = COUNTERS.get_ptr_mut(0)?;
    let scratch = SCRATCH.get_ptr_mut(0)?;
    // SAFETY: the counters of this CPU, which only this program writes.
    unsafe { (*counters).runs += 1 };
    // SAFETY: a value of the scratch map, which only this CPU's sampler uses.
    unsafe { (*scratch).state.start_ns = start_ns };
    // SAFETY: as above.
    unsafe { (*scratch).state.walk_ns_max = WALK_NS_MAX };

    let ids = bpf_get_current_pid_tgid();
    if low32(ids) == 0 {
        // SAFETY: as above.
        unsafe { (*counters).idle += 1 };
        count_time(counters, start_ns);
        return None;
    }
    let tgid = low32(ids >> 32);
    let in_kernel = registers::read(ctx.ctx.cast(), scratch);
    // SAFETY: as above.
    let user = unsafe { &(*scratch).state.walk.registers };
    if unwanted(tgid, user) {
        // SAFETY: as above.
        unsafe { (*counters).filtered += 1 };
        count_time(counters, start_ns);
        return None;
    }
    record::fill_header(scratch, RecordKind::Sample, ids, start_ns);
    kernel_stack(ctx, scratch, in_kernel);
    Some((scratch, record::begin_walk(scratch, counters, tgid)))
}

/// True if nobody asked for samples of this process.
#[inline(always)]
fn unwanted(tgid: u32, user: &Registers) -> bool {
    if KERNEL_THREADS.load() == 0 && !registers::of_user(user) {
        return true;
    }
    FILTERED.load() == 1 && FILTER.get_ptr(tgid).is_none()
}

/// The kernel half, if the clock hit the kernel.
#[inline(always)]
fn kernel_stack(ctx: &PerfEventContext, scratch: *mut Scratch, in_kernel: bool) {
    // SAFETY: a value of the scratch map, which only this CPU's sampler uses.
    unsafe { (*scratch).state.kernel_frames = 0 };
    // SAFETY: as above.
    unsafe { (*scratch).state.user_frames = 0 };
    if !in_kernel {
        return;
    }
    // SAFETY: only an address is taken.
    let frames = unsafe { &raw mut (*scratch).record.frames };
    // SAFETY: the helper writes at most the size that is passed, and the array is longer.
    let bytes = unsafe {
        bpf_get_stack(ctx.as_ptr(), frames.cast(), const { limit32(KERNEL_FRAMES_MAX * 8) }, 0)
    };
    if bytes > 0 {
        let frames = low32(bytes.cast_unsigned() >> 3) & 0x7f;
        // SAFETY: a value of the scratch map.
        unsafe { (*scratch).state.kernel_frames = frames };
    }
}

/// Ships the record and closes the run. `all`: see [`roots::close`].
#[inline(always)]
fn finish(scratch: *mut Scratch, all: bool) {
    let Some(counters) = COUNTERS.get_ptr_mut(0) else { return };
    record::close_walk(scratch, counters, all);
    // SAFETY: a value of the scratch map, which only this CPU's sampler uses.
    let state = unsafe { &(*scratch).state };
    debug!(
        &(),
        "pid {} walked {} kernel and {} user frames, outcome {}, last at {:x}",
        // SAFETY: as above.
        unsafe { (*scratch).record.header.tgid },
        state.kernel_frames,
        state.user_frames,
        state.outcome,
        state.walk.ip
    );
    let array = offset_of!(Counters, outcomes);
    // SAFETY: that is an array of that many counters.
    let outcome =
        unsafe { place::<OUTCOME_SLOTS, u64, _>(counters, array, u64::from(state.outcome)) };
    // SAFETY: the counters of this CPU, which only this program writes.
    unsafe { *outcome.cast_mut() += 1 };
    ship(scratch, counters);
    count_time(counters, state.start_ns);
}

#[inline(always)]
fn ship(scratch: *mut Scratch, counters: *mut Counters) {
    // SAFETY: a value of the scratch map, which only this CPU's sampler uses.
    let state = unsafe { &(*scratch).state };
    let frames = record::frames(state);
    let mut bytes = record::bytes(frames);
    let ring = (&raw const RECORDS).cast_mut().cast();
    // SAFETY: the map is a ring buffer.
    let waiting = unsafe { bpf_ringbuf_query(ring, u64::from(BPF_RB_AVAIL_DATA)) };
    // The reader looks often enough by itself; it is woken only when the ring fills faster than that.
    let flags = if waiting > WAKE_BYTES.load() { BPF_RB_FORCE_WAKEUP } else { BPF_RB_NO_WAKEUP };
    if stacks::wanted(state) {
        bytes += stacks::append(scratch, counters, frames, waiting);
    }
    if bytes > record::BYTES_MAX {
        return; // never: said for the verifier
    }
    // SAFETY: only an address is taken.
    let record = unsafe { &raw mut (*scratch).record };
    // SAFETY: a helper without preconditions.
    let now_ns = unsafe { bpf_ktime_get_ns() };
    // SAFETY: a value of the scratch map.
    unsafe { (*record).header.run_ns = low32(now_ns.wrapping_sub(state.start_ns)) };
    // SAFETY: `bytes` is at most the size of a record.
    let result = unsafe { bpf_ringbuf_output(ring, record.cast(), bytes, u64::from(flags)) };
    if result == 0 {
        // SAFETY: the counters of this CPU, which only this program writes.
        unsafe { (*counters).shipped += 1 };
    } else {
        // SAFETY: as above.
        unsafe { (*counters).lost += 1 };
    }
}

#[inline(always)]
fn count_time(counters: *mut Counters, start_ns: u64) {
    // SAFETY: a helper without preconditions.
    let now_ns = unsafe { bpf_ktime_get_ns() };
    // SAFETY: the counters of this CPU, which only this program writes.
    unsafe { (*counters).run_ns += now_ns.wrapping_sub(start_ns) };
}
