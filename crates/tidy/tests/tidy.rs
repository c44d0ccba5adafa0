//! The repository's own text keeps the rules of this crate, and each rule finds what breaks it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use remora_tidy::{Names, Program, Violation, compare, count, parse_ratchet};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Lists the text files of the repository, relative to its root, without files that builds make.
fn files() -> Vec<String> {
    fn walk(folder: &Path, relative: &str, into: &mut Vec<String>) {
        for entry in fs::read_dir(folder).unwrap() {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap();
            let path = if relative.is_empty() { name.clone() } else { format!("{relative}/{name}") };
            if entry.file_type().unwrap().is_dir() {
                if !["target", ".git", "corpus", "artifacts"].contains(&&*name) {
                    walk(&entry.path(), &path, into);
                }
            } else if [".rs", ".md", ".toml"].iter().any(|end| name.ends_with(end)) || path.starts_with(".ci/") {
                into.push(path);
            }
        }
    }
    let mut found = Vec::new();
    walk(&root(), "", &mut found);
    found.sort();
    found
}

fn program(folders: &[&str], files: &[String]) -> Program {
    let mut program = Program::default();
    for path in files.iter().filter(|path| path.ends_with(".rs") && folders.iter().any(|at| path.starts_with(at))) {
        program.read(&fs::read_to_string(root().join(path)).unwrap());
    }
    program
}

#[test]
fn the_repository_is_tidy() {
    let files = files();
    assert!(files.len() > 300, "only {} files found below {:?}", files.len(), root());
    let remora = program(&["crates/cli/src/", "crates/command/src/"], &files);
    let lab = program(&["crates/lab/src/bin/", "crates/command/src/"], &files);
    let read = |path: &String| fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"));
    let mut names = Names::default();
    files.iter().for_each(|path| names.read(path, &read(path)));
    let words = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("words.txt")).unwrap();
    let words = remora_tidy::parse_words(&words).unwrap();
    let mut found: BTreeMap<String, Vec<Violation>> = BTreeMap::new();
    for path in &files {
        let text = read(path);
        let all = found.entry(path.clone()).or_default();
        if path.ends_with(".rs") {
            all.extend(remora_tidy::spelling(&remora_tidy::doc_comments(&text), &words));
        }
        if path.starts_with("crates/tidy/") {
            continue; // this crate names what it bans
        }
        // Go's formatter indents by tabs. What another program has printed stays as it is.
        let is_go = path.ends_with(".go");
        let is_printed = path.starts_with(".ci/redis-suites/cli/");
        let bytes = remora_tidy::bytes(&text).into_iter();
        all.extend(bytes.filter(|found| !is_printed && (found.rule != "tab" || !is_go)));
        if path.ends_with(".rs") {
            all.extend(remora_tidy::comments(&text));
            all.extend(remora_tidy::calls(path, &text));
        }
        if path.ends_with(".md") {
            let folder = root().join(path).parent().unwrap().to_owned();
            let anchors_of = |file: &str| {
                let target = if file.is_empty() { root().join(path) } else { folder.join(file) };
                if target.extension().is_some_and(|end| end == "md") {
                    return fs::read_to_string(target).ok().map(|text| remora_tidy::anchors(&text));
                }
                target.exists().then(BTreeSet::new)
            };
            all.extend(remora_tidy::prose(&text));
            all.extend(remora_tidy::headings(&text));
            all.extend(remora_tidy::links(&text, &anchors_of));
            all.extend(remora_tidy::snippets(&text, &|source: &str| fs::read_to_string(root().join(source)).ok()));
            all.extend(remora_tidy::commands(&text, &remora, &lab, &names));
            all.extend(remora_tidy::spelling(&text, &words));
        }
        if path == "docs/SUMMARY.md" {
            let pages = files.iter().filter_map(|file| file.strip_prefix("docs/").filter(|page| page.ends_with(".md")));
            all.extend(remora_tidy::summary(&text, &pages.map(str::to_owned).collect::<Vec<_>>()));
        }
        if path == "README.md" {
            all.extend(remora_tidy::figures(&text));
        }
        if path == "docs/papers.md" {
            all.extend(remora_tidy::counts(&text));
        }
        if path == "ARCHITECTURE.md" {
            let crates: Vec<String> = files
                .iter()
                .filter_map(|file| file.strip_prefix("crates/")?.strip_suffix("/Cargo.toml"))
                .filter(|name| !name.contains('/'))
                .map(str::to_owned)
                .collect();
            all.extend(remora_tidy::map(&text, &crates));
        }
    }
    let place = Path::new(env!("CARGO_MANIFEST_DIR")).join("ratchet.txt");
    let old = fs::read_to_string(&place).ok().map(|text| parse_ratchet(&text).unwrap());
    let mut allowed = old.clone().unwrap_or_default();
    if std::env::var_os("REMORA_TIDY").is_some_and(|value| value == "update") {
        let now = count(&found);
        // Without the file there is nothing to compare with, so today's numbers are the beginning.
        let grown = old.map(|old| remora_tidy::grown(&now, &old)).unwrap_or_default();
        assert!(
            grown.is_empty(),
            "the numbers only shrink:\n{}\n{}",
            grown.join("\n"),
            compare(&found, &allowed).join("\n")
        );
        let head = "# rule, file, violations that are left. Numbers only shrink: see CONTRIBUTING.md.\n";
        let rows = now.iter().map(|((rule, path), count)| format!("{rule} {path} {count}\n"));
        fs::write(&place, head.to_owned() + &rows.collect::<String>()).unwrap();
        allowed = now;
    }
    let errors = compare(&found, &allowed);
    assert!(errors.is_empty(), "\n{}", errors.join("\n"));
}

