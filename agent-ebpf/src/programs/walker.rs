//! Walks the user stack, one frame at a time, with the tables that the agent loaded. Where no row covers
//! an address, the frame-pointer chain is followed. It reads user memory and the tables, writes frames
//! into the record, and says how it ended; it decides nothing about the sample.

use super::maps::{CHUNK_STARTS, PAGE_SLABS, PAGE_STARTS, RULES, Record, SLABS, Scratch};
use super::registers::{self, Registers};
use super::verifier::{at_most, below, element, limit32, low32, place};
use agent_ebpf::limits::{
    CHUNK_ROWS, CHUNKS_MAX, FRAMES_PER_CLOCK_READ, MAPPING_PAGES_MAX, MAPPINGS_PER_PAGE,
    PAGE_SLAB_PAGES, RECORD_FRAMES, SLAB_CHUNKS, WALK_NS_MAX,
};
use agent_ebpf::{
    Chunk, FRAME_EXACT, MappingPage, MappingTarget, Outcome, ProcessEntry, REGISTERS, RuleKind,
    UnwindRule,
};
use aya_ebpf::helpers::generated::{bpf_ktime_get_ns, bpf_probe_read_user};
use core::mem::offset_of;

/// The state of a walk between two frames.
#[repr(C)]
pub(super) struct Walk {
    pub(super) ip: u64,
    pub(super) sp: u64,
    pub(super) bp: u64,
    /// When the program began.
    pub(super) start_ns: u64,
    pub(super) process: ProcessEntry,
    /// 1 if `ip` is the address of an instruction, 0 if it is a return address.
    pub(super) exact: u32,
    /// 1 if the frame was reached by a frame pointer.
    pub(super) by_frame_pointer: u32,
    /// 1 in the innermost frame, where all registers are known.
    innermost: u32,
    pub(super) kernel_frames: u32,
    pub(super) user_frames: u32,
    /// An [`Outcome`]; what it would be if no more frames were walked.
    pub(super) outcome: u32,
    /// Tail calls made so far.
    pub(super) calls: u32,
    unused: u32,
    /// Always 0, and never known to be that: a search that starts from a literal is unrolled by the
    /// verifier into all its paths.
    zero: u64,
}

/// How one step ended.
pub(super) type Step = Result<(), Outcome>;

/// Lowest address that can be code: page 0 is never mapped.
const ADDRESS_MIN: u64 = 4096;
/// First address behind user space with five-level page tables.
const ADDRESS_END: u64 = 1 << 56;

impl Walk {
    /// Sets up the walk of a process from the registers of its thread.
    #[inline(always)]
    pub(super) fn begin(&mut self, registers: &Registers, process: ProcessEntry) {
        self.ip = registers.ip;
        self.sp = registers.general[registers::SP];
        self.bp = registers.general[registers::BP];
        self.process = process;
        self.exact = 1;
        self.by_frame_pointer = 0;
        self.innermost = 1;
        self.outcome = Outcome::DepthLimit as u32;
        self.calls = 0;
    }
}

/// Records the current frame and goes to its caller. `Err` ends the walk.
#[inline(always)]
pub(super) fn step(scratch: *mut Scratch) -> Step {
    // SAFETY: the caller's pointer is a value of the scratch map, which only this CPU's sampler uses.
    let walk = unsafe { &mut (*scratch).walk };
    // SAFETY: only an address is taken.
    let record = unsafe { &raw mut (*scratch).record };
    push(walk, record);
    if walk.user_frames % const { limit32(FRAMES_PER_CLOCK_READ) } == 0 && late(walk.start_ns) {
        return Err(Outcome::TimeLimit);
    }
    // A return address can be the first one behind the function, if the call was its last instruction.
    let pc = walk.ip - u64::from(1 - (walk.exact & 1));
    let rule = find_rule(walk, pc)?;
    // SAFETY: as for the walk; the two are different fields.
    apply(walk, unsafe { &(*scratch).registers }, rule)
}

/// Records the current frame.
#[inline(always)]
pub(super) fn push(walk: &mut Walk, record: *mut Record) {
    let index = u64::from(walk.kernel_frames) + u64::from(walk.user_frames);
    let frame = walk.ip | (u64::from(walk.exact) * FRAME_EXACT);
    // SAFETY: the record has that many frames.
    let place =
        unsafe { place::<RECORD_FRAMES, u64, _>(record, offset_of!(Record, frames), index) };
    // SAFETY: an element of the record of this CPU.
    unsafe { place.cast_mut().write(frame) };
    walk.user_frames += 1;
}

#[inline(always)]
fn late(start_ns: u64) -> bool {
    // SAFETY: a helper without preconditions.
    let now_ns = unsafe { bpf_ktime_get_ns() };
    now_ns.wrapping_sub(start_ns) > WALK_NS_MAX
}

