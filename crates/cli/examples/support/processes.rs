//! Processes beside this one, and the CPU time that they use. Several examples have this file; each
//! uses a part of it.
#![allow(dead_code)]

use std::fs;
use std::io::{self, BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};

use remora::node::{MemoryNode, ServerOptions};

/// The hidden argument that makes this program a memory node.
pub(crate) const AS_MEMORY_NODE: &str = "--memory-node";

/// Room for the table, and for a redo ring of every coroutine.
const NODE_BYTES: u64 = 256 << 20;

/// Serves memory until standard input ends. So a memory node ends with the process that started it,
/// whatever ends that process.
pub(crate) fn be_memory_node() {
    let node = MemoryNode::listen("127.0.0.1:0", NODE_BYTES, ServerOptions::default()).expect("a memory node");
    println!("{}", node.address().expect("a node over TCP has an address"));
    io::stdin().read_to_end(&mut Vec::new()).expect("standard input");
}

/// A memory node in a process of its own.
pub(crate) struct MemoryNodeProcess {
    process: Process,
    pub(crate) address: String,
}

impl MemoryNodeProcess {
    pub(crate) fn start() -> MemoryNodeProcess {
        let program = std::env::current_exe().expect("the path of this program");
        let mut command = Command::new(program);
        command.arg(AS_MEMORY_NODE).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = Process(command.spawn().expect("a memory node's process"));
        let output = process.0.stdout.take().expect("its output is piped");
        let mut address = String::new();
        BufReader::new(output).read_line(&mut address).expect("the address of a memory node");
        MemoryNodeProcess { process, address: address.trim().to_owned() }
    }

    pub(crate) fn cpu_seconds(&self) -> f64 {
        self.process.cpu_seconds()
    }
}

/// A process that ends when this value is dropped.
pub(crate) struct Process(pub(crate) Child);

impl Process {
    pub(crate) fn cpu_seconds(&self) -> f64 {
        let [user, system, ..] = cpu_times(&self.0.id().to_string());
        user + system
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The process may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// CPU seconds of this process so far.
pub(crate) fn own_cpu_seconds() -> f64 {
    let [user, system, ..] = cpu_times("self");
    user + system
}

/// CPU seconds of the processes that this one has started and that have ended.
pub(crate) fn ended_cpu_seconds() -> f64 {
    let [.., user, system] = cpu_times("self");
    user + system
}

/// CPU seconds of a process and of the children it has waited for: user, system, user, system. In
/// steps of 10 ms.
fn cpu_times(process: &str) -> [f64; 4] {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).expect("a process that runs");
    // The name in front may have blanks and brackets; behind it, these are fields 12 to 15.
    let (_, behind) = stat.rsplit_once(')').expect("a name in brackets");
    let mut ticks = behind.split_whitespace().skip(11).map(|field| field.parse::<f64>().expect("a number"));
    std::array::from_fn(|_| ticks.next().expect("four times") / 100.0)
}
