//! `remora drill`: runs SmallBank on a small cluster of real processes, and kills clients or memory
//! nodes, one after the other. Then it checks that nothing was lost, and that nothing of the dead
//! clients is left.

mod processes;
mod timeline;

use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use clap::Args;
use indicatif::ProgressBar;
use remora::Cluster;
use remora::admin::Reclaimed;
use remora::connect::Place;
use remora::protocol::Protocol;
use remora_check::{HistoryReader, ReadOptions};
use remora_command::inputs::Inputs;
use remora_workload::smallbank::{Customers, SmallBank};
use remora_workload::{Prng, Setting};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::options::{has_snapshots, usual_replicas};
use crate::output::{self, OutputFile, ReportTo};
use crate::rdma::RdmaArgs;
use crate::signals::stop_on_signals;
use crate::{Failure, Verdict, value};
use processes::{Client, Processes, now_ns};
use timeline::{RecoveryMs, Timeline, TookMs};

#[derive(Clone, Debug, Args, Serialize)]
#[command(after_help = "Examples:
  remora drill --seconds 20
  remora drill --fabric shm --protocol ford --csv drill.csv --svg drill.svg --report drill.json
  remora drill --stall --lease-ms 300
  remora drill --kill nodes --memory-nodes 4 --spares 1 --every 5

Starts memory nodes and clients as processes of their own, and kills a client with SIGKILL every so often, drawn from the
seed; another one takes its place. Or, with --kill nodes, a memory node, which is started again with nothing half way to the
next kill; none is killed before there are as many copies of everything again as there were. At the end, all of this must hold, and is said: money is conserved, by the ledger; no lock
is held; replicas are identical; every log entry is settled; all histories together are strictly serializable; no client slot
is left; every record has its copies. If not, the files of the run are kept.

Exit status: 0 all of it holds, 1 something does not, 2 bad input, or a process could not be started.")]
pub(crate) struct DrillOptions {
    /// tcp, memory nodes over TCP; verbs, over RDMA; shm, in files that the processes map; or
    /// passive, in such files without memory node processes.
    #[arg(long, value_name = "NAME", default_value = "tcp", value_parser = fabric)]
    #[serde(skip)]
    fabric: String,
    #[command(flatten)]
    #[serde(flatten)]
    rdma: RdmaArgs,
    /// Memory nodes.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=16))]
    memory_nodes: u16,
    /// Copies of each record [default: 3, or 1 if the protocol keeps no more].
    #[arg(long, value_name = "R", value_parser = clap::value_parser!(u8).range(1..=7))]
    replicas: Option<u8>,
    /// Number of these memory nodes that have no shards until another node is killed.
    #[arg(long, value_name = "N", default_value_t = 0)]
    spares: u16,
    /// The victims: clients, or memory nodes.
    #[arg(long, value_name = "WHO", default_value = "clients")]
    kill: Victims,
    /// Place of the configuration of clients and controllers [default: a file of the drill's own].
    #[arg(long, value_name = "FILE|etcd://...")]
    #[serde(skip)]
    configuration: Option<OsString>,
    /// Client processes at a time, each with one thread. With only one, no client could recover it.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(2..=64))]
    clients: u16,
    /// Transactions in flight for each client.
    #[arg(long, value_name = "C", default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..32))]
    coroutines: u64,
    /// Seconds between two kills.
    #[arg(long, value_name = "S", default_value_t = 2.0, value_parser = value::seconds)]
    every: f64,
    /// Seconds of the drill in which victims are killed. Then all clients run on for as long as
    /// between two kills.
    #[arg(long, value_name = "S", default_value_t = 60.0, value_parser = value::seconds)]
    seconds: f64,
    /// At most N transactions a second, of all clients together. All of them are recorded, and
    /// checked in the end.
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(1..))]
    rate: u64,
    /// The protocol by which transactions run.
    #[arg(long, value_name = "NAME", default_value = Protocol::default().name(), value_parser = value::protocol)]
    #[serde(skip)]
    protocol: String,
    /// FORD's mechanisms to leave out, separated by commas.
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = value::ford_mechanism)]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    ford_without: Vec<String>,
    /// Read balances in snapshots: half of them fresh, and half at most 10 ms old. The protocol
    /// must have them, as remora has.
    #[arg(long)]
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    snapshots: bool,
    /// Number of customers. 4 % of them are in 90 % of the transactions.
    #[arg(long, value_name = "N", default_value_t = 10_000,
          value_parser = clap::value_parser!(u64).range(Customers::ACCOUNTS_MIN..=10_000_000))]
    accounts: u64,
    /// Lease of a client. After this time without a renewal, other clients take it for dead.
    #[arg(long, value_name = "MS", default_value_t = 2_000, value_parser = clap::value_parser!(u64).range(10..=3_600_000))]
    lease_ms: u64,
    /// Between two kills, stop a client for three of its leases. The others take it for dead, and
    /// it has to notice that when it goes on.
    #[arg(long)]
    stall: bool,
    /// Seed of the choice of victims, and of all transactions.
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
    /// Write the timeline: committed transactions of each client in bins of 20 ms, and the kills.
    #[arg(long, value_name = "FILE")]
    #[serde(skip)]
    csv: Option<PathBuf>,
    /// Draw the timeline.
    #[arg(long, value_name = "FILE")]
    #[serde(skip)]
    svg: Option<PathBuf>,
    /// Write the report as JSON; - for standard output.
    #[arg(long, value_name = "FILE|-")]
    #[serde(skip)]
    report: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
