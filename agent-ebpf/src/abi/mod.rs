//! Everything that crosses the border between kernel and user space. Not the programs, not the loader.

pub mod limits;
pub mod outcome;
pub mod sample;
pub mod unwind;

pub use outcome::Outcome;
pub use sample::{FRAME_EXACT, RecordKind, SampleHeader, UnknownMapping};
pub use unwind::{RULE_BYTES, RuleKind, UnwindRule};
