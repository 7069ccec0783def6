//! Walks a held sample's stack on, by what was published of its process meanwhile.

use crate::bpf::{MappingUnwind, RawSample, WalkMapping};
use crate::process::publish::WalkTables;
use crate::unwind::walk_copied;
use agent_ebpf::walk::Rules;
use agent_ebpf::{Outcome, UnwindRule};

/// The rules of one process: its mappings, sorted by start, and the tables behind them.
pub(super) struct Published<'a> {
    pub(super) mappings: &'a [WalkMapping],
    pub(super) tables: &'a dyn WalkTables,
}

impl Rules for Published<'_> {
    fn rule_at(&self, pc: u64) -> Result<UnwindRule, Outcome> {
        let behind = self.mappings.partition_point(|mapping| mapping.start.0 <= pc);
        let mapping = behind.checked_sub(1).and_then(|at| self.mappings.get(at));
        let mapping = mapping.filter(|mapping| pc < mapping.end.0);
        let WalkMapping { bias, unwind, .. } = mapping.ok_or(Outcome::MappingUnknown)?;
        match *unwind {
            MappingUnwind::Pending => Err(Outcome::TablePending),
            // As the walker marks it: code that no file describes.
            MappingUnwind::Rule(rule) => Ok(UnwindRule { reserved: 1, ..rule }),
            MappingUnwind::Table(id) => self
                .tables
                .rule_at(id, pc.wrapping_sub(*bias))
                .map_err(|_removed_meanwhile| Outcome::TablePending),
        }
    }
}

/// Puts what the walk finds in place of the sample's last frame, and the walk's outcome.
///
/// # Errors
/// If it stopped for want of a table again, with that outcome; nothing is changed then, unless this is the `last` try.
pub(super) fn walk_on(
    sample: &mut RawSample,
    rules: &Published<'_>,
    last: bool,
) -> Result<(), Outcome> {
    let Some(stack) = &sample.stack else { return Ok(()) };
    let walked = walk_copied(stack, rules);
    // Its first frame is where the kernel stopped: the last that the sample has.
    let known = sample.user.len().saturating_sub(1);
    let wants_table = matches!(
        walked.outcome,
        Outcome::TablePending | Outcome::MappingUnknown | Outcome::ProcessUnknown
    );
    if !wants_table || (last && walked.frames.len() > 1) {
        sample.user.truncate(known);
        sample.user.extend(walked.frames);
        sample.outcome = walked.outcome;
    }
    if wants_table { Err(walked.outcome) } else { Ok(()) }
}
