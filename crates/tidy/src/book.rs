//! Rules for the book in `docs/`, and what its HTML needs.

use serde_json::Value;

use super::{Violation, outside_fences, parts, violation};

/// Where readers of the HTML find what the repository has outside `docs/`.
const REPOSITORY: &str = "https://github.com/remora-db/remora/blob/main/";

/// Applies [`lead_out`] to each chapter of the book that mdBook hands to a preprocessor.
pub fn lead_out_of_all(book: &mut Value) {
    match book {
        Value::Array(items) => items.iter_mut().for_each(lead_out_of_all),
        Value::Object(fields) => {
            if let (Some(Value::String(page)), Some(Value::String(text))) = (fields.get("path"), fields.get("content"))
            {
                let text = lead_out(page, text);
                fields.insert("content".to_owned(), text.into());
            }
            fields.values_mut().for_each(lead_out_of_all);
        }
        _ => {}
    }
}

/// Turns the links of a page that lead out of `docs/` into links to the repository. `page` is the
/// page's path relative to `docs/`. Code stays as it is.
pub fn lead_out(page: &str, text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for (is_code, part) in parts(text) {
        let mut pieces = part.split("](");
        out.push_str(pieces.next().unwrap_or(""));
        for piece in pieces {
            out.push_str("](");
            let end = piece.find([')', ' ', '\n']).filter(|_| !is_code).unwrap_or(0);
            out.push_str(&lead_to(page, &piece[..end]));
            out.push_str(&piece[end..]);
        }
    }
    out
}

/// The target of a link as the HTML needs it.
fn lead_to(page: &str, target: &str) -> String {
    let (file, anchor) = target.split_at(target.find('#').unwrap_or(target.len()));
    if file.is_empty() || file.starts_with('/') || file.contains(':') {
        return target.to_owned();
    }
    let mut path = vec!["docs"];
    path.extend(page.split('/'));
    path.pop();
    for step in file.split('/').filter(|step| !["", "."].contains(step)) {
        match step {
            ".." if path.pop().is_none() => return target.to_owned(),
            ".." => {}
            step => path.push(step),
        }
    }
    match (&path[..], file.strip_suffix("README.md")) {
        // The HTML shows the summary beside each page, and has no page for it.
        (["docs", "SUMMARY.md"], _) => format!("{REPOSITORY}{}{anchor}", path.join("/")),
        // mdBook calls it so: it turns README.md into the index of its folder.
        (["docs", ..], Some(folder)) => format!("{folder}index.md{anchor}"),
        (["docs", ..], None) => target.to_owned(),
        _ => format!("{REPOSITORY}{}{anchor}", path.join("/")),
    }
}

/// Checks that the summary of the book names each page once, and nothing else. Paths are relative
/// to `docs/`.
pub fn summary(text: &str, pages: &[String]) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut named = Vec::new();
    for (index, line) in outside_fences(text) {
        for rest in line.split("](").skip(1) {
            let target = rest.split(')').next().unwrap_or(rest);
            if named.contains(&target) {
                found.push(violation("summary", index, format!("{target:?} once more: delete one")));
            } else if !target.is_empty() && !pages.iter().any(|page| page == target) {
                found.push(violation("summary", index, format!("no page {target:?}: correct or delete the line")));
            } else if !target.is_empty() {
                named.push(target);
            }
        }
    }
    let missing = pages.iter().filter(|page| *page != "SUMMARY.md" && !named.contains(&page.as_str()));
    found.extend(missing.map(|page| violation("summary", 0, format!("no line for {page:?}: add it"))));
    found
}

/// Checks that each row of the README's figures says which command gives it and when it did.
pub fn figures(readme: &str) -> Vec<Violation> {
    let section = outside_fences(readme).skip_while(|(_, line)| *line != "## Figures").skip(1);
    let rows = section.take_while(|(_, line)| !line.starts_with("## ")).filter(|(_, line)| line.starts_with('|'));
    let mut found = Vec::new();
    for (index, row) in rows.skip(2) {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        if !cells.get(3).is_some_and(|command| command.contains('`')) {
            found.push(violation("figure", index, "no command in the third column: write it in backticks"));
        }
        if !cells.get(4).is_some_and(|when| is_date(when)) {
            found.push(violation("figure", index, "no date in the fourth column: write it as 2026-11-27"));
        }
    }
    found
}

fn is_date(text: &str) -> bool {
    let shape = |c: char| if c.is_ascii_digit() { '0' } else { c };
    text.chars().map(shape).eq("0000-00-00".chars())
}
