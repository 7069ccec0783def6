//! From a frame to its caller by a rule. Reads the stack through [`Memory`]; knows no table.

use super::{ADDRESS_END, ADDRESS_MIN, Memory, Registers, Step, Walk};
use crate::verifier::element;
use crate::{Outcome, REGISTERS, RuleKind, UnwindRule};
use core::mem::offset_of;

/// Goes to the caller by `rule`.
#[inline(always)]
pub(super) fn apply(walk: &mut Walk, memory: &impl Memory, rule: UnwindRule) -> Step {
    let kind = rule.kind;
    let innermost = walk.innermost == 1;
    walk.innermost = 0;
    let offset = i64::from(rule.offset).cast_unsigned();
    let addend = i64::from(rule.addend).cast_unsigned();
    if kind == RuleKind::RspOffset as u8 {
        return by_cfa(walk, memory, rule, walk.sp.wrapping_add(offset));
    }
    if kind == RuleKind::RbpOffset as u8 {
        return by_cfa(walk, memory, rule, walk.bp.wrapping_add(offset));
    }
    if kind == RuleKind::NoInfo as u8 || kind == RuleKind::FramePointer as u8 {
        if rule.addend != 0 {
            return to_other_stack(walk, memory);
        }
        return by_frame_pointer(walk, memory, rule);
    }
    if kind == RuleKind::End as u8 {
        return Err(Outcome::Complete);
    }
    if kind == RuleKind::Plt as u8 {
        let pushed = u64::from((walk.ip & 15) >= addend) << 3;
        return by_cfa(walk, memory, rule, walk.sp.wrapping_add(8 + pushed));
    }
    if kind == RuleKind::DerefRbp as u8 || kind == RuleKind::DerefRsp as u8 {
        let base = if kind == RuleKind::DerefRbp as u8 { walk.bp } else { walk.sp };
        let cfa = read_word(memory, base.wrapping_add(offset))?.wrapping_add(addend);
        return by_cfa(walk, memory, rule, cfa);
    }
    if kind == RuleKind::Signal as u8 {
        return by_signal_frame(walk, memory, walk.sp.wrapping_add(offset));
    }
    if kind == RuleKind::LeafRegister as u8 && innermost {
        return by_cfa(walk, memory, rule, register(walk, rule).wrapping_add(offset));
    }
    if kind == RuleKind::ReturnRegister as u8 && innermost {
        return by_return_register(walk, memory, rule);
    }
    if kind == RuleKind::SavedRegister as u8 {
        let bx = saved_bx(walk, memory, walk.sp.wrapping_add(offset))?;
        return by_cfa(walk, memory, rule, bx.wrapping_add(addend));
    }
    if kind == RuleKind::ReturnsTwice as u8 {
        if innermost && walk.registers.general[Registers::AX] == 0 {
            return Err(Outcome::Complete);
        }
        return by_cfa(walk, memory, rule, walk.sp.wrapping_add(offset));
    }
    Err(Outcome::RuleUnsupported)
}

/// The register that the rule names.
#[inline(always)]
fn register(walk: &Walk, rule: UnwindRule) -> u64 {
    let number = i64::from(rule.addend).cast_unsigned();
    // SAFETY: that is the array of the general registers.
    unsafe {
        element::<REGISTERS, u64, _>(
            &raw const walk.registers,
            offset_of!(Registers, general),
            number,
        )
    }
}

/// The frame's rbx, which its callee keeps at `slot` as long as that is the callee's.
#[inline(always)]
fn saved_bx(walk: &Walk, memory: &impl Memory, slot: u64) -> Result<u64, Outcome> {
    if walk.exact == 1 || slot < walk.registers.general[Registers::SP] {
        return Ok(walk.registers.general[Registers::BX]);
    }
    read_word(memory, slot)
}

/// The caller's frame, where the return address is in a register: the stack pointer may already be the
/// caller's.
#[inline(always)]
fn by_return_register(walk: &mut Walk, memory: &impl Memory, rule: UnwindRule) -> Step {
    let cfa = walk.sp.wrapping_add(i64::from(rule.offset).cast_unsigned());
    let bp = caller_bp(walk, memory, rule, cfa)?;
    if cfa == walk.sp {
        walk.sp = walk.sp.wrapping_sub(8); // once a walk, so the stack still grows
    }
    to_caller(walk, register(walk, rule), cfa, bp)
}

/// The caller's rbp.
#[inline(always)]
fn caller_bp(
    walk: &Walk,
    memory: &impl Memory,
    rule: UnwindRule,
    cfa: u64,
) -> Result<u64, Outcome> {
    if rule.rbp == 0 && rule.rbp_from_rbp == 0 {
        return Ok(walk.bp);
    }
    let base = if rule.rbp_from_rbp == 0 { cfa } else { walk.bp };
    let distance = i64::from(rule.rbp) * 8;
    read_word(memory, base.wrapping_add(distance.cast_unsigned()))
}

/// The caller's frame, where the canonical frame address is known.
#[inline(always)]
fn by_cfa(walk: &mut Walk, memory: &impl Memory, rule: UnwindRule, cfa: u64) -> Step {
    walk.by_frame_pointer = 0;
    if rule.rbp == -2 && rule.rbp_from_rbp == 0 {
        // The usual place, next to the return address: one read for both.
        let [bp, ip] = read(memory, cfa.wrapping_sub(16))?;
        return to_caller(walk, ip, cfa, bp);
    }
    let bp = caller_bp(walk, memory, rule, cfa)?;
    let ip = read_word(memory, cfa.wrapping_sub(8))?;
    to_caller(walk, ip, cfa, bp)
}

