//! Rules for the repository's own text. Each rule is a function from a text to its violations.
//!
//! `tests/tidy.rs` applies all rules to all files. It compares the number of violations of each
//! file with `ratchet.txt`, so that a number can only shrink.
#![forbid(unsafe_code)]

mod book;
mod circles;
mod commands;
mod counts;
mod licences;
mod words;

use std::collections::{BTreeMap, BTreeSet};

pub use book::{figures, lead_out, lead_out_of_all, summary};
pub use circles::{CIRCLES, circles};
pub use commands::{Names, Program, commands};
pub use counts::counts;
pub use licences::{allowed_licences, forbidden_licences};
pub use words::{doc_comments, parse_words, spelling};

/// One place in one file that breaks a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The name of the rule, as in `ratchet.txt`.
    pub rule: &'static str,
    /// The line, counted from 1.
    pub line: usize,
    /// What is wrong, and what to write instead.
    pub message: String,
}

fn violation(rule: &'static str, index: usize, message: impl Into<String>) -> Violation {
    Violation { rule, line: index + 1, message: message.into() }
}

const COMMENT_COLUMNS_MAX: usize = 100;

/// Openings of doc comments that rely on a neighbouring comment, which rustdoc does not show.
const OPENINGS: [&str; 4] = ["The same", "Of a ", "Of the ", "Its "];

const PHRASES: [(&str, &str); 5] = [
    ("so many", "write \"n\" or \"at most n\""),
    ("whoever", "name the actor: the client, the controller, the primary"),
    ("nobody's", "name what has no owner"),
    ("somebody", "name the actor: the client, the controller, the primary"),
    ("those that", "repeat the noun"),
];

const CALLS: [(&str, &str, &[&str]); 3] = [
    ("SystemTime::now", "use the lane's clock: `lane.now()`", CLOCK_FILES),
    ("Instant::now", "use the lane's clock: `lane.now()`", CLOCK_FILES),
    ("thread_rng", "use the lane's random numbers, or `Prng` with a seed", &[]),
];

/// Sources that may read a clock of the machine: backends, helper threads, and code that measures
/// real time.
pub const CLOCK_FILES: &[&str] = &[
    "crates/membership/src/etcd/present.rs",
    "crates/membership/src/file.rs",
    "crates/remora/src/cluster/catalog.rs",
    "crates/remora/src/cluster/connect.rs",
    "crates/remora/src/cluster/epoch.rs",
    "crates/remora/src/pool.rs",
    "crates/fabric/src/conformance/failure.rs",
    "crates/fabric/src/conformance/rounds.rs",
    "crates/fabric/src/shm/files.rs",
    "crates/fabric/src/tcp.rs",
    "crates/fabric/src/tcp/cluster.rs",
    "crates/fabric/src/tcp/exchange.rs",
    "crates/fabric/src/tcp/names.rs",
    "crates/fabric/src/tcp/stream.rs",
    "crates/fabric/src/tcp/transport.rs",
    "crates/lab/src/cluster.rs",
    "crates/lab/src/litmus.rs",
    "crates/lab/src/reproduce/latches.rs",
    "crates/lab/src/reproduce/xstore.rs",
    "crates/workload/src/driver.rs",
    "crates/workload/src/guestbook.rs",
    "crates/workload/src/micro.rs",
    "crates/workload/src/micro/verbs.rs",
    "crates/workload/src/simulated.rs",
    "crates/gateway/src/clock.rs",
];

/// Encodings in the machine's order of bytes. Memory, files and messages must be the same on all
/// machines. `clippy.toml` bans the encodings whose length depends on the machine.
const ENCODINGS: [&str; 2] = ["to_ne_bytes", "from_ne_bytes"];

/// Sources that may use the machine's order of bytes. `poller.rs` passes bytes to the operating
/// system, and `ring.rs` reads the bytes of a memory node as words.
pub const NATIVE_FILES: &[&str] = &["crates/fabric/src/poller.rs", "crates/node/src/ring.rs"];

/// Sources that may contain `unsafe`.
pub const UNSAFE_FILES: &[&str] = &[
    "crates/fabric/src/prefetch.rs",
    "crates/fabric/src/region.rs",
    "crates/fabric/src/rdma/present/device.rs",
    "crates/fabric/src/rdma/present/queue.rs",
    "crates/fabric/tests/counting_allocator/mod.rs",
];

/// Sources of the simulators that may have a hash map. They look it up by key, sort its keys, or
/// drop entries, so its order has no effect.
pub const HASH_FILES: &[&str] = &["crates/fabric/src/seeded/explore.rs", "crates/fabric/src/sim/faults.rs"];

