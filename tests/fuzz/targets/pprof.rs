//! A pprof profile that somebody pushes, after decompression.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| collector::fuzzing::pprof(bytes));
