//! Feeds any bytes to a server in a handshake. It must not panic, or answer beyond the limits.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| remora_fabric::tcp::fuzzing::greeting(bytes));
