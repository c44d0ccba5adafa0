//! Files of results: full disks, one file for two purposes, histories that are not whole.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::support::{Ended, Process, remora, scratch, words};

const SMALL: &str = "bench smallbank --threads 1 --accounts 100";

/// An empty place for a test's files.
fn folder(name: &str) -> PathBuf {
    let folder = scratch(name);
    let _ = fs::remove_dir_all(&folder); // of an earlier run
    fs::create_dir(&folder).unwrap();
    folder
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a name in text")
}

/// Runs the command with a limit for the size of files, which acts like a full disk.
fn remora_within(kilobytes: u32, line: &str) -> Output {
    let limited = format!("ulimit -f {kilobytes}; exec {} {line}", env!("CARGO_BIN_EXE_remora"));
    Command::new("bash").args(["-c", &limited]).output().expect("a shell")
}

#[track_caller]
fn assert_refused(ended: &Ended, said: &[&str]) {
    assert_eq!(ended.code, Some(2), "{} {}", ended.output, ended.errors);
    assert!(ended.output.is_empty(), "{}", ended.output);
    for said in said {
        assert!(ended.errors.contains(said), "{}", ended.errors);
    }
}

#[test]
fn one_file_is_not_written_for_two_reasons() {
    let folder = folder("one-file");
    let (file, link, twin) = (folder.join("file"), folder.join("link"), folder.join("twin"));
    fs::write(&file, "precious").unwrap();
    symlink(&file, &link).unwrap();
    fs::hard_link(&file, &twin).unwrap();
    let file = text(&file);
    // If the run began, it would not end.
    for other in [file, text(&link), text(&twin)] {
        let line = format!("{SMALL} --seconds 600 --history {file} --report {other}");
        assert_refused(&remora("one-file-bench", &words(&line)), &["writes the same file"]);
    }
    let line = format!("drill --seconds 600 --csv {file} --svg {}", text(&link));
    assert_refused(&remora("one-file-drill", &words(&line)), &["--svg", "writes the same file"]);
    let line = format!("bench micro --seconds 600 --write-profile {file} --report {}", text(&twin));
    assert_refused(&remora("one-file-micro", &words(&line)), &["--report", "writes the same file"]);
    assert_eq!(fs::read_to_string(file).unwrap(), "precious");
    // The file to which the shell has redirected standard output counts, too.
    let line = format!("{SMALL} --seconds 600 --history {}", text(&scratch("one-file-output.out")));
    let ended = remora("one-file-output", &words(&line));
    assert_refused(&ended, &["--history", "is where standard output goes"]);
    // A device may be named for two purposes.
    let line = format!("{SMALL} --transactions 10 --history /dev/null --report /dev/null");
    assert_eq!(remora("one-file-null", &words(&line)).code, Some(0));
}

/// The files that a command reads stay as they are, even if one of its options for results names
/// one of them.
#[test]
fn a_result_does_not_overwrite_what_the_command_reads() {
    let folder = folder("inputs");
    let (file, link, twin) = (folder.join("file"), folder.join("link"), folder.join("twin"));
    fs::write(&file, "precious").unwrap();
    symlink(&file, &link).unwrap();
    fs::hard_link(&file, &twin).unwrap();
    let dotted = folder.join("./file");
    let ours = concat!(env!("CARGO_MANIFEST_DIR"), "/../../profiles/connectx4.toml");
    let profile = fs::read_to_string(ours).unwrap();
    let hardware = folder.join("mine.toml");
    fs::write(&hardware, &profile).unwrap();
    let (file, hardware) = (text(&file), text(&hardware));
    // If the run began, it would wait for this memory node.
    let there = "--connect 127.0.0.1:1 --configuration";
    let beside = text(&folder).to_owned() + "/configuration";
    let micro = "bench micro --seconds 600 --base-profile";
    for other in [file, text(&link), text(&twin), text(&dotted)] {
        for (line, input, output) in [
            (format!("{SMALL} {there} {beside} --key-file {file} --report"), "--key-file", "--report"),
            (format!("{SMALL} {there} {beside} --key-file {file} --history"), "--key-file", "--history"),
            (format!("{SMALL} {there} {file} --report"), "--configuration", "--report"),
            (format!("{SMALL} {there} {beside} --tls-ca {file} --report"), "--tls-ca", "--report"),
            (format!("{SMALL} --connect shm:/none,{file} --history"), "--connect", "--history"),
            (format!("controller {there} {file} --history"), "--configuration", "--history"),
            (format!("controller {there} {beside} --key-file {file} --history"), "--key-file", "--history"),
            (format!("status {there} {beside} --key-file {file} --report"), "--key-file", "--report"),
            (format!("status --connect shm:{file} --report"), "--connect", "--report"),
            (format!("drill --seconds 600 --configuration {file} --csv"), "--configuration", "--csv"),
        ] {
            let refused = remora("inputs", &words(&format!("{line} {other}")));
            assert_refused(&refused, &[input, file, output, other, "would overwrite"]);
        }
    }
    assert_eq!(fs::read_to_string(file).unwrap(), "precious");
    for line in [
        format!("bench smallbank --fabric sim --threads 1 --profile {hardware} --report {hardware}"),
        format!("{micro} {hardware} --write-profile {hardware}"),
        format!("{micro} {hardware} --write-profile {hardware}.new --report {hardware}"),
    ] {
        assert_refused(&remora("inputs-profile", &words(&line)), &["profile", hardware, "would overwrite"]);
    }
    assert_eq!(fs::read_to_string(hardware).unwrap(), profile);
    // A configuration that is to be made is an input too, and so is the file that locks it.
    for output in [beside.clone(), beside.clone() + ".lock"] {
        let line = format!("{SMALL} {there} {beside} --report {output}");
        assert_refused(&remora("inputs-new", &words(&line)), &["--configuration", "--report", "would overwrite"]);
    }
    // All results are looked at before one of them is opened.
    let new = folder.join("new");
    let line = format!("{SMALL} {there} {beside} --key-file {file} --report {} --history {file}", text(&new));
    assert_refused(&remora("inputs-second", &words(&line)), &["--history", "would overwrite"]);
    let left: Vec<_> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left.len(), 4, "{left:?}");
}

