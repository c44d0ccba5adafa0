//! A client's side of an open connection, on any bytes: no panic, no answer above the limits.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| remora_fabric::tcp::fuzzing::responses(bytes));
