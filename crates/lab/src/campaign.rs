//! Campaigns: a workload, many seeds, and everything that can go wrong; every history is checked.
//!
//! A [`Case`] is one run, and all that it depends on. The campaign shrinks a failing case to fewer
//! clients, keys and faults as long as it fails. Faults are planned between the first lock of some
//! transaction and its release, because that is where they hurt.
//!
//! Each seed draws the faults of its run from the campaign's faults (*swarm testing*), because a
//! fault can hide what another one shows.
//!
//! In some runs memory nodes fail, or are declared lost: at most as many as there are copies to
//! spare. Such a run has controllers, which detect that. Every client goes on in the next epoch.
//! There may be a spare node. A node that failed may come back empty. A node that was declared lost
//! while it was alive gives up what it had. The run does not end before there are as many copies of
//! everything again as there can be.
//!
//! Where transactions are validated locally, all clients share one version cache. They stand for
//! threads of one process. But each client has a network of its own, and dies alone while the
//! process goes on.
//!
//! Where futures are dropped (the fault `cancel`), programs give up what they await: a whole
//! transaction, wherever it is at the time of the fault. In the workloads `registers` and `ranges`
//! programs also give up single fetches and operations inside a transaction. The transaction then
//! does them again and goes on.
//!
//! In three of four runs clients have leases. These are often so short that other clients take a
//! client for dead that only pauses. It goes on as a zombie, finds that out, and another client
//! takes its place. In the other runs no client watches the others. At the end of every run a
//! janitor recovers all clients that are gone, asks what became of each transaction whose answer
//! was lost, and reads every record. The history with those answers and those reads must be
//! strictly serializable.

mod aftermath;
mod cancel;
mod ranges;
mod registers;
mod reported;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io::Write;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ranges::Ranges;
use registers::Registers;
use remora::floors::memory::{ShardPlacement, metadata, node};
use remora::floors::txn::mutant::{self, Mutant};
use remora::{
    Cluster, ClusterOptions, Configuration, ConfigurationError, Controller, Error, Inspection, Observer, Outcome,
    Protocol, Session, Standing, Validation,
};
use remora::{TransactionEvent, TransactionId, Worker, WorkerOptions};
use remora_check::{HistoryFile, HistoryReader, ReadOptions, check};
use remora_fabric::sim::{Deployment, Driven, Ended, FaultKind, Planned, Profile, Sim, SimOptions};
use remora_fabric::{ClientId, Fabric, Nanos, NodeId, NodeSet, probes};
use remora_workload::smallbank::{Customers, SmallBank};
use remora_workload::tatp::{self, Subscribers, Tatp};
use remora_workload::tpcc::{self, Room, Scale, Tpcc};
use remora_workload::ycsb::{self, Mix, Size, Ycsb};
use remora_workload::{After, Invariant, Prng, Setting, Workload};
use reported::Reported;

/// A workload of a campaign.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Load {
    /// SmallBank on few accounts.
    SmallBank,
    /// TATP on few subscribers, all kinds as often as each other.
    Tatp,
    /// TPC-C on two small warehouses, all kinds as often as each other.
    Tpcc,
    /// YCSB, all kinds of operations as often as each other, two to a transaction.
    Ycsb,
    /// Reads, writes, inserts and deletes of few records, of one line and of many.
    Registers,
    /// Keys of ordered tables that come and go, and ranges of them.
    Ranges,
}

impl Load {
    /// All of them.
    pub const ALL: [Load; 6] = [Load::SmallBank, Load::Tatp, Load::Tpcc, Load::Ycsb, Load::Registers, Load::Ranges];

    /// Returns the name of the workload on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Load::SmallBank => "smallbank",
            Load::Tatp => "tatp",
            Load::Tpcc => "tpcc",
            Load::Ycsb => "ycsb",
            Load::Registers => "registers",
            Load::Ranges => "ranges",
        }
    }
}

/// Faults that a campaign can have, by name.
pub const FAULTS: [&str; 12] = [
    "crash",
    "pause",
    "delay",
    "partition",
    "isolate",
    "stall",
    "clock-step",
    "lose",
    "duplicate",
    "fail",
    DRAIN,
    CANCEL,
];

/// The fault in which an operator drains a node. It is not a fault of the simulation.
const DRAIN: &str = "drain";

/// The fault in which a program drops a future. It is not a fault of the simulation.
const CANCEL: &str = "cancel";

/// Returns how often a fault of this name is planned in a run that has it. A run has one crash at
/// most, since too little is left after it, and one stall, since it takes too long.
fn times(name: &str, nodes: &Nodes, random: &mut Prng) -> u64 {
    match name {
        "crash" | "stall" => 1,
        "fail" => nodes.failures,
        "isolate" => nodes.isolations,
        DRAIN => nodes.drains,
        CANCEL => 4 + random.below(12),
        _ => 1 + random.below(4),
    }
}

/// Draws how long after its probe a fault happens: at once, before the packets have left, or after
/// some round trip.
fn after(random: &mut Prng) -> Nanos {
    let most = [1, 300, 4_000][random.below(3) as usize];
    random.below(most)
}

/// Makes a fault of this name, and draws its times.
fn fault(case: &Case, name: &str, random: &mut Prng) -> Option<FaultKind> {
    Some(match name {
        "isolate" => {
            // So long that controllers declare the node lost, and clients lose it: any of the
            // clients, or only clients.
            let all = |places: usize| 1u64.checked_shl(places as u32).map_or(u64::MAX, |end| end - 1);
            let clients = all(case.places());
            let controllers = all(case.places() + CONTROLLERS) & !clients;
            let some = clients & random.next_u64();
            let (time, of_clients) = (2_000_000 + random.below(6_000_000), random.below(4) == 0);
            FaultKind::Isolate(time, if of_clients { some } else { some | controllers })
        }
        "crash" => FaultKind::Crash,
        "pause" => FaultKind::Pause(10_000 + random.below(500_000)),
        "delay" => FaultKind::Delay(5_000 + random.below(200_000)),
        "partition" => FaultKind::Partition(10_000 + random.below(400_000)),
        "stall" => FaultKind::Stall(6_000_000 + random.below(2_000_000)),
        "clock-step" => FaultKind::ClockStep(random.below(2_000_000_000) as i64 - 1_000_000_000),
        "lose" => FaultKind::Lose,
        "fail" => FaultKind::Fail,
        "duplicate" => FaultKind::Duplicate,
        DRAIN => FaultKind::Told(DRAIN),
        CANCEL => FaultKind::Told(CANCEL),
        _ => return None,
    })
}

