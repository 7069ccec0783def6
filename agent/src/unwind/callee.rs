//! Callers whose frame hangs on rbx, which their callee saves: glibc's `_dl_runtime_resolve` and `_dl_fixup`. Where the
//! callee keeps it follows from its call frame information, and from its code that it holds on every way.

use super::entries::{Entries, Format, Pair};
use super::rule::{Bytes, RBX, RSP};
use crate::elf::headers::Elf;
use crate::limits::{UNWIND_CALLEE_BYTES_MAX, UNWIND_CALLEES_MAX};
use agent_ebpf::walk::Registers;
use agent_ebpf::{RuleKind, UnwindRule};
use gimli::{BaseAddresses, CfaRule, RegisterRule, UnwindContext, UnwindSection};
use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, OpKind};
use std::ops::Range;

/// Looks at the callees of one file.
pub(super) struct Callees<'a> {
    elf: &'a Elf<'a>,
    pair: Pair,
    context: UnwindContext<usize>,
    /// How many may still be looked at.
    left: usize,
}

/// One row of a callee: from which address on, how many bytes the frame has, where rbx is saved from the CFA.
#[derive(Clone, Copy)]
struct CalleeRow {
    start: u64,
    depth: i64,
    saved: Option<i64>,
}

impl<'a> Callees<'a> {
    pub(super) fn new(elf: &'a Elf<'a>) -> Self {
        let context = UnwindContext::new();
        Self { elf, pair: Pair::default(), context, left: UNWIND_CALLEES_MAX }
    }

    /// What holds at the calls among the instructions in `row`, where `rule` holds otherwise.
    pub(super) fn at_calls(
        &mut self,
        row: Range<u64>,
        rule: UnwindRule,
        entries: &mut Entries<'_>,
        base: u64,
    ) -> Vec<(Range<u64>, UnwindRule)> {
        let hangs_on_rbx = rule.kind == RuleKind::LeafRegister as u8
            && usize::try_from(rule.addend) == Ok(Registers::BX);
        let mut found = Vec::new();
        if !hangs_on_rbx {
            return found;
        }
        for code in self.instructions(row) {
            let direct =
                code.flow_control() == FlowControl::Call && code.op0_kind() == OpKind::NearBranch64;
            if !direct || self.left == 0 {
                continue;
            }
            self.left -= 1;
            let Some(offset) = self.keeps_at(code.near_branch_target(), entries, base) else {
                continue;
            };
            let kind = RuleKind::SavedRegister as u8;
            let rule = UnwindRule { kind, offset, addend: rule.offset, ..rule };
            found.push((code.ip()..code.next_ip(), rule));
        }
        found
    }

    /// The instructions of a range, one behind the other; none if there are too many bytes.
    fn instructions(&self, range: Range<u64>) -> Vec<Instruction> {
        let size = range.end.saturating_sub(range.start);
        let bytes = self.elf.read_address("code", range.start, size, UNWIND_CALLEE_BYTES_MAX);
        let bytes = bytes.unwrap_or_default();
        Decoder::with_ip(64, &bytes, range.start, DecoderOptions::NONE).into_iter().collect()
    }

    /// Where `function` keeps its caller's rbx, in bytes from the caller's stack pointer. While that place is not the
    /// function's, the register has to have the value: else there is none.
    fn keeps_at(&mut self, function: u64, entries: &mut Entries<'_>, base: u64) -> Option<i32> {
        let start = u32::try_from(function.checked_sub(base)?).ok()?;
        let Self { pair, context, .. } = self;
        entries.pair(entries.number_at(start)?, pair)?;
        let (bases, at) = (pair.bases(), pair.function_at);
        let (rows, end) = match pair.format? {
            Format::EhFrame => rows_of(&pair.eh_frame(), &bases, at.into(), context)?,
            Format::DebugFrame => rows_of(&pair.debug_frame(), &bases, at.into(), context)?,
        };
        let saved = rows.iter().find_map(|row| row.saved)?;
        let owns = |row: &CalleeRow| row.depth >= -saved;
        let agree = |row: &CalleeRow| match row.saved {
            Some(other) => other == saved,
            None => !owns(row),
        };
        // Whoever it leaves for without its frame saves rbx elsewhere.
        let leaves = |code: &Instruction| {
            let inside = code.op0_kind() == OpKind::NearBranch64
                && (function..end).contains(&code.near_branch_target());
            let jumps = matches!(
                code.flow_control(),
                FlowControl::UnconditionalBranch
                    | FlowControl::ConditionalBranch
                    | FlowControl::IndirectBranch
            );
            let row = rows.partition_point(|row| row.start <= code.ip()).checked_sub(1);
            jumps && !inside && !row.and_then(|row| rows.get(row)).is_some_and(owns)
        };
        let code = self.instructions(function..end);
        let sound = saved < 0 && rows.iter().all(agree) && !code.is_empty();
        (sound && !code.iter().any(leaves)).then_some(i32::try_from(saved).ok()?)
    }
}

/// The rows of the function at `at`, and its end; none if it has a frame of another shape.
fn rows_of<'p, S: UnwindSection<Bytes<'p>>>(
    section: &S,
    bases: &BaseAddresses,
    at: S::Offset,
    context: &mut UnwindContext<usize>,
) -> Option<(Vec<CalleeRow>, u64)> {
    let fde = section.partial_fde_from_offset(bases, at).ok()?.parse(S::cie_from_offset).ok()?;
    let end = fde.initial_address().checked_add(fde.len())?;
    (fde.len() <= UNWIND_CALLEE_BYTES_MAX).then_some(())?;
    let mut rows = fde.rows(section, bases, context).ok()?;
    let mut found = Vec::new();
    while let Some(row) = rows.next_row().ok()? {
        let CfaRule::RegisterAndOffset { register: RSP, offset: depth } = *row.cfa() else {
            return None;
        };
        let saved = match row.register(RBX) {
            None | Some(RegisterRule::Undefined | RegisterRule::SameValue) => None,
            Some(RegisterRule::Offset(offset)) => Some(offset),
            Some(_) => return None,
        };
        found.push(CalleeRow { start: row.start_address(), depth, saved });
    }
    Some((found, end))
}
