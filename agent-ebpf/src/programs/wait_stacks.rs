//! The stack of a thread that leaves its CPU: the entry points of the programs of waits, the kernel's frames by a
//! helper, the user's by the walk of the sampler, within a time of its own.
//!
//! Notes of what no table covers wake the agent, as the sampler's do: the ring buffer wakes its reader from an interrupt
//! of its own (`irq_work`, kernel/bpf/ringbuf.c, `bpf_ringbuf_commit`), which comes when the scheduler has let go of
//! its lock. The stack goes along where the agent can walk it later.
//!
//! Two forms do the same: `switch_loop` walks with `bpf_loop` (kernel 5.17), `switch_tail` with tail calls
//! to `wait_tail`.

use super::maps::{COUNTERS, Scratch};
use super::registers;
use super::switches::{self, Wanted};
use super::wait_maps::{THREADS, WAIT_COUNTERS, WAIT_DESK, WAIT_SCRATCH, WAIT_TAIL, WAITS};
use super::{chance, lock_words, record, stacks, walker};
use agent_ebpf::RecordKind;
use agent_ebpf::limits::{
    FRAMES_PER_LOOP_STEP, FRAMES_PER_TAIL_CALL, USER_FRAMES_MAX, USER_FRAMES_TAIL_CALLS_MAX,
    WAIT_KERNEL_FRAMES_MAX, WAIT_WALK_NS_MAX,
};
use agent_ebpf::verifier::{limit32, low32};
use agent_ebpf::wait::WAIT_FRONT_WORDS;
use aya_ebpf::EbpfContext as _;
use aya_ebpf::bindings::{BPF_RB_AVAIL_DATA, BPF_RB_NO_WAKEUP};
use aya_ebpf::helpers::generated::{
    bpf_get_stack, bpf_ktime_get_ns, bpf_loop, bpf_ringbuf_output, bpf_ringbuf_query,
};
use aya_ebpf::macros::raw_tracepoint;
use aya_ebpf::programs::RawTracePointContext;
use core::ffi::c_void;

/// The program of switches, main form.
#[raw_tracepoint]
fn switch_loop(ctx: RawTracePointContext) -> i32 {
    let Some(wanted) = switches::switch(&ctx) else { return 0 };
    let Some((scratch, walks)) = begin(&ctx, &wanted) else { return 0 };
    if walks {
        let mut unused = 0u64;
        let step = walk_some as unsafe extern "C" fn(u32, *mut c_void) -> i64;
        // SAFETY: the callback has the signature that the helper calls, and the context is on the stack.
        unsafe {
            bpf_loop(
                const { limit32(USER_FRAMES_MAX / FRAMES_PER_LOOP_STEP) },
                step as *mut c_void,
                (&raw mut unused).cast(),
                0,
            )
        };
    }
    finish(scratch);
    0
}

/// The next frames; 1 ends the loop.
unsafe extern "C" fn walk_some(_: u32, _: *mut c_void) -> i64 {
    let Some(scratch) = WAIT_SCRATCH.get_ptr_mut(0) else { return 1 };
    for _ in 0..FRAMES_PER_LOOP_STEP {
        if !walker::walk_on(scratch) {
            return 1;
        }
    }
    0
}

/// The program of switches, where the kernel has no `bpf_loop`.
#[raw_tracepoint]
fn switch_tail(ctx: RawTracePointContext) -> i32 {
    let Some(wanted) = switches::switch(&ctx) else { return 0 };
    let Some((scratch, walks)) = begin(&ctx, &wanted) else { return 0 };
    if walks {
        // SAFETY: the program in the slot is of the same type; if the slot is empty, execution goes on.
        unsafe { WAIT_TAIL.tail_call(&ctx, 0) };
    }
    finish(scratch);
    0
}

/// The next frames, then another call of itself.
#[raw_tracepoint]
fn wait_tail(ctx: RawTracePointContext) -> i32 {
    let Some(scratch) = WAIT_SCRATCH.get_ptr_mut(0) else { return 0 };
    for _ in 0..FRAMES_PER_TAIL_CALL {
        if !walker::walk_on(scratch) {
            finish(scratch);
            return 0;
        }
    }
    // SAFETY: a value of the scratch map, which only this CPU's switches use.
    let calls = unsafe { &mut (*scratch).state.calls };
    *calls += 1;
    if *calls < const { limit32(USER_FRAMES_TAIL_CALLS_MAX / FRAMES_PER_TAIL_CALL) } {
        // SAFETY: as in `switch_tail`.
        unsafe { WAIT_TAIL.tail_call(&ctx, 0) };
    }
    finish(scratch);
    0
}