/// One run of a campaign, and all that it depends on.
#[derive(Clone, PartialEq, Debug)]
pub struct Case {
    /// The seed of all random choices.
    pub seed: u64,
    /// The workload.
    pub load: Load,
    /// How transactions are run.
    pub protocol: Protocol,
    /// Faults by name, each of which happens at least once in this run.
    pub faults: Vec<String>,
    /// Clients, each on a machine of its own. If they validate locally, they are threads of one
    /// process all the same.
    pub clients: usize,
    /// Coroutines of each client.
    pub coroutines: usize,
    /// Keys, which all clients share.
    pub keys: u64,
    /// Transactions that must have committed.
    pub transactions: u64,
}

impl Case {
    /// Returns the smallest run that makes sense in a campaign.
    #[must_use]
    pub fn new(seed: u64, load: Load, protocol: Protocol, faults: &[String]) -> Case {
        let faults = faults.to_vec();
        Case { seed, load, protocol, faults, clients: 4, coroutines: 4, keys: 50, transactions: 1_000 }
    }

    /// Returns this case for another seed. The seed draws each fault of the case with even chance;
    /// if that leaves none, the run has all of them.
    #[must_use]
    pub fn of(&self, seed: u64) -> Case {
        let mut random = Prng::derive(seed, 0x5a32);
        let chosen: Vec<String> = self.faults.iter().filter(|_| random.below(2) == 0).cloned().collect();
        let faults = if chosen.is_empty() { self.faults.clone() } else { chosen };
        Case { seed, faults, ..self.clone() }
    }

    fn has(&self, fault: &str) -> bool {
        self.faults.iter().any(|name| name == fault)
    }

    /// Whether memory nodes are lost, rightly or not, or leave.
    fn loses_nodes(&self) -> bool {
        self.has("fail") || self.has("isolate") || self.has(DRAIN)
    }

    /// Counts the places of clients and of their spares. Controllers have the next places.
    fn places(&self) -> usize {
        2 * self.clients
    }

    /// Returns the command that runs the case again.
    #[must_use]
    pub fn command(&self) -> String {
        let mut command = format!(
            "remora-lab replay --seed {} --workload {} --protocol {}",
            self.seed,
            self.load.name(),
            self.protocol.name()
        );
        let faults = if self.faults.is_empty() { "none".to_owned() } else { self.faults.join(",") };
        command += &format!(" --faults {faults}");
        let Case { clients, coroutines, keys, transactions, .. } = self;
        command + &format!(" --clients {clients} --coroutines {coroutines} --keys {keys} --transactions {transactions}")
    }
}

/// The result of a run.
#[derive(Clone, Default, Debug)]
pub struct Ran {
    /// Attempts that committed.
    pub committed: u64,
    /// Attempts whose client was not told how they ended.
    pub unknown: u64,
    /// Attempts of unknown outcome whose outcome was found out at the end.
    pub resolved: u64,
    /// Clients that were gone, dead or taken for dead, and were recovered.
    pub recovered: u64,
    /// Clients that were taken for dead and were not dead.
    pub fenced: u64,
    /// Attempts that aborted, by cause.
    pub aborted: BTreeMap<&'static str, u64>,
    /// Faults by kind: how many, and how many of them met a transaction that held locks.
    pub faults: BTreeMap<&'static str, (u64, u64)>,
    /// How often each probe was reached.
    pub probes: BTreeMap<&'static str, u64>,
    /// Virtual time.
    pub virtual_ns: Nanos,
    /// Events of the simulation.
    pub events: u64,
    /// A digest of the history: the same for the same case.
    pub digest: u64,
}

impl Ran {
    fn add(&mut self, other: &Ran) {
        self.committed += other.committed;
        self.unknown += other.unknown;
        self.resolved += other.resolved;
        self.recovered += other.recovered;
        self.fenced += other.fenced;
        other.aborted.iter().for_each(|(cause, count)| *self.aborted.entry(cause).or_default() += count);
        for (kind, (all, holding)) in &other.faults {
            let sum = self.faults.entry(kind).or_default();
            *sum = (sum.0 + all, sum.1 + holding);
        }
        other.probes.iter().for_each(|(probe, count)| *self.probes.entry(probe).or_default() += count);
        self.virtual_ns += other.virtual_ns;
        self.events += other.events;
    }

    fn attempts(&self) -> u64 {
        self.committed + self.unknown + self.aborted.values().sum::<u64>()
    }
}

/// A run that shows a mistake.
#[derive(Clone, Debug)]
pub struct Violation {
    /// The case as it was found.
    pub case: Case,
    /// What is wrong.
    pub what: String,
    /// The smallest run that was found to show a mistake too.
    pub shrunk: Case,
}

/// A file in memory that can be read while another owner writes it.
#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if let Ok(mut all) = self.0.lock() {
            all.extend_from_slice(bytes);
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Counts attempts and keeps what was reported, beside a recorder.
struct Watch {
    lane: usize,
    counts: Rc<RefCell<Ran>>,
    reported: Rc<RefCell<Reported>>,
    /// Transactions that may commit, and whose clients have not been told whether they have.
    open: Rc<RefCell<BTreeSet<TransactionId>>>,
    recorder: Box<dyn Observer>,
}

/// A client that takes part in the workload, with its worker.
struct Client {
    worker: Worker,
    lives: Rc<dyn Fn() -> Vec<u32>>,
    /// Whether the client first waits until it has to take the place of a client that is gone.
    spare: bool,
    /// Whether the client was taken for dead and has found that out.
    fenced: Cell<bool>,
}

impl Client {
    fn is_gone(&self, sim: &Sim) -> bool {
        self.fenced.get() || is_dead(sim, &*self.lives)
    }
}

fn is_dead(sim: &Sim, lives: &dyn Fn() -> Vec<u32>) -> bool {
    lives().iter().any(|client| sim.is_dead(ClientId(*client)))
}

impl Observer for Watch {
    fn transaction(&mut self, event: &TransactionEvent<'_>) {
        let counts = &mut *self.counts.borrow_mut();
        match event.outcome {
            Outcome::Committed => {
                counts.committed += 1;
                self.reported.borrow_mut().note(self.lane, event);
            }
            Outcome::UserAbort => *counts.aborted.entry("user").or_default() += 1,
            Outcome::Aborted(abort) => *counts.aborted.entry(abort.name()).or_default() += 1,
            Outcome::Failed(_) => *counts.aborted.entry("failed").or_default() += 1,
            Outcome::Unknown => counts.unknown += 1,
        }
        if event.outcome != Outcome::Unknown {
            self.open.borrow_mut().remove(&event.id);
        }
        self.recorder.transaction(event);
    }

