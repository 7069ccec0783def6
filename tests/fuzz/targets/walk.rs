//! The walk of a user stack over tables, stacks and registers that the bytes describe.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| agent::fuzzing::walk(bytes));
