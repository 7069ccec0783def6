//! What one instruction does to the frame: where the stack pointer and the frame pointer stand below the CFA,
//! and where the caller's frame pointer lies. Not where control goes.

use agent_ebpf::{RuleKind, UnwindRule};
use iced_x86::{Instruction, InstructionInfoFactory, Mnemonic, OpKind, Register};

/// What a register holds, as far as rows need it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Value {
    Unknown,
    /// What the caller had in it; told of rbp only.
    Caller,
    /// The CFA minus so many bytes.
    Frame(i32),
    /// This address of the file.
    Address(u64),
}

/// The frame before an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct State {
    pub(super) sp: Value,
    pub(super) bp: Value,
    /// The one other register that is known: the last one that took such a value.
    copy: Option<(Register, Value)>,
    /// The caller's rbp lies so many bytes below the CFA.
    saved: Option<i32>,
}

/// Bytes below the stack pointer that belong to the frame (System V ABI for x86-64, section 3.2.2).
const RED_ZONE_BYTES: i32 = 128;

impl State {
    /// Behind a call: the return address is on top of the stack.
    pub(super) const ENTRY: Self =
        Self { sp: Value::Frame(8), bp: Value::Caller, copy: None, saved: None };

    /// Where a program begins, which nobody called.
    pub(super) const START: Self =
        Self { sp: Value::Unknown, bp: Value::Unknown, copy: None, saved: None };

    /// Somewhere in a function that keeps its frame in rbp.
    pub(super) const WITHIN: Self =
        Self { sp: Value::Unknown, bp: Value::Frame(16), copy: None, saved: Some(16) };

    /// True if the instruction that made `self` of `before` leaves a frame that is not the function's own: it takes
    /// the caller's rbp for the frame's place.
    pub(super) fn leaves_other_frame(&self, before: &Self, code: &Instruction) -> bool {
        let leaves = self.sp == Value::Caller || code.mnemonic() == Mnemonic::Leave;
        before.bp == Value::Caller && leaves
    }

    /// True where the function has nothing of its own on the stack, as at its entry.
    pub(super) fn is_unwound(&self) -> bool {
        self.sp == Self::ENTRY.sp && self.bp == Self::ENTRY.bp
    }

    /// The row; none if it does not follow from the code.
    pub(super) fn rule(&self) -> Option<UnwindRule> {
        let (kind, offset) = match (self.sp, self.bp) {
            // A frame of this shape keeps its rbp: one row for all of it.
            (_, Value::Frame(16)) if self.saved == Some(16) => (RuleKind::RbpOffset, 16),
            (Value::Frame(depth), _) => (RuleKind::RspOffset, depth),
            (_, Value::Frame(depth)) => (RuleKind::RbpOffset, depth),
            _ => return None,
        };
        // What lies above the return address is another function's.
        (offset >= 8).then_some(())?;
        let rbp = match (self.bp, self.saved) {
            (Value::Caller, _) => 0,
            (_, Some(saved)) if saved % 8 == 0 && saved > 0 => i8::try_from(-saved / 8).ok()?,
            // The caller's own rows may need it.
            _ => return None,
        };
        Some(UnwindRule { offset, rbp, ..UnwindRule::plain(kind) })
    }

    /// What holds on both of two ways.
    pub(super) fn join(self, other: Self) -> Self {
        let both = |a, b| if a == b { a } else { Value::Unknown };
        Self {
            sp: both(self.sp, other.sp),
            bp: both(self.bp, other.bp),
            copy: self.copy.filter(|_| self.copy == other.copy),
            saved: self.saved.filter(|_| self.saved == other.saved),
        }
    }

    /// The value of a whole register.
    pub(super) fn get(&self, register: Register) -> Value {
        match (register, self.copy) {
            (Register::RSP, _) => self.sp,
            (Register::RBP, _) => self.bp,
            (_, Some((copy, value))) if copy == register => value,
            _ => Value::Unknown,
        }
    }

    fn set(&mut self, register: Register, value: Value) {
        match register {
            Register::RSP => self.move_stack(value),
            Register::RBP => self.bp = value,
            _ if matches!(value, Value::Frame(_) | Value::Address(_)) => {
                self.copy = Some((register, value));
            }
            _ if self.copy.is_some_and(|(copy, _)| copy == register) => self.copy = None,
            _ => {}
        }
    }

    /// What the stack pointer has gone above is free to be overwritten.
    fn move_stack(&mut self, value: Value) {
        self.sp = value;
        if let Value::Frame(depth) = value {
            self.saved = self.saved.filter(|&saved| saved <= depth);
        }
    }

    fn grow_stack(&mut self, bytes: i32) {
        self.move_stack(moved(self.sp, i64::from(-bytes)));
    }

