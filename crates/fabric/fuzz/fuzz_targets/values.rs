//! Reads any bytes as the stored value of a Redis key. It must not panic, and the value must be
//! packed to the same bytes.
#![no_main]

use remora_redis::packed::{length, pack, unpack};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Ok(object) = unpack(bytes) {
        let mut packed = Vec::new();
        pack(&object, &mut packed);
        assert_eq!(packed, bytes);
        assert_eq!(length(&object), bytes.len());
    }
});
