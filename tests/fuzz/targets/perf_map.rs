//! `/tmp/perf-PID.map`, which any process may write (the first byte says where a reader finds it torn).
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| agent::fuzzing::perf_map(bytes));
