//! Unwind tables: compiled here from `.eh_frame`, `.debug_frame`, Go's pclntab and, where there is none of
//! these, the machine code into rows, loaded into BPF memory by `bpf`. Only `walk` walks a stack: one that was copied.

mod builder;
mod callee;
mod cfi;
mod code;
mod compile;
mod deadline;
mod entries;
mod go;
mod known;
mod measure;
mod rule;
mod table;
mod walk;

pub use compile::unwind_rows_from_bytes;
pub(crate) use compile::{unwind_rows, unwind_rows_soon};
pub use measure::RowFigures;
pub use table::{RowTable, Rows};
pub use walk::{Walked, walk_copied};

/// What of one file is not in its table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RowLosses {
    /// Entries of call frame information, or functions of Go's tables, that could not be read.
    pub damaged: u64,
    /// Functions, or whole sections of call frame information, that a limit left out.
    pub left_out: u64,
    /// Rows that say `Unsupported` because the file has more distinct rules than it may.
    pub rules_refused: u64,
    /// 1 if the CPU time of one file was used up, and what came then is not in it.
    pub out_of_time: u64,
}

#[cfg(test)]
mod go_tests;
#[cfg(test)]
pub(crate) use go_tests::build as build_go;
#[cfg(test)]
mod live_tests;
#[cfg(test)]
mod made_files;
#[cfg(test)]
pub(crate) use made_files::made_file;
#[cfg(test)]
mod oracle_tests;
#[cfg(test)]
mod size_tests;
#[cfg(test)]
mod tests;
