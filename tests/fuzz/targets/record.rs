//! Records of the BPF ring buffer and of perf's lifecycle rings (the first byte says which).
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| agent::fuzzing::record(bytes));
