//! Rows from the machine code itself, where nothing in the file describes it: all of musl, assembly, what was
//! compiled without call frame information. Follows each function from its entry and keeps track of the stack
//! (`flow`, `state`). What is not understood, or not the same on all ways to an instruction, has no row.

mod flow;
mod nodes;
mod places;
mod state;

use self::flow::{Function, Refusal, Region};
use self::state::State;
use super::builder::KnownCode;
use super::deadline::Deadline;
use crate::elf::headers::{Elf, Section};
use crate::elf::source::{u16_at, u64_at};
use crate::limits::{
    UNWIND_CODE_BYTES_MAX, UNWIND_CODE_ENTRIES_MAX, UNWIND_CODE_INSTRUCTIONS_KEPT,
    UNWIND_CODE_INSTRUCTIONS_MAX, UNWIND_CODE_LARGE_BYTES, UNWIND_CODE_SECTIONS_MAX,
    UNWIND_CODE_SOON_BYTES, UNWIND_CODE_SWITCHES_MAX, UNWIND_CODE_SYMBOL_BYTES_MAX,
    UNWIND_CPU_NS_MAX, UNWIND_PADDING_BYTES_MAX, UNWIND_PIECE_BYTES,
};
use agent_ebpf::UnwindRule;
use hashbrown::{HashMap, HashSet};
use iced_x86::{FlowControl, Mnemonic};
use object::elf;
use std::collections::BTreeMap;
use std::ops::Range;

/// Of each byte of a region: nobody came here.
const UNREACHED: u16 = 0;
/// Somebody did, and there is no row.
const NO_ROW: u16 = 1;
/// From here on, the number of a rule.
const FIRST_RULE: u16 = 2;

/// Reads code of one file.
pub(super) struct CodeRows<'a> {
    elf: &'a Elf<'a>,
    /// Shorter stretches are left alone.
    bytes_min: u64,
    /// True if code gave rows.
    pub(super) found: bool,
    /// Where code lies, ascending by start.
    sections: Vec<Range<u64>>,
    /// Where functions begin, ascending; read when there is code that needs it.
    symbols: Option<Vec<u64>>,
    /// True if they are so few that they are read for any code.
    few_symbols: bool,
    bytes_left: u64,
    /// Of these, what may be looked into now; the rest is put off.
    bytes_now: u64,
    /// Bytes of code that were put off.
    pub(super) put_off: u64,
    instructions_left: u64,
    /// Stretches of code that a limit left out.
    pub(super) left_out: u64,
    pub(super) deadline: Deadline,
    /// The time was used up.
    pub(super) is_late: bool,
}

/// A stretch of code, and the rows in it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct CodeStretch {
    pub(super) range: Range<u64>,
    /// From which address on which rule holds, ascending; none where there is no row.
    pub(super) rows: Vec<(u64, Option<UnwindRule>)>,
}

impl<'a> CodeRows<'a> {
    /// Looks at stretches of `bytes_min` and more.
    pub(super) fn new(elf: &'a Elf<'a>, bytes_min: u64) -> Self {
        let is_code = |section: &&Section| section.is_code() && section.kind == elf::SHT_PROGBITS.0;
        let sections = elf.sections.iter().filter(is_code).take(UNWIND_CODE_SECTIONS_MAX);
        let mut sections: Vec<Range<u64>> = sections
            .map(|section| section.address..section.address.saturating_add(section.size))
            .collect();
        sections.sort_unstable_by_key(|section| section.start);
        // What is linked into every program is too small for many symbols to be read.
        let tables = elf.sections.iter().filter(|section| is_symbols(section));
        let bytes = tables.fold(0_u64, |sum, table| sum.saturating_add(table.size));
        Self {
            elf,
            bytes_min,
            found: false,
            sections,
            symbols: None,
            few_symbols: bytes <= UNWIND_PIECE_BYTES,
            bytes_left: UNWIND_CODE_BYTES_MAX,
            bytes_now: u64::MAX,
            put_off: 0,
            instructions_left: UNWIND_CODE_INSTRUCTIONS_MAX,
            left_out: 0,
            deadline: Deadline::after(UNWIND_CPU_NS_MAX),
            is_late: false,
        }
    }

    /// Puts off what lies behind the first so many bytes.
    pub(super) fn only(mut self, bytes: u64) -> Self {
        self.bytes_now = bytes;
        self
    }

