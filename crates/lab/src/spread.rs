//! Transactions that only read the records of one shard, on a simulated cluster: how many more of
//! them the copies of the shard answer than its primary alone.
//!
//! The time is the simulator's, so a seed gives the same figures on every machine.

use std::time::Duration;

use remora::protocol::Protocol;
use remora::{Cluster, Error, OpenError, Session, Table, TableOptions, TransactionOptions};
use remora_fabric::sim::{Deployment, Profile, SimOptions};
use remora_workload::guestbook::{PARAMETERS, Parameters};
use remora_workload::{After, Invariant, Prng, Workload};
use serde::Serialize;

use crate::cluster::{Bench, LabError, as_the_texts};

/// The profile of the machines and their NICs.
const PROFILE: &str = "connectx5";
/// The number of memory nodes, whatever the number of copies is.
pub const MEMORY_NODES: u16 = 3;
const NODE_BYTES: usize = 256 << 20;
/// Virtual time before anything is counted.
const WARMUP: Duration = Duration::from_micros(500);
/// The number of rows of the table.
const ROWS: u64 = 1024;
/// The number of rows that a transaction reads.
const READS: usize = 16;

/// What is measured.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Spread {
    /// The protocol of the transactions. If it has snapshots, they read snapshots.
    pub protocol: Protocol,
    /// The number of copies of the shard.
    pub copies: u8,
    /// The number of client machines.
    pub machines: usize,
    /// The number of threads of each machine. Each has 8 transactions in flight.
    pub threads: usize,
    /// Of this many transactions, one changes a record, and the others only read. With 0, all only
    /// read.
    pub writes_one_in: u64,
    /// Virtual time that is counted.
    pub measure: Duration,
    /// The seed of all random choices.
    pub seed: u64,
}

/// What was measured.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Spreaded {
    /// The name of the protocol.
    pub protocol: &'static str,
    /// The number of copies of the shard.
    pub copies: u8,
    /// Transactions that only read, in a second of virtual time.
    pub rate: f64,
    /// The median of their times, in microseconds.
    pub median_us: f64,
    /// The share of their attempts that have aborted.
    pub aborted: f64,
    /// The verbs and calls of one of them.
    pub verbs: f64,
}

/// Measures how reads spread.
pub fn measure(spread: &Spread) -> Result<Spreaded, LabError> {
    let profile = Profile::named(PROFILE).expect("a profile that comes with remora");
    let sim = SimOptions { deployment: Deployment::Disaggregated, ..as_the_texts(profile, spread.seed) };
    let bench = Bench {
        sim,
        memory_nodes: MEMORY_NODES,
        node_bytes: NODE_BYTES,
        replicas: spread.copies,
        protocol: spread.protocol,
        machines: spread.machines,
        threads: spread.threads,
        coroutines: 8,
        warmup: WARMUP,
        measure: spread.measure,
    };
    let (sim, cluster, readers, _) = bench.load(|cluster| Readers::load(cluster, spread))?;
    let done = bench.run(&sim, &cluster, &readers, &|| None)?;
    assert!(done.measured.invariants.iter().all(|one| one.holds == Some(true)), "{:?}", done.measured.invariants);
    let reads = &done.measured.statistics.types[0];
    let committed = reads.committed as f64;
    let verbs = reads.cost.reads + reads.cost.writes + reads.cost.atomics + reads.cost.rpcs;
    Ok(Spreaded {
        protocol: spread.protocol.name(),
        copies: spread.copies,
        rate: committed / done.measured.elapsed.as_secs_f64(),
        median_us: reads.latency.value_at_quantile(0.5) as f64 / 1e3,
        aborted: reads.aborted as f64 / (committed + reads.aborted as f64),
        verbs: verbs as f64 / committed,
    })
}

/// A table of one shard, whose primary is at the first node.
#[derive(Debug)]
struct Readers {
    rows: Table<u64, u64>,
    in_snapshots: bool,
    writes_one_in: u64,
}

impl Readers {
    fn load(cluster: &Cluster, spread: &Spread) -> Result<Readers, OpenError> {
        let options = TableOptions::for_rows(ROWS).shards(1).first_node(0).grows(false);
        let rows = cluster.create_table("rows", options)?;
        cluster.load(&rows, (0..ROWS).map(|row| (row, 0)))?;
        let Spread { protocol, writes_one_in, .. } = *spread;
        Ok(Readers { rows, in_snapshots: protocol.has_snapshots(), writes_one_in })
    }
}

impl Workload for Readers {
    /// Counts the changes.
    type Ledger = i64;

    const NAME: &'static str = "readers";
    const TYPES: &'static [&'static str] = &["read", "change"];
    const INVARIANTS: &'static [&'static str] = &["no change is lost"];

    fn open(_: &Cluster, _: &Parameters) -> Result<Readers, OpenError> {
        unreachable!("of simulations there is one client process")
    }

    fn parameters(&self) -> Parameters {
        [0; PARAMETERS]
    }

    async fn warm(&self, session: &mut Session, _: u64, _: u64) -> Result<(), Error> {
        for first in (0..ROWS).step_by(64) {
            let all = async |tx: &mut remora::Transaction<'_, '_>| {
                for row in first..first + 64 {
                    let _ = tx.want(&self.rows, row);
                }
                tx.fetch().await
            };
            session.transact(all).await?;
        }
        Ok(())
    }

    async fn transact(&self, session: &mut Session, random: &mut Prng, changes: &mut i64) -> Result<(), Error> {
        if self.writes_one_in > 0 && random.below(self.writes_one_in) == 0 {
            let row = random.below(ROWS);
            let options = TransactionOptions::default().label(1);
            session
                .transact_with(options, async |tx| {
                    *self.rows.get_mut(tx, row).await? += 1;
                    Ok(())
                })
                .await?;
            *changes += 1;
            return Ok(());
        }
        let rows: [u64; READS] = std::array::from_fn(|_| random.below(ROWS));
        let options = TransactionOptions::default().snapshot(self.in_snapshots).only_reads(true);
        let read = session.transact_with(options, async |tx| {
            let all = rows.map(|row| tx.want(&self.rows, row));
            tx.fetch().await?;
            all.iter().try_for_each(|row| row.require(tx).map(drop))
        });
        read.await
    }

    fn invariants(&self, cluster: &Cluster, after: After<'_, i64>) -> Result<Vec<Invariant>, Error> {
        let (mut found, expected) = (0, after.ledgers.iter().sum::<i64>());
        cluster.inspect(&self.rows, |changes| found += *changes as i64)?;
        let [name] = Self::INVARIANTS else { unreachable!("there is one") };
        Ok(vec![Invariant { name, holds: Some(found == expected), detail: format!("{found} of {expected}") }])
    }
}
