//! Tests of the border: decoders on bytes, and the programs on this machine's kernel.

mod bytes;
mod filter;
mod forks;
mod go_locks;
mod ledger;
mod libc_locks;
mod mappings;
mod programs;
mod records;
mod refusals;
mod roots;
mod run;
mod stacks;
mod target;
mod wait_bytes;
mod walks;
