//! `remora up --processes`: a cluster of processes, which are started again when they die.
//!
//! 1. The memory nodes start first, because the others need their addresses. A process that is
//!    started again has the arguments of the one before, so it is found where that was.
//! 2. A process that keeps dying is started again after longer and longer pauses.
//! 3. A memory node comes back empty. It is up when the cluster has taken it in and all keys have
//!    their copies. If no memory node is up, keys are lost, and the command ends.
//! 4. At the end, gateways stop first, because they need the others to finish what is under way.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs::{self, DirBuilder, File};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use remora::connect::NodeKey;
use rustix::process::Signal;
use serde_json::Value;

use super::script::Script;
use super::{UpOptions, is_over, verdict};
use crate::child::Process;
use crate::gateway::{LOOK, listen};
use crate::{Failure, Verdict, drill, output, value};

/// Controllers and gateways, of each kind.
const TWO: usize = 2;
/// Pause before a process is started again that has died for the first time.
const PAUSE: Duration = Duration::from_millis(100);
/// Longest pause before a process is started again.
const PAUSE_MAX: Duration = Duration::from_secs(10);
/// A process that was ready for this long does not keep dying.
const STEADY: Duration = Duration::from_secs(10);
/// Pause between two questions whether memory nodes are back.
const ASK: Duration = Duration::from_millis(100);
/// How long the answer may take.
const ANSWER: Duration = Duration::from_secs(10);
/// How long a process may take to stop. A gateway takes up to ten seconds if memory nodes are gone.
const STOP: Duration = Duration::from_secs(12);

/// Runs the cluster until it is to stop.
pub(super) fn up(options: &UpOptions, stop: &AtomicBool) -> Result<Verdict, Failure> {
    let began = Instant::now();
    let (listener, first) = options.listener()?;
    let next = SocketAddr::new(first.ip(), first.port().checked_add(1).unwrap_or(0));
    let second = listen(next, true).map_err(|error| Failure::new(format!("the second gateway at {next}"), error))?;
    let mut cluster = Processes::new(options, began)?;
    if !cluster.start_all(options, vec![listener, second], stop)? {
        cluster.stop();
        return Ok(Verdict::Sound);
    }
    let mut script = Script::start(options.exec.as_deref(), first.port())?;
    cluster.notes = script.is_some();
    let watched = cluster.watch(options, first.port(), &mut script, stop);
    let verdict = verdict(script);
    cluster.stop();
    watched.and(verdict)
}

/// A temporary folder, which is removed when this is dropped.
#[derive(Debug)]
struct Folder {
    path: PathBuf,
    /// The folder itself, locked as long as it is in use.
    _lock: File,
}

impl Folder {
    const NAME: &str = "remora-up-";

    fn new() -> Result<Folder, Failure> {
        let temporary = std::env::temp_dir();
        Folder::remove_abandoned(&temporary);
        let path = temporary.join(format!("{}{}", Folder::NAME, std::process::id()));
        let failed = |error| Failure::new(path.display(), error);
        DirBuilder::new().mode(0o700).create(&path).map_err(failed)?;
        let lock = File::open(&path).map_err(failed)?;
        lock.lock().map_err(failed)?;
        Ok(Folder { path, _lock: lock })
    }

    /// Removes folders of commands that were killed. Those of other users stay.
    fn remove_abandoned(temporary: &Path) {
        let names = fs::read_dir(temporary).into_iter().flatten().flatten();
        let own = names.filter(|entry| entry.file_name().to_string_lossy().starts_with(Folder::NAME));
        for entry in own {
            if File::open(entry.path()).is_ok_and(|folder| folder.try_lock().is_ok()) {
                let _ = fs::remove_dir_all(entry.path()); // if this fails, the folder stays
            }
        }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path); // if this fails, the folder stays
    }
}

/// What a process does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Role {
    MemoryNode,
    Controller,
    Gateway,
}

/// A part of the cluster, whose process is another one after each death.
#[derive(Debug)]
struct Member {
    role: Role,
    name: String,
    arguments: Vec<OsString>,
    address: Option<SocketAddr>,
    state: State,
    /// Since when the process is up or, if it is not, since when it is not.
    since: Instant,
    /// Whether a memory node that is not up is in the cluster, and lacks copies.
    is_in: bool,
    /// Number of deaths, one soon after the other.
    deaths: u32,
}

#[derive(Debug)]
enum State {
    /// Dead, and to be started again at this time.
    Dead(Instant),
    /// Started.
    Started(Process),
    /// A memory node that serves, and has not all copies.
    Joining(Process),
    /// As it should be.
    Up(Process),
}

