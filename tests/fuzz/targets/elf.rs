//! Foreign ELF files: facts, build ids, symbols, Go's tables and unwind rows of whatever the bytes claim.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| agent::fuzzing::elf(bytes));
