//! Output that cannot be written.

use std::fs::{self, File};
use std::process::{Command, Output, Stdio};

use crate::support::{Node, scratch, words};

const SMALL: &str = "bench smallbank --threads 1 --accounts 100 --transactions 100";

/// A history of two transactions. The later one reads a version that the earlier one has
/// overwritten.
const STALE: &str = r#"{"id":1,"worker":0,"start_ns":1,"end_ns":2,"status":"committed","reads":[["t","01",2]],"writes":[["t","01",4,"update"]]}
{"id":2,"worker":0,"start_ns":10,"end_ns":20,"status":"committed","reads":[["t","01",2]],"writes":[]}
"#;

/// Runs the command with this standard output.
fn remora(line: &str, output: impl Into<Stdio>) -> Output {
    let command = Command::new(env!("CARGO_BIN_EXE_remora")).args(words(line)).stdout(output).output();
    command.expect("the command has been built")
}

fn full() -> File {
    File::options().write(true).open("/dev/full").expect("a device that is always full")
}

/// The writing end of a pipe that no process reads.
fn closed() -> Stdio {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    writer.into()
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Returns command lines that each show something and end. Only the first one writes a file.
fn showing(test: &str) -> Vec<String> {
    let key = scratch(&format!("{test}.key"));
    let _ = fs::remove_file(&key); // of an earlier run
    let history = scratch(&format!("{test}.jsonl"));
    fs::write(&history, STALE.lines().next().unwrap()).unwrap();
    let node = scratch(&format!("{test}.node"));
    let _ = fs::remove_file(&node);
    vec![
        format!("keygen {}", key.display()),
        format!("check {}", history.display()),
        SMALL.to_owned(),
        format!("{SMALL} --report -"),
        "bench micro --kind read --seconds 0.02".to_owned(),
        format!("memnode --shm {} --size 8MiB", node.display()),
        "memnode --listen 127.0.0.1:0 --size 8MiB".to_owned(),
        "--help".to_owned(),
        "bench --help".to_owned(),
        "--version".to_owned(),
    ]
}

#[test]
fn what_cannot_be_shown_is_an_error() {
    let node = Node::listen("output-full", "");
    let status = format!("status --connect {}", node.address());
    for line in showing("output-full").iter().chain([&status, &format!("{status} --report -")]) {
        let output = remora(line, full());
        let errors = errors(&output);
        assert_eq!(output.status.code(), Some(2), "{line}: {errors}");
        assert!(errors.contains("error: standard output: No space left on device"), "{line}: {errors}");
    }
}

#[test]
fn a_reader_that_has_gone_ends_the_command_quietly() {
    let node = Node::listen("output-closed", "");
    let status = format!("status --connect {}", node.address());
    for line in showing("output-closed").iter().chain([&status]) {
        let output = remora(line, closed());
        assert_eq!(output.status.code(), Some(141), "{line}: {}", errors(&output));
        assert_eq!(errors(&output), "", "{line}");
    }
}

#[test]
fn an_anomaly_matters_more_than_that_it_cannot_be_shown() {
    let history = scratch("output-stale.jsonl");
    fs::write(&history, STALE).unwrap();
    let line = format!("check {}", history.display());
    let output = remora(&line, full());
    assert_eq!(output.status.code(), Some(1), "{}", errors(&output));
    assert!(errors(&output).contains("standard output: No space left"), "{}", errors(&output));
    assert_eq!(remora(&line, closed()).status.code(), Some(1));
}
