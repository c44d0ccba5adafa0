//! Commands of strings.

use proptest::prelude::*;

use super::differential::{Random, compare};
use super::server::{Server, changes, check, text};

#[test]
fn integers_are_counted() {
    check(
        r#"
        > INCRBY n 40
        40
        > INCR n
        41
        > GET n
        "41"
        > DECR n
        40
        > DECRBY n 50
        -10
        > DECRBY n -10
        0
        > INCRBY n 9223372036854775807
        9223372036854775807
        > INCR n
        -ERR increment or decrement would overflow
        > INCRBY n x
        -ERR value is not an integer or out of range
        > DECRBY n -9223372036854775808
        -ERR decrement would overflow
        > STRLEN n
        19
        > DECR m
        -1
        > DECRBY m 9223372036854775807
        -9223372036854775808
        > DECR m
        -ERR increment or decrement would overflow
        > MSET blank "" space " 1" plus +1 zero 01 long 9223372036854775808
        OK
        > INCR blank
        -ERR value is not an integer or out of range
        > INCR space
        -ERR value is not an integer or out of range
        > INCR plus
        -ERR value is not an integer or out of range
        > INCR zero
        -ERR value is not an integer or out of range
        > INCR long
        -ERR value is not an integer or out of range
        > EXPIRE n 100
        1
        > DECR n
        9223372036854775806
        > TTL n
        100
        > APPEND n 1
        20
        > SET n 5
        OK
        > SETRANGE n 1 0
        2
        > OBJECT ENCODING n
        "raw"
        > INCR n
        51
        > OBJECT ENCODING n
        "int"
        > INCR
        -ERR wrong number of arguments for 'incr' command
        > INCRBY n
        -ERR wrong number of arguments for 'incrby' command
        "#,
    );
}

#[test]
fn long_doubles_are_added() {
    check(
        r#"
        > INCRBYFLOAT f 0.1
        "0.1"
        > EXPIRE f 100
        1
        > INCRBYFLOAT f 0.2
        "0.3"
        > TTL f
        100
        > OBJECT ENCODING f
        "embstr"
        > INCRBYFLOAT f 0.7
        "1"
        > OBJECT ENCODING f
        "embstr"
        > INCR f
        2
        > SET f 1.1
        OK
        > INCRBYFLOAT f 1e15
        "1000000000000001.0999755859375"
        > INCRBYFLOAT tiny 1e-18
        "0"
        > INCRBYFLOAT f inf
        -ERR increment would produce NaN or Infinity
        > INCRBYFLOAT f nan
        -ERR value is not a valid float
        > INCRBYFLOAT f x
        -ERR value is not a valid float
        > INCRBYFLOAT f " 1"
        -ERR value is not a valid float
        > INCRBYFLOAT f 1e5000
        -ERR value is not a valid float
        > SET s abc
        OK
        > INCRBYFLOAT s 1
        -ERR value is not a valid float
        > SET inf inf
        OK
        > INCRBYFLOAT inf 1
        -ERR increment would produce NaN or Infinity
        > INCRBYFLOAT inf -inf
        -ERR increment would produce NaN or Infinity
        > SET h 0x10
        OK
        > INCRBYFLOAT h 0x1p-1
        "16.5"
        > INCRBYFLOAT big 1e50
        "100000000000000000003583830118858923890798487404544"
        > OBJECT ENCODING big
        "raw"
        "#,
    );
}