    /// Takes the effect of an instruction that is no jump and no return.
    pub(super) fn step(&mut self, code: &Instruction, info: &mut InstructionInfoFactory) {
        let (to, from) = (code.op0_register(), code.op1_register());
        let into_register = code.op0_kind() == OpKind::Register && to.is_gpr64();
        let by = immediate(code);
        match (code.mnemonic(), by) {
            (Mnemonic::Push, _) => {
                self.grow_stack(-code.stack_pointer_increment());
                self.store(self.sp, 8, code.op0_kind() == OpKind::Register && to == Register::RBP);
            }
            (Mnemonic::Pop, _) if into_register => {
                let value = self.load(self.sp, to);
                self.grow_stack(-8);
                self.set(to, value);
            }
            (Mnemonic::Mov, _) if into_register && code.op1_kind() == OpKind::Register => {
                self.set(to, self.get(from));
            }
            (Mnemonic::Mov, _) if into_register && code.op1_kind() == OpKind::Memory => {
                self.set(to, self.load(self.address(code), to));
            }
            (Mnemonic::Lea, _) if into_register => self.set(to, self.address(code)),
            (Mnemonic::Add, Some(by)) if into_register => self.set(to, moved(self.get(to), by)),
            (Mnemonic::Sub, Some(by)) if into_register => {
                self.set(to, moved(self.get(to), by.wrapping_neg()));
            }
            (Mnemonic::Leave, _) => {
                self.sp = self.bp;
                self.bp = self.load(self.sp, Register::RBP);
                self.grow_stack(-8);
            }
            (Mnemonic::Call | Mnemonic::Syscall, _) => {
                // Functions and the kernel keep these (System V ABI for x86-64, figure 3.4).
                const KEPT: [Register; 5] =
                    [Register::RBX, Register::R12, Register::R13, Register::R14, Register::R15];
                self.copy = self.copy.filter(|(register, _)| KEPT.contains(register));
            }
            _ => self.step_by_effects(code, info),
        }
    }

    /// Any other instruction: what it may write is not known any more.
    fn step_by_effects(&mut self, code: &Instruction, info: &mut InstructionInfoFactory) {
        if code.is_stack_instruction() {
            self.grow_stack(-code.stack_pointer_increment());
            self.store(self.sp, 8, false);
        }
        if code.op0_kind() == OpKind::Memory && !reads_only(code.mnemonic()) {
            let size = i32::try_from(code.memory_size().size()).unwrap_or(i32::MAX);
            let is_rbp = code.mnemonic() == Mnemonic::Mov && code.op1_register() == Register::RBP;
            self.store(self.address(code), size, is_rbp);
        }
        if self.copy.is_none() && !names_frame(code) {
            return;
        }
        for used in info.info(code).used_registers() {
            use iced_x86::OpAccess::{CondWrite, ReadCondWrite, ReadWrite, Write};
            let register = used.register().full_register();
            let writes = matches!(used.access(), Write | CondWrite | ReadWrite | ReadCondWrite);
            if writes && (register != Register::RSP || !code.is_stack_instruction()) {
                self.set(register, Value::Unknown);
            }
        }
    }

    /// The address of the memory operand.
    fn address(&self, code: &Instruction) -> Value {
        if code.is_ip_rel_memory_operand() {
            return Value::Address(code.ip_rel_memory_address());
        }
        let plain = code.memory_index() == Register::None
            && code.segment_prefix() == Register::None
            && code.memory_base().is_gpr64();
        let by = code.memory_displacement64().cast_signed();
        if plain { moved(self.get(code.memory_base()), by) } else { Value::Unknown }
    }

    /// Writes memory, with the caller's rbp if `is_rbp` and rbp still has it.
    fn store(&mut self, at: Value, size: i32, is_rbp: bool) {
        let Value::Frame(slot) = at else { return };
        if is_rbp && self.bp == Value::Caller {
            let reach = match self.sp {
                Value::Frame(depth) => depth.saturating_add(RED_ZONE_BYTES),
                _ => 0,
            };
            // The first place is as good as any later one, and keeps longer.
            if slot > 8 && slot <= reach && self.saved.is_none() {
                self.saved = Some(slot);
            }
            return;
        }
        // Bytes `slot - size..slot` below the CFA, counted downwards, and eight at `saved`.
        let hit = |saved: i32| slot.saturating_sub(size) < saved && saved.saturating_sub(8) < slot;
        self.saved = self.saved.filter(|&saved| !hit(saved));
    }

    /// Reads eight bytes of memory into `to`.
    fn load(&self, at: Value, to: Register) -> Value {
        match at {
            Value::Frame(slot) if self.saved == Some(slot) && to == Register::RBP => Value::Caller,
            _ => Value::Unknown,
        }
    }
}

/// A register after `by` bytes were added to it.
fn moved(value: Value, by: i64) -> Value {
    let sum = |depth: i32| i32::try_from(i64::from(depth).checked_sub(by)?).ok();
    match value {
        Value::Frame(depth) => sum(depth).map_or(Value::Unknown, Value::Frame),
        _ => Value::Unknown,
    }
}

fn immediate(code: &Instruction) -> Option<i64> {
    match code.op1_kind() {
        OpKind::Immediate8to64 | OpKind::Immediate32to64 => Some(code.immediate(1).cast_signed()),
        _ => None,
    }
}

/// True if the instruction names one of the two registers of the frame.
fn names_frame(code: &Instruction) -> bool {
    (0..code.op_count()).any(|number| {
        code.op_kind(number) == OpKind::Register
            && matches!(code.op_register(number).full_register(), Register::RSP | Register::RBP)
    })
}

/// Instructions whose first operand is not written.
fn reads_only(mnemonic: Mnemonic) -> bool {
    matches!(mnemonic, Mnemonic::Cmp | Mnemonic::Test | Mnemonic::Nop)
}
