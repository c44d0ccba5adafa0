//! Random tests of texts that are not profiles: each is refused with the field that is wrong, and
//! none causes a panic.

use proptest::prelude::*;
use remora_fabric::sim::{Profile, ProfileError};

/// Returns the text of a profile that comes with the simulator.
fn shipped(index: usize) -> &'static str {
    [
        include_str!("../../../profiles/connectx4.toml"),
        include_str!("../../../profiles/r74v.toml"),
        include_str!("../../../profiles/ethernet10g.toml"),
        include_str!("../../../profiles/cxl.toml"),
    ][index % 4]
}

/// Returns the lines of a profile that set a number, each with the key as a refusal names it.
fn numbers(text: &str) -> Vec<(usize, String)> {
    let mut table = String::new();
    let mut keys = Vec::new();
    for (at, line) in text.lines().enumerate() {
        if let Some(header) = line.strip_prefix('[') {
            table = format!("{}.", header.trim_end_matches(']'));
        } else if let Some((key, value)) = line.split_once(" = ")
            && !key.starts_with('#')
            && value.starts_with(|first: char| first.is_ascii_digit())
        {
            keys.push((at, format!("{table}{key}")));
        }
    }
    keys
}

/// Checks that a refusal is one line and names something.
fn is_told(refused: &ProfileError) -> Result<(), TestCaseError> {
    let ProfileError::Refused { field, reason, .. } = refused else {
        return Err(TestCaseError::fail(format!("not refused: {refused}")));
    };
    prop_assert!(!field.is_empty() && !reason.is_empty());
    prop_assert!(!refused.to_string().contains('\n'), "{refused}");
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_text_is_refused(text in any::<String>()) {
        is_told(&Profile::parse(&text).expect_err("nobody writes a profile by chance"))?;
    }

    #[test]
    fn a_profile_with_a_piece_of_it_replaced_is_read_or_refused(
        of in any::<usize>(), from in any::<prop::sample::Index>(), cut in 0..40usize, piece in "[-+.=\\[\\]\"'#a-z0-9_ \n]{0,12}",
    ) {
        let text = shipped(of);
        let mut from = from.index(text.len());
        let mut end = (from + cut).min(text.len());
        while !text.is_char_boundary(from) { from -= 1; }
        while !text.is_char_boundary(end) { end += 1; }
        if let Err(refused) = Profile::parse(&format!("{}{piece}{}", &text[..from], &text[end..])) {
            is_told(&refused)?;
        }
    }

    /// No number of a profile may be negative, be text, or be missing.
    #[test]
    fn a_wrong_number_is_refused_by_its_name(
        of in any::<usize>(),
        which in any::<prop::sample::Index>(),
        value in prop_oneof!["-[1-9][0-9]{0,6}", "-[1-9][0-9]{0,3}\\.[0-9]", Just("nan".to_owned()), Just("-inf".to_owned()), "\"[a-z]{0,8}\""],
    ) {
        let text = shipped(of);
        let numbers = numbers(text);
        let (line, key) = &numbers[which.index(numbers.len())];
        let name = key.rsplit('.').next().expect("a key has a last part");
        let changed: Vec<String> = text
            .lines()
            .enumerate()
            .map(|(at, old)| if at == *line { format!("{name} = {value}") } else { old.to_owned() })
            .collect();
        let refused = Profile::parse(&changed.join("\n")).expect_err("a value that means nothing");
        is_told(&refused)?;
        let ProfileError::Refused { field, line: said, .. } = &refused else { unreachable!("it was refused") };
        prop_assert_eq!((field, *said), (key, Some(line + 1)), "{}", refused);
    }
}
