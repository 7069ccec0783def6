//! Goroutines that wait for a lock: one run at the first instruction of the runtime's waiting path, one at its return,
//! where the waiter runs again, perhaps in another thread, and its stack is taken. Never a probe of returns by
//! the kernel (`uretprobe`): it writes to the stack, which Go moves.
//!
//! These programs can be preempted, by other threads that run them too. So what they count is added atomically, and
//! one that finds the scratch of its CPU taken goes without (`busy`). The rules that the sampler remembers are not
//! for them either.

use super::maps::{FILTER, FILTERED, PROCESSES, Scratch};
use super::{record, registers, walker};
use agent_ebpf::limits::{
    FRAMES_PER_LOOP_STEP, GO_LOCK_FRAMES_MAX, GOROUTINES_MAX, RING_BYTES_MIN, THINNED_PROCESSES_MAX,
};
use agent_ebpf::lock::{Goroutine, LOCK_FACTS_WORDS, LockCounters, LockFacts};
use agent_ebpf::verifier::{add_atomic, limit32, low32, swap_atomic};
use agent_ebpf::{Outcome, ProcessEntry, RecordKind};
use aya_ebpf::bindings::{BPF_RB_NO_WAKEUP, pt_regs};
use aya_ebpf::btf_maps::{HashMap, PerCpuArray, RingBuf};
use aya_ebpf::helpers::bpf_get_current_pid_tgid;
use aya_ebpf::helpers::generated::{
    bpf_get_prandom_u32, bpf_ktime_get_ns, bpf_loop, bpf_ringbuf_output,
};
use aya_ebpf::macros::{btf_map, uprobe};
use aya_ebpf::programs::ProbeContext;
use core::ffi::c_void;
use core::mem::offset_of;

/// Goroutines that wait now.
#[btf_map]
pub(super) static GOROUTINES: HashMap<Goroutine, LockFacts, GOROUTINES_MAX> = HashMap::new();
/// One of how many waits is followed, as a power of two, in processes whose waits cost too much: taking the stack costs
/// more than a hit. Which one is left to chance, before anything is known of the wait.
#[btf_map]
pub(super) static THIN: HashMap<u32, u32, THINNED_PROCESSES_MAX> = HashMap::new();
/// Waits that are over. A ring of its own: many of them take no room from the clock's samples.
#[btf_map]
pub(super) static LOCK_WAITS: RingBuf<u64, { RING_BYTES_MIN as usize }> = RingBuf::new();
#[btf_map]
pub(super) static LOCK_COUNTERS: PerCpuArray<LockCounters, 1> = PerCpuArray::new();
#[btf_map]
pub(super) static LOCK_SCRATCH: PerCpuArray<Scratch, 1> = PerCpuArray::new();
/// 1 while a program works on the scratch of its CPU.
#[btf_map]
pub(super) static LOCK_BUSY: PerCpuArray<u64, 1> = PerCpuArray::new();

/// At the first instruction: the word in rax, the goroutine in r14 (Go's internal calling convention, since 1.17:
/// cmd/compile/abi-internal.md).
#[uprobe]
fn go_lock_enter(ctx: ProbeContext) -> u32 {
    let start_ns = begin();
    let ids = bpf_get_current_pid_tgid();
    let tgid = low32(ids >> 32);
    if FILTERED.load() == 1 && FILTER.get_ptr(tgid).is_none() {
        return 0;
    }
    let regs: *const u64 = ctx.regs.cast();
    // SAFETY: the registers of the context.
    let g = unsafe { registers::field(regs, offset_of!(pt_regs, r14)) };
    // SAFETY: as above.
    let word = unsafe { registers::field(regs, offset_of!(pt_regs, rax)) };
    // SAFETY: as above.
    let ip = unsafe { registers::field(regs, offset_of!(pt_regs, rip)) };
    let waiter = Goroutine { tgid: u64::from(tgid), g };
    let weight = 1 << thin_shift(tgid);
    // SAFETY: a helper without preconditions.
    if weight > 1 && unsafe { bpf_get_prandom_u32() } & (weight - 1) != 0 {
        add(offset_of!(LockCounters, thinned), 1);
        // What is there is of a process that was killed while it waited: the return would take it for this wait's.
        let _none_is_usual = GOROUTINES.remove(waiter);
        return 0;
    }
    let facts = LockFacts { word, since_ns: start_ns, ip, tid: low32(ids), weight };
    if GOROUTINES.insert(waiter, facts, 0).is_err() {
        add(offset_of!(LockCounters, refused), 1);
    }
    0
}

/// At the return.
#[uprobe]
fn go_lock_return(ctx: ProbeContext) -> u32 {
    let start_ns = begin();
    let ids = bpf_get_current_pid_tgid();
    let tgid = low32(ids >> 32);
    if FILTERED.load() == 1 && FILTER.get_ptr(tgid).is_none() {
        return 0;
    }
    // SAFETY: the registers of the context.
    let g = unsafe { registers::field(ctx.regs.cast(), offset_of!(pt_regs, r14)) };
    let waiter = Goroutine { tgid: u64::from(tgid), g };
    // SAFETY: the value is copied at once; nobody else writes that of this goroutine, which is here.
    let facts = unsafe { GOROUTINES.get(waiter) }.copied();
    let Some(facts) = facts else {
        if thin_shift(tgid) == 0 {
            add(offset_of!(LockCounters, unmatched), 1);
        }
        return 0;
    };
    let _was_there = GOROUTINES.remove(waiter);
    if !take_scratch() {
        add(offset_of!(LockCounters, busy), 1);
        return 0;
    }
    send(&ctx, ids, start_ns, facts);
    free_scratch();
    end(start_ns);
    0
}

