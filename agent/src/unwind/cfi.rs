//! Call frame information (`.eh_frame`, `.debug_frame`) into rows, one function at a time. A damaged
//! function costs that function only.

use super::builder::{Builder, Origin};
use super::callee::Callees;
use super::entries::{Entries, Format, Pair};
use super::rule::{Bytes, translate};
use crate::limits::{UNWIND_BLOCK_ROWS_MAX, UNWIND_WORK_BYTES_MAX};
use agent_ebpf::{RuleKind, UnwindRule};
use gimli::{BaseAddresses, FrameDescriptionEntry, UnwindContext, UnwindSection};
use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Makes rows of the functions of [`Entries`].
pub(super) struct Compiler<'a> {
    /// Where code may be looked into.
    callees: Option<Callees<'a>>,
    pair: Pair,
    context: UnwindContext<usize>,
    /// Bytes of instructions run so far, by all who compile this file.
    work_bytes: Arc<AtomicU64>,
}

/// What the entries of some functions say, before it is put in its place.
#[derive(Debug, Default)]
pub(super) struct Block {
    functions: Vec<Read>,
    /// From which address on which rule holds; those of a function follow one another.
    rows: Vec<(u64, UnwindRule)>,
}

/// What was read of a function.
#[derive(Debug)]
enum Read {
    Rows {
        range: Range<u64>,
        rows: Range<usize>,
    },
    /// Its instructions make no sense.
    Wrong {
        range: Range<u64>,
    },
    /// It has no entry that can be read.
    Damaged,
    /// A limit for one file left it out.
    LeftOut,
    /// The block is full: whoever takes it reads this one anew.
    NoRoom,
}

impl Block {
    /// Puts the rows of a function in their place. False if they have to be read.
    pub(super) fn add(&self, index: usize, builder: &mut Builder<'_>) -> bool {
        let (range, rows) = match self.functions.get(index) {
            Some(Read::Rows { range, rows }) => (range, self.rows.get(rows.clone())),
            Some(Read::Wrong { range }) => (range, None),
            Some(Read::Damaged) => {
                builder.losses.damaged += 1;
                return true;
            }
            Some(Read::LeftOut) => {
                builder.losses.left_out += 1;
                return true;
            }
            Some(Read::NoRoom) | None => return false,
        };
        let Some(mut function) = builder.function(range.clone(), Origin::Frames) else {
            return true;
        };
        match rows {
            Some(rows) => rows.iter().for_each(|&(address, rule)| function.push(address, rule)),
            None => function.replace(UnwindRule::plain(RuleKind::Unsupported)),
        }
        function.finish();
        builder.losses.damaged += u64::from(rows.is_none());
        true
    }
}

impl<'a> Compiler<'a> {
    pub(super) fn new(callees: Option<Callees<'a>>) -> Self {
        let (pair, context) = (Pair::default(), UnwindContext::new());
        Self { callees, pair, context, work_bytes: Arc::default() }
    }

    /// One that reads entries of the same file ahead; none where rows depend on the code of other functions.
    pub(super) fn ahead(&self) -> Option<Self> {
        let work_bytes = Arc::clone(&self.work_bytes);
        self.callees.is_none().then(|| Self { work_bytes, ..Self::new(None) })
    }

    fn has_worked_enough(&self) -> bool {
        self.work_bytes.load(Ordering::Relaxed) > UNWIND_WORK_BYTES_MAX
    }

    /// Reads some functions.
    pub(super) fn read(&mut self, entries: &mut Entries<'_>, numbers: Range<usize>) -> Block {
        let mut block = Block::default();
        for number in numbers {
            let read = if self.has_worked_enough() {
                Read::LeftOut
            } else if block.rows.len() >= UNWIND_BLOCK_ROWS_MAX {
                Read::NoRoom
            } else {
                self.read_one(entries, number, &mut block.rows)
            };
            block.functions.push(read);
        }
        block
    }

    fn read_one(
        &mut self,
        entries: &mut Entries<'_>,
        number: usize,
        rows: &mut Vec<(u64, UnwindRule)>,
    ) -> Read {
        let Self { pair, context, work_bytes, .. } = self;
        if entries.pair(number, pair).is_none() {
            return Read::Damaged;
        }
        let bases = pair.bases();
        let at = pair.function_at;
        let read = match pair.format {
            Some(Format::EhFrame) => {
                read_function(&pair.eh_frame(), &bases, at.into(), context, rows)
            }
            _ => read_function(&pair.debug_frame(), &bases, at.into(), context, rows),
        };
        if !matches!(read, Ok(Read::NoRoom)) {
            work_bytes.fetch_add(pair.bytes.len() as u64, Ordering::Relaxed);
        }
        read.unwrap_or(Read::Damaged)
    }

    /// Adds the rows of one function.
    pub(super) fn add(
        &mut self,
        builder: &mut Builder<'_>,
        entries: &mut Entries<'_>,
        number: usize,
    ) {
        if self.has_worked_enough() {
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
        work_bytes.fetch_add(pair.bytes.len() as u64, Ordering::Relaxed);
    }
}

/// Where rows go, and which hold at the calls among the instructions of one.
struct Target<'t, 'a> {
    builder: &'t mut Builder<'a>,
    at_calls: &'t mut dyn FnMut(Range<u64>, UnwindRule) -> Vec<(Range<u64>, UnwindRule)>,
}

/// The rows of one function, behind those that are there.
fn read_function<'p, S: UnwindSection<Bytes<'p>>>(
    section: &S,
    bases: &BaseAddresses,
    at: S::Offset,
    context: &mut UnwindContext<usize>,
    rows: &mut Vec<(u64, UnwindRule)>,
) -> gimli::Result<Read> {
    let fde = section.partial_fde_from_offset(bases, at)?.parse(S::cie_from_offset)?;
    let start = fde.initial_address();
    let range = start..start.saturating_add(fde.len());
    let first = rows.len();
    let mut full = false;
    let read = add_rows(section, bases, &fde, context, |row, rule| {
        full = rows.len() >= UNWIND_BLOCK_ROWS_MAX;
        if full {
            return ControlFlow::Break(());
        }
        rows.push((row.start, rule));
        ControlFlow::Continue(())
    });
    if full || read.is_err() {
        rows.truncate(first);
    }
    Ok(match read {
        _ if full => Read::NoRoom,
        Ok(()) => Read::Rows { range, rows: first..rows.len() },
        Err(_) => Read::Wrong { range },
    })
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
        ControlFlow::Continue(())
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
    mut push: impl FnMut(Range<u64>, UnwindRule) -> ControlFlow<()>,
) -> gimli::Result<()> {
    let signal = fde.is_signal_trampoline();
    let return_address = fde.cie().return_address_register();
    let mut rows = fde.rows(section, bases, context)?;
    while let Some(row) = rows.next_row()? {
        let range = row.start_address()..row.end_address();
        let rule = translate(section, row, return_address, signal);
        if push(range, rule).is_break() {
            break;
        }
    }
    Ok(())
}
