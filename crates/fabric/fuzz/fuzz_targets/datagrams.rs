//! One end of a conversation over datagrams, on any bytes: no panic, and nothing read that was not
//! carried.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| remora_fabric::tcp::fuzzing::datagrams(bytes));
