//! The stack of a thread that leaves its CPU: the entry points of the programs of waits, the kernel's frames by a
//! helper, the user's by the walk of the sampler, within a time of its own.
//!
//! Notes of what no table covers wake the agent, as the sampler's do: the ring buffer wakes its reader from an interrupt
//! of its own (`irq_work`, kernel/bpf/ringbuf.c, `bpf_ringbuf_commit`), which comes when the scheduler has let go of
//! its lock. The stack goes along where the agent can walk it later.
//!
//! Two forms do the same: `switch_loop` walks with `bpf_loop` (kernel 5.17), `switch_tail` with tail calls
//! to `wait_tail`.

use super::maps::{COUNTERS, PROCESSES, Record, Scratch};
use super::registers;
use super::switches::{self, Wanted};
use super::wait_maps::{THREADS, WAIT_COUNTERS, WAIT_DESK, WAIT_SCRATCH, WAIT_TAIL, WAITS};
use super::{chance, notes, roots, stacks, walker};
use agent_ebpf::limits::{
    FRAMES_PER_LOOP_STEP, FRAMES_PER_TAIL_CALL, RECORD_FRAMES, USER_FRAMES_MAX,
    USER_FRAMES_TAIL_CALLS_MAX, WAIT_KERNEL_FRAMES_MAX, WAIT_WALK_NS_MAX,
};
use agent_ebpf::verifier::{below, limit32, low32};
use agent_ebpf::wait::WAIT_FACTS_WORDS;
use agent_ebpf::{Outcome, ProcessEntry, RecordKind, SampleHeader, WaitFacts};
use aya_ebpf::EbpfContext as _;
use aya_ebpf::bindings::{BPF_RB_AVAIL_DATA, BPF_RB_FORCE_WAKEUP, BPF_RB_NO_WAKEUP};
use aya_ebpf::helpers::generated::{
    bpf_get_current_cgroup_id, bpf_get_current_comm, bpf_get_smp_processor_id, bpf_get_stack,
    bpf_ktime_get_ns, bpf_loop, bpf_ringbuf_output, bpf_ringbuf_query,
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
        if !walk_on(scratch) {
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
        if !walk_on(scratch) {
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

/// One frame; false if the walk ended, with its outcome in the scratch.
#[inline(always)]
fn walk_on(scratch: *mut Scratch) -> bool {
    match walker::step(scratch) {
        Ok(()) => true,
        Err(outcome) => {
            // SAFETY: a value of the scratch map, which only this CPU's switches use.
            unsafe { (*scratch).state.outcome = outcome as u32 };
            false
        }
    }
}

/// Everything up to the first user frame; true if there are frames to walk.
#[inline(always)]
fn begin(ctx: &RawTracePointContext, wanted: &Wanted) -> Option<(*mut Scratch, bool)> {
    let scratch = WAIT_SCRATCH.get_ptr_mut(0)?;
    // SAFETY: a value of the scratch map, which only this CPU's switches use.
    let state = unsafe { &mut (*scratch).state };
    state.start_ns = wanted.now_ns;
    state.walk_ns_max = WAIT_WALK_NS_MAX;
    state.user_frames = 0;
    registers::read_current(scratch);
    fill_header(scratch, wanted);
    kernel_stack(ctx, scratch);
    Some((scratch, begin_walk(scratch, low32(wanted.ids >> 32))))
}

#[inline(always)]
fn fill_header(scratch: *mut Scratch, wanted: &Wanted) {
    let header = SampleHeader {
        kind: RecordKind::Wait as u32,
        // SAFETY: a helper without preconditions.
        cpu: unsafe { bpf_get_smp_processor_id() },
        tgid: low32(wanted.ids >> 32),
        tid: low32(wanted.ids),
        time_ns: wanted.now_ns,
        // SAFETY: a helper without preconditions.
        cgroup_id: unsafe { bpf_get_current_cgroup_id() },
        generation: 0,
        outcome: 0,
        kernel_frames: 0,
        user_frames: 0,
        root_frames: 0,
        run_ns: 0,
        comm: [0; 16],
    };
    // SAFETY: a value of the scratch map, which only this CPU's switches use.
    unsafe { (*scratch).record.header = header };
    // SAFETY: only an address is taken.
    let comm = unsafe { &raw mut (*scratch).record.header.comm };
    // SAFETY: the helper writes at most 16 bytes, with a NUL at the end. It fails only without a task.
    let _ = unsafe { bpf_get_current_comm(comm.cast(), 16) };
    // SAFETY: only an address is taken.
    let frames = unsafe { &raw mut (*scratch).record.frames };
    // SAFETY: the facts are the first words of the frames.
    unsafe { frames.cast::<WaitFacts>().write(wanted.facts) };
}

/// The kernel half, behind the facts. Its first frames are those of this program and of the scheduler.
#[inline(always)]
fn kernel_stack(ctx: &RawTracePointContext, scratch: *mut Scratch) {
    const BYTES: u32 = limit32(WAIT_KERNEL_FRAMES_MAX * 8);
    // SAFETY: only an address is taken.
    let frames = unsafe { &raw mut (*scratch).record.frames };
    let frames = frames.cast::<u64>().wrapping_add(WAIT_FACTS_WORDS);
    // SAFETY: the helper writes at most the size that is passed, and the array is longer.
    let bytes = unsafe { bpf_get_stack(ctx.as_ptr(), frames.cast(), BYTES, 0) };
    let kernel = if bytes > 0 { low32(bytes.cast_unsigned() >> 3) & 0x7f } else { 0 };
    // SAFETY: a value of the scratch map.
    unsafe { (*scratch).state.kernel_frames = kernel + const { limit32(WAIT_FACTS_WORDS) } };
}

/// Prepares the walk of the user stack; false if there is none to walk.
#[inline(always)]
fn begin_walk(scratch: *mut Scratch, tgid: u32) -> bool {
    // SAFETY: a value of the scratch map, which only this CPU's switches use.
    let state = unsafe { &mut (*scratch).state };
    state.walk.begin();
    state.process = ProcessEntry { generation: 0, first_page: 0, pages: 0 };
    state.outcome = Outcome::DepthLimit as u32;
    state.calls = 0;
    state.root_frames = 0;
    state.whole = 0;
    let user = &state.walk.registers;
    if !registers::of_user(user) {
        state.outcome = Outcome::NoUserStack as u32;
        return false;
    }
    let compat = registers::compat(user);
    // SAFETY: the value is eight bytes and aligned, so the copy is one load.
    let process = unsafe { PROCESSES.get(tgid) }.copied();
    if let (Some(process), false) = (process, compat) {
        state.process = process;
        return true;
    }
    let start_ns = state.start_ns;
    state.outcome = Outcome::RuleUnsupported as u32;
    if !compat {
        state.outcome = Outcome::ProcessUnknown as u32;
        if let Some(counters) = COUNTERS.get_ptr_mut(0) {
            notes::send(counters, tgid, 0, start_ns, BPF_RB_FORCE_WAKEUP);
        }
    }
    walker::push(scratch); // the leaf is known even where nothing else is
    false
}

/// Ships the record and closes the run.
#[inline(always)]
fn finish(scratch: *mut Scratch) {
    let (Some(all), Some(counters), Some(desk)) =
        (COUNTERS.get_ptr_mut(0), WAIT_COUNTERS.get_ptr_mut(0), WAIT_DESK.get_ptr_mut(0))
    else {
        return;
    };
    roots::close(scratch, all, false);
    // SAFETY: a value of the scratch map, which only this CPU's switches use.
    let state = unsafe { &(*scratch).state };
    // SAFETY: as above.
    let header = unsafe { &mut (*scratch).record.header };
    header.generation = state.process.generation;
    header.outcome = low16(state.outcome);
    header.kernel_frames = low16(state.kernel_frames);
    header.user_frames = low16(roots::recorded(state));
    if state.outcome != Outcome::Complete as u32 {
        header.root_frames = low16(state.root_frames);
    }
    if state.outcome == Outcome::MappingUnknown as u32 {
        notes::send(all, header.tgid, state.walk.ip, state.start_ns, BPF_RB_FORCE_WAKEUP);
    }
    let start_ns = state.start_ns;
    let shipped = ship(scratch);
    // SAFETY: a helper without preconditions.
    let now_ns = unsafe { bpf_ktime_get_ns() };
    let taken_ns = now_ns.wrapping_sub(start_ns);
    chance::pay(desk, now_ns, taken_ns);
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
    let frames = u64::from(state.kernel_frames) + u64::from(roots::recorded(state));
    let mut bytes = size_of::<SampleHeader>() as u64 + below::<RECORD_FRAMES>(frames) * 8;
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
    const RECORD_BYTES: u64 = size_of::<Record>() as u64;
    if bytes > RECORD_BYTES {
        return false; // never: said for the verifier
    }
    // SAFETY: only an address is taken.
    let record = unsafe { &raw mut (*scratch).record };
    // SAFETY: `bytes` is at most the size of a record.
    let result =
        unsafe { bpf_ringbuf_output(ring, record.cast(), bytes, u64::from(BPF_RB_NO_WAKEUP)) };
    result == 0
}

#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "counts below 2048 and outcomes below 16")]
fn low16(value: u32) -> u16 {
    value as u16
}
