//! Paths are bytes, and need not be valid text.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::{PATIENCE, remora, scratch, words};

/// Makes an empty folder whose name is not valid text.
fn folder(name: &str) -> PathBuf {
    let mut bytes = scratch(name).into_os_string().into_vec();
    bytes.push(0xff);
    let folder = PathBuf::from(OsString::from_vec(bytes));
    let _ = fs::remove_dir_all(&folder); // of an earlier run
    fs::create_dir(&folder).unwrap();
    folder
}

fn command(line: &str, options: &[(&str, &OsStr)]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_remora"));
    command.args(words(line));
    for (option, value) in options {
        if !option.is_empty() {
            command.arg(option);
        }
        command.arg(value);
    }
    command
}

#[track_caller]
fn assert_done(mut command: Command) -> Output {
    let output = command.output().expect("the command has been built");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{command:?}: {errors}");
    output
}

/// A memory node in a file, ended with its test.
struct InFile(Child);

impl InFile {
    fn start(path: &Path) -> InFile {
        let child = command("memnode --size 16MiB", &[("--shm", path.as_os_str())]).stdout(Stdio::null()).spawn();
        InFile(child.unwrap())
    }
}

impl Drop for InFile {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn memory_nodes_configurations_histories_and_reports_are_named_by_bytes() {
    let folder = folder("bytes-nodes");
    let paths: Vec<PathBuf> = (0..2).map(|number| folder.join(format!("node-{number}"))).collect();
    let _nodes: Vec<InFile> = paths.iter().map(|path| InFile::start(path)).collect();
    let mut list = OsString::from("shm:");
    list.push(&paths[0]);
    list.push(",");
    list.push(&paths[1]);
    let began = Instant::now();
    let connect = ("--connect", list.as_os_str());
    while !command("status", &[connect]).output().unwrap().status.success() {
        assert!(began.elapsed() < PATIENCE, "no memory nodes");
        thread::sleep(Duration::from_millis(20));
    }
    let [history, report, configuration] = ["h.jsonl", "r.json", "configuration"].map(|name| folder.join(name));
    let options = [
        connect,
        ("--history", history.as_os_str()),
        ("--report", report.as_os_str()),
        ("--configuration", configuration.as_os_str()),
    ];
    let table = assert_done(command("bench smallbank --threads 1 --accounts 100 --transactions 100", &options)).stdout;
    assert!(String::from_utf8_lossy(&table).contains("money is conserved"));
    let report: serde_json::Value = serde_json::from_slice(&fs::read(&report).unwrap()).unwrap();
    assert!(report["config"]["history"].as_str().unwrap().ends_with("\u{fffd}/h.jsonl"), "{report}");
    assert_done(command("check", &[("", history.as_os_str())]));
    let shown = assert_done(command("status --report -", &[connect, ("--configuration", configuration.as_os_str())]));
    let shown: serde_json::Value = serde_json::from_slice(&shown.stdout).unwrap();
    assert_eq!(shown["configuration"]["epoch"], 1, "{shown}");
    // The locks of the processes are gone with them.
    let left: Vec<OsString> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(!left.iter().any(|name| name.as_bytes().windows(8).any(|part| part == b"process-")), "{left:?}");
}

#[test]
fn keys_profiles_and_places_of_temporary_files_are_named_by_bytes() {
    let folder = folder("bytes-others");
    let key = folder.join("key");
    assert_done(command("keygen", &[("", key.as_os_str())]));
    assert_done(command("keygen --add", &[("", key.as_os_str())]));
    let profile = folder.join("mine.toml");
    let given = concat!(env!("CARGO_MANIFEST_DIR"), "/../../profiles/connectx4.toml");
    fs::copy(given, &profile).unwrap();
    let simulated = "bench smallbank --fabric sim --threads 1 --accounts 100 --measure-ms 0.1 --report -";
    let report = assert_done(command(simulated, &[("--profile", profile.as_os_str())])).stdout;
    let report: serde_json::Value = serde_json::from_slice(&report).unwrap();
    assert!(report["config"]["profile"].as_str().unwrap().ends_with("\u{fffd}/mine.toml"), "{report}");
    let csv = folder.join("drill.csv");
    let options = [("--csv", csv.as_os_str())];
    let mut drill =
        command("drill --seconds 1 --every 1 --clients 2 --accounts 100 --memory-nodes 2 --replicas 2", &options);
    drill.env("TMPDIR", &folder);
    assert_done(drill);
    assert!(fs::metadata(csv).unwrap().len() > 100);
}

#[test]
fn variables_that_are_no_text_are_told_and_passed_over() {
    for (given, said) in [(&b"\xff"[..], true), (b"chatty", true), (b"warn", false), (b"", false)] {
        let mut keygen = command("check --crashed /dev/null", &[]);
        let output = keygen.env("REMORA_LOG", OsStr::from_bytes(given)).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(errors.contains("note: REMORA_LOG is "), said, "{errors}");
        assert!(errors.contains("all histories are empty"), "{errors}");
    }
}

#[test]
fn a_memory_node_that_no_list_could_name_is_refused() {
    let path = scratch("one,two");
    let _ = fs::remove_file(&path); // of an earlier run
    let refused = remora("comma", &["memnode", "--size", "8MiB", "--shm", path.to_str().unwrap()]);
    assert_eq!(refused.code, Some(2));
    assert!(refused.errors.contains("one,two") && refused.errors.contains("without one"), "{}", refused.errors);
    assert!(!path.exists());
}
