//! Commands of sets.

use std::collections::HashSet;

use remora_redis::Encoding;

use super::differential::{Random, compare, sorted};
use super::server::{Server, check, text};

#[test]
fn members_are_added_and_removed() {
    check(
        r#"
        > SADD s a b a c
        3
        > SADD s a b
        0
        > SADD s d a
        1
        > SCARD s
        4
        > SISMEMBER s a
        1
        > SISMEMBER s x
        0
        > SISMEMBER none x
        0
        > SMISMEMBER s a x b a
        [1, 0, 1, 1]
        > SMISMEMBER none a b
        [0, 0]
        > SREM s a x a
        1
        > SREM none a
        0
        > SCARD s
        3
        > SREM s b c d
        3
        > SCARD s
        0
        > SMEMBERS s
        []
        > SADD s ""
        1
        > SISMEMBER s ""
        1
        > SADD "\x00\xff" "\r\n" "\xfe"
        2
        > SMISMEMBER "\x00\xff" "\r\n" "\xfe" ""
        [1, 1, 0]
        "#,
    );
}

#[test]
fn integers_ascend() {
    check(
        r#"
        > SADD n 5 -3 10 1 9223372036854775807 -9223372036854775808
        6
        > SMEMBERS n
        ["-9223372036854775808", "-3", "1", "5", "10", "9223372036854775807"]
        > SINTER n
        ["-9223372036854775808", "-3", "1", "5", "10", "9223372036854775807"]
        > SUNION n
        ["-9223372036854775808", "-3", "1", "5", "10", "9223372036854775807"]
        > SDIFF n
        ["-9223372036854775808", "-3", "1", "5", "10", "9223372036854775807"]
        > SADD m 7 1 10
        3
        > SUNION n m
        ["-9223372036854775808", "-3", "1", "5", "7", "10", "9223372036854775807"]
        > SDIFF n m
        ["-9223372036854775808", "-3", "5", "9223372036854775807"]
        > SINTER n m
        ["1", "10"]
        > SRANDMEMBER m 5
        ["1", "7", "10"]
        > SSCAN m 0
        ["0", ["1", "7", "10"]]
        > SPOP m 3
        ["1", "7", "10"]
        > SMEMBERS m
        []
        > SADD one 01
        1
        > SMEMBERS one
        ["01"]
        "#,
    );
}

#[test]
fn sets_are_combined() {
    check(
        r#"
        > SADD a 1 2 3 4
        4
        > SADD b 2 3 4 5
        4
        > SADD c 3 4 5 6
        4
        > SINTER a b c
        ["3", "4"]
        > SINTER a b none
        []
        > SINTER none
        []
        > SUNION a b c none
        ["1", "2", "3", "4", "5", "6"]
        > SUNION none other
        []
        > SDIFF a b
        ["1"]
        > SDIFF a none c
        ["1", "2"]
        > SDIFF none a
        []
        > SDIFF a a
        []
        > SINTERSTORE d a b
        3
        > SMEMBERS d
        ["2", "3", "4"]
        > SUNIONSTORE d a b none
        5
        > SMEMBERS d
        ["1", "2", "3", "4", "5"]
        > SDIFFSTORE d d a
        1
        > SMEMBERS d
        ["5"]
        > SINTERSTORE d a none
        0
        > SMEMBERS d
        []
        > SDIFFSTORE d a
        4
        > SUNIONSTORE d none
        0
        > SCARD d
        0
        > SINTERSTORE a a b
        3
        > SMEMBERS a
        ["2", "3", "4"]
        > ZADD z 1 m
        1
        > SDIFFSTORE z c
        4
        > SMEMBERS z
        ["3", "4", "5", "6"]
        > SINTERCARD 2 b c
        3
        > SINTERCARD 3 b c none
        0
        > SINTERCARD 2 b c LIMIT 2
        2
        > SINTERCARD 2 b c LIMIT 0
        3
        > SINTERCARD 2 b c LIMIT 9223372036854775807
        3
        > SINTERCARD 2 b c limit 1 LIMIT 2
        2
        > SINTERCARD 1 b
        4
        "#,
    );
}

