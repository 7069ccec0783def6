//! Runs the library's walk over user memory and the agent's tables, one frame at a time, and writes the frames
//! into the record. It decides nothing about the sample.

use super::maps::{CHUNK_STARTS, PAGE_SLABS, PAGE_STARTS, RECENT, RULES, SLABS, Scratch};
use super::roots::RootFrame;
use agent_ebpf::limits::{
    CHUNKS_MAX, FRAMES_PER_CLOCK_READ, MAPPING_PAGES_MAX, PAGE_SLAB_PAGES, RECENT_RULES,
    RECORD_FRAMES, ROOT_FRAMES_MAX, SLAB_CHUNKS, USER_FRAMES_MAX,
};
use agent_ebpf::verifier::{below, limit32, low32, place};
use agent_ebpf::walk::search::{self, Tables};
use agent_ebpf::walk::{Memory, Rules, Step, Walk};
use agent_ebpf::{Chunk, FRAME_EXACT, MappingPage, Outcome, ProcessEntry, UnwindRule};
use aya_ebpf::helpers::generated::{bpf_ktime_get_ns, bpf_probe_read_user};
use core::ffi::c_void;
use core::mem::MaybeUninit;

/// What is known of the current walk, in the scratch map.
#[repr(C)]
pub(super) struct State {
    pub(super) walk: Walk,
    /// When the program began.
    pub(super) start_ns: u64,
    /// How long it may take, in nanoseconds.
    pub(super) walk_ns_max: u64,
    pub(super) process: ProcessEntry,
    pub(super) kernel_frames: u32,
    /// Frames walked, also those that a scout walked and that are not in the record.
    pub(super) user_frames: u32,
    /// Root frames in the record, behind the others.
    pub(super) root_frames: u32,
    /// 1 if the first root frame is the one at which the walk was cut.
    pub(super) whole: u32,
    /// The stack pointer where the walk was cut: beyond it, no frame is in the record.
    pub(super) cut_sp: u64,
    /// An [`Outcome`]; what it would be if no more frames were walked.
    pub(super) outcome: u32,
    /// Tail calls made so far.
    pub(super) calls: u32,
    /// Always 0, and never known to be that.
    pub(super) zero: u64,
    /// The last frames, each at its number modulo their count.
    pub(super) last: [RootFrame; ROOT_FRAMES_MAX],
}

/// The memory of the current process.
pub(super) struct UserMemory;

impl Memory for UserMemory {
    const CODE_MAY_BE_ABSENT: bool = true;

    #[inline(always)]
    fn read<const N: usize>(&self, address: u64) -> Option<[u64; N]> {
        // Not initialised: LLVM would do that with a loop over bytes, in every frame.
        let mut words = MaybeUninit::<[u64; N]>::uninit();
        // SAFETY: the helper checks the address and writes exactly the size of `words`, zeros if it fails.
        let result = unsafe {
            bpf_probe_read_user(
                words.as_mut_ptr().cast(),
                const { limit32(N * 8) },
                address as *const c_void,
            )
        };
        // SAFETY: the helper wrote them.
        (result == 0).then(|| unsafe { words.assume_init() })
    }

    #[inline(always)]
    fn code(&self, address: u64) -> Option<u32> {
        let mut code = 0u32;
        // SAFETY: the helper checks the address and writes four bytes.
        let result =
            unsafe { bpf_probe_read_user((&raw mut code).cast(), 4, address as *const c_void) };
        (result == 0).then_some(code)
    }

    #[inline(always)]
    fn code_before(&self, address: u64) -> Option<u64> {
        let [code] = self.read(address.wrapping_sub(8)).unwrap_or([0]);
        Some(code)
    }
}

/// The rule of an address that was walked through lately. Generations are given out once, each for one layout
/// of one process, so what was found then holds as long as the process is walked with it.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct RecentRule {
    pc: u64,
    generation: u32,
    rule: UnwindRule,
    unused: u64,
}

/// Rules that share a place, the one that was used last first: a cache line.
type RecentPair = [RecentRule; 2];
/// Places for them.
const RECENT_PAIRS: usize = RECENT_RULES / 2;

impl RecentRule {
    #[inline(always)]
    fn is_of(&self, pc: u64, generation: u32) -> bool {
        self.pc == pc && self.generation == generation
    }
}

/// The tables in the maps.
struct Maps {
    process: ProcessEntry,
    zero: u64,
}

impl Rules for Maps {
    #[inline(always)]
    fn rule_at(&self, pc: u64) -> Result<UnwindRule, Outcome> {
        let generation = self.process.generation;
        let recent = RECENT.get_ptr_mut(0).ok_or(Outcome::TableCorrupt)?;
        let slot = (pc ^ u64::from(generation) << 32).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        // SAFETY: the value is an array of that many pairs.
        let pair = unsafe { place::<RECENT_PAIRS, RecentPair, _>(recent, 0, slot) }.cast_mut();
        // SAFETY: an element of this CPU's array, which only its sampler uses.
        let [first, second] = unsafe { &mut *pair };
        if !first.is_of(pc, generation) {
            let newer = *first;
            if second.is_of(pc, generation) {
                *first = *second;
            } else {
                let rule = search::rule_at(self, self.process, self.zero, pc)?;
                *first = RecentRule { pc, generation, rule, unused: 0 };
            }
            *second = newer;
        }
        // Read again in all cases, so that the verifier goes on from one state.
        let rule = &raw const first.rule;
        // SAFETY: as above.
        Ok(unsafe { rule.read_volatile() })
    }
}

