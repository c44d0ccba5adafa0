//! Patterns of `KEYS`, `SCAN`, `CONFIG GET` and pub/sub.
//!
//! | pattern | matches |
//! | --- | --- |
//! | `*` | any bytes, or none |
//! | `?` | one byte |
//! | `[abc]`, `[a-c]`, `[c-a]` | one of these bytes |
//! | `[^a]` | one byte that is not of these |
//! | `\x` | `x` itself, also within a class |
//! | any other byte | itself |
//!
//! Rare cases are as in Redis:
//!
//! 1. `!` does not negate.
//! 2. `]` ends a class even as its first byte: `[]a]` matches nothing, `[^]` any byte.
//! 3. A class without `]` runs to the end of the pattern: `[a` matches `a`.
//! 4. `-` takes any byte behind it as the end of a range. `[a-]` has the range from `]` to `a`, and
//!    does not end there.
//! 5. A backslash at the end is itself.
//! 6. Empty text matches the empty pattern and `*` alone.
//!
//! Each `*` takes as few bytes as it can, and only the last one is ever extended: if the pattern
//! behind it does not match anywhere, no other choice of an earlier one helps. So a match takes at
//! most `pattern.len() * text.len()` steps.

/// Returns whether all of `text` matches the pattern.
pub fn matches(pattern: &[u8], text: &[u8]) -> bool {
    search(pattern, text, |byte| byte)
}

/// Returns whether all of `text` matches the pattern if ASCII letters match in either case. An
/// escaped letter of a class matches only itself.
pub fn matches_ignoring_case(pattern: &[u8], text: &[u8]) -> bool {
    search(pattern, text, |byte| byte.to_ascii_lowercase())
}

/// Returns whether the pattern is plain text, which can be looked up: it has no `*`, `?`, `[` and
/// no backslash.
pub fn is_literal(pattern: &[u8]) -> bool {
    !pattern.iter().any(|byte| matches!(byte, b'*' | b'?' | b'[' | b'\\'))
}

fn search(pattern: &[u8], text: &[u8], fold: impl Fn(u8) -> u8) -> bool {
    if text.is_empty() {
        return matches!(pattern, [] | b"*");
    }
    let (mut pattern, mut text) = (pattern, text);
    // The pattern behind the last `*`, and the text that it has not been tried on.
    let mut retry: Option<(&[u8], &[u8])> = None;
    loop {
        let rest = match (pattern, text) {
            ([b'*'], _) | ([], []) => return true,
            ([b'*', behind @ ..], _) => {
                (pattern, retry) = (behind, Some((behind, text)));
                continue;
            }
            (_, []) => return false,
            ([], _) => None,
            (_, [byte, ..]) => element(pattern, *byte, &fold),
        };
        (pattern, text) = match (rest, retry) {
            (Some(rest), _) => (rest, &text[1..]),
            (None, Some((behind, [_, later @ ..]))) => {
                retry = Some((behind, later));
                (behind, later)
            }
            (None, _) => return false,
        };
    }
}

/// Matches one byte with the first element of a pattern. Returns the pattern behind the element if
/// they match.
fn element<'p>(pattern: &'p [u8], byte: u8, fold: &impl Fn(u8) -> u8) -> Option<&'p [u8]> {
    let (is_match, rest) = match pattern {
        [b'?', rest @ ..] => (true, rest),
        [b'[', b'^', rest @ ..] => {
            let (is_match, rest) = class(rest, byte, fold);
            (!is_match, rest)
        }
        [b'[', rest @ ..] => class(rest, byte, fold),
        [b'\\', literal, rest @ ..] | [literal, rest @ ..] => (fold(*literal) == fold(byte), rest),
        [] => return None,
    };
    is_match.then_some(rest)
}

/// Matches one byte with the class that begins here, behind its bracket. Returns whether it is in
/// the class, and the pattern behind the class.
fn class<'p>(mut pattern: &'p [u8], byte: u8, fold: &impl Fn(u8) -> u8) -> (bool, &'p [u8]) {
    let mut is_match = false;
    loop {
        pattern = match pattern {
            [b'\\', literal, rest @ ..] => {
                is_match |= *literal == byte;
                rest
            }
            [b']', rest @ ..] => return (is_match, rest),
            [] => return (is_match, pattern),
            [one, b'-', other, rest @ ..] => {
                let (from, to) = (*one.min(other), *one.max(other));
                is_match |= (fold(from)..=fold(to)).contains(&fold(byte));
                rest
            }
            [one, rest @ ..] => {
                is_match |= fold(*one) == fold(byte);
                rest
            }
        };
    }
}