/// Reads the sources of a crate, by module. Programs in `bin` are crates of their own.
fn sources(name: &str, files: &[String]) -> BTreeMap<String, String> {
    let folder = format!("crates/{name}/src/");
    let paths = files.iter().filter_map(|path| Some((path, path.strip_prefix(&folder)?.strip_suffix(".rs")?)));
    let modules = paths.filter(|(_, module)| !module.starts_with("bin/") && !module.ends_with("tests"));
    let module_of = |module: &str| match module.strip_suffix("/mod").unwrap_or(module) {
        "lib" | "main" => String::new(),
        module => module.replace('/', "::"),
    };
    modules.map(|(path, module)| (module_of(module), fs::read_to_string(root().join(path)).unwrap())).collect()
}

#[test]
fn files_use_each_other_in_no_other_circle() {
    let files = files();
    let crates = files.iter().filter_map(|path| path.strip_prefix("crates/")?.strip_suffix("/Cargo.toml"));
    let mut found = BTreeSet::new();
    for name in crates.filter(|name| !name.contains('/')) {
        let circles = remora_tidy::circles(&sources(name, &files));
        found.extend(circles.into_iter().map(|circle| (name.to_owned(), circle)));
    }
    let own = |files: &[&str]| files.iter().map(|file| (*file).to_owned()).collect::<BTreeSet<String>>();
    let allowed = remora_tidy::CIRCLES.iter().map(|(name, files)| ((*name).to_owned(), own(files)));
    assert_eq!(found, allowed.collect::<BTreeSet<_>>(), "move what two files share to a file below both");
}

