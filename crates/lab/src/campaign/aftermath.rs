//! The end of a run: the janitor recovers all clients that are gone, finds out all unknown
//! outcomes, and reads every record once more.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use remora::admin::Standing;
use remora::{Cluster, Error, TransactionId, Verdict, Worker, WorkerOptions};
use remora_fabric::sim::Sim;

use super::case::ARCHIVE;
use super::tables::Tables;

/// How often the janitor tries to read all records, where it repairs the locks that it meets, and
/// how long it waits in between: longer than it takes to suspect a lock.
const REPAIRS: u32 = 64;
const REPAIR_PAUSE_NS: u64 = 10_000_000;

/// Connects a client when no other client runs any more. It recovers all clients that are gone, so
/// that nothing of them is left.
pub(super) fn janitor(cluster: &Cluster, sim: &Sim, gone: &BTreeSet<u32>) -> Result<Worker, String> {
    let options = WorkerOptions::default().coroutines(1).archive(ARCHIVE);
    let mut janitor = cluster.with_lease(None).worker(options).map_err(|error| error.to_string())?;
    // A client's slot is given back when its rings have been applied.
    for _ in 0..2 {
        for client in gone {
            janitor.recover(*client).map_err(|error| format!("recovery of client {client} failed: {error}"))?;
        }
        sim.settle_services();
    }
    let configuration = cluster.configuration().ok_or("no configuration")?;
    for client in gone {
        let standing = configuration.change(|membership| membership.standing(*client));
        let standing = standing.map_err(|error| error.to_string())?;
        if !matches!(standing, Some(Standing::Forgotten)) {
            return Err(format!("client {client} is gone and was recovered, and is {standing:?}"));
        }
    }
    Ok(janitor)
}

/// Reads every record, a few in each transaction.
pub(super) fn read_all(janitor: &mut Worker, tables: &Tables, repairs: bool) -> Result<(), String> {
    // Where clients repair what they meet, they do so after a while.
    let read = janitor.block_on(async |session| {
        for _ in 0..if repairs { REPAIRS } else { 0 } {
            match tables.read_all(session).await {
                Err(Error::Aborted(_)) => session.lane().sleep(REPAIR_PAUSE_NS).await,
                read => return read,
            }
        }
        tables.read_all(session).await
    });
    read.map_err(|error| format!("records cannot be read when all is still: {error}"))
}

/// Finds out the outcome of transactions whose clients were not told, where that is possible. With
/// each transaction comes the one whose commit decides it.
pub(super) fn resolve(
    janitor: &mut Worker,
    unknown: &BTreeMap<TransactionId, TransactionId>,
) -> Result<BTreeMap<u64, bool>, String> {
    let mut resolved = BTreeMap::new();
    for (id, decided_by) in unknown {
        let verdict = janitor.block_on(async |session| session.resolve(*decided_by, Duration::ZERO).await);
        match verdict.map_err(|error| format!("what became of {id} cannot be found out: {error}"))? {
            Verdict::Committed => drop(resolved.insert(id.to_bits(), true)),
            Verdict::Aborted => drop(resolved.insert(id.to_bits(), false)),
            Verdict::Forgotten => {}
            Verdict::Undecided => return Err(format!("{id} is undecided, though its client is recovered")),
        }
    }
    Ok(resolved)
}

/// Adds the outcomes to a history, as if the clients had been told at the end.
pub(super) fn with_verdicts(history: Vec<u8>, verdicts: &BTreeMap<u64, bool>, now: u64) -> Vec<u8> {
    const UNKNOWN: &str = "\"status\":\"unknown\"";
    let text = String::from_utf8_lossy(&history);
    let id_of = |line: &str| line.strip_prefix("{\"id\":")?.split(',').next()?.parse::<u64>().ok();
    let mut told: Vec<Cow<'_, str>> = text.split_inclusive('\n').map(Cow::Borrowed).collect();
    let mut open = verdicts.clone();
    // If a transaction has several lines, the last one counts.
    for line in told.iter_mut().rev() {
        if let Some(committed) = id_of(line).and_then(|id| open.remove(&id)) {
            let status = if committed { "committed" } else { "aborted" };
            let known = format!("\"end_ns\":{now},\"status\":\"{status}\"");
            *line = Cow::Owned(line.replacen(UNKNOWN, &known, 1));
        }
        if open.is_empty() {
            break;
        }
    }
    told.concat().into_bytes()
}