enum Victims {
    Clients,
    Nodes,
}

impl DrillOptions {
    /// Whether memory nodes are files, which processes of this host map.
    fn is_in_files(&self) -> bool {
        ["shm", "passive"].contains(&self.fabric.as_str())
    }

    fn protocol(&self) -> Protocol {
        value::protocol_without(&self.protocol, &self.ford_without)
    }

    fn replicas(&self) -> u8 {
        self.replicas.unwrap_or_else(|| usual_replicas(self.protocol()))
    }
}

fn fabric(text: &str) -> Result<String, String> {
    match text {
        "tcp" | "verbs" | "shm" | "passive" => Ok(text.to_owned()),
        _ => Err("processes meet over tcp, verbs, shm or passive".to_owned()),
    }
}

/// The report of a drill.
#[derive(Debug, Serialize)]
struct Report<'a> {
    workload: &'static str,
    protocol: &'a str,
    fabric: &'a str,
    config: &'a DrillOptions,
    seconds: f64,
    /// Number of client processes, including the killed ones.
    clients: usize,
    kills: usize,
    /// Number of clients that stood still for a while.
    stalls: usize,
    committed: u64,
    throughput_tps: f64,
    /// Number of workers that were taken for dead although they were alive, and went on as new
    /// clients.
    fenced: u64,
    /// Number of processes that other clients ended because they took them for dead. On shared
    /// memory there is no other way to revoke a client.
    ended_by_others: usize,
    recovery_ms: RecoveryMs,
    took_ms: TookMs,
    /// Time from the kill of each memory node until all shards had their copies again.
    copies_ms: Vec<u64>,
    histories: Histories,
    invariants: Vec<Invariant>,
}

/// An invariant, as a client's report has it.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Invariant {
    name: String,
    holds: Option<bool>,
    detail: String,
}

#[derive(Clone, Copy, Debug, Default, Serialize)]
struct Histories {
    transactions: u64,
    committed: u64,
    aborted: u64,
    unknown: u64,
    unknown_observed: u64,
    rollbacks: u64,
    anomalies: u64,
}