#[test]
fn members_move() {
    check(
        r#"
        > SADD a x y
        2
        > SADD b y
        1
        > SMOVE a b x
        1
        > SMOVE a b z
        0
        > SMOVE a b y
        1
        > SCARD a
        0
        > SCARD b
        2
        > SMOVE a b y
        0
        > SMOVE b b y
        1
        > SMOVE b b none
        0
        > SMOVE b c y
        1
        > SMEMBERS b
        ["x"]
        > SMEMBERS c
        ["y"]
        > ZADD z 1 m
        1
        > SMOVE none z y
        0
        > SMOVE z b y
        -WRONGTYPE Operation against a key holding the wrong kind of value
        > SMOVE b z y
        -WRONGTYPE Operation against a key holding the wrong kind of value
        > SMOVE b z none
        -WRONGTYPE Operation against a key holding the wrong kind of value
        "#,
    );
}

#[test]
fn members_are_drawn() {
    check(
        r#"
        > SRANDMEMBER none
        nil
        > SRANDMEMBER none 2
        []
        > SRANDMEMBER none -2
        []
        > SPOP none
        nil
        > SPOP none 0
        []
        > SPOP none 2
        []
        > SADD s 7
        1
        > SRANDMEMBER s
        "7"
        > SRANDMEMBER s 0
        []
        > SRANDMEMBER s 5
        ["7"]
        > SRANDMEMBER s -3
        ["7", "7", "7"]
        > SPOP s 0
        []
        > SPOP s
        "7"
        > SCARD s
        0
        > SADD s 1 2 3
        3
        > SPOP s 9223372036854775807
        ["1", "2", "3"]
        > SMEMBERS s
        []
        > SADD s 4
        1
        > HELLO 3
        OK
        > SRANDMEMBER s 5
        ["4"]
        > SPOP s 5
        ~["4"]
        > SPOP s 5
        ~[]
        > SPOP s
        nil
        > SRANDMEMBER s
        nil
        "#,
    );
}

#[test]
fn sets_in_the_third_version() {
    check(
        r#"
        > HELLO 3
        OK
        > SADD s 1 2
        2
        > SMEMBERS s
        ~["1", "2"]
        > SMEMBERS none
        ~[]
        > SINTER s s
        ~["1", "2"]
        > SUNION s
        ~["1", "2"]
        > SDIFF s
        ~["1", "2"]
        > SDIFF s s
        ~[]
        > SMISMEMBER s 1 3
        [1, 0]
        > SISMEMBER s 1
        1
        > SSCAN s 0
        ["0", ["1", "2"]]
        > SSCAN none 0
        ["0", []]
        > SRANDMEMBER s 2
        ["1", "2"]
        > SRANDMEMBER none 2
        []
        "#,
    );
}

#[test]
fn sets_are_scanned() {
    check(
        r#"
        > SADD s 1 2 11 21
        4
        > SSCAN s 0
        ["0", ["1", "2", "11", "21"]]
        > SSCAN s 0 MATCH 1*
        ["0", ["1", "11"]]
        > SSCAN s 0 COUNT 1
        ["0", ["1", "2", "11", "21"]]
        > SSCAN s 7 COUNT 1
        ["0", ["1", "2", "11", "21"]]
        > SSCAN s 0 COUNT 100 MATCH *1
        ["0", ["1", "11", "21"]]
        > SSCAN s 0 match x match *1
        ["0", ["1", "11", "21"]]
        > SSCAN none 0 FOO
        ["0", []]
        > SSCAN none abc
        -ERR invalid cursor
        > SSCAN s abc
        -ERR invalid cursor
        > SSCAN s 0 COUNT 0
        -ERR syntax error
        > SSCAN s 0 COUNT x
        -ERR value is not an integer or out of range
        > SSCAN s 0 COUNT
        -ERR syntax error
        > SSCAN s 0 FOO 1
        -ERR syntax error
        > ZADD z 1 m
        1
        > SSCAN z 0 FOO
        -WRONGTYPE Operation against a key holding the wrong kind of value
        > SSCAN z abc
        -ERR invalid cursor
        "#,
    );
}