    fn wants_committing(&self) -> bool {
        true
    }

    fn committing(&mut self, event: &TransactionEvent<'_>) {
        self.open.borrow_mut().insert(event.id);
        self.recorder.committing(event);
    }
}

/// Tables of a workload.
enum Tables {
    SmallBank(SmallBank),
    Tatp(Tatp),
    Tpcc(Tpcc),
    Ycsb(Ycsb),
    Registers(Registers),
    Ranges(Ranges),
}

/// What a coroutine remembers of its transactions.
#[derive(Default)]
struct Ledgers {
    bank: <SmallBank as Workload>::Ledger,
    tatp: <Tatp as Workload>::Ledger,
    tpcc: <Tpcc as Workload>::Ledger,
    ycsb: <Ycsb as Workload>::Ledger,
}

impl Tables {
    fn load(case: &Case, cluster: &Cluster, random: &mut Prng) -> Result<Tables, String> {
        let tables = match case.load {
            Load::SmallBank => SmallBank::load(cluster, Customers::new(case.keys.max(2), 0.1, 0.7))
                .map(|bank| Tables::SmallBank(bank.with_attempts(ATTEMPTS))),
            Load::Tatp => {
                let subscribers = Subscribers::new((case.keys / 10).max(1) as u32);
                Tatp::load(cluster, subscribers, case.seed).map(|tatp| Tables::Tatp(tatp.with_attempts(ATTEMPTS)))
            }
            Load::Tpcc => {
                let (scale, room) = supplier(case);
                Tpcc::load(cluster, scale, room, case.seed, |_| ())
                    .map(|tpcc| Tables::Tpcc(tpcc.with_attempts(ATTEMPTS)))
            }
            Load::Ycsb => {
                let size = Size { records: case.keys, inserts: 8 * case.transactions, value_bytes: 128, ordered: None };
                let mix = Mix { operations: 2, ..Mix::named("d").ok_or("no such mix")? };
                Ycsb::load(cluster, size).map(|ycsb| Tables::Ycsb(ycsb.with_mix(mix).with_attempts(ATTEMPTS)))
            }
            Load::Registers => Registers::load(cluster, case.keys, case.has(CANCEL), random).map(Tables::Registers),
            Load::Ranges => Ranges::load(cluster, case.keys, case.has(CANCEL), random).map(Tables::Ranges),
        };
        tables.map_err(|error| error.to_string())
    }

    /// Reads every record.
    async fn read_all(&self, session: &mut Session) -> Result<(), Error> {
        match self {
            Tables::SmallBank(bank) => bank.warm(session, 0, 1).await,
            Tables::Tatp(tatp) => tatp.warm(session, 0, 1).await,
            Tables::Tpcc(tpcc) => tpcc.warm(session, 0, 1).await,
            Tables::Ycsb(ycsb) => ycsb.warm(session, 0, 1).await,
            Tables::Registers(registers) => registers.read_all(session).await,
            Tables::Ranges(ranges) => ranges.read_all(session).await,
        }
    }

    async fn transact(&self, session: &mut Session, random: &mut Prng, ledgers: &mut Ledgers) -> Result<(), Error> {
        match self {
            Tables::SmallBank(bank) => bank.transact(session, random, &mut ledgers.bank).await,
            Tables::Tatp(tatp) => {
                let (kind, _) = tatp::Kind::MIX[random.below(tatp::Kind::MIX.len() as u64) as usize];
                tatp.run(session, kind, random, &mut ledgers.tatp).await
            }
            Tables::Tpcc(tpcc) => {
                let (kind, _) = tpcc::Kind::MIX[random.below(tpcc::Kind::MIX.len() as u64) as usize];
                tpcc.run(session, kind, random, &mut ledgers.tpcc).await
            }
            Tables::Ycsb(ycsb) => {
                let kinds = ycsb::Kind::OF_ONE_RECORD;
                let kind = kinds[random.below(kinds.len() as u64) as usize];
                ycsb.run(session, kind, random, &mut ledgers.ycsb).await
            }
            Tables::Registers(registers) => registers.transact(session, random).await,
            Tables::Ranges(ranges) => ranges.transact(session, random).await,
        }
    }

    /// Checks what must hold when nothing runs any more, and all dead clients are recovered.
    fn invariants(
        &self,
        cluster: &Cluster,
        ledgers: Vec<Ledgers>,
        settled: bool,
        unknown: u64,
    ) -> Result<Vec<Invariant>, Error> {
        match self {
            Tables::SmallBank(bank) => {
                let ledgers: Vec<_> = ledgers.into_iter().map(|ledger| ledger.bank).collect();
                bank.invariants(cluster, After { ledgers: &ledgers, settled, unknown })
            }
            Tables::Tatp(tatp) => {
                let ledgers: Vec<_> = ledgers.into_iter().map(|ledger| ledger.tatp).collect();
                tatp.invariants(cluster, After { ledgers: &ledgers, settled, unknown })
            }
            Tables::Tpcc(tpcc) => {
                let ledgers: Vec<_> = ledgers.into_iter().map(|ledger| ledger.tpcc).collect();
                tpcc.invariants(cluster, After { ledgers: &ledgers, settled, unknown })
            }
            Tables::Ycsb(ycsb) => {
                let ledgers: Vec<_> = ledgers.into_iter().map(|ledger| ledger.ycsb).collect();
                ycsb.invariants(cluster, After { ledgers: &ledgers, settled, unknown })
            }
            Tables::Registers(registers) => Ok(vec![whole(&registers.inspect(cluster)?, settled)]),
            Tables::Ranges(ranges) => {
                let (tables, faults) = ranges.inspect(cluster)?;
                let holds = Some(faults.is_empty());
                let trees = Invariant { name: "ordered tables are trees", holds, detail: faults.join(", ") };
                Ok(vec![whole(&tables, settled), trees])
            }
        }
    }
}

/// Returns what must hold for any tables.
fn whole(tables: &[Inspection], settled: bool) -> Invariant {
    let wrong = |table: &Inspection| table.locked + table.torn + table.differing_lines;
    let holds = Some(settled && tables.iter().map(wrong).sum::<u64>() == 0);
    Invariant { name: "replicas are identical and no lock is held", holds, detail: format!("{tables:?}") }
}

