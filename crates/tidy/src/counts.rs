//! The table of counts in docs/papers.md: how many rows of each text have which state.

use std::collections::BTreeMap;

use crate::{Violation, outside_fences, violation};

/// Checks that the table of counts of a page agrees with the rows that it counts. That table has
/// the columns `text`, `rows` and one for each state; a line is for a text, or for `all`. Every
/// table whose third column is `state` has rows of the text that the heading above names (`## `).
pub fn counts(page: &str) -> Vec<Violation> {
    let mut counted: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    let (mut stated, mut heading, mut columns) = (Vec::new(), "", Vec::new());
    for (index, line) in outside_fences(page) {
        heading = line.strip_prefix("## ").unwrap_or(heading);
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        if !line.starts_with('|') {
            columns.clear();
        } else if columns.is_empty() {
            columns = cells;
        } else if cells[1].starts_with("---") {
            // The line below the head.
        } else if columns.starts_with(&["", "text", "rows"]) {
            let counts = columns.iter().zip(&cells).skip(2).filter(|(state, _)| !state.is_empty());
            stated.extend(counts.map(|(state, count)| (index, cells[1], *state, *count)));
        } else if let (Some(&"state"), Some(state)) = (columns.get(3), cells.get(3)) {
            for row in [(heading, "rows"), (heading, state), ("all", "rows"), ("all", state)] {
                *counted.entry(row).or_default() += 1;
            }
        }
    }
    let mut found = Vec::new();
    for (index, text, state, cell) in stated {
        let count = counted.remove(&(text, state)).unwrap_or(0).to_string();
        if cell != count {
            found.push(violation("counts", index, format!("{text}, {state}: {count} rows, not {cell}: correct it")));
        }
    }
    let missing = counted.iter().map(|((text, state), count)| format!("{text}, {state}: {count} rows, and no count"));
    found.extend(missing.map(|message| violation("counts", 0, message)));
    found
}
