//! Reads any bytes as numbers. It must not panic, and what is printed must read back.
#![no_main]

use remora_resp::number::{Double, Integer, LongDouble, parse_double, parse_integer};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Some(value) = parse_integer(bytes) {
        assert_eq!(Integer::new(value).as_ref(), bytes);
    }
    if let Some(value) = parse_double(bytes) {
        assert_eq!(parse_double(Double::new(value).as_ref()), Some(value));
    }
    if let Some(value) = LongDouble::parse(bytes) {
        let (mut text, mut again) = (Vec::new(), Vec::new());
        value.write(&mut text);
        LongDouble::parse(&text).expect("what is printed reads back").write(&mut again);
        assert_eq!(text, again);
    }
});
