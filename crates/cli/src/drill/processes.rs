//! The processes of a drill: memory nodes, controllers, and clients that are killed or stopped. All
//! of them end with the drill.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};

use remora::Cluster;
use remora::connect::{Nodes, Place};
use remora::observe::Nanos;
use remora::protocol::Protocol;
use rustix::process::Signal;
use rustix::time::{ClockId, clock_gettime};
use serde_json::Value;

use super::DrillOptions;
use crate::Failure;
use crate::child::Process;

const KILLED: i32 = 9;
const TERMINATED: i32 = 15;

/// Returns the time of CLOCK_MONOTONIC, which histories use, in nanoseconds.
pub(super) fn now_ns() -> Nanos {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// A client, dead or alive.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) history: PathBuf,
    pub(super) began_ns: Nanos,
    pub(super) ended_ns: Option<Nanos>,
    pub(super) killed: bool,
    /// Whether another client took this client for dead, and ended it.
    pub(super) ended_by_others: bool,
    report: PathBuf,
    process: Process,
}

impl Client {
    /// Returns whether the client was ended by another client. Fails if it has ended by itself.
    pub(super) fn has_ended(&mut self) -> Result<bool, Failure> {
        let Some(status) = self.process.ended()? else { return Ok(false) };
        if status.signal() != Some(KILLED) {
            return Err(self.process.failure(status));
        }
        self.ended_ns = Some(now_ns());
        self.ended_by_others = true;
        Ok(true)
    }

    pub(super) fn kill(&mut self) -> Result<(), Failure> {
        self.ended_ns = Some(now_ns());
        self.killed = true;
        self.process.kill()
    }

    /// Stops the client where it is, or lets it go on. Does nothing if it has ended.
    pub(super) fn stand_still(&self, still: bool) -> Result<(), Failure> {
        if self.ended_ns.is_some() {
            return Ok(());
        }
        self.process.signal(if still { Signal::STOP } else { Signal::CONT })
    }

    /// Makes the client finish what is under way, and end.
    pub(super) fn stop(&mut self) -> Result<(), Failure> {
        self.process.signal(Signal::TERM)?;
        let status = self.process.wait()?;
        self.ended_ns = Some(now_ns());
        match status.signal() {
            Some(KILLED) => {
                self.ended_by_others = true;
                return Ok(());
            }
            // The client had just been started, and has ended without leaving.
            Some(TERMINATED) => return Ok(()),
            _ => {}
        }
        // The check that follows finds broken invariants, whether or not this client has noticed
        // them.
        if matches!(status.code(), Some(0 | 1)) { Ok(()) } else { Err(self.process.failure(status)) }
    }

    /// Returns the report of a client that has left in good order.
    pub(super) fn report(&self) -> Option<Value> {
        serde_json::from_slice(&fs::read(&self.report).ok()?).ok()
    }
}

/// The memory nodes and controllers of a drill, and what its clients need.
#[derive(Debug)]
pub(super) struct Processes {
    folder: PathBuf,
    /// The folder of the memory nodes' files, if it is not the drill's folder.
    memory: Option<PathBuf>,
    keep: bool,
    /// The memory nodes and the arguments of each. The process of a killed node is `None`.
    nodes: Vec<(Option<Process>, Vec<OsString>)>,
    controllers: Vec<Process>,
    /// The histories of what controllers have put back.
    put_back: Vec<PathBuf>,
    /// The arguments by which every client connects.
    connect: Vec<OsString>,
    bank: Vec<OsString>,
    accounts: u64,
    spares: u16,
    lease_ms: u64,
    seed: u64,
    loaded: PathBuf,
}

