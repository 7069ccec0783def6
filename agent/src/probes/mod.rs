//! Where the code of others is probed, so that waits are seen that no switch of a thread shows: the waiting paths of
//! Go's locks ([`go`]) and of the C library's. Pure: a file in, places in it out. Who attaches there is `bpf`.

pub(crate) mod code;
mod effort;
mod functions;
pub mod go;
pub mod keeper;
pub mod libc;
#[cfg(test)]
mod tests;

use crate::address::FileOffset;

/// A function to probe, by places in its file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbedFunction {
    /// Its name.
    pub name: &'static str,
    /// Its first instruction.
    pub entry: FileOffset,
    /// Its return instructions, at least one.
    pub returns: Vec<FileOffset>,
}
