//! The distinct unwind rules of all tables, counted by the tables that use them: 1,412 were enough for
//! every executable of a developer's machine. Keeps the numbers; the map is written by `Tables`.

use crate::clock::MonotonicNs;
use agent_ebpf::limits::{REUSE_DELAY_NS, RULES_MAX};
use agent_ebpf::{RuleKind, UnwindRule};
use std::collections::{HashMap, VecDeque};

/// Rule numbers and who uses them.
#[derive(Debug, Default)]
pub(super) struct Rules {
    numbers: HashMap<UnwindRule, u16>,
    /// The rule and its users, by number; `None` where a number waits to be used again.
    slots: Vec<Option<(UnwindRule, u32)>>,
    retired: VecDeque<(MonotonicNs, u16)>,
    /// Rules of whole mappings, a handful: each has one user more, for good, however many mappings go by it.
    kept: HashMap<UnwindRule, u16>,
}

/// The number of a rule, and whether the map must be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Interned {
    pub(super) number: u16,
    pub(super) new: bool,
}

impl Rules {
    /// Holds `NoInfo` as number 0, which the walker itself uses, forever.
    pub(super) fn new() -> Self {
        let mut rules = Self::default();
        let first = rules.intern(UnwindRule::plain(RuleKind::NoInfo), MonotonicNs(0));
        debug_assert_eq!(first, Some(Interned { number: 0, new: true }));
        rules
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.numbers.len()
    }

    /// True if a table or a mapping has this rule.
    pub(super) fn has(&self, rule: &UnwindRule) -> bool {
        self.numbers.contains_key(rule)
    }

    /// Who uses the rule with this number.
    pub(super) fn users(&self, number: u16) -> u32 {
        self.slots.get(usize::from(number)).copied().flatten().map_or(0, |(_, users)| users)
    }

    /// The number of a rule that is kept for good.
    pub(super) fn kept(&self, rule: &UnwindRule) -> Option<u16> {
        self.kept.get(rule).copied()
    }

    /// The last user of a rule keeps its number for good.
    pub(super) fn keep(&mut self, rule: UnwindRule, number: u16) {
        self.kept.insert(rule, number);
    }

    /// The rule with this number, if it is in use.
    pub(super) fn rule(&self, number: u16) -> Option<UnwindRule> {
        let slot = self.slots.get(usize::from(number))?;
        slot.map(|(rule, _)| rule)
    }

    /// The number of `rule`, with one more user; `None` if all numbers are used.
    pub(super) fn intern(&mut self, rule: UnwindRule, now: MonotonicNs) -> Option<Interned> {
        if let Some(&number) = self.numbers.get(&rule) {
            if let Some(Some((_, users))) = self.slots.get_mut(usize::from(number)) {
                *users += 1;
            }
            return Some(Interned { number, new: false });
        }
        let number = self.free_number(now)?;
        let slot = self.slots.get_mut(usize::from(number))?;
        *slot = Some((rule, 1));
        self.numbers.insert(rule, number);
        Some(Interned { number, new: true })
    }

    fn free_number(&mut self, now: MonotonicNs) -> Option<u16> {
        if let Some(&(since, number)) = self.retired.front()
            && now.0.saturating_sub(since.0) >= REUSE_DELAY_NS
        {
            self.retired.pop_front();
            return Some(number);
        }
        if self.slots.len() >= RULES_MAX {
            return None;
        }
        self.slots.push(None);
        u16::try_from(self.slots.len() - 1).ok()
    }

    /// One user less.
    pub(super) fn release(&mut self, number: u16, now: MonotonicNs) {
        let Some(slot) = self.slots.get_mut(usize::from(number)) else { return };
        let Some((rule, users)) = slot else { return };
        *users -= 1;
        if *users == 0 {
            self.numbers.remove(rule);
            *slot = None;
            self.retired.push_back((now, number));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_rules_share_a_number_until_the_last_user_is_gone() {
        let mut rules = Rules::new();
        let now = MonotonicNs(0);
        let rule = UnwindRule { offset: 16, ..UnwindRule::plain(RuleKind::RspOffset) };
        assert_eq!(rules.intern(rule, now), Some(Interned { number: 1, new: true }));
        assert_eq!(rules.intern(rule, now), Some(Interned { number: 1, new: false }));
        rules.release(1, now);
        assert_eq!(rules.len(), 2);
        rules.release(1, now);
        assert_eq!(rules.len(), 1);
        let other = UnwindRule { offset: 24, ..rule };
        let early = rules.intern(other, MonotonicNs(REUSE_DELAY_NS - 1));
        assert_eq!(early, Some(Interned { number: 2, new: true }), "number 1 may still be read");
        let late = rules.intern(rule, MonotonicNs(REUSE_DELAY_NS));
        assert_eq!(late, Some(Interned { number: 1, new: true }));
    }

    #[test]
    fn a_kept_rule_counts_once_however_many_mappings_go_by_it() {
        let mut rules = Rules::new();
        let now = MonotonicNs(0);
        let rule = UnwindRule { offset: 16, ..UnwindRule::plain(RuleKind::RspOffset) };
        for _ in 0..3 {
            if rules.kept(&rule).is_none() {
                let number = rules.intern(rule, now).unwrap().number;
                rules.keep(rule, number);
            }
        }
        let number = rules.kept(&rule).unwrap();
        assert!(rules.has(&rule));
        assert_eq!(rules.users(number), 1);
        // A table that has it too comes and goes.
        rules.intern(rule, now);
        rules.release(number, now);
        assert_eq!((rules.users(number), rules.kept(&rule)), (1, Some(number)));
        assert_eq!(rules.users(77), 0);
    }
}
