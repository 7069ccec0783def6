//! Unwind tables: compiled here from `.eh_frame`, `.debug_frame` and Go's pclntab into rows, loaded into
//! BPF memory by `bpf`. Only `walk` walks a stack: one that was copied.

mod builder;
mod cfi;
mod compile;
mod go;
mod measure;
mod rule;
mod walk;

pub(crate) use compile::unwind_rows;
pub use compile::unwind_rows_from_bytes;
pub use measure::RowFigures;
pub use walk::{CopiedMapping, CopiedUnwind, Walked, walk_copied};

use agent_ebpf::UnwindRule;

/// The compiled rows of one file, sorted by address. `pcs[i]` starts a range that ends at `pcs[i + 1]`;
/// a gap without unwind information has a row of its own with `RuleKind::NoInfo`; the last row ends the
/// table (`NoInfo`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RowTable {
    /// ELF address that `pcs` are relative to (the lowest executable segment's `p_vaddr`).
    pub base: u64,
    /// Row starts, relative to `base`, strictly ascending.
    pub pcs: Vec<u32>,
    /// For each row, an index into `rules`.
    pub rule_indices: Vec<u16>,
    /// The distinct rules of this table.
    pub rules: Vec<UnwindRule>,
}

impl RowTable {
    /// The rule at an ELF address, as the walker in the kernel finds it.
    #[must_use]
    pub fn rule_at(&self, address: u64) -> Option<UnwindRule> {
        let pc = address.checked_sub(self.base).and_then(|pc| u32::try_from(pc).ok())?;
        let row = self.pcs.partition_point(|&start| start <= pc).checked_sub(1)?;
        self.rules.get(usize::from(*self.rule_indices.get(row)?)).copied()
    }
}

#[cfg(test)]
mod go_tests;
#[cfg(test)]
pub(crate) use go_tests::build as build_go;
#[cfg(test)]
mod live_tests;
#[cfg(test)]
mod tests;
