//! Processes of the command for tests. A test starts them and waits for them until a deadline. They
//! are killed when the test ends, even if it fails.
#![allow(dead_code, reason = "every test target uses a part of it")]

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// How long a process may take, even on a busy machine. A process that takes longer hangs.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Returns a path for a test's file.
pub(crate) fn scratch(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
}

/// Returns a path for a test's file, and removes the file that an earlier run may have left.
pub(crate) fn new_file(name: &str) -> PathBuf {
    let place = scratch(name);
    let _ = fs::remove_file(&place); // most often there is none
    place
}

/// Asserts that each client of a drill has gone on, by the drill's timeline: it has committed more
/// than half a second after the last kill. (On a busy machine clients are stopped one after the
/// other, and the timeline goes on for as long as that takes.)
pub(crate) fn assert_all_have_gone_on(timeline: &str, clients: usize) {
    let rows: Vec<Vec<&str>> = timeline.lines().skip(1).map(|row| row.split(',').collect()).collect();
    let ms = |row: &Vec<&str>| row[0].parse::<u64>().expect("a time in milliseconds");
    let killed = rows.iter().filter(|row| row[3] == "1").map(ms).max().unwrap_or(0);
    let last_of = |client: usize| {
        let committed = rows.iter().filter(|row| row[1] == client.to_string() && row[2] != "0");
        committed.map(ms).max().unwrap_or(0)
    };
    let last: Vec<u64> = (0..clients).map(last_of).collect();
    let gone_on = |one: &u64| *one > killed + 500;
    assert!(last.iter().all(gone_on), "last commits in ms, by client: {last:?}; the last kill: {killed}");
}

/// A process of the command.
pub(crate) struct Process {
    child: Child,
    output: PathBuf,
    errors: PathBuf,
}

/// How a process ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) output: String,
    pub(crate) errors: String,
}

impl Process {
    /// Starts the command. `name` must be unique, and names the files for its output.
    pub(crate) fn start(name: &str, arguments: &[&str]) -> Process {
        let mut command = Command::new(env!("CARGO_BIN_EXE_remora"));
        command.args(arguments);
        Process::spawn(name, command)
    }

    /// Starts the command after some lines of a shell, such as `ulimit -v 300000`.
    pub(crate) fn start_after(shell: &str, name: &str, arguments: &[&str]) -> Process {
        let mut command = Command::new("bash");
        let script = format!("{shell}\nexec \"$@\"");
        command.args(["-c", &script, "bash", env!("CARGO_BIN_EXE_remora")]).args(arguments);
        Process::spawn(name, command)
    }

    fn spawn(name: &str, mut command: Command) -> Process {
        let (output, errors) = (scratch(&format!("{name}.out")), scratch(&format!("{name}.err")));
        let file = |path: &Path| File::create(path).expect("a place for what it says");
        let child = command.stdin(Stdio::null()).stdout(file(&output)).stderr(file(&errors)).spawn();
        Process { child: child.expect("the command has been built"), output, errors }
    }

    /// Returns what the process has written to standard output so far.
    pub(crate) fn output(&self) -> String {
        fs::read_to_string(&self.output).expect("what it says is text")
    }

    /// Returns what the process has written to standard error so far.
    pub(crate) fn errors(&self) -> String {
        fs::read_to_string(&self.errors).expect("what it says is text")
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("it has not been waited for");
    }

    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill(); // the process may have ended
        let _ = self.child.wait();
    }

    /// Returns whether the process has ended.
    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("it is our child").is_some()
    }

    /// Waits until the process has ended.
    #[track_caller]
    pub(crate) fn wait(&mut self) -> Ended {
        let began = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("it is our child") {
                return Ended { code: status.code(), output: self.output(), errors: self.errors() };
            }
            assert!(began.elapsed() < PATIENCE, "it hangs: {} {}", self.output(), self.errors());
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits until a condition holds, for example until the process has written something.
    #[track_caller]
    pub(crate) fn wait_until(&mut self, what: &str, holds: impl Fn(&Process) -> bool) {
        let began = Instant::now();
        while !holds(self) {
            let ended = self.child.try_wait().expect("it is our child");
            assert!(ended.is_none() && began.elapsed() < PATIENCE, "{what}: {ended:?} {}", self.errors());
            thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Runs the command to its end.
#[track_caller]
pub(crate) fn remora(name: &str, arguments: &[&str]) -> Ended {
    Process::start(name, arguments).wait()
}

/// Words of a command line.
pub(crate) fn words(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

/// A memory node that is ready.
pub(crate) struct Node {
    pub(crate) process: Process,
    /// The line that the node wrote when it was ready.
    pub(crate) ready: String,
}

impl Node {
    #[track_caller]
    pub(crate) fn start(name: &str, options: &str) -> Node {
        let mut process = Process::start(name, &[&["memnode"], &words(options)[..]].concat());
        process.wait_until("ready", |process| process.output().ends_with('\n'));
        let ready = process.output();
        assert!(ready.starts_with("remora memory node ready: ") && ready.lines().count() == 1, "{ready}");
        Node { process, ready }
    }

    /// Starts a memory node over TCP, at a free port.
    #[track_caller]
    pub(crate) fn listen(name: &str, options: &str) -> Node {
        Node::start(name, &format!("--listen 127.0.0.1:0 --size 64MiB {options}"))
    }

    /// Returns the address on which the node listens.
    pub(crate) fn address(&self) -> &str {
        let (_, rest) = self.ready.split_once("listening on ").expect("it listens");
        rest.split(',').next().expect("an address")
    }
}

/// Starts several memory nodes over TCP. Returns them, and the list by which a client names them.
#[track_caller]
pub(crate) fn listen(test: &str, count: usize) -> (Vec<Node>, String) {
    let nodes: Vec<Node> = (0..count).map(|index| Node::listen(&format!("{test}-node{index}"), "")).collect();
    let addresses: Vec<&str> = nodes.iter().map(Node::address).collect();
    let connect = addresses.join(",");
    (nodes, connect)
}
