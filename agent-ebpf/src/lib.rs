//! The ABI between the BPF programs and the agent.
//!
//! The life of a sample begins here: a per-CPU clock fires, a program of this package walks the kernel
//! stack and the user stack with tables that the agent loaded, and puts one record into a ring buffer.
//! This library holds what both sides must agree on: record layouts, table layouts, the catalogue of
//! outcomes and every limit ([`abi`]), the walk itself ([`walk`]), which both sides run, and which waits of
//! threads send a stack ([`chance`]). It has no
//! dependency without features, allocates nothing and knows no OTLP.
//! The programs themselves are the binary (`src/main.rs`, feature `programs`).
#![no_std]
#![cfg_attr(
    target_arch = "bpf",
    expect(unstable_features, reason = "inline assembly for BPF is not stable"),
    feature(asm_experimental_arch)
)]

#[cfg(all(feature = "user", feature = "programs"))]
compile_error!("features `user` and `programs` are the two sides of one border: build one of them");

#[cfg(test)]
extern crate std;

pub mod abi;
pub mod chance;
pub mod verifier;
pub mod walk;

pub use abi::*;