#[test]
fn set_takes_its_options_in_any_order() {
    check(
        r#"
        > SET k 1
        OK
        > SET k 2 NX
        nil
        > SET k 2 XX
        OK
        > SET no 2 XX
        nil
        > SET k 3 GET
        "2"
        > SET k 4 NX GET
        "3"
        > SET no 4 GET XX
        nil
        > GET no
        nil
        > SET new 4 GET NX
        nil
        > GET new
        "4"
        > SET k 5 EX 100 XX GET
        "3"
        > TTL k
        100
        > SET k 6 KEEPTTL
        OK
        > TTL k
        100
        > SET k 6 NX KEEPTTL
        nil
        > SET k 7
        OK
        > TTL k
        -1
        > SET k 7 PX 100000
        OK
        > TTL k
        100
        > SET k 7 EXAT 9000000000
        OK
        > EXPIRETIME k
        9000000000
        > SET k 7 PXAT 9000000000001
        OK
        > PEXPIRETIME k
        9000000000001
        > SET k 8 ex 100 EX 200 nx NX get GET
        "7"
        > SET k 8 xx XX keepttl KEEPTTL
        OK
        > PEXPIRETIME k
        9000000000001
        > SET fresh 8 KEEPTTL
        OK
        > TTL fresh
        -1
        > SET k v NX XX
        -ERR syntax error
        > SET k v XX NX
        -ERR syntax error
        > SET k v EX
        -ERR syntax error
        > SET k v EX 1 PX 1
        -ERR syntax error
        > SET k v EX 1 EXAT 1
        -ERR syntax error
        > SET k v KEEPTTL EX 1
        -ERR syntax error
        > SET k v EX 1 KEEPTTL
        -ERR syntax error
        > SET k v PERSIST
        -ERR syntax error
        > SET k v FOO
        -ERR syntax error
        > SET k v EX abc FOO
        -ERR syntax error
        > SET k v EX abc
        -ERR value is not an integer or out of range
        > SET k v EX 0
        -ERR invalid expire time in 'set' command
        > SET k v EX -1
        -ERR invalid expire time in 'set' command
        > SET k v EXAT 0
        -ERR invalid expire time in 'set' command
        > SET k v PXAT -5
        -ERR invalid expire time in 'set' command
        > SET k v EX 99999999999999999
        -ERR invalid expire time in 'set' command
        > SET k v PX 9223372036854775807
        -ERR invalid expire time in 'set' command
        > SET k v PXAT 9223372036854775807
        OK
        > SET k v EXAT 1
        OK
        > EXISTS k
        0
        > RPUSH l a
        1
        > SET l v GET
        -WRONGTYPE Operation against a key holding the wrong kind of value
        > SET l v GET EX 0
        -ERR invalid expire time in 'set' command
        > SET l v NX GET
        -WRONGTYPE Operation against a key holding the wrong kind of value
        > TYPE l
        list
        > SET l v
        OK
        > TYPE l
        string
        > SET l
        -ERR wrong number of arguments for 'set' command
        "#,
    );
}

#[test]
fn setex_setnx_getset() {
    check(
        r#"
        > SETEX k 100 v
        OK
        > TTL k
        100
        > PSETEX k 200000 v
        OK
        > TTL k
        200
        > SETEX k 0 v
        -ERR invalid expire time in 'setex' command
        > SETEX k x v
        -ERR value is not an integer or out of range
        > PSETEX k -1 v
        -ERR invalid expire time in 'psetex' command
        > PSETEX k 9223372036854775807 v
        -ERR invalid expire time in 'psetex' command
        > SETEX k 100
        -ERR wrong number of arguments for 'setex' command
        > SETNX k w
        0
        > TTL k
        200
        > SETNX new w
        1
        > GETSET k x
        "v"
        > TTL k
        -1
        > GETSET none x
        nil
        > RPUSH l a
        1
        > GETSET l x
        -WRONGTYPE Operation against a key holding the wrong kind of value
        > SETNX l x
        0
        > SETEX l 100 x
        OK
        > TYPE l
        string
        "#,
    );
}

#[test]
fn getex_and_getdel() {
    check(
        r#"
        > SET k v
        OK
        > GETEX k
        "v"
        > TTL k
        -1
        > GETEX k EX 100
        "v"
        > TTL k
        100
        > GETEX k PX 200000 PX 300000
        "v"
        > TTL k
        300
        > GETEX k
        "v"
        > TTL k
        300
        > GETEX k PERSIST persist
        "v"
        > TTL k
        -1
        > GETEX k EXAT 9000000000
        "v"
        > EXPIRETIME k
        9000000000
        > GETEX k PXAT 9000000000000
        "v"
        > GETEX k EX 9 PERSIST
        -ERR syntax error
        > GETEX k PERSIST EX 9
        -ERR syntax error
        > GETEX k KEEPTTL
        -ERR syntax error
        > GETEX k NX
        -ERR syntax error
        > GETEX k GET
        -ERR syntax error
        > GETEX k EX
        -ERR syntax error
        > GETEX k PX 0
        -ERR invalid expire time in 'getex' command
        > GETEX k PX x
        -ERR value is not an integer or out of range
        > GETEX none PX 0
        nil
        > GETEX none FOO
        -ERR syntax error
        > RPUSH l a
        1
        > GETEX l PX 0
        -WRONGTYPE Operation against a key holding the wrong kind of value
        > GETEX k PXAT 1
        "v"
        > EXISTS k
        0
        > SET k v
        OK
        > GETDEL k
        "v"
        > GETDEL k
        nil
        > GETDEL l
        -WRONGTYPE Operation against a key holding the wrong kind of value
        "#,
    );
}