pub(crate) fn drill(options: &DrillOptions) -> Result<Verdict, Failure> {
    let (protocol, replicas) = (options.protocol(), options.replicas());
    let options = &DrillOptions { replicas: Some(replicas), ..options.clone() };
    if u16::from(replicas) > options.memory_nodes {
        let why = format!("needs as many memory nodes, and --memory-nodes is {}", options.memory_nodes);
        return Err(Failure::new(format!("--replicas {replicas}"), why));
    }
    let copies_max = protocol.discipline().copies_max();
    if usize::from(replicas) > copies_max {
        let why = format!("is too many: protocol {} keeps one copy of each record", options.protocol);
        return Err(Failure::new(format!("--replicas {replicas}"), why));
    }
    if options.kill == Victims::Nodes && copies_max == 1 {
        let why = format!("would lose records: protocol {} keeps one copy of each", options.protocol);
        return Err(Failure::new("--kill nodes", why));
    }
    if !protocol.is_serializable() {
        let mut what = format!("--protocol {}", options.protocol);
        if !options.ford_without.is_empty() {
            what += &format!(" --ford-without {}", options.ford_without.join(","));
        }
        return Err(Failure::new(what, "promises nothing that could be checked"));
    }
    if options.snapshots {
        has_snapshots(protocol)?;
    }
    if options.kill == Victims::Nodes && options.is_in_files() {
        return Err(Failure::new("--kill nodes", "needs --fabric tcp or verbs: memory in files outlives its process"));
    }
    if u16::from(replicas) > options.memory_nodes.saturating_sub(options.spares) {
        let why = format!("leaves too few of {} memory nodes for {replicas} copies", options.memory_nodes);
        return Err(Failure::new(format!("--spares {}", options.spares), why));
    }
    options.rdma.open(options.fabric == "verbs")?;
    let configuration = options.configuration.as_deref().and_then(|place| Place::try_from(place).ok());
    Inputs::default().with_configuration(configuration.as_ref()).check(&[
        ("--report", ReportTo::file(options.report.as_deref())),
        ("--csv", options.csv.as_deref()),
        ("--svg", options.svg.as_deref()),
    ])?;
    let report_to = ReportTo::open(options.report.as_deref())?;
    let open = |option, path: &Option<PathBuf>| path.as_deref().map(|path| OutputFile::open(option, path)).transpose();
    let (csv_to, svg_to) = (open("--csv", &options.csv)?, open("--svg", &options.svg)?);
    let stop = stop_on_signals()?;
    let mut processes = Processes::new(options, node_bytes(options))?;
    let ran = run(options, &mut processes, &stop).and_then(|ran| {
        let concluded = conclude(options, &mut processes, &ran)?;
        Ok((ran, concluded))
    });
    let (ran, (invariants, histories, timeline)) = ran.map_err(|Failure(why)| {
        Failure(format!("{why}; the files of the run are in {}", processes.keep().display()))
    })?;
    let csv = csv_to.map_or(Ok(()), |output| output.fill(timeline.csv()));
    let victim = if options.kill == Victims::Nodes { "a memory node" } else { "a client" };
    let title = format!("{} over {}: {victim} is killed every {} s", options.protocol, options.fabric, options.every);
    let svg = svg_to.map_or(Ok(()), |output| {
        let drawn = timeline.svg(&title, &format!("{victim} is killed"));
        output.fill(drawn.map_err(|error| output.failure(error))?)
    });
    let (committed, seconds) = (timeline.committed(), timeline.seconds());
    let report = Report {
        workload: "smallbank",
        protocol: &options.protocol,
        fabric: &options.fabric,
        config: options,
        seconds,
        clients: ran.clients.len(),
        kills: ran.clients.iter().filter(|client| client.killed).count() + ran.lost.len(),
        stalls: ran.stalls,
        committed,
        throughput_tps: committed as f64 / seconds,
        fenced: ran.fenced(),
        ended_by_others: ran.clients.iter().filter(|client| client.ended_by_others).count(),
        recovery_ms: timeline.recovery(),
        took_ms: timeline.took_ms(),
        copies_ms: ran.lost.iter().filter_map(Lost::took_ms).collect(),
        histories,
        invariants,
    };
    let written = output::all([report_to.write(&report, || table(&report)), csv, svg]);
    let broken: Vec<&str> =
        report.invariants.iter().filter(|one| one.holds != Some(true)).map(|one| one.name.as_str()).collect();
    if broken.is_empty() {
        return Verdict::Sound.told(written);
    }
    let kept = processes.keep();
    output::complain(&format!("does not hold: {}; the files of the run are in {}", broken.join(", "), kept.display()));
    Verdict::Unsound.told(written)
}

/// Returns the bytes of a memory node. It needs room for the tables and for rings: of living
/// clients, of dead clients that are not recovered yet, and of clients that come and leave.
fn node_bytes(options: &DrillOptions) -> u64 {
    let setting = Setting {
        memory_nodes: options.memory_nodes,
        replicas: options.replicas(),
        workers: 8 * u64::from(options.clients) + 64,
        coroutines: options.coroutines,
        archive: None,
    };
    // Another node takes the shards of a lost one.
    let times = if options.kill == Victims::Nodes { 2 } else { 1 };
    (times * SmallBank::node_bytes_with_ledger(options.accounts, &setting)).next_multiple_of(1 << 20)
}

/// What has happened in a drill.
#[derive(Debug)]
struct Ran {
    began_ns: u64,
    ended_ns: u64,
    stalls: usize,
    /// All clients of the drill, in the order of their numbers.
    clients: Vec<Client>,
    lost: Vec<Lost>,
}