#[test]
fn mistakes_with_sets() {
    check(
        r#"
        > ZADD z 1 a
        1
        > SADD st a
        1
        > SADD z a
        -WRONGTYPE Operation against a key holding the wrong kind of value
        > SREM z a
        -WRONGTYPE Operation against a key holding the wrong kind of value
        > SCARD z
        -WRONGTYPE Operation against a key holding the wrong kind of value
        > SISMEMBER z a
        -WRONGTYPE Operation against a key holding the wrong kind of value
        > SMISMEMBER z a
        -WRONGTYPE Operation against a key holding the wrong kind of value
        > SMEMBERS z
        -WRONGTYPE Operation against a key holding the wrong kind of value
        > SPOP z
        -WRONGTYPE Operation against a key holding the wrong kind of value
        > SPOP z 1
        -WRONGTYPE Operation against a key holding the wrong kind of value
        > SPOP z x
        -ERR value is out of range, must be positive
        > SRANDMEMBER z
        -WRONGTYPE Operation against a key holding the wrong kind of value
        > SRANDMEMBER z 0
        -WRONGTYPE Operation against a key holding the wrong kind of value
        > SINTER st z
        -WRONGTYPE Operation against a key holding the wrong kind of value
        > SINTER none z
        -WRONGTYPE Operation against a key holding the wrong kind of value
        > SINTER none st z
        -WRONGTYPE Operation against a key holding the wrong kind of value
        > SUNION none z
        -WRONGTYPE Operation against a key holding the wrong kind of value
        > SDIFF none z
        -WRONGTYPE Operation against a key holding the wrong kind of value
        > SINTERSTORE d st z
        -WRONGTYPE Operation against a key holding the wrong kind of value
        > SUNIONSTORE d st z
        -WRONGTYPE Operation against a key holding the wrong kind of value
        > SDIFFSTORE d st z
        -WRONGTYPE Operation against a key holding the wrong kind of value
        > SINTERCARD 1 z
        -WRONGTYPE Operation against a key holding the wrong kind of value
        > SINTERCARD 0 st
        -ERR numkeys should be greater than 0
        > SINTERCARD -1 st
        -ERR numkeys should be greater than 0
        > SINTERCARD x st
        -ERR numkeys should be greater than 0
        > SINTERCARD 2 st
        -ERR Number of keys can't be greater than number of args
        > SINTERCARD 9223372036854775807 st
        -ERR Number of keys can't be greater than number of args
        > SINTERCARD 1 st LIMIT -1
        -ERR LIMIT can't be negative
        > SINTERCARD 1 st LIMIT x
        -ERR LIMIT can't be negative
        > SINTERCARD 1 z LIMIT x
        -ERR LIMIT can't be negative
        > SINTERCARD 1 st LIMIT
        -ERR syntax error
        > SINTERCARD 1 st FOO 1
        -ERR syntax error
        > SINTERCARD 1 st st
        -ERR syntax error
        > SPOP st -1
        -ERR value is out of range, must be positive
        > SPOP st x
        -ERR value is out of range, must be positive
        > SPOP st 1 2
        -ERR syntax error
        > SPOP z 1 2
        -ERR syntax error
        > SRANDMEMBER st 1 2
        -ERR syntax error
        > SRANDMEMBER st x
        -ERR value is not an integer or out of range
        > SRANDMEMBER st -9223372036854775808
        -ERR value is out of range, value must between -9223372036854775807 and 9223372036854775807
        > SRANDMEMBER none -9223372036854775808
        -ERR value is out of range, value must between -9223372036854775807 and 9223372036854775807
        > SRANDMEMBER none -9223372036854775807
        []
        > SADD s
        -ERR wrong number of arguments for 'sadd' command
        > SREM s
        -ERR wrong number of arguments for 'srem' command
        > SCARD
        -ERR wrong number of arguments for 'scard' command
        > SCARD s s
        -ERR wrong number of arguments for 'scard' command
        > SMISMEMBER s
        -ERR wrong number of arguments for 'smismember' command
        > SMOVE a b
        -ERR wrong number of arguments for 'smove' command
        > SINTERSTORE d
        -ERR wrong number of arguments for 'sinterstore' command
        > SUNION
        -ERR wrong number of arguments for 'sunion' command
        > SINTERCARD 1
        -ERR wrong number of arguments for 'sintercard' command
        > SSCAN s
        -ERR wrong number of arguments for 'sscan' command
        "#,
    );
}