#[test]
fn two_processes_do_not_record_to_one_file() {
    let history = folder("two-processes").join("h.jsonl");
    let line = format!("{SMALL} --seconds 600 --history {}", text(&history));
    let mut first = Process::start("two-processes-first", &words(&line));
    first.wait_until("it records", |_| fs::metadata(&history).is_ok_and(|file| file.len() > 1 << 10));
    assert_refused(&remora("two-processes-second", &words(&line)), &["--history", "writes the same file"]);
    first.kill();
    // A dead process holds no lock.
    let line = format!("{SMALL} --transactions 100 --history {}", text(&history));
    assert_eq!(remora("two-processes-third", &words(&line)).code, Some(0));
    assert_eq!(remora("two-processes-check", &["check", text(&history)]).code, Some(0));
}

/// The run would take ten minutes. It ends when its history cannot be written any more, and shows
/// what it has measured.
#[test]
fn a_history_that_cannot_be_written_on_ends_the_run_and_says_that_it_is_cut() {
    let folder = folder("cut");
    for (name, option) in [("plain", ""), ("durable", "--history-durable")] {
        let history = folder.join(name);
        let ran = remora_within(300, &format!("{SMALL} --seconds 600 {option} --history {}", text(&history)));
        let (table, errors) = (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
        assert_eq!(ran.status.code(), Some(2), "{errors}");
        for part in ["throughput", "history        is cut", "✓ money is conserved"] {
            assert!(table.contains(part), "{part}: {table}");
        }
        assert!(errors.contains("note: the history cannot be written"), "{errors}");
        assert!(errors.contains("error: --history ") && errors.contains("File too large"), "{errors}");
        // Missing lines are no anomaly, wherever the history is cut.
        for options in [&["check"][..], &["check", "--crashed"]] {
            let checked = remora("cut-check", &[options, &[text(&history)]].concat());
            assert_refused(&checked, &[text(&history), "the history is cut"]);
        }
    }
}

#[test]
fn files_that_take_nothing_do_not_take_the_result_with_them() {
    let errors_of = |name: &str, line: &str, shown: &str| {
        let ended = remora(name, &words(line));
        assert_eq!(ended.code, Some(2), "{line}: {}", ended.errors);
        assert!(ended.output.contains(shown), "{line}: {}", ended.output);
        assert!(ended.errors.contains("/dev/full: No space left on device"), "{line}: {}", ended.errors);
    };
    errors_of("full-report", &format!("{SMALL} --transactions 100 --report /dev/full"), "✓ money is conserved");
    errors_of("full-micro", "bench micro --kind read --seconds 0.02 --report /dev/full", "rounds of one coroutine");
    // A run whose history takes not even its first line ends at once.
    errors_of("full-history", &format!("{SMALL} --seconds 600 --history /dev/full"), "history        is cut");
}

#[test]
fn a_history_that_says_nothing_does_not_pass() {
    let folder = folder("empty");
    let (history, empty) = (folder.join("h.jsonl"), folder.join("empty.jsonl"));
    let line = format!("{SMALL} --transactions 100 --history {}", text(&history));
    assert_eq!(remora("empty-bench", &words(&line)).code, Some(0));
    fs::write(&empty, "").unwrap();
    let (history, empty) = (text(&history), text(&empty));
    let check = |options: &[&str]| remora("empty-check", &[&["check"], options].concat());
    assert_eq!(check(&[history]).code, Some(0));
    assert_refused(&check(&["/dev/null"]), &["/dev/null: is empty"]);
    assert_refused(&check(&[history, empty]), &["empty.jsonl: is empty"]);
    assert_refused(&check(&["--crashed", "/dev/null", empty]), &["all histories are empty"]);
    // A client that is killed early leaves an empty file.
    let crashed = check(&["--crashed", history, empty]);
    assert_eq!(crashed.code, Some(0), "{}", crashed.errors);
    assert!(crashed.errors.contains("empty.jsonl: is empty"), "{}", crashed.errors);
    // Without its last lines, or its first ones, it is not whole.
    let lines = fs::read_to_string(history).unwrap();
    let lines: Vec<&str> = lines.split_inclusive('\n').collect();
    for (part, said) in [
        (lines[..lines.len() / 2].concat(), "has no end: its client was killed, or runs still"),
        (lines[1..].concat(), "its first lines are missing"),
    ] {
        fs::write(history, part).unwrap();
        assert_refused(&check(&[history]), &[said]);
    }
}

#[test]
fn a_client_that_was_killed_is_not_accused_for_what_it_has_not_written() {
    let history = folder("killed").join("h.jsonl");
    let line = format!("{SMALL} --seconds 600 --history {}", text(&history));
    let mut client = Process::start("killed-client", &words(&line));
    client.wait_until("it records", |_| fs::metadata(&history).is_ok_and(|file| file.len() > 1 << 10));
    client.kill();
    let killed = remora("killed-check", &["check", text(&history)]);
    assert_eq!(killed.code, Some(2), "{}", killed.output);
    let killed = remora("killed-crashed", &["check", "--crashed", text(&history)]);
    assert_refused(&killed, &["recorded without --history-durable"]);
}
