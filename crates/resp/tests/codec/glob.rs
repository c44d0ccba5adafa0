//! The rules of patterns, a plain matcher to compare with, and the bound of the work.

use proptest::prelude::*;
use remora_resp::glob::{is_literal, matches, matches_ignoring_case};

#[track_caller]
fn yes(pattern: &str, texts: &[&str]) {
    texts.iter().for_each(|text| assert!(matches(pattern.as_bytes(), text.as_bytes()), "{pattern} {text:?}"));
}

#[track_caller]
fn no(pattern: &str, texts: &[&str]) {
    texts.iter().for_each(|text| assert!(!matches(pattern.as_bytes(), text.as_bytes()), "{pattern} {text:?}"));
}

#[test]
fn literals() {
    yes("abc", &["abc"]);
    no("abc", &["ab", "abcd", "", "ABC", "xabc"]);
    yes("", &[""]);
    no("", &["a"]);
}

#[test]
fn stars() {
    yes("*", &["", "a", "abc"]);
    yes("**", &["a", "abc"]);
    no("**", &[""]);
    yes("a*", &["a", "ab", "abc"]);
    yes("a**", &["a", "ab"]);
    yes("*c", &["c", "abc", "cc"]);
    no("*c", &["", "cb"]);
    yes("a*c*e", &["ace", "abcde", "accccce", "aceace"]);
    no("a*c*e", &["aec", "acd"]);
    yes("h*llo", &["hllo", "heeeello"]);
    yes("*a*b", &["ab", "aab", "abab", "xaxb"]);
    no("*a*", &["", "b"]);
}

#[test]
fn question_marks() {
    yes("h?llo", &["hello", "h\u{1}llo"]);
    no("h?llo", &["hllo", "heello"]);
    no("?", &["", "ab", "é"]);
    yes("??", &["é"]);
    yes("*?", &["a", "ab"]);
    no("*?", &[""]);
}

#[test]
fn classes() {
    yes("h[ae]llo", &["hello", "hallo"]);
    no("h[ae]llo", &["hillo", "hllo"]);
    yes("[a-c]", &["a", "b", "c"]);
    no("[a-c]", &["d", "-", ""]);
    yes("[c-a]", &["a", "b", "c"]);
    yes("[^a]", &["b", "^"]);
    no("[^a]", &["a", ""]);
    yes("[^a-c]x", &["dx"]);
    // An exclamation mark does not negate.
    yes("[!a]", &["!", "a"]);
    no("[!a]", &["b"]);
    // A bracket ends the class even as its first byte.
    no("[]a]", &["]", "a", "a]", "]a]", "aa]"]);
    yes("[^]", &["a", "]", "^"]);
    no("[^]", &["", "ab"]);
    yes("[^]a]", &["xa]"]);
    // An open class runs to the end.
    yes("[a", &["a"]);
    no("[a", &["b", "[a", "["]);
    yes("[abc", &["c"]);
    no("[", &["[", "a"]);
    yes("[^", &["a", "^"]);
    // A dash takes the bracket as the end of its range.
    yes("[a-]", &["a", "]", "^", "_", "`"]);
    no("[a-]", &["-", "b"]);
    yes("[-a]", &["-", "a"]);
    yes("[a-c-e]", &["b", "-", "e"]);
    // Escapes within a class.
    yes(r"[\]a]", &["]", "a"]);
    yes(r"[\^a]", &["^", "a"]);
    yes(r"[a\-c]", &["a", "-", "c"]);
    no(r"[a\-c]", &["b", "\\"]);
    yes(r"[\", &["\\"]);
    yes("x[a-c]*[0-9]", &["xb7", "xa--0"]);
}

#[test]
fn escapes() {
    yes(r"h\*llo", &["h*llo"]);
    no(r"h\*llo", &["hello", r"h\*llo"]);
    yes(r"\?\[\\", &[r"?[\"]);
    yes(r"\a", &["a"]);
    // A last backslash is itself.
    yes(r"a\", &[r"a\"]);
    yes(r"*\", &[r"a\", r"\"]);
}

#[test]
fn case() {
    assert!(matches_ignoring_case(b"MAX*", b"maxmemory"));
    assert!(matches_ignoring_case(b"[a-c]X", b"Bx"));
    assert!(matches_ignoring_case(b"[A]", b"a"));
    assert!(!matches_ignoring_case(b"[A]", b"b"));
    // As in Redis: an escaped letter of a class, and a range that is reversed only in one case.
    assert!(!matches_ignoring_case(b"[\\A]", b"a"));
    assert!(!matches_ignoring_case(b"[a-Z]", b"m"));
    assert!(matches_ignoring_case(b"\\A", b"a"));
}

#[test]
fn literal_patterns() {
    assert!(is_literal(b"maxmemory") && is_literal(b"") && is_literal(b"a]^-"));
    assert!(["*", "a?", "[a", "\\"].iter().all(|pattern| !is_literal(pattern.as_bytes())));
}

#[test]
fn many_stars_take_bounded_work() {
    let text = vec![b'a'; 20_000];
    let pattern = [b"a*".repeat(2000), b"b".to_vec()].concat();
    assert!(!matches(&pattern, &text));
    let pattern = [b"*[^b]".repeat(5000), b"b".to_vec()].concat();
    assert!(!matches(&pattern, &text));
    assert!(matches(&b"*a".repeat(10_000), &text));
}

/// Matches by trying everything, as the table of rules says.
fn plainly(pattern: &[u8], text: &[u8]) -> bool {
    match (pattern, text) {
        ([], _) => text.is_empty(),
        ([b'*', rest @ ..], _) => (0..=text.len()).any(|skipped| plainly(rest, &text[skipped..])),
        (_, []) => false,
        ([b'?', rest @ ..], [_, more @ ..]) => plainly(rest, more),
        ([b'[', class @ ..], [byte, more @ ..]) => {
            let (mut at, mut found) = (0, false);
            let negated = class.first() == Some(&b'^');
            at += usize::from(negated);
            while at < class.len() && class[at] != b']' {
                if class[at] == b'\\' && at + 1 < class.len() {
                    found |= class[at + 1] == *byte;
                    at += 2;
                } else if at + 2 < class.len() && class[at + 1] == b'-' {
                    let (one, other) = (class[at], class[at + 2]);
                    found |= (one.min(other)..=one.max(other)).contains(byte);
                    at += 3;
                } else {
                    found |= class[at] == *byte;
                    at += 1;
                }
            }
            found != negated && plainly(&class[class.len().min(at + 1)..], more)
        }
        ([b'\\', literal, rest @ ..], [byte, more @ ..]) => literal == byte && plainly(rest, more),
        ([literal, rest @ ..], [byte, more @ ..]) => literal == byte && plainly(rest, more),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 5_000, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn patterns_match_as_a_plain_matcher_says(pattern in "[ab\\[\\]*?^\\\\-]{0,8}", text in "[ab\\[\\]^\\\\-]{1,6}") {
        prop_assert_eq!(matches(pattern.as_bytes(), text.as_bytes()), plainly(pattern.as_bytes(), text.as_bytes()));
    }

    #[test]
    fn escaped_text_matches_itself(text in prop::collection::vec(any::<u8>(), 1..20)) {
        let pattern: Vec<u8> = text.iter().flat_map(|byte| [b'\\', *byte]).collect();
        prop_assert!(matches(&pattern, &text));
        prop_assert!(matches_ignoring_case(&pattern, &text.to_ascii_uppercase()));
    }
}
