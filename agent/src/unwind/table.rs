//! The rows of one file as they wait to be loaded: sorted, and packed into about three bytes each, so that
//! nine million of them take 27 MB. Not how they came about.

use super::RowLosses;
use agent_ebpf::UnwindRule;

/// Rows between two places where decoding can start.
const ROWS_PER_MARK: usize = 64;

/// The compiled rows of one file, sorted by address. Each row holds up to the next one; code without
/// unwind information has a row of its own with `RuleKind::NoInfo`, and so has the end of the table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RowTable {
    base: u64,
    rules: Vec<UnwindRule>,
    rows: PackedRows,
    losses: RowLosses,
    from_code: bool,
    code_put_off: u64,
}

impl RowTable {
    /// Packs rows: starts relative to `base`, strictly ascending and below `u32::MAX` (which stands for an
    /// unused row), each with an index into `rules`. Nothing if they are not so.
    #[must_use]
    pub fn new(
        base: u64,
        rules: Vec<UnwindRule>,
        rows: impl IntoIterator<Item = (u32, u16)>,
    ) -> Option<Self> {
        let mut packed = PackedRows::default();
        for (pc, rule) in rows {
            if usize::from(rule) >= rules.len() || !packed.push(pc, rule) {
                return None;
            }
        }
        Some(Self::from_parts(base, rules, packed, RowLosses::default(), (false, 0)))
    }

    pub(super) fn from_parts(
        base: u64,
        rules: Vec<UnwindRule>,
        mut rows: PackedRows,
        losses: RowLosses,
        (from_code, code_put_off): (bool, u64),
    ) -> Self {
        rows.bytes.shrink_to_fit();
        rows.marks.shrink_to_fit();
        Self { base, rules, rows, losses, from_code, code_put_off }
    }

    /// ELF address that row starts are relative to (the lowest executable segment's `p_vaddr`).
    #[must_use]
    pub const fn base(&self) -> u64 {
        self.base
    }

    /// The distinct rules of this table.
    #[must_use]
    pub fn rules(&self) -> &[UnwindRule] {
        &self.rules
    }

    /// How many rows there are.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.rows.len
    }

    /// True if there is not one row.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.rows.len == 0
    }

    /// What is not in the table, and why.
    #[must_use]
    pub const fn losses(&self) -> RowLosses {
        self.losses
    }

    /// True if some of it was made from machine code.
    #[must_use]
    pub const fn is_from_code(&self) -> bool {
        self.from_code
    }

    /// Bytes of code that may give rows and was not looked into yet.
    #[must_use]
    pub const fn code_put_off(&self) -> u64 {
        self.code_put_off
    }

    /// As if so many bytes of code were put off.
    #[cfg(test)]
    pub(crate) const fn with_code_put_off(mut self, bytes: u64) -> Self {
        self.code_put_off = bytes;
        self
    }

    /// With these losses, of when it was compiled.
    #[must_use]
    pub const fn with_losses(mut self, losses: RowLosses) -> Self {
        self.losses = losses;
        self
    }

    /// Heap memory that the table takes, bytes.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.rows.bytes.capacity()
            + self.rows.marks.capacity() * size_of::<Mark>()
            + self.rules.capacity() * size_of::<UnwindRule>()
    }

    /// The rows as they are kept. Equal rows have equal bytes.
    #[must_use]
    pub fn packed(&self) -> &[u8] {
        &self.rows.bytes
    }

    /// The rows in order: start relative to [`Self::base`], index into [`Self::rules`].
    #[must_use]
    pub fn rows(&self) -> Rows<'_> {
        Rows { rest: &self.rows.bytes, pc: 0, left: self.rows.len }
    }

    /// The rule at an ELF address, as the walker in the kernel finds it.
    #[must_use]
    pub fn rule_at(&self, address: u64) -> Option<UnwindRule> {
        let pc = address.checked_sub(self.base).and_then(|pc| u32::try_from(pc).ok())?;
        let rule = self.rows.rule_at(pc)?;
        self.rules.get(usize::from(rule)).copied()
    }
}

/// Where decoding can start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Mark {
    /// Start of the row at `at`.
    pc: u32,
    /// Byte in the packed rows.
    at: u32,
}

/// Each row is its distance from the one before and its rule, both as LEB128 numbers: rows lie a few
/// bytes apart, and most rules are among the first that a file uses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PackedRows {
    bytes: Vec<u8>,
    marks: Vec<Mark>,
    len: usize,
    last: u32,
}