#[test]
fn circles() {
    let found = |files: &[(&str, &str)]| -> Vec<String> {
        let files = files.iter().map(|(at, text)| ((*at).to_owned(), (*text).to_owned())).collect();
        let circles = remora_tidy::circles(&files).into_iter();
        circles.map(|circle| circle.into_iter().collect::<Vec<_>>().join(" ")).collect()
    };
    let root = ("", "mod a;\nmod b;\npub use a::A;\npub use b::{\n    B,\n};\n");
    let none = [""; 0];
    assert_eq!(found(&[root, ("a", "use crate::b::{self, B};\n"), ("b", "")]), none);
    assert_eq!(found(&[root, ("a", "use crate::b::B;\n"), ("b", "use super::{\n    a::A,\n};\n")]), ["a b"]);
    // A circle through a third file, and by names in the middle of the code.
    let third = ("c", "fn a(a: crate::a::A) {}\n");
    let second = ("b", "use crate::{c::C as D};\n");
    assert_eq!(found(&[root, ("a", "use crate::{b::B as C, E};\n"), second, third]), ["a b c"]);
    // A circle by names that the root re-exports.
    assert_eq!(found(&[root, ("a", "struct A(crate::B);\n"), ("b", "struct B(Box<crate::A>);\n")]), ["a b"]);
    // A re-export uses nothing. A folder and the file above it are one. Comments and tests do not
    // count.
    let other = ("b", "use crate::a::A;\n");
    assert_eq!(found(&[root, ("a", "pub use super::b::{\n    B,\n};\n"), other]), none);
    assert_eq!(found(&[root, ("a", "use crate::a::c::C;\n"), ("a::c", "use super::A;\n")]), none);
    let tests = "// crate::b::B\n#[cfg(test)]\nmod tests {\n    use crate::b;\n}\n";
    assert_eq!(found(&[root, ("a", tests), other]), none);
}

/// Every package that this machine builds by default has an allowed licence. With
/// `REMORA_LICENCES=all`, the test checks every package of the lock file, for all machines and
/// features.
#[test]
fn every_licence_is_allowed() {
    let deny = fs::read_to_string(root().join("deny.toml")).unwrap();
    let allowed = remora_tidy::allowed_licences(&deny);
    assert!(allowed.contains("MIT"), "deny.toml lists no licences: {allowed:?}");
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["tree", "--locked", "--offline", "--workspace", "--edges", "normal,build,dev", "--prefix", "none"]);
    cargo.args(["--format", "{p}|{l}"]).current_dir(root());
    if std::env::var("REMORA_LICENCES").is_ok_and(|value| value == "all") {
        cargo.args(["--all-features", "--target", "all"]);
    }
    let output = cargo.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let tree = String::from_utf8(output.stdout).unwrap();
    assert!(tree.lines().count() > 100, "{tree}");
    let forbidden = remora_tidy::forbidden_licences(&tree, &allowed);
    assert!(forbidden.is_empty(), "not allowed by deny.toml: {forbidden:#?}");
}

#[test]
fn licences() {
    let deny = "[graph]\nallow = [\"GPL-3.0\"]\n\n[licenses]\n# a comment\nallow = [\n    \"MIT\",\n    \"ISC\",\n]\n\n[bans]\n";
    let allowed = remora_tidy::allowed_licences(deny);
    assert_eq!(allowed, BTreeSet::from(["MIT".to_owned(), "ISC".to_owned()]));
    let refused = |licence: &str| !remora_tidy::forbidden_licences(&format!("a v1|{licence}\n\n"), &allowed).is_empty();
    for good in [
        "MIT",
        "MIT (*)",
        "GPL-3.0 OR MIT",
        "GPL-3.0/MIT",
        "MIT AND ISC",
        "(MIT OR GPL-3.0) AND ISC",
        "GPL-3.0 AND ISC OR MIT",
    ] {
        assert!(!refused(good), "{good}");
    }
    for bad in [
        "GPL-3.0",
        "",
        "MIT AND GPL-3.0",
        "MIT OR",
        "(MIT",
        "MIT ISC",
        "MIT WITH LLVM-exception",
        "(MIT OR ISC) AND GPL-3.0",
    ] {
        assert!(refused(bad), "{bad}");
    }
}

/// Asserts that a text breaks these rules, in this order.
#[track_caller]
fn breaks(found: Vec<Violation>, rules: &[&str]) {
    assert_eq!(found.iter().map(|one| one.rule).collect::<Vec<_>>(), rules, "{found:?}");
}

#[test]
fn bytes() {
    let check = remora_tidy::bytes;
    breaks(check("a\nb\n"), &[]);
    breaks(check("a \n"), &["trailing-blank"]);
    breaks(check("\ta\n"), &["tab"]);
    breaks(check("a"), &["last-line"]);
    breaks(check("<<<<<<< ours\n=======\n>>>>>>> theirs\n"), &["conflict-marker"; 3]);
    breaks(check("// TODO: a\n// FIXME\n// XXX\n"), &["leftover"; 3]);
    breaks(check("mktemp a.XXXXXX\n"), &[]);
}

