//! Vesta's agent, the privileged half: samples every process of this host and ships OTLP Profiles.
//!
//! The life of a sample up to the wire:
//! 1. [`bpf`] loads and attaches the programs of `agent-ebpf`, drains their ring buffer and the perf
//!    lifecycle records, and decodes both with bounds checks;
//! 2. [`process`] knows which process, which executable and which container a sample belongs to, and
//!    keeps the mapping tables in BPF current; [`unwind`] compiles the tables from files that [`elf`]
//!    reads; a sample that met no table yet waits in [`engine`] with a copy of its stack;
//! 3. [`normalize`] turns each absolute address into (file, ELF address);
//! 4. [`aggregate`] folds a window of samples; [`symbolize`] names what this host can name;
//!    [`waits`] tells what a thread that was switched out waits for;
//! 5. [`export`] builds OTLP and keeps a bounded queue towards the collector; [`record`] writes files
//!    instead.
//!
//! [`engine`] is the loop that runs these steps; [`options`], [`doctor`] and [`metrics`] are its edges.

pub mod address;
pub mod clock;
pub mod limits;
pub mod path;

pub mod aggregate;
pub mod bpf;
pub mod elf;
pub mod export;
pub mod normalize;
pub mod probes;
pub mod process;
pub mod record;
pub mod symbolize;
pub mod unwind;
pub mod waits;

#[cfg(fuzzing)]
pub mod fuzzing;

pub mod doctor;
pub mod engine;
pub mod kernel;
pub mod metrics;
pub mod options;