/// The rule at `pc`.
#[inline(always)]
fn find_rule(walk: &Walk, pc: u64) -> Result<UnwindRule, Outcome> {
    let page_index = find_page(walk, pc)?;
    let inner = low32(below::<PAGE_SLAB_PAGES>(page_index));
    let slab = low32(page_index / PAGE_SLAB_PAGES as u64);
    let page = PAGE_SLABS.get_value(slab, &inner).ok_or(Outcome::TableCorrupt)?;
    let mut slot = walk.zero;
    let mut step = MAPPINGS_PER_PAGE as u64 / 2;
    while step > 0 {
        slot += at_most(column(page, offset_of!(MappingPage, starts), slot + step), pc) * step;
        step /= 2;
    }
    let start = column(page, offset_of!(MappingPage, starts), slot);
    let end = column(page, offset_of!(MappingPage, ends), slot);
    if pc < start || pc >= end {
        return Err(Outcome::MappingUnknown);
    }
    let target = MappingTarget(column(page, offset_of!(MappingPage, targets), slot));
    let key = pc.wrapping_sub(column(page, offset_of!(MappingPage, biases), slot));
    let rule = if target.kind() == MappingTarget::KIND_TABLE {
        find_row(walk, target, key)?
    } else if target.kind() == MappingTarget::KIND_RULE {
        target.rule_index()
    } else {
        return Err(Outcome::TablePending);
    };
    RULES.get(low32(rule)).copied().ok_or(Outcome::TableCorrupt)
}

/// One element of the column of a page that begins at byte `column`.
#[inline(always)]
fn column(page: &MappingPage, column: usize, slot: u64) -> u64 {
    // SAFETY: each column of a page has that many elements.
    unsafe { element::<MAPPINGS_PER_PAGE, u64, _>(page, column, slot) }
}

/// The page of the process that `pc` would lie in.
#[inline(always)]
fn find_page(walk: &Walk, pc: u64) -> Result<u64, Outcome> {
    let first = u64::from(walk.process.first_page);
    let pages = u64::from(walk.process.pages);
    if pages <= 1 {
        return Ok(first); // nearly every process has fewer than 64 mappings
    }
    let starts = PAGE_STARTS.get(0).ok_or(Outcome::TableCorrupt)?;
    let mut page = walk.zero;
    let mut step = 64;
    while step > 0 {
        let next = page + step;
        // SAFETY: the flat array holds MAPPING_PAGES_MAX elements.
        let start = unsafe { element::<MAPPING_PAGES_MAX, u64, _>(starts, 0, first + next) };
        page += (at_most(next + 1, pages) & at_most(start, pc)) * step;
        step /= 2;
    }
    Ok(first + page)
}

/// The rule of the row at `key` of a table.
#[inline(always)]
fn find_row(walk: &Walk, target: MappingTarget, key: u64) -> Result<u64, Outcome> {
    if key >= u64::from(u32::MAX) {
        return Ok(0); // before the first row, or behind what 32 bits reach: NoInfo
    }
    let chunk =
        if target.chunks() <= 1 { target.first_chunk() } else { find_chunk(walk, target, key)? };
    let inner = low32(below::<SLAB_CHUNKS>(chunk));
    let rows =
        SLABS.get_value(low32(chunk / SLAB_CHUNKS as u64), &inner).ok_or(Outcome::TableCorrupt)?;
    let mut row = walk.zero;
    let mut step = CHUNK_ROWS as u64 / 2;
    while step > 0 {
        // SAFETY: the column holds that many rows.
        let pc: u32 =
            unsafe { element::<CHUNK_ROWS, u32, _>(rows, offset_of!(Chunk, pcs), row + step) };
        row += at_most(u64::from(pc), key) * step;
        step /= 2;
    }
    // SAFETY: the column holds that many rows.
    let rule: u16 = unsafe { element::<CHUNK_ROWS, u16, _>(rows, offset_of!(Chunk, rules), row) };
    Ok(u64::from(rule))
}

/// The chunk of a table that the row at `key` lies in.
#[inline(always)]
fn find_chunk(walk: &Walk, target: MappingTarget, key: u64) -> Result<u64, Outcome> {
    let starts = CHUNK_STARTS.get(0).ok_or(Outcome::TableCorrupt)?;
    let mut chunk = walk.zero;
    let mut step = 2048;
    while step > 0 {
        let next = chunk + step;
        // SAFETY: the flat array holds CHUNKS_MAX elements.
        let start: u32 =
            unsafe { element::<CHUNKS_MAX, u32, _>(starts, 0, target.first_chunk() + next) };
        chunk += (at_most(next + 1, target.chunks()) & at_most(u64::from(start), key)) * step;
        step /= 2;
    }
    Ok(target.first_chunk() + chunk)
}

