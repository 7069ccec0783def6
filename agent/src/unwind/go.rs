//! Rows of Go code from Go's own tables. They say for each instruction how deep the stack is, so a
//! caller is found also where no frame was made: in leaves, prologues and epilogues.

use super::builder::{Builder, Origin};
use crate::elf::go::{FLAG_STACK_SWITCH, FLAG_TOP_FRAME, GoFunction, GoTable, ValueStep};
use crate::limits::{GO_SHAPE_NAME_BYTES_MAX, GO_SWITCH_BYTES_MAX, GO_WORK_MAX};
use agent_ebpf::{RuleKind, UnwindRule};
use std::ops::Range;

/// What a function does to the stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    /// Moves the stack pointer by what the tables say.
    Plain,
    /// The bottom of a goroutine or a thread.
    Root,
    /// The code that the kernel returns to from a signal handler.
    SignalReturn,
    /// Goes on to another stack, where `beyond` holds if the frame pointer does not lead back.
    Switch {
        /// From the switch on.
        beyond: RuleKind,
    },
}

/// The functions of one file, in the order of their addresses.
pub(super) struct GoRows<'t, 'e, 'a> {
    table: &'t GoTable<'e, 'a>,
    next: u64,
    current: Option<(GoFunction, Shape)>,
    steps: Vec<ValueStep>,
    /// Work left for this file: steps, bytes of names, bytes of code.
    work: usize,
}

impl<'t, 'e, 'a> GoRows<'t, 'e, 'a> {
    pub(super) fn new(table: &'t GoTable<'e, 'a>, builder: &mut Builder<'_>) -> Self {
        let (steps, work) = (Vec::new(), GO_WORK_MAX);
        let mut rows = Self { table, next: 0, current: None, steps, work };
        rows.advance(builder);
        rows
    }

    /// First address of the function that is added next.
    pub(super) fn start(&self) -> Option<u64> {
        let (function, shape) = self.current.as_ref()?;
        Some(match shape {
            // The kernel "calls" the handler from the first instruction here, so that the address to
            // look up for the caller of the handler lies one before it.
            Shape::SignalReturn => function.entry.saturating_sub(1),
            _ => function.entry,
        })
    }

    fn advance(&mut self, builder: &mut Builder<'_>) {
        let before = self.current.take().map_or(0, |(function, _)| function.entry);
        while self.next < self.table.len() {
            if self.work == 0 {
                builder.losses.left_out += self.table.len() - self.next;
                return;
            }
            self.work -= 1;
            let function = self.table.function(self.next);
            self.next += 1;
            // The linker sorts them, for the runtime's own search.
            match function.filter(|function| function.entry >= before) {
                Some(function) => {
                    let shape = shape(self.table, &function, &mut self.work);
                    self.current = Some((function, shape));
                    return;
                }
                None => builder.losses.damaged += 1,
            }
        }
    }

    /// Adds the rows of the function that is next.
    pub(super) fn add(&mut self, builder: &mut Builder<'_>) {
        let (Some((function, shape)), Some(start)) = (self.current, self.start()) else { return };
        self.steps.clear();
        self.steps.extend(self.table.stack_depths(&function).take(self.work));
        self.work -= self.steps.len();
        self.add_function(builder, &function, shape, start);
        self.advance(builder);
    }

    fn add_function(
        &mut self,
        builder: &mut Builder<'_>,
        function: &GoFunction,
        shape: Shape,
        start: u64,
    ) {
        let Self { table, steps, work, .. } = self;
        let end = match (steps.last(), shape) {
            (Some(last), _) => last.end,
            (None, Shape::Root) => function.bound,
            // Marks of the linker, without code.
            (None, _) => return,
        };
        let Some(mut rows) = builder.function(start..end, Origin::Go) else { return };
        match shape {
            Shape::Root => rows.push(start, UnwindRule::plain(RuleKind::End)),
            Shape::SignalReturn => rows.push(start, UnwindRule::plain(RuleKind::Signal)),
            Shape::Plain | Shape::Switch { .. } => {
                let saved = SavedRbp::find(table, steps);
                let switch = match shape {
                    Shape::Switch { beyond } => {
                        let at = stack_switch(table, function.entry..end, work);
                        at.map(|at| (at, beyond))
                    }
                    _ => None,
                };
                for step in steps {
                    for (address, rule) in step_rules(*step, saved, switch).into_iter().flatten() {
                        rows.push(address, rule);
                    }
                }
            }
        }
        rows.finish();
    }
}

/// Names decide only where flags cannot (Go 1.16 has none, and `mcall` has no flag of its own).
fn shape(table: &GoTable<'_, '_>, function: &GoFunction, work: &mut usize) -> Shape {
    if function.flags == 0 && table.has_flags() {
        return Shape::Plain;
    }
    // A longer name is none of these.
    let name = table.short_name(function, GO_SHAPE_NAME_BYTES_MAX).unwrap_or_default();
    *work = work.saturating_sub(GO_SHAPE_NAME_BYTES_MAX);
    match name.as_str() {
        "runtime.goexit" | "runtime.mstart" | "runtime.rt0_go" => return Shape::Root,
        // Marked as a top frame, since Go's own walk does not cross signals; ours does.
        "runtime.sigtramp" | "runtime.cgoSigtramp" => return Shape::Plain,
        "runtime.sigreturn" | "runtime.sigreturn__sigaction" => return Shape::SignalReturn,
        // They leave the goroutine for good (it is gone on with by `gogo`): what runs beyond, the
        // scheduler or a growing stack, has no caller on its own stack.
        "runtime.mcall" | "runtime.morestack" => return Shape::Switch { beyond: RuleKind::End },
        name if name.starts_with("_rt0_amd64") => return Shape::Root,
        _ => {}
    }
    if function.flags & FLAG_TOP_FRAME != 0 {
        return Shape::Root;
    }
    let switches = ["runtime.systemstack", "runtime.asmcgocall", "runtime.gogo"];
    if function.flags & FLAG_STACK_SWITCH != 0 || switches.contains(&name.as_str()) {
        return Shape::Switch { beyond: RuleKind::Unsupported };
    }
    Shape::Plain
}

