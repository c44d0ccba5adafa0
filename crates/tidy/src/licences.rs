//! The rule for licences: every package that the project is built from must have a licence that
//! `deny.toml` allows.

use std::collections::BTreeSet;

/// Reads the allowed licences from the text of `deny.toml`: the strings of `allow` in `[licenses]`.
pub fn allowed_licences(deny: &str) -> BTreeSet<String> {
    let section = deny.split("\n[").find_map(|section| section.strip_prefix("licenses]")).unwrap_or("");
    let list = section.split_once("allow = [").and_then(|(_, list)| list.split_once(']')).map_or("", |(list, _)| list);
    list.split('"').skip(1).step_by(2).map(str::to_owned).collect()
}

/// Lists the packages whose licence is not allowed. `tree` has a line for each package: its name, a
/// vertical bar, and its licence as an SPDX expression, as `cargo tree --format '{p}|{l}'` prints.
pub fn forbidden_licences(tree: &str, allowed: &BTreeSet<String>) -> BTreeSet<String> {
    let packages = tree.lines().filter_map(|line| line.trim_end_matches(" (*)").split_once('|'));
    let forbidden = packages.filter(|(_, licence)| !is_allowed(licence, allowed));
    forbidden.map(|(package, licence)| format!("{package}: {licence:?}")).collect()
}

/// Returns whether an SPDX expression can be met by allowed licences only. The old form "A/B" is a
/// choice.
fn is_allowed(expression: &str, allowed: &BTreeSet<String>) -> bool {
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut rest = &words[..];
    let is_met = choice(&mut rest, allowed);
    is_met == Some(true) && rest.is_empty()
}

/// Reads terms joined by `OR`. Returns whether one of them is allowed, or `None` if the expression
/// is malformed.
fn choice(rest: &mut &[&str], allowed: &BTreeSet<String>) -> Option<bool> {
    let mut is_met = all_of(rest, allowed)?;
    while let ["OR", more @ ..] = *rest {
        *rest = more;
        is_met |= all_of(rest, allowed)?;
    }
    Some(is_met)
}

/// Reads terms joined by `AND`, which binds tighter than `OR`. Returns whether all of them are
/// allowed.
fn all_of(rest: &mut &[&str], allowed: &BTreeSet<String>) -> Option<bool> {
    let mut is_met = term(rest, allowed)?;
    while let ["AND", more @ ..] = *rest {
        *rest = more;
        is_met &= term(rest, allowed)?;
    }
    Some(is_met)
}

/// Reads one licence, perhaps with an exception, or an expression in parentheses.
fn term(rest: &mut &[&str], allowed: &BTreeSet<String>) -> Option<bool> {
    match **rest {
        ["(", ref more @ ..] => {
            *rest = more;
            let is_met = choice(rest, allowed)?;
            let [")", more @ ..] = *rest else { return None };
            *rest = more;
            Some(is_met)
        }
        [licence, "WITH", exception, ref more @ ..] => {
            *rest = more;
            Some(allowed.contains(&format!("{licence} WITH {exception}")))
        }
        [licence, ref more @ ..] if ![")", "OR", "AND", "WITH"].contains(&licence) => {
            *rest = more;
            Some(allowed.contains(licence))
        }
        _ => None,
    }
}
