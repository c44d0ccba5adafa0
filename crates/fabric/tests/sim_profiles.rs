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

/// Returns the text of a profile that comes with the simulator, with other values of these keys,
/// and the line of the first of them, counted from 1.
fn with(name: &str, values: &[(&str, &str)]) -> (String, usize) {
    let text = Profile::text(name).expect("it comes with the simulator");
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let mut at = Vec::new();
    for (key, value) in values {
        let (table, key) = key.rsplit_once('.').unwrap_or(("", key));
        let header = if table.is_empty() {
            0
        } else {
            lines.iter().position(|line| *line == format!("[{table}]")).expect("a table")
        };
        let below = lines[header..].iter().position(|line| line.starts_with(&format!("{key} = "))).expect("a key");
        lines[header + below] = format!("{key} = {value}");
        at.push(1 + header + below);
    }
    (lines.join("\n"), at[0])
}

/// A profile whose numbers contradict each other is refused with a line and a key of the two.
#[test]
fn contradictions_are_refused_by_line_and_key() {
    type Values<'v> = &'v [(&'v str, &'v str)];
    let cases: &[(&str, Values<'_>, &str)] = &[
        ("connectx4", &[("coherent_atomics", "true")], "is true, expected false where path is \"nic\""),
        ("connectx4", &[("whole_lines", "true")], "expected false where path is \"nic\": no card promises it"),
        ("connectx4", &[("atomic_writes", "true")], "expected false where path is \"nic\": no card promises it"),
        ("efa", &[("coherent_atomics", "true"), ("path", "\"nic\"")], "is true, expected false where path is \"nic\""),
        ("connectx5-switch", &[("switch.wire_ns", "150.5")], "is 150.5, expected at most nic.wire_ns, which is 150"),
        (
            "connectx5-switch",
            &[("switch.wire_ns", "75.0"), ("nic.wire_ns", "60.0")],
            "is 75, expected at most nic.wire_ns",
        ),
        (
            "connectx4",
            &[("calls.resend_ns", "440")],
            "is 440, expected more than 2 x nic.wire_ns + calls.serve_ns, which is 440",
        ),
        ("cxl", &[("calls.resend_ns", "399"), ("nic.wire_ns", "0")], "is 399, expected more than"),
        ("r74v", &[("media.optane.unit_bytes", "512")], "is 512, expected at most line_bytes, which is 256"),
        ("r74v", &[("media.optane.unit_bytes", "0")], "is 0, expected a power of two"),
        (
            "r74v",
            &[("media.dram.caches_persistent", "true")],
            "expected false where the memory itself is not persistent",
        ),
        ("connectx5", &[("nic.packet_bytes", "0")], "is 0, expected 1 or more"),
        ("connectx5", &[("nic.atomic_slots", "513")], "is 513, expected a power of two"),
        ("connectx5", &[("nic.write_ns", "-13.06")], "is -13.06, expected nanoseconds from 0"),
    ];
    for (profile, values, why) in cases {
        let (text, line) = with(profile, values);
        let said = Profile::parse(&text).expect_err("a contradiction").to_string();
        assert!(said.starts_with(&format!("line {line}: {}: ", values[0].0)), "{profile} {values:?}: {said}");
        assert!(said.contains(why), "{profile} {values:?}: {said}");
    }
}

/// Numbers that only just agree are a profile.
#[test]
fn the_bounds_of_contradictions_are_allowed() {
    for (profile, values) in [
        ("efa", ("coherent_atomics", "false")),
        ("cxl", ("coherent_atomics", "false")),
        ("connectx5-switch", ("switch.wire_ns", "150.0")),
        ("connectx4", ("calls.resend_ns", "440.5")),
        ("r74v", ("media.optane.unit_bytes", "256")),
    ] {
        let (text, _) = with(profile, &[values]);
        assert!(Profile::parse(&text).is_ok(), "{profile} {values:?}: {:?}", Profile::parse(&text));
    }
}

/// An unknown key is refused in every table, with its line.
#[test]
fn unknown_keys_are_refused_in_every_table() {
    let text = Profile::text("connectx5-switch").expect("it comes with the simulator");
    let headers: Vec<(usize, &str)> = text.lines().enumerate().filter(|(_, line)| line.starts_with('[')).collect();
    assert_eq!(headers.len(), 8, "{headers:?}");
    for (at, header) in headers {
        let mut lines: Vec<&str> = text.lines().collect();
        lines.insert(at + 1, "hops = 2 # assumed: none");
        let said = Profile::parse(&lines.join("\n")).expect_err("an unknown key").to_string();
        let table = header.trim_matches(['[', ']']);
        assert!(said.starts_with(&format!("line {}: {table}.hops: unknown field `hops`", at + 2)), "{header}: {said}");
    }
}