#[test]
fn several_keys() {
    check(
        r#"
        > MSET a 1 b 2 a 3
        OK
        > MGET a b none a
        ["3", "2", nil, "3"]
        > EXPIRE a 100
        1
        > MSET a 4
        OK
        > TTL a
        -1
        > RPUSH l x
        1
        > MGET l a
        [nil, "4"]
        > MSETNX c 1 b 2
        0
        > EXISTS c
        0
        > MSETNX c 1 l 2
        0
        > MSETNX c 1 d 2 c 3
        1
        > MGET c d
        ["3", "2"]
        > MSET l 1
        OK
        > TYPE l
        string
        > MSET a 1 b
        -ERR wrong number of arguments for 'mset' command
        > MSETNX a 1 b
        -ERR wrong number of arguments for 'msetnx' command
        > MSET a
        -ERR wrong number of arguments for 'mset' command
        > HELLO 3
        OK
        > MGET none
        [nil]
        > GET none
        nil
        "#,
    );
}

#[test]
fn parts_of_strings() {
    check(
        r#"
        > SET s "Hello World"
        OK
        > GETRANGE s 0 4
        "Hello"
        > SUBSTR s -5 -1
        "World"
        > GETRANGE s -100 -50
        "H"
        > GETRANGE s -50 -100
        ""
        > GETRANGE s 5 2
        ""
        > GETRANGE s 100 200
        ""
        > GETRANGE s 10 200
        "d"
        > GETRANGE s -9223372036854775808 9223372036854775807
        "Hello World"
        > GETRANGE s 0 -9223372036854775808
        "H"
        > GETRANGE s 9223372036854775807 -1
        ""
        > GETRANGE none 0 -1
        ""
        > GETRANGE s x 1
        -ERR value is not an integer or out of range
        > GETRANGE s 1 1.0
        -ERR value is not an integer or out of range
        > SET empty ""
        OK
        > GETRANGE empty 0 -1
        ""
        > GETRANGE empty 0 0
        ""
        > SETRANGE s 6 Redis
        11
        > GET s
        "Hello Redis"
        > SETRANGE s 13 !
        14
        > GET s
        "Hello Redis\x00\x00!"
        > SETRANGE none 3 x
        4
        > GET none
        "\x00\x00\x00x"
        > OBJECT ENCODING none
        "raw"
        > SETRANGE missing 5 ""
        0
        > EXISTS missing
        0
        > SETRANGE s 500 ""
        14
        > SETRANGE s -1 x
        -ERR offset is out of range
        > SETRANGE s x x
        -ERR value is not an integer or out of range
        > SETRANGE s 536870912 x
        -ERR string exceeds maximum allowed size (proto-max-bulk-len)
        > SETRANGE s 536870912 ""
        14
        > SETRANGE s 9223372036854775807 x
        -ERR string exceeds maximum allowed size (proto-max-bulk-len)
        >72 SETRANGE s 30000000 x
        -ERR string exceeds maximum allowed size (proto-max-bulk-len)
        > RPUSH l a
        1
        > SETRANGE l 0 ""
        -WRONGTYPE Operation against a key holding the wrong kind of value
        > SETRANGE l -1 x
        -ERR offset is out of range
        > GETRANGE l 0 -1
        -WRONGTYPE Operation against a key holding the wrong kind of value
        > GETRANGE l x 1
        -ERR value is not an integer or out of range
        > STRLEN l
        -WRONGTYPE Operation against a key holding the wrong kind of value
        > STRLEN absent
        0
        > GET l
        -WRONGTYPE Operation against a key holding the wrong kind of value
        > APPEND l x
        -WRONGTYPE Operation against a key holding the wrong kind of value
        "#,
    );
}

#[test]
fn strings_have_encodings() {
    check(
        r#"
        > APPEND n 12
        2
        > OBJECT ENCODING n
        "int"
        > APPEND n ""
        2
        > OBJECT ENCODING n
        "raw"
        > INCRBY n 0
        12
        > OBJECT ENCODING n
        "int"
        > APPEND blank ""
        0
        > EXISTS blank
        1
        > OBJECT ENCODING blank
        "embstr"
        > EXPIRE n 100
        1
        > APPEND n 3
        3
        > SETRANGE n 0 4
        3
        > TTL n
        100
        > SET s 01234567890123456789012345678901234567890123
        OK
        > OBJECT ENCODING s
        "embstr"
        > SET s 012345678901234567890123456789012345678901234
        OK
        > OBJECT ENCODING s
        "raw"
        > COPY s t
        1
        > OBJECT ENCODING t
        "raw"
        > SET s -9223372036854775808
        OK
        > OBJECT ENCODING s
        "int"
        > SET s 9223372036854775808
        OK
        > OBJECT ENCODING s
        "embstr"
        > SET s -0
        OK
        > OBJECT ENCODING s
        "embstr"
        > GETSET s 7
        "-0"
        > OBJECT ENCODING s
        "int"
        "#,
    );
}

