//! From one row of call frame information to one [`UnwindRule`]: what the walker in the kernel can
//! follow, and `Unsupported` for everything else, never a guess. System V ABI for x86-64.

use crate::limits::UNWIND_OPERATIONS_MAX;
use agent_ebpf::{REGISTERS, RuleKind, UnwindRule};
use gimli::{
    CfaRule, EndianSlice, Expression, LittleEndian, Operation, Register, RegisterRule,
    UnwindExpression, UnwindSection, UnwindTableRow,
};

/// How the bytes of a section are read.
pub(super) type Bytes<'a> = EndianSlice<'a, LittleEndian>;

pub(super) const RBX: Register = Register(3);
const RBP: Register = Register(6);
pub(super) const RSP: Register = Register(7);
const RETURN_ADDRESS: Register = Register(16);
/// Where a call leaves the return address, relative to the CFA.
const RETURN_ADDRESS_OFFSET: i64 = -8;
/// `ucontext_t` to its saved rsp: `uc_flags`, `uc_link`, `uc_stack` (40 bytes), then `gregs[REG_RSP]`
/// (kernel 6.18, arch/x86/include/uapi/asm/sigcontext.h).
const UCONTEXT_RSP: i64 = 160;

const UNSUPPORTED: UnwindRule = UnwindRule::plain(RuleKind::Unsupported);

/// Translates one row. `signal` says that the frame was made by a signal (augmentation `S`).
pub(super) fn translate<'a, S: UnwindSection<Bytes<'a>>>(
    section: &S,
    row: &UnwindTableRow<usize>,
    return_address: Register,
    signal: bool,
) -> UnwindRule {
    if signal {
        return signal_rule(section, row).unwrap_or(UNSUPPORTED);
    }
    if return_address != RETURN_ADDRESS {
        return UNSUPPORTED;
    }
    let rule = match row.register(return_address) {
        Some(RegisterRule::Undefined) => return UnwindRule::plain(RuleKind::End),
        Some(RegisterRule::Offset(RETURN_ADDRESS_OFFSET)) => cfa_rule(section, row.cfa()),
        Some(RegisterRule::Register(register)) => return_register_rule(row.cfa(), register),
        _ => None,
    };
    rule.and_then(|rule| with_rbp(section, rule, row.register(RBP))).unwrap_or(UNSUPPORTED)
}

/// The return address was taken off the stack into a register (vfork of the C library).
fn return_register_rule(cfa: &CfaRule<usize>, register: Register) -> Option<UnwindRule> {
    let CfaRule::RegisterAndOffset { register: RSP, offset } = *cfa else { return None };
    let offset = i32::try_from(offset).ok()?;
    let addend = general(register)?;
    Some(UnwindRule { offset, addend, ..UnwindRule::plain(RuleKind::ReturnRegister) })
}

/// The number of a general register, as rules name it.
fn general(register: Register) -> Option<i32> {
    (usize::from(register.0) < REGISTERS).then_some(i32::from(register.0))
}

fn cfa_rule<'a, S: UnwindSection<Bytes<'a>>>(
    section: &S,
    cfa: &CfaRule<usize>,
) -> Option<UnwindRule> {
    let (kind, offset, addend) = match *cfa {
        CfaRule::RegisterAndOffset { register: RSP, offset } => (RuleKind::RspOffset, offset, 0),
        CfaRule::RegisterAndOffset { register: RBP, offset } => (RuleKind::RbpOffset, offset, 0),
        // Assembly, and the first instructions of functions that align their frame: none of them makes
        // a call before the CFA is found in another way. For glibc's `_dl_runtime_resolve` see `callee`.
        CfaRule::RegisterAndOffset { register, offset } => {
            (RuleKind::LeafRegister, offset, i64::from(general(register)?))
        }
        CfaRule::Expression(expression) => cfa_expression(section, expression)?,
    };
    let offset = i32::try_from(offset).ok()?;
    let addend = i32::try_from(addend).ok()?;
    Some(UnwindRule { offset, addend, ..UnwindRule::plain(kind) })
}

