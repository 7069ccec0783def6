//! The record that a run of any kind fills in the scratch of its CPU: who is running, where the user walk begins, and how
//! it ended. Which clock or probe called, and which ring the record goes into, is its program's.

use super::maps::{PROCESSES, Record, Scratch};
use super::walker::State;
use super::{notes, registers, roots, walker};
use agent_ebpf::limits::RECORD_FRAMES;
use agent_ebpf::verifier::{below, low32};
use agent_ebpf::{Counters, Outcome, ProcessEntry, RecordKind, SampleHeader, WaitFacts};
use aya_ebpf::bindings::BPF_RB_FORCE_WAKEUP;
use aya_ebpf::helpers::generated::{
    bpf_get_current_cgroup_id, bpf_get_current_comm, bpf_get_smp_processor_id,
};

/// Bytes of the largest record.
pub(super) const BYTES_MAX: u64 = size_of::<Record>() as u64;

/// The header, with what is known before the walk. `ids` are those of the current thread.
#[inline(always)]
pub(super) fn fill_header(scratch: *mut Scratch, kind: RecordKind, ids: u64, time_ns: u64) {
    let header = SampleHeader {
        kind: kind as u32,
        // SAFETY: a helper without preconditions.
        cpu: unsafe { bpf_get_smp_processor_id() },
        tgid: low32(ids >> 32),
        tid: low32(ids),
        time_ns,
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
    // SAFETY: a value of a scratch map, which only this run uses.
    unsafe { (*scratch).record.header = header };
    // SAFETY: only an address is taken.
    let comm = unsafe { &raw mut (*scratch).record.header.comm };
    // SAFETY: the helper writes at most 16 bytes, with a NUL at the end. It fails only without a task.
    let _ = unsafe { bpf_get_current_comm(comm.cast(), 16) };
}

/// Writes what stands in front of the frames, which has no padding.
#[inline(always)]
pub(super) fn write_facts<T>(scratch: *mut Scratch, facts: T) {
    // SAFETY: only an address is taken.
    let frames = unsafe { &raw mut (*scratch).record.frames };
    // SAFETY: the facts are the first words of the frames.
    unsafe { frames.cast::<T>().write(facts) };
}

/// The class of the wait whose facts were written.
#[inline(always)]
pub(super) fn class_of_wait(scratch: *const Scratch) -> u32 {
    // SAFETY: only an address is taken.
    let facts = unsafe { &raw const (*scratch).record.frames };
    // SAFETY: the facts are the first words of the frames.
    unsafe { (*facts.cast::<WaitFacts>()).class }
}

/// Prepares the walk of the user stack; false if there is none to walk.
#[inline(always)]
pub(super) fn begin_walk(scratch: *mut Scratch, counters: *mut Counters, tgid: u32) -> bool {
    // SAFETY: a value of a scratch map, which only this run uses.
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
        notes::send(counters, tgid, 0, start_ns, BPF_RB_FORCE_WAKEUP);
    }
    walker::push(scratch); // the leaf is known even where nothing else is
    false
}

/// Tells the header how the walk ended. `all`: see [`roots::close`].
#[inline(always)]
pub(super) fn close_walk(scratch: *mut Scratch, counters: *mut Counters, all: bool) {
    roots::close(scratch, counters, all);
    write_outcome(scratch);
    // SAFETY: a value of a scratch map, which only this run uses.
    let state = unsafe { &(*scratch).state };
    // SAFETY: as above.
    let header = unsafe { &mut (*scratch).record.header };
    if state.outcome != Outcome::Complete as u32 {
        header.root_frames = low16(state.root_frames);
    }
    // A table that is being made needs no note, but one that was removed does: the agent is to be woken.
    let missed = state.outcome == Outcome::MappingUnknown as u32
        || state.outcome == Outcome::TablePending as u32;
    if missed {
        notes::send(counters, header.tgid, state.walk.ip, state.start_ns, BPF_RB_FORCE_WAKEUP);
    }
}

/// The end of a walk of which no root frames are known.
#[inline(always)]
pub(super) fn write_outcome(scratch: *mut Scratch) {
    // SAFETY: a value of a scratch map, which only this run uses.
    let state = unsafe { &(*scratch).state };
    // SAFETY: as above.
    let header = unsafe { &mut (*scratch).record.header };
    header.generation = state.process.generation;
    header.outcome = low16(state.outcome);
    header.kernel_frames = low16(state.kernel_frames);
    header.user_frames = low16(roots::recorded(state));
}

/// Frames of the record.
#[inline(always)]
pub(super) fn frames(state: &State) -> u64 {
    u64::from(state.kernel_frames) + u64::from(roots::recorded(state))
}

/// Bytes of a record with so many frames.
#[inline(always)]
pub(super) fn bytes(frames: u64) -> u64 {
    size_of::<SampleHeader>() as u64 + below::<RECORD_FRAMES>(frames) * 8
}

#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "counts below 2048 and outcomes below 16")]
fn low16(value: u32) -> u16 {
    value as u16
}