#[test]
fn longest_common_subsequences() {
    check(
        r#"
        > MSET a ohmytext b mynewtext
        OK
        > LCS a b
        "mytext"
        > LCS a b LEN
        6
        > LCS a b IDX
        ["matches", [[[4, 7], [5, 8]], [[2, 3], [0, 1]]], "len", 6]
        > LCS a b idx minmatchlen 4
        ["matches", [[[4, 7], [5, 8]]], "len", 6]
        > LCS a b IDX MINMATCHLEN 4 WITHMATCHLEN
        ["matches", [[[4, 7], [5, 8], 4]], "len", 6]
        > LCS a b IDX MINMATCHLEN -1
        ["matches", [[[4, 7], [5, 8]], [[2, 3], [0, 1]]], "len", 6]
        > LCS a b IDX MINMATCHLEN 9223372036854775807
        ["matches", [], "len", 6]
        > LCS a b WITHMATCHLEN MINMATCHLEN 3
        "mytext"
        > LCS a none
        ""
        > LCS none none IDX
        ["matches", [], "len", 0]
        > LCS a a
        "ohmytext"
        > LCS a b LEN IDX
        -ERR If you want both the length and indexes, please just use IDX.
        > LCS a b LEN IDX FOO
        -ERR syntax error
        > LCS a b MINMATCHLEN
        -ERR syntax error
        > LCS a b MINMATCHLEN x
        -ERR value is not an integer or out of range
        > LCS a
        -ERR wrong number of arguments for 'lcs' command
        > RPUSH l a
        1
        > LCS a l FOO
        -ERR The specified keys must contain string values
        > LCS none l
        -ERR The specified keys must contain string values
        > HELLO 3
        OK
        > LCS a b IDX
        {"matches": [[[4, 7], [5, 8]], [[2, 3], [0, 1]]], "len": 6}
        "#,
    );
}

/// Returns the length of the longest common subsequence, by the table of the textbook.
fn textbook(a: &[u8], b: &[u8]) -> usize {
    let mut row = vec![0; b.len() + 1];
    for byte in a {
        let mut before = 0;
        for place in 0..b.len() {
            let above = row[place + 1];
            row[place + 1] = if b[place] == *byte { before + 1 } else { above.max(row[place]) };
            before = above;
        }
    }
    row[b.len()]
}

proptest! {
    /// Rows of several words carry from one to the next, and over words without any equal byte.
    #[test]
    fn subsequences_are_as_long_as_by_the_textbook(a in "[ab]{0,200}", b in "[abc]{0,70}x{0,150}[abc]{0,70}") {
        let mut server = Server::default();
        server.call(&[b"MSET", b"a", a.as_bytes(), b"b", b.as_bytes()]);
        let length = textbook(a.as_bytes(), b.as_bytes());
        prop_assert_eq!(text(&server.call(&[b"LCS", b"a", b"b", b"LEN"])), length.to_string());
        let answer = text(&server.call(&[b"LCS", b"a", b"b"]));
        let common = answer.trim_matches('"');
        prop_assert_eq!(common.len(), length);
        for string in [a, b] {
            let mut rest = string.chars();
            prop_assert!(common.chars().all(|wanted| rest.any(|found| found == wanted)));
        }
    }
}

#[test]
#[ignore = "it needs REMORA_REDIS, where a redis-server listens"]
fn subsequences_are_those_that_redis_finds() {
    let generate = |random: &mut Random| {
        let alphabet = random.pick(&["ab", "abcd", "a"]);
        let mut string = || {
            let length = random.below(150);
            (0..length).map(|_| alphabet.as_bytes()[random.below(alphabet.len())]).collect::<Vec<_>>()
        };
        let (a, b) = (string(), string());
        match random.below(4) {
            0 => vec![b"MSET".to_vec(), b"a".to_vec(), a, b"b".to_vec(), b],
            1 => ["LCS", "a", "b"].map(Into::into).to_vec(),
            2 => ["LCS", "a", "b", "LEN"].map(Into::into).to_vec(),
            _ => ["LCS", "a", "b", "IDX", "WITHMATCHLEN", "MINMATCHLEN", random.pick(&["0", "3", "9"])]
                .map(Into::into)
                .to_vec(),
        }
    };
    compare(5, 10_000, generate, |_, answer| answer);
}