/// The shapes of CFA expressions that compilers, linkers and known assembly write.
fn cfa_expression<'a, S: UnwindSection<Bytes<'a>>>(
    section: &S,
    expression: UnwindExpression<usize>,
) -> Option<(RuleKind, i64, i64)> {
    let operations = operations(section, expression)?;
    match *operations.as_slice() {
        // GNU ld and lld for `.plt`: the second half of a 16-byte stub runs after a push.
        [
            Step::Register(RSP, 8),
            Step::Register(RETURN_ADDRESS, 0),
            Step::Constant(15),
            Step::And,
            Step::Constant(pushed_at),
            Step::Ge,
            Step::Constant(3),
            Step::Shl,
            Step::Plus,
        ] if (0..=16).contains(&pushed_at) => Some((RuleKind::Plt, 0, pushed_at)),
        [Step::Register(register, offset), Step::Deref] => Some((deref_kind(register)?, offset, 0)),
        [Step::Register(register, offset), Step::Deref, Step::Add(addend)]
        | [Step::Register(register, offset), Step::Deref, Step::Constant(addend), Step::Plus] => {
            Some((deref_kind(register)?, offset, addend))
        }
        _ => None,
    }
}

fn deref_kind(register: Register) -> Option<RuleKind> {
    match register {
        RBP => Some(RuleKind::DerefRbp),
        RSP => Some(RuleKind::DerefRsp),
        _ => None,
    }
}

/// Adds where the caller's rbp is.
fn with_rbp<'a, S: UnwindSection<Bytes<'a>>>(
    section: &S,
    rule: UnwindRule,
    rbp: Option<RegisterRule<usize>>,
) -> Option<UnwindRule> {
    let (offset, from_rbp) = match rbp {
        // Lost (`Undefined`) is treated as unchanged: a caller that needs rbp for its own CFA saved it.
        None | Some(RegisterRule::Undefined | RegisterRule::SameValue) => return Some(rule),
        // Zero would say "unchanged".
        Some(RegisterRule::Offset(offset)) if offset != 0 => (offset, 0),
        Some(RegisterRule::Expression(expression)) => {
            let operations = operations(section, expression)?;
            let [Step::Register(RBP, offset)] = *operations.as_slice() else { return None };
            (offset, 1)
        }
        Some(_) => return None,
    };
    if offset % 8 != 0 {
        return None;
    }
    Some(UnwindRule { rbp: i8::try_from(offset / 8).ok()?, rbp_from_rbp: from_rbp, ..rule })
}

/// A signal frame's CFA is the saved rsp; from it follows where the `ucontext_t` is.
fn signal_rule<'a, S: UnwindSection<Bytes<'a>>>(
    section: &S,
    row: &UnwindTableRow<usize>,
) -> Option<UnwindRule> {
    let CfaRule::Expression(expression) = *row.cfa() else { return None };
    let operations = operations(section, expression)?;
    let [Step::Register(RSP, at), Step::Deref] = *operations.as_slice() else { return None };
    let offset = i32::try_from(at.checked_sub(UCONTEXT_RSP)?).ok()?;
    Some(UnwindRule { offset, ..UnwindRule::plain(RuleKind::Signal) })
}

/// The operations of which understood expressions consist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Register(Register, i64),
    Constant(i64),
    Add(i64),
    Deref,
    And,
    Ge,
    Shl,
    Plus,
}

fn operations<'a, S: UnwindSection<Bytes<'a>>>(
    section: &S,
    expression: UnwindExpression<usize>,
) -> Option<Vec<Step>> {
    let encoding = gimli::Encoding { address_size: 8, format: gimli::Format::Dwarf32, version: 4 };
    let expression: Expression<Bytes<'a>> = expression.get(section).ok()?;
    let mut input = expression.operations(encoding);
    let mut steps = Vec::with_capacity(UNWIND_OPERATIONS_MAX);
    while let Some(operation) = input.next().ok()? {
        if steps.len() == UNWIND_OPERATIONS_MAX {
            return None;
        }
        steps.push(match operation {
            Operation::RegisterOffset { register, offset, .. } => Step::Register(register, offset),
            Operation::UnsignedConstant { value } => Step::Constant(i64::try_from(value).ok()?),
            Operation::SignedConstant { value } => Step::Constant(value),
            Operation::PlusConstant { value } => Step::Add(i64::try_from(value).ok()?),
            Operation::Deref { size: 8, space: false, .. } => Step::Deref,
            Operation::And => Step::And,
            Operation::Ge => Step::Ge,
            Operation::Shl => Step::Shl,
            Operation::Plus => Step::Plus,
            _ => return None,
        });
    }
    Some(steps)
}