/// Goes to the caller by `rule`.
#[inline(always)]
fn apply(walk: &mut Walk, registers: &Registers, rule: UnwindRule) -> Step {
    let kind = rule.kind;
    let innermost = walk.innermost == 1;
    walk.innermost = 0;
    let offset = i64::from(rule.offset).cast_unsigned();
    let addend = i64::from(rule.addend).cast_unsigned();
    if kind == RuleKind::RspOffset as u8 {
        return by_cfa(walk, rule, walk.sp.wrapping_add(offset));
    }
    if kind == RuleKind::RbpOffset as u8 {
        return by_cfa(walk, rule, walk.bp.wrapping_add(offset));
    }
    if kind == RuleKind::NoInfo as u8 || kind == RuleKind::FramePointer as u8 {
        if rule.addend != 0 {
            return to_other_stack(walk);
        }
        return by_frame_pointer(walk, kind == RuleKind::FramePointer as u8);
    }
    if kind == RuleKind::End as u8 {
        return Err(Outcome::Complete);
    }
    if kind == RuleKind::Plt as u8 {
        let pushed = u64::from((walk.ip & 15) >= addend) << 3;
        return by_cfa(walk, rule, walk.sp.wrapping_add(8 + pushed));
    }
    if kind == RuleKind::DerefRbp as u8 || kind == RuleKind::DerefRsp as u8 {
        let base = if kind == RuleKind::DerefRbp as u8 { walk.bp } else { walk.sp };
        let cfa = read_user(base.wrapping_add(offset))?.wrapping_add(addend);
        return by_cfa(walk, rule, cfa);
    }
    if kind == RuleKind::Signal as u8 {
        return by_signal_frame(walk, walk.sp.wrapping_add(offset));
    }
    if kind == RuleKind::LeafRegister as u8 && innermost {
        return by_cfa(walk, rule, register(registers, rule).wrapping_add(offset));
    }
    if kind == RuleKind::ReturnRegister as u8 && innermost {
        return by_return_register(walk, registers, rule);
    }
    Err(Outcome::RuleUnsupported)
}

/// The register that the rule names.
#[inline(always)]
fn register(registers: &Registers, rule: UnwindRule) -> u64 {
    let number = i64::from(rule.addend).cast_unsigned();
    // SAFETY: that is the array of the general registers.
    unsafe { element::<REGISTERS, u64, _>(registers, offset_of!(Registers, general), number) }
}

/// The caller's frame, where the return address is in a register: the stack pointer may already be the
/// caller's.
#[inline(always)]
fn by_return_register(walk: &mut Walk, registers: &Registers, rule: UnwindRule) -> Step {
    let cfa = walk.sp.wrapping_add(i64::from(rule.offset).cast_unsigned());
    let bp = caller_bp(walk, rule, cfa)?;
    if cfa == walk.sp {
        walk.sp = walk.sp.wrapping_sub(8); // once a walk, so the stack still grows
    }
    to_caller(walk, register(registers, rule), cfa, bp)
}

/// The caller's rbp.
#[inline(always)]
fn caller_bp(walk: &Walk, rule: UnwindRule, cfa: u64) -> Result<u64, Outcome> {
    if rule.rbp == 0 && rule.rbp_from_rbp == 0 {
        return Ok(walk.bp);
    }
    let base = if rule.rbp_from_rbp == 0 { cfa } else { walk.bp };
    let distance = i64::from(rule.rbp) * 8;
    read_user(base.wrapping_add(distance.cast_unsigned()))
}

/// The caller's frame, where the canonical frame address is known.
#[inline(always)]
fn by_cfa(walk: &mut Walk, rule: UnwindRule, cfa: u64) -> Step {
    walk.by_frame_pointer = 0;
    if rule.rbp == -2 && rule.rbp_from_rbp == 0 {
        let mut pair = [0u64; 2]; // the usual place, next to the return address: one read for both
        read_user_words(&mut pair, cfa.wrapping_sub(16))?;
        return to_caller(walk, pair[1], cfa, pair[0]);
    }
    let bp = caller_bp(walk, rule, cfa)?;
    let ip = read_user(cfa.wrapping_sub(8))?;
    to_caller(walk, ip, cfa, bp)
}

/// The caller's frame by the frame-pointer chain. `certain`: the code is known to keep one.
#[inline(always)]
fn by_frame_pointer(walk: &mut Walk, certain: bool) -> Step {
    if walk.exact == 1
        && let Some(saved) = frame_being_made(walk.ip)
    {
        return by_stack_top(walk, saved);
    }
    let bp = walk.bp;
    if bp == 0 && (certain || walk.by_frame_pointer == 1) {
        return Err(Outcome::Complete); // the ABI's mark of the outermost frame
    }
    if bp < walk.sp || bp & 7 != 0 {
        return Err(Outcome::NoUnwindInfo);
    }
    let mut pair = [0u64; 2];
    read_user_words(&mut pair, bp)?;
    walk.by_frame_pointer = 1;
    to_caller(walk, pair[1], bp.wrapping_add(16), pair[0])
}

