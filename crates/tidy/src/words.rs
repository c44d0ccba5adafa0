//! The spelling of pages and doc comments: each word must be in `words.txt`.

use std::collections::BTreeSet;

use super::{Violation, parts, violation};

/// Reads `words.txt`: a lower-case word a line, sorted, each once.
pub fn parse_words(text: &str) -> Result<BTreeSet<&str>, String> {
    let lines: Vec<&str> = text.lines().collect();
    if let Some(pair) = lines.windows(2).find(|pair| pair[0] >= pair[1]) {
        return Err(format!(
            "words.txt: {:?} does not belong behind {:?}: sort it (LC_ALL=C sort -u)",
            pair[1], pair[0]
        ));
    }
    match lines.iter().find(|word| word.chars().any(|c| c.is_uppercase() || c.is_whitespace())) {
        Some(word) => Err(format!("words.txt: {word:?}: write one word a line, in lower case")),
        None => Ok(lines.into_iter().collect()),
    }
}

/// Checks the words of a page of Markdown outside its code.
pub fn spelling(text: &str, words: &BTreeSet<&str>) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut index = 0;
    for (is_code, part) in parts(text) {
        for (line, text) in part.split('\n').enumerate().filter(|_| !is_code) {
            // The target of a link is not prose.
            let mut pieces = text.split("](");
            let first = pieces.next();
            let rest = pieces.map(|piece| piece.split_once(')').map_or("", |(_, rest)| rest));
            let chunks = first.into_iter().chain(rest).flat_map(str::split_whitespace);
            for token in chunks.filter(|chunk| !is_path(chunk)).flat_map(tokens) {
                if let Some(word) = word(token).filter(|word| !words.contains(&**word)) {
                    let message = format!("{word:?}: not in crates/tidy/words.txt: correct it, or add it in its place");
                    found.push(violation("word", index + line, message));
                }
            }
        }
        index += part.matches('\n').count();
    }
    found
}

/// Leaves the doc comments of a Rust source, as Markdown on the lines where they are.
pub fn doc_comments(text: &str) -> String {
    let doc = |line: &str| {
        let line = line.trim_start();
        line.strip_prefix("///").or(line.strip_prefix("//!")).unwrap_or("").to_owned() + "\n"
    };
    text.lines().map(doc).collect()
}

/// Is this the path of a file, of a page or of an item?
fn is_path(chunk: &str) -> bool {
    chunk.trim_matches(|c: char| !c.is_alphanumeric()).contains(['/', '.', ':'])
}

fn tokens(chunk: &str) -> impl Iterator<Item = &str> {
    chunk.split(|c: char| !c.is_alphanumeric() && !['_', '\'', '’'].contains(&c))
}

/// The word to look up: names of code, numbers and single letters are none.
fn word(token: &str) -> Option<String> {
    let token = token.trim_matches(['\'', '’']);
    let token = token.strip_suffix("'s").or(token.strip_suffix("’s")).unwrap_or(token);
    let is_name =
        token.chars().enumerate().any(|(at, c)| !c.is_alphabetic() && c != '\'' || at > 0 && c.is_uppercase());
    (token.chars().count() > 1 && !is_name).then(|| token.to_lowercase())
}
