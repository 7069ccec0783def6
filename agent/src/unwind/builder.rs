//! Puts the rows of functions, which come in the order of their addresses, one behind the other into a
//! [`RowTable`]: fills gaps, joins rows that say the same, closes the root. Not where the rows come from.

use super::RowLosses;
use super::code::{CodeRows, CodeStretch};
use super::deadline::Deadline;
use super::table::{PackedRows, RowTable};
use crate::elf::ExecutableSegment;
use crate::limits::{
    GO_PADDING_BYTES_MAX, UNWIND_CPU_NS_MAX, UNWIND_DEADLINE_FUNCTIONS, UNWIND_PADDING_BYTES_MAX,
    UNWIND_ROWS_PER_FILE_MAX, UNWIND_RULES_PER_FILE_MAX,
};
use agent_ebpf::{RuleKind, UnwindRule};
use hashbrown::HashMap;
use std::ops::Range;

/// Who says it; where two speak of the same function, the lower one is to come first and is believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Origin {
    /// Go's own tables.
    Go,
    /// Call frame information.
    Frames,
    /// Known from the code itself.
    Known,
    /// Followed through the code itself.
    Code,
}

/// Code that is understood although nothing in the file describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct KnownCode {
    pub(super) range: Range<u64>,
    pub(super) rule: UnwindRule,
}

/// Takes functions in the order of their addresses.
pub(super) struct Builder<'a> {
    base: u64,
    segments: Vec<ExecutableSegment>,
    /// Where a program begins, which nobody called.
    entry: Option<u64>,
    /// Last one first.
    known: Vec<KnownCode>,
    /// For what nothing describes.
    code: Option<CodeRows<'a>>,
    table: TableWriter,
    rules: RuleSet,
    /// Rows of the function that is being added.
    rows: Vec<(u32, u16)>,
    /// First address that no function so far has.
    covered: u32,
    before: Origin,
    deadline: Deadline,
    /// Functions so far.
    functions: u64,
    pub(super) losses: RowLosses,
}

impl<'a> Builder<'a> {
    /// Takes the executable segments, ascending by address. Rows outside of them are not kept.
    pub(super) fn new(segments: Vec<ExecutableSegment>) -> Self {
        let base = segments.first().map_or(0, |segment| segment.address.0);
        let mut rules = RuleSet::default();
        let no_info = rules.intern(UnwindRule::plain(RuleKind::NoInfo), &mut 0);
        let mut table = TableWriter::default();
        table.push(0, no_info);
        Self {
            base,
            segments,
            entry: None,
            known: Vec::new(),
            code: None,
            table,
            rules,
            rows: Vec::new(),
            covered: 0,
            before: Origin::Known,
            deadline: Deadline::after(UNWIND_CPU_NS_MAX),
            functions: 0,
            losses: RowLosses::default(),
        }
    }

    /// ELF address that rows are relative to.
    pub(super) const fn base(&self) -> u64 {
        self.base
    }

    /// Says where the program begins, and that the code there ends behind `bytes_max` where nothing else
    /// bounds it.
    pub(super) fn set_entry(&mut self, entry: u64, bytes_max: u64) {
        self.entry = Some(entry);
        self.add_root(entry, bytes_max);
    }

    /// Code that nobody called, where no function describes it. Before the first function.
    pub(super) fn add_root(&mut self, entry: u64, bytes_max: u64) {
        let range = entry..entry.saturating_add(bytes_max);
        self.add_known([KnownCode { range, rule: UnwindRule::plain(RuleKind::End) }]);
    }

    /// Adds code that is used where no function describes it. Before the first function.
    pub(super) fn add_known(&mut self, known: impl IntoIterator<Item = KnownCode>) {
        self.known.extend(known);
        self.known.sort_by_key(|known| std::cmp::Reverse(known.range.start));
    }

    /// Looks into code that no function describes, too. Before the first function.
    pub(super) fn look_into(&mut self, code: CodeRows<'a>) {
        self.code = Some(code);
    }

    /// The function's place as (start, end) relative to the base; nothing if it is empty or not inside one
    /// executable segment (the linker leaves such records for functions that it threw away).
    pub(super) fn place(&self, range: &Range<u64>) -> Option<(u32, u32)> {
        if range.is_empty() {
            return None;
        }
        let segment = self.segment_end(range.start)?;
        (range.end <= segment).then_some(())?;
        Some((self.relative(range.start)?, self.relative(range.end)?))
    }

    /// The end of the executable segment that `address` lies in.
    fn segment_end(&self, address: u64) -> Option<u64> {
        self.segments.iter().find_map(|segment| {
            let end = segment.address.0.saturating_add(segment.size);
            (segment.address.0..end).contains(&address).then_some(end)
        })
    }

    /// 32 bits, without the last number, which stands for an unused row.
    fn relative(&self, address: u64) -> Option<u32> {
        let pc = u32::try_from(address.checked_sub(self.base)?).ok()?;
        (pc < u32::MAX).then_some(pc)
    }