impl Member {
    fn new(role: Role, name: String, arguments: Vec<OsString>, address: Option<SocketAddr>) -> Member {
        let now = Instant::now();
        Member { role, name, arguments, address, state: State::Dead(now), since: now, is_in: false, deaths: 0 }
    }

    fn process(&mut self) -> Option<&mut Process> {
        match &mut self.state {
            State::Dead(_) => None,
            State::Started(process) | State::Joining(process) | State::Up(process) => Some(process),
        }
    }

    fn pid(&self) -> u32 {
        match &self.state {
            State::Dead(_) => 0,
            State::Started(process) | State::Joining(process) | State::Up(process) => process.id(),
        }
    }

    /// Starts the process.
    fn start(&mut self, folder: &Path) -> Result<(), Failure> {
        self.state = State::Started(Process::start(folder, &self.name, &self.arguments)?);
        Ok(())
    }

    /// Waits until the process that was started is ready, or until the command is to stop.
    fn wait_until_ready(&mut self, stop: &AtomicBool) -> Result<(), Failure> {
        let now = Instant::now();
        let State::Started(mut process) = std::mem::replace(&mut self.state, State::Dead(now)) else { return Ok(()) };
        let ready = process.wait_for("be ready", |process| process.is_ready() || stop.load(Ordering::Relaxed));
        (self.state, self.since) = (State::Up(process), Instant::now());
        ready
    }

    /// Notes that the process has died. Returns what there is to say about it.
    fn bury(&mut self, status: ExitStatus) -> String {
        let now = Instant::now();
        let mut why = status.to_string();
        // One that was killed has no reason of its own.
        if let Some(error) = self.process().and_then(|process| process.last_error()).filter(|_| status.code().is_some())
        {
            why = format!("{why}: {}", output::printable(&error));
        }
        let was_up = matches!(self.state, State::Up(_));
        self.deaths = if was_up && now - self.since >= STEADY { 1 } else { self.deaths + 1 };
        let pause = pause_after(self.deaths);
        let line =
            format!("{} (pid {}) has died: {why}; starts again in {} ms", self.name, self.pid(), pause.as_millis());
        self.since = if was_up { now } else { self.since };
        (self.state, self.is_in) = (State::Dead(now + pause), false);
        line
    }

    /// Returns what there is to say of a process that is back.
    fn back(&self) -> String {
        format!("{} (pid {}) is back after {:.2} s", self.name, self.pid(), self.since.elapsed().as_secs_f64())
    }

    /// Notes that the process is up. Returns how long it was not.
    fn rise(&mut self) -> Duration {
        let now = Instant::now();
        self.state = match std::mem::replace(&mut self.state, State::Dead(now)) {
            State::Started(process) | State::Joining(process) | State::Up(process) => State::Up(process),
            State::Dead(at) => State::Dead(at),
        };
        now - std::mem::replace(&mut self.since, now)
    }
}

/// Returns whether a memory node is in the cluster, by a report of `remora status`.
fn is_in(status: &Value, address: SocketAddr) -> bool {
    let nodes = status["nodes"].as_array().map_or(&[][..], Vec::as_slice);
    nodes.iter().any(|node| node["address"] == address.to_string() && node["number"].is_u64())
}

/// Returns the pause after the last of some deaths.
fn pause_after(deaths: u32) -> Duration {
    let times = 1_u32.checked_shl(deaths.saturating_sub(1)).unwrap_or(u32::MAX);
    PAUSE.saturating_mul(times).min(PAUSE_MAX)
}

/// The processes of a cluster, which end when this is dropped.
#[derive(Debug)]
struct Processes {
    began: Instant,
    copies: u8,
    /// In the order in which they are started.
    members: Vec<Member>,
    /// The command that shows whether memory nodes are back, while it runs.
    asking: Option<(Process, Instant)>,
    asked: Instant,
    /// The options by which all but memory nodes find the cluster.
    meet: Vec<OsString>,
    /// Whether lines go to standard error, because standard output is the command's of `--exec`.
    notes: bool,
    /// The last, so that it is removed when no process uses it.
    folder: Folder,
}

impl Processes {
    fn new(options: &UpOptions, began: Instant) -> Result<Processes, Failure> {
        let folder = Folder::new()?;
        let key = NodeKey::generate().map_err(|error| Failure(error.to_string()))?;
        let place = folder.path.join("key");
        key.write_new(&place).map_err(|error| Failure::new(place.display(), error))?;
        let (copies, members, meet) = (options.copies(), Vec::new(), Vec::new());
        Ok(Processes { began, copies, members, asking: None, asked: began, meet, notes: false, folder })
    }