/// How often a transaction is tried. A client that meets a lock of a dead client soon goes
/// elsewhere.
const ATTEMPTS: u32 = 8;
/// How long a client may be silent until others take it for dead; or never, if `None`.
const LEASES: [Option<Nanos>; 4] = [None, Some(150_000), Some(400_000), Some(3_000_000)];
/// Bytes of a version cache: one bucket, which drops nearly everything; some buckets; or more than
/// a run ever fills.
const VCACHES: [usize; 3] = [64, 512, 1 << 20];
/// How often a spare client looks whether it is needed.
const SPARE_LOOKS: Nanos = 20_000;
/// Bytes of a memory node, except for TPC-C.
const NODE_BYTES: usize = 12 << 20;
/// Controllers that look after the memory nodes, where one fails.
const CONTROLLERS: usize = 2;
/// Memory nodes of every cluster, without spares.
const NODES: u16 = 3;
/// The longest time after which a failed node comes back. That may be before the others have
/// noticed, or long after.
const ABSENCE: Nanos = 4_000_000;
/// Virtual time in which every coroutine must commit again when the faults are over.
const LIVENESS: Nanos = 50_000_000;
/// Virtual time after which a run is given up.
const RUN: Nanos = 4_000_000_000;
/// Virtual time after the last fault in which its consequences may still show; a log ring takes
/// longer to fill.
const AFTERMATH: Nanos = 1_000_000;
const STALL_AFTERMATH: Nanos = 9_000_000;

/// Runs a case. Returns its result, or what is wrong.
pub fn run(case: &Case) -> Result<Ran, String> {
    run_recorded(case).0
}

/// Runs a case, and also returns the history, in the format of `remora check`.
pub fn run_recorded(case: &Case) -> (Result<Ran, String>, Vec<u8>) {
    let mut history = Vec::new();
    // A mistake may also show as a panic: an assertion here or in the protocol fails.
    let ran = catch_unwind(AssertUnwindSafe(|| run_case(case, &mut history)));
    let ran = ran.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        Err(format!("panicked: {}", text.unwrap_or_default()))
    });
    (ran, history)
}

fn run_case(case: &Case, history: &mut Vec<u8>) -> Result<Ran, String> {
    let fail = |error: &dyn fmt::Display| error.to_string();
    let mut random = Prng::derive(case.seed, 0xca5e);
    let profile = Profile::named("connectx4").ok_or("no profile")?;
    let options = SimOptions {
        stretch: [0.0, 0.02, 0.1, 0.3][random.below(4) as usize],
        deployment: if random.below(2) == 0 { Deployment::Disaggregated } else { Deployment::Symmetric },
        ..SimOptions::new(profile, case.seed)
    };
    let fails = case.loses_nodes();
    let replicas = [3, 2, 1][random.below(if fails { 2 } else { 3 }) as usize];
    let nodes = Nodes::of(case, replicas);
    let node_bytes = node_bytes(case, replicas);
    let cluster = ClusterOptions {
        memory_nodes: nodes.count,
        spares: nodes.count - NODES,
        replicas,
        node_bytes,
        protocol: case.protocol,
    };
    let (cluster, sim) = Cluster::simulated(cluster, &options).map_err(|e| fail(&e))?;
    let lease = LEASES[random.below(LEASES.len() as u64) as usize].map(Duration::from_nanos);
    // All clients need the upper nodes of a tree. If a dead client has locked one, and no client
    // recovers it, all of them stop.
    let needed = case.load == Load::Ranges && case.has("crash") || fails;
    let lease = lease.or(LEASES.into_iter().flatten().max().filter(|_| needed).map(Duration::from_nanos));
    let cluster = cluster.with_lease(lease);
    if case.protocol.validation() == Validation::Local {
        cluster.version_cache(VCACHES[random.below(VCACHES.len() as u64) as usize]);
    }
    let tables = Tables::load(case, &cluster, &mut random)?;
    let lines = Shared::default();
    let file = HistoryFile::durable(lines.clone());
    let to_file = file.clone();
    let cluster = cluster.with_rollbacks_told(Arc::new(move |rollback| to_file.rollback(rollback)));
    let counts = Rc::new(RefCell::new(Ran::default()));
    let reported = Rc::new(RefCell::new(Reported::default()));
    let open = Rc::new(RefCell::new(BTreeSet::new()));
    let watch = |lane, worker: &mut Session| {
        let (counts, reported, open) = (counts.clone(), reported.clone(), open.clone());
        worker.observe(Some(Box::new(Watch { lane, counts, reported, open, recorder: Box::new(file.recorder()) })));
    };
    // Presets that agree on who changes lock words run together.
    let presets = Protocol::ALL.into_iter().filter(|one| one.is_serializable());
    let presets: Vec<_> = presets.filter(|one| one.accepts(case.protocol.discipline())).collect();
    let mixed = random.below(4) == 0;
    // With leases, a spare client takes the place of each client that is taken for dead.
    let spares = if lease.is_some() { case.clients } else { 0 };
    let mut clients = Vec::new();
    for number in 0..case.clients + spares {
        sim.place(number);
        let protocol = if mixed { presets[random.below(presets.len() as u64) as usize] } else { case.protocol };
        let options =
            WorkerOptions { coroutines: case.coroutines, seed: random.next_u64(), ..WorkerOptions::default() };
        let mut worker = cluster.with_protocol(protocol).worker(options).map_err(|e| fail(&e))?;
        worker.sessions().iter_mut().enumerate().for_each(|(lane, session)| watch(lane, session));
        let lives = Rc::new(worker.lives());
        clients.push(Client { worker, lives, spare: number >= case.clients, fenced: Cell::new(false) });
    }
    let mut controllers = Vec::new();
    for number in 0..if fails { CONTROLLERS } else { 0 } {
        sim.place(case.places() + number);
        controllers.push(cluster.controller().map_err(|e| fail(&e))?);
    }
    plan(case, &nodes, &sim, lease.is_some(), &mut random)?;
    sim.instant(false);
    let began = sim.now();
    let memory = Memory::new(case, &sim, &cluster, nodes);
    let played = play(case, &memory, &tables, &mut clients, &mut controllers, &counts);
    let virtual_ns = sim.now() - began;
    sim.instant(true);
    let played = played?;
    let mut settled = true;
    let is_whole = memory.is_whole();
    drop(controllers);
    for Client { worker, lives, fenced, .. } in &mut clients {
        worker.sessions().iter_mut().for_each(|session| drop(session.observe(None)));
        if is_dead(&sim, &**lives) {
            lives().iter().try_for_each(|client| sim.revoke(ClientId(*client))).map_err(|error| fail(&error))?;
            continue;
        }
        // A client that was taken for dead and does not know it yet finds out now.
        match worker.drain() {
            Ok(drained) => settled &= drained || fenced.get(),
            Err(Error::Fenced) => fenced.set(true),
            // Only this client has lost a node, and has not needed that node since. No controller
            // is left for which it would come back.
            Err(Error::Unavailable(_)) if case.has("isolate") => fenced.set(true),
            Err(error) => return Err(format!("draining failed: {error}")),
        }
    }
    sim.settle_services();
    let lost = reported.borrow().lost(&cluster, &sim);
    let mut gone = Vec::new();
    for client in clients {
        if client.is_gone(&sim) {
            gone.extend((client.lives)());
            client.worker.abandon();
        }
    }
    if played.ended == Ended::Deadlock {
        return Err("everybody waits for something that never comes".to_owned());
    }
    if let Some((client, coroutine)) = played.stuck {
        return Err(format!(
            "coroutine {coroutine} of client {client} has not committed within {} ms after the last fault",
            LIVENESS / 1_000_000
        ));
    }
    if let Some(lost) = lost {
        return Err(lost);
    }
    if !is_whole {
        return Err(format!("copies were not made again: {:?}", cluster.catalog().shards));
    }
    let recovered = gone.len() as u64;
    // Also the incarnations of former epochs, whose clients go on as new incarnations, and clients
    // that could not leave.
    let configuration = cluster.configuration().ok_or("no configuration")?;
    let ended = configuration.look(|membership| {
        let ended = membership.clients().filter(|(_, standing)| *standing != Standing::Forgotten);
        ended.map(|(client, _)| client).collect::<Vec<_>>()
    });
    let all_gone: BTreeSet<u32> = ended.map_err(|e| fail(&e))?.into_iter().chain(gone.iter().copied()).collect();
    let fenced = gone.iter().filter(|client| !sim.is_dead(ClientId(**client))).count() as u64;
    let mut janitor = aftermath::janitor(&cluster, &sim, &all_gone)?;
    watch(0, &mut janitor.sessions()[0]);
    aftermath::read_all(&mut janitor, &tables)?;
    drop(janitor.sessions()[0].observe(None));
    file.finish().map_err(|e| fail(&e))?;
    let lines = lines.0.lock().map_err(|_| "the recorder panicked")?.clone();
    let unknown = open.take();
    let resolved = aftermath::resolve(&mut janitor, &unknown)?;
    drop(janitor);
    let lines = aftermath::with_verdicts(lines, &resolved, sim.now());
    let mut reader = HistoryReader::new(ReadOptions { crashed: true });
    let read = reader.read("simulated", lines.as_slice());
    history.clone_from(&lines);
    read.map_err(|error| format!("the history cannot be read: {error}"))?;
    let report = check(&reader.finish().history);
    if !report.is_clean() {
        return Err(report.to_string());
    }
    match &tables {
        Tables::Registers(registers) if registers.torn() > 0 => {
            return Err(format!("{} records were seen torn", registers.torn()));
        }
        Tables::Ranges(ranges) if ranges.wrong() > 0 => {
            return Err(format!("{} transactions saw different keys in the two tables", ranges.wrong()));
        }
        _ => {}
    }
    // The ledgers of dead clients are lost.
    let untold = unknown.len() as u64 + recovered;
    let invariants = tables.invariants(&cluster, played.ledgers, settled, untold);
    let invariants = invariants.map_err(|error| format!("failed: {error}"))?;
    let holds = |invariant: &Invariant| invariant.holds.unwrap_or(untold > 0);
    if let Some(broken) = invariants.iter().find(|invariant| !holds(invariant)) {
        return Err(format!("{}: {}", broken.name, broken.detail));
    }
    let mut ran = counts.take();
    (ran.recovered, ran.fenced) = (recovered, fenced);
    ran.resolved = resolved.len() as u64;
    for fault in sim.injected() {
        let sum = ran.faults.entry(fault.kind.name()).or_default();
        *sum = (sum.0 + 1, sum.1 + u64::from(fault.holding));
    }
    ran.probes = sim.reached();
    ran.virtual_ns = virtual_ns;
    ran.events = sim.statistics().events;
    ran.digest =
        lines.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3));
    Ok(ran)
}

