//! Feeds any bytes to a client on an open connection. It must not panic, or answer beyond the
//! limits.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| remora_fabric::tcp::fuzzing::responses(bytes));