/// The tables, searched each time.
struct Alone(Maps);

impl Rules for Alone {
    #[inline(always)]
    fn rule_at(&self, pc: u64) -> Result<UnwindRule, Outcome> {
        search::rule_at(&self.0, self.0.process, self.0.zero, pc)
    }
}

impl Tables for Maps {
    #[inline(always)]
    fn page(&self, index: u64) -> Option<&MappingPage> {
        let inner = low32(below::<PAGE_SLAB_PAGES>(index));
        PAGE_SLABS.get_value(low32(index / PAGE_SLAB_PAGES as u64), &inner)
    }

    #[inline(always)]
    fn page_starts(&self) -> Option<&[u64; MAPPING_PAGES_MAX]> {
        PAGE_STARTS.get(0)
    }

    #[inline(always)]
    fn chunk(&self, index: u64) -> Option<&Chunk> {
        let inner = low32(below::<SLAB_CHUNKS>(index));
        SLABS.get_value(low32(index / SLAB_CHUNKS as u64), &inner)
    }

    #[inline(always)]
    fn chunk_starts(&self) -> Option<&[u32; CHUNKS_MAX]> {
        CHUNK_STARTS.get(0)
    }

    #[inline(always)]
    fn rule(&self, number: u64) -> Option<UnwindRule> {
        RULES.get(low32(number)).copied()
    }
}

/// One frame; false if the walk ended, with its outcome in the scratch.
#[inline(always)]
pub(super) fn walk_on(scratch: *mut Scratch) -> bool {
    match step(scratch) {
        Ok(()) => true,
        Err(outcome) => {
            // SAFETY: a value of a scratch map, which only this run uses.
            unsafe { (*scratch).state.outcome = outcome as u32 };
            false
        }
    }
}

/// Records the current frame and goes to its caller. `Err` ends the walk.
#[inline(always)]
fn step(scratch: *mut Scratch) -> Step {
    // SAFETY: the caller's pointer is a value of the scratch map, which only this CPU's sampler uses.
    let frames = unsafe { (*scratch).state.user_frames };
    // SAFETY: as above.
    let start_ns = unsafe { (*scratch).state.start_ns };
    let look = frames % const { limit32(FRAMES_PER_CLOCK_READ) } == 0;
    // SAFETY: as above.
    let walk_ns_max = unsafe { (*scratch).state.walk_ns_max };
    if look && frames != 0 && late(start_ns, walk_ns_max) {
        return Err(Outcome::TimeLimit);
    }
    push(scratch);
    // SAFETY: as above.
    let state = unsafe { &mut (*scratch).state };
    let maps = Maps { process: state.process, zero: state.zero };
    let step = state.walk.step(&UserMemory, &maps);
    kept(state, step)
}

/// As [`step`], without the rules found lately and without a look at the clock: for programs that can be preempted.
#[inline(always)]
pub(super) fn step_alone(scratch: *mut Scratch) -> Step {
    push(scratch);
    // SAFETY: the caller's pointer is a value of a scratch map that its program has for itself.
    let state = unsafe { &mut (*scratch).state };
    let maps = Maps { process: state.process, zero: state.zero };
    let step = state.walk.step(&UserMemory, &Alone(maps));
    kept(state, step)
}

/// Takes back the frame that was recorded last if the step from it says that it is none.
#[inline(always)]
fn kept(state: &mut State, step: Step) -> Step {
    if step.is_err() && state.walk.is_unchecked() {
        state.user_frames -= 1;
    }
    step
}

/// Records the current frame, unless the record is full, and remembers where its return address lies.
#[inline(always)]
pub(super) fn push(scratch: *mut Scratch) {
    // SAFETY: as in `step`.
    let state = unsafe { &mut (*scratch).state };
    let walk = &state.walk;
    if state.user_frames < const { limit32(USER_FRAMES_MAX) } {
        let index = u64::from(state.kernel_frames) + u64::from(state.user_frames);
        // SAFETY: only an address is taken.
        let frames = unsafe { &raw mut (*scratch).record.frames };
        // SAFETY: the record has that many frames.
        let place = unsafe { place::<RECORD_FRAMES, u64, _>(frames, 0, index) };
        let frame = walk.ip | (u64::from(walk.exact) * FRAME_EXACT);
        // SAFETY: an element of the record of this CPU.
        unsafe { place.cast_mut().write(frame) };
    }
    let number = u64::from(state.user_frames);
    let frame = RootFrame { ip: walk.ip, sp: walk.sp * u64::from(1 - (walk.exact & 1)) };
    // SAFETY: the array has that many elements.
    let place = unsafe { place::<ROOT_FRAMES_MAX, RootFrame, _>(&raw const state.last, 0, number) };
    // SAFETY: an element of the state of this CPU.
    unsafe { place.cast_mut().write(frame) };
    state.user_frames += 1;
}

#[inline(always)]
fn late(start_ns: u64, walk_ns_max: u64) -> bool {
    // SAFETY: a helper without preconditions.
    let now_ns = unsafe { bpf_ktime_get_ns() };
    now_ns.wrapping_sub(start_ns) > walk_ns_max
}
