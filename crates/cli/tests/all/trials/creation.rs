//! Clients that fail, are interrupted or are killed while they create and load tables: the next
//! client begins anew. Other commands of several steps that do not end: the next command finishes
//! the work, or undoes it.

use std::fs::{self, File};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::support::{Node, Process, listen, new_file, remora, words};

/// A workload that takes a while to load, and fits.
const SLOW: &str = "tpcc --warehouses 2 --transactions 20 --threads 1";

fn client(name: &str, connect: &str, workload: &str) -> Process {
    Process::start(name, &words(&format!("bench {workload} --connect {connect}")))
}

/// A memory node with room for [`SLOW`], how clients name it, and a client that is loading it.
fn loading(test: &str) -> (Node, String, Process) {
    let node = Node::start(&format!("{test}-node"), "--listen 127.0.0.1:0 --size 512MiB");
    let connect = node.address().to_owned();
    let loader = loader(test, &connect);
    (node, connect, loader)
}

/// A client that is loading.
fn loader(test: &str, connect: &str) -> Process {
    let mut loader = client(&format!("{test}-loader"), connect, SLOW);
    let name = format!("{test}-status");
    loader.wait_until("it creates tables", |_| {
        remora(&name, &["status", "--connect", connect]).output.contains("remora.workload")
    });
    loader
}

#[test]
fn what_does_not_fit_is_followed_by_what_does() {
    let (_nodes, connect) = listen("creation-refused", 3);
    // The last one has room for one of its tables.
    for accounts in [10_000_000, 10_000_000, 450_000] {
        let refused = remora(
            "creation-too-many",
            &words(&format!("bench smallbank --connect {connect} --accounts {accounts} --transactions 10")),
        );
        assert_eq!(refused.code, Some(2), "{refused:?}");
        assert!(refused.errors.contains(&format!("--accounts {accounts}")), "{refused:?}");
        assert!(refused.errors.contains("out of memory"), "{refused:?}");
    }
    let fitting = remora(
        "creation-few",
        &words(&format!("bench smallbank --connect {connect} --accounts 100 --transactions 500 --threads 2")),
    );
    assert_eq!(fitting.code, Some(0), "{fitting:?}");
    let checked = remora("creation-check", &words(&format!("bench smallbank --connect {connect} --check")));
    assert_eq!(checked.code, Some(0), "{checked:?}");
}

#[test]
#[ignore = "long: a part of .ci/long"]
fn who_waits_for_a_killed_loader_says_so_and_takes_its_place() {
    let (_node, connect, mut loader) = loading("creation-killed");
    loader.signal(Signal::STOP);
    let mut waiting = client("creation-waiting", &connect, SLOW);
    waiting.wait_until("it says what it waits for", |process| process.errors().contains("loads the tables"));
    let mut checking = client("creation-checking", &connect, "tpcc --check");
    checking.wait_until("it says what it waits for", |process| process.errors().contains("loads the tables"));
    loader.kill();
    let checked = checking.wait();
    assert_eq!(checked.code, Some(2), "nobody has loaded: {checked:?}");
    let ran = waiting.wait();
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.output.contains("throughput"), "{ran:?}");
}

/// Memory nodes in files have no connections. The configuration shows that a process has ended.
#[test]
fn what_a_killed_loader_leaves_in_a_file_makes_way() {
    let file = new_file("creation-file-node");
    let _node = Node::start("creation-file-node", &format!("--shm {} --size 512MiB", file.display()));
    let connect = format!("shm:{}", file.display());
    let mut loader = loader("creation-file", &connect);
    loader.kill();
    let ran = client("creation-file-next", &connect, SLOW).wait();
    let _ = std::fs::remove_file(&file);
    assert_eq!(ran.code, Some(0), "{ran:?}");
}

#[test]
fn an_interrupted_loader_leaves_nothing() {
    let (_node, connect, mut loader) = loading("creation-interrupted");
    loader.signal(Signal::INT);
    let ended = loader.wait();
    assert_eq!(ended.code, Some(2), "{ended:?}");
    assert!(ended.errors.contains("interrupted"), "{ended:?}");
    let status = remora("creation-interrupted-status", &["status", "--connect", &connect]);
    assert!(!status.output.contains("remora.workload"), "{status:?}");
    let other = remora(
        "creation-after-interrupted",
        &words(&format!("bench smallbank --connect {connect} --accounts 100 --transactions 10 --threads 1")),
    );
    assert_eq!(other.code, Some(0), "{other:?}");
}