#[test]
fn comments() {
    let check = remora_tidy::comments;
    breaks(check(&format!("// {}\n", "a".repeat(97))), &[]);
    breaks(check(&format!("// {}\n", "a".repeat(98))), &["comment-width"]);
    breaks(check(&format!("//! | {} |\n", "a".repeat(98))), &[]);
    breaks(check(&format!("{}\n", "a".repeat(110))), &[]);
    for opening in ["The same", "Of a lane", "Of the lane", "Its lane"] {
        breaks(check(&format!("/// {opening}.\n")), &["opening"]);
        breaks(check(&format!("//! {opening}.\n")), &["opening"]);
        breaks(check(&format!("/// A lane.\n/// {opening}.\n")), &[]);
        breaks(check(&format!("// {opening}.\n")), &[]);
    }
    for phrase in ["So many", "whoever", "nobody's", "Somebody", "those that"] {
        breaks(check(&format!("let a = 1; // {phrase} b\n")), &["phrase"]);
        breaks(check(&format!("let a = \"{phrase}\";\n")), &[]);
        breaks(remora_tidy::prose(&format!("A {phrase} b\n")), &["phrase"]);
        breaks(remora_tidy::prose(&format!("```\n{phrase}\n```\n")), &[]);
    }
}

#[test]
fn calls() {
    let check = |path, line: &str| remora_tidy::calls(path, &format!("{line}\n"));
    let library = "crates/txn/src/tx.rs";
    for call in ["SystemTime::now()", "Instant::now()", "rand::thread_rng()"] {
        breaks(check(library, call), &["call"]);
        breaks(check(library, &format!("// {call}")), &[]);
        breaks(check("crates/txn/tests/loom.rs", call), &[]);
    }
    breaks(check(remora_tidy::CLOCK_FILES[0], "Instant::now()"), &[]);
    for call in ["println!()", "eprintln!()", "print!()"] {
        breaks(check(library, call), &["print"]);
        breaks(check("crates/cli/src/main.rs", call), &[]);
    }
    for encoding in ["n.to_ne_bytes()", "u64::from_ne_bytes(n)"] {
        breaks(check(library, encoding), &["encoding"]);
        breaks(check(library, &format!("// {encoding}")), &[]);
        breaks(check("crates/txn/tests/loom.rs", encoding), &[]);
        breaks(check(remora_tidy::NATIVE_FILES[0], encoding), &[]);
    }
    for encoding in ["n.to_le_bytes()", "u64::from_le_bytes(n)"] {
        breaks(check(library, encoding), &[]);
    }
    breaks(check(library, "unsafe { a() }"), &["unsafe"]);
    breaks(check(library, "#![forbid(unsafe_code)]"), &[]);
    breaks(check(remora_tidy::UNSAFE_FILES[0], "unsafe { a() }"), &[]);
    breaks(check("crates/fabric/src/sim/clock.rs", "a: HashMap<u8, u8>"), &["hash-order"]);
    breaks(check("crates/fabric/src/sim/clock.rs", "a: BTreeMap<u8, u8>"), &[]);
    breaks(check(library, "a: HashMap<u8, u8>"), &[]);
}

#[test]
fn pages() {
    breaks(remora_tidy::headings("# A\n```sh\n# a comment\n```\n## B\n"), &[]);
    breaks(remora_tidy::headings("# A\n# B\n"), &["heading"]);
    breaks(remora_tidy::headings("## A\n"), &["heading"]);
    let anchors_of = |file: &str| (file == "a.md").then(|| remora_tidy::anchors("# The `A`, b\n"));
    breaks(remora_tidy::links("[a](a.md#the-a-b) [b](https://b)\n", &anchors_of), &[]);
    breaks(remora_tidy::links("[a](a.md#the-b)\n[b](b.md)\n", &anchors_of), &["link"; 2]);
    let crates = ["a".to_owned(), "b".to_owned()];
    breaks(remora_tidy::map("| `crates/a` | A |\n| `crates/b` | B |\n", &crates), &[]);
    breaks(remora_tidy::map("| `crates/a` | A |\n", &crates), &["map"]);
}