/// Checks the bytes of any text file: blanks, tabs, the last line, leftovers, conflict markers.
pub fn bytes(text: &str) -> Vec<Violation> {
    let mut found = Vec::new();
    for (index, line) in text.lines().enumerate() {
        if line.ends_with([' ', '\t']) {
            found.push(violation("trailing-blank", index, "a blank at the end of the line: delete it"));
        }
        if line.contains('\t') {
            found.push(violation("tab", index, "a tab: write blanks"));
        }
        if ["<<<<<<< ", ">>>>>>> "].iter().any(|marker| line.starts_with(marker)) || line == "=======" {
            found.push(violation("conflict-marker", index, "a conflict marker: finish the merge"));
        }
        for word in ["FIXME", "TODO", "XXX"] {
            if has_word(line, word) {
                found.push(violation("leftover", index, format!("{word}: do it, or file an issue, and delete this")));
            }
        }
    }
    if !text.is_empty() && !text.ends_with('\n') {
        let last = text.lines().count() - 1;
        found.push(violation("last-line", last, "the file does not end with a newline: add one"));
    }
    found
}

/// Checks the comments of a Rust source: their width, their openings, their words.
pub fn comments(text: &str) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut before = "";
    for (index, line) in text.lines().enumerate() {
        let trimmed = line.trim_start();
        let columns = line.chars().count();
        // A row of a table cannot be broken.
        let is_row = trimmed.trim_start_matches(['/', '!']).trim_start().starts_with('|');
        if trimmed.starts_with("//") && !is_row && columns > COMMENT_COLUMNS_MAX {
            let message = format!("a comment of {columns} columns: break it at {COMMENT_COLUMNS_MAX}");
            found.push(violation("comment-width", index, message));
        }
        let mark = ["///", "//!"].into_iter().find(|mark| trimmed.starts_with(mark)).unwrap_or("");
        if !mark.is_empty() && mark != before {
            let sentence = trimmed[mark.len()..].trim_start();
            for opening in OPENINGS.iter().filter(|opening| sentence.starts_with(**opening)) {
                let message = format!(
                    "a doc comment that begins with {opening:?}: say what the thing does or is, without its neighbours"
                );
                found.push(violation("opening", index, message));
            }
        }
        before = mark;
        if let Some(at) = comment_start(line) {
            phrases_of_line(&line[at..], index, &mut found);
        }
    }
    found
}

/// Checks the words of a page of Markdown outside its code blocks.
pub fn prose(text: &str) -> Vec<Violation> {
    let mut found = Vec::new();
    for (index, line) in outside_fences(text) {
        phrases_of_line(line, index, &mut found);
    }
    found
}

fn phrases_of_line(line: &str, index: usize, found: &mut Vec<Violation>) {
    let lower = line.to_lowercase();
    for (phrase, instead) in PHRASES {
        for _ in 0..count_words(&lower, phrase) {
            found.push(violation("phrase", index, format!("{phrase:?}: {instead}")));
        }
    }
}

/// Checks the code of a Rust source for banned calls. `path` is relative to the repository.
pub fn calls(path: &str, text: &str) -> Vec<Violation> {
    let mut found = Vec::new();
    let library = is_library(path);
    for (index, line) in text.lines().enumerate() {
        let code = &line[..comment_start(line).unwrap_or(line.len())];
        for (call, instead, files) in CALLS {
            if library && !files.contains(&path) && code.contains(call) {
                found.push(violation("call", index, format!("`{call}`: {instead}")));
            }
        }
        if library && ["println!", "eprintln!", "print!", "eprint!"].iter().any(|call| has_word(code, call)) {
            found.push(violation("print", index, "a library prints: return the text, or use `tracing`"));
        }
        let is_of_machine = ENCODINGS.iter().any(|call| code.contains(call));
        if is_of_machine && path.contains("/src/") && !NATIVE_FILES.contains(&path) {
            let message = "an encoding in the machine's order of bytes: write `to_le_bytes`";
            found.push(violation("encoding", index, message));
        }
        if has_word(code, "unsafe") && !UNSAFE_FILES.contains(&path) {
            found.push(violation("unsafe", index, "`unsafe`: use what crates/fabric/src/region.rs offers"));
        }
        let simulator = path.starts_with("crates/fabric/src/sim") || path.starts_with("crates/fabric/src/seeded");
        let hash = has_word(code, "HashMap") || has_word(code, "HashSet");
        if simulator && hash && !HASH_FILES.contains(&path) {
            let message =
                "a hash map in a simulator, whose order differs from run to run: use `BTreeMap` or `BTreeSet`";
            found.push(violation("hash-order", index, message));
        }
    }
    found
}

