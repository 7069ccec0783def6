//! How many pages of mappings one process may have: as many as it wants, until another one was refused for want of
//! them. Then those that have more than a share give the rest back.

use crate::address::Pid;
use crate::bpf::{MappingUnwind, WalkMapping};
use crate::clock::MonotonicNs;
use crate::limits::{PAGES_SHARE, PAGES_TIGHT_NS, PUBLISH_RETRY_NS_MIN};
use agent_ebpf::limits::{MAPPING_PAGES_MAX, MAPPING_PAGES_PER_PROCESS_MAX, MAPPINGS_PER_PAGE};
use agent_ebpf::{RuleKind, UnwindRule};
use hashbrown::{HashMap, HashSet};

/// Who has how many. Bounded by the number of processes known, which has a limit.
#[derive(Debug)]
pub(super) struct Pages {
    held: HashMap<Pid, usize>,
    /// Processes that got less than they wanted.
    cut: HashSet<Pid>,
    /// Pages that one process may have.
    share: usize,
    /// When the share was made smaller, and when it is what it was.
    cut_at: MonotonicNs,
    until: MonotonicNs,
    /// Pages of the kernel side.
    pub(super) pages_max: usize,
}

impl Default for Pages {
    fn default() -> Self {
        Self {
            held: HashMap::new(),
            cut: HashSet::new(),
            share: MAPPING_PAGES_PER_PROCESS_MAX,
            cut_at: MonotonicNs(0),
            until: MonotonicNs(0),
            pages_max: MAPPING_PAGES_MAX,
        }
    }
}

impl Pages {
    /// Processes that are walked by a part of their mappings.
    pub(super) fn cut_processes(&self) -> usize {
        self.cut.len()
    }

    /// Leaves out what is more than the share: first what has no rows. Answers how many.
    pub(super) fn cut(&self, mappings: &mut Vec<WalkMapping>) -> usize {
        let room = self.share.saturating_mul(MAPPINGS_PER_PAGE);
        let excess = mappings.len().saturating_sub(room);
        let no_rows = MappingUnwind::Rule(UnwindRule::plain(RuleKind::NoInfo));
        let mut left = excess;
        mappings.retain(|mapping| {
            let goes = left > 0 && mapping.unwind == no_rows;
            left -= usize::from(goes);
            !goes
        });
        mappings.truncate(room);
        excess
    }

    /// A process was published with so many mappings; `left_out` others found no room.
    pub(super) fn published(&mut self, pid: Pid, mappings: usize, left_out: usize) {
        self.held.insert(pid, pages_of(mappings));
        if left_out > 0 {
            self.cut.insert(pid);
        } else {
            self.cut.remove(&pid);
        }
    }

    /// It has ended.
    pub(super) fn forget(&mut self, pid: Pid) {
        self.held.remove(&pid);
        self.cut.remove(&pid);
    }

    /// A process with so many mappings was refused: who has to give pages back for it.
    pub(super) fn refused(&mut self, mappings: usize, now: MonotonicNs) -> Vec<Pid> {
        let held: usize = self.held.values().sum();
        // Those who have equal mappings share their pages, so that more may be noted than there are; if there are
        // fewer, something else was full.
        if held.saturating_add(pages_of(mappings)) < self.pages_max / 2 {
            return Vec::new();
        }
        let mut share = self.share.min(PAGES_SHARE);
        let is_above = |share: usize| self.held.values().any(|&pages| pages > share);
        // What was given back is used again only after a delay.
        if self.share <= PAGES_SHARE && now.since(self.cut_at) < PUBLISH_RETRY_NS_MIN {
            return Vec::new();
        }
        while share > 1 && !is_above(share) {
            share /= 2;
        }
        self.share = share;
        (self.cut_at, self.until) = (now, now.plus(PAGES_TIGHT_NS));
        self.held.iter().filter(|(_, pages)| **pages > share).map(|(pid, _)| *pid).collect()
    }

    /// Who may have more again.
    pub(super) fn relaxed(&mut self, now: MonotonicNs) -> Vec<Pid> {
        if self.share == MAPPING_PAGES_PER_PROCESS_MAX || now < self.until {
            return Vec::new();
        }
        self.share = MAPPING_PAGES_PER_PROCESS_MAX;
        self.cut.iter().copied().collect()
    }
}

/// Pages that so many mappings take.
fn pages_of(mappings: usize) -> usize {
    mappings.div_ceil(MAPPINGS_PER_PAGE).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::AbsAddr;
    use crate::bpf::TableId;

    #[test]
    fn many_processes_with_few_pages_give_back_too() {
        let mut pages = Pages { pages_max: 64, ..Pages::default() };
        for pid in 0..16 {
            pages.published(Pid(pid), 4 * MAPPINGS_PER_PAGE, 0);
        }
        let begin = MonotonicNs(1_000_000_000);
        assert_eq!(pages.refused(1, begin).len(), 16);
        assert_eq!(pages.share, 2);
        assert_eq!(pages.refused(1, begin.plus(1)), [], "what they gave back comes later");
        for pid in 0..16 {
            pages.published(Pid(pid), 2 * MAPPINGS_PER_PAGE, 2 * MAPPINGS_PER_PAGE);
        }
        assert_eq!(
            pages.refused(32 * MAPPINGS_PER_PAGE, begin.plus(PUBLISH_RETRY_NS_MIN)).len(),
            16
        );
        assert_eq!((pages.share, pages.cut_processes()), (1, 16));
        let over = begin.plus(PUBLISH_RETRY_NS_MIN + PAGES_TIGHT_NS);
        assert_eq!((pages.relaxed(over).len(), pages.relaxed(over).len()), (16, 0));
    }

    #[test]
    fn a_refusal_for_another_reason_cuts_nobody() {
        let mut pages = Pages::default();
        pages.published(Pid(1), 100 * MAPPINGS_PER_PAGE, 0);
        assert_eq!(pages.refused(1, MonotonicNs(1_000_000_000)), []);
    }

    #[test]
    fn what_has_no_rows_goes_first() {
        let pages = Pages { share: 1, ..Pages::default() };
        let no_rows = MappingUnwind::Rule(UnwindRule::plain(RuleKind::NoInfo));
        let mapping = |number: u64| WalkMapping {
            start: AbsAddr(number * 0x2000),
            end: AbsAddr(number * 0x2000 + 0x1000),
            bias: 0,
            unwind: if number.is_multiple_of(2) {
                no_rows
            } else {
                MappingUnwind::Table(TableId(1))
            },
        };
        let mut mappings: Vec<_> = (0..130).map(mapping).collect();
        assert_eq!(pages.cut(&mut mappings), 66);
        assert_eq!(mappings.len(), 64);
        assert!(mappings.iter().all(|mapping| mapping.unwind != no_rows));
        assert_eq!(pages.cut(&mut mappings), 0);
    }
}
