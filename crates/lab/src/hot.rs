//! Clients that all change one record, on a simulated cluster: how long a transaction waits, how
//! evenly clients get their turns, and how many changes they commit together, as clients are added.
//!
//! Each client is a machine with one thread of several coroutines. The time is the simulator's, so
//! a seed gives the same figures on every machine.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use remora::observe::{Observer, Outcome, TransactionEvent};
use remora::protocol::Protocol;
use remora::{Cluster, Error, Intent, OpenError, Session, Table, TableOptions, TransactionOptions};
use remora_fabric::Nanos;
use remora_fabric::sim::{Deployment, Profile, SimOptions};
use remora_workload::guestbook::{PARAMETERS, Parameters};
use remora_workload::{After, Invariant, Prng, Workload};
use serde::Serialize;

use crate::cluster::{Bench, LabError, as_the_texts};

/// The profile of the machines and their NICs.
const PROFILE: &str = "connectx5";
const MEMORY_NODES: u16 = 3;
const NODE_BYTES: usize = 16 << 20;
/// Virtual time before anything is counted. All clients have met each other by then.
const WARMUP: Duration = Duration::from_millis(2);
/// How long a change is tried.
const PATIENCE: Duration = Duration::from_secs(10);

/// What is measured.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Crowd {
    /// The protocol of the transactions.
    pub protocol: Protocol,
    /// The number of clients.
    pub clients: usize,
    /// The number of coroutines of each client.
    pub coroutines: usize,
    /// Virtual time that is counted.
    pub measure: Duration,
    /// The seed of all random choices.
    pub seed: u64,
}

/// What was measured.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Crowded {
    /// The name of the protocol.
    pub protocol: &'static str,
    /// The number of clients.
    pub clients: usize,
    /// The number of changes that have committed.
    pub committed: u64,
    /// Changes in a second of virtual time.
    pub rate: f64,
    /// The number of changes for each commit at the memory nodes.
    pub together: f64,
    /// The share of attempts that have aborted.
    pub aborted: f64,
    /// The changes of the client that has the fewest, as a part of its fair share.
    pub slowest: f64,
    /// The longest time of a change in milliseconds, from its first attempt to its answer.
    pub longest_ms: f64,
    /// The bound of waiting: no change has taken longer than this many times the sum of the holding
    /// times of the commits that ended meanwhile, its own among them. The holding time of a
    /// commit is the time of the attempt that has committed, without its time in line.
    pub waits: f64,
}

/// Measures a crowd at one record.
pub fn measure(crowd: &Crowd) -> Result<Crowded, LabError> {
    let profile = Profile::named(PROFILE).expect("a profile that comes with remora");
    let sim = SimOptions { deployment: Deployment::Disaggregated, ..as_the_texts(profile, crowd.seed) };
    let bench = Bench {
        sim,
        memory_nodes: MEMORY_NODES,
        node_bytes: NODE_BYTES,
        replicas: MEMORY_NODES as u8,
        protocol: crowd.protocol,
        machines: crowd.clients,
        threads: 1,
        coroutines: crowd.coroutines,
        warmup: WARMUP,
        measure: crowd.measure,
    };
    let (sim, cluster, counter, _) = bench.load(Counter::load)?;
    let from = sim.now() + WARMUP.as_nanos() as Nanos;
    let attempts = Rc::new(RefCell::new(Vec::new()));
    // Sessions are made client by client.
    let sessions = Cell::new(0);
    let watch = || -> Option<Box<dyn Observer>> {
        let client = sessions.replace(sessions.get() + 1) / crowd.coroutines;
        Some(Box::new(Watch { client, attempts: attempts.clone() }))
    };
    let done = bench.run(&sim, &cluster, &counter, &watch)?;
    assert!(done.measured.invariants.iter().all(|one| one.holds == Some(true)), "{:?}", done.measured.invariants);
    let until = from + crowd.measure.as_nanos() as Nanos;
    Ok(judge(crowd, &attempts.borrow(), from, until))
}