/// Returns whether this is a source of a library, and not of its tests. The two commands may print,
/// and `remora-command` prints for them.
fn is_library(path: &str) -> bool {
    let commands = ["crates/cli/", "crates/command/", "crates/lab/src/bin/"];
    path.contains("/src/") && !path.ends_with("/tests.rs") && !commands.iter().any(|at| path.starts_with(at))
}

/// Checks that a page of Markdown has one heading of the first level.
pub fn headings(text: &str) -> Vec<Violation> {
    let first: Vec<usize> =
        outside_fences(text).filter(|(_, line)| line.starts_with("# ")).map(|(index, _)| index).collect();
    match first[..] {
        [_] => Vec::new(),
        [] => vec![violation("heading", 0, "no heading of the first level: begin with `# `")],
        [_, ref more @ ..] => more
            .iter()
            .map(|&index| violation("heading", index, "another heading of the first level: write `## `"))
            .collect(),
    }
}

/// Checks relative links. `anchors_of` returns the anchors of a file, or `None` if there is no such
/// file.
pub fn links(text: &str, anchors_of: &dyn Fn(&str) -> Option<BTreeSet<String>>) -> Vec<Violation> {
    let mut found = Vec::new();
    for (index, line) in outside_fences(text) {
        for rest in line.split("](").skip(1) {
            let Some(target) = rest.split(')').next() else { continue };
            if target.contains("://") || target.starts_with("mailto:") {
                continue;
            }
            let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
            match anchors_of(file) {
                None => found.push(violation("link", index, format!("no file {file:?}: correct the link"))),
                Some(anchors) if !anchor.is_empty() && !anchors.contains(anchor) => {
                    found.push(violation("link", index, format!("no heading #{anchor} there: correct the link")));
                }
                Some(_) => {}
            }
        }
    }
    found
}

/// Returns the anchors of a page of Markdown: its headings, as GitHub spells them.
pub fn anchors(text: &str) -> BTreeSet<String> {
    outside_fences(text)
        .filter(|(_, line)| line.starts_with('#'))
        .map(|(_, line)| {
            let title = line.trim_start_matches('#').trim().to_lowercase();
            title.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c)).collect::<String>().replace(' ', "-")
        })
        .collect()
}

/// Checks that the map in ARCHITECTURE.md has a row for each crate.
pub fn map(architecture: &str, crates: &[String]) -> Vec<Violation> {
    crates
        .iter()
        .filter(|name| !architecture.contains(&format!("| `crates/{name}` |")))
        .map(|name| violation("map", 0, format!("no row for `crates/{name}` in the map: add it")))
        .collect()
}

/// What stands for left-out text in a block of Rust: for lines, or for the rest of a line.
const ELIDED: &str = "/* elided */";

/// Checks the blocks of Rust in a page of Markdown that no compiler reads (`rust,ignore`). Their
/// first line names a source in a comment. Each other line must be in that source, in the same
/// order, unless it is marked as elided. `source_of` returns the text of a source.
pub fn snippets(text: &str, source_of: &dyn Fn(&str) -> Option<String>) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut lines = text.lines().enumerate();
    while lines.any(|(_, line)| line == "```rust,ignore") {
        let Some((index, first)) = lines.next() else { break };
        let Some(source) = first.strip_prefix("// ").and_then(source_of) else {
            found.push(violation("snippet", index, "begin the block with the path of its source: `// crates/..`"));
            continue;
        };
        let mut source = source.lines();
        for (index, line) in lines.by_ref().take_while(|(_, line)| *line != "```") {
            let (kept, is_elided) = line.split_once(ELIDED).map_or((line, false), |(kept, _)| (kept, true));
            let is_it = |of: &str| if is_elided { of.starts_with(kept.trim_end()) } else { of == kept };
            let before = source.clone();
            if !kept.trim().is_empty() && !source.any(is_it) {
                source = before;
                found.push(violation(
                    "snippet",
                    index,
                    format!("{kept:?} is not there in {}: correct it", &first[3..]),
                ));
            }
        }
    }
    found
}

/// Returns the lines of a page of Markdown that are in no fenced block, with their indices.
fn outside_fences(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut inside = false;
    text.lines().enumerate().filter(move |(_, line)| {
        let fence = line.trim_start().starts_with("```");
        inside ^= fence;
        !inside && !fence
    })
}

