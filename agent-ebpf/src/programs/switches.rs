//! Off-CPU time: one run for each switch of a CPU from one thread to another. It closes the wait of the thread that
//! comes and opens that of the one that goes; some of those send a stack (`wait_stacks.rs`).
//!
//! `sched_switch` runs before the switch, in the thread that goes, with interrupts off and the lock of the CPU's
//! threads held (kernel/sched/core.c, `__schedule`): so nothing here waits, asks for memory, or wakes anybody,
//! and the clock's sampler does not come in between. A thread comes back on another CPU only after the switch
//! that took it from this one is over, so its entry has one writer at a time, wherever it runs.
//!
//! A thread that goes and still waits has come by a switch that was not told: a kernel may keep its own from
//! tracers, and then ftrace misses it too. It came after the last switch of this CPU that was told; half-way from there
//! to now is taken for its end.
//!
//! The idle task and kernel threads are left out: they wait for work all their life.

use super::maps::{FILTER, FILTERED, TASK_PID_OFFSET, USER_REGISTERS};
use super::registers::{self, read_kernel};
use super::wait_maps::{
    CLASSES, Desk, TASK_FLAGS_OFFSET, TASK_STATE_OFFSET, THREADS, WAIT_COUNTERS, WAIT_DESK, WAITS,
};
use super::{chance, libc_locks};
use agent_ebpf::limits::{SWITCHES_PER_CLOCK_READ, WAIT_GAP_NS_PREEMPTED, WAIT_NS_MAX};
use agent_ebpf::verifier::{low32, place};
use agent_ebpf::wait::{SYSCALL_NUMBERS, WAIT_CLASSES, WAIT_SITES};
use agent_ebpf::{
    ClassTotals, RecordKind, UserRegisters, WaitClass, WaitCounters, WaitEnd, WaitFacts,
    WaitingThread,
};
use aya_ebpf::bindings::BPF_RB_NO_WAKEUP;
use aya_ebpf::helpers::bpf_get_current_pid_tgid;
use aya_ebpf::helpers::generated::{
    bpf_get_current_comm, bpf_get_current_task, bpf_get_current_task_btf, bpf_ktime_get_ns,
    bpf_ringbuf_output,
};
use aya_ebpf::programs::RawTracePointContext;
use core::mem::offset_of;

/// `PF_KTHREAD` (kernel include/linux/sched.h).
const KERNEL_THREAD: u32 = 0x0020_0000;
/// `TASK_DEAD`: the last switch of a thread.
const DEAD: u32 = 0x80;
/// `__TASK_STOPPED | __TASK_TRACED`.
const STOPPED: u32 = 0x4 | 0x8;

/// A stack that is to be sent.
pub(super) struct Wanted {
    pub(super) ids: u64,
    pub(super) now_ns: u64,
    pub(super) facts: WaitFacts,
}

/// Closes one wait and opens another; `Some` if that is to send its stack.
#[inline(always)]
pub(super) fn switch(ctx: &RawTracePointContext) -> Option<Wanted> {
    // SAFETY: a helper without preconditions.
    let now_ns = unsafe { bpf_ktime_get_ns() };
    let counters = WAIT_COUNTERS.get_ptr_mut(0)?;
    // SAFETY: the counters of this CPU, which only these programs write.
    let switches = unsafe { &mut (*counters).switches };
    *switches += 1;
    // SAFETY: as above.
    let before_ns = core::mem::replace(unsafe { &mut (*counters).switched_ns }, now_ns);
    let timed = *switches % SWITCHES_PER_CLOCK_READ == 0;
    let (preempted, next): (u64, u64) = (ctx.arg(0), ctx.arg(2));
    come(
        low32(read_kernel(next.wrapping_add(u64::from(TASK_PID_OFFSET.load())))),
        now_ns,
        counters,
    );
    let wanted = go(preempted & 1 == 1, (before_ns, now_ns), counters);
    if timed && wanted.is_none() {
        // SAFETY: as above.
        let counters = unsafe { &mut *counters };
        // SAFETY: a helper without preconditions.
        let end_ns = unsafe { bpf_ktime_get_ns() };
        counters.timed += 1;
        counters.timed_ns += end_ns.wrapping_sub(now_ns);
    }
    wanted
}

/// The thread `tid` gets the CPU.
#[inline(always)]
fn come(tid: u32, now_ns: u64, counters: *mut WaitCounters) {
    if tid == 0 {
        return;
    }
    let Some(thread) = THREADS.get_ptr_mut(tid) else { return };
    // SAFETY: a value of the map, which this CPU alone writes now (see the module).
    close(unsafe { &mut *thread }, tid, now_ns, counters);
}

