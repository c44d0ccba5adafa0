//! One run of a campaign: it sets the stage, plays the workload, ends the clients, and checks the
//! history.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};

use remora::admin::Standing;
use remora::{Cluster, Error};
use remora_check::{HistoryReader, ReadOptions, check, check_commands};
use remora_fabric::sim::{Ended, Sim};
use remora_fabric::{ClientId, Fabric};
use remora_workload::Invariant;

use super::aftermath;
use super::case::{Case, Load, Ran};
use super::nodes::Memory;
use super::play::{Client, LIVENESS, Played, is_dead, play};
use super::recording::Recording;
use super::stage::Stage;
use super::tables::Tables;

/// Runs a case. Returns its result, or a description of the error.
pub fn run(case: &Case) -> Result<Ran, String> {
    run_recorded(case).0
}

/// Runs a case, and also returns the history, in the format of `remora check`.
pub fn run_recorded(case: &Case) -> (Result<Ran, String>, Vec<u8>) {
    let mut history = Vec::new();
    // An error may also show as a panic, when an assertion here or in the protocol fails.
    let ran = catch_unwind(AssertUnwindSafe(|| run_case(case, &mut history)));
    let ran = ran.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        Err(format!("panicked: {}", text.unwrap_or_default()))
    });
    (ran, history)
}

fn run_case(case: &Case, history: &mut Vec<u8>) -> Result<Ran, String> {
    let Stage { cluster, sim, nodes, tables, recording, mut clients, mut controllers } = Stage::set(case)?;
    sim.instant(false);
    let began = sim.now();
    let memory = Memory::new(case, &sim, &cluster, nodes);
    let played = play(case, &cluster, &memory, &tables, &mut clients, &mut controllers, &recording.counts);
    let virtual_ns = sim.now() - began;
    sim.instant(true);
    let played = played?;
    let lack = memory.lack();
    drop(controllers);
    let buried = bury(case, &cluster, &sim, &recording, clients)?;
    if let Tables::Race(races) = &tables {
        *history = races.lines();
        // The janitor could read a table for ever that is not sound.
        races.look().ok_or_else(|| races.wrong().unwrap_or_default())?;
    }
    // Clients stop at once when they are answered wrongly.
    let is_wrong = matches!(tables, Tables::Redis(_)) && tables.are_wrong();
    if !is_wrong {
        check_play(case, &played, &buried)?;
    }
    if let Some(lack) = lack.filter(|_| !is_wrong) {
        return Err(format!("the cluster is not whole again: {lack}: {:?}", cluster.catalog().shards));
    }
    let fenced = buried.gone.iter().filter(|client| !sim.is_dead(ClientId(**client))).count() as u64;
    let told = tell(&cluster, &sim, &tables, &recording, &buried.gone)?;
    history.clone_from(&told.history);
    let checked = check_history(&told.history);
    if !matches!(tables, Tables::Redis(_)) {
        checked.clone()?;
    }
    let mut unknown = told.unknown;
    if let Tables::Race(races) = &tables {
        *history = races.lines();
        unknown = races.unanswered();
    }
    // The ledgers of dead clients are lost.
    let recovered = buried.gone.len() as u64;
    let untold = unknown + recovered;
    let answered = check_tables(&cluster, &tables, played, buried.settled, untold);
    let wrong: Vec<String> = [checked, answered].into_iter().filter_map(Result::err).collect();
    if !wrong.is_empty() {
        return Err(wrong.join("\n"));
    }
    let mut counts = Ran { recovered, fenced, resolved: told.resolved, virtual_ns, ..recording.counts.take() };
    if let Tables::Race(_) = &tables {
        counts.unknown = unknown;
    }
    Ok(with_simulation(counts, &sim, history))
}

/// What is left of the clients of a run.
struct Buried {
    /// Whether every log ring of a client that is alive has been applied to its end.
    settled: bool,
    /// Clients that are dead or were taken for dead. Their slots and rings were not given back.
    gone: Vec<u32>,
    /// A transaction that was reported as committed and is lost, if there is one.
    lost: Option<String>,
}

/// Ends all clients: they leave in good order, or they are gone.
fn bury(
    case: &Case,
    cluster: &Cluster,
    sim: &Sim,
    recording: &Recording,
    mut clients: Vec<Client>,
) -> Result<Buried, String> {
    let mut settled = true;
    for Client { worker, lives, fenced, .. } in &mut clients {
        worker.sessions().iter_mut().for_each(|session| drop(session.observe(None)));
        if is_dead(sim, &**lives) {
            let revoked = lives().iter().try_for_each(|client| sim.revoke(ClientId(*client)));
            revoked.map_err(|error| error.to_string())?;
            continue;
        }
        // A client that was taken for dead and does not know it yet finds it out now.
        match worker.drain() {
            // A commit's answer was lost together with a node that only this client has lost. The
            // client has not made way for another incarnation yet.
            Ok(false) if case.has("isolate") => fenced.set(true),
            Ok(drained) => settled &= drained || fenced.get(),
            Err(Error::Fenced) => fenced.set(true),
            // Only this client has lost a node, and it has not needed that node since. No
            // controller is left that could readmit the client.
            Err(Error::Unavailable(_)) if case.has("isolate") => fenced.set(true),
            Err(error) => return Err(format!("draining failed: {error}")),
        }
    }
    sim.settle_services();
    let lost = recording.reported.borrow().lost(cluster, sim);
    let mut gone = Vec::new();
    for client in clients {
        if client.is_gone(sim) {
            gone.extend((client.lives)());
            client.worker.abandon();
        }
    }
    Ok(Buried { settled, gone, lost })
}