#[test]
fn sizes_are_bounded() {
    let mut server = Server::default();
    let long = vec![b'x'; 8192];
    server.call(&[b"MSET", b"a", &long, b"b", &long[..8191]]);
    let refused = server.call(&[b"LCS", b"a", b"b", b"LEN"]);
    assert_eq!(refused.escape_ascii().to_string(), r"-ERR LCS of 67117056 cells (limit 67108864)\r\n");
    server.call(&[b"SET", b"b", &long[..8190]]);
    assert_eq!(server.call(&[b"LCS", b"a", b"b", b"LEN"]), b":8190\r\n");
    let huge = vec![b'x'; 30_000_000];
    server.call(&[b"SET", b"huge", &huge]);
    let refused = b"-ERR string exceeds maximum allowed size (proto-max-bulk-len)\r\n";
    assert_eq!(server.call(&[b"APPEND", b"huge", b"x"]), refused);
    assert_eq!(server.call(&[b"APPEND", b"huge", b""]), b":30000000\r\n");
    assert_eq!(server.call(&[b"SETRANGE", b"huge", b"29999999", b"y"]), b":30000000\r\n");
    assert_eq!(server.call(&[b"SETRANGE", b"huge", b"29999999", b"yy"]), refused);
    // A row of a cell takes a byte, and not a word.
    server.call(&[b"SET", b"s", b"y"]);
    assert_eq!(server.call(&[b"LCS", b"huge", b"s"]), b"$1\r\ny\r\n");
    assert_eq!(server.call(&[b"LCS", b"s", b"huge"]), b"$1\r\ny\r\n");
    let refused = b"-ERR reply of 90000000 bytes (limit 67108864): use a SCAN command\r\n";
    assert_eq!(server.call(&[b"MGET", b"huge", b"huge", b"huge"]), refused);
    assert!(server.call(&[b"MGET", b"huge", b"huge", b"none"]).starts_with(b"*3\r\n$30000000\r\nx"));
}

#[test]
fn what_changes_nothing_is_not_changed() {
    for command in [
        "GET s",
        "GETEX s",
        "GETEX s PERSIST",
        "GETEX none EX 100",
        "GETDEL none",
        "SETNX s 1",
        "SET s 1 NX",
        "SET s 1 NX GET",
        "SET none 1 XX",
        "SET none 1 EXAT 1",
        "MSETNX none 1 s 1",
        "SETRANGE s 0 \"\"",
        "SETRANGE none 9 \"\"",
        "SETRANGE s -1 x",
        "APPEND l x",
        "INCR s",
        "INCRBYFLOAT s 1",
        "INCRBYFLOAT l 1",
        "SET l 1 GET",
        "SET s 1 EX 0",
        "GETSET l x",
        "LCS s s",
        "MGET s none",
    ] {
        assert_eq!(changes(&format!("SET s a\nRPUSH l a\n{command}")), [""; 0], "{command}");
    }
}

#[test]
fn what_writes_the_same_value_is_changed() {
    for (command, changed) in [
        ("SET s a", &["s"][..]),
        ("SET none a", &["none"]),
        ("SET s a EXAT 1", &["s"]),
        ("GETSET s a", &["s"]),
        ("GETEX s EX 100", &["s"]),
        ("GETEX s PXAT 1", &["s"]),
        ("GETDEL s", &["s"]),
        ("APPEND s \"\"", &["s"]),
        ("APPEND none \"\"", &["none"]),
        ("SETRANGE s 0 a", &["s"]),
        ("INCRBY n 0", &["n"]),
        ("INCRBYFLOAT n 0", &["n"]),
        ("MSET s a none b", &["s", "none"]),
        ("MSETNX none a other b", &["none", "other"]),
    ] {
        assert_eq!(changes(&format!("SET s a\nSET n 1\n{command}")), changed, "{command}");
    }
}