/// The wait of the thread, if it waits, ended at `now_ns`.
#[inline(always)]
fn close(thread: &mut WaitingThread, tid: u32, now_ns: u64, counters: *mut WaitCounters) {
    let since_ns = thread.since_ns;
    if since_ns == 0 {
        return;
    }
    // SAFETY: a field of the value. Volatile: it is cleared before the sums grow, see the type.
    unsafe { (&raw mut thread.since_ns).write_volatile(0) };
    let sampled = thread.sampled == 1;
    thread.sampled = 0;
    if !add(thread, since_ns, now_ns, counters) || !sampled {
        return;
    }
    let end = WaitEnd { kind: RecordKind::WaitEnd as u32, tid, since_ns, end_ns: now_ns };
    if !output(&end) {
        // SAFETY: the counters of this CPU, which only these programs write.
        unsafe { (*counters).ends_lost += 1 };
    }
}

/// The wait of a thread that goes at `now_ns`, if it waits still: it came after `before_ns`, when its CPU switched last.
#[inline(always)]
fn close_unseen(
    thread: &mut WaitingThread,
    tid: u32,
    (before_ns, now_ns): (u64, u64),
    counters: *mut WaitCounters,
) {
    let since_ns = thread.since_ns;
    if since_ns != 0 {
        // SAFETY: the counters of this CPU, which only these programs write.
        unsafe { (*counters).ends_unseen += 1 };
        let earliest_ns = before_ns.max(since_ns);
        let end_ns = earliest_ns.wrapping_add(now_ns.saturating_sub(earliest_ns) / 2);
        close(thread, tid, end_ns, counters);
    }
}

/// Adds a wait to the sums of its thread; false if it is not to be believed.
#[inline(always)]
fn add(
    thread: &mut WaitingThread,
    since_ns: u64,
    now_ns: u64,
    counters: *mut WaitCounters,
) -> bool {
    // SAFETY: the counters of this CPU, which only these programs write.
    let counters = unsafe { &mut *counters };
    if now_ns < since_ns {
        counters.negative += 1;
        return false;
    }
    let duration_ns = now_ns - since_ns;
    if duration_ns > WAIT_NS_MAX {
        counters.absurd += 1;
        return false;
    }
    let class = u64::from(thread.class);
    let thread = &raw mut *thread;
    let at = offset_of!(WaitingThread, sums);
    // SAFETY: an array of that many sums.
    let sums = unsafe { place::<WAIT_CLASSES, ClassTotals, _>(thread, at, class) };
    // SAFETY: an element of the map's value.
    let sums = unsafe { &mut *sums.cast_mut() };
    sums.ns += duration_ns;
    sums.count += 1;
    counters.waits += 1;
    true
}

/// The current thread loses the CPU, which switched last at `before_ns`.
#[inline(always)]
fn go(
    preempted: bool,
    (before_ns, now_ns): (u64, u64),
    counters: *mut WaitCounters,
) -> Option<Wanted> {
    let ids = bpf_get_current_pid_tgid();
    let (tid, tgid) = (low32(ids), low32(ids >> 32));
    if tid == 0 {
        return None;
    }
    let (flags, state) = flags_and_state();
    if flags & KERNEL_THREAD != 0 || FILTERED.load() == 1 && FILTER.get_ptr(tgid).is_none() {
        return None;
    }
    let desk = WAIT_DESK.get_ptr_mut(0)?;
    if state & DEAD != 0 {
        end(tid, (before_ns, now_ns), desk, counters);
        return None;
    }
    let thread = thread(ids, desk, counters)?;
    // SAFETY: a value of the map, which this CPU alone writes now (see the module).
    let thread = unsafe { &mut *thread };
    close_unseen(thread, tid, (before_ns, now_ns), counters);
    let mut facts = WaitFacts {
        class: 0,
        chance: 0,
        syscall: 0,
        arguments: [0; 3],
        form: 0,
        stack_pointer: 0,
        ip: 0,
    };
    let gap_ns = if preempted || state == 0 {
        facts.class = WaitClass::Preempted as u32; // wherever it was, it waits for nothing
        WAIT_GAP_NS_PREEMPTED
    } else {
        let is_compat = registers::of_syscall(&mut facts);
        facts.class = class(state, facts.syscall, is_compat);
        if facts.class == WaitClass::Futex as u32 {
            facts.form = libc_locks::form(tid, facts.arguments[0], facts.stack_pointer);
            if facts.form != 0 {
                facts.class = WaitClass::Lock as u32;
            }
        }
        agent_ebpf::chance::gap_ns(leave(thread, &facts, now_ns), now_ns)
    };
    thread.class = facts.class;
    thread.sampled = 0;
    // SAFETY: a field of the value. Volatile: it makes the wait last once all else is written.
    unsafe { (&raw mut thread.since_ns).write_volatile(now_ns) };
    facts.chance = chance::of_stack(desk, chance::bucket(facts.class, tgid), now_ns, gap_ns);
    if !chance::is_met(facts.chance) {
        // SAFETY: the counters of this CPU, which only these programs write.
        unsafe { (*counters).stacks_held += 1 };
        return None;
    }
    Some(Wanted { ids, now_ns, facts })
}

