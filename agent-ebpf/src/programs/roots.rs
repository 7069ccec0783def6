//! A stack that is cut keeps its root. The outermost frames of a thread hardly ever change, so they are
//! remembered when a walk reaches them: each with the place on the stack where its return address lies. When a
//! later walk is cut, those that still lie there are sent behind its frames.
//!
//! Where nothing is known of a thread yet, the walk goes on beyond its frames as a scout, which sends none of
//! them; if its time is over before it reaches the root, the next run goes on from there.
//!
//! What is remembered is a guess until it is read again. A place above the stack pointer that holds the same
//! address as before is that frame's, unless the frame returned and a later one leaves the place untouched in
//! a hole of its own: only the innermost of the frames can be wrong in that way. Another thread with the
//! same number cannot come by these frames: the mappings' generation differs, and within a process the
//! outermost frames of two threads that have the same stack are the same functions.

use super::maps::{ROOTS, Scratch};
use super::walker::{State, UserMemory};
use agent_ebpf::limits::{
    RECORD_FRAMES, ROOT_DEPTH_MIN, ROOT_FRAMES_MAX, ROOT_THREADS_MAX, USER_FRAMES_MAX,
};
use agent_ebpf::verifier::{limit32, low32, place};
use agent_ebpf::walk::Memory as _;
use agent_ebpf::{Counters, Outcome};

/// One frame and where it lies.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct RootFrame {
    /// The return address.
    pub(super) ip: u64,
    /// The stack pointer behind it: the return address lies 8 bytes below. 0 for an exact frame, which has no
    /// such place.
    pub(super) sp: u64,
}

/// What is remembered of a thread.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Thread {
    /// Process and thread.
    key: u64,
    generation: u32,
    /// How many frames are known.
    frames: u32,
    /// Outermost first.
    roots: [RootFrame; ROOT_FRAMES_MAX],
    /// Where a scout stopped; its frame pointer is `scout_bp`.
    scout: RootFrame,
    scout_bp: u64,
}

const FRAMES_MAX: u32 = limit32(USER_FRAMES_MAX);
const ROOTS_MAX: u32 = limit32(ROOT_FRAMES_MAX);

/// The place of the thread that is walked, and its key.
#[inline(always)]
fn place_of_thread(scratch: *mut Scratch) -> Option<(*mut Thread, u64)> {
    const BITS: u32 = ROOT_THREADS_MAX.trailing_zeros();
    // SAFETY: a value of the scratch map, which only this CPU's sampler uses.
    let header = unsafe { &(*scratch).record.header };
    let key = u64::from(header.tgid) << 32 | u64::from(header.tid);
    let slot = key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - BITS); // Fibonacci hashing
    Some((ROOTS.get_ptr_mut(low32(slot))?, key))
}

/// What is remembered of the thread that is walked, if anything is.
#[inline(always)]
fn known_thread(scratch: *mut Scratch) -> Option<*mut Thread> {
    let (thread, key) = place_of_thread(scratch)?;
    // SAFETY: a value of the map. Another CPU may write it for another thread at this moment: what is read
    // then is checked on the stack like everything else.
    let of = unsafe { (*thread).key };
    // SAFETY: as above.
    let generation = unsafe { (*thread).generation };
    // SAFETY: as in `place_of_thread`.
    let process = unsafe { (*scratch).state.process };
    (of == key && generation == process.generation).then_some(thread)
}

/// After [`USER_FRAMES_MAX`] frames: true if the walk goes on as a scout, false if it ends here.
#[inline(always)]
pub(super) fn scouts(scratch: *mut Scratch) -> bool {
    // SAFETY: as in `place_of_thread`.
    let state = unsafe { &mut (*scratch).state };
    if state.user_frames != FRAMES_MAX {
        return true; // it does already
    }
    state.cut_sp = state.walk.sp;
    let Some(thread) = known_thread(scratch) else { return true };
    append(scratch, thread);
    if state.root_frames != 0 {
        return false;
    }
    // SAFETY: as in `known_thread`.
    let scout = unsafe { (*thread).scout };
    if scout.sp > state.walk.sp && still_there(scout) {
        // SAFETY: as in `known_thread`.
        let bp = unsafe { (*thread).scout_bp };
        state.walk.resume(scout.ip, scout.sp, bp, 0);
    }
    true
}