    /// The rows of the code in `gap`, which no source describes; `known` is the code there that is known
    /// otherwise. Code beyond the limits has none.
    pub(super) fn rows(&mut self, gap: &Range<u64>, known: &[KnownCode]) -> Vec<CodeStretch> {
        let bytes_min = self.bytes_min;
        let is_long = |range: &Range<u64>| range.end.saturating_sub(range.start) >= bytes_min;
        if !is_long(gap) {
            return Vec::new();
        }
        let inside = |section: &Range<u64>| section.start.max(gap.start)..section.end.min(gap.end);
        let ranges: Vec<_> = self.sections.iter().map(inside).filter(is_long).collect();
        ranges.into_iter().filter_map(|range| self.stretch(range, known)).collect()
    }

    fn stretch(&mut self, range: Range<u64>, known: &[KnownCode]) -> Option<CodeStretch> {
        let size = range.end - range.start;
        // A beginning of it would cost as much as all that is allowed, and hardly anything runs there.
        // One long stretch does not take what the short ones need, whatever lies first.
        let kept = if size > UNWIND_CODE_SOON_BYTES { UNWIND_CODE_INSTRUCTIONS_KEPT } else { 0 };
        let instructions = self.instructions_left.saturating_sub(kept);
        if size > self.bytes_left || instructions == 0 {
            self.left_out += 1;
            return None;
        }
        let Some(bytes_now) = self.bytes_now.checked_sub(size) else {
            self.put_off = self.put_off.saturating_add(size);
            return None;
        };
        self.bytes_now = bytes_now;
        let bytes = self.elf.read_address("code", range.start, size, UNWIND_CODE_BYTES_MAX).ok()?;
        self.bytes_left -= size;
        let mut region = Region::new(range.start, &bytes, instructions);
        region.deadline = Some(self.deadline);
        if size >= UNWIND_CODE_LARGE_BYTES || self.few_symbols {
            let symbols = self.symbols.get_or_insert_with(|| function_symbols(self.elf));
            let first = symbols.partition_point(|&symbol| symbol < range.start);
            let inside = symbols.get(first..).unwrap_or_default();
            let inside = inside.iter().take_while(|&&symbol| symbol < range.end);
            inside.take(UNWIND_CODE_ENTRIES_MAX).for_each(|&entry| region.entries.insert(entry));
        }
        let mut canvas = Canvas::new(&range);
        let mut search = Search::new(&mut region, &mut canvas);
        search.start_at(self.elf.entry);
        search.run();
        self.left_out += u64::from(search.limited);
        self.instructions_left -= instructions - region.instructions_left;
        self.is_late |= region.is_late;
        for known in known {
            canvas.overwrite(known);
        }
        let rows = canvas.rows();
        // Alignment has none, however much of it there is (Go's).
        let found = rows.iter().any(|row| row.1.is_some());
        self.found |= found;
        found.then_some(CodeStretch { range, rows })
    }
}

fn is_symbols(section: &Section) -> bool {
    [elf::SHT_SYMTAB.0, elf::SHT_DYNSYM.0].contains(&section.kind)
}

/// Where functions begin, by the symbol tables: ascending.
fn function_symbols(elf: &Elf<'_>) -> Vec<u64> {
    const SYMBOL_BYTES: u64 = 24;
    let mut found = Vec::new();
    let mut piece = Vec::new();
    let mut left = UNWIND_CODE_SYMBOL_BYTES_MAX;
    for table in elf.sections.iter().filter(|section| is_symbols(section)) {
        let mut at = 0;
        while at < table.size && left > 0 {
            let whole = UNWIND_PIECE_BYTES / SYMBOL_BYTES * SYMBOL_BYTES;
            let length = (table.size - at).min(whole).min(left);
            left -= length;
            piece.resize(usize::try_from(length).unwrap_or(0), 0);
            if elf.source().fill("symbols", table.offset.saturating_add(at), &mut piece).is_err() {
                break;
            }
            found.extend(piece.as_chunks::<24>().0.iter().filter_map(|symbol| {
                let kind = symbol.get(4)? & 15;
                let is_function = kind == elf::STT_FUNC.0 || kind == elf::STT_GNU_IFUNC.0;
                (is_function && u16_at(symbol, 6)? != 0).then(|| u64_at(symbol, 8))?
            }));
            at += length;
        }
    }
    found.sort_unstable();
    found.dedup();
    found
}

/// What each byte of a region says.
struct Canvas {
    start: u64,
    bytes: Vec<u16>,
    rules: Vec<UnwindRule>,
    numbers: HashMap<UnwindRule, u16>,
    /// The rule that was asked for last: that of the next instruction, too, most of the time.
    last: Option<(UnwindRule, u16)>,
}

