//! Feeds any bytes to the parser of a Redis connection, at once and in two pieces. It must not
//! panic, and the commands and the error must not depend on the pieces.
#![no_main]

use remora_resp::{ParseError, Parser};

/// Feeds pieces to a parser. Returns the commands, the error, and the length of what is left.
fn feed(is_authenticated: bool, pieces: [&[u8]; 2]) -> (Vec<Vec<Vec<u8>>>, Option<ParseError>, usize) {
    let mut parser = Parser::new();
    parser.set_authenticated(is_authenticated);
    let (mut commands, mut buffer) = (Vec::new(), Vec::new());
    for piece in pieces {
        buffer.extend_from_slice(piece);
        let mut input = &mut buffer[..];
        loop {
            match parser.next(&mut input) {
                Ok(Some(command)) => commands.push(command.arguments().map(<[u8]>::to_vec).collect()),
                Ok(None) => break,
                Err(error) => return (commands, Some(error), 0),
            }
        }
        let left = input.len();
        buffer.drain(..buffer.len() - left);
    }
    assert!(parser.allocated_bytes() <= 64 * pieces.concat().len() + 64, "memory grows only with what has come");
    (commands, None, buffer.len())
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    // The first two bytes choose the limits and the place of the cut.
    let [low, high, bytes @ ..] = bytes else { return };
    let choice = usize::from(u16::from_le_bytes([*low, *high]));
    let (is_authenticated, place) = (choice & 1 == 1, (choice >> 1) % (bytes.len() + 1));
    let whole = feed(is_authenticated, [bytes, b""]);
    let (first, second) = bytes.split_at(place);
    assert_eq!(feed(is_authenticated, [first, second]), whole);
});
