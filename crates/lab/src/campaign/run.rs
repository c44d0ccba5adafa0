//! One run of a campaign: its cluster is set up, its workload played, its dead buried, its history
//! checked.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::fmt;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use remora::{
    Cluster, ClusterOptions, Error, Observer, Outcome, Protocol, Session, Standing, TransactionEvent, TransactionId,
    Validation, WorkerOptions,
};
use remora_check::{HistoryFile, HistoryReader, ReadOptions, check};
use remora_fabric::sim::{Deployment, Ended, Profile, SimOptions};
use remora_fabric::{ClientId, Fabric, Nanos};
use remora_workload::{Invariant, Prng};

use super::aftermath;
use super::case::{Case, Load, Ran};
use super::faults::plan;
use super::nodes::{CONTROLLERS, Memory, NODES, Nodes};
use super::play::{Client, LIVENESS, is_dead, play};
use super::reported::Reported;
use super::tables::{Tables, node_bytes};

/// How long a client may be silent until others take it for dead; or never, if `None`.
const LEASES: [Option<Nanos>; 4] = [None, Some(150_000), Some(400_000), Some(3_000_000)];
/// Bytes of a version cache: one bucket, which drops nearly everything; some buckets; or more than
/// a run ever fills.
const VCACHES: [usize; 3] = [64, 512, 1 << 20];

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