/// Returns TPC-C's size: about as many customers as there are keys, and room for more orders than a
/// run makes.
fn supplier(case: &Case) -> (Scale, Room) {
    let customers = (case.keys / 4).clamp(5, 3_000) as u16;
    (Scale::small(2, 2, customers, case.keys.max(20) as u32), Room::for_orders(8 * case.transactions))
}

fn node_bytes(case: &Case, replicas: u8) -> usize {
    // Where nodes fail, other nodes get their shards.
    let times = if case.loses_nodes() { 2 } else { 1 };
    if case.load != Load::Tpcc {
        return times * NODE_BYTES;
    }
    // Spare clients count, too, and so does the janitor.
    let (workers, coroutines) = (2 * case.clients as u64 + 1, case.coroutines as u64);
    let setting = Setting { memory_nodes: NODES, replicas, workers, coroutines };
    let (scale, room) = supplier(case);
    times * Tpcc::node_bytes(&scale, room, &setting, case.protocol) as usize
}

/// The memory nodes of a run.
#[derive(Clone, Copy)]
struct Nodes {
    /// How many there are, including spares.
    count: u16,
    replicas: u8,
    /// How many of them fail.
    failures: u64,
    /// How many are partitioned for so long that they are declared lost.
    isolations: u64,
    /// How many are drained.
    drains: u64,
    /// How long each failed or drained node is away; for ever if `None`.
    absence: Option<Nanos>,
}

impl Nodes {
    fn of(case: &Case, replicas: u8) -> Nodes {
        if !case.loses_nodes() {
            return Nodes { count: NODES, replicas, failures: 0, isolations: 0, drains: 0, absence: None };
        }
        let mut random = Prng::derive(case.seed, 0xfa11);
        let count = NODES + random.below(2) as u16;
        // In sum at most as many as there are copies to spare.
        let losses = 1 + random.below(replicas.saturating_sub(1).into());
        let absence = (random.below(2) == 0).then(|| random.below(ABSENCE));
        let isolations = match (case.has("fail"), case.has("isolate")) {
            (_, false) => 0,
            (false, true) => losses,
            (true, true) => random.below(losses + 1),
        };
        let failures = if case.has("fail") { losses - isolations } else { 0 };
        let drains = match (case.has(DRAIN), isolations + failures) {
            (false, _) => 0,
            (true, 0) => losses,
            // A drain takes the place of a failure or an isolation.
            (true, _) => random.below(losses + 1),
        };
        let isolations = isolations.saturating_sub(drains);
        Nodes { count, replicas, failures: losses - isolations - drains, isolations, drains, absence }
    }

