//! Commands of hashes.

use super::differential::{compare, fill};

/// What random commands are made of.
const FORMS: &[&str] = &[
    "HSET K F V",
    "HSET K F V",
    "HSET K F V F V",
    "HSET K F V F V F V",
    "HSET K F",
    "HMSET K F V F V",
    "HSETNX K F V",
    "HGET K F",
    "HMGET K F F F",
    "HGETALL K",
    "HKEYS K",
    "HVALS K",
    "HLEN K",
    "HEXISTS K F",
    "HSTRLEN K F",
    "HDEL K F",
    "HDEL K F F F",
    "HDEL K F F F F F F F F F F F F F F",
    "HINCRBY K F V",
    "HINCRBY K F V",
    "HINCRBY K F V",
    "HINCRBYFLOAT K F V",
    "HINCRBYFLOAT K F V",
    "HINCRBYFLOAT K F V",
    "HRANDFIELD K",
    "HRANDFIELD K C",
    "HRANDFIELD K C WITHVALUES",
    "HSCAN K CURSOR",
    "HSCAN K CURSOR MATCH P",
    "HSCAN K CURSOR COUNT C",
    "HSCAN K CURSOR MATCH P COUNT C",
    "hscan K CURSOR count C match P MATCH P",
    "INCR s",
    "FLUSHALL",
];

const CHOICES: &[(&str, &[&str])] = &[
    ("K", &["h1", "h2", "h3", "s"]),
    ("F", &["a", "ab", "b", "abc", "d", "1", "2", "-1", "", "\0", "COUNT", "ÿ"]),
    (
        "V",
        &[
            "0",
            "1",
            "-1",
            "2",
            "3",
            "-3",
            "10",
            "0.1",
            "-0.25",
            "1.5e3",
            "0x1f",
            "1e-18",
            "-1e-400",
            "1e19",
            "inf",
            "-INF",
            "nan",
            "-0",
            "01",
            "1.",
            " 1",
            "1 ",
            "",
            "x",
            "9223372036854775807",
            "-9223372036854775808",
            "9223372036854775808",
            "1e5000",
        ],
    ),
    (
        "C",
        &[
            "0",
            "1",
            "3",
            "-3",
            "100",
            "-100",
            "x",
            "",
            "-9223372036854775808",
            "9223372036854775807",
            "4611686018427387904",
            "4611686018427387903",
            "9223372036854775808",
        ],
    ),
    ("CURSOR", &["0", "0", "00", "-0", "+0", "", "\0x", "x", " 0", "0 ", "18446744073709551616", "-"]),
    ("P", &["*", "a*", "?", "[ab]*", "\\a", "", "*b*", "zz", "[^a]"]),
];

/// It is too long for a small hash.
const LONG: &str = "vvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvv";
const _: () = assert!(LONG.len() == 65);

#[test]
fn random_commands_are_answered_as_by_redis() {
    for seed in 1..=8 {
        compare(seed, 5_000, |random| fill(random, FORMS, CHOICES), |args, text| normalize(args, text, false));
    }
}

#[test]
fn random_commands_of_large_hashes_are_answered_as_by_redis() {
    let forms = &[
        FORMS,
        &[
            "HSET K F L",
            "HSETNX K L V",
            "HINCRBYFLOAT K F 1e4932",
            "HINCRBYFLOAT K F -1e4932",
            "HINCRBYFLOAT K L 1",
            "HSET K F 1.1e4932",
        ],
    ]
    .concat();
    let choices = &[CHOICES, &[("L", &[LONG] as &[&str])]].concat();
    for seed in 9..=16 {
        compare(seed, 5_000, |random| fill(random, forms, choices), |args, text| normalize(args, text, true));
    }
}

/// Hides which fields were drawn. If hashes may be large, what has no order is sorted, and what
/// scans find is hidden.
fn normalize(args: &[&[u8]], text: String, may_be_large: bool) -> String {
    let name = args[0].to_ascii_uppercase();
    let without_strings = |text: &str| text.split('"').step_by(2).collect();
    match name.as_slice() {
        b"HRANDFIELD" => without_strings(&text),
        b"HSCAN" if text.starts_with('[') && may_be_large => "some".to_owned(),
        // A small hash is answered whole, whatever the cursor is.
        b"HGETALL" | b"HKEYS" | b"HVALS" if may_be_large => {
            let parts: Vec<&str> = text.trim_matches(['[', ']', '{', '}']).split(", ").collect();
            let is_flat = name == b"HGETALL" && text.starts_with('[');
            let mut items: Vec<_> = parts.chunks(if is_flat { 2 } else { 1 }).collect();
            items.sort();
            items.concat().join(", ")
        }
        _ => text,
    }
}
