//! Feeds any bytes to one end of a conversation over datagrams. It must not panic, and must read
//! only words that a datagram carried.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| remora_fabric::tcp::fuzzing::datagrams(bytes));