impl PackedRows {
    /// Rows so far.
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// Appends a row; false, and nothing done, if it does not lie behind the last one.
    pub(super) fn push(&mut self, pc: u32, rule: u16) -> bool {
        if pc == u32::MAX || (self.len > 0 && pc <= self.last) {
            return false;
        }
        if self.len.is_multiple_of(ROWS_PER_MARK) {
            let Ok(at) = u32::try_from(self.bytes.len()) else { return false };
            self.marks.push(Mark { pc, at });
        }
        write_number(&mut self.bytes, pc - self.last);
        write_number(&mut self.bytes, u32::from(rule));
        self.last = pc;
        self.len += 1;
        true
    }

    fn rule_at(&self, pc: u32) -> Option<u16> {
        let mark = self.marks.partition_point(|mark| mark.pc <= pc).checked_sub(1)?;
        let Mark { pc: first, at } = *self.marks.get(mark)?;
        let rest = self.bytes.get(usize::try_from(at).ok()?..)?;
        let mut rows = Rows { rest, pc: 0, left: ROWS_PER_MARK };
        // The first distance is from the row before the mark.
        let (_, mut rule) = rows.next()?;
        rows.pc = first;
        for (start, next) in rows {
            if start > pc {
                break;
            }
            rule = next;
        }
        Some(rule)
    }
}

/// See [`RowTable::rows`].
#[derive(Clone, Debug)]
pub struct Rows<'t> {
    rest: &'t [u8],
    pc: u32,
    left: usize,
}

impl Iterator for Rows<'_> {
    type Item = (u32, u16);

    fn next(&mut self) -> Option<(u32, u16)> {
        self.left = self.left.checked_sub(1)?;
        self.pc = self.pc.wrapping_add(read_number(&mut self.rest)?);
        let rule = u16::try_from(read_number(&mut self.rest)?).ok()?;
        Some((self.pc, rule))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (0, Some(self.left))
    }
}

fn write_number(bytes: &mut Vec<u8>, mut number: u32) {
    while number >= 0x80 {
        bytes.push(number.to_le_bytes()[0] | 0x80);
        number >>= 7;
    }
    bytes.push(number.to_le_bytes()[0]);
}

fn read_number(bytes: &mut &[u8]) -> Option<u32> {
    let mut number = 0;
    for shift in (0..35).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= u32::from(byte & 0x7f).checked_shl(shift)?;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use agent_ebpf::RuleKind;
    use proptest::prelude::*;

    fn rules(count: usize) -> Vec<UnwindRule> {
        let rule = |number: usize| UnwindRule {
            offset: i32::try_from(number).unwrap(),
            ..UnwindRule::plain(RuleKind::RspOffset)
        };
        (0..count).map(rule).collect()
    }

    #[test]
    fn rows_out_of_order_or_without_rule_are_refused() {
        let good = vec![(0, 0), (5, 1), (u32::MAX - 1, 0)];
        assert_eq!(
            RowTable::new(0, rules(2), good.clone()).unwrap().rows().collect::<Vec<_>>(),
            good
        );
        assert_eq!(RowTable::new(0, rules(2), [(5, 0), (5, 1)]), None);
        assert_eq!(RowTable::new(0, rules(2), [(5, 0), (4, 1)]), None);
        assert_eq!(RowTable::new(0, rules(2), [(5, 2)]), None);
        assert_eq!(RowTable::new(0, rules(2), [(u32::MAX, 0)]), None);
        assert!(RowTable::new(0, rules(2), []).unwrap().is_empty());
    }

    proptest! {
        #[test]
        fn what_is_packed_is_found_again(
            starts in proptest::collection::btree_set(0..u32::MAX, 1..400),
            asked in proptest::collection::vec(any::<u32>(), 50),
        ) {
            let rows: Vec<(u32, u16)> =
                starts.iter().zip(0..).map(|(&pc, number): (_, u16)| (pc, number * 7 % 300)).collect();
            let table = RowTable::new(0x1000, rules(300), rows.clone()).unwrap();
            prop_assert_eq!(table.rows().collect::<Vec<_>>(), &rows[..]);
            for pc in asked.into_iter().chain(starts) {
                let row = rows.partition_point(|&(start, _)| start <= pc).checked_sub(1);
                let expected = row.map(|row| table.rules()[usize::from(rows[row].1)]);
                prop_assert_eq!(table.rule_at(0x1000 + u64::from(pc)), expected);
            }
            prop_assert_eq!(table.rule_at(0xfff), None);
        }
    }
}