    /// Whether any node can be lost, if only for a while.
    fn can_be_lost(&self) -> bool {
        self.failures + self.isolations + self.drains > 0
    }

    /// Whether there is somewhere to make copies of what a failed node had.
    fn copies_again(&self) -> bool {
        self.isolations > 0 || self.can_be_lost() && (self.absence.is_some() || self.count > self.replicas.into())
    }
}

/// The memory nodes of a run, while it runs.
struct Memory<'c> {
    sim: &'c Sim,
    cluster: &'c Cluster,
    nodes: Nodes,
    /// The failed nodes that are to come back, and since when they have been down.
    failed: RefCell<BTreeMap<NodeId, Nanos>>,
    /// The nodes that are leaving (`None`), or have left, and since when.
    drained: RefCell<BTreeMap<NodeId, Option<Nanos>>>,
    /// How many nodes were told to leave until now.
    told: Cell<usize>,
    random: RefCell<Prng>,
}

impl<'c> Memory<'c> {
    fn new(case: &Case, sim: &'c Sim, cluster: &'c Cluster, nodes: Nodes) -> Memory<'c> {
        let random = RefCell::new(Prng::derive(case.seed, 0xd4a1));
        Memory {
            sim,
            cluster,
            nodes,
            failed: RefCell::default(),
            drained: RefCell::default(),
            told: Cell::new(0),
            random,
        }
    }

    /// Restarts the failed nodes that have been away long enough, empty, and drains nodes.
    fn tend(&self) {
        let now = self.sim.now();
        if self.nodes.drains > 0
            && let Some(configuration) = self.cluster.configuration()
        {
            let drained = self.drain(configuration, now);
            debug_assert!(drained.is_ok(), "the configuration is in this process");
        }
        let Nodes { count, absence: Some(absence), .. } = self.nodes else { return };
        let mut failed = self.failed.borrow_mut();
        for node in (0..count).map(NodeId).filter(|node| !self.sim.answers(*node)) {
            let since = *failed.entry(node).or_insert(now);
            if now - since >= absence {
                failed.remove(&node);
                self.restart(node);
            }
        }
    }

    fn restart(&self, node: NodeId) {
        self.sim.restart(node);
        if let Some(memory) = self.sim.region(node, node::REGION) {
            let formatted = node::format(&memory, node::Place::default());
            debug_assert!(formatted.is_ok(), "a node's own size is enough");
        }
    }

    /// Does what an operator does: drains a node, and fills all others. When the node has left,
    /// starts it again, and fills it.
    fn drain(&self, configuration: &Arc<dyn Configuration>, now: Nanos) -> Result<(), ConfigurationError> {
        let all = NodeSet::first(self.nodes.count);
        let mut drained = self.drained.borrow_mut();
        let told = self.sim.injected().iter().filter(|fault| fault.kind == FaultKind::Told(DRAIN)).count();
        while self.told.get() < told {
            self.told.set(self.told.get() + 1);
            let number = self.random.borrow_mut().next_u64() as usize;
            let leaves = configuration.change(|membership| {
                let live: Vec<NodeId> = all.without(membership.lost()).without(membership.leaving()).iter().collect();
                let node = live[number % live.len()];
                let leaver = NodeSet::default().with(node);
                // If nodes never come back, too few may be left for as many copies.
                if self.nodes.absence.is_some() && live.len() > usize::from(self.nodes.replicas) {
                    membership.drain(leaver);
                } else {
                    membership.drain_to_fewer(leaver);
                }
                membership.fill(all);
                node
            })?;
            drained.insert(leaves, None);
        }
        let (leaving, lost) = configuration.look(|membership| (membership.leaving(), membership.lost()))?;
        // A node that dies or is lost before it has left is treated like other failed nodes.
        drained.retain(|node, _| self.sim.answers(*node) && (leaving.has(*node) || lost.has(*node)));
        let mut started = NodeSet::default();
        drained.retain(|node, left| {
            let left = lost.has(*node).then(|| *left.get_or_insert(now));
            let is_over = left.is_some_and(|left| self.nodes.absence.is_some_and(|absence| now - left >= absence));
            if is_over {
                self.sim.fail(*node);
                self.restart(*node);
                started = started.with(*node);
            }
            !is_over
        });
        if !started.is_empty() {
            configuration.change(|membership| membership.fill(started))?;
        }
        Ok(())
    }

    /// Whether the cluster goes on without the failed nodes, with the nodes that are back, and has
    /// as many copies as it can have.
    fn is_whole(&self) -> bool {
        let Some(configuration) = self.cluster.configuration().filter(|_| self.nodes.can_be_lost()) else {
            return true;
        };
        if !self.failed.borrow().is_empty() {
            return false;
        }
        let looked =
            configuration.look(|membership| (membership.has_controller(), membership.is_changing(), membership.lost()));
        let lost = match looked {
            // No controller is left: one has died, and the other was taken for dead. A run starts
            // no new ones.
            Ok((false, ..)) => return true,
            Ok((true, false, lost)) => lost,
            _ => return false,
        };
        let all = NodeSet::first(self.nodes.count);
        // A node that has come back has nothing until it is readmitted, even if no client had
        // missed it yet.
        let has_catalog = |node| {
            self.sim.region(node, node::REGION).is_some_and(|memory| metadata::generation_local(memory.words()) > 0)
        };
        let drained = self.drained.borrow();
        let is_away = |left: &Option<Nanos>| left.is_some() && self.nodes.absence.is_none();
        if !drained.values().all(is_away) {
            return false;
        }
        let settled = |node| match self.sim.answers(node) {
            true if drained.contains_key(&node) => lost.has(node),
            true => has_catalog(node) && !lost.has(node),
            false => lost.has(node),
        };
        let copies = usize::from(self.nodes.replicas).min(all.without(lost).count().into());
        let shards = self.cluster.catalog().shards;
        let enough = |shard: &ShardPlacement| shard.copies().count() == copies && shard.replicas.len() == copies;
        all.iter().all(settled) && shards.iter().all(enough)
    }
}

/// Plans the faults of a run. A run with leases may lose a second client: the recoverer of the
/// first.
fn plan(case: &Case, nodes: &Nodes, sim: &Sim, leases: bool, random: &mut Prng) -> Result<(), String> {
    for name in &case.faults {
        for _ in 0..times(name, nodes, random) {
            let probe = [probes::LOCKS, probes::VALIDATED, probes::LOGGED, probes::INSTALLED][random.below(4) as usize];
            let nth = 10 + random.below(case.transactions / 4 + 1);
            let kind = fault(case, name, random).ok_or_else(|| format!("there is no fault {name}"))?;
            sim.plan(Planned { probe, nth, after: after(random), kind, holding: true });
        }
    }
    if leases && case.has("crash") && random.below(2) == 0 {
        let (after, kind) = (random.below(40_000), FaultKind::Crash);
        let probe = if nodes.copies_again() && random.below(2) == 0 { probes::COPIES } else { probes::REPAIRS };
        sim.plan(Planned { probe, nth: 1, after, kind, holding: false });
    }
    Ok(())
}