impl Canvas {
    fn new(range: &Range<u64>) -> Self {
        let size = usize::try_from(range.end - range.start).unwrap_or(0);
        let bytes = vec![UNREACHED; size];
        let (rules, numbers) = (Vec::new(), HashMap::new());
        Self { start: range.start, bytes, rules, numbers, last: None }
    }

    fn at(&self, address: u64) -> Option<u16> {
        let into = usize::try_from(address.checked_sub(self.start)?).ok()?;
        self.bytes.get(into).copied()
    }

    fn slice(&mut self, range: &Range<u64>) -> &mut [u16] {
        let into = |address: u64| {
            let into = usize::try_from(address.saturating_sub(self.start)).unwrap_or(usize::MAX);
            into.min(self.bytes.len())
        };
        let range = into(range.start)..into(range.end);
        self.bytes.get_mut(range).unwrap_or_default()
    }

    /// The number of a rule; where all numbers are used, that of none.
    fn number(&mut self, rule: Option<UnwindRule>) -> u16 {
        let Some(rule) = rule else { return NO_ROW };
        if let Some((last, number)) = self.last
            && last == rule
        {
            return number;
        }
        let Self { rules, numbers, .. } = self;
        let number = *numbers.entry(rule).or_insert_with(|| {
            let number = u16::try_from(rules.len()).ok().and_then(|n| n.checked_add(FIRST_RULE));
            rules.push(rule);
            number.unwrap_or(NO_ROW)
        });
        self.last = Some((rule, number));
        number
    }

    /// True if another function, already here, says otherwise at one of these places.
    fn contradicts(&mut self, function: &Function) -> bool {
        function.code.iter().any(|(range, state)| {
            let number = self.number(state.rule());
            self.at(range.start).is_some_and(|before| before >= FIRST_RULE && before != number)
        })
    }

    fn paint(&mut self, function: &Function) {
        for (range, state) in &function.code {
            let number = self.number(state.rule());
            for byte in self.slice(range) {
                *byte = if *byte == UNREACHED || *byte == number { number } else { NO_ROW };
            }
        }
    }

    fn overwrite(&mut self, known: &KnownCode) {
        let number = self.number(Some(known.rule));
        self.slice(&known.range).fill(number);
    }

    fn rows(&self) -> Vec<(u64, Option<UnwindRule>)> {
        let mut rows: Vec<(u64, Option<UnwindRule>)> = Vec::new();
        let mut at = self.start;
        for run in self.bytes.chunk_by(|a, b| a == b) {
            let length = run.len() as u64;
            let number = run.first().copied().unwrap_or(UNREACHED);
            let rule = number.checked_sub(FIRST_RULE).map(usize::from);
            let rule = rule.and_then(|number| self.rules.get(number)).copied();
            let padding = number == UNREACHED && length <= UNWIND_PADDING_BYTES_MAX;
            if (rows.is_empty() || !padding) && rows.last().is_none_or(|last| last.1 != rule) {
                rows.push((at, rule));
            }
            at += length;
        }
        rows
    }
}

/// Finds the functions of a region.
struct Search<'s, 'c> {
    region: &'s mut Region<'c>,
    canvas: &'s mut Canvas,
    /// Functions that are called by code that was understood, and code whose address it takes.
    called: HashSet<u64>,
    pointed: HashSet<u64>,
    queue: Vec<u64>,
    /// Functions that will be understood if the one is that returns for them.
    waiting: HashMap<u64, Vec<u64>>,
    understood: HashSet<u64>,
    /// Jumps to unknown places, with the frame there.
    switches: BTreeMap<u64, State>,
    limited: bool,
}

impl<'s, 'c> Search<'s, 'c> {
    fn new(region: &'s mut Region<'c>, canvas: &'s mut Canvas) -> Self {
        let mut queue: Vec<u64> = region.entries.iter().collect();
        // What lies lower is looked at first.
        queue.reverse();
        Self {
            region,
            canvas,
            called: HashSet::new(),
            pointed: HashSet::new(),
            queue,
            understood: HashSet::new(),
            waiting: HashMap::new(),
            switches: BTreeMap::new(),
            limited: false,
        }
    }

    /// Takes the functions that are called where the program begins.
    fn start_at(&mut self, entry: u64) {
        if self.region.range.contains(&entry)
            && let Some(function) = self.follow(entry, State::START)
        {
            self.take_callees(&function);
        }
    }

