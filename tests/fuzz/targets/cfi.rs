//! Call frame information: the bytes are an `.eh_frame` or a `.debug_frame` (the first byte says which) of
//! an otherwise sound file.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| agent::fuzzing::call_frame_information(bytes));