impl Processes {
    /// Starts the memory nodes.
    pub(super) fn new(options: &DrillOptions, node_bytes: u64) -> Result<Processes, Failure> {
        let name = format!("remora-drill-{}", std::process::id());
        let folder = std::env::temp_dir().join(&name);
        let make = |folder: &Path| fs::create_dir(folder).map_err(|error| Failure::new(folder.display(), error));
        make(&folder)?;
        let mut processes = Processes {
            loaded: folder.join("loaded.jsonl"),
            folder,
            memory: None,
            keep: false,
            nodes: Vec::new(),
            controllers: Vec::new(),
            put_back: Vec::new(),
            connect: Vec::new(),
            bank: Vec::new(),
            accounts: options.accounts,
            spares: options.spares,
            lease_ms: options.lease_ms,
            seed: options.seed,
        };
        let in_files = options.is_in_files();
        if in_files && Path::new("/dev/shm").is_dir() {
            let memory = Path::new("/dev/shm").join(&name);
            make(&memory)?;
            processes.memory = Some(memory);
        }
        let rdma = if options.fabric == "verbs" { options.rdma.arguments() } else { Vec::new() };
        let rdma: Vec<OsString> = rdma.into_iter().map(OsString::from).collect();
        let mut places = Vec::new();
        for number in 0..options.memory_nodes {
            let path = processes.memory.as_ref().unwrap_or(&processes.folder).join(format!("node-{number}"));
            let [option, place] =
                if in_files { [format!("--{}", options.fabric).into(), path.into()] } else { TCP.map(OsString::from) };
            let size = ["--size".into(), node_bytes.to_string().into()];
            let arguments = [vec!["memnode".into(), option, place.clone()], size.into(), rdma.clone()].concat();
            let node = Process::start(&processes.folder, &format!("node-{number}"), &arguments)?;
            processes.nodes.push((Some(node), arguments));
            places.push(place);
        }
        for ((node, arguments), place) in processes.nodes.iter_mut().zip(&mut places) {
            if let Some(mut made) = node.take_if(|_| options.fabric == "passive") {
                let status = made.wait()?;
                if !status.success() {
                    return Err(made.failure(status));
                }
            }
            let Some(node) = node else { continue };
            node.wait_until_ready()?;
            let said = node.said();
            if let Some((_, address)) = said.split_once("listening on ") {
                let address = OsString::from(address.split(',').next().unwrap_or_default());
                // If the node is started again, it gets the same address.
                arguments.iter_mut().filter(|one| *one == place).for_each(|one| one.clone_from(&address));
                *place = address;
            }
        }
        let mut list = OsString::from(if in_files { "shm:" } else { "" });
        list.push(places.join(OsStr::new(",")));
        processes.connect = vec!["--connect".into(), list];
        processes.bank = [rdma, processes.bank_options(options)].concat();
        Ok(processes)
    }

    fn bank_options(&self, options: &DrillOptions) -> Vec<OsString> {
        let configuration = options.configuration.clone();
        let configuration = configuration.unwrap_or_else(|| self.folder.join("configuration").into());
        let mut bank = vec!["--configuration".into(), configuration, "--history-durable".into()];
        let mut add = |option: &str, value: String| bank.extend([option.into(), value.into()]);
        add("--threads", "1".to_owned());
        add("--coroutines", options.coroutines.to_string());
        add("--replicas", options.replicas().to_string());
        add("--protocol", options.protocol.clone());
        add("--rate", options.rate.div_ceil(options.clients.into()).to_string());
        add("--lease-ms", options.lease_ms.to_string());
        if !options.ford_without.is_empty() {
            add("--ford-without", options.ford_without.join(","));
        }
        if options.snapshots {
            bank.push("--snapshots".into());
        }
        bank
    }

    fn start_bank(&self, name: &str, history: &Path, report: &Path, more: &[&str]) -> Result<Process, Failure> {
        let paths: [OsString; 4] = ["--history".into(), history.into(), "--report".into(), report.into()];
        let more: Vec<OsString> = more.iter().map(OsString::from).collect();
        let bank = ["bench", "smallbank"].map(OsString::from);
        Process::start(&self.folder, name, &[&bank, &self.connect[..], &self.bank, &paths, &more].concat())
    }

    /// Loads the tables, by a client that only does this.
    pub(super) fn load(&mut self) -> Result<(), Failure> {
        let (accounts, report) = (self.accounts.to_string(), self.folder.join("loaded.json"));
        let spares = self.spares.to_string();
        let more = ["--ledger", "--accounts", &accounts, "--transactions", "1", "--spares", &spares];
        let mut loader = self.start_bank("loader", &self.loaded, &report, &more)?;
        let status = loader.wait()?;
        if status.success() { Ok(()) } else { Err(loader.failure(status)) }
    }

    /// Returns the history of the client that has loaded the tables.
    pub(super) fn loaded(&self) -> &Path {
        &self.loaded
    }

    /// Returns the histories of what controllers have put back, as far as there are any.
    pub(super) fn put_back(&self) -> impl Iterator<Item = &Path> {
        self.put_back.iter().map(PathBuf::as_path)
    }

    /// Starts the controllers. There are two, because one may be wrong.
    pub(super) fn start_controllers(&mut self) -> Result<(), Failure> {
        for number in 0..2 {
            let name = format!("controller-{number}");
            let history = self.folder.join(format!("{name}.jsonl"));
            let lease = self.lease_ms.to_string();
            let options = ["--lease-ms", &lease, "--patience-ms", &lease, "--history"].map(OsString::from);
            let bank = self.bank.iter().position(|option| option == "--configuration");
            let meet = bank.and_then(|at| self.bank.get(at..at + 2)).unwrap_or_default();
            let file = [history.clone().into()];
            let arguments = [&["controller".into()], &self.connect[..], meet, &options, &file].concat();
            let mut controller = Process::start(&self.folder, &name, &arguments)?;
            controller.wait_until_ready()?;
            self.controllers.push(controller);
            self.put_back.push(history);
        }
        Ok(())
    }

