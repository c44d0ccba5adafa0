//! Every reply in both versions of the protocol.

use proptest::prelude::*;
use redis_protocol::{resp2, resp3};
use remora_resp::{ReplyWriter, Version};

fn written(version: Version, write: impl Fn(&mut ReplyWriter<'_>)) -> Vec<u8> {
    let mut out = Vec::new();
    write(&mut ReplyWriter::new(&mut out, version));
    out
}

#[track_caller]
fn both(write: impl Fn(&mut ReplyWriter<'_>), resp2: &str, resp3: &str) {
    for (version, expected) in [(Version::Resp2, resp2), (Version::Resp3, resp3)] {
        let text = String::from_utf8(written(version, &write)).unwrap();
        assert_eq!(text, expected.replace('|', "\r\n"), "{version:?}");
    }
}

/// Expects one form for both versions. A bar stands for a line end.
#[track_caller]
fn one(write: impl Fn(&mut ReplyWriter<'_>), expected: &str) {
    both(write, expected, expected);
}

#[test]
fn replies_that_are_alike() {
    one(|reply| reply.simple("OK"), "+OK|");
    one(|reply| reply.error("ERR syntax error"), "-ERR syntax error|");
    one(|reply| reply.error("ERR a\r\nb\n"), "-ERR a  b |");
    one(|reply| reply.simple("a\rb"), "+a b|");
    one(|reply| reply.integer(0), ":0|");
    one(|reply| reply.integer(i64::MIN), ":-9223372036854775808|");
    one(|reply| reply.integer(i64::MAX), ":9223372036854775807|");
    one(|reply| reply.bulk("a\r\nb"), "$4|a|b|");
    one(|reply| reply.bulk(""), "$0||");
    one(|reply| reply.bulk_integer(-12), "$3|-12|");
    one(|reply| reply.array(0), "*0|");
    one(|reply| reply.array(1234), "*1234|");
}

#[test]
fn replies_that_differ() {
    both(|reply| reply.null(), "$-1|", "_|");
    both(|reply| reply.null_array(), "*-1|", "_|");
    both(|reply| reply.map(0), "*0|", "%0|");
    both(|reply| reply.map(3), "*6|", "%3|");
    both(|reply| reply.set(2), "*2|", "~2|");
    both(|reply| reply.push(3), "*3|", ">3|");
    both(|reply| reply.boolean(true), ":1|", "#t|");
    both(|reply| reply.boolean(false), ":0|", "#f|");
    both(|reply| reply.double(1.5), "$3|1.5|", ",1.5|");
    both(|reply| reply.double(-0.0), "$1|0|", ",0|");
    both(|reply| reply.double(1e17), "$5|1e+17|", ",1e+17|");
    both(|reply| reply.double(f64::INFINITY), "$3|inf|", ",inf|");
    both(|reply| reply.double(f64::NEG_INFINITY), "$4|-inf|", ",-inf|");
    both(|reply| reply.big_number("12345678901234567890"), "$20|12345678901234567890|", "(12345678901234567890|");
    both(|reply| reply.verbatim(b"txt", "a\r\nb"), "$4|a|b|", "=8|txt:a|b|");
}

#[test]
fn replies_are_appended() {
    let mut out = b"+OK\r\n".to_vec();
    ReplyWriter::new(&mut out, Version::Resp2).integer(1);
    assert_eq!(out, b"+OK\r\n:1\r\n");
}

#[test]
fn an_independent_decoder_reads_all_forms() {
    let write = |reply: &mut ReplyWriter<'_>| {
        reply.array(11);
        reply.simple("OK");
        reply.error("ERR no");
        reply.integer(-7);
        reply.null();
        reply.null_array();
        reply.map(1);
        reply.bulk("proto");
        reply.integer(3);
        reply.set(1);
        reply.bulk("x");
        reply.double(2.5);
        reply.boolean(true);
        reply.big_number("-123456789012345678901234567890");
        reply.verbatim(b"txt", "some text");
    };
    let bytes = written(Version::Resp2, write);
    let (frame, length) = resp2::decode::decode(&bytes).unwrap().unwrap();
    assert_eq!(length, bytes.len());
    let resp2::types::OwnedFrame::Array(elements) = frame else { panic!("{frame:?}") };
    assert_eq!(elements.len(), 11);
    let bytes = written(Version::Resp3, write);
    let (frame, length) = resp3::decode::complete::decode(&bytes).unwrap().unwrap();
    assert_eq!(length, bytes.len());
    let resp3::types::OwnedFrame::Array { data, .. } = frame else { panic!("{frame:?}") };
    assert_eq!(data.len(), 11);
    assert!(matches!(data[5], resp3::types::OwnedFrame::Map { .. }));
    assert!(matches!(data[6], resp3::types::OwnedFrame::Set { .. }));
    assert!(matches!(data[7], resp3::types::OwnedFrame::Double { data, .. } if data == 2.5));
    assert!(matches!(data[8], resp3::types::OwnedFrame::Boolean { data: true, .. }));
    assert!(matches!(data[9], resp3::types::OwnedFrame::BigNumber { .. }));
    assert!(matches!(data[10], resp3::types::OwnedFrame::VerbatimString { .. }));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn doubles_read_back_from_replies(value in any::<f64>().prop_filter("NaN equals nothing", |value| !value.is_nan())) {
        let bytes = written(Version::Resp3, |reply| reply.double(value));
        let (frame, length) = resp3::decode::complete::decode(&bytes).unwrap().unwrap();
        prop_assert_eq!(length, bytes.len());
        let is_it = matches!(frame, resp3::types::OwnedFrame::Double { data, .. } if data == value);
        prop_assert!(is_it, "{:?}", frame);
    }

    #[test]
    fn no_text_breaks_out_of_its_line(text in prop::collection::vec(any::<u8>(), 0..30)) {
        let bytes = written(Version::Resp2, |reply| reply.error(&text));
        prop_assert_eq!(bytes.len(), text.len() + 3);
        prop_assert!(!bytes[..bytes.len() - 2].iter().any(|byte| matches!(byte, b'\r' | b'\n')));
    }
}
