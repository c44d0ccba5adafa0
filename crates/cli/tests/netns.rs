//! A memory node and its clients on their own network, whose link can be cut. Then no process gets
//! any notice. If a process is killed, in contrast, its system still closes its connections.
//!
//! The tests need `ip` of iproute2 and the right to make network namespaces. They are skipped if
//! one of the two is missing.

use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

/// How long a step may take, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long a client may take to report that a node is down. It takes a second, and longer on a
/// busy machine.
const ERROR_TIME_MAX: Duration = Duration::from_secs(5);

const NODE: &str = "10.77.0.1";
const CLIENT: &str = "10.77.0.2";

/// Two namespaces, joined by one link. They are removed when this value is dropped.
struct Network {
    node: String,
    client: String,
}

/// Runs `ip`. Fails with what the command said.
fn ip(line: &str) -> Result<(), String> {
    let output = Command::new("ip").args(line.split_whitespace()).output().map_err(|error| error.to_string())?;
    if output.status.success() { Ok(()) } else { Err(format!("ip {line}: {}", text(&output.stderr))) }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).trim().to_owned()
}

impl Network {
    /// Makes the network. Returns `None`, and prints the reason, if it cannot be made.
    fn new() -> Option<Network> {
        let process = std::process::id();
        let network = Network { node: format!("remora-{process}-node"), client: format!("remora-{process}-client") };
        let Network { node, client } = &network;
        for namespace in [node, client] {
            if let Err(error) = ip(&format!("netns add {namespace}")) {
                println!("skipped: {error}");
                return None;
            }
        }
        ip(&format!("link add link0 netns {node} type veth peer name link0 netns {client}")).unwrap();
        for (namespace, address) in [(node, NODE), (client, CLIENT)] {
            ip(&format!("-n {namespace} address add {address}/24 dev link0")).unwrap();
            ip(&format!("-n {namespace} link set link0 up")).unwrap();
        }
        Some(network)
    }

    /// Takes the node's end of the link down, or up again.
    fn link(&self, state: &str) {
        ip(&format!("-n {} link set link0 {state}", self.node)).unwrap();
    }

    /// Starts the command at the node.
    fn at_node(&self, line: &str) -> Process {
        Process::start(&self.node, line)
    }

    /// Starts the command at the client.
    fn at_client(&self, line: &str) -> Process {
        Process::start(&self.client, line)
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for namespace in [&self.node, &self.client] {
            let _ = ip(&format!("netns delete {namespace}")); // it may not exist
        }
    }
}

/// A process of the command in a namespace. It ends when this value is dropped.
struct Process(Child);

impl Process {
    fn start(namespace: &str, line: &str) -> Process {
        // `ip` becomes the command, so that this is its process.
        let mut command = Command::new("ip");
        command.args(["netns", "exec", namespace, env!("CARGO_BIN_EXE_remora")]).args(line.split_whitespace());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Process(command.spawn().expect("ip has run before"))
    }

    fn runs(&mut self) -> bool {
        self.0.try_wait().expect("it is our child").is_none()
    }

    /// The first line of the process's output.
    fn line(&mut self) -> String {
        let mut line = String::new();
        let output = self.0.stdout.as_mut().expect("its output is piped");
        BufReader::new(output).read_line(&mut line).expect("it speaks UTF-8");
        line
    }

    /// Waits until the process has ended. Returns its exit status, its output and its errors. A
    /// pipe has room for both.
    #[track_caller]
    fn wait(mut self) -> (Option<i32>, String, String) {
        let began = Instant::now();
        while self.runs() {
            assert!(began.elapsed() < PATIENCE, "it hangs");
            thread::sleep(Duration::from_millis(5));
        }
        let code = self.0.wait().expect("it is our child").code();
        let (mut output, mut errors) = (Vec::new(), Vec::new());
        let (stdout, stderr) = (self.0.stdout.as_mut(), self.0.stderr.as_mut());
        stdout.expect("it is piped").read_to_end(&mut output).expect("a pipe can be read");
        stderr.expect("it is piped").read_to_end(&mut errors).expect("a pipe can be read");
        (code, text(&output), text(&errors))
    }

    /// Waits until the process has ended well. Returns its report.
    #[track_caller]
    fn report(self) -> Value {
        let (code, output, errors) = self.wait();
        assert_eq!(code, Some(0), "{errors}");
        serde_json::from_str(&output).expect("a report")
    }

    #[track_caller]
    fn assert_refused(self, names: &[&str]) {
        let (code, _, errors) = self.wait();
        assert_eq!(code, Some(2), "{errors}");
        assert!(names.iter().all(|name| errors.contains(name)), "{names:?}: {errors}");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill(); // the process may have ended
        let _ = self.0.wait();
    }
}

/// A new key file, which is removed when this value is dropped.
struct KeyFile(PathBuf);

impl KeyFile {
    fn new() -> KeyFile {
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("netns-{}.key", std::process::id()));
        let made = Command::new(env!("CARGO_BIN_EXE_remora")).arg("keygen").arg(&path).output();
        assert!(made.expect("the command has been built").status.success());
        KeyFile(path)
    }
}

impl Drop for KeyFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn a_link_that_is_cut_is_an_error_that_names_the_node_within_a_second() {
    let Some(network) = Network::new() else { return };
    let key_file = KeyFile::new();
    let key = format!("--key-file {}", key_file.0.display());

    let memnode = format!("memnode --listen {NODE}:0 --size 64MiB");
    network.at_node(&memnode).assert_refused(&[NODE, "without a key"]);

    let mut node = network.at_node(&format!("{memnode} {key}"));
    let ready = node.line();
    let (_, address) = ready.split_once("listening on ").expect("a line when it is ready");
    let (address, _) = address.split_once(',').expect("more behind the address");
    let status = || network.at_client(&format!("status --connect {address} {key} --report -")).report();

    // The second client uses only cold accounts, because the locks of the first client stay when it
    // is cut off.
    let bank = format!(
        "bench smallbank --connect {address} --threads 1 --coroutines 4 --accounts 20000 --hot-probability 0 --report -"
    );
    network.at_client(&format!("{bank} --seconds 1")).assert_refused(&[address, "asks for a key"]);

    let mut client = network.at_client(&format!("{bank} {key} --seconds 600"));
    let began = Instant::now();
    // Many more frames than connecting and loading take.
    while status()["nodes"][0]["frames"].as_u64() < Some(20_000) {
        assert!(client.runs() && began.elapsed() < PATIENCE, "no transactions");
        thread::sleep(Duration::from_millis(20));
    }
    network.link("down");
    let cut = Instant::now();
    client.assert_refused(&[&format!("memory node {address} is down or cannot be reached")]);
    let elapsed = cut.elapsed();
    assert!(elapsed < ERROR_TIME_MAX, "{elapsed:?}");
    println!("the client knew after {elapsed:?}");

    assert!(node.runs(), "a memory node does not end because a client does");
    network.link("up");
    let report = network.at_client(&format!("{bank} {key} --transactions 200")).report();
    assert!(report["committed"].as_u64() > Some(100), "{report}");
}