/// The caller's frame by the frame-pointer chain. Where the code is not known to keep one, rbp may be any
/// number: what it leads to is a frame only if it lies behind a call.
#[inline(always)]
fn by_frame_pointer<M: Memory>(walk: &mut Walk, memory: &M, rule: UnwindRule) -> Step {
    let certain = rule.kind == RuleKind::FramePointer as u8;
    if walk.exact == 1
        && let Some(saved) = frame_being_made(memory, walk.ip)
    {
        return by_stack_top(walk, memory, saved);
    }
    let bp = walk.bp;
    if bp == 0 && (certain || walk.by_frame_pointer == 1) {
        return Err(Outcome::Complete); // the ABI's mark of the outermost frame
    }
    if bp < walk.sp || bp & 7 != 0 {
        return Err(Outcome::NoUnwindInfo);
    }
    let [caller_bp, ip] = read(memory, bp)?;
    let mut unchecked = 0;
    // Virtual machines push return addresses themselves, so code made at run time is not asked.
    if !certain && rule.reserved == 0 && ip != 0 && !behind_call(memory, ip) {
        // A child has no page of code that it never ran itself, but it does have the frames of its parent (kernel
        // mm/memory.c, `vma_needs_copy`): there the tables must know the address.
        if !M::CODE_MAY_BE_ABSENT || memory.code_before(ip) != Some(0) {
            return Err(Outcome::NoUnwindInfo);
        }
        unchecked = 1;
    }
    walk.by_frame_pointer = 1;
    to_caller(walk, ip, bp.wrapping_add(16), caller_bp)?;
    walk.unchecked = unchecked;
    Ok(())
}

/// True if the instruction before `ip` can be a call (Intel's manual, volume 2, CALL: E8 with four bytes, or FF
/// with 2 in the middle of the next byte), or if `ip` is where a signal handler returns to.
#[inline(always)]
pub(super) fn behind_call(memory: &impl Memory, ip: u64) -> bool {
    const RETURN_FROM_SIGNAL: u32 = 0x0fc0_c748; // mov $15, %rax
    let Some(code) = memory.code_before(ip) else { return true };
    // `FF /2` at 2, 3, 4, 6 or 7 bytes before the end.
    let indirect = |bytes: u32| (code >> (64 - 8 * bytes)) & 0x38ff == 0x10ff;
    (code >> 24) & 0xff == 0xe8
        || indirect(2)
        || indirect(3)
        || indirect(4)
        || indirect(6)
        || indirect(7)
        || memory.code(ip) == Some(RETURN_FROM_SIGNAL)
}

/// True or false if the interrupted instruction begins or ends a function, so that rbp is still or again
/// the caller's: true if the caller's rbp is on top of the stack, above the return address; false if the
/// return address is. Without this the direct caller of every such leaf would be missing, and the chain
/// be lost where the caller uses rbp for something else.
#[inline(always)]
fn frame_being_made(memory: &impl Memory, ip: u64) -> Option<bool> {
    let code = memory.code(ip)?;
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
fn by_stack_top(walk: &mut Walk, memory: &impl Memory, saved: bool) -> Step {
    let [top, above] = read(memory, walk.sp)?;
    walk.by_frame_pointer = 1;
    if saved {
        to_caller(walk, above, walk.sp.wrapping_add(16), top)
    } else {
        to_caller(walk, top, walk.sp.wrapping_add(8), walk.bp)
    }
}

/// The caller's frame by the frame pointer, which is known to be good, on whichever stack it lies. The
/// limits of frames and time bound a chain that goes round.
#[inline(always)]
fn to_other_stack(walk: &mut Walk, memory: &impl Memory) -> Step {
    let bp = walk.bp;
    let [caller_bp, ip] = read(memory, bp)?;
    walk.by_frame_pointer = 0;
    walk.sp = 0; // nothing is known of how the stacks lie to each other
    to_caller(walk, ip, bp.wrapping_add(16), caller_bp)
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
fn by_signal_frame(walk: &mut Walk, memory: &impl Memory, address: u64) -> Step {
    const RBP: u64 = 120;
    let [bp, bx, _rdx, _rax, _rcx, sp, ip] = read(memory, address.wrapping_add(RBP))?;
    if !(ADDRESS_MIN..ADDRESS_END).contains(&ip) {
        return Err(Outcome::ReturnAddressInvalid);
    }
    walk.ip = ip;
    walk.sp = sp;
    walk.bp = bp;
    walk.exact = 1;
    walk.by_frame_pointer = 0;
    walk.registers.general[Registers::BX] = bx;
    walk.registers.general[Registers::SP] = sp;
    Ok(())
}

#[inline(always)]
fn read_word(memory: &impl Memory, address: u64) -> Result<u64, Outcome> {
    let [word] = read(memory, address)?;
    Ok(word)
}

#[inline(always)]
fn read<const N: usize>(memory: &impl Memory, address: u64) -> Result<[u64; N], Outcome> {
    memory.read(address).ok_or(Outcome::StackUnreadable)
}