#[test]
fn counts() {
    let rows = "## A\n| what | section | state | code |\n| --- | --- | --- | --- |\n| a | 1 | real | b |\n| c | 2 | not yet | |\n";
    let check = |lines: &str| {
        remora_tidy::counts(&format!("| text | rows | real | not yet |\n| --- | ---: | ---: | ---: |\n{lines}\n{rows}"))
    };
    breaks(check("| A | 2 | 1 | 1 |\n| all | 2 | 1 | 1 |\n"), &[]);
    breaks(check("| A | 2 | 2 | 0 |\n| all | 2 | 1 | 1 |\n"), &["counts"; 2]);
    breaks(check("| A | 2 | 1 | 1 |\n| all | 3 | 1 | 1 |\n"), &["counts"]);
    breaks(check("| all | 2 | 1 | 1 |\n"), &["counts"; 3]);
    breaks(remora_tidy::counts(&rows.replace("real", "rael")), &["counts"; 6]);
}

#[test]
fn snippets() {
    let source_of =
        |path: &str| (path == "a.rs").then(|| "fn a() {\n    b();\n}\n\nfn c() {\n    d();\n}\n".to_owned());
    let check = |lines: &str| remora_tidy::snippets(&format!("A\n```rust,ignore\n{lines}```\n`b`\n"), &source_of);
    breaks(check("// a.rs\nfn a() {\n    b();\n}\n\nfn c() {\n"), &[]);
    breaks(check("// a.rs\nfn a() { /* elided */ }\n/* elided */\n    d();\n    /* elided */\n"), &[]);
    breaks(check("// a.rs\nfn a() { .. }\n"), &["snippet"]);
    breaks(check("// a.rs\nfn b() { /* elided */ }\n"), &["snippet"]);
    breaks(check("// a.rs\nfn c() {\nfn a() {\n"), &["snippet"]);
    breaks(check("// b.rs\nfn a() {\n"), &["snippet"]);
    breaks(check("fn a() {\n"), &["snippet"]);
    breaks(remora_tidy::snippets("```rust\nfn e() {}\n```\n", &source_of), &[]);
}

#[test]
fn commands() {
    let mut remora = Program::default();
    remora.read(
        "#[derive(Debug, Subcommand)]\nenum Command {\n    Bench {\n    },\n    Status(S),\n}\n\
         #[derive(Subcommand)]\nenum Workload {\n    TpccNo(T),\n}\n\
         struct S {\n    #[arg(long, visible_alias = \"to\")]\n    pub(crate) key_file: A,\n    #[arg(long = \"b\")]\n    c: B,\n}\n",
    );
    let mut names = Names::default();
    names.read("crates/a/Cargo.toml", "[package]\nname = \"remora-a\"\n");
    names.read("crates/b/Cargo.toml", "[package]\nname = \"remora-b\"\n");
    names.read("crates/a/examples/grow.rs", "fn main() {}\n");
    names.read("crates/b/examples/large/main.rs", "fn main() {}\n");
    names.read("crates/b/tests/seeds.rs", "mod small {\n    fn a_seed_is_kept() {}\n}\n");
    names.read("crates/b/src/lib.rs", "const NAME: &str = \"drtm-h\";\nenum Fault {\n    ClockStep,\n}\n");
    names.read(".ci/run", "");
    let check = |text: &str| remora_tidy::commands(text, &remora, &Program::default(), &names);
    for good in [
        "remora status --key-file a --b=1 --to x  # --none",
        "remora bench tpcc-no \\\n  --b",
        "remora bench NAME",
        "cargo run -- status",
        "other status --none",
        "cargo run --release -p remora-a --example grow -- 7",
        "cargo run -p remora-b --example large",
        "A=1 cargo test --locked -p remora-b --test seeds small::a_seed -- --nocapture",
        "cargo test --test NAME --features verbs",
        "chrt -r 1 target/release/examples/grow",
        ".ci/run 10",
        "other --protocol drtm-h --faults drtm-h,clock-step --workload NAME",
    ] {
        breaks(check(&format!("```sh\n{good}\n```\n")), &[]);
        breaks(check(&format!("Run `{}`.\n", good.replace("\\\n", "\n").replace("  # --none", ""))), &[]);
    }
    for bad in [
        "remora stat",
        "remora status --c 1",
        "remora bench tpcc",
        "remora status \\\n  --none",
        "cargo run -- status --none",
        "a & remora stat",
        "valgrind target/release/remora stat",
        "cargo run -p remora-a --example large",
        "cargo build --example small",
        "cargo test -p remora-c",
        "cargo test -p remora-a --test seeds",
        "cargo test -p remora-b a_seed_is_lost",
        "target/release/examples/small",
        "A=1 .ci/walk",
        "other --protocol drtm-i",
        "--faults clock-step,clock-stop",
    ] {
        breaks(check(&format!("```sh\n{bad}\n```\n")), &["command"]);
        breaks(check(&format!("Run `{}`.\n", bad.replace("\\\n", "\n"))), &["command"]);
    }
    breaks(check("```text\nremora stat\n```\n"), &[]);
}