/// True or false if the interrupted instruction begins or ends a function, so that rbp is still or again
/// the caller's: true if the caller's rbp is on top of the stack, above the return address; false if the
/// return address is. Without this the direct caller of every such leaf would be missing, and the chain
/// be lost where the caller uses rbp for something else.
#[inline(always)]
fn frame_being_made(ip: u64) -> Option<bool> {
    let mut code = [0u8; 4];
    // SAFETY: the helper checks the address and writes exactly the size of `code`.
    let result =
        unsafe { bpf_probe_read_user(code.as_mut_ptr().cast(), 4, ip as *const core::ffi::c_void) };
    let code = u32::from_le_bytes(code);
    if result != 0 {
        return None;
    }
    let first = code & 0xff;
    if first == 0x55 || first == 0xc3 || code == 0xfa1e_0ff3 {
        return Some(false); // push rbp; ret; endbr64
    }
    let three = code & 0x00ff_ffff;
    if three == 0xe5_8948 || three == 0xec_8b48 || first == 0x5d {
        return Some(true); // mov rbp, rsp in both encodings; pop rbp
    }
    None
}

/// The caller's frame, where the return address is on top of the stack, below the caller's rbp if that
/// is `saved`.
#[inline(always)]
fn by_stack_top(walk: &mut Walk, saved: bool) -> Step {
    let mut pair = [0u64; 2];
    read_user_words(&mut pair, walk.sp)?;
    walk.by_frame_pointer = 1;
    if saved {
        to_caller(walk, pair[1], walk.sp.wrapping_add(16), pair[0])
    } else {
        to_caller(walk, pair[0], walk.sp.wrapping_add(8), walk.bp)
    }
}

/// The caller's frame by the frame pointer, which is known to be good, on whichever stack it lies. The
/// limits of frames and time bound a chain that goes round.
#[inline(always)]
fn to_other_stack(walk: &mut Walk) -> Step {
    let bp = walk.bp;
    let mut pair = [0u64; 2];
    read_user_words(&mut pair, bp)?;
    walk.by_frame_pointer = 0;
    walk.sp = 0; // nothing is known of how the stacks lie to each other
    to_caller(walk, pair[1], bp.wrapping_add(16), pair[0])
}

/// Leaves the frame of a caller in `walk`, if it is one.
#[inline(always)]
fn to_caller(walk: &mut Walk, ip: u64, sp: u64, bp: u64) -> Step {
    if ip == 0 {
        return Err(Outcome::Complete);
    }
    if !(ADDRESS_MIN..ADDRESS_END).contains(&ip) {
        return Err(Outcome::ReturnAddressInvalid);
    }
    if sp <= walk.sp {
        return Err(Outcome::StackNotGrowing);
    }
    walk.ip = ip;
    walk.sp = sp;
    walk.bp = bp;
    walk.exact = 0;
    Ok(())
}

/// The frame that a signal interrupted: its registers lie in the `ucontext` at `address` (kernel
/// arch/x86/include/uapi/asm/sigcontext.h: the register block begins 40 bytes in, at r8). The stack need
/// not grow: the handler may run on a stack of its own.
#[inline(always)]
fn by_signal_frame(walk: &mut Walk, address: u64) -> Step {
    const RBP: u64 = 120;
    let mut words = [0u64; 7]; // rbp, rbx, rdx, rax, rcx, rsp, rip
    read_user_words(&mut words, address.wrapping_add(RBP))?;
    let ip = words[6];
    if !(ADDRESS_MIN..ADDRESS_END).contains(&ip) {
        return Err(Outcome::ReturnAddressInvalid);
    }
    walk.ip = ip;
    walk.sp = words[5];
    walk.bp = words[0];
    walk.exact = 1;
    walk.by_frame_pointer = 0;
    Ok(())
}

#[inline(always)]
fn read_user(address: u64) -> Result<u64, Outcome> {
    let mut word = [0u64; 1];
    read_user_words(&mut word, address)?;
    Ok(word[0])
}

#[inline(always)]
fn read_user_words<const N: usize>(words: &mut [u64; N], address: u64) -> Step {
    // SAFETY: the helper checks the address and writes exactly the size of `words`.
    let result = unsafe {
        bpf_probe_read_user(
            words.as_mut_ptr().cast(),
            const { limit32(N * 8) },
            address as *const core::ffi::c_void,
        )
    };
    if result == 0 { Ok(()) } else { Err(Outcome::StackUnreadable) }
}