/// Returns a random command of strings.
fn generate(random: &mut Random) -> Vec<Vec<u8>> {
    const KEYS: &[&str] = &["a", "b", "c", "d", "l"];
    const VALUES: &[&str] = &[
        "",
        "0",
        "1",
        "-1",
        "12",
        "abcabba",
        "cbabac",
        "x",
        "3.5",
        "-0",
        "1e3",
        "inf",
        "9223372036854775807",
        "-9223372036854775808",
        "0123456789012345678901234567890123456789012345",
        "0.1",
        "0x1p3",
        "ab\0\r\nc",
    ];
    const NUMBERS: &[&str] =
        &["0", "1", "-1", "2", "5", "-3", "17", "100", "x", "", "1.5", "9223372036854775807", "-9223372036854775808"];
    const TIMES: &[&str] =
        &["1000000", "2000000", "9000000000", "0", "-1", "x", "9223372036854775807", "9223372036854775"];
    const OPTIONS: &[&str] = &["NX", "xx", "GET", "KEEPTTL", "PERSIST", "FOO", "EX", "PX", "EXAT", "PXAT"];
    const LCS: &[&str] = &["IDX", "IDX", "LEN", "WITHMATCHLEN", "MINMATCHLEN", "1", "2", "x"];
    let mut words: Vec<&str> = match random.below(26) {
        0 => vec!["GET", random.pick(KEYS)],
        1 => vec!["STRLEN", random.pick(KEYS)],
        2 => vec!["GETDEL", random.pick(KEYS)],
        3 => vec!["GETSET", random.pick(KEYS), random.pick(VALUES)],
        4 | 5 => vec!["APPEND", random.pick(KEYS), random.pick(VALUES)],
        6 => vec!["INCR", random.pick(KEYS)],
        7 => vec!["DECR", random.pick(KEYS)],
        8 => vec!["INCRBY", random.pick(KEYS), random.pick(NUMBERS)],
        9 => vec!["DECRBY", random.pick(KEYS), random.pick(NUMBERS)],
        10 | 11 => vec!["INCRBYFLOAT", random.pick(KEYS), random.pick(VALUES)],
        12 => vec!["GETRANGE", random.pick(KEYS), random.pick(NUMBERS), random.pick(NUMBERS)],
        13 => vec!["SUBSTR", random.pick(KEYS), random.pick(NUMBERS), random.pick(NUMBERS)],
        14 | 15 => vec!["SETRANGE", random.pick(KEYS), random.pick(NUMBERS), random.pick(VALUES)],
        16 => vec!["MGET", random.pick(KEYS), random.pick(KEYS), random.pick(KEYS)],
        17 => vec![random.pick(&["MSET", "MSETNX"]), random.pick(KEYS), random.pick(VALUES), random.pick(KEYS)],
        18 => vec!["SETNX", random.pick(KEYS), random.pick(VALUES)],
        19 => vec![random.pick(&["SETEX", "PSETEX"]), random.pick(KEYS), random.pick(TIMES), random.pick(VALUES)],
        20 | 21 => vec!["SET", random.pick(KEYS), random.pick(VALUES)],
        22 => vec!["GETEX", random.pick(KEYS)],
        23 | 24 => vec!["LCS", random.pick(KEYS), random.pick(KEYS)],
        _ => vec![random.pick(&["PERSIST", "EXPIRETIME", "DEL", "RPUSH"]), "l", "x"],
    };
    match words[0] {
        "PERSIST" | "EXPIRETIME" | "DEL" => {
            words.truncate(1);
            words.push(random.pick(KEYS));
        }
        "MSET" | "MSETNX" if random.below(8) > 0 => words.push(random.pick(VALUES)),
        "SET" | "GETEX" => {
            for _ in 0..random.below(3) {
                let option = random.pick(OPTIONS);
                words.push(option);
                if option.ends_with(['X', 'T']) && option != "GET" && random.below(10) > 0 {
                    words.push(random.pick(TIMES));
                }
            }
        }
        "LCS" => (0..random.below(4)).for_each(|_| words.push(random.pick(LCS))),
        _ if random.below(40) == 0 => _ = words.pop(),
        _ => {}
    }
    words.into_iter().map(Into::into).collect()
}

#[test]
#[ignore = "it needs REMORA_REDIS, where a redis-server listens"]
fn random_commands_answer_as_redis_does() {
    // Times are seconds, which do not pass meanwhile: the nearest 100 seconds are compared.
    let normalize = |command: &[Vec<u8>], answer: String| match (command[0].as_slice(), answer.parse::<i64>()) {
        (b"EXPIRETIME", Ok(seconds)) => format!("{}", (seconds + 50) / 100),
        _ => answer,
    };
    (1..=4).for_each(|seed| compare(seed, 10_000, generate, normalize));
}
