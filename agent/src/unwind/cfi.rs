//! Call frame information (`.eh_frame`, `.debug_frame`) into rows, one function at a time. A damaged
//! function costs that function only.

use super::builder::{Builder, Origin};
use super::callee::Callees;
use super::entries::{Entries, Format, Pair};
use super::rule::{Bytes, translate};
use crate::limits::UNWIND_WORK_BYTES_MAX;
use agent_ebpf::{RuleKind, UnwindRule};
use gimli::{BaseAddresses, FrameDescriptionEntry, UnwindContext, UnwindSection};
use std::ops::Range;

/// Makes rows of the functions of [`Entries`].
pub(super) struct Compiler<'a> {
    /// Where code may be looked into.
    callees: Option<Callees<'a>>,
    pair: Pair,
    context: UnwindContext<usize>,
    /// Bytes of instructions run so far.
    work_bytes: u64,
}

impl<'a> Compiler<'a> {
    pub(super) fn new(callees: Option<Callees<'a>>) -> Self {
        Self { callees, pair: Pair::default(), context: UnwindContext::new(), work_bytes: 0 }
    }

    /// Adds the rows of one function.
    pub(super) fn add(
        &mut self,
        builder: &mut Builder<'_>,
        entries: &mut Entries<'_>,
        number: usize,
    ) {
        if self.work_bytes > UNWIND_WORK_BYTES_MAX {
            builder.losses.left_out += 1;
            return;
        }
        let Self { callees, pair, context, work_bytes } = self;
        if entries.pair(number, pair).is_none() {
            builder.losses.damaged += 1;
            return;
        }
        let bases = pair.bases();
        let at = pair.function_at;
        let base = builder.base();
        let mut at_calls = |row, rule| match callees {
            Some(callees) => callees.at_calls(row, rule, entries, base),
            None => Vec::new(),
        };
        let to = Target { builder, at_calls: &mut at_calls };
        let added = match pair.format {
            Some(Format::EhFrame) => add_function(&pair.eh_frame(), &bases, at.into(), context, to),
            _ => add_function(&pair.debug_frame(), &bases, at.into(), context, to),
        };
        if added.is_err() {
            builder.losses.damaged += 1;
        }
        // Each function runs its CIE's instructions too: a huge CIE shared by many would take hours.
        *work_bytes = work_bytes.saturating_add(pair.bytes.len() as u64);
    }
}

/// Where rows go, and which hold at the calls among the instructions of one.
struct Target<'t, 'a> {
    builder: &'t mut Builder<'a>,
    at_calls: &'t mut dyn FnMut(Range<u64>, UnwindRule) -> Vec<(Range<u64>, UnwindRule)>,
}

fn add_function<'p, S: UnwindSection<Bytes<'p>>>(
    section: &S,
    bases: &BaseAddresses,
    at: S::Offset,
    context: &mut UnwindContext<usize>,
    to: Target<'_, '_>,
) -> gimli::Result<()> {
    let Target { builder, at_calls } = to;
    let fde = section.partial_fde_from_offset(bases, at)?.parse(S::cie_from_offset)?;
    let start = fde.initial_address();
    let range = start..start.saturating_add(fde.len());
    let Some(mut function) = builder.function(range, Origin::Frames) else { return Ok(()) };
    let rows = add_rows(section, bases, &fde, context, |row, rule| {
        function.push(row.start, rule);
        for (call, at_call) in at_calls(row, rule) {
            function.push(call.start, at_call);
            function.push(call.end, rule);
        }
    });
    if rows.is_err() {
        function.replace(UnwindRule::plain(RuleKind::Unsupported));
    }
    function.finish();
    rows
}

fn add_rows<'p, S: UnwindSection<Bytes<'p>>>(
    section: &S,
    bases: &BaseAddresses,
    fde: &FrameDescriptionEntry<Bytes<'p>>,
    context: &mut UnwindContext<usize>,
    mut push: impl FnMut(Range<u64>, UnwindRule),
) -> gimli::Result<()> {
    let signal = fde.is_signal_trampoline();
    let return_address = fde.cie().return_address_register();
    let mut rows = fde.rows(section, bases, context)?;
    while let Some(row) = rows.next_row()? {
        let range = row.start_address()..row.end_address();
        push(range, translate(section, row, return_address, signal));
    }
    Ok(())
}