/// Counts a coroutine of the workload as gone when it is dropped.
struct Leaves<'c>(&'c Cell<usize>);

impl Drop for Leaves<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() + 1);
    }
}

/// How the workload went.
struct Played {
    ledgers: Vec<Ledgers>,
    ended: Ended,
    /// A client, and a coroutine of it that has not committed since the faults were over.
    stuck: Option<(usize, usize)>,
}

/// Runs the workload until enough transactions have committed, the faults are over, and every
/// coroutine that is left has committed since.
fn play(
    case: &Case,
    memory: &Memory<'_>,
    tables: &Tables,
    clients: &mut [Client],
    controllers: &mut [Controller],
    counts: &RefCell<Ran>,
) -> Result<Played, String> {
    let sim = memory.sim;
    let began = sim.now();
    let stuck = Cell::new(None);
    // The time at which the last fault was seen to have happened.
    let calm_from = Cell::new(None);
    let is_over = |now: Nanos| {
        memory.tend();
        // If a lost node had nothing, no copy is made, and faults at that probe never happen.
        if sim.waiting() == sim.waiting_for(probes::COPIES) && calm_from.get().is_none() {
            let stalled = case.has("stall");
            // A partitioned node may be missed until the partition is over.
            let over = sim.injected().iter().fold(now, |over, fault| match fault.kind {
                FaultKind::Isolate(time, _) => over.max(fault.at + time),
                _ => over,
            });
            calm_from.set(Some(over + if stalled { STALL_AFTERMATH } else { AFTERMATH }));
        }
        let calm = calm_from.get().is_some_and(|calm| now > calm || case.faults.is_empty());
        let enough = counts.borrow().committed >= case.transactions;
        (calm && enough && memory.is_whole()) || now - began > RUN
    };
    let mut workers = Vec::new();
    let mut others = Vec::new();
    for Client { worker, lives, spare, fenced } in clients {
        workers.push(worker);
        others.push((lives.clone(), *spare, &*fenced));
    }
    let cancelled = Cell::new(0);
    let is_cancelled = || {
        let told = || sim.injected().iter().filter(|fault| fault.kind == FaultKind::Told(CANCEL)).count();
        let is_due = case.has(CANCEL) && told() > cancelled.get();
        cancelled.set(cancelled.get() + usize::from(is_due));
        is_due
    };
    let gone = || others.iter().filter(|(lives, _, fenced)| fenced.get() || is_dead(sim, &**lives)).count();
    let left: Vec<Cell<usize>> = workers.iter().map(|_| Cell::new(0)).collect();
    let bodies: Vec<_> = (0..workers.len())
        .map(|client| {
            let (stuck, is_over, gone, others, left) = (&stuck, &is_over, &gone, &others, &left[client]);
            let is_cancelled = &is_cancelled;
            let first = (client * case.coroutines) as u64;
            async move |coroutine: usize, session: &mut Session| {
                let _leaves = Leaves(left);
                let mut random = Prng::derive(case.seed, first + coroutine as u64);
                let mut ledgers = Ledgers::default();
                let (_, spare, fenced) = &others[client];
                while *spare && gone() <= client - case.clients {
                    if is_over(session.lane().now()) {
                        return Ok(ledgers);
                    }
                    session.lane().sleep(SPARE_LOOKS).await;
                }
                let mut over_from = None;
                loop {
                    let now = session.lane().now();
                    if over_from.is_none() && is_over(now) {
                        over_from = Some(now);
                    }
                    let transact = tables.transact(session, &mut random, &mut ledgers);
                    match cancel::unless(is_cancelled, transact).await {
                        None => {}
                        Some(Ok(()) | Err(Error::User(_))) if over_from.is_some() => break,
                        Some(Ok(()) | Err(Error::User(_) | Error::Aborted(_) | Error::Unknown(_))) => {}
                        Some(Err(Error::Fenced)) => {
                            fenced.set(true);
                            break;
                        }
                        Some(Err(error)) => return Err(error),
                    }
                    if over_from.is_some_and(|from| session.lane().now() - from > LIVENESS) {
                        stuck.set(Some((client, coroutine)));
                        break;
                    }
                    session.lane().yield_now().await;
                }
                Ok(ledgers)
            }
        })
        .collect();
    let mut runs: Vec<_> = workers.into_iter().zip(&bodies).map(|(worker, body)| worker.start(body)).collect();
    let mut watching = Vec::new();
    for controller in controllers {
        let (id, others, left) = (ClientId(controller.incarnation()), &others, &left);
        // No client that is alive takes part in the workload any more.
        let over = move || {
            let mut players = others.iter().zip(left);
            players.all(|((lives, ..), left)| left.get() == case.coroutines || is_dead(sim, &**lives))
        };
        watching.push((id, controller.start(over)));
    }
    let ended = {
        let ids = |lives: &dyn Fn() -> Vec<u32>| lives().into_iter().map(ClientId).collect();
        let driven = runs.iter_mut().zip(&others).map(|(run, (lives, ..))| Driven { clients: ids(&**lives), run });
        let mut driven: Vec<Driven<'_>> = driven.collect();
        driven.extend(watching.iter_mut().map(|(id, run)| Driven { clients: vec![*id], run }));
        sim.run(&mut driven, Some(began + RUN + 10 * LIVENESS))
    };
    drop(watching);
    let results: Vec<_> = runs.into_iter().flat_map(remora_fabric::Run::finish).collect();
    let ledgers = results.into_iter().collect::<Result<Vec<_>, Error>>().map_err(|error| format!("failed: {error}"))?;
    Ok(Played { ledgers, ended, stuck: stuck.get() })
}