/// Cuts a page of Markdown into prose and code (`true`): fenced blocks, and spans in backticks.
fn parts(text: &str) -> Vec<(bool, &str)> {
    let is_fence = |line: &str| line.trim_start_matches(' ').starts_with("```");
    let (mut found, mut prose, mut at) = (Vec::new(), 0, 0);
    while let Some(step) = text[at..].find('`') {
        at += step;
        let line = text[..at].rfind('\n').map_or(0, |end| end + 1);
        let rest = &text[at..];
        let run = rest.len() - rest.trim_start_matches('`').len();
        let length = if is_fence(&text[line..]) {
            let mut lines = rest.split_inclusive('\n');
            let first = lines.next().map_or(0, str::len);
            let mut open = true;
            let inside = lines.take_while(|line| std::mem::replace(&mut open, !is_fence(line)));
            Some(first + inside.map(str::len).sum::<usize>())
        } else {
            // A span ends within its paragraph.
            let paragraph = rest.split("\n\n").next().unwrap_or(rest);
            let mut from = run;
            loop {
                let Some(next) = paragraph[from..].find('`') else { break None };
                let closing = &paragraph[from + next..];
                let length = closing.len() - closing.trim_start_matches('`').len();
                from += next + length;
                if length == run {
                    break Some(from);
                }
            }
        };
        let Some(length) = length else {
            at += run;
            continue;
        };
        found.extend([(false, &text[prose..at]), (true, &text[at..at + length])]);
        at += length;
        prose = at;
    }
    found.push((false, &text[prose..]));
    found
}

/// Where a line's comment begins. Two slashes behind a quote or a colon may be part of a string.
fn comment_start(line: &str) -> Option<usize> {
    let at = line.find("//")?;
    let before = &line[..at];
    (before.trim().is_empty() || (before.ends_with(' ') && before.matches('"').count().is_multiple_of(2))).then_some(at)
}

fn has_word(line: &str, word: &str) -> bool {
    count_words(line, word) > 0
}

fn count_words(line: &str, word: &str) -> usize {
    let part = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word)
        .filter(|(at, _)| {
            let ends = word.ends_with('!') || !line[at + word.len()..].starts_with(part);
            ends && !line[..*at].ends_with(part)
        })
        .count()
}

/// Says which rules have more violations in all files together than before. Files may be moved.
pub fn grown(now: &Counts, allowed: &Counts) -> Vec<String> {
    let total = |counts: &Counts, rule: &str| -> usize {
        counts.iter().filter(|((of, _), _)| of == rule).map(|(_, count)| count).sum()
    };
    let rules: BTreeSet<&String> = now.keys().map(|(rule, _)| rule).collect();
    let grown = rules.into_iter().filter(|rule| total(now, rule) > total(allowed, rule));
    grown.map(|rule| format!("{rule:?}: {} violations, {} allowed", total(now, rule), total(allowed, rule))).collect()
}

/// Numbers of violations by rule and file.
pub type Counts = BTreeMap<(String, String), usize>;

/// Reads a ratchet: a line for each rule and file, `rule path count`.
pub fn parse_ratchet(text: &str) -> Result<Counts, String> {
    let rows = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    rows.map(|line| match line.split(' ').collect::<Vec<_>>()[..] {
        [rule, path, count] => count
            .parse()
            .map(|count| ((rule.to_owned(), path.to_owned()), count))
            .map_err(|_| format!("ratchet.txt: {line:?}: the last word must be a number")),
        _ => Err(format!("ratchet.txt: {line:?}: write `rule path count`")),
    })
    .collect()
}

/// Compares the violations that were found with the allowed numbers. Fewer violations are an error
/// too, because the number must be lowered.
pub fn compare(found: &BTreeMap<String, Vec<Violation>>, allowed: &Counts) -> Vec<String> {
    let now = count(found);
    let mut errors = Vec::new();
    for key in now.keys().chain(allowed.keys()).collect::<BTreeSet<_>>() {
        let (rule, path) = key;
        let (now, allowed) = (now.get(key).copied().unwrap_or(0), allowed.get(key).copied().unwrap_or(0));
        if now > allowed {
            errors.push(format!("{path}: {now} violations of {rule:?}, {allowed} allowed:"));
            for one in found[path].iter().filter(|one| one.rule == rule) {
                errors.push(format!("  {path}:{}: {}", one.line, one.message));
            }
        } else if now < allowed {
            errors.push(format!(
                "{path}: {now} violations of {rule:?}, fewer than the {allowed} in crates/tidy/ratchet.txt: \
                 lower the number (REMORA_TIDY=update does)"
            ));
        }
    }
    errors
}

/// Counts violations by rule and file.
pub fn count(found: &BTreeMap<String, Vec<Violation>>) -> Counts {
    let mut counts = Counts::new();
    for (path, all) in found {
        for one in all {
            *counts.entry((one.rule.to_owned(), path.clone())).or_default() += 1;
        }
    }
    counts
}
