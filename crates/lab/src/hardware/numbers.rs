//! Where the numbers of a profile come from, as the comments on their lines say.
//!
//! A comment begins with the number's kind: `published: SOURCE`, `derived: ARITHMETIC`,
//! `fit "ROW", "ROW": ARITHMETIC` or `assumed: REASON`. `docs/profiles.md` has the meaning of each.

use remora_fabric::sim::Profile;
use serde::Serialize;

/// What a number of a profile is worth as evidence, the best first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A text prints the number itself.
    Published,
    /// Arithmetic leads to the number from printed ones, none of which is a row of a table.
    Derived,
    /// The number was computed from the published value of a row. So the row is no evidence.
    Fit,
    /// The number, or a part of it, was chosen without a source.
    Assumed,
}

impl Kind {
    /// All kinds, the best first.
    pub const ALL: [Kind; 4] = [Kind::Published, Kind::Derived, Kind::Fit, Kind::Assumed];

    /// The word at the start of a comment.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Kind::Published => "published",
            Kind::Derived => "derived",
            Kind::Fit => "fit",
            Kind::Assumed => "assumed",
        }
    }
}

/// A number of a profile, and where it comes from.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Number {
    /// The key with its tables, as in `nic.read_ns`.
    pub key: String,
    /// The value as the profile writes it.
    pub value: String,
    /// The kind. `None` if the comment does not have the form of any.
    pub kind: Option<Kind>,
    /// The names of the rows that the number was fit to: `ROW` is a row of the number's own
    /// profile, `PROFILE: ROW` one of another profile.
    pub fit_to: Vec<String>,
    /// The rest of the comment: source, arithmetic or reason.
    pub source: String,
}

/// Returns all numbers in the text of a profile, in its order.
#[must_use]
pub fn numbers(text: &str) -> Vec<Number> {
    let mut table = "";
    let mut numbers = Vec::new();
    for line in text.lines() {
        if let Some(header) = line.strip_prefix('[') {
            table = header.split(']').next().unwrap_or("");
            continue;
        }
        let (setting, comment) = line.split_once('#').unwrap_or((line, ""));
        let Some((key, value)) = setting.split_once('=') else { continue };
        let (key, value) = (key.trim(), value.trim());
        if !value.starts_with(|first: char| first.is_ascii_digit() || "+-.".contains(first)) {
            continue;
        }
        let key = if table.is_empty() { key.to_owned() } else { format!("{table}.{key}") };
        let comment = comment.trim();
        let (kind, fit_to, source) = claim(comment).unwrap_or((None, Vec::new(), comment));
        numbers.push(Number { key, value: value.to_owned(), kind, fit_to, source: source.to_owned() });
    }
    numbers
}

/// Reads a comment: kind, rows and source. Returns `None` if it does not have the form of any kind.
fn claim(comment: &str) -> Option<(Option<Kind>, Vec<String>, &str)> {
    let kind = Kind::ALL.into_iter().find(|kind| comment.starts_with(kind.name()))?;
    let mut rest = &comment[kind.name().len()..];
    let mut rows = Vec::new();
    if kind == Kind::Fit {
        rest = rest.strip_prefix(' ')?;
        loop {
            let (row, behind) = rest.strip_prefix('"')?.split_once('"')?;
            rows.push(row.to_owned());
            match behind.strip_prefix(", ") {
                Some(next) => rest = next,
                None => {
                    rest = behind;
                    break;
                }
            }
        }
    }
    let source = rest.strip_prefix(": ")?.trim();
    (!source.is_empty() && rows.iter().all(|row| !row.is_empty())).then_some((Some(kind), rows, source))
}

impl Number {
    /// Returns the rows that the number was fit to, each as its profile and its name. `profile` is
    /// the number's own.
    pub fn rows<'n>(&'n self, profile: &'n str) -> impl Iterator<Item = (&'n str, &'n str)> {
        self.fit_to.iter().map(move |row| {
            let other = row.split_once(": ").filter(|(other, _)| Profile::NAMES.contains(other));
            other.unwrap_or((profile, row))
        })
    }
}

/// How many numbers of a profile are of each kind.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize)]
pub struct Counts {
    /// Numbers that a text prints.
    pub published: usize,
    /// Numbers that follow from printed ones.
    pub derived: usize,
    /// Numbers that were computed from the published value of a row.
    pub fit: usize,
    /// Numbers that were chosen without a source.
    pub assumed: usize,
    /// Numbers whose comment does not say of which kind they are.
    pub unmarked: usize,
}

impl Counts {
    /// Counts the numbers of each kind.
    #[must_use]
    pub fn of(numbers: &[Number]) -> Counts {
        let count = |kind| numbers.iter().filter(|number| number.kind == kind).count();
        Counts {
            published: count(Some(Kind::Published)),
            derived: count(Some(Kind::Derived)),
            fit: count(Some(Kind::Fit)),
            assumed: count(Some(Kind::Assumed)),
            unmarked: count(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_are_read() {
        let text = "# [no] = 1\nname = \"a\" # published: no\npath = \"nic\"\n\n[nic]\nwire_ns = 1.50 # assumed: a = b # c\n\
                    read_ns = 2 # fit \"A, of: 1\", \"b: B\": x: 1/2\n[media.dram]\nunit_bytes = 64 # published: T 2, 64 B\n\
                    old = true # derived: no number\nwrite_ns = 0.0 # derived: 1 - 1";
        let number = |key: &str, value: &str, kind, fit_to: &[&str], source: &str| Number {
            key: key.to_owned(),
            value: value.to_owned(),
            kind: Some(kind),
            fit_to: fit_to.iter().map(|row| (*row).to_owned()).collect(),
            source: source.to_owned(),
        };
        assert_eq!(
            numbers(text),
            [
                number("nic.wire_ns", "1.50", Kind::Assumed, &[], "a = b # c"),
                number("nic.read_ns", "2", Kind::Fit, &["A, of: 1", "b: B"], "x: 1/2"),
                number("media.dram.unit_bytes", "64", Kind::Published, &[], "T 2, 64 B"),
                number("media.dram.write_ns", "0.0", Kind::Derived, &[], "1 - 1"),
            ]
        );
    }

    #[test]
    fn a_comment_of_another_form_has_no_kind() {
        for comment in [
            "",
            " # Wei thesis 2.2",
            " # published",
            " # published:",
            " # published Wei thesis",
            " # fit: arithmetic",
            " # fit A: arithmetic",
            " # fit \"A: arithmetic",
            " # fit \"A\" arithmetic",
            " # fit \"\": arithmetic",
            " # fit \"A\", : arithmetic",
            " # fitted: arithmetic",
            " # Assumed: a reason",
        ] {
            let [number] = &numbers(&format!("a = 1{comment}"))[..] else { panic!("one number: {comment}") };
            assert_eq!((number.kind, number.fit_to.len()), (None, 0), "{comment}");
            assert_eq!(number.source, comment.trim_start_matches([' ', '#']), "{comment}");
        }
    }

    #[test]
    fn a_row_belongs_to_its_profile() {
        let [number] = &numbers("a = 1 # fit \"A\", \"r74v: B: C\", \"few: D\": e")[..] else { panic!("one number") };
        assert_eq!(number.rows("efa").collect::<Vec<_>>(), [("efa", "A"), ("r74v", "B: C"), ("efa", "few: D")]);
    }
}