    /// Opens a function; nothing if it has no place or the functions before have said all about it.
    pub(super) fn function(
        &mut self,
        range: Range<u64>,
        origin: Origin,
    ) -> Option<FunctionRows<'_, 'a>> {
        let (start, end) = self.place(&range)?;
        if self.is_late() {
            self.losses.left_out += 1;
            return None;
        }
        self.fill_until(range.start);
        if end <= self.covered {
            return None;
        }
        self.rows.clear();
        Some(FunctionRows { builder: self, start, end, origin })
    }

    /// True if the time for one file is used up; asked for each function.
    fn is_late(&mut self) -> bool {
        if self.functions.is_multiple_of(UNWIND_DEADLINE_FUNCTIONS) && self.deadline.is_over() {
            self.losses.out_of_time = 1;
        }
        self.functions += 1;
        self.losses.out_of_time > 0
    }

    /// As if it had begun long ago.
    #[cfg(test)]
    pub(super) fn out_of_time(&mut self) {
        self.deadline = Deadline::after(0);
    }

    /// Adds what is known otherwise of the code before `address`, behind all functions so far.
    fn fill_until(&mut self, address: u64) {
        let gap = self.base.saturating_add(u64::from(self.covered))..address;
        let first = self.known.partition_point(|known| known.range.start >= address);
        let mut known = self.known.split_off(first);
        let stretches = self.code.as_mut().map_or_else(Vec::new, |code| code.rows(&gap, &known));
        for CodeStretch { range, rows } in stretches {
            while let Some(known) = known.pop_if(|known| known.range.start < range.start) {
                self.add_known_code(known, address);
            }
            // Those inside are among the rows.
            while known.pop_if(|known| known.range.start < range.end).is_some() {}
            let Some((start, end)) = self.place(&range) else { continue };
            self.rows.clear();
            for (at, rule) in rows {
                let Some(pc) = self.relative(at) else { continue };
                let rule = rule.unwrap_or(UnwindRule::plain(RuleKind::NoInfo));
                let rule = self.rules.intern(rule, &mut self.losses.rules_refused);
                self.rows.push((pc, rule));
            }
            if end > self.covered && !self.rows.is_empty() {
                self.emit(start, end, Origin::Code);
            }
        }
        while let Some(known) = known.pop() {
            self.add_known_code(known, address);
        }
    }

    fn add_known_code(&mut self, KnownCode { range, rule }: KnownCode, until: u64) {
        let start = range.start;
        let end = self.segment_end(start).map_or(start, |end| end.min(range.end).min(until));
        let Some((start, end)) = self.place(&(start..end)) else { return };
        if start >= self.covered {
            let rule = self.rules.intern(rule, &mut self.losses.rules_refused);
            self.rows.clear();
            self.rows.push((start, rule));
            self.emit(start, end, Origin::Known);
        }
    }

    fn emit(&mut self, start: u32, end: u32, origin: Origin) {
        // One row may fill the gap before, one ends the table.
        if self.table.len() + self.rows.len() + 2 > UNWIND_ROWS_PER_FILE_MAX {
            self.losses.left_out += 1;
            return;
        }
        let gap = start.saturating_sub(self.covered);
        let both_go = origin == Origin::Go && self.before == Origin::Go;
        let padding = if both_go { GO_PADDING_BYTES_MAX } else { UNWIND_PADDING_BYTES_MAX };
        if self.covered > 0 && u64::from(gap) > padding {
            self.table.push(self.covered, NO_INFO);
        }
        // Of two functions that overlap the first one keeps what it said.
        let active = self.rows.partition_point(|&(pc, _)| pc <= self.covered).saturating_sub(1);
        for &(pc, rule) in self.rows.get(active..).unwrap_or_default() {
            self.table.push(pc.max(self.covered), rule);
        }
        self.covered = end;
        self.before = origin;
    }

    /// Ends the table.
    pub(super) fn finish(mut self) -> RowTable {
        self.fill_until(u64::MAX);
        if let Some(code) = &self.code {
            self.losses.left_out += code.left_out;
            self.losses.out_of_time |= u64::from(code.is_late);
        }
        let code = self.code.as_ref().map_or((false, 0), |code| (code.found, code.put_off));
        if self.covered > 0 {
            self.table.push(self.covered, NO_INFO);
        }
        let rows = self.table.finish();
        RowTable::from_parts(self.base, self.rules.rules, rows, self.losses, code)
    }
}

/// The number that `Builder::new` gives to `NoInfo`.
const NO_INFO: u16 = 0;

/// The rows of one function, while they come.
pub(super) struct FunctionRows<'b, 'a> {
    builder: &'b mut Builder<'a>,
    start: u32,
    end: u32,
    origin: Origin,
}

impl FunctionRows<'_, '_> {
    /// Adds a row from `address` on. Addresses must not fall; what lies outside the function is cut.
    pub(super) fn push(&mut self, address: u64, rule: UnwindRule) {
        let Builder { rules, rows, losses, base, .. } = &mut *self.builder;
        let pc = address.saturating_sub(*base).max(u64::from(self.start));
        let Ok(pc) = u32::try_from(pc) else { return };
        if pc >= self.end {
            return;
        }
        let rule = rules.intern(rule, &mut losses.rules_refused);
        match rows.last_mut() {
            Some(last) if last.1 == rule || last.0 > pc => {}
            Some(last) if last.0 == pc => last.1 = rule,
            _ => rows.push((pc, rule)),
        }
    }

