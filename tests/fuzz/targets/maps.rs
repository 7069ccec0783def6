//! `/proc/PID/maps`, whose paths are chosen by the process.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| agent::fuzzing::maps(bytes));