/// When the thread waited in this place before; from now on it is now.
#[inline(always)]
fn leave(thread: &mut WaitingThread, facts: &WaitFacts, now_ns: u64) -> u64 {
    let site = agent_ebpf::chance::site(facts.ip, facts.stack_pointer);
    let thread = &raw mut *thread;
    // SAFETY: an array of that many times.
    let left =
        unsafe { place::<WAIT_SITES, u64, _>(thread, offset_of!(WaitingThread, left_ns), site) };
    // SAFETY: an element of the map's value.
    let before = unsafe { left.read() };
    // SAFETY: as above.
    unsafe { left.cast_mut().write(now_ns) };
    before
}

/// `flags` and the state of the current thread. The state may be a waker's already, which is not zero either
/// (`TASK_WAKING`, kernel/sched/core.c, `try_to_wake_up`: it becomes zero only after this switch).
#[inline(always)]
fn flags_and_state() -> (u32, u32) {
    let (flags, state) = (TASK_FLAGS_OFFSET.load(), TASK_STATE_OFFSET.load());
    if USER_REGISTERS.load() == UserRegisters::Helper as u32 {
        // SAFETY: a helper without preconditions.
        let task: *const u32 = unsafe { bpf_get_current_task_btf() }.cast();
        // SAFETY: the offset of a field of a structure that the verifier knows.
        let field =
            |offset: u32| unsafe { task.wrapping_byte_add(offset as usize).read_volatile() };
        return (field(flags), field(state));
    }
    // SAFETY: a helper without preconditions.
    let task = unsafe { bpf_get_current_task() };
    let field = |offset: u32| low32(read_kernel(task.wrapping_add(u64::from(offset))));
    (field(flags), field(state))
}

#[inline(always)]
fn class(state: u32, syscall: u64, is_compat: bool) -> u32 {
    if state & STOPPED != 0 || is_compat {
        return WaitClass::Other as u32;
    }
    if syscall == u64::MAX {
        return WaitClass::PageFault as u32;
    }
    if syscall >= SYSCALL_NUMBERS as u64 {
        return WaitClass::Other as u32;
    }
    // SAFETY: the table has that many elements.
    let class = unsafe { place::<SYSCALL_NUMBERS, u8, _>(&raw const CLASSES, 0, syscall) };
    // SAFETY: an element of the table. Volatile, because the loader may have put another table in its place.
    u32::from(unsafe { class.read_volatile() })
}

/// The entry of a thread, a new one if it has none. An entry of the same number may be of a thread that is gone:
/// one that executes a program takes its leader's number, and leaves its own behind.
#[inline(always)]
fn thread(ids: u64, desk: *mut Desk, counters: *mut WaitCounters) -> Option<*mut WaitingThread> {
    let (tid, tgid) = (low32(ids), low32(ids >> 32));
    if let Some(thread) = THREADS.get_ptr_mut(tid) {
        // SAFETY: a value of the map.
        if unsafe { (*thread).tgid } == tgid {
            return Some(thread);
        }
    }
    // SAFETY: a value of the map, which only this CPU uses.
    let new = unsafe { &mut (*desk).thread };
    new.tgid = tgid;
    // SAFETY: the helper writes at most 16 bytes, with a NUL at the end. It fails only without a task.
    let _ = unsafe { bpf_get_current_comm((&raw mut new.comm).cast(), 16) };
    let new: &WaitingThread = new;
    if THREADS.insert(tid, new, 0).is_err() {
        // SAFETY: the counters of this CPU, which only these programs write.
        unsafe { (*counters).threads_refused += 1 };
        return None;
    }
    THREADS.get_ptr_mut(tid)
}

/// A thread is over: its sums go to the agent, its entry goes.
#[inline(always)]
fn end(tid: u32, (before_ns, now_ns): (u64, u64), desk: *mut Desk, counters: *mut WaitCounters) {
    libc_locks::forget(tid);
    let Some(thread) = THREADS.get_ptr_mut(tid) else { return };
    // SAFETY: a value of the map, which this CPU alone writes now.
    close_unseen(unsafe { &mut *thread }, tid, (before_ns, now_ns), counters);
    // SAFETY: a value of the map, which only this CPU uses.
    let end = unsafe { &mut (*desk).end };
    end.kind = RecordKind::ThreadEnd as u32;
    end.tid = tid;
    end.time_ns = now_ns;
    // SAFETY: a value of the map, which this CPU alone writes now; the desk is in another one.
    unsafe { core::ptr::copy_nonoverlapping(thread.cast_const(), &raw mut end.thread, 1) };
    if !output(&*end) {
        // SAFETY: the counters of this CPU, which only these programs write.
        unsafe { (*counters).threads_lost += 1 };
    }
    let _gone_now = THREADS.remove(tid);
}

/// Puts a record into the ring; false if it is full. The reader looks by itself.
#[inline(always)]
fn output<T>(record: &T) -> bool {
    // SAFETY: the helper copies `size_of` bytes of the record, which has no padding.
    let result = unsafe {
        bpf_ringbuf_output(
            (&raw const WAITS).cast_mut().cast(),
            (&raw const *record).cast_mut().cast(),
            size_of::<T>() as u64,
            u64::from(BPF_RB_NO_WAKEUP),
        )
    };
    result == 0
}