    /// Forgets the rows so far and says one rule for the whole function.
    pub(super) fn replace(&mut self, rule: UnwindRule) {
        self.builder.rows.clear();
        self.push(self.builder.base.saturating_add(u64::from(self.start)), rule);
    }

    /// Ends the function.
    pub(super) fn finish(mut self) {
        let end = UnwindRule::plain(RuleKind::End);
        let first = self.builder.base.saturating_add(u64::from(self.start));
        // The entry function was called by nobody, also where its own information does not say so.
        if self.builder.entry == Some(first) && !self.builder.says(end) {
            self.replace(end);
        }
        if !self.builder.rows.is_empty() {
            self.builder.emit(self.start, self.end, self.origin);
        }
    }
}

impl Builder<'_> {
    /// True if one of the rows of the function that is being added says `rule`.
    fn says(&self, rule: UnwindRule) -> bool {
        self.rows.iter().any(|&(_, number)| self.rules.get(number) == Some(rule))
    }
}

/// Places of rules that were used lately; a power of two.
const RECENT_RULES: usize = 256;

/// Distinct rules, numbered in the order of their first use.
#[derive(Debug)]
struct RuleSet {
    rules: Vec<UnwindRule>,
    indices: HashMap<UnwindRule, u16>,
    /// Numbers of rules that were used lately, by the place of the rule: nearly every row has one of these, and
    /// there are a million.
    recent: [u16; RECENT_RULES],
}

impl Default for RuleSet {
    fn default() -> Self {
        Self { rules: Vec::new(), indices: HashMap::new(), recent: [0; RECENT_RULES] }
    }
}

impl RuleSet {
    fn place(rule: UnwindRule) -> usize {
        let UnwindRule { kind, rbp, rbp_from_rbp: _, reserved: _, offset, addend } = rule;
        // Offsets are multiples of eight.
        let (offset, addend) = (offset.cast_unsigned() / 8, addend.cast_unsigned() << 3);
        let (kind, rbp) = (u32::from(kind) << 5, u32::from(rbp.cast_unsigned()) << 4);
        let place = offset ^ addend ^ kind ^ rbp;
        usize::try_from(place).unwrap_or(0) % RECENT_RULES
    }

    /// The rule's number. Where all numbers are used, that of `Unsupported`, and one more in `refused`.
    fn intern(&mut self, rule: UnwindRule, refused: &mut u64) -> u16 {
        let place = Self::place(rule);
        let recent = self.recent.get(place).copied().unwrap_or(0);
        if self.get(recent) == Some(rule) {
            return recent;
        }
        let number = self.number(rule, refused);
        if let Some(recent) = self.recent.get_mut(place) {
            *recent = number;
        }
        number
    }

    fn number(&mut self, rule: UnwindRule, refused: &mut u64) -> u16 {
        if let Some(&index) = self.indices.get(&rule) {
            return index;
        }
        let unsupported = UnwindRule::plain(RuleKind::Unsupported);
        // The last number is for `Unsupported`, if it has none yet.
        if self.rules.len() + 1 >= UNWIND_RULES_PER_FILE_MAX && rule != unsupported {
            *refused += 1;
            return self.intern(unsupported, refused);
        }
        let index = u16::try_from(self.rules.len()).expect("fewer than UNWIND_RULES_PER_FILE_MAX");
        self.rules.push(rule);
        self.indices.insert(rule, index);
        index
    }

    fn get(&self, index: u16) -> Option<UnwindRule> {
        self.rules.get(usize::from(index)).copied()
    }
}

const _: () = assert!(UNWIND_RULES_PER_FILE_MAX <= u16::MAX as usize);

/// Appends rows, joining neighbours.
#[derive(Debug, Default)]
struct TableWriter {
    rows: PackedRows,
    /// Rule of the last row in `rows`.
    written: Option<u16>,
    /// The row that may still be replaced by another one at the same address.
    pending: Option<(u32, u16)>,
}

impl TableWriter {
    fn len(&self) -> usize {
        self.rows.len() + usize::from(self.pending.is_some())
    }

    fn push(&mut self, pc: u32, rule: u16) {
        match self.pending {
            Some((at, _)) if at == pc => self.pending = None,
            Some((_, last)) if last == rule => return,
            _ => self.flush(),
        }
        if self.written != Some(rule) {
            self.pending = Some((pc, rule));
        }
    }

    fn flush(&mut self) {
        if let Some((pc, rule)) = self.pending.take() {
            let ordered = self.rows.push(pc, rule);
            debug_assert!(ordered, "functions come in the order of their addresses");
            self.written = Some(rule);
        }
    }

    fn finish(mut self) -> PackedRows {
        self.flush();
        self.rows
    }
}