/// A memory node that was killed.
#[derive(Clone, Copy, Debug)]
struct Lost {
    node: usize,
    at_ns: u64,
    /// When the node was started again, empty.
    back_ns: Option<u64>,
    /// When all shards had as many copies again as before.
    copied_ns: Option<u64>,
}

impl Lost {
    fn took_ms(&self) -> Option<u64> {
        self.copied_ns.map(|at| (at - self.at_ns) / 1_000_000)
    }
}

impl Ran {
    fn fenced(&self) -> u64 {
        self.clients.iter().filter_map(Client::report).filter_map(|report| report["fenced"].as_u64()).sum()
    }
}

const LOOK: Duration = Duration::from_millis(5);
/// Pause between two questions how many copies there are.
const ASK_NS: u64 = 200_000_000;
/// How long the drill waits for copies in the end.
const COPIES_NS: u64 = 60_000_000_000;
/// Number of leases for which a client stands still that is to be taken for dead.
const STALL_LEASES: u64 = 3;

fn run(options: &DrillOptions, processes: &mut Processes, stop: &AtomicBool) -> Result<Ran, Failure> {
    processes.load()?;
    if options.kill == Victims::Nodes {
        processes.start_controllers()?;
    }
    let count = usize::from(options.clients);
    let mut clients = Vec::new();
    for _ in 0..count {
        clients.push(processes.client(clients.len())?);
    }
    for client in &mut clients {
        processes.wait_for_history(client)?;
    }
    let (every, length) = (Duration::from_secs_f64(options.every), Duration::from_secs_f64(options.seconds));
    let kills = (length.as_nanos() / every.as_nanos().max(1)) as u64;
    let every = every.as_nanos() as u64;
    let mut random = Prng::new(options.seed);
    let bar = ProgressBar::new(kills).with_message("kills");
    let began_ns = now_ns();
    let mut next = began_ns + every;
    let mut kill = 1;
    let (mut stalls, mut stalled) = (0, None);
    let mut lost: Vec<Lost> = Vec::new();
    let mut asked = began_ns;
    while (kill <= kills || now_ns() < next) && !stop.load(Ordering::Relaxed) {
        thread::sleep(LOOK);
        processes.look()?;
        let mut living: Vec<usize> = (0..clients.len()).filter(|index| clients[*index].ended_ns.is_none()).collect();
        for index in living.clone() {
            if clients[index].has_ended()? {
                clients.push(processes.client(clients.len())?);
            }
        }
        living.retain(|index| clients[*index].ended_ns.is_none());
        if living.is_empty() {
            continue;
        }
        if let Some(last) = lost.last_mut() {
            attend(processes, options, last, every, &mut asked)?;
        }
        let is_whole = lost.last().is_none_or(|last| last.copied_ns.is_some());
        if kill <= kills && now_ns() >= next && is_whole {
            if options.kill == Victims::Nodes {
                // The first victim is a node that has primaries.
                let spares = if lost.is_empty() { options.spares } else { 0 };
                let node = random.below(u64::from(options.memory_nodes - spares)) as usize;
                processes.kill_node(node)?;
                lost.push(Lost { node, at_ns: now_ns(), back_ns: None, copied_ns: None });
                next = now_ns() + every;
            } else {
                let victim = living[random.below(living.len() as u64) as usize];
                clients[victim].kill()?;
                clients.push(processes.client(clients.len())?);
                next += every;
            }
            kill += 1;
            bar.inc(1);
        } else if options.stall && stalls < kill && now_ns() + every / 2 >= next {
            let still = living[random.below(living.len() as u64) as usize];
            clients[still].stand_still(true)?;
            stalled = Some((still, now_ns() + STALL_LEASES * 1_000_000 * options.lease_ms));
            stalls += 1;
        }
        if let Some((still, _)) = stalled.take_if(|(_, until)| now_ns() >= *until) {
            clients[still].stand_still(false)?;
        }
    }
    let ended_ns = now_ns();
    if let Some(last) = lost.last_mut() {
        while last.copied_ns.is_none() && now_ns() < ended_ns + COPIES_NS {
            attend(processes, options, last, every, &mut asked)?;
            thread::sleep(LOOK);
        }
        until_swept(processes)?;
    }
    if let Some((still, _)) = stalled {
        clients[still].stand_still(false)?;
    }
    for client in clients.iter_mut().filter(|client| client.ended_ns.is_none()) {
        client.stop()?;
    }
    processes.stop_controllers()?;
    bar.finish_and_clear();
    Ok(Ran { began_ns, ended_ns, stalls: stalls as usize, clients, lost })
}