    pub(super) fn stop_controllers(&mut self) -> Result<(), Failure> {
        self.controllers.drain(..).try_for_each(Process::stop)
    }

    /// Kills a memory node, whose memory is lost.
    pub(super) fn kill_node(&mut self, node: usize) -> Result<(), Failure> {
        let Some(mut process) = self.nodes[node].0.take() else { return Ok(()) };
        process.kill()
    }

    /// Starts a killed memory node again, at the same address.
    pub(super) fn start_node(&mut self, node: usize) -> Result<(), Failure> {
        let (process, arguments) = &mut self.nodes[node];
        let mut started = Process::start(&self.folder, &format!("node-{node}"), arguments)?;
        started.wait_until_ready()?;
        *process = Some(started);
        Ok(())
    }

    /// Starts a client with this number.
    pub(super) fn client(&self, number: usize) -> Result<Client, Failure> {
        /// A client goes on until it is stopped.
        const FOR_EVER: &str = "1000000";
        let name = format!("client-{number}");
        let file = |kind: &str| self.folder.join(format!("{name}.{kind}"));
        let (history, report) = (file("jsonl"), file("json"));
        let seed = self.seed.wrapping_mul(1009).wrapping_add(number as u64).to_string();
        let began_ns = now_ns();
        let process = self.start_bank(&name, &history, &report, &["--seed", &seed, "--seconds", FOR_EVER])?;
        Ok(Client { history, began_ns, ended_ns: None, killed: false, ended_by_others: false, report, process })
    }

    /// Waits until a client has begun its history, so that it runs transactions.
    pub(super) fn wait_for_history(&self, client: &mut Client) -> Result<(), Failure> {
        let history = client.history.clone();
        let recorded = move |_: &Process| fs::metadata(&history).is_ok_and(|file| file.len() > 0);
        client.process.wait_for("begin its history", recorded)
    }

    /// Fails if a controller has ended, or a memory node that was not killed.
    pub(super) fn look(&mut self) -> Result<(), Failure> {
        for process in self.nodes.iter_mut().filter_map(|(node, _)| node.as_mut()).chain(&mut self.controllers) {
            if let Some(status) = process.ended()? {
                return Err(process.failure(status));
            }
        }
        Ok(())
    }

    /// Runs another command on the memory nodes to its end. Returns its report.
    pub(super) fn ask(&self, name: &str, command: &[&str], as_bank: bool) -> Result<Value, Failure> {
        let command: Vec<OsString> = command.iter().map(OsString::from).collect();
        let bank = self.bank.iter().filter(|option| as_bank && *option != "--history-durable");
        let mut process =
            Process::start(&self.folder, name, &[command, self.connect.clone(), bank.cloned().collect()].concat())?;
        let status = process.wait()?;
        // There is a report even if an invariant does not hold.
        serde_json::from_str(&process.said()).map_err(|_| process.failure(status))
    }

    /// Connects this process to the memory nodes, which are files.
    pub(super) fn cluster(&self, protocol: Protocol) -> Result<Cluster, Failure> {
        let failure = |error: &dyn std::fmt::Display| Failure::new("the memory nodes", error);
        let follows = |options: &[OsString], name: &str| options.iter().skip_while(|one| *one != name).nth(1).cloned();
        let nodes = follows(&self.connect, "--connect").unwrap_or_default();
        let nodes = Nodes::try_from(nodes.as_os_str()).map_err(|error| failure(&error))?;
        let place = follows(&self.bank, "--configuration").map(|place| Place::try_from(place.as_os_str())).transpose();
        let place = place.map_err(|error| failure(&error))?;
        Cluster::connect(nodes).configuration(place).protocol(protocol).open().map_err(|error| failure(&error))
    }

    /// Stops the memory nodes.
    pub(super) fn stop_nodes(&mut self) -> Result<(), Failure> {
        self.nodes.drain(..).filter_map(|(node, _)| node).try_for_each(Process::stop)
    }

    /// Keeps the files of the run, and returns their folder.
    pub(super) fn keep(&mut self) -> &Path {
        self.keep = true;
        &self.folder
    }
}

const TCP: [&str; 2] = ["--listen", "127.0.0.1:0"];

impl Drop for Processes {
    fn drop(&mut self) {
        self.nodes.clear();
        for folder in self.memory.iter().chain((!self.keep).then_some(&self.folder)) {
            let _ = fs::remove_dir_all(folder); // if this fails, the files stay
        }
    }
}