#[test]
fn the_summary_names_each_page_once() {
    let pages = ["SUMMARY.md", "README.md", "book/a.md"].map(str::to_owned);
    let check = |lines: &str| remora_tidy::summary(lines, &pages);
    breaks(check("# S\n[The book](README.md)\n- [Ideas]()\n  - [A](book/a.md)\n"), &[]);
    breaks(check("[The book](README.md)\n"), &["summary"]);
    breaks(check("[The book](README.md)\n- [A](book/a.md)\n- [B](book/a.md)\n"), &["summary"]);
    breaks(check("[The book](README.md)\n- [A](book/a.md)\n- [B](book/b.md)\n"), &["summary"]);
}

#[test]
fn figures_have_a_command_and_a_date() {
    let check = |row: &str| {
        let head = "| what | figure | command | version of |\n| --- | --- | --- | --- |\n";
        remora_tidy::figures(&format!("# A\n| a | b |\n## Figures\n{head}{row}\n## More\n| a | b |\n"))
    };
    breaks(check("| a `b` | 7 ms | `remora bench micro` | 2026-11-21 |"), &[]);
    breaks(check("| a `b` | 7 ms | as above | 2026-11-21 |"), &["figure"]);
    breaks(check("| a | 7 ms | `remora bench micro` | yesterday |"), &["figure"]);
    breaks(check("| a | 7 ms |"), &["figure"; 2]);
}

#[test]
fn words() {
    let words = remora_tidy::parse_words("client\nclients\ndoesn't\nlease\nsided\n").unwrap();
    let check = |text: &str| remora_tidy::spelling(text, &words);
    for good in [
        "Client, (lease) *lease*: client's clients' doesn't.",
        "[client](beahviour.md#beahviour) https://beahviour.org beahviour::lease beahviour.rs, a/beahviour",
        "x CAS READs BeaHviour p99 on_beahviour",
        "`beahviour` ``a ` beahviour`` `over\nbeahviour`",
        "```sh\nbeahviour\n```\nlease\n",
    ] {
        breaks(check(good), &[]);
    }
    for bad in ["beahviour", "client-beahviour's", "[beahviour](a.md)", "`a` beahviour `b`", "` beahviour", "Beahviour"]
    {
        breaks(check(bad), &["word"]);
    }
    let found = check("client\n```\na\n```\n`a\nb` lease\nbeahviour\n");
    assert_eq!(found[0].line, 7, "{found:?}");
    assert!(found[0].message.contains("correct it, or add it in its place"));
    let source = "//! client\n// beahviour\n/// lease\n/// `\nlet beahviour = 1; // beahviour\n    /// beahviour`\n";
    let found = check(&remora_tidy::doc_comments(source));
    assert_eq!(found.iter().map(|one| one.line).collect::<Vec<_>>(), [6], "{found:?}");
    for bad in ["b\na\n", "a\na\n", "A\n", "a b\n"] {
        assert!(remora_tidy::parse_words(bad).is_err(), "{bad:?}");
    }
}