/// Waits until the living clients have given back the slots of clients that an epoch has ended. If
/// there are many, this takes seconds.
fn until_swept(processes: &Processes) -> Result<(), Failure> {
    const QUIET_NS: u64 = 2_000_000_000;
    let (mut fewest, mut since) = (u64::MAX, now_ns());
    while now_ns() < since + QUIET_NS {
        let left = slots(&processes.ask("slots", &["status", "--report", "-"], false)?).unwrap_or(u64::MAX);
        if left < fewest {
            (fewest, since) = (left, now_ns());
        }
        thread::sleep(LOOK);
    }
    Ok(())
}

/// Starts a killed memory node again, and notes when all copies are there again.
fn attend(
    processes: &mut Processes,
    options: &DrillOptions,
    lost: &mut Lost,
    every: u64,
    asked: &mut u64,
) -> Result<(), Failure> {
    let now = now_ns();
    if lost.back_ns.is_none() && now >= lost.at_ns + every / 2 {
        processes.start_node(lost.node)?;
        lost.back_ns = Some(now);
    }
    if lost.back_ns.is_some() && lost.copied_ns.is_none() && now >= *asked + ASK_NS {
        *asked = now;
        if is_whole(&processes.ask("copies", &["status", "--report", "-"], false)?, options.replicas()) {
            lost.copied_ns = Some(now_ns());
        }
    }
    Ok(())
}

/// Checks the invariants, and makes the timeline.
fn conclude(
    options: &DrillOptions,
    processes: &mut Processes,
    ran: &Ran,
) -> Result<(Vec<Invariant>, Histories, Timeline), Failure> {
    // Where clients have room for records in hand, what the dead ones had is made usable first.
    let reclaimed = if options.is_in_files() && options.protocol().discipline().is_repairable() {
        Some(no_room_is_lost(&processes.cluster(options.protocol())?)?)
    } else {
        None
    };
    let checked = processes.ask("check", &["bench", "smallbank", "--check", "--report", "-"], true)?;
    let invariants = checked["invariants"].clone();
    let mut invariants: Vec<Invariant> =
        serde_json::from_value(invariants).map_err(|error| Failure::new("the report of --check", error))?;
    let status = processes.ask("status", &["status", "--report", "-"], false)?;
    invariants.push(no_slot_is_left(&status));
    invariants.push(copies(&status, options.replicas()));
    invariants.extend(reclaimed);
    processes.stop_nodes()?;
    let mut reader = HistoryReader::new(ReadOptions { crashed: true });
    let of_clients = ran.clients.iter().map(|client| client.history.as_path());
    let mut unreadable = None;
    for path in std::iter::once(processes.loaded()).chain(processes.put_back()).chain(of_clients) {
        let name = path.display().to_string();
        let read = existing(path).and_then(|file| match file {
            Some(file) => {
                reader.read(&name, BufReader::with_capacity(1 << 20, file)).map_err(|e| Failure(e.to_string()))
            }
            None => Ok(()),
        });
        if let Err(Failure(why)) = read {
            unreadable.get_or_insert(why);
        }
    }
    let history = reader.finish().history;
    let report = remora_check::check(&history);
    let counts = report.counts;
    let histories = Histories {
        transactions: counts.transactions,
        committed: counts.committed,
        aborted: counts.aborted,
        unknown: counts.unknown,
        unknown_observed: counts.unknown_observed,
        rollbacks: counts.rollbacks,
        anomalies: report.anomalies.len() as u64 + report.anomalies_omitted,
    };
    let name = "histories are strictly serializable".to_owned();
    invariants.push(match unreadable {
        // A history that is cut lacks transactions, which would look like errors of other clients.
        Some(why) => Invariant { name, holds: None, detail: why },
        None => {
            if !report.is_clean() {
                output::complain(&report.to_string());
            }
            let detail = format!("{counts}; {} anomalies", histories.anomalies);
            Invariant { name, holds: Some(report.is_clean()), detail }
        }
    });
    let timeline = Timeline::new(&history, ran, Duration::from_secs_f64(options.every));
    Ok((invariants, histories, timeline))
}

/// Opens a history, if there is one. A client that was killed before it could record anything has
/// none.
fn existing(path: &Path) -> Result<Option<File>, Failure> {
    match File::open(path) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Failure::new(path.display(), error)),
    }
}

/// Returns the number of client slots in use, at all nodes together.
fn slots(status: &Value) -> Option<u64> {
    status["nodes"].as_array()?.iter().map(|node| node["clients"].as_u64()).sum()
}

