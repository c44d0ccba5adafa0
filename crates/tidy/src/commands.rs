//! Rules for the commands in pages: programs, options, and the names of what they run.

use std::collections::{BTreeMap, BTreeSet};

use super::{Violation, has_word, parts, violation};

/// The subcommands and options of one program, read from its sources.
#[derive(Debug, Default)]
pub struct Program {
    subcommands: BTreeMap<String, BTreeSet<String>>,
    options: BTreeSet<String>,
}

impl Program {
    /// Adds what a source declares for clap: variants of enums that derive `Subcommand`, and fields
    /// with `#[arg(long)]`.
    pub fn read(&mut self, source: &str) {
        let lines: Vec<&str> = source.lines().collect();
        let mut derived = false;
        let mut group: Option<String> = None;
        for (index, line) in lines.iter().enumerate() {
            if line.starts_with("#[derive(") {
                derived = line.contains("Subcommand");
            }
            if let Some(name) = line.strip_prefix("enum ").and_then(|rest| rest.split(' ').next())
                && derived
            {
                group = Some(name.to_owned());
                self.subcommands.entry(name.to_owned()).or_default();
            }
            if *line == "}" {
                group = None;
            }
            if let (Some(group), Some(variant)) = (&group, line.strip_prefix("    "))
                && variant.starts_with(|c: char| c.is_ascii_uppercase())
            {
                let end = variant.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(variant.len());
                self.subcommands.entry(group.clone()).or_default().insert(kebab(&variant[..end]));
            }
            if line.trim_start().starts_with("#[arg(") {
                self.read_option(&lines[index..]);
            }
        }
    }

    fn read_option(&mut self, lines: &[&str]) {
        let Some(end) = lines.iter().position(|line| line.trim_end().ends_with(")]") || line.contains(")] //")) else {
            return;
        };
        let attribute = lines[..=end].join(" ");
        if !has_word(&attribute, "long") {
            return;
        }
        let quoted = |key: &str| attribute.split(key).nth(1).and_then(|rest| rest.split('"').next());
        self.options.extend(quoted("alias = \"").map(str::to_owned));
        if let Some(name) = quoted("long = \"") {
            self.options.insert(name.to_owned());
            return;
        }
        let field = lines[end + 1..].iter().map(|line| line.trim_start()).find(|line| !line.starts_with(['#', '/']));
        if let Some((field, _)) = field.and_then(|field| field.split_once(':')) {
            let name = field.rsplit(' ').next().unwrap_or(field);
            self.options.insert(name.replace('_', "-"));
        }
    }

    /// Says what is wrong with the arguments of one command, if anything is.
    fn problem(&self, arguments: &[&str]) -> Option<String> {
        let mut names = arguments.iter().filter(|argument| !argument.starts_with('-'));
        let first = names.next().copied().unwrap_or("");
        let top = ["Command", "Experiment"].iter().find_map(|group| self.subcommands.get(*group))?;
        if !is_placeholder(first) && !top.contains(first) {
            return Some(format!("no subcommand {first:?}"));
        }
        let second = names.next().copied().unwrap_or("");
        if first == "bench"
            && !is_placeholder(second)
            && !self.subcommands.get("Workload").is_some_and(|names| names.contains(second))
        {
            return Some(format!("no workload {second:?}"));
        }
        let options = arguments.iter().filter_map(|argument| argument.strip_prefix("--"));
        let mut names = options.map(|option| option.split('=').next().unwrap_or(option));
        names
            .find(|option| !self.options.contains(*option) && !["help", "version"].contains(option))
            .map(|option| format!("no option --{option}"))
    }
}

/// What commands may name: packages, examples, tests, scripts, and values of some options.
#[derive(Debug, Default)]
pub struct Names {
    packages: BTreeMap<String, String>,
    files: BTreeSet<String>,
    functions: BTreeMap<String, BTreeSet<String>>,
    values: BTreeSet<String>,
}

/// Options whose values are names: strings in the code, or variants of an enum.
const NAMED: [&str; 9] =
    ["protocol", "only", "workload", "fabric", "faults", "kill", "mix", "deployment", "distribution"];

impl Names {
    /// Adds a file of the repository.
    pub fn read(&mut self, path: &str, text: &str) {
        self.files.insert(path.to_owned());
        let folder = path.splitn(3, '/').take(2).collect::<Vec<_>>().join("/");
        if path == format!("{folder}/Cargo.toml") {
            let name = text.lines().find_map(|line| line.strip_prefix("name = \"")?.strip_suffix('"'));
            self.packages.extend(name.map(|name| (name.to_owned(), folder.clone())));
        }
        if path.ends_with(".rs") {
            let name = |line: &str| Some(line.trim_start().split_once("fn ")?.1.split_once('(')?.0.to_owned());
            self.functions.entry(folder).or_default().extend(text.lines().filter_map(name));
        }
        if path.ends_with(".rs") && path.contains("/src/") {
            let variant = |line: &str| line.strip_prefix("    ").and_then(|line| line.strip_suffix(',')).map(kebab);
            self.values.extend(text.lines().filter_map(variant));
            self.values.extend(text.split('"').filter(|value| !value.contains(' ')).map(str::to_owned));
        }
    }

