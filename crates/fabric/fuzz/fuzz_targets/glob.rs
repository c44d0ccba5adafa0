//! Matches any text with any pattern. It must not panic, and agree with a matcher that fills a
//! table of all rests of the pattern and of the text.
#![no_main]

use remora_resp::glob::{matches, matches_ignoring_case};

/// Cuts the first element off a pattern.
fn element(pattern: &[u8]) -> (&[u8], &[u8]) {
    let length = match pattern {
        [b'[', class @ ..] => {
            let mut at = usize::from(class.first() == Some(&b'^'));
            loop {
                match class.get(at..).unwrap_or_default() {
                    [] => break 1 + class.len(),
                    [b'\\', _, ..] => at += 2,
                    [b']', ..] => break at + 2,
                    [_, b'-', _, ..] => at += 3,
                    _ => at += 1,
                }
            }
        }
        [b'\\', _, ..] => 2,
        _ => 1,
    };
    pattern.split_at(length)
}

fn plainly(pattern: &[u8], text: &[u8]) -> bool {
    if text.is_empty() {
        return matches!(pattern, [] | b"*");
    }
    // Whether the pattern so far matches each beginning of the text.
    let mut reached = vec![false; text.len() + 1];
    reached[0] = true;
    let mut rest = pattern;
    while !rest.is_empty() {
        let (first, behind) = element(rest);
        if first == b"*" {
            let mut any = false;
            reached.iter_mut().for_each(|place| {
                any |= *place;
                *place = any;
            });
        } else {
            for at in (0..text.len()).rev() {
                reached[at + 1] = reached[at] && matches(first, &text[at..=at]);
            }
            reached[0] = false;
        }
        rest = behind;
    }
    reached[text.len()]
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let cut = bytes.iter().position(|byte| *byte == b'\n').unwrap_or(bytes.len());
    let (pattern, text) = (&bytes[..cut], &bytes[(cut + 1).min(bytes.len())..]);
    assert_eq!(matches(pattern, text), plainly(pattern, text));
    matches_ignoring_case(pattern, text);
});
