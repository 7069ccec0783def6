//! The walk of a user stack, one frame at a time: the rule of the frame's address, then the frame's caller by
//! that rule. Where no row covers an address, the frame-pointer chain is followed.
//!
//! It is generic over what it reads, so that one text runs in the BPF programs, in the agent (over stacks that
//! were copied) and in tests that drive it over hostile tables. It decides nothing about the sample, and
//! its caller bounds the frames and the time.

mod caller;
pub mod search;

use crate::{Outcome, REGISTERS, UnwindRule};

/// The memory of the thread that is walked.
pub trait Memory {
    /// True if code that is there may not be readable: its page is not in memory.
    const CODE_MAY_BE_ABSENT: bool;

    /// Reads consecutive words of the stack; `None` if one cannot be read.
    fn read<const N: usize>(&self, address: u64) -> Option<[u64; N]>;

    /// Four bytes of code, the first in the low byte; `None` if they cannot be read.
    fn code(&self, address: u64) -> Option<u32>;

    /// The eight bytes of code before `address`, the last one in the high byte; 0 if they cannot be read.
    /// `None` where code is never there to read.
    fn code_before(&self, address: u64) -> Option<u64>;
}

/// The unwind rules of the process that is walked.
pub trait Rules {
    /// The rule that holds at `pc`.
    ///
    /// # Errors
    /// If there is none, with the outcome that the walk then has.
    fn rule_at(&self, pc: u64) -> Result<UnwindRule, Outcome>;
}

/// The user registers of a thread.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Registers {
    /// General registers by their DWARF numbers (System V ABI for x86-64, figure 3.36).
    pub general: [u64; REGISTERS],
    /// The instruction pointer.
    pub ip: u64,
    /// The code segment, which tells user code from the kernel's and 32-bit code from 64-bit.
    pub cs: u64,
}

impl Registers {
    /// Number of rax.
    pub const AX: usize = 0;
    /// Number of rbx.
    pub const BX: usize = 3;
    /// Number of rbp.
    pub const BP: usize = 6;
    /// Number of rsp.
    pub const SP: usize = 7;
}

/// The state of a walk between two frames.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Walk {
    /// Address of the frame: of an instruction, or a return address.
    pub ip: u64,
    /// Its stack pointer.
    pub sp: u64,
    /// Its frame pointer.
    pub bp: u64,
    /// 1 if `ip` is the address of an instruction, 0 if it is a return address.
    pub exact: u32,
    /// 1 if the frame was reached by a frame pointer.
    by_frame_pointer: u32,
    /// 1 in the innermost frame, where all registers are known.
    innermost: u32,
    /// 1 if the frame was reached by a frame pointer, and its code cannot be read to see a call before it.
    unchecked: u32,
    /// The registers of the innermost frame; behind a signal frame, rbx and rsp are those that it interrupted.
    pub registers: Registers,
}

/// How one step ended; `Err` ends the walk.
pub type Step = Result<(), Outcome>;

/// Lowest address that can be code: page 0 is never mapped.
const ADDRESS_MIN: u64 = 4096;
/// First address behind user space with five-level page tables.
const ADDRESS_END: u64 = 1 << 56;

impl Walk {
    /// Begins at the innermost frame of a thread, whose registers are in `self.registers`.
    #[inline(always)]
    pub fn begin(&mut self) {
        self.resume(
            self.registers.ip,
            self.registers.general[Registers::SP],
            self.registers.general[Registers::BP],
            1,
        );
        self.innermost = 1;
    }

    /// Goes on at a frame that was found before. `exact` is as in the walk.
    #[inline(always)]
    pub fn resume(&mut self, ip: u64, sp: u64, bp: u64, exact: u32) {
        self.ip = ip;
        self.sp = sp;
        self.bp = bp;
        self.exact = exact;
        self.by_frame_pointer = 0;
        self.innermost = 0;
        self.unchecked = 0;
    }

    /// True if there is code at the frame's address, as far as anybody can tell without a table: it was
    /// interrupted there, or the address lies behind a call.
    #[inline(always)]
    pub fn is_plausible(&self, memory: &impl Memory) -> bool {
        self.exact == 1 || caller::behind_call(memory, self.ip)
    }

    /// True after a step that failed if the frame where it did is none: nothing tells that there is code.
    #[inline(always)]
    pub fn is_unchecked(&self) -> bool {
        self.unchecked == 1
    }

    /// Goes to the caller of the current frame.
    ///
    /// # Errors
    /// If that was the last one ([`Outcome::Complete`]) or the next cannot be found.
    #[inline(always)]
    pub fn step(&mut self, memory: &impl Memory, rules: &impl Rules) -> Step {
        // A return address can be the first one behind the function, if the call was its last instruction.
        let pc = self.ip.wrapping_sub(u64::from(1 - (self.exact & 1)));
        let rule = match rules.rule_at(pc) {
            Ok(rule) => rule,
            Err(_) if self.unchecked == 1 => return Err(Outcome::NoUnwindInfo),
            Err(outcome) => return Err(outcome),
        };
        self.unchecked = 0;
        caller::apply(self, memory, rule)
    }
}

#[cfg(test)]
mod tests;