    /// Says which name of a command is not there.
    fn problem(&self, words: &[&str]) -> Option<String> {
        let is_there = |folder: &str, kind: &str, name: &str| {
            [".rs", "/main.rs"].iter().any(|end| self.files.contains(&format!("{folder}/{kind}/{name}{end}")))
        };
        let (program, arguments) = words.split_first()?;
        let mut examples = words.iter().filter_map(|word| word.strip_prefix("target/release/examples/"));
        let is_example = |name: &str| self.packages.values().any(|folder| is_there(folder, "examples", name));
        if let Some(name) = examples.find(|name| !is_example(name)) {
            return Some(format!("no example {name:?}"));
        }
        if program.starts_with(".ci/") && !self.files.contains(*program) {
            return Some(format!("no script {program:?}"));
        }
        let options = words.windows(2).filter_map(|pair| Some((pair[0].strip_prefix("--")?, pair[1])));
        let named = options.filter(|(option, value)| NAMED.contains(option) && !is_placeholder(value));
        for (option, value) in named.flat_map(|(option, values)| values.split(',').map(move |value| (option, value))) {
            if !self.values.contains(value) {
                return Some(format!("no {value:?} for --{option}"));
            }
        }
        if *program != "cargo" {
            return None;
        }
        let mut folders: Vec<&String> = self.packages.values().collect();
        let (mut verb, mut filter) = (None, None);
        let mut arguments = arguments.iter().take_while(|argument| **argument != "--");
        while let Some(&argument) = arguments.next() {
            match argument {
                "-p" | "--example" | "--test" | "--bin" | "--features" | "--root" | "--version" | "--git" => {
                    let name = arguments.next().copied().unwrap_or("");
                    match argument {
                        _ if is_placeholder(name) => {}
                        "-p" => match self.packages.get(name) {
                            Some(folder) => folders = vec![folder],
                            None => return Some(format!("no package {name:?}")),
                        },
                        "--example" | "--test" => {
                            folders.retain(|folder| is_there(folder, &format!("{}s", &argument[2..]), name));
                            if folders.is_empty() {
                                return Some(format!("no {} {name:?}", &argument[2..]));
                            }
                        }
                        _ => {}
                    }
                }
                option if option.starts_with('-') => {}
                word if verb.is_none() => verb = Some(word),
                word => filter = Some(word),
            }
        }
        let name = filter.filter(|name| verb == Some("test") && !is_placeholder(name))?;
        let last = name.rsplit("::").next().unwrap_or(name);
        let mut functions = folders.iter().filter_map(|folder| self.functions.get(*folder)).flatten();
        (!functions.any(|function| function.contains(last))).then(|| format!("no test {name:?}"))
    }
}

fn is_placeholder(name: &str) -> bool {
    !name.chars().any(|c| c.is_lowercase())
}

/// The commands of a page of Markdown, with their lines: those of `sh` blocks, and spans of code.
fn commands_of(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut index = 0;
    for (is_code, part) in parts(text) {
        if is_code && !part.starts_with("```") {
            found.push((index, part.trim_matches('`').replace('\n', " ")));
        } else if is_code && part.starts_with("```sh\n") {
            let mut command = String::new();
            for (at, line) in part.lines().enumerate().skip(1) {
                let line = line.split(" #").next().unwrap_or(line);
                command.push_str(line.trim_end_matches('\\'));
                if !line.ends_with('\\') {
                    found.push((index + at, std::mem::take(&mut command)));
                }
            }
        }
        index += part.matches('\n').count();
    }
    found
}

/// Checks the commands of a page of Markdown, in `sh` blocks and in spans of code. Options are
/// known for a program as a whole: an option of another subcommand passes.
pub fn commands(text: &str, remora: &Program, lab: &Program, names: &Names) -> Vec<Violation> {
    let mut found = Vec::new();
    for (index, command) in commands_of(text) {
        for part in command.split(['&', '|', ';', '\'']) {
            let is_variable = |word: &&str| {
                word.split('=').next().is_some_and(|name| name.len() < word.len() && is_placeholder(name))
            };
            let words: Vec<&str> = part.split_whitespace().skip_while(is_variable).collect();
            if let Some(problem) = names.problem(&words) {
                found.push(violation("command", index, format!("{problem}: correct the name")));
            }
            let program = |name: &str| words.iter().position(|word| *word == name);
            let (program, arguments) = match words[..] {
                ["cargo", "run", ..] => {
                    let Some(at) = program("--") else { continue };
                    if words.contains(&"--example") {
                        continue;
                    }
                    (if words[..at].contains(&"remora-lab") { lab } else { remora }, &words[at + 1..])
                }
                ["remora", ..] => (remora, &words[1..]),
                ["remora-lab", ..] => (lab, &words[1..]),
                _ => match (program("target/release/remora"), program("target/release/remora-lab")) {
                    (Some(at), _) => (remora, &words[at + 1..]),
                    (_, Some(at)) => (lab, &words[at + 1..]),
                    _ => continue,
                },
            };
            if let Some(problem) = program.problem(arguments) {
                let message = format!("{problem}: `--help` of the program has the names");
                found.push(violation("command", index, message));
            }
        }
    }
    found
}

fn kebab(name: &str) -> String {
    let mut out = String::new();
    for c in name.chars() {
        if c.is_ascii_uppercase() && !out.is_empty() {
            out.push('-');
        }
        out.push(c.to_ascii_lowercase());
    }
    out
}
