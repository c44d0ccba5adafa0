//! The rules of the parser, as a table, and every input cut at every byte.

use proptest::prelude::*;
use redis_protocol::resp2::types::OwnedFrame;
use remora_resp::parse::{ARGUMENTS_MAX, BULK_BYTES_MAX, LINE_BYTES_MAX, UNAUTHENTICATED_BULK_BYTES_MAX};
use remora_resp::{ParseError, Parser};

/// What the parser made of some bytes: commands as lists of arguments, the error, and the length of
/// what it left.
#[derive(Debug, Default, PartialEq, Eq)]
struct Outcome {
    commands: Vec<Vec<Vec<u8>>>,
    error: Option<ParseError>,
    left: usize,
}

/// Feeds the pieces to a parser, one after the other, as a connection does.
fn feed(mut parser: Parser, pieces: &[&[u8]]) -> Outcome {
    let mut outcome = Outcome::default();
    let mut buffer = Vec::new();
    for piece in pieces {
        buffer.extend_from_slice(piece);
        let mut input = &mut buffer[..];
        loop {
            match parser.next(&mut input) {
                Ok(Some(command)) => {
                    assert_eq!(command.arguments().len(), command.len());
                    assert_eq!(command.name(), &command[0]);
                    assert_eq!(command.get(command.len()), None);
                    outcome.commands.push(command.arguments().map(<[u8]>::to_vec).collect());
                }
                Ok(None) => {
                    assert!(parser.needed_bytes() > input.len());
                    break;
                }
                Err(error) => {
                    outcome.error = Some(error);
                    break;
                }
            }
        }
        let left = input.len();
        buffer.drain(..buffer.len() - left);
    }
    outcome.left = if outcome.error.is_some() { 0 } else { buffer.len() };
    outcome
}

fn authenticated() -> Parser {
    let mut parser = Parser::new();
    parser.set_authenticated(true);
    parser
}

/// Asserts that all bytes at once, each byte alone, and every cut in two give one outcome.
fn outcome(bytes: &[u8]) -> Outcome {
    let whole = feed(authenticated(), &[bytes]);
    let single: Vec<&[u8]> = bytes.chunks(1).collect();
    assert_eq!(feed(authenticated(), &single), whole, "byte by byte: {}", bytes.escape_ascii());
    for cut in 0..=bytes.len() {
        let (first, second) = bytes.split_at(cut);
        assert_eq!(feed(authenticated(), &[first, second]), whole, "cut at {cut}: {}", bytes.escape_ascii());
    }
    whole
}

fn commands(list: &[&[&[u8]]]) -> Vec<Vec<Vec<u8>>> {
    list.iter().map(|command| command.iter().map(|argument| argument.to_vec()).collect()).collect()
}

/// Expects commands, and bytes that wait for more.
#[track_caller]
fn ok(bytes: &[u8], expected: &[&[&[u8]]], left: usize) {
    let expected = Outcome { commands: commands(expected), error: None, left };
    assert_eq!(outcome(bytes), expected, "{}", bytes.escape_ascii());
}

/// Expects an error behind `before`, and the reply's text.
#[track_caller]
fn error(bytes: &[u8], before: &[&[&[u8]]], reply: &[u8]) {
    let found = outcome(bytes);
    assert_eq!(found.commands, commands(before), "{}", bytes.escape_ascii());
    let mut text = Vec::new();
    found.error.unwrap_or_else(|| panic!("no error: {}", bytes.escape_ascii())).write_reply(&mut text);
    let expected = if reply.is_empty() { Vec::new() } else { [b"-ERR Protocol error: ", reply, b"\r\n"].concat() };
    assert_eq!(text.escape_ascii().to_string(), expected.escape_ascii().to_string());
}

