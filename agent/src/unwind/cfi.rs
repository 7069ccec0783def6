//! Call frame information (`.eh_frame`, `.debug_frame`) into rows, one function at a time. A damaged
//! function costs that function only.

use super::builder::{Builder, Origin};
use super::entries::{Entries, Format, Pair};
use super::rule::{Bytes, translate};
use crate::limits::UNWIND_WORK_BYTES_MAX;
use agent_ebpf::{RuleKind, UnwindRule};
use gimli::{BaseAddresses, FrameDescriptionEntry, UnwindContext, UnwindSection};

/// Makes rows of the functions of [`Entries`].
pub(super) struct Compiler {
    pair: Pair,
    context: UnwindContext<usize>,
    /// Bytes of instructions run so far.
    work_bytes: u64,
}

impl Compiler {
    pub(super) fn new() -> Self {
        Self { pair: Pair::default(), context: UnwindContext::new(), work_bytes: 0 }
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
        let Self { pair, context, work_bytes } = self;
        if entries.pair(number, pair).is_none() {
            builder.losses.damaged += 1;
            return;
        }
        let bases = pair.bases();
        let at = pair.function_at;
        let added = match pair.format {
            Some(Format::EhFrame) => {
                add_function(&pair.eh_frame(), &bases, at.into(), context, builder)
            }
            _ => add_function(&pair.debug_frame(), &bases, at.into(), context, builder),
        };
        if added.is_err() {
            builder.losses.damaged += 1;
        }
        // Each function runs its CIE's instructions too: a huge CIE shared by many would take hours.
        *work_bytes = work_bytes.saturating_add(pair.bytes.len() as u64);
    }
}

fn add_function<'p, S: UnwindSection<Bytes<'p>>>(
    section: &S,
    bases: &BaseAddresses,
    at: S::Offset,
    context: &mut UnwindContext<usize>,
    builder: &mut Builder<'_>,
) -> gimli::Result<()> {
    let fde = section.partial_fde_from_offset(bases, at)?.parse(S::cie_from_offset)?;
    let start = fde.initial_address();
    let range = start..start.saturating_add(fde.len());
    let Some(mut function) = builder.function(range, Origin::Frames) else { return Ok(()) };
    let rows = add_rows(section, bases, &fde, context, |address, rule| {
        function.push(address, rule);
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
    mut push: impl FnMut(u64, UnwindRule),
) -> gimli::Result<()> {
    let signal = fde.is_signal_trampoline();
    let return_address = fde.cie().return_address_register();
    let mut rows = fde.rows(section, bases, context)?;
    while let Some(row) = rows.next_row()? {
        push(row.start_address(), translate(section, row, return_address, signal));
    }
    Ok(())
}