/// Shrinks a failing case to one that also fails: with fewer faults, clients, coroutines, keys or
/// transactions.
#[must_use]
pub fn shrink(case: &Case) -> Case {
    let mut best = case.clone();
    loop {
        let mut smaller = Vec::new();
        for fault in 0..best.faults.len() {
            let mut one = best.clone();
            one.faults.remove(fault);
            smaller.push(one);
        }
        let half = |value: u64, least: u64| Some(value / 2).filter(|half| *half >= least);
        smaller.extend(half(best.clients as u64, 1).map(|clients| Case { clients: clients as usize, ..best.clone() }));
        let coroutines = half(best.coroutines as u64, 1);
        smaller.extend(coroutines.map(|coroutines| Case { coroutines: coroutines as usize, ..best.clone() }));
        smaller.extend(half(best.keys, 4).map(|keys| Case { keys, ..best.clone() }));
        smaller.extend(half(best.transactions, 20).map(|transactions| Case { transactions, ..best.clone() }));
        let Some(found) = smaller.into_iter().find(|case| run(case).is_err()) else { return best };
        best = found;
    }
}

/// The result of a campaign.
#[derive(Clone, Default, Debug)]
pub struct Summary {
    /// How many runs there were.
    pub runs: u64,
    /// The sum of their results.
    pub total: Ran,
    /// The first few runs that show a mistake.
    pub violations: Vec<Violation>,
    /// How many runs show a mistake.
    pub violating: u64,
    /// What the campaign has not tested, so that it proves less than it should.
    pub untested: Vec<String>,
}

impl Summary {
    /// Whether nothing is wrong, and everything was tested that should have been.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.violating == 0 && self.untested.is_empty()
    }
}

/// Runs a case for each seed, with some of its faults ([`Case::of`]), on `threads` threads. Calls
/// `look` after each run.
pub fn campaign(case: &Case, seeds: Range<u64>, threads: usize, look: &(dyn Fn() + Sync)) -> Summary {
    const SHOWN: usize = 3;
    let next = AtomicU64::new(seeds.start);
    let summary = Mutex::new(Summary::default());
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end {
                        return;
                    }
                    let case = case.of(seed);
                    let result = run(&case);
                    let shown = {
                        let Ok(mut summary) = summary.lock() else { return };
                        summary.runs += 1;
                        match &result {
                            Ok(ran) => summary.total.add(ran),
                            Err(_) => summary.violating += 1,
                        }
                        summary.violations.len() < SHOWN
                    };
                    if let (Err(what), true) = (result, shown) {
                        let shrunk = shrink(&case);
                        if let Ok(mut summary) = summary.lock() {
                            summary.violations.push(Violation { case, what, shrunk });
                        }
                    }
                    look();
                }
            });
        }
    });
    let mut summary = summary.into_inner().unwrap_or_default();
    if summary.runs > summary.violating {
        summary.untested = untested(case, summary.runs, &summary.total);
    }
    summary
}

/// Lists what the campaign should have tested and has not.
fn untested(case: &Case, runs: u64, total: &Ran) -> Vec<String> {
    /// In fewer runs it is chance whether a pause is longer than a lease.
    const MANY: u64 = 20;
    let mut untested = Vec::new();
    for fault in &case.faults {
        if total.faults.get(fault.as_str()).is_none_or(|(_, holding)| *holding == 0) {
            untested.push(format!("no {fault} has met a transaction that held locks"));
        }
    }
    // A protocol that reads under locks has nothing to validate but absent keys.
    let causes = ["lock_conflict", "validation"].into_iter().take(2 - usize::from(case.protocol.spec().locks_reads));
    for cause in causes {
        if total.aborted.get(cause).is_none_or(|count| *count == 0) {
            untested.push(format!("no attempt aborted by {cause}"));
        }
    }
    for probe in [probes::LOCKS, probes::VALIDATED, probes::LOGGED, probes::INSTALLED, probes::RELEASED] {
        if total.probes.get(probe).is_none_or(|count| *count == 0) {
            untested.push(format!("no transaction has reached the probe {probe}"));
        }
    }
    // The entries of other workloads are so small that no stall is long enough.
    let fills = case.load == Load::Registers && !case.protocol.discipline().is_in_place() && case.has("stall");
    if fills && !total.probes.contains_key(probes::RING_FULL) {
        untested.push("no log ring was ever full".to_owned());
    }
    if case.has("crash") && total.recovered == total.fenced {
        untested.push("no client that had died was recovered".to_owned());
    }
    if runs >= MANY && case.has("pause") && total.fenced == 0 {
        untested.push("no client that was alive was taken for dead".to_owned());
    }
    if runs >= MANY && case.loses_nodes() && !total.probes.contains_key(probes::COPIES) {
        untested.push("no copy was made again of what a lost node had".to_owned());
    }
    if total.unknown * 100 > total.attempts() {
        untested.push(format!("{} of {} attempts ended unknown: more than 1 %", total.unknown, total.attempts()));
    }
    untested
}

/// Whether a campaign finds a published error, and where.
#[derive(Clone, Debug)]
pub struct Caught {
    /// The error.
    pub mutant: Mutant,
    /// The workload and the first seed that show the error.
    pub seed: Option<(Load, u64)>,
    /// What that run showed.
    pub what: String,
    /// Runs until then.
    pub runs: u64,
}

/// Puts one published error after the other back, and checks whether a campaign finds it within
/// these seeds of each workload.
pub fn mutation_score(
    mutants: &[Mutant],
    case: &Case,
    seeds: Range<u64>,
    threads: usize,
    look: &(dyn Fn(Mutant, bool) + Sync),
) -> Vec<Caught> {
    let next = AtomicU64::new(0);
    let found = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed) as usize;
                    let Some(mutant) = mutants.get(index).copied() else { return };
                    let caught = hunt(mutant, case, seeds.clone());
                    look(mutant, caught.seed.is_some());
                    if let Ok(mut found) = found.lock() {
                        found.push((index, caught));
                    }
                }
            });
        }
    });
    let mut found = found.into_inner().unwrap_or_default();
    found.sort_by_key(|(index, _)| *index);
    found.into_iter().map(|(_, caught)| caught).collect()
}

/// Looks for a seed whose run fails with the error and passes without it. Only the calling thread
/// has the error.
fn hunt(mutant: Mutant, case: &Case, seeds: Range<u64>) -> Caught {
    let mut caught = Caught { mutant, seed: None, what: String::new(), runs: 0 };
    let loads = match mutant {
        Mutant::LeafByHint => &[Load::Ranges][..],
        _ => &[Load::Registers, Load::SmallBank, Load::Tatp],
    };
    for seed in seeds {
        for &load in loads {
            let case = Case { load, ..case.of(seed) };
            caught.runs += 1;
            mutant::set(Some(mutant));
            let with = run(&case);
            mutant::set(None);
            if let Err(what) = with
                && run(&case).is_ok()
            {
                return Caught { seed: Some((load, seed)), what, ..caught };
            }
        }
    }
    caught
}