fn no_slot_is_left(status: &Value) -> Invariant {
    let nodes = status["nodes"].as_array().map_or(0, Vec::len);
    let left = slots(status);
    let detail = left.map_or_else(|| status.to_string(), |left| format!("{left} slots of {nodes} nodes"));
    Invariant { name: "no client slot is left".to_owned(), holds: left.map(|left| left == 0), detail }
}

/// Reclaims what dead clients had in hand, and checks that nothing of it is lost then.
fn no_room_is_lost(cluster: &Cluster) -> Result<Invariant, Failure> {
    let reclaim = || cluster.reclaim().map_err(|error| Failure::new("reclaiming", error));
    let (found, left) = (reclaim()?, reclaim()?);
    let detail = format!(
        "{} blocks ({}), {} buckets and {} locks of killed clients were reclaimed, and {} blocks are lost",
        found.blocks,
        value::show_bytes(found.bytes),
        found.buckets,
        found.locks,
        left.blocks
    );
    Ok(Invariant { name: "no room is lost".to_owned(), holds: Some(left == Reclaimed::default()), detail })
}

/// Returns whether all nodes are in the cluster and all tables have their copies, by a report of
/// `remora status`.
pub(crate) fn is_whole(status: &Value, replicas: u8) -> bool {
    copies(status, replicas).holds == Some(true)
}

/// Checks that all nodes are in the cluster, and that all tables have their copies.
fn copies(status: &Value, replicas: u8) -> Invariant {
    let rows = |what: &str| status[what].as_array().map_or(&[][..], Vec::as_slice);
    let are_in = rows("nodes").iter().all(|node| node["number"].is_u64());
    let fewest = rows("tables").iter().map(|table| table["copies"].as_u64().unwrap_or(0)).min();
    let joining: u64 = rows("tables").iter().filter_map(|table| table["joining"].as_u64()).sum();
    let detail = format!("{} copies at least, {joining} under way; all nodes are in: {are_in}", fewest.unwrap_or(0));
    let holds = are_in && joining == 0 && fewest == Some(replicas.into());
    Invariant { name: "every record has its copies".to_owned(), holds: Some(holds), detail }
}

fn table(report: &Report<'_>) -> String {
    output::text(|text| write_table(text, report))
}

fn write_table(text: &mut String, report: &Report<'_>) -> std::fmt::Result {
    let options = report.config;
    writeln!(
        text,
        "drill: smallbank by {} over {}: {} memory nodes, {} copies, {} clients x {} coroutines, seed {}\n",
        report.protocol,
        report.fabric,
        options.memory_nodes,
        options.replicas(),
        options.clients,
        options.coroutines,
        options.seed
    )?;
    let (committed, rate) = (output::grouped(report.committed), output::grouped(report.throughput_tps as u64));
    if options.kill == Victims::Nodes {
        writeln!(text, "killed         {} memory nodes in {:.1} s", report.kills, report.seconds)?;
        let copies = report.copies_ms.iter().max().map_or_else(|| "-".to_owned(), |most| format!("{most} ms"));
        writeln!(text, "copies         back after {copies} at most, {} ms of them away", options.every * 500.0)?;
    } else {
        writeln!(text, "killed         {} of {} clients in {:.1} s", report.kills, report.clients, report.seconds)?;
    }
    writeln!(text, "throughput     {rate} transactions/s ({committed} committed)")?;
    if options.stall {
        writeln!(text, "stood still    {} clients, for {} ms each", report.stalls, STALL_LEASES * options.lease_ms)?;
    }
    writeln!(text, "taken for dead {} workers, {} processes", report.fenced, report.ended_by_others)?;
    let recovery = &report.recovery_ms;
    let show = |time: Option<u64>| time.map_or_else(|| "-".to_owned(), |time| format!("{time} ms"));
    let (median, max) = (show(recovery.median), show(recovery.max));
    writeln!(
        text,
        "survivors back at 90 % of their rate: median {median}, slowest {max}, not before the next kill {}",
        recovery.not_before_the_next
    )?;
    let TookMs { p50, p99, p999, max } = report.took_ms;
    writeln!(text, "took, in ms    p50 {p50:.2}, p99 {p99:.2}, p99.9 {p999:.2}, longest {max:.2}\n")?;
    report.invariants.iter().try_for_each(|one| output::write_invariant(text, &one.name, one.holds, &one.detail))
}
