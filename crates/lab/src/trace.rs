//! One transaction, round by round: what its client posts, and when the answers are there.
//!
//! [`trace`] founds a small simulated cluster, runs the transaction once so that the client knows
//! where the records are, and runs it again while the simulator records. The client's CPU costs
//! nothing, and the simulator does nothing hostile. A [`Trace`] prints itself as a sequence
//! diagram, which is the same at every run.

mod diagram;
#[cfg(test)]
mod tests;

use std::iter::successors;
use std::ops::Range;
use std::sync::atomic::Ordering;

use remora::floors::index::Table;
use remora::floors::node::node;
use remora::floors::record::{Key, KeyHash, RecordShape};
use remora::observe::{Cost, Nanos};
use remora::protocol::{Protocol, Validation};
use remora::{Cluster, Error, OpenError, Session, TableOptions, Transaction};
use remora_fabric::sim::{Profile, Recording, Sim, SimOptions};
use remora_fabric::{Address, Fabric, NodeId, WORD_BYTES};
use remora_workload::RunError;

use crate::LabError;
use crate::cluster::as_the_texts;

/// Memory nodes with accounts, and replicas of each account, if the protocol keeps as many.
const NODES: u16 = 3;
const ACCOUNTS: u64 = 32;
/// How long the simulator records after the caller has its answer: longer than the longest nap of
/// a memory node's CPU.
const AFTERMATH_NS: Nanos = 5_000_000;

/// What the transaction does.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Does {
    /// Moves an amount from account A to account B.
    #[default]
    Transfer,
    /// Reads both accounts.
    Read,
    /// Inserts account A.
    Insert,
}

impl Does {
    /// All of them.
    pub const ALL: [Does; 3] = [Does::Transfer, Does::Read, Does::Insert];

    /// Returns the name, as the command line has it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Does::Transfer => "transfer",
            Does::Read => "read",
            Does::Insert => "insert",
        }
    }
}

/// One transaction, round by round.
#[derive(Debug)]
pub struct Trace {
    protocol: Protocol,
    does: Does,
    nodes: u16,
    /// The accounts and their slots at each replica, the primary first.
    accounts: Vec<(u64, Vec<Address>)>,
    shape: RecordShape,
    /// Where the table's shards lie.
    shards: Vec<(NodeId, Range<u64>)>,
    recording: Recording,
    /// When the transaction began, and when the caller had its answer.
    time: Range<Nanos>,
    /// What the transaction has cost, as its lane has counted it.
    cost: Cost,
}

/// Runs one transaction, and records it.
pub fn trace(protocol: Protocol, does: Does) -> Result<Trace, LabError> {
    let profile = Profile::named("connectx4").expect("a profile that comes with remora");
    // A protocol needs what no card promises.
    let hardware = SimOptions { hostile: false, ..as_the_texts(profile, 1) };
    // The cluster's version cache is on a machine of its own, which has nothing else.
    let spares = u16::from(protocol.validation() == Validation::Global);
    let nodes = NODES + spares;
    let replicas = usize::from(NODES).min(protocol.discipline().copies_max()) as u8;
    let options = Cluster::embedded().nodes(nodes).spares(spares).replicas(replicas).node_bytes(16 << 20);
    let (cluster, sim) = options.protocol(protocol).open_simulated(&hardware)?;
    let accounts = cluster.create_table::<u64, i64>("accounts", TableOptions::for_rows(2 * ACCOUNTS))?;
    cluster.load(&accounts, (0..ACCOUNTS).map(|id| (id, 100)))?;

    let table = Table::open(&cluster.catalog(), "accounts").map_err(OpenError::from)?;
    let first = if does == Does::Insert { ACCOUNTS } else { 0 };
    let [from, to] = [0, 1].map(|node| key_at(&table, NodeId(node), first));
    let run = async |session: &mut Session, does| {
        let body = async |tx: &mut Transaction<'_, '_>| {
            match does {
                Does::Transfer => {
                    let [mut from, mut to] = accounts.get_many_mut(tx, [from, to]).await?;
                    *from -= 10;
                    *to += 10;
                }
                Does::Read => _ = accounts.get_many(tx, [from, to]).await?,
                Does::Insert => accounts.insert(tx, from, 100).await?,
            }
            Ok(())
        };
        session.transact(body).await
    };
    let mut worker = cluster.worker(Default::default())?;
    let recorded = async |session: &mut Session| {
        run(session, if does == Does::Insert { Does::Read } else { does }).await?;
        session.lane().sleep(AFTERMATH_NS).await;
        sim.instant(false);
        sim.record();
        let (began, before) = (session.lane().now(), session.lane().cost());
        run(session, does).await?;
        let (time, cost) = (began..session.lane().now(), session.lane().cost().since(&before));
        session.lane().sleep(AFTERMATH_NS).await;
        sim.instant(true);
        Ok::<_, Error>((time, cost, sim.recorded()))
    };
    let (time, cost, recording) = worker.block_on(recorded).map_err(RunError::from)?;
    let accounts = [from, to].map(|key| (key, slots(&sim, &table, key))).into();
    let (shape, shards) = (*table.shape(), shards(&table));
    Ok(Trace { protocol, does, nodes, accounts, shape, shards, recording, time, cost })
}

fn encoded(key: u64) -> Key {
    Key::new(&key.to_be_bytes()).expect("eight bytes")
}

fn shard_of(table: &Table, key: u64) -> u16 {
    table.home(KeyHash::of(encoded(key).words())).shard
}

/// The first key from `first` on whose primary is at a node.
fn key_at(table: &Table, node: NodeId, first: u64) -> u64 {
    let is_there = |key: &u64| table.shard_replicas(shard_of(table, *key))[0].node == node;
    (first..).find(is_there).expect("each node is the primary of a shard")
}

/// Where a key's record is at each replica; empty if the key is not there.
fn slots(sim: &Sim, table: &Table, key: u64) -> Vec<Address> {
    let (replicas, key) = (table.shard_replicas(shard_of(table, key)), encoded(key));
    let region = sim.region(replicas[0].node, node::REGION).expect("a memory node has a region");
    let has_key = |slot: &u64| {
        let first = replicas[0].address(*slot).offset as usize / WORD_BYTES;
        let word = |at: usize| region.words()[first + at].load(Ordering::Relaxed);
        // A slot without a version has never been used.
        word(1) != 0 && table.shape().key_places().zip(key.words()).all(|(at, part)| word(at) == *part)
    };
    let slot = successors(table.index().slot_behind(0), |slot| table.index().slot_behind(slot + 1)).find(has_key);
    slot.map_or(Vec::new(), |slot| replicas.iter().map(|replica| replica.address(slot)).collect())
}

/// Where the shards of a table lie, at each node.
fn shards(table: &Table) -> Vec<(NodeId, Range<u64>)> {
    let bytes = table.entry().spec.shard_bytes;
    let replicas = (0..table.shards()).flat_map(|shard| table.shard_replicas(shard));
    replicas.map(|replica| (replica.node, replica.base..replica.base + bytes)).collect()
}