    fn key(&self) -> [OsString; 2] {
        ["--key-file".into(), self.folder.path.join("key").into()]
    }

    /// Starts the processes. Returns false if the command is to stop before they are ready.
    fn start_all(
        &mut self,
        options: &UpOptions,
        listeners: Vec<TcpListener>,
        stop: &AtomicBool,
    ) -> Result<bool, Failure> {
        let key = self.key();
        for number in 0..options.nodes() {
            let mut arguments =
                ["memnode", "--listen", "127.0.0.1:0", "--on-demand", "--size"].map(OsString::from).to_vec();
            arguments.extend([options.size.to_string().into()]);
            arguments.extend(key.clone());
            let mut node = Member::new(Role::MemoryNode, format!("memory node {number}"), arguments, None);
            node.start(&self.folder.path)?;
            self.members.push(node);
        }
        for node in &mut self.members {
            node.wait_until_ready(stop)?;
            if stop.load(Ordering::Relaxed) {
                return Ok(false);
            }
            let said = node.process().map_or_else(String::new, |process| process.said());
            let address = said.split_once("listening on ").and_then(|(_, rest)| rest.split(',').next()?.parse().ok());
            let Some(address) = address else { return Err(Failure::new(&node.name, format!("said {said}"))) };
            // A node that is started again gets the same address.
            let address: SocketAddr = address;
            node.arguments[2] = address.to_string().into();
            node.address = Some(address);
        }
        let addresses: Vec<String> = self.members.iter().filter_map(|node| Some(node.address?.to_string())).collect();
        let configuration = self.folder.path.join("configuration");
        self.meet =
            ["--connect".into(), addresses.join(",").into(), "--configuration".into(), configuration.into()].into();
        self.meet.extend(key);
        for number in 0..TWO {
            let arguments = [&["controller".into()], &self.meet[..]].concat();
            self.members.push(Member::new(Role::Controller, format!("controller {number}"), arguments, None));
        }
        let serve = options.serve.arguments();
        for (number, listener) in listeners.into_iter().enumerate() {
            let address = listener.local_addr().map_err(|error| Failure::new("--listen", error))?;
            let own =
                ["--listen".into(), address.to_string().into(), "--copies".into(), self.copies.to_string().into()];
            let arguments = [&["gateway".into()], &self.meet[..], &own, &serve].concat();
            self.members.push(Member::new(Role::Gateway, format!("gateway {number}"), arguments, Some(address)));
            // The gateway listens there now.
            drop(listener);
        }
        let others = usize::from(options.nodes())..;
        for member in &mut self.members[others.clone()] {
            member.start(&self.folder.path)?;
        }
        for member in &mut self.members[others] {
            member.wait_until_ready(stop)?;
        }
        Ok(!stop.load(Ordering::Relaxed))
    }

    /// Looks after the processes until the command is to stop.
    fn watch(
        &mut self,
        options: &UpOptions,
        port: u16,
        script: &mut Option<Script>,
        stop: &AtomicBool,
    ) -> Result<(), Failure> {
        if !self.notes {
            output::show(&self.greeting(options, port))?;
        }
        while !is_over(script, stop)? {
            for index in 0..self.members.len() {
                if let Some(line) = self.look_at(index)? {
                    self.say(&line)?;
                }
            }
            self.ask()?;
            let mut nodes = self.members.iter().filter(|member| member.role == Role::MemoryNode);
            if !nodes.any(|node| matches!(node.state, State::Up(_))) {
                return Err(Failure::new("memory nodes", "all have died at once, so what they held is lost"));
            }
            thread::sleep(LOOK);
        }
        Ok(())
    }

    /// Looks after one process. Returns what there is to say about it.
    fn look_at(&mut self, index: usize) -> Result<Option<String>, Failure> {
        let folder = self.folder.path.clone();
        let member = &mut self.members[index];
        if let State::Dead(until) = member.state {
            if Instant::now() >= until {
                member.start(&folder)?;
            }
            return Ok(None);
        }
        if let Some(status) = member.process().map_or(Ok(None), Process::ended)? {
            // An answer that is under way may be about the process that has died.
            self.asking = None;
            return Ok(Some(member.bury(status)));
        }
        match std::mem::replace(&mut member.state, State::Dead(member.since)) {
            State::Started(process) if process.is_ready() && member.role == Role::MemoryNode => {
                member.state = State::Joining(process);
                Ok(None)
            }
            State::Started(process) if process.is_ready() => {
                member.state = State::Up(process);
                let line = member.back();
                member.rise();
                Ok(Some(line))
            }
            state => {
                member.state = state;
                Ok(None)
            }
        }
    }