/// Computes the figures of what ended in this time.
fn judge(crowd: &Crowd, attempts: &[Attempt], from: Nanos, until: Nanos) -> Crowded {
    let is_counted = |attempt: &&Attempt| (from..until).contains(&attempt.ended);
    let committed: Vec<&Attempt> = attempts.iter().filter(is_counted).filter(|attempt| attempt.has_committed).collect();
    let failed = attempts.iter().filter(is_counted).count() - committed.len();
    // Commits in the order of their ends, each with the holding times up to it.
    let mut commits: Vec<(Nanos, Nanos)> = attempts
        .iter()
        .filter(|attempt| attempt.has_committed && !attempt.is_member)
        .map(|attempt| (attempt.ended, attempt.held))
        .collect();
    commits.sort_unstable();
    let mut sum = 0;
    for (_, held) in &mut commits {
        sum += *held;
        *held = sum;
    }
    let held_until = |time: Nanos| {
        let ended = commits.partition_point(|(ended, _)| *ended <= time);
        ended.checked_sub(1).map_or(0, |last| commits[last].1)
    };
    let took = |attempt: &&Attempt| attempt.ended - attempt.began;
    let waits = |attempt: &&Attempt| {
        let held = held_until(attempt.ended) - held_until(attempt.began);
        took(attempt) as f64 / held.max(1) as f64
    };
    let of_client = |client| committed.iter().filter(|attempt| attempt.client == client).count();
    let slowest = (0..crowd.clients).map(of_client).min().unwrap_or(0);
    let alone = committed.iter().filter(|attempt| !attempt.is_member).count();
    let count = committed.len() as f64;
    Crowded {
        protocol: crowd.protocol.name(),
        clients: crowd.clients,
        committed: committed.len() as u64,
        rate: count / crowd.measure.as_secs_f64(),
        together: count / alone.max(1) as f64,
        aborted: failed as f64 / (count + failed as f64),
        slowest: (slowest * crowd.clients) as f64 / count,
        longest_ms: committed.iter().map(took).max().unwrap_or(0) as f64 / 1e6,
        waits: committed.iter().map(waits).fold(0.0, f64::max),
    }
}

/// An attempt, as an observer has heard of it.
#[derive(Clone, Copy, Debug)]
struct Attempt {
    client: usize,
    has_committed: bool,
    /// Whether another attempt has decided it.
    is_member: bool,
    /// When the first attempt of its transaction began.
    began: Nanos,
    ended: Nanos,
    /// The time of the attempt, without its time in line.
    held: Nanos,
}

/// Notes all attempts of a client.
struct Watch {
    client: usize,
    attempts: Rc<RefCell<Vec<Attempt>>>,
}

impl Observer for Watch {
    fn transaction(&mut self, event: &TransactionEvent<'_>) {
        self.attempts.borrow_mut().push(Attempt {
            client: self.client,
            has_committed: event.outcome == Outcome::Committed,
            is_member: event.decided_by != event.id,
            began: event.began,
            ended: event.ended,
            held: (event.ended - event.attempt_began).saturating_sub(event.stood),
        });
    }
}

/// One record, which counts its changes.
#[derive(Debug)]
struct Counter(Table<u64, u64>);

impl Counter {
    fn load(cluster: &Cluster) -> Result<Counter, OpenError> {
        let table = cluster.create_table("counter", TableOptions::for_rows(1))?;
        cluster.load(&table, [(0, 0)])?;
        Ok(Counter(table))
    }
}

impl Workload for Counter {
    /// Counts the changes.
    type Ledger = i64;

    const NAME: &'static str = "counter";
    const TYPES: &'static [&'static str] = &["change"];
    const INVARIANTS: &'static [&'static str] = &["no change is lost"];

    fn open(_: &Cluster, _: &Parameters) -> Result<Counter, OpenError> {
        unreachable!("of simulations there is one client process")
    }

    fn parameters(&self) -> Parameters {
        [0; PARAMETERS]
    }

    async fn warm(&self, session: &mut Session, _: u64, _: u64) -> Result<(), Error> {
        session.transact(async |tx| self.0.get(tx, 0).await).await.map(drop)
    }

    async fn transact(&self, session: &mut Session, _: &mut Prng, changes: &mut i64) -> Result<(), Error> {
        let options = TransactionOptions::default().patience(PATIENCE);
        let changed = session.transact_with(options, async |tx| {
            let counter = tx.want_for(&self.0, 0, Intent::Update);
            tx.fetch().await?;
            *counter.get_mut(tx)? += 1;
            Ok(())
        });
        changed.await?;
        *changes += 1;
        Ok(())
    }

    fn invariants(&self, cluster: &Cluster, after: After<'_, i64>) -> Result<Vec<Invariant>, Error> {
        let (mut found, expected) = (0, after.ledgers.iter().sum::<i64>());
        cluster.inspect(&self.0, |count| found += *count as i64)?;
        let [name] = Self::INVARIANTS else { unreachable!("there is one") };
        Ok(vec![Invariant { name, holds: Some(found == expected), detail: format!("{found} of {expected}") }])
    }
}