/// Runs a command of words. Returns the answer, and how many keys it has changed.
fn changes(server: &mut Server, command: &str) -> (String, usize) {
    let args: Vec<_> = command.split(' ').map(str::as_bytes).collect();
    let answer = text(&server.call(&args));
    (answer, server.changed.len())
}

#[test]
fn what_changes_nothing_is_not_written() {
    let mut server = Server::default();
    for (command, answer, changed) in [
        ("SADD s a b", "2", 1),
        ("SADD s a", "0", 0),
        ("SREM s x", "0", 0),
        ("SREM none x", "0", 0),
        ("SPOP none", "nil", 0),
        ("SPOP none 3", "[]", 0),
        ("SPOP s 0", "[]", 0),
        ("SRANDMEMBER s 0", "[]", 0),
        ("SMOVE s t x", "0", 0),
        ("SMOVE none t x", "0", 0),
        ("SMOVE s s a", "1", 0),
        ("SADD t a", "1", 1),
        ("SMOVE s t a", "1", 1),
        ("SMOVE s t b", "1", 2),
        ("SINTERSTORE d t none", "0", 0),
        ("SDIFFSTORE d none", "0", 0),
        ("SUNIONSTORE t t", "2", 1),
        ("SINTERSTORE t none", "0", 1),
        ("SCARD t", "0", 0),
    ] {
        assert_eq!(changes(&mut server, command), (answer.into(), changed), "{command}");
    }
}

#[test]
fn encodings_grow_with_sets() {
    let mut server = Server::default();
    let mut encoding_after = |command: &str| {
        changes(&mut server, command);
        server.object(b"s").map(|object| object.encoding)
    };
    let integers = (0..512).map(|number| number.to_string()).collect::<Vec<_>>().join(" ");
    assert_eq!(encoding_after(&format!("SADD s {integers}")), Some(Encoding::Intset));
    assert_eq!(encoding_after("SADD s 512"), Some(Encoding::Hashtable));
    assert_eq!(encoding_after("SREM s 512"), Some(Encoding::Hashtable));
    assert_eq!(encoding_after("SINTERSTORE s s"), Some(Encoding::Intset));
    assert_eq!(encoding_after("SADD s a"), Some(Encoding::Hashtable));
    assert_eq!(encoding_after("SPOP s 400"), Some(Encoding::Hashtable), "few of many remain");
    assert_eq!(encoding_after("SPOP s 103"), Some(Encoding::Listpack), "they are moved into a new set");
    assert_eq!(encoding_after("SPOP s 512"), None);
    assert_eq!(encoding_after("SADD s 1"), Some(Encoding::Intset));
    assert_eq!(encoding_after("SADD s a"), Some(Encoding::Listpack));
    assert_eq!(encoding_after("SREM s a"), Some(Encoding::Listpack));
    assert_eq!(encoding_after(&format!("SADD s {}", "x".repeat(65))), Some(Encoding::Hashtable));
}

#[test]
fn draws_are_of_the_set() {
    let mut server = Server::default();
    let members: Vec<_> = (0..200).map(|number| format!("m{number}")).collect();
    changes(&mut server, &format!("SADD s {}", members.join(" ")));
    let parts = |answer: &str| answer.trim_matches(['[', ']']).split(", ").map(str::to_owned).collect::<Vec<_>>();
    let distinct = |answer: &str| parts(answer).into_iter().collect::<HashSet<_>>();
    let is_member = |part: &String| members.contains(&part.trim_matches('"').to_owned());

    let (answer, changed) = changes(&mut server, "SRANDMEMBER s 150");
    assert_eq!((distinct(&answer).len(), changed), (150, 0));
    assert!(parts(&answer).iter().all(is_member));
    let (answer, _) = changes(&mut server, "SRANDMEMBER s -5000");
    assert_eq!((parts(&answer).len(), distinct(&answer).len()), (5000, 200), "5000 draws miss no member");
    let (first, _) = changes(&mut server, "SPOP s");
    let (rest, changed) = changes(&mut server, "SPOP s 190");
    assert_eq!((distinct(&rest).len(), changed), (190, 1));
    assert!(is_member(&first) && parts(&rest).iter().all(is_member) && !parts(&rest).contains(&first));
    let (left, _) = changes(&mut server, "SMEMBERS s");
    assert!(distinct(&left).is_disjoint(&distinct(&rest)) && parts(&left).len() == 9);
}

