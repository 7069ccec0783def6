//! Which process, which executable and which container a sample belongs to, and the mapping tables of
//! all processes in BPF. It reads `/proc` and lifecycle records; it parses no executable ([`crate::elf`])
//! and names no address.

pub mod cgroup;
pub mod compile;
#[cfg(test)]
pub(crate) mod fake;
pub mod files;
pub mod host;
mod identity;
pub(crate) mod inner_threads;
mod instance;
pub mod looks;
pub mod mappings;
pub mod maps;
pub mod publish;
mod reports;
pub mod service;
pub mod table;
pub mod table_cache;
mod trampolines;