/// See [`THIN`].
#[inline(always)]
fn thin_shift(tgid: u32) -> u32 {
    let Some(shift) = THIN.get_ptr(tgid) else { return 0 };
    // SAFETY: a value of the map, four bytes and aligned.
    (unsafe { shift.read() }) & 15
}

/// Counts a run; when it began.
#[inline(always)]
fn begin() -> u64 {
    add(offset_of!(LockCounters, hits), 1);
    // SAFETY: a helper without preconditions.
    unsafe { bpf_ktime_get_ns() }
}

#[inline(always)]
fn end(start_ns: u64) {
    // SAFETY: a helper without preconditions.
    let now_ns = unsafe { bpf_ktime_get_ns() };
    add(offset_of!(LockCounters, run_ns), now_ns.wrapping_sub(start_ns));
}

/// Adds to the counter at that offset.
#[inline(always)]
pub(super) fn add(offset: usize, value: u64) {
    if let Some(counters) = LOCK_COUNTERS.get_ptr_mut(0) {
        // SAFETY: the offset of a field.
        let field = unsafe { counters.byte_add(offset) }.cast::<u64>();
        // SAFETY: a field of the counters, aligned, and written in this way alone.
        unsafe { add_atomic(field, value) };
    }
}

/// True if nobody else works on the scratch of this CPU.
#[inline(always)]
fn take_scratch() -> bool {
    swap_busy(1) == 0
}

#[inline(always)]
fn free_scratch() {
    swap_busy(0);
}

#[inline(always)]
fn swap_busy(to: u64) -> u64 {
    let Some(busy) = LOCK_BUSY.get_ptr_mut(0) else { return 1 };
    // SAFETY: a value of the map, aligned, and written in this way alone.
    unsafe { swap_atomic(busy, to) }
}

/// Takes the stack and ships the record.
#[inline(always)]
fn send(ctx: &ProbeContext, ids: u64, now_ns: u64, facts: LockFacts) {
    let Some(scratch) = LOCK_SCRATCH.get_ptr_mut(0) else { return };
    record::fill_header(scratch, RecordKind::LockWait, ids, now_ns);
    record::write_facts(scratch, facts);
    // SAFETY: a value of the scratch map, which this run has taken.
    let state = unsafe { &mut (*scratch).state };
    // SAFETY: the registers of the context.
    unsafe { registers::copy(ctx.regs.cast(), &mut state.walk.registers) };
    state.walk.begin();
    state.start_ns = now_ns;
    state.kernel_frames = const { limit32(LOCK_FACTS_WORDS) };
    state.user_frames = 0;
    state.outcome = Outcome::DepthLimit as u32;
    // SAFETY: the value is eight bytes and aligned, so the copy is one load.
    let process = unsafe { PROCESSES.get(low32(ids >> 32)) }.copied();
    if let Some(process) = process {
        state.process = process;
        let mut unused = 0u64;
        let step = walk_some as unsafe extern "C" fn(u32, *mut c_void) -> i64;
        // SAFETY: the callback has the signature that the helper calls, and the context is on the stack.
        unsafe {
            bpf_loop(
                const { limit32(GO_LOCK_FRAMES_MAX / FRAMES_PER_LOOP_STEP) },
                step as *mut c_void,
                (&raw mut unused).cast(),
                0,
            )
        };
    } else {
        state.process = ProcessEntry { generation: 0, first_page: 0, pages: 0 };
        state.outcome = Outcome::ProcessUnknown as u32;
        walker::push(scratch); // the leaf is known even where nothing else is
    }
    if ship(scratch) {
        add(offset_of!(LockCounters, sent), 1);
    } else {
        add(offset_of!(LockCounters, lost), 1);
    }
}

/// The next frames; 1 ends the loop.
unsafe extern "C" fn walk_some(_: u32, _: *mut c_void) -> i64 {
    let Some(scratch) = LOCK_SCRATCH.get_ptr_mut(0) else { return 1 };
    for _ in 0..FRAMES_PER_LOOP_STEP {
        if let Err(outcome) = walker::step_alone(scratch) {
            // SAFETY: a value of the scratch map, which this run has taken.
            unsafe { (*scratch).state.outcome = outcome as u32 };
            return 1;
        }
    }
    0
}

/// Puts the record into the ring; false if it is full. The reader looks by itself.
#[inline(always)]
fn ship(scratch: *mut Scratch) -> bool {
    // SAFETY: a value of the scratch map, which this run has taken.
    let state = unsafe { &(*scratch).state };
    record::write_outcome(scratch);
    let bytes = record::bytes(record::frames(state));
    if bytes > record::BYTES_MAX {
        return false; // never: said for the verifier
    }
    // SAFETY: only an address is taken.
    let record = unsafe { &raw mut (*scratch).record };
    let ring = (&raw const LOCK_WAITS).cast_mut().cast();
    // SAFETY: `bytes` is at most the size of a record.
    let result =
        unsafe { bpf_ringbuf_output(ring, record.cast(), bytes, u64::from(BPF_RB_NO_WAKEUP)) };
    result == 0
}
