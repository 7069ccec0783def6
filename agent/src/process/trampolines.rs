//! `CPython` calls each Python function through a trampoline of its own where `-X perf` asks for it: code
//! without call frame information that moves the stack pointer by 8 bytes and calls. Its caller's return
//! address lies 16 bytes above the stack pointer of the call.

use crate::address::AbsAddr;
use crate::bpf::{MappingUnwind, WalkMapping};
use agent_ebpf::{RuleKind, UnwindRule};

/// Bytes between the start of a mapping and its first trampoline, at most: the alignment of one.
const ALIGNMENT: u64 = 64;

/// Lays the rule of trampolines over the mappings of a process that have none. `ranges` ascend.
pub(super) fn apply(walk: Vec<WalkMapping>, ranges: &[(AbsAddr, AbsAddr)]) -> Vec<WalkMapping> {
    if ranges.is_empty() {
        return walk;
    }
    let no_rows = MappingUnwind::Rule(UnwindRule::plain(RuleKind::NoInfo));
    let pieces = |mapping: WalkMapping| {
        if mapping.unwind == no_rows { pieces(mapping, ranges) } else { vec![mapping] }
    };
    walk.into_iter().flat_map(pieces).collect()
}

/// The parts of one mapping.
fn pieces(mapping: WalkMapping, ranges: &[(AbsAddr, AbsAddr)]) -> Vec<WalkMapping> {
    let rule = UnwindRule { offset: 16, ..UnwindRule::plain(RuleKind::RspOffset) };
    let trampolines = MappingUnwind::Rule(rule);
    let from = ranges.partition_point(|range| range.1 <= mapping.start);
    let within = ranges.iter().skip(from).take_while(|range| range.0 < mapping.end);
    let mut parts = Vec::new();
    let mut at = mapping.start;
    for (number, &(start, end)) in within.enumerate() {
        let begins = start.0.checked_sub(mapping.start.0).is_some_and(|gap| gap <= ALIGNMENT);
        if number == 0 && begins {
            // CPython maps pieces for its trampolines alone: those that it makes next follow here.
            return vec![WalkMapping { unwind: trampolines, ..mapping }];
        }
        let (start, end) = (start.max(at), end.min(mapping.end));
        if at < start {
            parts.push(WalkMapping { start: at, end: start, ..mapping });
        }
        parts.push(WalkMapping { start, end, unwind: trampolines, ..mapping });
        at = end;
    }
    if at < mapping.end {
        parts.push(WalkMapping { start: at, ..mapping });
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bpf::TableId;

    fn mapping(start: u64, end: u64, unwind: MappingUnwind) -> WalkMapping {
        WalkMapping { start: AbsAddr(start), end: AbsAddr(end), bias: 0, unwind }
    }

    #[track_caller]
    fn check(mapping: WalkMapping, ranges: &[(u64, u64)], expected: &[(u64, u64, bool)]) {
        let ranges: Vec<_> = ranges.iter().map(|&(a, b)| (AbsAddr(a), AbsAddr(b))).collect();
        let is_trampoline = |mapping: &WalkMapping| {
            let rule = UnwindRule { offset: 16, ..UnwindRule::plain(RuleKind::RspOffset) };
            mapping.unwind == MappingUnwind::Rule(rule)
        };
        let parts = apply(vec![mapping], &ranges);
        let parts: Vec<_> =
            parts.iter().map(|part| (part.start.0, part.end.0, is_trampoline(part))).collect();
        assert_eq!(parts, expected);
    }

    #[test]
    fn only_trampolines_get_the_rule() {
        let none = MappingUnwind::Rule(UnwindRule::plain(RuleKind::NoInfo));
        let anonymous = mapping(0x1000, 0x2000, none);
        check(anonymous, &[], &[(0x1000, 0x2000, false)]);
        check(anonymous, &[(0x800, 0x900), (0x2000, 0x2100)], &[(0x1000, 0x2000, false)]);
        check(anonymous, &[(0x1000, 0x1100)], &[(0x1000, 0x2000, true)]);
        check(anonymous, &[(0x1040, 0x1100)], &[(0x1000, 0x2000, true)]);
        // What begins in front of the mapping says nothing of the rest.
        check(anonymous, &[(0x800, 0x1100)], &[(0x1000, 0x1100, true), (0x1100, 0x2000, false)]);
        check(
            anonymous,
            &[(0x1100, 0x1200), (0x1300, 0x2300)],
            &[
                (0x1000, 0x1100, false),
                (0x1100, 0x1200, true),
                (0x1200, 0x1300, false),
                (0x1300, 0x2000, true),
            ],
        );
        let file = mapping(0x1000, 0x2000, MappingUnwind::Table(TableId(1)));
        check(file, &[(0x1000, 0x1100)], &[(0x1000, 0x2000, false)]);
    }
}