    /// Asks whether memory nodes are back, if any is to come back.
    fn ask(&mut self) -> Result<(), Failure> {
        let is_joining = |member: &Member| matches!(member.state, State::Joining(_));
        if !self.members.iter().any(is_joining) {
            self.asking = None;
            return Ok(());
        }
        let Some((asking, since)) = &mut self.asking else {
            if self.asked.elapsed() >= ASK {
                let arguments = [&["status".into()], &self.meet[..], &["--report".into(), "-".into()]].concat();
                self.asking = Some((Process::start(&self.folder.path, "status", &arguments)?, Instant::now()));
            }
            return Ok(());
        };
        let ended = asking.ended()?;
        if ended.is_none() && since.elapsed() < ANSWER {
            return Ok(());
        }
        let status: Value = serde_json::from_str(&asking.said()).unwrap_or_default();
        (self.asking, self.asked) = (None, Instant::now());
        let mut lines = Vec::new();
        for member in self.members.iter_mut().filter(|member| is_joining(member) && !member.is_in) {
            member.is_in = member.address.is_some_and(|address| is_in(&status, address));
            lines.extend(member.is_in.then(|| member.back()));
        }
        if drill::is_whole(&status, self.copies) {
            let took = self.members.iter_mut().filter(|member| is_joining(member)).map(Member::rise).max();
            let took = took.unwrap_or_default().as_secs_f64();
            lines.push(format!("{} again after {took:.2} s", super::copies_of_each_key(self.copies)));
        }
        lines.iter().try_for_each(|line| self.say(line))
    }

    fn say(&self, line: &str) -> Result<(), Failure> {
        let line = format!("{:.2} s: {line}", self.began.elapsed().as_secs_f64());
        if self.notes {
            output::note(&line);
            return Ok(());
        }
        output::show(&format!("{line}\n"))
    }

    /// Returns what the command says when it is ready.
    fn greeting(&self, options: &UpOptions, port: u16) -> String {
        let of = |role: Role| self.members.iter().filter(move |member| member.role == role);
        let listed = |role: Role| {
            of(role).fold(String::new(), |mut list, member| {
                let _ = write!(list, "  pid {}", member.pid());
                if let Some(address) = member.address {
                    let _ = write!(list, " port {}", address.port());
                }
                list
            })
        };
        let (taken, tls, copies) = (options.taken(port), options.tls_words(), super::copies_of_each_key(self.copies));
        let pid = of(Role::MemoryNode).next().map_or(0, Member::pid);
        let other = of(Role::Gateway).nth(1).and_then(|gateway| gateway.address).map_or(port, |address| address.port());
        let ip = of(Role::Gateway)
            .next()
            .and_then(|gateway| gateway.address)
            .map_or_else(String::new, |address| address.ip().to_string());
        format!(
            "remora up: {ip}:{port}{taken} and {ip}:{other}, {copies}, {} of memory at each node\n\
             memory nodes {}\n\
             controllers  {}\n\
             gateways     {}\n\
             try:  redis-cli -p {port}{tls} set greeting hello; redis-cli -p {other}{tls} get greeting\n\
             load: redis-benchmark -p {port}{tls} -t set,get -P 16 -q\n\
             kill: kill -9 {pid}, or another; it is started again, which this shows\n\
             stop: Ctrl-C\n",
            value::show_bytes(options.size),
            listed(Role::MemoryNode),
            listed(Role::Controller),
            listed(Role::Gateway),
        )
    }

    /// Stops all processes in order.
    fn stop(mut self) {
        self.asking = None;
        for role in [Role::Gateway, Role::Controller, Role::MemoryNode] {
            let mut stopping: Vec<&mut Member> = self.members.iter_mut().filter(|member| member.role == role).collect();
            let began = Instant::now();
            for process in stopping.iter_mut().filter_map(|member| member.process()) {
                let _ = process.signal(Signal::TERM); // it may have ended
            }
            while let Some(member) = stopping.pop() {
                while matches!(member.process().map(Process::ended), Some(Ok(None))) {
                    if began.elapsed() > STOP {
                        output::complain(&format!(
                            "{} has not stopped within {} s, and is killed",
                            member.name,
                            STOP.as_secs()
                        ));
                        break;
                    }
                    thread::sleep(LOOK);
                }
                member.state = State::Dead(began);
            }
        }
    }
}
