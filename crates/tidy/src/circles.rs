//! The rule against circles of files: files of one crate that use each other, directly or through
//! others.

use std::collections::{BTreeMap, BTreeSet};

use crate::comment_start;

/// Circles of files that are allowed, by crate. ARCHITECTURE.md says why each of them is there.
pub const CIRCLES: &[(&str, &[&str])] = &[("txn", &["protocol", "state", "tx"])];

/// Lists the circles of files of one crate: sets of modules that use each other, by paths that
/// begin with `crate` or `super`. `sources` has the texts by module, such as `protocol::occ`; the
/// crate's root is the empty name.
///
/// A name that a module only re-exports counts for the module that defines it. Modules above and
/// below a module count as a part of it, since a folder and the file that declares it are one.
/// Tests do not count.
pub fn circles(sources: &BTreeMap<String, String>) -> BTreeSet<BTreeSet<String>> {
    let files: BTreeMap<&str, Names> = sources.iter().map(|(at, text)| (at.as_str(), Names::of(text))).collect();
    let is_below = |one: &str, other: &str| other.is_empty() || format!("{one}::").starts_with(&format!("{other}::"));
    let edges: BTreeMap<&str, BTreeSet<String>> = files
        .iter()
        .map(|(&at, names)| {
            let others = names.used.iter().map(|path| definer(at, path, &files));
            (at, others.filter(|other| !is_below(at, other) && !is_below(other, at)).collect())
        })
        .collect();
    let reached: BTreeMap<&str, BTreeSet<&str>> = files.keys().map(|at| (*at, reached_from(at, &edges))).collect();
    let circle_of = |at: &&str| {
        let others = reached[at].iter().filter(|other| reached[*other].contains(at));
        others.map(|other| (*other).to_owned()).collect()
    };
    files.keys().map(circle_of).filter(|circle: &BTreeSet<String>| !circle.is_empty()).collect()
}

fn reached_from<'e>(at: &'e str, edges: &'e BTreeMap<&str, BTreeSet<String>>) -> BTreeSet<&'e str> {
    let (mut reached, mut next) = (BTreeSet::new(), vec![at]);
    while let Some(one) = next.pop() {
        next.extend(edges[one].iter().map(String::as_str).filter(|other| reached.insert(*other)));
    }
    reached
}

/// The paths that one file names.
struct Names {
    /// Paths that begin with `crate` or `super`, except the ones that the file only re-exports.
    used: Vec<String>,
    /// Paths that the file imports or re-exports.
    imported: Vec<String>,
}

impl Names {
    fn of(text: &str) -> Names {
        let text = &text[..text.find("#[cfg(test)]\nmod ").unwrap_or(text.len())];
        let lines = text.lines().map(|line| &line[..comment_start(line).unwrap_or(line.len())]);
        let code = lines.collect::<Vec<_>>().join("\n");
        let (mut used, mut imported, mut exported) = (Vec::new(), Vec::new(), Vec::new());
        for (at, _) in code.match_indices("use ") {
            let before = code[..at].rsplit('\n').next().unwrap_or("").trim();
            if before.is_empty() || before == "pub" || before.starts_with("pub(") && before.ends_with(')') {
                read_tree(&code[at + 4..], "", &mut imported);
                exported.extend(code[at..].find(';').filter(|_| !before.is_empty()).map(|end| at..at + end));
            }
        }
        for (at, _) in ["crate::", "super::"].into_iter().flat_map(|start| code.match_indices(start)) {
            let is_within = code[..at].ends_with(|c: char| c.is_alphanumeric() || "_:$".contains(c));
            if !is_within && !exported.iter().any(|one| one.contains(&at)) {
                read_tree(&code[at..], "", &mut used);
            }
        }
        Names { used, imported }
    }
}

/// Reads the tree of paths with which a text begins, such as `a::{b, c as d}`, and returns the
/// rest.
fn read_tree<'t>(text: &'t str, before: &str, paths: &mut Vec<String>) -> &'t str {
    let end = text.find(|c: char| !c.is_alphanumeric() && !"_:*".contains(c)).unwrap_or(text.len());
    let (path, mut rest) = (format!("{before}{}", &text[..end]), &text[end..]);
    if !path.ends_with("::") || !rest.starts_with('{') {
        paths.push(path);
        return rest;
    }
    while rest.starts_with(['{', ',']) {
        rest = rest[1..].trim_start();
        if !rest.starts_with('}') {
            rest = read_tree(rest, &path, paths).trim_start_matches(|c| c != ',' && c != '}');
        }
    }
    rest.get(1..).unwrap_or("")
}

/// Returns the module that defines what a path names, seen from the module `at`.
fn definer(at: &str, path: &str, files: &BTreeMap<&str, Names>) -> String {
    let mut here: Vec<&str> = at.split("::").filter(|part| !part.is_empty()).collect();
    let mut rest = path.split("::").peekable();
    while let Some(part) = rest.next_if(|part| ["crate", "super", "self"].contains(part)) {
        here.truncate(match part {
            "crate" => 0,
            "super" => here.len().saturating_sub(1),
            _ => here.len(),
        });
    }
    while let Some(part) = rest.next_if(|part| files.contains_key([&here[..], &[*part]].concat().join("::").as_str())) {
        here.push(part);
    }
    let module = here.join("::");
    let name = rest.next().filter(|_| module != at).map(|name| format!("::{name}"));
    let imported = name.and_then(|name| files[module.as_str()].imported.iter().find(|path| path.ends_with(&name)));
    imported.map_or(module.clone(), |path| definer(&module, path, files))
}