#[test]
fn a_waiting_client_can_be_interrupted_and_a_client_that_is_stuck_ends_at_the_second_signal() {
    let (node, connect, loader) = loading("creation-stuck");
    loader.signal(Signal::STOP);
    let mut waiting = client("creation-stuck-waiting", &connect, SLOW);
    waiting.wait_until("it waits", |process| process.errors().contains("loads the tables"));
    waiting.signal(Signal::TERM);
    let ended = waiting.wait();
    assert_eq!(ended.code, Some(2), "{ended:?}");
    assert!(ended.errors.contains("interrupted"), "{ended:?}");
    // The node answers no client, so the first signal has no effect until it does.
    let mut stuck = client("creation-stuck-client", &connect, SLOW);
    stuck.wait_until("it waits", |process| process.errors().contains("loads the tables"));
    node.process.signal(Signal::STOP);
    thread::sleep(Duration::from_millis(200));
    stuck.signal(Signal::INT);
    thread::sleep(Duration::from_millis(50));
    stuck.signal(Signal::INT);
    let ended = stuck.wait();
    assert_eq!(ended.code, Some(2), "{ended:?}");
}

/// A cluster with a table, and a controller that copies shards slowly: a drain or an addition takes
/// seconds.
struct Slow {
    nodes: Vec<Node>,
    /// The options of a command that names the cluster.
    there: String,
    test: &'static str,
    _controller: Process,
}

impl Slow {
    fn new(test: &'static str, nodes: usize) -> Slow {
        let (nodes, connect) = listen(test, nodes);
        let configuration = new_file(&format!("{test}-configuration"));
        let there = format!("--connect {connect} --configuration {}", configuration.display());
        let load = format!("bench smallbank {there} --replicas 2 --accounts 20000 --transactions 100 --threads 1");
        let loaded = remora(&format!("{test}-load"), &words(&load));
        assert_eq!(loaded.code, Some(0), "{loaded:?}");
        let controls = format!("controller {there} --copy-mb 1");
        let mut controller = Process::start(&format!("{test}-controller"), &words(&controls));
        controller.wait_until("it is ready", |process| process.output().contains("ready"));
        Slow { nodes, there, test, _controller: controller }
    }

    /// Returns what the configuration says.
    fn known(&self) -> serde_json::Value {
        let line = format!("status {} --report -", self.there);
        let status = remora(&format!("{}-status", self.test), &words(&line));
        assert_eq!(status.code, Some(0), "{status:?}");
        serde_json::from_str::<serde_json::Value>(&status.output).unwrap()["configuration"].take()
    }

    /// Kills a command once it has written something that it writes only after it has begun, and
    /// before it has ended.
    fn killed(&self, line: &str, says: &str) {
        let mut command = Process::start(&format!("{}-killed", self.test), &words(line));
        command.wait_until("it has begun", |process| process.output().contains(says));
        assert!(!command.has_ended(), "{says}: {}", command.output());
        command.kill();
    }

    fn ended(&self, line: &str, says: &str) {
        let ended = remora(&format!("{}-next", self.test), &words(line));
        assert!(ended.code == Some(0) && ended.output.contains(says), "{line}: {ended:?}");
    }

    fn checked(&self) {
        // Who copies a record holds its lock meanwhile.
        let began = Instant::now();
        while self.known()["joining"] != 0 {
            assert!(began.elapsed() < Duration::from_secs(60), "copies are not made: {:#}", self.known());
            thread::sleep(Duration::from_millis(20));
        }
        self.ended(&format!("bench smallbank {} --check", self.there), "✓ replicas are identical");
    }
}

/// The controller does the work of a drain; the command only says that it is wanted.
#[test]
#[ignore = "long: a part of .ci/long"]
fn a_drain_whose_command_was_killed_is_finished_by_the_next() {
    let slow = Slow::new("creation-drain", 3);
    let node = slow.nodes[2].address();
    let drain = format!("drain {} {node}", slow.there);
    slow.killed(&drain, "shards are left at");
    let now = slow.known();
    assert_eq!((&now["leaving"], &now["lost"]), (&serde_json::json!([node]), &serde_json::json!([])), "{now:#}");
    slow.ended(&drain, "it may be stopped");
    let now = slow.known();
    assert_eq!((&now["leaving"], &now["lost"]), (&serde_json::json!([]), &serde_json::json!([node])), "{now:#}");
    slow.checked();
}