#[test]
fn links_lead_out_of_the_book() {
    let there = "https://github.com/remora-db/remora/blob/main/";
    let check = |page: &str, text: &str, expected: &str| {
        assert_eq!(remora_tidy::lead_out(page, text), expected.replace("THERE/", there), "{page}");
    };
    check("a.md", "[a](../README.md), [b](b.md)", "[a](THERE/README.md), [b](b.md)");
    check("book/a.md", "[a](../../crates/a/src/b.rs)\n[b](../b.md#c)", "[a](THERE/crates/a/src/b.rs)\n[b](../b.md#c)");
    check("book/a.md", "[a](../../README.md#b-c)", "[a](THERE/README.md#b-c)");
    check("book/a.md", "[a](../../docs/b.md) [c](#d) [e]()", "[a](../../docs/b.md) [c](#d) [e]()");
    check("a.md", "![a](../img/a.svg \"A\") ![b](img/b.svg)", "![a](THERE/img/a.svg \"A\") ![b](img/b.svg)");
    check("a.md", "[`a`](../b.rs) `[a](../b.rs)`", "[`a`](THERE/b.rs) `[a](../b.rs)`");
    check("book/a.md", "[a](../README.md#b) [c](../d/README.md)", "[a](../index.md#b) [c](../d/index.md)");
    check("README.md", "[a](SUMMARY.md)", "[a](THERE/docs/SUMMARY.md)");
    let code = "```text\n[a](../b.rs)\n```\n";
    check("a.md", &format!("{code}[c](../d.rs)\n"), &format!("{code}[c](THERE/d.rs)\n"));
    check("a.md", "[a](https://b/../c) [d](mailto:e) [f](../../g)", "[a](https://b/../c) [d](mailto:e) [f](../../g)");

    // As mdBook hands them over: a part without a file, and chapters below a chapter.
    let text = r#"{"sections": ["Separator", {"Chapter": {"name": "A", "content": "", "path": null, "sub_items": [
        {"Chapter": {"name": "B", "content": "[c](../../d.rs)", "path": "book/b.md", "sub_items": []}}]}}]}"#;
    let mut book = serde_json::from_str(text).unwrap();
    remora_tidy::lead_out_of_all(&mut book);
    let nested = &book["sections"][1]["Chapter"]["sub_items"][0]["Chapter"];
    assert_eq!(nested["content"], format!("[c]({there}d.rs)"));
    assert_eq!(nested["name"], "B");
}

#[test]
fn the_ratchet_only_shrinks() {
    let allowed = parse_ratchet("# a comment\nphrase a.rs 2\n").unwrap();
    let found = |times: usize| {
        let one = Violation { rule: "phrase", line: 7, message: "a phrase".to_owned() };
        BTreeMap::from([("a.rs".to_owned(), vec![one; times])])
    };
    assert!(compare(&found(2), &allowed).is_empty());
    let more = compare(&found(3), &allowed);
    assert!(more.iter().any(|line| line.contains("a.rs:7: a phrase")), "{more:?}");
    let fewer = compare(&found(1), &allowed);
    assert!(fewer.iter().any(|line| line.contains("lower the number")), "{fewer:?}");
    assert!(!compare(&BTreeMap::new(), &allowed).is_empty());
    let moved = |count| parse_ratchet(&format!("phrase b.rs {count}\n")).unwrap();
    assert!(remora_tidy::grown(&moved(2), &allowed).is_empty());
    assert_eq!(remora_tidy::grown(&moved(3), &allowed).len(), 1);
    assert!(parse_ratchet("phrase a.rs\n").is_err() && parse_ratchet("phrase a.rs many\n").is_err());
}