    fn run(&mut self) {
        self.drain();
        let mut at = self.region.range.start;
        while at < self.region.range.end && !self.limited {
            at = self.look_at_rest(at);
        }
    }

    /// Takes the functions that are known to be some.
    fn drain(&mut self) {
        while let Some(entry) = self.queue.pop() {
            let Some(function) = self.follow(entry, State::ENTRY) else { continue };
            let by_tail = function.tails.iter().any(|tail| self.understood.contains(tail));
            let likely = function.returns || function.saves || by_tail || function.leaves_other;
            if self.called.contains(&entry) || likely && !function.misaligned {
                self.accept(entry, &function);
            } else if !function.misaligned {
                for tail in function.tails {
                    self.waiting.entry(tail).or_default().push(entry);
                }
            }
        }
    }

    fn follow(&mut self, at: u64, state: State) -> Option<Function> {
        match self.region.function(at, state) {
            Ok(function) if function.leaves_other && state == State::ENTRY => {
                let mut within = self.follow(at, State::WITHIN)?;
                within.leaves_other = true;
                Some(within)
            }
            Ok(function) => Some(function),
            Err(refusal) => {
                self.limited |= refusal == Refusal::Limit && self.region.instructions_left == 0;
                None
            }
        }
    }

    fn accept(&mut self, entry: u64, function: &Function) {
        self.canvas.paint(function);
        self.understood.insert(entry);
        self.queue.extend(self.waiting.remove(&entry).unwrap_or_default());
        self.take_callees(function);
        let inside = |address: &&u64| self.region.range.contains(*address);
        let room = UNWIND_CODE_ENTRIES_MAX.saturating_sub(self.pointed.len());
        self.pointed.extend(function.pointers.iter().filter(inside).take(room));
        if self.switches.len() < UNWIND_CODE_SWITCHES_MAX {
            self.switches.extend(function.switches.iter().copied());
        }
    }

    fn take_callees(&mut self, function: &Function) {
        let inside = |address: &&u64| self.region.range.contains(*address);
        for &callee in function.callees.iter().filter(inside) {
            if self.called.len() >= UNWIND_CODE_ENTRIES_MAX {
                self.limited = true;
                return;
            }
            if self.called.insert(callee) && !self.understood.contains(&callee) {
                self.region.entries.insert(callee);
                self.queue.push(callee);
            }
        }
    }

    /// Looks at code that nobody has reached yet, from `at` on; answers where to go on.
    fn look_at_rest(&mut self, at: u64) -> u64 {
        if self.canvas.at(at) != Some(UNREACHED) {
            return at + 1;
        }
        let Some(code) = self.region.decode(at) else {
            self.limited |= self.region.instructions_left == 0;
            return at + 1;
        };
        if matches!(code.mnemonic(), Mnemonic::Nop | Mnemonic::Int3) {
            return code.next_ip();
        }
        self.try_here(at);
        if self.canvas.at(at) != Some(UNREACHED) {
            return at + 1;
        }
        self.behind(at)
    }

    /// The first place behind code that nothing is known of where something new may begin.
    fn behind(&mut self, mut at: u64) -> u64 {
        while self.canvas.at(at) == Some(UNREACHED) {
            let Some(code) = self.region.decode(at) else { return at + 1 };
            at = code.next_ip();
            // Alignment is filled up where a function begins.
            if code.mnemonic() == Mnemonic::Nop && at.is_multiple_of(16) {
                break;
            }
            let ends = matches!(
                code.flow_control(),
                FlowControl::Return
                    | FlowControl::UnconditionalBranch
                    | FlowControl::IndirectBranch
            );
            if ends || code.mnemonic() == Mnemonic::Hlt {
                break;
            }
        }
        at
    }

    /// A function that nobody names, or the target of a jump through a table.
    fn try_here(&mut self, at: u64) {
        let switch = self.switches.range(..at).next_back();
        let states = [switch.map(|(_, &state)| state), Some(State::ENTRY)];
        for state in states.into_iter().flatten() {
            let Some(function) = self.follow(at, state) else { continue };
            // Compilers align functions to 16 bytes, and these begin one that calls others.
            let begins = function.saves && at.is_multiple_of(16) || self.pointed.contains(&at);
            let known = state == State::ENTRY && begins && !function.callees.is_empty();
            let likely = (function.returns || known) && !function.misaligned;
            if likely && !self.canvas.contradicts(&function) {
                self.accept(at, &function);
                self.drain();
                return;
            }
        }
    }
}

#[cfg(test)]
mod oracle_tests;
#[cfg(test)]
mod tests;