#[test]
fn a_drain_whose_command_was_killed_can_be_cancelled() {
    let slow = Slow::new("creation-cancel", 3);
    let node = slow.nodes[2].address();
    let drain = format!("drain {} {node}", slow.there);
    slow.killed(&drain, "shards are left at");
    slow.ended(&format!("{drain} --cancel"), "stays");
    let now = slow.known();
    assert_eq!((&now["leaving"], &now["lost"]), (&serde_json::json!([]), &serde_json::json!([])), "{now:#}");
    slow.checked();
}

#[test]
fn an_addition_whose_command_was_killed_is_finished_by_the_next() {
    let slow = Slow::new("creation-add", 2);
    let node = Node::listen("creation-add-third", "");
    let add = format!("add {} {}", slow.there, node.address());
    slow.killed(&add, "shards are being copied to");
    let now = slow.known();
    assert_eq!(now["filling"], serde_json::json!([node.address()]), "{now:#}");
    slow.ended(&add, "has copies of");
    assert_eq!(slow.known()["joining"], 0);
    slow.checked();
}

/// A command says what it waits for, even without a terminal.
#[test]
fn a_check_says_that_it_waits_for_dead_clients() {
    let (_nodes, connect) = listen("creation-waits", 1);
    let (configuration, history) = (new_file("creation-waits.configuration"), new_file("creation-waits.jsonl"));
    let meet = format!("bench smallbank --connect {connect} --configuration {}", configuration.display());
    let run = format!("{meet} --accounts 100 --threads 1 --seconds 600 --history {}", history.display());
    let mut dies = Process::start("creation-dies", &words(&run));
    dies.wait_until("it runs", |_| fs::metadata(&history).is_ok_and(|file| file.len() > 0));
    dies.signal(Signal::KILL);
    dies.wait();
    let checked = remora("creation-check", &words(&format!("{meet} --check")));
    assert_eq!(checked.code, Some(0), "{checked:?}");
    assert!(checked.errors.contains("waiting until nothing is left of dead clients"), "{checked:?}");
}

/// A first key file is written as a whole or not at all, and no other file is changed.
#[test]
fn a_keygen_that_fails_leaves_nothing() {
    let (key, beside) = (new_file("creation-half.key"), new_file("creation-half.key.new"));
    let keygen = |limit: &str| {
        let line = format!("{limit} exec \"$0\" keygen \"$1\"");
        let program = env!("CARGO_BIN_EXE_remora");
        Command::new("sh").args(["-c", &line, program]).arg(&key).output().unwrap()
    };
    fs::write(&beside, "another's").unwrap();
    let failed = keygen("ulimit -f 0;");
    assert_eq!(failed.status.code(), Some(2), "{failed:?}");
    assert!(!key.exists(), "{:?}", fs::read(&key));
    for expected in [0, 2] {
        let made = keygen("");
        assert_eq!(made.status.code(), Some(expected), "{made:?}");
        assert_eq!(fs::metadata(&key).unwrap().len(), 78);
        assert_eq!(fs::read_to_string(&beside).unwrap(), "another's");
    }
}

/// A step to another key prepares the new file beside the old one. The process that does so locks
/// it, so the next one knows whether the process lives.
#[test]
fn a_killed_keygen_does_not_keep_the_next_from_its_step() {
    let (key, beside) = (new_file("creation.key"), new_file("creation.key.new"));
    let keygen = |step: &[&str]| remora("creation-keygen", &[&["keygen", key.to_str().unwrap()], step].concat());
    assert_eq!(keygen(&[]).code, Some(0));
    let first = fs::read_to_string(&key).unwrap();
    let living = File::create(&beside).unwrap();
    living.lock().unwrap();
    let refused = keygen(&["--add"]);
    assert!(refused.code == Some(2) && refused.errors.contains("another process"), "{refused:?}");
    assert!(beside.exists() && fs::read_to_string(&key).unwrap() == first);
    drop(living);
    fs::write(&beside, &first[..20]).unwrap();
    let added = keygen(&["--add"]);
    assert_eq!(added.code, Some(0), "{added:?}");
    let second = fs::read_to_string(&key).unwrap();
    assert!(second.starts_with(&first) && second.lines().count() == 2 && !beside.exists());
}
