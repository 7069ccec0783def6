//! Unwind tables: compiled here from `.eh_frame`, `.debug_frame` and Go's pclntab into rows, loaded into
//! BPF memory by `bpf`. Nothing here walks a stack.

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