/// Everything up to the first user frame; true if there are frames to walk.
#[inline(always)]
fn begin(ctx: &RawTracePointContext, wanted: &Wanted) -> Option<(*mut Scratch, bool)> {
    let (scratch, counters) = (WAIT_SCRATCH.get_ptr_mut(0)?, COUNTERS.get_ptr_mut(0)?);
    // SAFETY: a value of the scratch map, which only this CPU's switches use.
    let state = unsafe { &mut (*scratch).state };
    state.start_ns = wanted.now_ns;
    state.walk_ns_max = WAIT_WALK_NS_MAX;
    state.user_frames = 0;
    registers::read_current(scratch);
    record::fill_header(scratch, RecordKind::Wait, wanted.ids, wanted.now_ns);
    record::write_facts(scratch, wanted.facts);
    lock_words::write(scratch, &wanted.facts);
    kernel_stack(ctx, scratch);
    Some((scratch, record::begin_walk(scratch, counters, low32(wanted.ids >> 32))))
}

/// The kernel half, behind the facts. Its first frames are those of this program and of the scheduler.
#[inline(always)]
fn kernel_stack(ctx: &RawTracePointContext, scratch: *mut Scratch) {
    const BYTES: u32 = limit32(WAIT_KERNEL_FRAMES_MAX * 8);
    // SAFETY: only an address is taken.
    let frames = unsafe { &raw mut (*scratch).record.frames };
    let frames = frames.cast::<u64>().wrapping_add(WAIT_FRONT_WORDS);
    // SAFETY: the helper writes at most the size that is passed, and the array is longer.
    let bytes = unsafe { bpf_get_stack(ctx.as_ptr(), frames.cast(), BYTES, 0) };
    let kernel = if bytes > 0 { low32(bytes.cast_unsigned() >> 3) & 0x7f } else { 0 };
    // SAFETY: a value of the scratch map.
    unsafe { (*scratch).state.kernel_frames = kernel + const { limit32(WAIT_FRONT_WORDS) } };
}

/// Ships the record and closes the run.
#[inline(always)]
fn finish(scratch: *mut Scratch) {
    let (Some(all), Some(counters), Some(desk)) =
        (COUNTERS.get_ptr_mut(0), WAIT_COUNTERS.get_ptr_mut(0), WAIT_DESK.get_ptr_mut(0))
    else {
        return;
    };
    record::close_walk(scratch, all, false);
    // SAFETY: a value of the scratch map, which only this CPU's switches use.
    let start_ns = unsafe { (*scratch).state.start_ns };
    let shipped = ship(scratch);
    // SAFETY: a helper without preconditions.
    let now_ns = unsafe { bpf_ktime_get_ns() };
    let taken_ns = now_ns.wrapping_sub(start_ns);
    // SAFETY: a value of the scratch map, which only this CPU's switches use.
    let tgid = unsafe { (*scratch).record.header.tgid };
    let bucket = chance::bucket(record::class_of_wait(scratch), tgid);
    chance::pay(desk, bucket, now_ns, taken_ns);
    // SAFETY: the counters of this CPU, which only these programs write.
    let counters = unsafe { &mut *counters };
    counters.stacks_ns += taken_ns;
    if !shipped {
        counters.stacks_lost += 1;
        return;
    }
    counters.stacks += 1;
    // SAFETY: as above.
    let tid = unsafe { (*scratch).record.header.tid };
    if let Some(thread) = THREADS.get_ptr_mut(tid) {
        // SAFETY: a value of the map, which this CPU alone writes until the switch is over.
        unsafe { (*thread).sampled = 1 };
    }
}

/// Puts the record into the ring; false if it is full.
#[inline(always)]
fn ship(scratch: *mut Scratch) -> bool {
    // SAFETY: a value of the scratch map, which only this CPU's switches use.
    let state = unsafe { &(*scratch).state };
    let frames = record::frames(state);
    let mut bytes = record::bytes(frames);
    let ring = (&raw const WAITS).cast_mut().cast();
    if stacks::wanted(state)
        && let Some(counters) = COUNTERS.get_ptr_mut(0)
    {
        // SAFETY: the map is a ring buffer.
        let waiting = unsafe { bpf_ringbuf_query(ring, u64::from(BPF_RB_AVAIL_DATA)) };
        let appended = stacks::append(scratch, counters, frames, waiting);
        if appended > 0 {
            // SAFETY: a value of the scratch map.
            unsafe { (*scratch).record.header.kind = RecordKind::WaitWithStack as u32 };
        }
        bytes += appended;
    }
    if bytes > record::BYTES_MAX {
        return false; // never: said for the verifier
    }
    // SAFETY: only an address is taken.
    let record = unsafe { &raw mut (*scratch).record };
    // SAFETY: `bytes` is at most the size of a record.
    let result =
        unsafe { bpf_ringbuf_output(ring, record.cast(), bytes, u64::from(BPF_RB_NO_WAKEUP)) };
    result == 0
}