/// Where a function keeps its caller's rbp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SavedRbp {
    /// From this address on, while there is a frame.
    from: u64,
    /// Relative to the CFA, in units of 8 bytes.
    slot: i8,
    /// From this address on rbp points to the slot, if it does.
    pointer_from: Option<u64>,
}

impl SavedRbp {
    /// Reads the prologue, where the depth first becomes more than zero: `push %rbp; mov %rsp,%rbp`
    /// since 1.21, `sub; mov %rbp,N(%rsp); lea N(%rsp),%rbp` before (cmd/internal/obj/x86/obj6.go).
    fn find(table: &GoTable<'_, '_>, steps: &[ValueStep]) -> Option<Self> {
        let (before, made) = steps
            .array_windows::<2>()
            .map(|[before, made]| (before, made))
            .find(|(before, made)| before.value == 0 && made.value > 0)?;
        let at = made.start;
        if made.value == 8 && table.code(before.end.checked_sub(1)?)? == [0x55] {
            let pointed = table.code(at) == Some([0x48, 0x89, 0xe5]);
            let pointer_from = pointed.then(|| at.saturating_add(3));
            return Some(Self { from: at, slot: -2, pointer_from });
        }
        // mov %rbp,disp(%rsp), with a displacement of one or of four bytes
        let (displacement, length) = match table.code::<8>(at)? {
            [0x48, 0x89, 0x6c, 0x24, short, ..] => (i32::from(short.cast_signed()), 5),
            [0x48, 0x89, 0xac, 0x24, a, b, c, d] => (i32::from_le_bytes([a, b, c, d]), 8),
            _ => return None,
        };
        let slot = displacement.checked_sub(made.value)?.checked_sub(8)?;
        let from = at.checked_add(length)?;
        let pointed = matches!(table.code(from), Some([0x48, 0x8d, 0x6c | 0xac, 0x24]));
        let pointer_from = pointed.then(|| from.saturating_add(length));
        (slot % 8 == 0)
            .then(|| Some(Self { from, slot: i8::try_from(slot / 8).ok()?, pointer_from }))?
    }
}

/// The rules of one step: from its start, and from points inside it where something changes.
fn step_rules(
    step: ValueStep,
    saved: Option<SavedRbp>,
    switch: Option<(u64, RuleKind)>,
) -> [Option<(u64, UnwindRule)>; 4] {
    let Some(offset) = step.value.checked_add(8) else {
        return [Some((step.start, UnwindRule::plain(RuleKind::Unsupported))), None, None, None];
    };
    let by_rsp = UnwindRule { offset, ..UnwindRule::plain(RuleKind::RspOffset) };
    let inside = |at: u64| (at < step.end).then(|| at.max(step.start));
    let mut rules = [Some((step.start, by_rsp)), None, None, None];
    let [_, with_rbp, by_rbp, beyond] = &mut rules;
    let framed = step.value > 0;
    if let Some(saved) = saved.filter(|_| framed) {
        *with_rbp = inside(saved.from).map(|at| (at, UnwindRule { rbp: saved.slot, ..by_rsp }));
    }
    let Some((switched_from, kind)) = switch else { return rules };
    match saved.and_then(|saved| saved.pointer_from).filter(|_| kind != RuleKind::End) {
        // The frame pointer stays on the old stack; the stack pointer may be on either.
        Some(from) if framed => {
            let rule = UnwindRule { addend: 1, ..UnwindRule::plain(RuleKind::FramePointer) };
            *by_rbp = inside(from).map(|at| (at, rule));
        }
        // Before the frame is made and after it is dropped the code is on the old stack.
        Some(_) => {}
        None => *beyond = inside(switched_from).map(|at| (at, UnwindRule::plain(kind))),
    }
    rules
}

/// The address behind the first instruction that loads rsp: `mov disp8(%reg),%rsp` (a saved stack
/// pointer) or `mov %reg,%rsp`, but not `mov %rbp,%rsp`, which only drops the frame.
fn stack_switch(table: &GoTable<'_, '_>, code: Range<u64>, work: &mut usize) -> Option<u64> {
    let left = (*work as u64).min(GO_SWITCH_BYTES_MAX);
    let end = code.end.min(code.start.saturating_add(left));
    *work = work.saturating_sub(usize::try_from(end.saturating_sub(code.start)).unwrap_or(*work));
    (code.start..end.saturating_sub(3)).find_map(|at| {
        let [rex, opcode, operands, _] = table.code::<4>(at)?;
        let loaded =
            matches!((rex, opcode), (0x48 | 0x49, 0x8b)) && (0x60..0x68).contains(&operands);
        let moved = matches!((rex, opcode), (0x48 | 0x4c, 0x89))
            && operands & 0xc7 == 0xc4
            && (rex, operands) != (0x48, 0xec);
        // With r12 as base there is a byte more.
        let base = u64::from(operands == 0x64);
        if loaded { at.checked_add(4 + base) } else { moved.then(|| at.checked_add(3))? }
    })
}
