//! Inline commands: words of a line, as a person types them.
//!
//! 1. Blanks separate words.
//! 2. `"..."` holds any bytes. `\n`, `\r`, `\t`, `\b`, `\a` and `\xHH` stand for one byte each. A
//!    backslash before any other byte stands for that byte.
//! 3. `'...'` holds any bytes. Only `\'` is an escape.
//! 4. Quotes may open within a word. A closing quote ends the word, and a blank or the end of the
//!    line must follow it.

use std::ops::Range;

/// A quote that does not close, or is not followed by a blank.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Unbalanced;

/// Splits a line into its words. Appends the place of each word to `words`.
///
/// Words are unquoted in place. That never needs room, because a quoted word is longer than the
/// word itself.
pub(crate) fn split(line: &mut [u8], words: &mut Vec<Range<usize>>) -> Result<(), Unbalanced> {
    let mut from = 0;
    loop {
        from += line[from..].iter().take_while(|byte| is_blank(**byte)).count();
        if from == line.len() {
            return Ok(());
        }
        let start = from;
        let (mut to, mut quote) = (start, None);
        while let Some(&byte) = line.get(from) {
            let (value, length) = match (quote, byte) {
                // Vertical tabs and form feeds separate words only at the beginning of a word.
                (None, b' ' | b'\t' | b'\r' | b'\n') => break,
                (None, b'"' | b'\'') => {
                    quote = Some(byte);
                    from += 1;
                    continue;
                }
                (Some(open), _) if open == byte => {
                    from += 1;
                    quote = None;
                    if line.get(from).is_some_and(|next| !is_blank(*next)) {
                        return Err(Unbalanced);
                    }
                    break;
                }
                (Some(b'"'), b'\\') => unescape(&line[from..]),
                (Some(b'\''), b'\\') if line.get(from + 1) == Some(&b'\'') => (b'\'', 2),
                _ => (byte, 1),
            };
            debug_assert!(to <= from, "a word would overwrite what has not been read");
            line[to] = value;
            to += 1;
            from += length;
        }
        if quote.is_some() {
            return Err(Unbalanced);
        }
        words.push(start..to);
    }
}

/// Reads one escape of a word in double quotes. Returns the byte that it stands for, and its
/// length.
fn unescape(text: &[u8]) -> (u8, usize) {
    let hex = |at: usize| text.get(at).and_then(|byte| char::from(*byte).to_digit(16));
    if let (Some(b'x'), Some(high), Some(low)) = (text.get(1), hex(2), hex(3)) {
        return ((high * 16 + low) as u8, 4);
    }
    match text.get(1) {
        None => (b'\\', 1),
        Some(b'n') => (b'\n', 2),
        Some(b'r') => (b'\r', 2),
        Some(b't') => (b'\t', 2),
        Some(b'b') => (8, 2),
        Some(b'a') => (7, 2),
        Some(&byte) => (byte, 2),
    }
}

/// Returns whether a byte is a blank of the C locale.
fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t'..=b'\r')
}