/// After the walk: remembers its root, or appends the one that is remembered. `all`: also a walk of a few
/// frames leaves its root.
#[inline(always)]
pub(super) fn close(scratch: *mut Scratch, counters: *mut Counters, all: bool) {
    // SAFETY: as in `place_of_thread`.
    let state = unsafe { &mut (*scratch).state };
    let complete = state.outcome == Outcome::Complete as u32;
    let scouted = state.user_frames > FRAMES_MAX;
    let cut =
        state.outcome == Outcome::TimeLimit as u32 || state.outcome == Outcome::DepthLimit as u32;
    if complete && (all || state.user_frames >= ROOT_DEPTH_MIN) {
        remember(scratch);
    }
    if scouted && !complete {
        leave_scout(scratch, cut);
        state.outcome = Outcome::DepthLimit as u32;
    } else if scouted || cut {
        if !scouted {
            state.cut_sp = state.walk.sp;
        }
        if state.root_frames == 0
            && let Some(thread) = known_thread(scratch)
        {
            append(scratch, thread);
        }
        if scouted {
            state.outcome = Outcome::DepthLimit as u32;
        }
        if state.whole == 1 {
            state.outcome = Outcome::Complete as u32; // the root begins where the walk was cut
            return;
        }
    } else {
        return;
    }
    // SAFETY: the counters of this CPU, which only this program writes.
    let counters = unsafe { &mut *counters };
    if state.root_frames == 0 {
        counters.roots_unknown += 1;
    } else {
        counters.roots += 1;
    }
}

/// Frames of the record, root frames included.
#[inline(always)]
pub(super) fn recorded(state: &State) -> u32 {
    let walked = if state.user_frames > FRAMES_MAX { FRAMES_MAX } else { state.user_frames };
    walked + state.root_frames
}

/// Remembers the last frames of a walk that reached its root.
#[inline(always)]
fn remember(scratch: *mut Scratch) {
    let Some((thread, key)) = place_of_thread(scratch) else { return };
    // SAFETY: as in `place_of_thread`.
    let state = unsafe { &(*scratch).state };
    // SAFETY: a value of the map; see `known_thread`.
    let thread = unsafe { &mut *thread };
    thread.key = key;
    thread.generation = state.process.generation;
    thread.frames = if state.user_frames < ROOTS_MAX { state.user_frames } else { ROOTS_MAX };
    for number in 0..ROOT_FRAMES_MAX as u64 {
        let frame = root(&state.last, u64::from(state.user_frames).wrapping_sub(1 + number));
        let to = root(&thread.roots, number);
        // SAFETY: an element of the state of this CPU.
        let frame = unsafe { frame.read() };
        // SAFETY: an element of the map's value.
        unsafe { to.cast_mut().write(frame) };
    }
}

/// Remembers where a scout stopped; `again`: it can go on from there.
#[inline(always)]
fn leave_scout(scratch: *mut Scratch, again: bool) {
    let Some((thread, key)) = place_of_thread(scratch) else { return };
    // SAFETY: as in `place_of_thread`.
    let state = unsafe { &(*scratch).state };
    // SAFETY: a value of the map; see `known_thread`.
    let thread = unsafe { &mut *thread };
    thread.key = key;
    thread.generation = state.process.generation;
    thread.frames = 0;
    thread.scout = RootFrame { ip: state.walk.ip, sp: state.walk.sp * u64::from(again) };
    thread.scout_bp = state.walk.bp;
}

/// One of the frames.
#[inline(always)]
fn root(frames: *const [RootFrame; ROOT_FRAMES_MAX], number: u64) -> *const RootFrame {
    // SAFETY: the array has that many elements.
    unsafe { place::<ROOT_FRAMES_MAX, RootFrame, _>(frames, 0, number) }
}

/// Puts the root frames that still lie on the stack, beyond where the walk was cut, behind the record's frames.
#[inline(always)]
fn append(scratch: *mut Scratch, thread: *const Thread) {
    // SAFETY: as in `place_of_thread`.
    let state = unsafe { &mut (*scratch).state };
    // SAFETY: only an address is taken.
    let roots = unsafe { &raw const (*thread).roots };
    // SAFETY: a value of the map; see `known_thread`.
    let known = u64::from(unsafe { (*thread).frames });
    let mut found = 0;
    while found < ROOT_FRAMES_MAX as u64 {
        // SAFETY: an element of the map's value.
        let frame = unsafe { root(roots, found).read() };
        // From the outermost on: the first that is not there, or was walked, ends them.
        if found >= known || frame.sp < state.cut_sp || !still_there(frame) {
            break;
        }
        found += 1;
        state.whole = u32::from(frame.sp == state.cut_sp);
    }
    let first = u64::from(state.kernel_frames) + u64::from(recorded(state));
    for number in 0..ROOT_FRAMES_MAX as u64 {
        if number >= found {
            break;
        }
        // SAFETY: as above.
        let frame = unsafe { root(roots, found - 1 - number).read() };
        // SAFETY: only an address is taken.
        let frames = unsafe { &raw mut (*scratch).record.frames };
        // SAFETY: the record has that many frames.
        let place = unsafe { place::<RECORD_FRAMES, u64, _>(frames, 0, first + number) };
        // SAFETY: an element of the record of this CPU.
        unsafe { place.cast_mut().write(frame.ip) };
    }
    state.root_frames = low32(found);
}

/// True if the frame's return address lies on the stack.
#[inline(always)]
fn still_there(frame: RootFrame) -> bool {
    frame.sp >= 8 && UserMemory.read(frame.sp.wrapping_sub(8)) == Some([frame.ip])
}