#[test]
fn replies_that_would_be_too_long_are_refused() {
    let mut server = Server::default();
    changes(&mut server, &format!("SADD s {}", "x".repeat(1 << 20)));
    for (count, bytes) in [(-64, 67_109_248), (-(1 << 40), 6 << 40), (-i64::MAX, u64::MAX)] {
        let wanted = format!("-ERR reply of {bytes} bytes (limit 67108864): use a SCAN command");
        assert_eq!(changes(&mut server, &format!("SRANDMEMBER s {count}")), (wanted, 0));
    }
    assert!(changes(&mut server, "SRANDMEMBER s -63").0.starts_with('['));
}

#[test]
#[ignore = "it needs a redis-server: REMORA_REDIS names it"]
fn random_commands_are_answered_as_by_a_server() {
    let generate = |random: &mut Random| {
        const NAMES: &str = "SADD SADD SADD SADD SREM SREM SMOVE SMOVE SCARD SISMEMBER SMISMEMBER SMEMBERS SMEMBERS \
            SPOP SRANDMEMBER SRANDMEMBER SINTER SINTERCARD SINTERCARD SINTERSTORE SUNION SUNIONSTORE SDIFF SDIFFSTORE \
            SSCAN ZADD";
        let name = random.one_of(NAMES);
        let keys = if random.below(50) == 0 { "z none" } else { "a b c d" };
        let (key, count) = (random.one_of(keys), random.below(4));
        let mut args = vec![name.clone(), key];
        let mut some = |random: &mut Random, words: &str| {
            (0..=count).for_each(|_| args.push(random.one_of(words)));
        };
        const MEMBERS: &str = "1 2 3 4 5 6 7 8 -1 -20 300 70000 5000000000 01 x y z long-member";
        match name.as_slice() {
            b"SADD" | b"SREM" | b"SMISMEMBER" => some(random, MEMBERS),
            b"SISMEMBER" => args.push(random.one_of(MEMBERS)),
            b"SMOVE" => args.extend([random.one_of(keys), random.one_of(MEMBERS)]),
            b"SPOP" => some(random, "0 1000 1000 x -1"),
            b"SRANDMEMBER" if count < 2 => some(random, "0 1000 1 -3 x -9223372036854775808"),
            b"SINTER" | b"SUNION" | b"SDIFF" | b"SINTERSTORE" | b"SUNIONSTORE" | b"SDIFFSTORE" => some(random, keys),
            b"SINTERCARD" => {
                args[1] = random.one_of("1 2 2 2 2 3 3 0 9 x");
                args.extend([random.one_of(keys), random.one_of(keys)]);
                if count > 1 {
                    args.extend([random.one_of("LIMIT limit a FOO"), random.one_of("0 1 2 3 -1 x a")]);
                }
            }
            b"SSCAN" => {
                args.push(random.one_of("0 0 0 0 x"));
                args.extend([random.one_of("COUNT COUNT FOO"), b"1000".to_vec()]);
                if count == 0 {
                    args.extend([random.one_of("MATCH match"), random.one_of("* 1* *0 x [1-3]")]);
                }
            }
            b"ZADD" => {
                args[1] = b"z".to_vec();
                args.extend([b"1".to_vec(), b"m".to_vec()]);
            }
            _ => {}
        }
        args
    };
    let normalize = |args: &[Vec<u8>], answer: String| match args[0].as_slice() {
        b"SMEMBERS" | b"SPOP" | b"SINTER" | b"SUNION" | b"SDIFF" | b"SSCAN" => sorted(&answer),
        b"SRANDMEMBER" => match args.get(2).map(Vec::as_slice) {
            Some(b"1000" | b"x") => sorted(&answer),
            _ => format!("{} {}", &answer[..1], answer.split(", ").count()),
        },
        _ => answer,
    };
    for seed in 1..=20 {
        compare(seed, 2000, generate, normalize);
    }
}