#[test]
fn arrays() {
    ok(b"*1\r\n$4\r\nPING\r\n", &[&[b"PING"]], 0);
    ok(b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n*1\r\n$1\r\nx\r\n", &[&[b"GET", b"k"], &[b"x"]], 0);
    ok(b"*2\r\n$1\r\na\r\n$0\r\n\r\n", &[&[b"a", b""]], 0);
    // Bulk strings hold any bytes.
    ok(b"*1\r\n$6\r\n\r\n*1\r\n\r\n", &[&[b"\r\n*1\r\n"]], 0);
    ok(b"*1\r\n$4\r\n\0\xff\x80\n\r\n", &[&[b"\0\xff\x80\n"]], 0);
    // What is not complete waits, byte by byte.
    ok(b"*", &[], 1);
    ok(b"*1\r", &[], 3);
    ok(b"*1\r\n$4\r\nPING\r", &[], 13);
    ok(b"*1\r\n$4\r\nPING\r\n*2\r\n$1\r\nx\r\n$30000000\r\n", &[&[b"PING"]], 22);
}

#[test]
fn the_two_bytes_behind_a_bulk_and_the_byte_behind_a_return_are_not_looked_at() {
    ok(b"*2\r\n$1\r\naxy$1\r\nbzz", &[&[b"a", b"b"]], 0);
    ok(b"*1\r*$1\r$a$$", &[&[b"a"]], 0);
}

#[test]
fn empty_commands_are_skipped_and_their_bytes_are_taken() {
    ok(b"*0\r\n", &[], 0);
    ok(b"*-1\r\n*-7\r\n", &[], 0);
    ok(b"\r\n\n   \r\n\t\x0b\x0c\r\r\n", &[], 0);
    ok(b"*0\r\n\r\nPING\r\n*-1\r\n*1\r\n$1\r\na\r\n\n", &[&[b"PING"], &[b"a"]], 0);
}

#[test]
fn inline_commands() {
    ok(b"PING\n", &[&[b"PING"]], 0);
    ok(b"PING\r\n", &[&[b"PING"]], 0);
    ok(b"  SET\t k  v \r\n", &[&[b"SET", b"k", b"v"]], 0);
    ok(b"PING", &[], 4);
    // Quotes.
    ok(b"SET k \"a b\"\n", &[&[b"SET", b"k", b"a b"]], 0);
    ok(b"SET k ''\n", &[&[b"SET", b"k", b""]], 0);
    ok(b"SET \"\" 'a\"b' \"a'b\"\n", &[&[b"SET", b"", b"a\"b", b"a'b"]], 0);
    ok(b"SET k ab\"c d\" e\n", &[&[b"SET", b"k", b"abc d", b"e"]], 0);
    ok(b"\"GET\"\tk\n", &[&[b"GET", b"k"]], 0);
    ok(b"GET 'k'\x0bx\n", &[&[b"GET", b"k", b"x"]], 0);
    ok(b"GET a\x0bb\n", &[&[b"GET", b"a\x0bb"]], 0);
    // Escapes.
    ok(br#"SET k "\n\r\t\b\a\\\"\q""#, &[], 24);
    ok(b"SET k \"\\n\\r\\t\\b\\a\\\\\\\"\\q\"\n", &[&[b"SET", b"k", b"\n\r\t\x08\x07\\\"q"]], 0);
    ok(b"SET k \"\\x00\\xfF\\x4g\\x\"\n", &[&[b"SET", b"k", b"\0\xffx4gx"]], 0);
    ok(b"SET k 'it\\'s \\n \\x41'\n", &[&[b"SET", b"k", b"it's \\n \\x41"]], 0);
    ok(b"SET k a\\nb\\\n", &[&[b"SET", b"k", b"a\\nb\\"]], 0);
    // Any byte but the line end may be in a word.
    ok(b"GET \0\xff\n", &[&[b"GET", b"\0\xff"]], 0);
    ok(b"$5\r\n+OK\r\n", &[&[b"$5"], &[b"+OK"]], 0);
}

#[test]
fn unbalanced_quotes() {
    let text = b"unbalanced quotes in request";
    error(b"SET a \"b\"c\n", &[], text);
    error(b"SET a 'b'c\n", &[], text);
    error(b"SET a \"b\"\"c\"\n", &[], text);
    error(b"SET a \"b\n", &[], text);
    error(b"SET a 'b\n", &[], text);
    error(b"SET a \"\n", &[], text);
    error(b"SET a \"b\\\"\n", &[], text);
    error(b"SET a 'b\\'\n", &[], text);
    error(b"SET a \"b\\\n", &[], text);
    error(b"PING\nSET a \"b\nPING\n", &[&[b"PING"]], text);
}

#[test]
fn counts_are_canonical() {
    let text = b"invalid multibulk length";
    for count in ["abc", "01", "+1", " 1", "1 ", "", "-", "-0", "1.0", "0x1", "2147483648", "99999999999999999999"] {
        error(format!("*{count}\r\n").as_bytes(), &[], text);
    }
    error(format!("*{}\r\n", ARGUMENTS_MAX + 1).as_bytes(), &[], text);
    ok(format!("*{ARGUMENTS_MAX}\r\n").as_bytes(), &[], 10);
    // What was complete is given out.
    error(b"*1\r\n$4\r\nPING\r\n*x\r\n*1\r\n$4\r\nPING\r\n", &[&[b"PING"]], text);
}

#[test]
fn lengths_are_canonical() {
    let text = b"invalid bulk length";
    for length in ["abc", "-1", "01", "+1", " 4", "4 ", "", "-0", "99999999999999999999"] {
        error(format!("*1\r\n${length}\r\n").as_bytes(), &[], text);
    }
    error(format!("*1\r\n${}\r\n", BULK_BYTES_MAX + 1).as_bytes(), &[], text);
    ok(format!("*1\r\n${BULK_BYTES_MAX}\r\n").as_bytes(), &[], 15);
}

#[test]
fn something_else_than_a_bulk() {
    error(b"*3\r\n+a\r\n", &[], b"expected '$', got '+'");
    error(b"*1\r\n:1\r\n", &[], b"expected '$', got ':'");
    error(b"*1\r\n\xff\r\n", &[], b"expected '$', got '\xff'");
    // A line end within the text would end the reply.
    error(b"*1\r\n\r\n", &[], b"expected '$', got ' '");
    error(b"*1\r\n\n\r\n", &[], b"expected '$', got ' '");
    error(b"*2\r\n$1\r\na\r\n*1\r\n", &[], b"expected '$', got '*'");
    // Redis reads the line first.
    ok(b"*1\r\n+", &[], 5);
}

#[test]
fn http_is_closed_silently() {
    error(b"POST / HTTP/1.1\r\nHost: a\r\n\r\n", &[], b"");
    error(b"post /\n", &[], b"");
    error(b"PING\r\nHost: example.com\r\nPING\r\n", &[&[b"PING"]], b"");
    error(b"*1\r\n$4\r\nPOST\r\n", &[], b"");
    ok(b"ECHO POST\nHost\nPOSTS\n", &[&[b"ECHO", b"POST"], &[b"Host"], &[b"POSTS"]], 0);
}

/// Asserts the outcome of a long line with and without its end, in pieces of several sizes.
#[track_caller]
fn long(bytes: &[u8], expected: Option<ParseError>) {
    for size in [bytes.len(), 1, 1000, LINE_BYTES_MAX, LINE_BYTES_MAX + 1] {
        let pieces: Vec<&[u8]> = bytes.chunks(size).collect();
        assert_eq!(feed(authenticated(), &pieces).error, expected, "pieces of {size} bytes");
    }
}

#[test]
fn long_lines() {
    let line = |first: &str, length: usize, end: &str| [first, &"1".repeat(length - 1), end].concat();
    long(line("a", LINE_BYTES_MAX, "").as_bytes(), None);
    long(line("a", LINE_BYTES_MAX, "\n").as_bytes(), None);
    long(line("a", LINE_BYTES_MAX + 1, "").as_bytes(), Some(ParseError::LongInline));
    long(line("a", LINE_BYTES_MAX + 1, "\n").as_bytes(), Some(ParseError::LongInline));
    long(line("*", LINE_BYTES_MAX, "").as_bytes(), None);
    long(line("*", LINE_BYTES_MAX, "\r\n").as_bytes(), Some(ParseError::InvalidCount));
    long(line("*", LINE_BYTES_MAX + 1, "").as_bytes(), Some(ParseError::LongCount));
    let bulk = |length, end| format!("*1\r\n{}", line("$", length, end));
    long(bulk(LINE_BYTES_MAX, "").as_bytes(), None);
    long(bulk(LINE_BYTES_MAX, "\r\n").as_bytes(), Some(ParseError::InvalidLength));
    long(bulk(LINE_BYTES_MAX + 1, "").as_bytes(), Some(ParseError::LongLength));
    long(b"PING\r\n".repeat(20_000).as_slice(), None);
    let texts = [ParseError::LongInline, ParseError::LongCount, ParseError::LongLength].map(|error| error.to_string());
    assert_eq!(texts, ["too big inline request", "too big mbulk count string", "too big bulk count string"]);
}

#[test]
fn limits_before_authentication() {
    let before = |bytes: &[u8]| feed(Parser::new(), &[bytes]);
    assert_eq!(before(b"*11\r\n").error, Some(ParseError::UnauthenticatedCount));
    assert_eq!(before(b"*10\r\n").error, None);
    assert_eq!(before(format!("*{}\r\n", ARGUMENTS_MAX + 1).as_bytes()).error, Some(ParseError::InvalidCount));
    let bulk = |length: usize| format!("*1\r\n${length}\r\n").into_bytes();
    assert_eq!(before(&bulk(UNAUTHENTICATED_BULK_BYTES_MAX)).error, None);
    assert_eq!(before(&bulk(UNAUTHENTICATED_BULK_BYTES_MAX + 1)).error, Some(ParseError::UnauthenticatedLength));
    assert_eq!(before(&bulk(BULK_BYTES_MAX + 1)).error, Some(ParseError::InvalidLength));
    let mut texts = Vec::new();
    ParseError::UnauthenticatedCount.write_reply(&mut texts);
    ParseError::UnauthenticatedLength.write_reply(&mut texts);
    let expected = "-ERR Protocol error: unauthenticated multibulk length\r\n\
                    -ERR Protocol error: unauthenticated bulk length\r\n";
    assert_eq!(String::from_utf8(texts).unwrap(), expected);
}

#[test]
fn authentication_counts_from_the_next_command() {
    let mut bytes = b"AUTH x\r\n*11\r\n".to_vec();
    bytes.extend_from_slice(&b"$1\r\na\r\n".repeat(11));
    let mut parser = Parser::new();
    let mut input = &mut bytes[..];
    assert_eq!(parser.next(&mut input).unwrap().unwrap().name(), b"AUTH");
    parser.set_authenticated(true);
    assert_eq!(parser.next(&mut input).unwrap().unwrap().len(), 11);
    parser.set_authenticated(false);
    let mut bytes = b"*11\r\n".to_vec();
    assert_eq!(parser.next(&mut &mut bytes[..]).unwrap_err(), ParseError::UnauthenticatedCount);
    // The error stays.
    let mut bytes = b"PING\r\n".to_vec();
    assert_eq!(parser.next(&mut &mut bytes[..]).unwrap_err(), ParseError::UnauthenticatedCount);
}

#[test]
fn announcements_allocate_nothing() {
    let mut parser = authenticated();
    let mut bytes = format!("*{ARGUMENTS_MAX}\r\n$1\r\na\r\n${BULK_BYTES_MAX}\r\n").into_bytes();
    let mut input = &mut bytes[..];
    assert!(parser.next(&mut input).unwrap().is_none());
    assert!(parser.allocated_bytes() <= 4 * size_of::<std::ops::Range<usize>>());
    parser.shrink();
    assert!(parser.next(&mut input).unwrap().is_none());
}

#[test]
fn a_bulk_string_needs_its_announced_length() {
    let mut parser = authenticated();
    assert_eq!(parser.needed_bytes(), 1);
    let mut bytes = b"*1\r\n$100\r\nabc".to_vec();
    assert!(parser.next(&mut &mut bytes[..]).unwrap().is_none());
    assert_eq!(parser.needed_bytes(), 10 + 100 + 2);
}

#[test]
fn a_resting_parser_holds_no_memory() {
    let mut parser = authenticated();
    let mut bytes = [&b"*1000\r\n"[..], &b"$1\r\na\r\n".repeat(1000)].concat();
    let mut input = &mut bytes[..];
    assert_eq!(parser.next(&mut input).unwrap().unwrap().len(), 1000);
    parser.shrink();
    assert_eq!(parser.allocated_bytes(), 0);
    assert!(size_of::<Parser>() <= 128, "{} bytes", size_of::<Parser>());
}

#[test]
fn arguments_outlive_the_parser_s_next_step() {
    let mut bytes = b"SET k \"a\\x41\"\r\n*1\r\n$4\r\nPING\r\n".to_vec();
    let mut parser = authenticated();
    let mut input = &mut bytes[..];
    let mut batch: Vec<Vec<&[u8]>> = Vec::new();
    while let Some(command) = parser.next(&mut input).unwrap() {
        batch.push(command.arguments().collect());
    }
    assert_eq!(batch, [&[b"SET" as &[u8], b"k", b"aA"][..], &[b"PING"]]);
}

/// Encodes a command as clients do.
fn encode(command: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", command.len()).into_bytes();
    for argument in command {
        bytes.extend_from_slice(format!("${}\r\n", argument.len()).as_bytes());
        bytes.extend_from_slice(argument);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

/// Decodes commands by an independent parser.
fn decode(mut bytes: &[u8]) -> Vec<Vec<Vec<u8>>> {
    let mut commands = Vec::new();
    while let Some((frame, length)) = redis_protocol::resp2::decode::decode(bytes).unwrap() {
        let OwnedFrame::Array(arguments) = frame else { panic!("{frame:?} is no command") };
        let bulk = |frame| match frame {
            OwnedFrame::BulkString(bytes) => bytes,
            other => panic!("{other:?} is no argument"),
        };
        commands.push(arguments.into_iter().map(bulk).collect());
        bytes = &bytes[length..];
    }
    commands
}

/// Cuts bytes at places, which need not be in order.
fn cut<'b>(bytes: &'b [u8], places: &[prop::sample::Index]) -> Vec<&'b [u8]> {
    let mut places: Vec<usize> = places.iter().map(|place| place.index(bytes.len() + 1)).collect();
    places.extend([0, bytes.len()]);
    places.sort_unstable();
    places.windows(2).map(|pair| &bytes[pair[0]..pair[1]]).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn commands_are_as_an_independent_parser_reads_them(
        commands in prop::collection::vec(prop::collection::vec(prop::collection::vec(any::<u8>(), 0..20), 1..6), 0..6),
        places in prop::collection::vec(any::<prop::sample::Index>(), 0..5),
        unfinished in 0usize..30,
    ) {
        let mut bytes: Vec<u8> = commands.iter().flat_map(|command| encode(command)).collect();
        bytes.truncate(bytes.len().saturating_sub(unfinished));
        let outcome = feed(authenticated(), &cut(&bytes, &places));
        prop_assert_eq!(outcome.error, None);
        prop_assert_eq!(&outcome.commands[..], &commands[..outcome.commands.len()]);
        prop_assert_eq!(outcome.commands, decode(&bytes));
    }

    #[test]
    fn any_bytes_in_any_pieces_have_one_outcome(
        words in prop::collection::vec(prop::sample::select(vec![
            "*", "$", "\r\n", "\n", "\r", " ", "\"", "'", "\\", "\\x4", "1", "2", "3", "-", "0", "a", "PING", "POST",
            "*1\r\n", "*2\r\n", "$1\r\n", "$3\r\nGET\r\n", "\0", "\u{ff}", "Host:", "99999999999",
        ]), 0..24),
        places in prop::collection::vec(any::<prop::sample::Index>(), 0..5),
    ) {
        let bytes = words.concat().into_bytes();
        let whole = outcome(&bytes);
        prop_assert_eq!(feed(authenticated(), &cut(&bytes, &places)), whole);
    }

    #[test]
    fn quoted_words_read_back(words in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..12), 1..5)) {
        let quote = |word: &Vec<u8>| {
            let bytes = word.iter().map(|byte| format!("\\x{byte:02x}")).collect::<String>();
            format!("\"{bytes}\"")
        };
        // The first word keeps clear of HTTP.
        let line = format!("x {}\r\n", words.iter().map(quote).collect::<Vec<_>>().join(" "));
        let outcome = feed(authenticated(), &[line.as_bytes()]);
        prop_assert_eq!(&outcome.commands[0][1..], &words[..]);
    }
}