/// Checks that every coroutine went on, and that nothing that was reported is lost.
fn check_play(case: &Case, played: &Played, buried: &Buried) -> Result<(), String> {
    if played.ended == Ended::Deadlock {
        return Err("everybody waits for something that never comes".to_owned());
    }
    // A transaction gives up after some attempts, and an operation on one key never does.
    if case.load == Load::Race && played.ended == Ended::OutOfTime {
        return Err("an operation did not end".to_owned());
    }
    if let Some((client, coroutine)) = played.stuck {
        return Err(format!(
            "coroutine {coroutine} of client {client} has not committed within {} ms after the last fault",
            LIVENESS / 1_000_000
        ));
    }
    buried.lost.clone().map_or(Ok(()), Err)
}

/// What the janitor has found out.
struct Told {
    /// The history, with the answers that the janitor got.
    history: Vec<u8>,
    /// The number of transactions whose outcome their clients were not told.
    unknown: u64,
    /// The number of these whose outcome is known by now.
    resolved: u64,
}

/// Makes a janitor recover all clients that are gone, read every record, and ask for the outcome of
/// each transaction whose answer was lost.
fn tell(cluster: &Cluster, sim: &Sim, tables: &Tables, recording: &Recording, gone: &[u32]) -> Result<Told, String> {
    // This includes the incarnations of earlier epochs, whose clients have continued as new
    // incarnations, and clients that could not leave.
    let configuration = cluster.configuration().ok_or("no configuration")?;
    let ended = configuration.look(|membership| {
        let ended = membership.clients().filter(|(_, standing)| *standing != Standing::Forgotten);
        ended.map(|(client, _)| client).collect::<Vec<_>>()
    });
    let ended = ended.map_err(|error| error.to_string())?;
    let all_gone: BTreeSet<u32> = ended.into_iter().chain(gone.iter().copied()).collect();
    let mut janitor = aftermath::janitor(cluster, sim, &all_gone)?;
    recording.watch(0, &mut janitor.sessions()[0]);
    aftermath::read_all(&mut janitor, tables, cluster.protocol().discipline().is_repairable())?;
    drop(janitor.sessions()[0].observe(None));
    let lines = recording.finish()?;
    let unknown = recording.take_unknown();
    let resolved: BTreeMap<u64, bool> = aftermath::resolve(&mut janitor, &unknown)?;
    drop(janitor);
    let history = aftermath::with_verdicts(lines, &resolved, sim.now());
    Ok(Told { history, unknown: unknown.len() as u64, resolved: resolved.len() as u64 })
}

/// Checks that the history is strictly serializable.
fn check_history(lines: &[u8]) -> Result<(), String> {
    let mut reader = HistoryReader::new(ReadOptions { crashed: true });
    let read = reader.read("simulated", lines);
    read.map_err(|error| format!("the history cannot be read: {error}"))?;
    let read = reader.finish();
    let report = check(&read.history);
    if !report.is_clean() {
        return Err(report.to_string());
    }
    let report = check_commands(&read.history, &read.commands);
    if report.is_clean() { Ok(()) } else { Err(report.to_string()) }
}

/// Checks what the programs saw of the tables, and the invariants that must hold now. `untold` is
/// at least the number of transactions whose outcome no ledger has.
fn check_tables(cluster: &Cluster, tables: &Tables, played: Played, settled: bool, untold: u64) -> Result<(), String> {
    match tables {
        Tables::Registers(registers) if registers.torn() > 0 => {
            return Err(format!("{} records were seen torn", registers.torn()));
        }
        Tables::Ranges(ranges) if ranges.wrong() > 0 => {
            return Err(format!("{} transactions saw different keys in the two tables", ranges.wrong()));
        }
        Tables::Redis(gateways) if gateways.wrong().is_some() => return Err(gateways.wrong().unwrap_or_default()),
        _ => {}
    }
    let invariants = tables.invariants(cluster, played.ledgers, settled, untold);
    let invariants = invariants.map_err(|error| format!("failed: {error}"))?;
    let holds = |invariant: &Invariant| invariant.holds.unwrap_or(untold > 0);
    match invariants.iter().find(|invariant| !holds(invariant)) {
        Some(broken) => Err(format!("{}: {}", broken.name, broken.detail)),
        None => Ok(()),
    }
}

/// Adds the simulation's counts to a result, and the digest of the history.
fn with_simulation(mut ran: Ran, sim: &Sim, history: &[u8]) -> Ran {
    for fault in sim.injected() {
        let sum = ran.faults.entry(fault.kind.name()).or_default();
        *sum = (sum.0 + 1, sum.1 + u64::from(fault.holding));
    }
    ran.probes = sim.reached();
    ran.events = sim.statistics().events;
    let mix = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
    ran.digest = history.iter().fold(0xcbf2_9ce4_8422_2325, mix);
    ran
}
